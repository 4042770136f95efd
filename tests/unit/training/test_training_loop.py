"""The loop: exact means, skipped steps, memory, early stopping, averages, interruptions, and exact resuming."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie.errors import BertieError, CheckpointError, CheckpointNotFound, ConfigError, CorruptCheckpoint, InputError
from bertie.training import Diverged, Interrupted, Result, train
from bertie.training.contract import Batch
from bertie.training.run.checkpoint import RunFolder, check_output
from bertie.training.run.distributed import World
from bertie.training.run.journal import read_metrics
from training_toy import Toy, ToyExamples, settings


def run(
    folder: Path,
    objective: Toy | None = None,
    *,
    resume: bool = False,
    dev: bool = False,
    count: int = 40,
    **values: Any,
) -> tuple[Result, Toy]:
    toy = objective or Toy()
    dev_examples = ToyExamples(20, seed=1) if dev else None
    made = settings(**values)
    return train(toy, ToyExamples(count), dev_examples, made, folder, world=World(), resume=resume, show=False), toy


def weights(toy: Toy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in toy.model.named_parameters()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, different


class Stop(Exception):
    """What a test raises inside a step."""


def stop_at(toy: Toy, call: int, error: BaseException) -> None:
    """Let the `call`-th loss (counted from 1) raise."""
    calls = 0

    def count(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error

    toy.before_loss = count


def test_the_update_is_by_the_exact_mean_however_the_batch_is_cut(tmp_path: Path) -> None:
    whole = run(tmp_path / "a", Toy(dropout=0.0), micro_batch_tokens=10**6)[1]
    cut = run(tmp_path / "b", Toy(dropout=0.0), micro_batch_tokens=20)[1]
    assert len(cut.batches_seen) > 2 * len(whole.batches_seen)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(cut)[name], value, rtol=0, atol=2e-6)


def test_a_run_is_the_plain_loop_of_pytorch(tmp_path: Path) -> None:
    """Same batches, torch's AdamW, its clipping and the same schedule."""
    ours, plain = Toy(dropout=0.0), Toy(dropout=0.0)
    run(tmp_path, ours, micro_batch_tokens=10**6, epochs=2)
    model = plain.model.train()
    decayed = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    others = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    peer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}])
    for step, batch in enumerate(ours.batches_seen):
        rate = 1e-3 * (step if step < 1 else 1 - (step - 1) / 9)
        for group in peer.param_groups:
            group["lr"] = rate
        loss, _ = plain.loss(model, batch)
        (loss / batch.units).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        peer.step()
        peer.zero_grad()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=0, atol=1e-5)


def test_what_was_trained_is_a_model_folder_like_any_other(tmp_path: Path) -> None:
    result, toy = run(tmp_path, epochs=1)
    loaded = bertie.load(tmp_path)
    assert type(loaded).__name__ == "BertForSequenceClassification"
    assert_same(dict(loaded.named_parameters()), weights(toy))
    assert (tmp_path / "vocab.txt").exists()
    assert result.steps == 5
    assert result.metrics == {}


def test_the_best_model_is_kept_not_the_last(tmp_path: Path) -> None:
    toy = Toy(dropout=0.0)
    scores = iter([0.5, 0.9, 0.7, 0.6])
    kept: list[dict[str, torch.Tensor]] = []

    def evaluate(model: Any, *_: Any, **__: Any) -> dict[str, float]:
        kept.append(weights(toy))
        return {"accuracy": next(scores)}

    toy.evaluate = evaluate  # type: ignore[method-assign]
    result, _ = run(tmp_path, toy, dev=True, epochs=4)
    assert (result.metrics, result.best_step, result.stopped_early) == ({"accuracy": 0.9}, 10, False)
    assert_same(dict(bertie.load(tmp_path).named_parameters()), kept[1])


