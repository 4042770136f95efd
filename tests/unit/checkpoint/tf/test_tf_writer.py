"""What we write: deterministic, byte-equal to TensorFlow's where the order is the same, and whole or not there."""

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.checkpoint.dtypes import tensorflow_types
from bertie.checkpoint.tensorflow import BundleReader, BundleWriter, bundles_in, write_bundle
from bertie.errors import CheckpointError, CheckpointNotFound, InputError

ASSETS = Path(__file__).resolve().parents[3] / "assets" / "tf"
DTYPES = sorted(tensorflow_types(), key=str)


def random_tensor(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=generator, dtype=torch.uint8)
    return (raw.view(dtype) if count else torch.empty(0, dtype=dtype)).reshape(shape)


def raw_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def read_all(prefix):
    with BundleReader(prefix) as reader:
        return {name: reader.read(name) for name in reader.names()}


@pytest.mark.parametrize("bundle", ["google_tiny/bert_model.ckpt", "tf1_dtypes.ckpt"])
def test_rewriting_tensorflows_files_gives_the_same_bytes(tmp_path, bundle):
    copy = tmp_path / "copy"
    with BundleReader(ASSETS / bundle) as reader, BundleWriter(copy) as writer:
        for name, entry in sorted(reader.entries.items(), key=lambda item: (item[1].offset, item[0])):
            if entry.dtype.is_string:
                writer.add_strings(name, reader.read_strings(name), shape=entry.shape)
            else:
                writer.add(name, reader.read(name))
    for ending in (".index", ".data-00000-of-00001"):
        assert Path(f"{copy}{ending}").read_bytes() == Path(f"{ASSETS / bundle}{ending}").read_bytes()


@pytest.mark.parametrize("num_shards", [1, 2, 7])
def test_every_dtype_round_trips_bit_for_bit(tmp_path, num_shards):
    shapes = [(), (3,), (0, 2), (2, 3, 4)]
    tensors = {f"{d}/{n}": random_tensor(d, shape, n) for d in DTYPES for n, shape in enumerate(shapes)}
    write_bundle(tmp_path / "b", tensors, num_shards=num_shards)
    assert len(list(tmp_path.glob("b.data-*"))) == num_shards
    again = read_all(tmp_path / "b")
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].shape == tensor.shape
        assert raw_bytes(again[name]) == raw_bytes(tensor)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(names, st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=12),
    st.integers(1, 4),
)
def test_any_names_and_shapes_round_trip(tmp_path_factory, contents, num_shards):
    folder = tmp_path_factory.mktemp("bundle")
    tensors = {name: random_tensor(dtype, shape, 1) for name, (dtype, shape) in contents.items()}
    write_bundle(folder / "b", tensors, num_shards=num_shards)
    again = read_all(folder / "b")
    assert list(again) == sorted(tensors, key=str.encode)
    assert all(raw_bytes(again[name]) == raw_bytes(tensors[name]) for name in tensors)


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    tensors = {name: torch.full((5, 5), float(n)) for n, name in enumerate("cab")}
    write_bundle(tmp_path / "one", tensors, num_shards=2)
    write_bundle(tmp_path / "two", dict(sorted(tensors.items())), num_shards=2)
    for ending in (".index", ".data-00000-of-00002", ".data-00001-of-00002"):
        assert Path(f"{tmp_path / 'one'}{ending}").read_bytes() == Path(f"{tmp_path / 'two'}{ending}").read_bytes()


def test_shards_get_about_the_same_number_of_bytes(tmp_path):
    write_bundle(tmp_path / "b", {f"v{n:03d}": torch.zeros(100) for n in range(100)}, num_shards=4)
    assert {path.stat().st_size for path in tmp_path.glob("b.data-*")} == {10000}


def test_views_and_conjugates_are_written_as_they_look(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "transposed": base.T,
        "strided": base[:, ::2],
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "grad": torch.nn.Parameter(torch.ones(2)),
    }
    write_bundle(tmp_path / "b", tensors)
    again = read_all(tmp_path / "b")
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_strings_round_trip(tmp_path):
    values = [b"", b"a", bytes(range(256)), b"long" * 100]
    with BundleWriter(tmp_path / "b") as writer:
        writer.add_strings("s", values, shape=(2, 2))
        writer.add_strings("scalar", [b"x"])
        writer.add_strings("none", [], shape=(0,))
    with BundleReader(tmp_path / "b") as reader:
        assert reader.read_strings("s") == values
        assert reader.entries["s"].shape == (2, 2)
        assert reader.read_strings("scalar") == [b"x"]
        assert reader.read_strings("none") == []


