"""What people see of a run: progress lines, metrics.jsonl, TensorBoard, the report, the share of the device used."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie.errors import MissingExtra
from bertie.training import TaskOptions, finetune, train
from bertie.training.fine_tuning import run, set_dropout
from bertie.training.run.distributed import World
from bertie.training.run.journal import Journal, duration, read_metrics, step_flops
from bertie.training.run.report import draw_curves, peak_flops
from tiny_models import SENTENCES, saved
from training_toy import Toy, ToyExamples, settings


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if a package were not installed."""
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == package or name == f"torch.utils.{package}":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", missing)


def test_the_report_tells_the_figures_the_command_and_the_machine(tmp_path: Path) -> None:
    toy = Toy()
    run(
        toy, ToyExamples(), ToyExamples(20, seed=1), settings(), tmp_path,
        here=World(), resume=False, show=False, model_name="toy-model", notes=("3 rows were skipped",),
        command="bertie finetune classify --train x",
    )  # fmt: skip
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    for part in (
        "The run finished after 10 steps", "| accuracy |", "bertie finetune classify --train x", "3 rows were skipped",
        "toy-model", "tokens/s, mean", f"torch {torch.__version__}", "| learning_rate | 0.001 |",
        "![curves](curves.png)",
    ):  # fmt: skip
        assert part in report, part
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["steps"] == 10
    assert facts["metrics"].keys() == {"accuracy"}


def test_figures_that_are_not_finite_are_null_for_programs(tmp_path: Path) -> None:
    toy = Toy()
    toy.evaluate = lambda *_, **__: {"accuracy": float("nan"), "loss": float("inf")}  # type: ignore[method-assign]
    run(
        toy, ToyExamples(), ToyExamples(20, seed=1), settings(clip=float("inf")), tmp_path,
        here=World(), resume=False, show=False, model_name="toy-model", notes=(), command="bertie",
    )  # fmt: skip

    def refuse(word: str) -> None:
        raise AssertionError(word)

    facts = json.loads((tmp_path / "run.json").read_text(), parse_constant=refuse)
    assert facts["metrics"] == {"accuracy": None, "loss": None}
    assert facts["settings"]["clip"] is None


def test_the_report_lists_what_is_no_setting(tmp_path: Path) -> None:
    teacher = saved(tmp_path / "teacher", "BertForSequenceClassification")
    rows = [{"text": text, "label": f"LABEL_{number % 2}"} for number, text in enumerate(SENTENCES)]
    finetune(
        "classify", model=teacher, train=rows, output=tmp_path / "run", dropout=0.2, teacher=teacher, temperature=3.0,
        settings=settings(max_steps=1), device="cpu", show=False,
        options=TaskOptions(label_smoothing=0.1, class_weights={"LABEL_1": 2.0}, max_length=20),
    )  # fmt: skip
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    for part in (
        "| dropout | 0.2 |", "| attention_dropout | ", "| label_smoothing | 0.1 |", "| max_length | 20 |",
        "| class_weights | {'LABEL_1': 2.0} |", f"| teacher | {teacher} |", "| temperature | 3.0 |",
        "| distillation | {'task': 0.5, 'logits': 0.5, ",
    ):  # fmt: skip
        assert part in report, part
    assert "max_answer_tokens" not in report
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["max_length"] == 20


def test_without_matplotlib_there_is_a_report_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "matplotlib")
    rows = [{"kind": "train", "step": 1, "loss": 1.0, "lr": 0.1}]
    assert draw_curves(rows, tmp_path / "curves.png", best_metric="accuracy") is False
    assert not (tmp_path / "curves.png").exists()


def test_asking_for_tensorboard_without_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "tensorboard")
    with pytest.raises(MissingExtra, match=r"pip install 'bertie\[train\]'"):
        Journal(tmp_path, tensorboard=True)


def test_lines_show_loss_rate_speed_and_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path)
    journal.start(step=0, num_steps=40, what="toy")
    journal.log(10, {"loss": 0.5, "lr": 1e-4, "tokens_per_s": 12345.6, "grad_norm": 3.0}, left=95)
    journal.evaluated(20, {"accuracy": 0.75}, best=True)
    journal.close()
    shown = capsys.readouterr().err
    assert "step 10/40  loss 0.5000  lr 1.00e-04  tokens_per_s 12,346  1 min 35 s left" in shown
    assert "step 20  dev: accuracy 0.7500  (best so far)" in shown


def test_on_a_terminal_there_is_a_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path, show=True)
    journal.start(step=0, num_steps=4, what="toy")
    for step in range(1, 5):
        journal.at(step)
        journal.log(step, {"loss": 0.5, "lr": 1e-4, "tokens_per_s": 10.0})
    journal.say("a line [with brackets]")
    journal.close()
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "a line [with brackets]" in shown


def test_metrics_of_a_resumed_run_have_every_step_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, show=False)
    for step in range(1, 6):
        journal.log(step, {"loss": float(step)})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ki')  # a kill in the middle of a line
    journal = Journal(tmp_path, show=False, from_step=3)
    journal.log(4, {"loss": float("nan")})
    journal.close()
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["loss"] is None  # JSON has no NaN


def test_durations_read_well() -> None:
    assert [duration(s) for s in (4, 59.6, 750, 11100)] == ["4 s", "1 min 00 s", "12 min 30 s", "3 h 05 min"]


def test_useful_operations_are_six_for_every_weight_a_token_meets() -> None:
    config = bertie.BertConfig.preset("base")
    encoder = sum(
        p.numel() for n, p in bertie.BertModel(config).encoder.named_parameters() if n.endswith("dense.weight")
        or n.endswith(("query.weight", "key.weight", "value.weight"))
    )  # fmt: skip
    assert step_flops(config, tokens=10, squares=0) == 6 * 10 * encoder
    with_attention = step_flops(config, tokens=128, squares=128**2)
    assert with_attention - step_flops(config, tokens=128, squares=0) == 12 * 12 * 768 * 128**2
    head = step_flops(config, tokens=0, squares=0, predicted=1)
    assert head == 6 * (768**2 + 768 * 30522)


def test_the_peak_is_that_of_the_device_named_most_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 PCIe")
    assert peak_flops(torch.device("cuda")) == 756e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L40S")
    assert peak_flops(torch.device("cuda")) == 362e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "something else")
    assert peak_flops(torch.device("cuda")) is None


def test_dropout_can_be_set_apart_for_attention() -> None:
    model = Toy(dropout=0.1).model
    set_dropout(model, hidden=0.2, attention=0.0)
    layer = model.bert.encoder.layer[0]
    assert layer.attention.self.dropout.p == 0.0
    assert layer.attention.output.dropout.p == layer.output.dropout.p == model.bert.embeddings.dropout.p == 0.2
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (0.2, 0.0)


def test_extra_numbers_of_an_objective_are_logged(tmp_path: Path) -> None:
    toy = Toy()
    original = toy.loss
    toy.loss = lambda model, batch: (original(model, batch)[0], {"margin": 0.25})  # type: ignore[method-assign]
    train(toy, ToyExamples(), None, settings(max_steps=1), tmp_path, world=World(), show=False)
    assert read_metrics(tmp_path)[0]["margin"] == 0.25