def test_a_figure_takes_the_place_of_one_that_is_no_number(tmp_path: Path) -> None:
    toy = Toy()
    scores = iter([float("nan"), 0.3, float("nan")])
    toy.evaluate = lambda *_, **__: {"accuracy": next(scores)}  # type: ignore[method-assign]
    result, _ = run(tmp_path, toy, dev=True, epochs=3)
    assert (result.best_step, result.metrics) == (10, {"accuracy": 0.3})


def test_early_stopping_after_evaluations_without_a_better_one(tmp_path: Path) -> None:
    toy = Toy()
    scores = iter([0.5, 0.9, 0.7, 0.6, 0.99])
    toy.evaluate = lambda *_, **__: {"accuracy": next(scores)}  # type: ignore[method-assign]
    result, _ = run(tmp_path, toy, dev=True, epochs=9, patience=2)
    assert result.stopped_early
    assert result.steps == 20
    assert result.best_step == 10


def test_of_equally_good_models_the_one_of_least_loss_is_kept(tmp_path: Path) -> None:
    toy = Toy()
    figures = iter([(0.5, 0.1), (0.9, 0.6), (0.9, 0.4), (0.9, 0.5), (0.9, float("nan")), (0.8, 0.1)])
    kept: list[dict[str, torch.Tensor]] = []

    def evaluate(*_: Any, **__: Any) -> dict[str, float]:
        kept.append(weights(toy))
        return dict(zip(("accuracy", "loss"), next(figures), strict=True))

    toy.evaluate = evaluate  # type: ignore[method-assign]
    result, _ = run(tmp_path, toy, dev=True, epochs=6)
    assert (result.best_step, result.metrics) == (15, {"accuracy": 0.9, "loss": 0.4})
    assert_same(dict(bertie.load(tmp_path).named_parameters()), kept[2])


def test_patience_waits_for_the_metric_alone(tmp_path: Path) -> None:
    toy = Toy()
    losses = iter([0.5, 0.4, 0.3, 0.2, 0.1])
    toy.evaluate = lambda *_, **__: {"accuracy": 0.9, "loss": next(losses)}  # type: ignore[method-assign]
    result, _ = run(tmp_path, toy, dev=True, epochs=5, patience=2)
    assert (result.best_step, result.steps, result.stopped_early) == (15, 15, True)


def test_smaller_can_be_better(tmp_path: Path) -> None:
    toy = Toy()
    toy.best_metric, toy.greater_is_better = "loss", False
    scores = iter([0.5, 0.2, 0.7])
    toy.evaluate = lambda *_, **__: {"loss": next(scores)}  # type: ignore[method-assign]
    assert run(tmp_path, toy, dev=True, epochs=3)[0].best_step == 10


def test_metrics_are_logged_once_per_step(tmp_path: Path) -> None:
    run(tmp_path, dev=True, log_every=2)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [2, 4, 5, 6, 8, 10]
    assert [row["step"] for row in rows if row["kind"] == "dev"] == [5, 10]
    assert all(
        {"loss", "lr", "grad_norm", "tokens_per_s", "epoch"} <= set(row) for row in rows if row["kind"] == "train"
    )


def test_training_learns(tmp_path: Path) -> None:
    result, _ = run(tmp_path, Toy(dropout=0.0), dev=True, epochs=20, learning_rate=5e-3, log_every=50)
    assert result.metrics["accuracy"] >= 0.9


def test_the_average_of_weights_is_what_is_kept(tmp_path: Path) -> None:
    toy = Toy(dropout=0.0)
    averages = {name: value.double() for name, value in weights(toy).items()}

    seen: list[dict[str, torch.Tensor]] = []
    toy.before_loss = lambda batch: seen.append(weights(toy))
    run(tmp_path, toy, ema=0.9, micro_batch_tokens=10**6)
    for after in [*seen[1:], weights(toy)]:
        averages = {name: 0.9 * value + 0.1 * after[name].double() for name, value in averages.items()}
    for name, value in bertie.load(tmp_path).named_parameters():
        torch.testing.assert_close(value.detach().double(), averages[name], rtol=0, atol=1e-6)


