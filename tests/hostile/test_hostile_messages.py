"""The refusals that fuzzing called for, each with the sentence a person reads."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bertie
from bertie.checkpoint.load_weights import named_dtype
from bertie.checkpoint.safetensors import SafeFile
from bertie.checkpoint.torch_bin import read_bin
from bertie.config import MAX_LABELS, BertConfig
from bertie.convert import convert
from bertie.errors import BertieError, CheckpointError, CheckpointNotFound, ConfigError, CorruptCheckpoint
from bertie.loading import load
from hostile.bombs import BOMBS
from hostile.corpus import CONFIG, bin_files, config_json, safetensors_files, weights


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(config_json())
    (folder / "model.safetensors").write_bytes(safetensors_files()[0])
    return folder


def test_a_storage_that_an_old_file_does_not_hold_is_no_piece_of_our_memory(tmp_path: Path) -> None:
    """torch leaves such a storage as it was allocated: whatever the process had there would become a weight."""
    sound = bin_files()[1]
    keys = pickle.loads(_last_pickle(sound))
    assert len(keys) == len(weights())
    shorter = sound.replace(_last_pickle(sound), pickle.dumps(keys[:-1], 2))
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(shorter)
    with pytest.raises(CorruptCheckpoint, match=f"{len(keys)} storages are used and {len(keys) - 1} are stored"):
        read_bin(path)
    path.write_bytes(sound)
    assert read_bin(path).keys() == weights().keys()


def _last_pickle(content: bytes) -> bytes:
    """The list of storages of an old file: the fifth pickle."""
    stream = io.BytesIO(content)
    for _ in range(4):
        for _ in pickletools.genops(stream):
            pass
    start = stream.tell()
    pickle.load(stream)
    return content[start : stream.tell()]


def test_a_mapped_storage_shows_its_own_bytes_and_no_others(tmp_path: Path) -> None:
    """Mapped, torch does not compare what a tensor claims with what its member of the archive holds."""
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(io.BytesIO(bin_files()[0])) as archive, zipfile.ZipFile(path, "w") as changed:
        for info in archive.infolist():
            content = archive.read(info)
            changed.writestr(info.filename, content[:-4] if info.filename.endswith("data/3") else content)
    assert torch.load(path, mmap=True, weights_only=True).keys() == weights().keys()
    with pytest.raises(CorruptCheckpoint, match="the sizes of tensors and of their bytes differ"):
        read_bin(path)


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        ("bin: 2 MB of objects", "a pickle of more than 200000 instructions"),
        ("bin: 20 MB of lists", "is 20000003 bytes of pickle"),
        ("legacy: a text of 4 GB", "is not a file that torch wrote"),
        ("index: 1e5 files", "names 100000 files; no model has more than 10000"),
        ("safetensors: 99 MB of header", "claims a header of 99000000 bytes; no BERT's is larger than 2 MB"),
        ("safetensors: a billion layers", "num_hidden_layers is 1000000000; 1 tensors are too few for that"),
        ("config: hidden_size 10**400", "config.hidden_size is 1000000"),
        ("config: num_labels 1e7", "at least 1 and at most 100,000"),
        ("bundle: 60,000 variables of nothing", "the table has more than 15000 entries"),
        ("tokenizer: a billion laughs", "its replacements can make a text 1000000000 times as long"),
        ("tokenizer: a template of 1e5 texts", "a template of 6 MB would repeat every text"),
    ],
)
def test_bombs_are_named(tmp_path: Path, bomb: str, message: str) -> None:
    for name, content in BOMBS[bomb]().items():
        (tmp_path / name).write_bytes(content)
    opener: Callable[[Path], object] = load
    if bomb.startswith("tokenizer"):
        from bertie.text import BertTokenizer

        opener = BertTokenizer.from_pretrained
    with pytest.raises(BertieError) as caught:
        opener(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subfolder": "../other"}, "it must be the path of a folder inside"),
        ({"subfolder": "/"}, "it must be the path of a folder inside"),
        ({"subfolder": "nowhere"}, "has no folder 'nowhere'"),
        ({"subfolder": "out"}, "is a link that leads out of it"),
        ({"variant": "../fp16"}, "variant is '../fp16'"),
    ],
)
def test_arguments_that_lead_out_of_the_folder_are_named(model: Path, options: dict[str, str], message: str) -> None:
    (model / "out").symlink_to(model.parent)
    with pytest.raises(CheckpointError) as caught:
        bertie.BertModel.from_pretrained(model, **options)
    assert message in str(caught.value)


def test_a_subfolder_inside_is_followed(model: Path) -> None:
    inner = model / "a" / "b"
    inner.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.move(model / name, inner / name)
    assert bertie.BertForPreTraining.from_pretrained(model, subfolder="a/b").config == load(inner).config


def test_a_module_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointNotFound, match="says the transformer is in '0_Transformer', and there is no such"):
        load(tmp_path)


def test_paths_that_cannot_be_are_named() -> None:
    with pytest.raises(CheckpointNotFound, match="is not a path that can be"):
        load("x/" * 3000)
    with pytest.raises(CheckpointNotFound, match="is not a path that can be"):
        load("~no-such-user/model")


def test_links_out_of_the_folder_are_not_copied_and_told(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (model / "vocab.txt").symlink_to(tmp_path / "secret")
    result = convert(model, tmp_path / "converted")
    assert "not copied, links that lead out of the folder: vocab.txt" in result.notes
    assert not (tmp_path / "converted" / "vocab.txt").exists()


def test_a_dtype_is_looked_up_and_never_imported() -> None:
    import sys

    before = set(sys.modules)
    with pytest.raises(ConfigError, match=r"config\.dtype is '_inductor'"):
        named_dtype("_inductor", "config.dtype")
    assert set(sys.modules) == before
    assert named_dtype("torch.bfloat16", "dtype") is torch.bfloat16


def test_half_a_character_is_no_tensor_name(tmp_path: Path) -> None:
    header = json.dumps({"\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(CorruptCheckpoint, match="the header is not valid JSON"):
        SafeFile(path)


def test_numbers_that_no_float_holds_are_config_errors() -> None:
    for name in ("hidden_dropout_prob", "layer_norm_eps", "hidden_size", "vocab_size"):
        with pytest.raises(ConfigError, match=f"config.{name} is 1000"):
            BertConfig(**{name: 10**400})


def test_a_configuration_with_all_the_labels_allowed_is_read_again(tmp_path: Path) -> None:
    CONFIG.replace(num_labels=MAX_LABELS).to_json_file(tmp_path / "config.json")
    assert BertConfig.from_json_file(tmp_path / "config.json").num_labels == MAX_LABELS
