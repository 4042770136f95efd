"""Relatives of BERT in the explorer, in compression and in bulk jobs; and that no room asks for one by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
import family_models
from bertie import explore
from bertie.config.relatives import MODEL_TYPES
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
