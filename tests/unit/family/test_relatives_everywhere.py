"""Every task, the engine, training, conversion and the rest with every relative of BERT."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
import family_models
import tiny_models
from bertie.certificate import certify
from bertie.checkpoint.inspect import summarise
from bertie.convert import convert
from bertie.engine.cpu.library import load_library
from bertie.errors import BertieError
from bertie.training.fine_tuning import finetune
from bertie.training.pretraining.pretrain import PRETRAINING, PretrainOptions, pretrain

RELATIVES = list(family_models.RELATIVES)
TEXTS = tiny_models.SENTENCES
PAIR = (TEXTS[1], TEXTS[4])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("relatives")


def folder(place: Path, name: str, **config: object) -> str:
    path = place / f"{name}{len(config)}"
    return str(path) if path.exists() else family_models.saved(path, name, **config)


def alone(name: str, path: str, text: object) -> object:
    """A model's output for one text, by the class itself and the tokenizer's own call."""
    tokenizer = bertie.BertTokenizer.from_pretrained(path)
    batch = tokenizer(*(text if isinstance(text, tuple) else (text,)), return_tensors="pt", truncation=True)
    with torch.no_grad():
        return getattr(bertie, name).from_pretrained(path)(**batch)


@pytest.mark.parametrize("relative", RELATIVES)
def test_tasks_answer_what_the_model_says(relative: str, place: Path) -> None:
    path = folder(place, f"{relative}ForSequenceClassification", num_labels=3)
    for text in (TEXTS[0], PAIR):
        found = bertie.classify(text, model=path, top_k=3)
        wanted = alone(f"{relative}ForSequenceClassification", path, text).logits[0].softmax(0)  # type: ignore[attr-defined]
        scores = dict(found.labels)
        assert np.allclose([scores[f"LABEL_{i}"] for i in range(3)], wanted, atol=1e-5)

    path = folder(place, f"{relative}Model")
    vectors = bertie.embed(TEXTS, model=path, normalize=False)
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = alone(f"{relative}Model", path, text).last_hidden_state[0]  # type: ignore[attr-defined]
        assert np.allclose(vector, states.mean(0), atol=1e-5)
    assert bertie.features(PAIR, model=path, layers=[-1]) is not None

    path = folder(place, f"{relative}ForMaskedLM")
    tokenizer = bertie.BertTokenizer.from_pretrained(path)
    text = f"Paris is the {tokenizer.mask_token} of France."
    found = bertie.fill(text, model=path, top_k=2)
    logits = alone(f"{relative}ForMaskedLM", path, text).logits[0]  # type: ignore[attr-defined]
    at = tokenizer(text)["input_ids"].index(tokenizer.mask_token_id)
    best = int(logits[at].argmax())
    assert found.candidates[0].token == tokenizer.decode([best]).strip()
    if tokenizer.writes_words:  # the space before a mask stays, also where the mask's token takes it along
        said = bertie.fill(text, model=path, targets=["dog"])
        assert said.text == "Paris is the dog of France."
        two = bertie.fill(f"{tokenizer.mask_token} and {tokenizer.mask_token}", model=path, targets=["dog"])
        assert two.text == "dog and dog"


@pytest.mark.parametrize("relative", RELATIVES)
def test_tokens_and_answers_point_into_the_text(relative: str, place: Path) -> None:
    path = folder(place, f"{relative}ForTokenClassification", id2label={0: "O", 1: "B-X", 2: "I-X"})
    text = TEXTS[4]
    for entity in bertie.tag(text, model=path):
        assert text[entity.start : entity.end] == entity.text
        assert entity.text == entity.text.strip() or not entity.text.strip()  # a piece may be a space
    path = folder(place, f"{relative}ForQuestionAnswering")
    long = " ".join(TEXTS)
    found = bertie.answer("What is the capital of Germany?", long, model=path)
    assert found.candidates
    for one in found.candidates:
        assert long[one.start : one.end] == one.text


@pytest.mark.parametrize("relative", RELATIVES)
@pytest.mark.skipif(load_library() is None, reason="the C++ kernels are not built")
def test_the_engine_answers_as_the_reference(relative: str, place: Path) -> None:
    narrow = {"embedding_size": 20} if relative == "Electra" else {}
    path = folder(place, f"{relative}Model", **narrow)
    tokenizer = bertie.BertTokenizer.from_pretrained(path)
    model = bertie.load(path)
    texts = [*TEXTS, TEXTS[0] + (tokenizer.pad_token or "") + TEXTS[1]]  # padding as a word of a text
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    keep = batch["attention_mask"].bool()
    with torch.no_grad():
        wanted = model(**batch, output_hidden_states=True)
        fast = bertie.compile(model)
        assert "C++ float32" in fast.runner.describe()
        found = fast(**batch, output_hidden_states=True)
        for ours, theirs in zip(found.hidden_states, wanted.hidden_states, strict=True):
            assert torch.allclose(ours[keep], theirs[keep], atol=2e-5)
        ends = torch.nn.functional.pad(keep.sum(1).cumsum(0), (1, 0))
        for threads in (1, 2):
            torch.set_num_threads(threads)
            packed = fast(batch["input_ids"][keep], cu_seqlens=ends).last_hidden_state
            assert torch.allclose(packed, wanted.last_hidden_state[keep], atol=2e-5)
        torch.set_num_threads(1)
        holes = batch["attention_mask"].clone()
        holes[:, 3:5] = 0
        hidden = batch | {"attention_mask": holes}
        assert torch.allclose(
            fast(**hidden).last_hidden_state[holes.bool()], model(**hidden).last_hidden_state[holes.bool()], atol=2e-5
        )
        int8 = bertie.compile(model, dtype="int8", calibration=TEXTS, tokenizer=tokenizer)
        near = torch.nn.functional.cosine_similarity(
            int8(**batch).last_hidden_state[keep], wanted.last_hidden_state[keep]
        )
        assert near.mean() > 0.99


@pytest.mark.parametrize("relative", RELATIVES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.skipif(load_library() is None, reason="the C++ kernels are not built")
def test_the_engine_takes_what_pruning_leaves(relative: str, dtype: str, place: Path) -> None:
    path = folder(place, f"{relative}ForSequenceClassification", num_labels=3)
    tokenizer, model = bertie.BertTokenizer.from_pretrained(path), bertie.load(path).eval()
    model.prune_heads({0: [0, 2], 1: [1]})
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    fitted = {"calibration": TEXTS, "tokenizer": tokenizer} if dtype == "int8" else {}
    fast = bertie.compile(model, dtype=dtype, **fitted)
    assert f"C++ {dtype}" in fast.base_model.runner.describe()
    with torch.no_grad():
        wanted, found = (one(**batch).logits.float() for one in (model, fast))
    assert torch.allclose(found, wanted, atol={"float32": 1e-4, "bfloat16": 0.1, "int8": 0.3}[dtype])


@pytest.mark.parametrize("relative", RELATIVES)
def test_checkpoints_are_inspected_verified_and_converted(relative: str, place: Path, tmp_path: Path) -> None:
    path = folder(place, f"{relative}ForMaskedLM")
    summary = summarise(path)
    assert summary.layers == 2
    assert summary.heads == ["masked words"]
    assert not summary.notes
    assert certify(path).passed
    convert(path, tmp_path / "half", dtype="float16")
    half = bertie.load(tmp_path / "half")
    assert type(half).__name__ == f"{relative}ForMaskedLM"
    with pytest.raises(BertieError, match="Google's format is BERT's"):
        convert(path, tmp_path / "google", target="tf")


@pytest.mark.parametrize("relative", RELATIVES)
def test_fine_tuning_and_masked_words_train_it(relative: str, place: Path, tmp_path: Path) -> None:
    path = folder(place, f"{relative}Model")
    rows = [{"text": text, "pair": TEXTS[0], "label": "ab"[i % 2]} for i, text in enumerate(TEXTS * 2)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    finetune("pairs", model=path, train=str(tmp_path / "train.jsonl"), output=tmp_path / "tuned", epochs=1)
    assert type(bertie.load(tmp_path / "tuned")).__name__ == f"{relative}ForSequenceClassification"
    assert bertie.classify(PAIR, model=str(tmp_path / "tuned")) is not None

    tagged = [{"tokens": text.split(), "tags": ["O"] * len(text.split())} for text in TEXTS]
    finetune("tag", model=path, train=tagged, output=tmp_path / "tags", epochs=1)
    assert bertie.tag(TEXTS[0], model=str(tmp_path / "tags")) is not None

    words = folder(place, f"{relative}ForMaskedLM")
    (tmp_path / "corpus.txt").write_text("\n\n".join("\n".join(TEXTS) for _ in range(3)))
    pretrain(
        corpus=[tmp_path / "corpus.txt"],
        output=tmp_path / "more",
        model=words,
        settings=replace(PRETRAINING, epochs=1),
        options=PretrainOptions(nsp=False, max_length=24),
    )
    assert type(bertie.load(tmp_path / "more")).__name__ == f"{relative}ForMaskedLM"
