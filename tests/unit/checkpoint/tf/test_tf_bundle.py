"""Bundles TensorFlow wrote, read by us: every tensor's dtype, shape and sha256 as TensorFlow's own reader gave them.

tests/scripts/tensorflow_oracle.py made the files and answers.json (TensorFlow 2.21.0). google_tiny is a genuine
Google-layout TF1 checkpoint, two layers of width 4.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.tensorflow import BundleReader, list_variables, load_variable
from bertie.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint

ASSETS = Path(__file__).resolve().parents[3] / "assets" / "tf"
ANSWERS = json.loads((ASSETS / "answers.json").read_text())
GOOGLE = ASSETS / "google_tiny" / "bert_model.ckpt"


def raw_bytes(reader, name):
    if reader.entries[name].dtype.is_string:
        return b"\x1f".join(reader.read_strings(name))
    tensor = reader.read(name)
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def copied(folder, prefix):
    """A copy of a bundle to damage; its new prefix."""
    for path in prefix.parent.glob(prefix.name + ".*"):
        shutil.copy(path, folder)
    return folder / prefix.name


@pytest.mark.parametrize("bundle", sorted(ANSWERS))
def test_every_tensor_equals_tensorflows(bundle):
    with BundleReader(ASSETS / bundle) as reader:
        assert sorted(reader.names()) == sorted(ANSWERS[bundle])
        for name, (dtype, shape, sha256) in ANSWERS[bundle].items():
            entry = reader.entries[name]
            assert (entry.dtype.name, list(entry.shape)) == (dtype, shape), name
            assert hashlib.sha256(raw_bytes(reader, name)).hexdigest() == sha256, name
            if not entry.dtype.is_string:
                assert list(reader.read(name).shape) == shape


def test_the_assets_cover_what_they_are_for():
    dtypes = {dtype for table in ANSWERS.values() for dtype, _, _ in table.values()}
    assert {"bfloat16", "float16", "float64", "bool", "complex128", "uint64", "int8", "string"} <= dtypes
    assert len(ANSWERS["google_tiny/bert_model.ckpt"]) == 139
    with BundleReader(ASSETS / "tf1_two_shards.ckpt") as reader:
        assert reader.num_shards == 2
        assert {entry.shard for entry in reader.entries.values()} == {0, 1}
    with BundleReader(ASSETS / "tf1_partitioned.ckpt") as reader:
        assert len(reader.entries["rows/w"].slices) == 3
        assert len(reader.entries["columns/w"].slices) == 2
        assert reader.read("rows/w").shape == (200, 2)


def test_values_known_by_hand():
    step = load_variable(GOOGLE, "global_step")
    assert step.dtype == torch.int64
    assert step.shape == ()
    gamma = load_variable(GOOGLE, "bert/embeddings/LayerNorm/gamma")
    assert gamma.dtype == torch.float32
    assert torch.isfinite(gamma).all()
    with BundleReader(ASSETS / "tf1_dtypes.ckpt") as reader:
        assert reader.read_strings("words") == [b"", b"BERT", "ß\0é".encode(), b"x" * 300]
        assert reader.read("bfloat16/cube").dtype == torch.bfloat16
        assert reader.read("float32/empty").shape == (0, 3)


def test_listing_never_opens_a_data_file(tmp_path):
    prefix = copied(tmp_path, GOOGLE)
    (tmp_path / "bert_model.ckpt.data-00000-of-00001").unlink()
    listed = list_variables(prefix)
    assert len(listed) == 139
    assert ("bert/embeddings/word_embeddings", (15, 4)) in listed
    assert [name for name, _ in listed] == sorted(name for name, _ in listed)


def test_tensors_are_their_own_memory(tmp_path):
    prefix = copied(tmp_path, GOOGLE)
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    before = data.read_bytes()
    with BundleReader(prefix) as reader:
        tensor = reader.read("bert/pooler/dense/kernel")
        kept = tensor.clone()
    data.write_bytes(b"")
    assert torch.equal(tensor, kept)
    tensor.zero_()
    data.write_bytes(before)
    assert torch.equal(load_variable(prefix, "bert/pooler/dense/kernel"), kept)


def test_a_reader_can_be_closed_and_used_again():
    reader = BundleReader(GOOGLE)
    first = reader.read("bert/pooler/dense/bias")
    reader.close()
    assert torch.equal(reader.read("bert/pooler/dense/bias"), first)
    reader.close()
    assert "bert/pooler/dense/bias" in reader
    assert len(reader) == 139


def test_an_unknown_variable_is_named():
    with BundleReader(GOOGLE) as reader, pytest.raises(CheckpointNotFound, match="no variable 'bert/nothing'"):
        reader.read("bert/nothing")


def test_strings_and_numbers_are_not_mixed_up():
    with BundleReader(ASSETS / "tf1_dtypes.ckpt") as reader:
        with pytest.raises(CheckpointError, match=r"type string[\s\S]*read_strings"):
            reader.read("words")
        with pytest.raises(CheckpointError, match=r"holds int8[\s\S]*read\(\)"):
            reader.read_strings("int8/vector")


def test_a_missing_data_file_is_named_with_those_that_are_there(tmp_path):
    prefix = copied(tmp_path, ASSETS / "tf1_two_shards.ckpt")
    (tmp_path / "tf1_two_shards.ckpt.data-00001-of-00002").unlink()
    with BundleReader(prefix) as reader:
        assert reader.read("shard_0/v0").shape == (4, 1)
        with pytest.raises(CheckpointNotFound, match=r"00001-of-00002 does not exist[\s\S]*data-00000-of-00002"):
            reader.read("shard_1/v0")


@pytest.mark.parametrize("keep", [0, 1, 4000, 8419])
def test_a_truncated_data_file_is_noticed(tmp_path, keep):
    prefix = copied(tmp_path, GOOGLE)
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:keep])
    with BundleReader(prefix) as reader:
        cut = {name for name, entry in reader.entries.items() if entry.offset + entry.size > keep}
        assert cut
        for name in reader.names():
            if name in cut:
                with pytest.raises(CorruptCheckpoint, match=f"the file has {keep}"):
                    reader.read(name)
            else:
                reader.read(name)


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path):
    prefix = copied(tmp_path, GOOGLE)
    with BundleReader(prefix) as reader:
        first, *_, last = sorted(reader.entries, key=lambda name: reader.entries[name].offset)
        reader.read(first)
        (tmp_path / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"short")
        with pytest.raises(CorruptCheckpoint, match="after 0 of"):
            reader.read(last)


def test_folders_in_place_of_files_are_errors(tmp_path):
    prefix = copied(tmp_path, GOOGLE)
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.unlink()
    data.mkdir()
    with BundleReader(prefix) as reader, pytest.raises(CheckpointError, match="could not be opened"):
        reader.read("global_step")