def test_gradient_checkpointing_changes_no_number(tmp_path: Path) -> None:
    plain = run(tmp_path / "a")[1]
    saving = run(tmp_path / "b", gradient_checkpointing=True)[1]
    assert_same(weights(plain), weights(saving))


def test_bfloat16_trains_and_keeps_float32_weights(tmp_path: Path) -> None:
    result, toy = run(tmp_path, precision="bfloat16", epochs=1)
    assert result.skipped == 0
    assert {p.dtype for p in toy.model.parameters()} == {torch.float32}


# -- gradients that are no numbers (QUALITY 21) ----------------------------------------------------------------------


def poison(toy: Toy, steps: set[int]) -> None:
    """Let the gradients of these steps (counted from 0, one micro-batch each) be NaN."""
    calls = 0
    original = toy.loss

    def loss(model: Any, batch: Batch) -> Any:
        nonlocal calls
        value, extras = original(model, batch)
        calls += 1
        return (value * float("nan") if calls - 1 in steps else value), extras

    toy.loss = loss  # type: ignore[method-assign]


def test_gradients_that_are_not_finite_are_skipped_and_counted(tmp_path: Path) -> None:
    toy = Toy()
    poison(toy, {2, 3, 6})
    result, _ = run(tmp_path, toy, micro_batch_tokens=10**6)
    assert result.skipped == 3
    assert result.steps == 10
    assert all(torch.isfinite(p).all() for p in toy.model.parameters())
    assert read_metrics(tmp_path)[-1]["skipped"] == 3


def test_ten_in_a_row_end_the_run_with_the_last_good_weights(tmp_path: Path) -> None:
    good = Toy()
    run(tmp_path / "good", good, micro_batch_tokens=10**6, epochs=4, max_steps=4, schedule="constant")
    toy = Toy()
    poison(toy, set(range(4, 100)))
    with pytest.raises(Diverged, match="not finite 10 times in a row, up to step 14"):
        run(tmp_path / "bad", toy, micro_batch_tokens=10**6, max_steps=40, schedule="constant", warmup=0.4)
    with RunFolder(tmp_path / "bad") as folder:
        saved = folder.latest()
        assert saved is not None
        assert saved.state["step"] == 14
        assert all(torch.isfinite(value).all() for value in saved.tensors("model").values())
        assert_same(saved.tensors("model"), weights(toy))


# -- out of memory ---------------------------------------------------------------------------------------------------


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_global_batch(tmp_path: Path) -> None:
    toy = Toy(dropout=0.0)

    def limited(batch: Batch) -> None:
        if batch.num_tokens > 20:
            raise torch.OutOfMemoryError("no more")

    toy.before_loss = limited
    result, _ = run(tmp_path / "small", toy, micro_batch_tokens=1000)
    assert result.oom_halvings >= 1
    assert all(batch.num_tokens <= 20 for batch in toy.batches_seen)
    roomy = run(tmp_path / "large", Toy(dropout=0.0), micro_batch_tokens=1000)[1]
    for name, value in weights(roomy).items():
        torch.testing.assert_close(weights(toy)[name], value, rtol=0, atol=2e-6)
    rows = [row["examples"] for row in read_metrics(tmp_path / "small") if row["kind"] == "train"]
    assert rows == [8.0] * 10


def test_one_example_that_does_not_fit_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    toy = Toy()

    def never(batch: Batch) -> None:
        raise torch.OutOfMemoryError("no more")

    toy.before_loss = never
    with pytest.raises(InputError, match="does not fit into the memory"):
        run(tmp_path, toy)


