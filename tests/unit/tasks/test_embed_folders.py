"""Reading sentence-transformers folders: where things may lie, and what is refused, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.checkpoint.safetensors import write_safetensors
from bertie.errors import BertieError, CheckpointError, InputError
from bertie.running.sentence_folder import Dense, Normalize, find_sentence_folder, read_sentence_settings
from bertie.tasks.embed import Embedder
from sentence_models import MODULE, tiny_sentence_model, write_json
from tiny_models import SENTENCES


def test_what_a_folder_says_is_read(tmp_path: Path) -> None:
    shared = {
        "prompts": {"query": "q: ", "passage": "p: "},
        "default_prompt_name": "passage",
        "similarity_fn_name": "dot",
        "truncate_dim": 9,
    }
    folder = tiny_sentence_model(
        tmp_path / "m", dense=(12,), shared=shared, pooling={"pooling_mode": ["cls", "mean"], "include_prompt": False}
    )
    (tmp_path / "m" / "2_Dense" / "model.safetensors").unlink()
    write_safetensors(
        tmp_path / "m" / "2_Dense" / "model.safetensors",
        {"linear.weight": torch.ones(12, 64), "linear.bias": torch.zeros(12)},
    )
    settings = read_sentence_settings(Path(folder), 32)
    assert settings.pooling.modes == ("cls", "mean")
    assert not settings.pooling.include_prompt
    assert [type(stage) for stage in settings.stages] == [Dense, Normalize]
    assert (settings.max_length, settings.similarity, settings.truncate_dim) == (40, "dot", 9)
    assert settings.default_prompt_name == "passage"
    embedder = Embedder(folder)
    assert (embedder.dimension, embedder.max_seq_length, embedder.document_prompt_name) == (9, 40, "passage")
    assert embedder.prompts == {"query": "q: ", "document": "", "passage": "p: "}


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
def test_the_transformer_in_the_root_or_below(tmp_path: Path, transformer: str) -> None:
    folder = Path(tiny_sentence_model(tmp_path / "m", transformer=transformer, dense=(16,)))
    assert find_sentence_folder(folder / transformer) == folder
    embedder = Embedder(folder)
    assert embedder.loaded.folder == folder / transformer
    assert embedder.dimension == 16
    assert np.array_equal(embedder.embed(SENTENCES), Embedder(folder / transformer).embed(SENTENCES))


def test_a_folder_beside_a_stranger_is_a_plain_bert(tmp_path: Path) -> None:
    folder = Path(tiny_sentence_model(tmp_path / "m" / "inner"))
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    write_json(tmp_path / "m" / "modules.json", [{"path": "0_Transformer", "type": MODULE + "Transformer"}])
    assert find_sentence_folder(folder) is None
    assert Embedder(folder).settings.stages == ()


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    value = json.loads(path.read_text())
    value.update(changes)
    write_json(path, value)


def modules(folder: Path, *extra: dict[str, str]) -> None:
    path = folder / "modules.json"
    write_json(path, [*json.loads(path.read_text()), *extra])


BROKEN = [
    ("lstm", lambda f: modules(f, {"path": "9_LSTM", "type": MODULE + "LSTM"}), "sentence_transformers.models.LSTM"),
    ("foreign", lambda f: modules(f, {"path": "", "type": "os.Pooling"}), "names the module 'os.Pooling'"),
    ("two poolings", lambda f: modules(f, {"path": "1_Pooling", "type": MODULE + "Pooling"}), "two Pooling modules"),
    ("leading out", lambda f: modules(f, {"path": "../x", "type": MODULE + "Dense"}), "only plain names"),
    ("no dense", lambda f: modules(f, {"path": "7_Dense", "type": MODULE + "Dense"}), "7_Dense/config.json is not a"),
    ("not json", lambda f: (f / "modules.json").write_text("[{"), "not valid JSON"),
    ("not a list", lambda f: write_json(f / "modules.json", [3]), "not a list of modules"),
    ("pooling", lambda f: edit(f, "1_Pooling/config.json", pooling_mode="median"), "pooling_mode is 'median'"),
    ("pooling width", lambda f: edit(f, "1_Pooling/config.json", word_embedding_dimension=99), "pools vectors of 99"),
    ("activation", lambda f: edit(f, "2_Dense/config.json", activation_function="os.system"), "'os.system' is not"),
    ("tokens", lambda f: edit(f, "2_Dense/config.json", module_input_name="token_embeddings"), "module_input_name"),
    ("no weights", lambda f: (f / "2_Dense" / "model.safetensors").unlink(), "holds no weights"),
    ("cut", lambda f: (f / "2_Dense" / "model.safetensors").write_bytes(b"\x09"), "at least 8"),
    ("shape", lambda f: put(f, torch.ones(16, 7), torch.ones(16)), r"linear.weight is \[16, 7\]"),
    ("bias", lambda f: put(f, torch.ones(16, 32), torch.ones(3)), r"linear.bias is \[3\]"),
    ("names", lambda f: put(f, torch.ones(16, 32), None), "lacks the tensor 'linear.bias'"),
    ("length", lambda f: edit(f, "sentence_bert_config.json", max_seq_length="long"), "max_seq_length is 'long'"),
    ("prompts", lambda f: edit(f, "config_sentence_transformers.json", prompts=["a"]), "prompts is not an object"),
    ("prompt", lambda f: edit(f, "config_sentence_transformers.json", default_prompt_name="x"), "default_prompt_name"),
    ("function", lambda f: edit(f, "config_sentence_transformers.json", similarity_fn_name="x"), "similarity_fn_name"),
    ("dim", lambda f: edit(f, "config_sentence_transformers.json", truncate_dim=0), "truncate_dim is 0"),
]


def put(folder: Path, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    path = folder / "2_Dense" / "model.safetensors"
    path.unlink()
    write_safetensors(path, {"linear.weight": weight, **({} if bias is None else {"linear.bias": bias})})


@pytest.mark.parametrize(("breaking", "told"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken_folders_are_refused(tmp_path: Path, breaking: Any, told: str) -> None:
    folder = Path(tiny_sentence_model(tmp_path / "m", dense=(16,)))
    breaking(folder)
    with pytest.raises(BertieError, match=told) as caught:
        Embedder(folder)
    assert isinstance(caught.value, CheckpointError)


def test_dense_on_tokens_and_pooling_that_does_not_fit(tmp_path: Path) -> None:
    folder = Path(tiny_sentence_model(tmp_path / "m", dense=(16,)))
    with pytest.raises(InputError, match=r"gives 64 numbers; the checkpoint's dense layer takes 32"):
        Embedder(folder, pooling=["cls", "mean"])
    listing = json.loads((folder / "modules.json").read_text())
    listing[1], listing[2] = listing[2], listing[1]
    write_json(folder / "modules.json", listing)
    with pytest.raises(CheckpointError, match="Dense before Pooling"):
        Embedder(folder)
