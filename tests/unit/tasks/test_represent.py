"""Retrieval checkpoints: BGE-M3's three heads, SPLADE's weighted words, ColBERT's MaxSim; each beside its formula."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bertie
import family_models
import tiny_models
from bertie.cli.main import main
from bertie.errors import BertieError

TEXTS = tiny_models.SENTENCES
QUERY = "What is the capital of Germany?"
COLBERT = {
    "query_token_id": "the", "doc_token_id": "paris", "query_maxlen": 20, "doc_maxlen": 14, "mask_punctuation": True,
    "attend_to_mask_tokens": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def m3(tmp_path_factory: pytest.TempPathFactory) -> str:
    """XLM-RoBERTa with the two layers beside it, and [CLS] normalised as its dense vector."""
    folder = tmp_path_factory.mktemp("m3")
    family_models.saved(folder, "XLMRobertaModel")
    torch.manual_seed(1)
    torch.save({"weight": torch.randn(1, 32), "bias": torch.randn(1)}, folder / "sparse_linear.pt")
    torch.save({"weight": torch.randn(32, 32), "bias": torch.randn(32)}, folder / "colbert_linear.pt")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return str(folder)


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("colbert")
    tiny_models.saved(folder, "BertModel")
    tensors = load_file(folder / "model.safetensors")
    torch.manual_seed(2)
    named = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    save_file(named | {"linear.weight": torch.randn(8, 32)}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "artifact.metadata").write_text(json.dumps(COLBERT))
    return str(folder)


def states(folder: str, text: str) -> tuple[list[int], torch.Tensor]:
    tokenizer = bertie.BertTokenizer.from_pretrained(folder)
    batch = tokenizer(text, return_tensors="pt", truncation=True)
    kind = bertie.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        return batch["input_ids"][0].tolist(), kind(**batch).last_hidden_state[0]


def test_m3_gives_dense_sparse_and_multi_from_one_pass(m3: str) -> None:
    for text, found in zip(TEXTS, bertie.represent(TEXTS, model=m3), strict=True):
        ids, hidden = states(m3, text)
        assert np.allclose(found.dense, torch.nn.functional.normalize(hidden[0], dim=0), atol=1e-5)
        assert np.allclose(found.dense, bertie.embed(text, model=m3), atol=1e-5)
        layer = torch.load(Path(m3) / "sparse_linear.pt", weights_only=True)
        weights = torch.relu(hidden @ layer["weight"].T + layer["bias"])[:, 0]
        wanted: dict[int, float] = {}
        for index, weight in zip(ids, weights.tolist(), strict=True):
            if index > 3 and weight > 0:  # not <s>, <pad>, </s>, <unk>
                wanted[index] = max(weight, wanted.get(index, 0.0))
        assert found.sparse is not None
        assert found.sparse.keys() == wanted.keys()
        assert all(abs(found.sparse[index] - wanted[index]) < 1e-4 for index in wanted)
        layer = torch.load(Path(m3) / "colbert_linear.pt", weights_only=True)
        vectors = torch.nn.functional.normalize(hidden[1:] @ layer["weight"].T + layer["bias"], dim=-1)
        assert np.allclose(found.multi, vectors, atol=1e-4)


def test_splade_weighs_the_words_its_head_would_put_in(tmp_path: Path) -> None:
    folder = family_models.saved(tmp_path, "DistilBertForMaskedLM")
    found = bertie.represent(TEXTS[0], model=folder)
    assert found.multi is None
    tokenizer = bertie.BertTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = bertie.load(folder)(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0]
    wanted = torch.log1p(torch.relu(logits)).amax(0)
    assert found.sparse is not None
    assert set(found.sparse) == set(wanted.nonzero()[:, 0].tolist())
    assert all(abs(weight - float(wanted[index])) < 1e-4 for index, weight in found.sparse.items())


def test_reranking_by_maxsim_is_the_formula(m3: str, colbert: str) -> None:
    for folder, options in ((m3, {"vectors": "multi"}), (colbert, {})):
        found = bertie.rerank(QUERY, TEXTS, model=folder, **options)  # type: ignore[call-overload]
        query = bertie.represent(QUERY, model=folder, vectors="multi", query=True).multi
        documents = [bertie.represent(text, model=folder, vectors="multi").multi for text in TEXTS]
        assert query is not None
        wanted = [sum(max(float(q @ d) for d in document) for q in query) for document in documents]
        assert [one.index for one in found] == sorted(range(len(TEXTS)), key=lambda i: -wanted[i])
        assert all(abs(one.score - wanted[one.index]) < 1e-3 for one in found)


@pytest.mark.parametrize("sees", [False, True])
def test_colbert_marks_texts_fills_queries_up_and_skips_punctuation(colbert: str, sees: bool, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(colbert, tmp_path / "model"))
    (folder / "artifact.metadata").write_text(json.dumps(COLBERT | {"attend_to_mask_tokens": sees}))
    tokenizer, model = bertie.BertTokenizer.from_pretrained(folder), bertie.BertModel.from_pretrained(folder).eval()
    layer = load_file(folder / "model.safetensors")["linear.weight"]

    def vectors(ids: list[int], real: int) -> torch.Tensor:
        mask = (torch.arange(len(ids)) < real).long()[None]
        with torch.no_grad():
            hidden = model(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden @ layer.T, dim=-1)

    first, *rest = tokenizer(QUERY)["input_ids"]
    marked = [first, tokenizer.get_vocab()["the"], *rest]
    filled = [*marked, *[tokenizer.mask_token_id] * (20 - len(marked))]
    found = bertie.represent(QUERY, model=str(folder), query=True)
    assert found.dense is None
    assert np.allclose(found.multi, vectors(filled, 20 if sees else len(marked)), atol=1e-4)

    text = "Paris is the capital, of France!"
    first, *rest = tokenizer(text, truncation=True, max_length=13)["input_ids"]
    marked = [first, tokenizer.get_vocab()["paris"], *rest]
    punctuation = {tokenizer.get_vocab()[mark] for mark in ",!" if mark in tokenizer.get_vocab()}
    assert punctuation & {*marked}
    kept = [place for place, index in enumerate(marked) if index not in punctuation]
    found = bertie.represent(text, model=str(folder))
    assert np.allclose(found.multi, vectors(marked, len(marked))[kept], atol=1e-4)
    with pytest.warns(UserWarning, match="cut"):
        assert bertie.represent(" ".join([text] * 5), model=str(folder)).truncated


def test_a_colbert_without_its_metadata_has_the_librarys_defaults(colbert: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(colbert, tmp_path / "model"))
    (folder / "artifact.metadata").unlink()
    found = bertie.represent(QUERY, model=str(folder), query=True).multi
    assert found is not None
    assert len(found) == 32
    for wrong, words in (
        ({"query_token_id": "[no such token]"}, "no token of the vocabulary"),
        ({"query_maxlen": 2}, "query_maxlen is 2"),
        ({"query_maxlen": "long"}, "query_maxlen is 'long'"),
    ):
        (folder / "artifact.metadata").write_text(json.dumps(COLBERT | wrong))
        with pytest.raises(BertieError, match=re.escape(words)):
            bertie.represent(QUERY, model=str(folder), query=True)


def test_the_command_line_writes_the_forms_that_are_asked_for(m3: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "-m", m3, "--vectors", "sparse,multi", "--format", "jsonl", TEXTS[0]]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(row) == {"text", "sparse", "multi"}
    assert {entry["id"]: entry["weight"] for entry in row["sparse"]} == pytest.approx(
        bertie.represent(TEXTS[0], model=m3, vectors="sparse").sparse
    )


def test_the_command_line_takes_a_query(colbert: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["embed", "-m", colbert, "--vectors", "multi", "--prompt-name", "query", "--format", "jsonl", QUERY]
    assert main(line) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert np.allclose(row["multi"], bertie.represent(QUERY, model=colbert, query=True).multi, atol=1e-4)


def test_a_head_that_is_not_there_is_said(tmp_path: Path) -> None:
    folder = family_models.saved(tmp_path, "RobertaModel")
    with pytest.raises(BertieError, match="no head for sparse and multi"):
        bertie.represent(TEXTS[0], model=folder, vectors=("dense", "sparse", "multi"))
    with pytest.raises(BertieError, match="wide"):
        bertie.represent(TEXTS[0], model=folder, vectors="wide")
    torch.save({"weight": torch.randn(1, 31), "bias": torch.randn(1)}, tmp_path / "sparse_linear.pt")
    with pytest.raises(BertieError, match="takes states of 31; the model's have 32"):
        bertie.represent(TEXTS[0], model=folder)