def test_an_empty_bundle_is_a_bundle(tmp_path):
    write_bundle(tmp_path / "b", {})
    assert read_all(tmp_path / "b") == {}


# --- mistakes


def test_mistakes_are_named_and_leave_nothing(tmp_path):
    for mistake, reason in (
        (lambda w: w.add("", torch.ones(1)), "no name for a variable"),
        (lambda w: w.add("\0x", torch.ones(1)), "no name for a variable"),
        (lambda w: (w.add("v", torch.ones(1)), w.add("v", torch.ones(1))), "v was added twice"),
        (lambda w: w.add("v", torch.ones(1), shard=1), "shard 1 of 1"),
        (lambda w: w.add("v", torch.eye(2).to_sparse()), "layout torch.sparse_coo"),
        (lambda w: w.add_strings("v", [b"a"], shape=(2,)), "1 strings do not fill"),
    ):
        with pytest.raises(InputError, match=reason), BundleWriter(tmp_path / "b") as writer:
            mistake(writer)
        assert os.listdir(tmp_path) == []
    with pytest.raises(InputError, match="num_shards is 0"):
        BundleWriter(tmp_path / "b", num_shards=0)
    with pytest.raises(CheckpointNotFound, match="there is no folder"):
        BundleWriter(tmp_path / "nowhere" / "b")
    with BundleWriter(tmp_path / "b") as writer:
        writer.finish()
        with pytest.raises(InputError, match="is finished"):
            writer.add("v", torch.ones(1))


def test_replacing_must_be_asked_for(tmp_path):
    write_bundle(tmp_path / "b", {"v": torch.zeros(2)}, num_shards=3)
    with pytest.raises(CheckpointError, match=r"exists[\s\S]*overwrite=True"):
        write_bundle(tmp_path / "b", {"v": torch.ones(2)})
    write_bundle(tmp_path / "b", {"v": torch.ones(2)}, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["b.data-00000-of-00001", "b.index"]
    assert read_all(tmp_path / "b")["v"].tolist() == [1, 1]


# --- interruption


class Killed(BaseException):
    pass


def steps_of(monkeypatch, stop_at, error):
    """Make the stop_at-th sync, rename or removal raise."""
    count = 0

    def counted(real):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == stop_at:
                raise error
            return real(*arguments, **options)

        return call

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("stop_at", range(1, 20))
def test_a_writer_killed_at_any_step_leaves_a_whole_bundle_or_none(tmp_path, monkeypatch, stop_at):
    tensors = {f"v{n}": torch.full((10,), float(n)) for n in range(6)}
    with monkeypatch.context() as patch:
        steps_of(patch, stop_at, Killed())
        patch.setattr(BundleWriter, "abort", lambda self: [file.stream.close() for file in self._files])
        try:
            write_bundle(tmp_path / "b", tensors, num_shards=3)
            finished = True
        except Killed:
            finished = False
    try:
        again = read_all(tmp_path / "b")
        assert again.keys() == tensors.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    except CheckpointNotFound:
        assert not finished


WRITE_FOR_EVER = """
import itertools, sys, torch
from bertie.checkpoint.tensorflow import write_bundle
tensors = {f"v{n}": torch.full((200_000,), float(n)) for n in range(10)}
print("ready", flush=True)
for count in itertools.count():
    write_bundle(f"{sys.argv[1]}/b{count}", tensors, num_shards=3)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_whole_bundles(tmp_path):
    rng = random.Random(9)
    whole = 0
    for kill in range(20):
        folder = tmp_path / str(kill)
        folder.mkdir()
        with subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(folder)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.5))
            writer.kill()
        for name in bundles_in(folder):
            again = read_all(folder / name)
            assert all(again[f"v{n}"].eq(n).all() for n in range(10))
            whole += 1
    print(f"kills: 20, bundles found: {whole}, whole: {whole}")


@pytest.mark.parametrize("stop_at", range(1, 5))
def test_a_full_disk_is_a_typed_error_and_leaves_nothing(tmp_path, monkeypatch, stop_at):
    with monkeypatch.context() as patch:
        steps_of(patch, stop_at, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(CheckpointError, match="could not be written: No space left"):
            write_bundle(tmp_path / "b", {"v": torch.ones(3)}, num_shards=3)
    assert not any(name.endswith((".part", ".index")) for name in os.listdir(tmp_path))