# -- resuming (QUALITY 19) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adamw", "adam-weight-decay", "lamb"])
@pytest.mark.parametrize("killed_in", [5, 11, 21])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, name: Any, killed_in: int) -> None:
    """With dropout, in the middle of an epoch, with several micro-batches to a step, averages and clipping."""
    values: dict[str, Any] = {"optimizer": name, "save_every": 3, "micro_batch_tokens": 30, "ema": 0.9, "dev": True}
    straight = run(tmp_path / "straight", **values)[1]
    killed = Toy()
    stop_at(killed, killed_in, Stop())
    with pytest.raises(Stop):
        run(tmp_path / "killed", killed, **values)
    torch.manual_seed(12345)  # a new process has another state of everything
    torch.rand(7)
    resumed = Toy(seed=0 if killed_in == 5 else 9)  # before its first save, a run has nothing but its start
    run(tmp_path / "killed", resumed, resume=True, **values)
    assert_same(weights(straight), weights(resumed))
    for kind in ("model", "optimizer", "ema"):
        with RunFolder(tmp_path / "straight") as one, RunFolder(tmp_path / "killed") as two:
            first, second = one.latest(), two.latest()
            assert first is not None
            assert second is not None
            assert_same(first.tensors(kind), second.tensors(kind))
            assert first.rng == second.rng
            assert first.state["data"] == second.state["data"]
            assert first.state["optimizer_steps"] == second.state["optimizer_steps"]

    def curve(folder: Path) -> list[Any]:
        return [(row["step"], row["kind"], row.get("loss"), row.get("accuracy")) for row in read_metrics(folder)]

    assert curve(tmp_path / "straight") == curve(tmp_path / "killed")


def judged_by(toy: Toy, scores: dict[int, float], seen: dict[int, dict[str, torch.Tensor]], *, after: int = 0) -> None:
    """Let evaluations give these figures by step (one micro-batch to a step), and see the weights they are of."""

    def evaluate(*_: Any, **__: Any) -> dict[str, float]:
        step = after + len(toy.batches_seen)
        seen[step] = weights(toy)
        return {"accuracy": scores[step]}

    toy.evaluate = evaluate  # type: ignore[method-assign]


@pytest.mark.parametrize("ends", ["early", "late"])
def test_the_model_kept_after_a_kill_is_the_one_the_result_names(tmp_path: Path, ends: str) -> None:
    """Killed after a better model than the last checkpoint's was kept: going on must not take it for the older one."""
    values: dict[str, Any] = {"micro_batch_tokens": 10**6, "dev": True, "epochs": 4, "evaluate_every": 2}
    first, second = Toy(), Toy(seed=9)
    seen: dict[int, dict[str, torch.Tensor]] = {}
    judged_by(first, {2: 0.5, 4: 0.4, 6: 0.3, 8: 0.9}, seen)
    stop_at(first, 10, Stop())
    with pytest.raises(Stop):
        run(tmp_path, first, save_every=6, **values)
    assert {path.name for path in (tmp_path / "best").iterdir()} == {"step-00000002", "step-00000008"}

    judged_by(second, {8: 0.4, 10: 0.3, **dict.fromkeys(range(12, 21), 0.6)}, {}, after=6)
    result, _ = run(tmp_path, second, save_every=6, resume=True, patience=3 if ends == "early" else None, **values)
    kept = dict(bertie.load(tmp_path).named_parameters())
    assert not (tmp_path / "best").exists()
    if ends == "early":
        assert (result.best_step, result.stopped_early) == (2, True)
        assert_same(kept, seen[2])
    else:
        assert result.best_step == 12
        different = [name for name in kept if not torch.equal(kept[name], seen[8][name])]
        assert different


