"""Relatives of BERT in the explorer, in compression and in bulk jobs; and that no room asks for one by name."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
import family_models
from bertie import explore
from bertie.compression import refit
from bertie.compression.importance import BLOCKS, projection
from bertie.config.relatives import MODEL_TYPES
from bertie.explore.page.walk import walk
from bertie.training.contract import Batch
from bulk_jobs import answers, jsonl_file, some_texts, vectors
from tiny_models import SENTENCES

RELATIVES = list(family_models.RELATIVES)
SOURCE = Path(bertie.__file__).parent


@pytest.mark.parametrize("relative", RELATIVES)
def test_the_explorer_shows_attention_and_attribution(relative: str, tmp_path: Path) -> None:
    narrow = {"embedding_size": 20} if relative == "Electra" else {}
    path = family_models.saved(tmp_path, f"{relative}ForSequenceClassification", num_labels=3, **narrow)
    session = explore.open_session(SENTENCES[0], model=path)
    batch = bertie.BertTokenizer.from_pretrained(path)(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        wanted = bertie.load(path)(**batch, output_attentions=True)
    for number, layer in enumerate(wanted.attentions):
        assert np.allclose(session.attention(number, 1).weights, layer[0, 1], atol=1e-5)
    found = session.attribute(steps=100)
    assert len(found.scores[0]) == batch["input_ids"].shape[1]
    assert found.baseline_score is not None
    assert float(sum(found.scores[0])) == pytest.approx(found.score - found.baseline_score, abs=0.02)
    view = session.neuron_view(1, 2, query=0, key=3)
    logits = np.log(session.attention(1, 2).weights[0])
    other = session.neuron_view(1, 2, query=0, key=5)
    assert view.score - other.score == pytest.approx(float(logits[3] - logits[5]), abs=1e-4)


@pytest.mark.parametrize("relative", RELATIVES)
def test_the_explorer_reads_words_from_every_layer_and_walks_with_a_token(relative: str, tmp_path: Path) -> None:
    narrow = {"embedding_size": 20} if relative == "Electra" else {}
    path = family_models.saved(tmp_path, f"{relative}ForMaskedLM", **narrow)
    tokenizer, model = bertie.BertTokenizer.from_pretrained(path), bertie.load(path)
    text = f"Paris is the {tokenizer.mask_token} of France."
    batch = tokenizer(text, return_tensors="pt")
    place = batch["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.no_grad():
        wanted = model(**batch, output_hidden_states=True)
    best = tokenizer.convert_ids_to_tokens(int(wanted.logits[0, place].argmax()))
    session = explore.open_session(text, model=path)
    assert session.lens(places=[place]).words[-1][0][0] == best
    steps: list[Any] = walk(session, place=place)["steps"]  # type: ignore[assignment]
    assert steps[-1]["words"][0][0] == best
    assert sum(step["weights"] for step in steps[-2:]) == sum(p.numel() for p in model.lm_head.parameters())
    before = [step for step in steps if step["layer"] == -1][-1]["vector"]["first"]
    assert np.allclose(before, wanted.hidden_states[0][0, place, : len(before)], atol=1e-3)


@pytest.mark.parametrize("relative", RELATIVES)
def test_fitting_again_looks_at_the_states_that_the_model_has(relative: str) -> None:
    model = family_models.tiny(f"{relative}Model", vocab_size=60)
    model.prune_heads({0: [1], 1: [0, 2]})
    ids, ends = torch.arange(3, 40), torch.tensor([0, 20, 37])
    batch = Batch({"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "cu_seqlens": ends}, 2, 37, 2)
    with torch.no_grad():
        wanted = model(ids, cu_seqlens=ends, output_hidden_states=True).hidden_states
        state, plan = refit._begin(model, batch)
        for layer, before, after in zip(model.encoder.layer, wanted, wanted[1:], strict=False):
            assert torch.allclose(state, before, atol=1e-5)
            for block in BLOCKS:
                inside = refit._units(layer, block, state, plan)
                state = refit._norm(layer, block)(projection(layer, block)(inside) + state)
            assert torch.allclose(state, after, atol=1e-5)


@pytest.mark.parametrize("relative", RELATIVES)
def test_fewer_positions_leave_short_texts_as_they_were(relative: str, tmp_path: Path) -> None:
    path = family_models.saved(tmp_path / "whole", f"{relative}Model")
    bertie.compress(path, output=tmp_path / "short", positions=9)
    assert bertie.load(tmp_path / "short").config.max_input_length == 9
    texts = ["a dog", "the fox"]
    assert np.allclose(bertie.embed(texts, model=str(tmp_path / "short")), bertie.embed(texts, model=path), atol=1e-6)
    with pytest.raises(bertie.BertieError, match=f"the model has {family_models.LENGTH}"):
        bertie.compress(path, output=tmp_path / "none", positions=family_models.LENGTH + 1)


@pytest.mark.parametrize("relative", RELATIVES)
def test_more_positions_leave_those_of_padding_alone(relative: str) -> None:
    model = family_models.tiny(f"{relative}Model", vocab_size=60)
    old = model.embeddings.position_embeddings.weight.detach().clone()
    unused = len(old) - family_models.LENGTH
    model.resize_position_embeddings(unused + 2 * family_models.LENGTH - 1)
    new = model.embeddings.position_embeddings.weight
    assert model.config.max_input_length == 2 * family_models.LENGTH - 1
    assert torch.equal(new[:unused], old[:unused])
    assert torch.allclose(new[unused::2], old[unused:], atol=1e-6)  # every other one is an old one
    if unused:
        with pytest.raises(bertie.BertieError, match="padding's"):
            model.resize_position_embeddings(unused)


@pytest.mark.parametrize("relative", RELATIVES)
def test_compression_keeps_the_vectors_of_texts(relative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "cache"))
    path = family_models.saved(tmp_path / "whole", f"{relative}Model", num_hidden_layers=3)
    result = bertie.compress(path, output=tmp_path / "small", task="embed", data=some_texts(24), size=0.95)
    assert json.loads((tmp_path / "small" / "config.json").read_text())["architectures"] == [f"{relative}Model"]
    assert result.point.score > 0.9
    small = bertie.embed(SENTENCES, model=str(tmp_path / "small"))
    assert np.mean(np.sum(small * bertie.embed(SENTENCES, model=path), axis=1)) > 0.8


@pytest.mark.parametrize("relative", ["DistilBert", "Electra", "MPNet"])
def test_compression_makes_a_smaller_one_of_the_same_class(
    relative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "cache"))
    path = family_models.saved(tmp_path / "whole", f"{relative}ForMaskedLM", num_hidden_layers=3)
    texts = some_texts(24)
    bertie.compress(path, output=tmp_path / "small", task="fill", data=texts, size=0.9)
    small = bertie.load(tmp_path / "small")
    assert type(small).__name__ == f"{relative}ForMaskedLM"
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in bertie.load(path).parameters())
    text = f"Paris is the {bertie.BertTokenizer.from_pretrained(path).mask_token} of France."
    assert bertie.fill(text, model=str(tmp_path / "small")).candidates


def test_a_bulk_job_embeds_with_one(tmp_path: Path) -> None:
    path = family_models.saved(tmp_path / "model", "XLMRobertaModel")
    texts = some_texts(30)
    source = jsonl_file(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    bertie.bulk("embed", source, tmp_path / "out", path)
    assert np.allclose(vectors(answers(tmp_path / "out")), bertie.embed(texts, model=path), atol=1e-5)


def test_no_room_compares_a_model_type_with_a_name() -> None:
    for file in SOURCE.rglob("*.py"):
        if file.is_relative_to(SOURCE / "family"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                written = ast.unparse(node)
                names = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                named = {*map(str, names)} & {*MODEL_TYPES[1:]}
                assert not (named and re.search(r"model_type", written)), f"{file}: {written}"


def test_the_files_of_relatives_stay_short() -> None:
    for file in (SOURCE / "family").glob("*.py"):
        if file.stem not in ("__init__", "heads"):
            assert len(file.read_text(encoding="utf-8").splitlines()) <= 120, file.name
