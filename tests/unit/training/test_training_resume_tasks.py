"""Real objectives, killed and resumed: dynamic masks, pairs, windows and dropout all come back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.training import PretrainOptions, Settings, TaskOptions, finetune, pretrain
from bertie.training.pretraining.objective import Pretraining
from bertie.training.run.checkpoint import RunFolder
from bertie.training.tasks.classify import Classification
from tiny_models import SENTENCES, saved


class Killed(Exception):
    """Stands for a kill in the middle of a step."""


def killed_after(monkeypatch: pytest.MonkeyPatch, kind: Any, calls: int) -> None:
    original = kind.loss
    seen = 0

    def loss(self: Any, model: Any, batch: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen > calls:
            raise Killed
        return original(self, model, batch)

    monkeypatch.setattr(kind, "loss", loss)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    with RunFolder(folder) as run:
        found = run.latest()
        assert found is not None
        return found.tensors("model") | found.tensors("optimizer")


def same(first: Path, second: Path) -> bool:
    one, two = tensors(first), tensors(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("nsp", [False, True], ids=["masked words", "with next sentences"])
def test_pretraining_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsp: bool) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n\n".join("\n".join(SENTENCES[n:] + SENTENCES[:n]) for n in range(7)), encoding="utf-8")
    model = saved(tmp_path / "model", "BertForPreTraining")

    def run(folder: str, *, resume: bool = False) -> None:
        pretrain(
            corpus=[corpus], output=tmp_path / folder, model=model, resume=resume, device="cpu", show=False,
            settings=Settings(max_steps=12, batch_size=6, micro_batch_tokens=90, save_every=5, learning_rate=1e-3),
            options=PretrainOptions(nsp=nsp, max_length=40, dupe_factor=2, attention_dropout=0.1),
        )  # fmt: skip

    run("straight")
    with monkeypatch.context() as patch:
        killed_after(patch, Pretraining, 20)
        with pytest.raises(Killed):
            run("killed")
    run("killed", resume=True)
    assert same(tmp_path / "straight", tmp_path / "killed")


def test_fine_tuning_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(tmp_path / "model", "BertForPreTraining")
    rows = [{"text": text, "label": str(n % 3)} for n, text in enumerate(SENTENCES * 3)]

    def run(folder: str, *, resume: bool = False) -> dict[str, float]:
        return finetune(
            "classify", model=model, train=rows, dev=rows, output=tmp_path / folder, resume=resume, device="cpu",
            settings=Settings(epochs=2, batch_size=4, micro_batch_tokens=60, save_every=2, layer_decay=0.9),
            options=TaskOptions(label_smoothing=0.1, class_weights="balanced", max_length=40), show=False,
        ).metrics  # fmt: skip

    straight = run("straight")
    with monkeypatch.context() as patch:
        killed_after(patch, Classification, 17)
        with pytest.raises(Killed):
            run("killed")
    assert run("killed", resume=True) == straight
    assert same(tmp_path / "straight", tmp_path / "killed")