def test_best_models_are_kept_for_every_checkpoint_and_no_longer(tmp_path: Path) -> None:
    toy = Toy()
    judged_by(toy, {step: step / 100 for step in range(1, 20)}, {})
    stop_at(toy, 15, Stop())
    values: dict[str, Any] = {"micro_batch_tokens": 10**6, "dev": True, "epochs": 4, "evaluate_every": 1}
    with pytest.raises(Stop):
        run(tmp_path, toy, save_every=4, **values)
    left = sorted(path.name for path in (tmp_path / "best").iterdir())
    assert left == ["step-00000008", "step-00000012", "step-00000014"]
    shutil.rmtree(tmp_path / "best" / "step-00000012")
    with pytest.raises(CheckpointError, match=r"best model so far, that of step 12, is missing[\s\S]*a new run"):
        run(tmp_path, Toy(), save_every=4, resume=True, **values)


def test_a_run_is_resumed_only_with_its_own_settings_and_data(tmp_path: Path) -> None:
    run(tmp_path, max_steps=3)
    with pytest.raises(ConfigError, match=r"already[\s\S]*resume=True"):
        run(tmp_path, max_steps=3)
    with pytest.raises(ConfigError, match=r"started with learning_rate=0\.001; now it is 0\.002"):
        run(tmp_path, max_steps=3, resume=True, learning_rate=2e-3)
    with pytest.raises(ConfigError, match="other data"):
        run(tmp_path, max_steps=3, resume=True, count=41)
    with pytest.raises(CheckpointNotFound, match="no run"):
        run(tmp_path / "nothing", resume=True)
    assert run(tmp_path, max_steps=3, resume=True, log_every=7, micro_batch_tokens=99)[0].steps == 3


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = run(tmp_path / "straight", save_every=2)[1]
    run(tmp_path / "run", save_every=2)
    newest = tmp_path / "run" / "checkpoints" / "step-00000010"
    data = bytearray((newest / "optimizer.safetensors").read_bytes())
    data[len(data) // 2] ^= 4
    (newest / "optimizer.safetensors").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        resumed = run(tmp_path / "run", Toy(seed=5), save_every=2, resume=True)[1]
    assert "optimizer.safetensors is not as it was written" in caplog.text
    assert_same(weights(straight), weights(resumed))


def test_when_nothing_is_whole_the_run_does_not_start_over_in_silence(tmp_path: Path) -> None:
    run(tmp_path, max_steps=2)
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "manifest.json").write_text("{}")
    with pytest.raises(CorruptCheckpoint, match="No checkpoint of the run"):
        run(tmp_path, max_steps=2, resume=True)


def test_two_writers_on_one_run_folder_are_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path), pytest.raises(CheckpointError, match=f"process {os.getpid()} on .* is training in"):
        run(tmp_path)
    run(tmp_path, max_steps=1)


# -- stopping from outside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    straight = run(tmp_path / "straight")[1]
    toy = Toy()
    calls = 0

    def interrupt(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        if calls == 7:
            os.kill(os.getpid(), number)

    toy.before_loss = interrupt
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"Stopped at step \d of 10; everything is saved[\s\S]*resume=True"):
        run(tmp_path / "run", toy)
    assert signal.getsignal(number) is handler
    resumed = run(tmp_path / "run", Toy(seed=5), resume=True)[1]
    assert_same(weights(straight), weights(resumed))


def test_mistakes_are_errors_of_ours(tmp_path: Path) -> None:
    toy = Toy()
    toy.best_metric = "f1"
    with pytest.raises(ConfigError, match="gave no 'f1', only accuracy"):
        run(tmp_path / "a", toy, dev=True)
    with pytest.raises(BertieError, match="for GPUs"):
        run(tmp_path / "b", compile_layers=True)
    state = json.loads(
        (run(tmp_path / "c", max_steps=1)[0].output / "checkpoints/step-00000001/state.json").read_text()
    )
    assert state["step"] == 1


def test_only_the_first_process_looks_at_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointNotFound, match="There is no run"):
        check_output(tmp_path / "run", resume=True)
    monkeypatch.setenv("RANK", "1")  # on another host, which need not have the folder
    check_output(tmp_path / "run", resume=True)
