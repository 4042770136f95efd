"""RoBERTa, DistilBERT, ELECTRA, MPNet and the others are compressed like BERT, or a step is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import family_models
from tests.tiny_models import SENTENCES

import bertie
from bertie.compression import work
from bertie.compression.folders import load_whole
from bertie.compression.importance import observe
from bertie.compression.layers import Sizes, dense, keep
from bertie.compression.refit import refit
from bertie.compression.targets import open_target
from bertie.compression.work import Work
from bertie.errors import InputError

RELATIVES = list(family_models.RELATIVES)
WORD_PIECES = ["DistilBert", "Electra", "MPNet"]
HEADS = {"embed": "Model", "fill": "ForMaskedLM", "classify": "ForSequenceClassification"}


@pytest.fixture(autouse=True)
def _computed_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A head takes as long as twelve neurons, and what is always there as two heads."""
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "cache"))

    def seconds(model: bertie.BertPreTrainedModel) -> float:
        sizes = Sizes.of(model)
        return 2 + sum(sizes.heads) + sum(sizes.neurons) / 12

    monkeypatch.setattr(Work, "speed", lambda self, model: seconds(self.target.model) / seconds(model))
    monkeypatch.setattr(work, "FRONTIER", ())


def made(relative: str, task: str, folder: Path) -> tuple[str, Any]:
    """A folder, and data for it: labels are those that the model gives itself."""
    extra: dict[str, Any] = {"embedding_size": 16} if relative == "Electra" else {}
    if task == "classify":
        extra["id2label"] = {0: "no", 1: "yes"}
    path = family_models.saved(folder, f"{relative}{HEADS[task]}", **extra)
    texts = [text[: 20 + 7 * number] for number in range(4) for text in SENTENCES]
    if task != "classify":
        return path, texts
    found = bertie.classify(texts, model=path)
    return path, [{"text": text, "label": one.label} for text, one in zip(texts, found, strict=True)]


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("relative", RELATIVES)
def test_every_relative_is_compressed(relative: str, task: str, tmp_path: Path) -> None:
    folder, data = made(relative, task, tmp_path / "model")
    result = bertie.compress(folder, task=task, data=data, speedup=1.5, output=tmp_path / "small")
    assert result.point.speedup == pytest.approx(1.5, rel=0.1)
    small = load_whole(str(result.output))
    assert type(small).__name__ == f"{relative}{HEADS[task]}"
    assert Sizes.of(small) == result.point.sizes
    before, after = result.frontier[0].sizes, result.point.sizes
    assert (sum(after.heads), sum(after.neurons)) < (sum(before.heads), sum(before.neurons))
    if task == "embed":
        assert result.frontier[0].score == pytest.approx(1)
        assert result.point.score >= 0.8


@pytest.mark.parametrize("relative", RELATIVES)
def test_a_fit_with_everything_left_changes_nothing(relative: str, tmp_path: Path) -> None:
    folder, data = made(relative, "embed", tmp_path)
    target = open_target("embed", folder, data, None, bertie.BertTokenizer.from_pretrained(folder), None)
    observed = observe(target, target.model)
    same = keep(target.model, [range(4)] * 2, [torch.arange(48)] * 2)
    refit(target.model, same, target.fit, observed)
    for before, after in zip(target.model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(after, before, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("relative", RELATIVES)
def test_a_fit_sees_the_states_that_the_model_has(relative: str, tmp_path: Path) -> None:
    """With half of the heads gone, what is fitted to the original is nearer to it than what is only cut."""
    folder, data = made(relative, "embed", tmp_path)
    target = open_target("embed", folder, data, None, bertie.BertTokenizer.from_pretrained(folder), None)
    observed = observe(target, target.model)
    cut, fitted = (keep(target.model, [[0, 3]] * 2, [torch.arange(0, 48, 2)] * 2) for _ in range(2))
    refit(target.model, fitted, target.fit, observed)

    def off(model: bertie.BertPreTrainedModel) -> float:
        with torch.no_grad():
            pairs = [(target.answers(model, b), target.answers(target.model, b)) for b in target.fit]
        return sum(float((ours - theirs).square().sum()) for ours, theirs in pairs)

    assert off(fitted) < 0.5 * off(cut)


@pytest.mark.parametrize("relative", RELATIVES)
def test_the_engine_and_the_dense_twin_answer_alike(relative: str, tmp_path: Path) -> None:
    folder, _ = made(relative, "embed", tmp_path)
    small = keep(bertie.load(folder).eval(), [[1, 3], []], [torch.arange(5), torch.arange(0, 48, 3)])
    ids = torch.tensor([[0, 45, 17, 99, 2], [0, 7, 9, 30, 2]])
    with torch.no_grad():
        wanted = small(ids).last_hidden_state
        for other in (bertie.compile(small, strict=True), dense(small)):
            torch.testing.assert_close(other(ids).last_hidden_state, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("relative", WORD_PIECES)
def test_word_pieces_are_trimmed(relative: str, tmp_path: Path) -> None:
    for task in ("embed", "fill"):
        folder, _ = made(relative, task, tmp_path / task)
        result = bertie.compress(folder, vocab_from=SENTENCES[:2], positions=24, output=tmp_path / f"{task} small")
        before, after = (load_whole(str(place)) for place in (folder, result.output))
        assert after.config.vocab_size < before.config.vocab_size
        assert after.config.max_input_length == 24
        if task == "embed":
            text = SENTENCES[0][:30]
            assert (bertie.embed(text, model=folder) == bertie.embed(text, model=result.output)).all()
        else:
            mask = bertie.BertTokenizer.from_pretrained(folder).mask_token
            assert bertie.fill(f"the {mask} jumps", model=result.output)


@pytest.mark.parametrize(
    ("relative", "kind"), [("Roberta", "BPE"), ("XLMRoberta", "Unigram"), ("Camembert", "Unigram")]
)
def test_other_tokenizers_are_refused_by_name(relative: str, kind: str, tmp_path: Path) -> None:
    folder, _ = made(relative, "embed", tmp_path / "model")
    with pytest.raises(InputError, match=f"The tokenizer is a {kind}; a vocabulary is trimmed for WordPiece alone"):
        bertie.compress(folder, vocab_from=SENTENCES, output=tmp_path / "small")


@pytest.mark.parametrize("relative", ["Roberta", "MPNet"])
def test_positions_are_those_that_texts_have(relative: str, tmp_path: Path) -> None:
    folder, data = made(relative, "fill", tmp_path / "model")
    result = bertie.compress(folder, task="fill", data=data, speedup=1.25, positions=24, output=tmp_path / "small")
    assert bertie.load(result.output).config.max_input_length == 24
    with pytest.raises(InputError, match="positions is 49; the model has 48"):
        bertie.compress(folder, positions=49, output=tmp_path / "large")
