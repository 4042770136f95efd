"""The vocabulary that pretraining learns: found again for the same text and options, made anew for others."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from bertie.errors import ConfigError
from bertie.text import BertTokenizer
from bertie.training import PretrainOptions, Settings, pretrain
from tiny_models import SENTENCES

pretraining = importlib.import_module("bertie.training.pretraining.pretrain")


class Stopped(Exception):
    """What a test raises once the vocabulary is there."""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(SENTENCES * 2), encoding="utf-8")
    return path


def run(corpus: Path, *, resume: bool = False, **options: Any) -> None:
    chosen: dict[str, Any] = {"max_length": 32, "vocab_size": 200} | options
    pretrain(
        corpus=corpus, output=corpus.parent / "run", device="cpu", show=False, resume=resume, size="tiny",
        settings=Settings(max_steps=1, batch_size=4), options=PretrainOptions(**chosen),
    )  # fmt: skip


def vocabulary(corpus: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(corpus.parent / "run" / "data" / "vocabulary")


def stop_after_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise Stopped

    monkeypatch.setattr(pretraining, "_network", stopped)


def test_what_another_run_left_is_not_taken_for_this_one(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after_the_vocabulary(monkeypatch)
    with pytest.raises(Stopped):
        run(corpus)
    left = vocabulary(corpus)
    assert len(left) == 200
    with pytest.raises(Stopped):
        run(corpus, vocab_size=220, lowercase=False)
    assert len(vocabulary(corpus)) == 220
    assert not vocabulary(corpus).do_lower_case
    corpus.write_text("Zebras jazz quizzically. " * 9, encoding="utf-8")
    with pytest.raises(Stopped):
        run(corpus, lowercase=False)
    assert "Z" in vocabulary(corpus).get_vocab()


def test_the_same_text_and_options_find_it_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after_the_vocabulary(monkeypatch)
    with pytest.raises(Stopped):
        run(corpus)
    monkeypatch.setattr(pretraining, "train_vocabulary", lambda *_, **__: pytest.fail("learned again"))
    with pytest.raises(Stopped):
        run(corpus)


def test_a_run_is_resumed_only_with_its_own_vocabulary(corpus: Path) -> None:
    run(corpus)
    before = vocabulary(corpus).get_vocab()
    for option, said in (
        ({"vocab_size": 220}, "started with vocab_size=200; now it is 220"),
        ({"lowercase": False}, "started with lowercase=True; now it is False"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(corpus, resume=True, **option)
    run(corpus, resume=True)
    corpus.write_text("Zebras jazz quizzically. " * 9, encoding="utf-8")
    with pytest.raises(ConfigError, match="another corpus"):
        run(corpus, resume=True)
    assert vocabulary(corpus).get_vocab() == before


def test_lines_that_are_not_utf_8_are_passed_over_from_the_vocabulary_on(corpus: Path) -> None:
    corpus.write_bytes(b"caf\xe9\n\n" + corpus.read_bytes())
    run(corpus, skip_bad=True)
    assert (corpus.parent / "run" / "model.safetensors").exists()
