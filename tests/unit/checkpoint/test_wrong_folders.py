"""Everything a person can point at by mistake, and hostile files: each has a message of its own, none a crash."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie import BertConfig, BertForMaskedLM, BertModel
from bertie.checkpoint.hostile.paths import inside
from bertie.checkpoint.safetensors import SafeFile
from bertie.checkpoint.torch_bin import read_bin
from bertie.errors import BertieError, CheckpointError, CheckpointNotFound, CorruptCheckpoint, WeightsMismatch
from bertie.loading import load

CONFIG = BertConfig(
    vocab_size=41,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=12,
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    BertModel(CONFIG).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refused(source: Any, kind: type[BertieError], *words: str) -> None:
    """Loading fails with this kind of error; its message has all the words, and the remedy is there."""
    with pytest.raises(CheckpointError) as caught:
        load(source)
    assert type(caught.value) is kind, caught.value
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert caught.value.remedy


# -- folders ---------------------------------------------------------------------------------------------------------


def test_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, CheckpointNotFound, str(tmp_path), "is an empty folder")


def test_path_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    refused(tmp_path / "b", CheckpointNotFound, f"There is no file or folder {tmp_path / 'b'}.", "has: a.")
    refused(tmp_path / "x" / "y" / "z", CheckpointNotFound, f"there is no folder {tmp_path / 'x' / 'y'}")
    refused("./nowhere", CheckpointNotFound, "There is no file or folder nowhere")
    refused(tmp_path / "a" / "model.safetensors", CheckpointNotFound, "There is no file or folder", "model.safetensors")
    refused("", CheckpointNotFound, "is not a path or hub name")
    refused("model\x00", CheckpointNotFound, "is not a path or hub name")
    os.symlink(tmp_path / "gone", tmp_path / "link")
    refused(tmp_path / "link", CheckpointNotFound, "is a link to nothing")


@pytest.mark.parametrize("model_type", ["gpt2", "albert", "deberta-v2", "modernbert"])
def test_other_architectures_are_named(saved: Path, model_type: str) -> None:
    (saved / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": ["SomeModel"]}))
    refused(saved, CheckpointError, f"describes a {model_type!r} model (SomeModel)")


def test_old_gpt2_configuration_without_a_type(saved: Path) -> None:
    (saved / "config.json").write_text(json.dumps({"n_embd": 768, "n_layer": 12}))
    refused(saved, CheckpointError, "'gpt2'")


def test_configuration_of_something_else(saved: Path) -> None:
    wrapped = {"model": {"backbone": {"config": {"architectures": ["ElectraModel"]}}}, "stage": 3}
    (saved / "config.json").write_text(json.dumps(wrapped))
    refused(saved, CheckpointError, "does not describe a BERT: it has model, stage", "inside it is a ElectraModel")
    (saved / "config.json").write_text("{}")
    refused(saved, CheckpointError, "does not describe a BERT: it has no keys")


def test_other_weights_under_a_bert_configuration(saved: Path) -> None:
    torch.save({"wte.weight": torch.ones(3), "h.0.attn.bias": torch.ones(3)}, saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    refused(saved, WeightsMismatch, "none of its 2 tensors is a BERT's (it has wte.weight, h.0.attn.bias)")


def test_missing_configuration(saved: Path) -> None:
    (saved / "config.json").unlink()
    refused(saved, CheckpointNotFound, "holds weights and neither config.json nor bert_config.json")


def test_folder_without_weights(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    refused(saved, CheckpointNotFound, "holds no weights", "It holds: config.json")
    (saved / "weights.safetensors").write_bytes(b"x")
    refused(saved, CheckpointNotFound, "does hold weights.safetensors", "Name the file")


@pytest.mark.parametrize(
    ("file", "kind"), [("model.onnx", "ONNX"), ("tf_model.h5", "Keras HDF5"), ("flax_model.msgpack", "Flax")]
)
def test_foreign_weights(saved: Path, file: str, kind: str) -> None:
    (saved / "model.safetensors").rename(saved / file)
    refused(
        saved, CheckpointError, f"only as {kind}, which Bertie cannot read", "model.safetensors or pytorch_model.bin"
    )
    refused(saved / file, CheckpointError, "which Bertie cannot read")


def test_missing_variant(saved: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="no weights of the variant 'fp16'"):
        BertModel.from_pretrained(saved, variant="fp16")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_lfs_pointer(saved: Path, name: str) -> None:
    (saved / "model.safetensors").unlink()
    (saved / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 437955512\n")
    refused(saved, CheckpointError, f"{name} is a Git LFS pointer", "git lfs pull")


def test_web_page_and_empty_file(saved: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"<!doctype html><title>Log in</title>")
    refused(saved, CorruptCheckpoint, "is a web page")
    (saved / "model.safetensors").write_bytes(b"")
    refused(saved, CorruptCheckpoint, "is empty (0 bytes)")


def test_truncated_downloads(saved: Path) -> None:
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[:-100])
    refused(saved, CorruptCheckpoint, f"describes {len(whole)} bytes and it holds {len(whole) - 100}", "fetch it again")
    (saved / "model.safetensors").write_bytes(whole[:100])
    refused(saved, CorruptCheckpoint, "truncated inside its header")
    (saved / "model.safetensors").unlink()
    torch.save(BertModel(CONFIG).state_dict(), saved / "pytorch_model.bin")
    whole = (saved / "pytorch_model.bin").read_bytes()
    (saved / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    refused(saved, CorruptCheckpoint, "ends too early or is damaged")


def test_missing_shard(tmp_path: Path) -> None:
    BertModel(CONFIG).save_pretrained(tmp_path, max_shard_size="4KB")
    shard = sorted(tmp_path.glob("model-*"))[1]
    shard.unlink()
    refused(tmp_path, CheckpointNotFound, "lacks 1 of the", shard.name)


def test_shard_of_another_checkpoint(tmp_path: Path) -> None:
    BertModel(CONFIG).save_pretrained(tmp_path, max_shard_size="4KB")
    first, second = sorted(tmp_path.glob("model-*"))[:2]
    second.write_bytes(first.read_bytes())
    refused(tmp_path, CorruptCheckpoint, "both hold")


def test_vocabulary_of_another_size(saved: Path) -> None:
    values = json.loads((saved / "config.json").read_text()) | {"vocab_size": 50}
    (saved / "config.json").write_text(json.dumps(values))
    refused(saved, WeightsMismatch, "[41, 16]", "[50, 16]", "config.vocab_size is 50 and the weights have 41 words")


def test_tensorflow_prefix_with_a_typo() -> None:
    folder = Path(__file__).parents[2] / "assets" / "tf" / "google_tiny"
    refused(folder / "bert_modle.ckpt", CheckpointNotFound, "Did you mean bert_model.ckpt?")
    refused(os.path.relpath(folder / "bert_modle"), CheckpointNotFound, "bert_model.ckpt")


def test_tensorflow_data_without_its_index(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "assets" / "tf" / "google_tiny"
    for name in ("bert_config.json", "bert_model.ckpt.data-00000-of-00001"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    refused(tmp_path, CheckpointNotFound, "without the .index file")


# -- hostile safetensors ---------------------------------------------------------------------------------------------


def safe(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1234", "4 bytes long"),
        (safe({}, length=2**63), "claims a header of"),
        (safe({}, length=10**8 - 1), "truncated inside its header"),
        (safe(b"\xff\xfe"), "not valid JSON"),
        (safe(b"[1, 2]"), "a JSON list"),
        (safe(b"[" * 100_000), "nested too deeply"),
        (safe(b'{"a":' * 100_000), "nested too deeply"),
        (safe(b'{"a": 1, "a": 2}'), "the key 'a' is there twice"),
        (safe({"a": 3}), "has no dtype, shape and data_offsets"),
        (safe(one(shape=[2**62, 2**62])), "takes"),
        (safe(one(shape=[-1])), "has the shape [-1]"),
        (safe(one(shape=[2.0])), "has the shape [2.0]"),
        (safe(one(shape=[True, 2])), "has the shape [True, 2]"),
        (safe(one(shape=[1] * 100)), "has the shape"),
        (safe(one(shape="2")), "has the shape"),
        (safe(one(shape=[0, 2**62, 2**62], offsets=[0, 0])), "has the shape [0, 4611686018427387904"),
        (safe(one(offsets=[0, 8, 9])), "has the data_offsets"),
        (safe(one(offsets=[0, 2**70])), "has the data_offsets"),
        (safe(one(offsets=[8, 0])), "its place has -8"),
        (safe(one(shape=[3])), "takes 12 bytes; its place has 8"),
        (safe(one(), b"1234"), "is truncated"),
        (safe(one(), b"12345678more"), "4 bytes that its header does not describe"),
        (safe(one(offsets=[4, 12]), b"1234" * 3), "leaves a gap after the header"),
        (safe(one() | {"b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"), "overlaps 'a'"),
        (safe({"__metadata__": {"a": 1}}), "__metadata__"),
        (safe(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 8]}}'), "not valid JSON"),
    ],
)
def test_hostile_headers(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint) as caught:
        SafeFile(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_unknown_dtype(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(safe(one(dtype="F4", shape=[16]), b"12345678"))
    with pytest.raises(CheckpointError, match="dtype 'F4', which Bertie cannot read"):
        SafeFile(tmp_path / "x")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "legacy.bin", "config.json"])
def test_mutants_are_refused_or_load(saved: Path, name: str) -> None:
    """Random damage of every file: a typed error, or a model."""
    weights = BertModel(CONFIG).state_dict()
    file = saved / name.replace("legacy", "pytorch_model")
    if name.endswith(".bin"):
        (saved / "model.safetensors").unlink()
        torch.save(weights, file, _use_new_zipfile_serialization=not name.startswith("legacy"))
    whole = file.read_bytes()
    rng = random.Random(20)
    for _ in range(60):
        mutant = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            how, at = rng.randrange(4), rng.randrange(min(len(mutant), 4000) if rng.random() < 0.7 else len(mutant))
            if how == 0:
                mutant[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                del mutant[at : at + rng.randrange(1, 30)]
            elif how == 2:
                mutant[at:at] = rng.randbytes(rng.randrange(1, 30))
            else:
                mutant = mutant[: max(at, 1)]
        file.write_bytes(mutant)
        try:
            model = BertModel.from_pretrained(saved)
        except BertieError:
            continue
        except Warning:
            continue  # a name was changed: newly initialised, unused
        assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in weights.values()) or (
            name == "config.json"
        )


# -- hostile pickles -------------------------------------------------------------------------------------------------


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_pickles_with_code_are_refused(tmp_path: Path, legacy: bool, protocol: int) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "pytorch_model.bin"
    content = {"bert.x": torch.ones(2), "run": Canary(canary)}
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CorruptCheckpoint, match="holds more than tensors"):
        read_bin(path)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([torch.ones(2)], "holds a list, not a dictionary"),
        (torch.ones(2), "holds a Tensor, not a dictionary"),
        ({"epoch": 3, "state_dict": {"a": torch.ones(2)}}, "'epoch' (int), 'state_dict' (dict)"),
        ({3: torch.ones(2)}, "3 (Tensor)"),
        ({"a": torch.ones(1).expand(10**12)}, "claims more than it holds"),
        ({"a": torch.ones(3).to_sparse()}, "torch._utils._rebuild_sparse_tensor"),
        ({("a", "b"): torch.ones(3)}, "a dictionary with a tuple as a key"),
    ],
)
def test_bins_with_other_contents(tmp_path: Path, content: Any, reason: str) -> None:
    torch.save(content, tmp_path / "x.bin")
    with pytest.raises(CheckpointError) as caught:
        read_bin(tmp_path / "x.bin")
    assert reason in str(caught.value)


def test_zip_bomb(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "real.bin")
    with zipfile.ZipFile(tmp_path / "real.bin") as real, zipfile.ZipFile(tmp_path / "x.bin", "w") as bomb:
        for member in real.infolist():
            content = real.read(member) if "data/" not in member.filename else bytes(10**8)
            bomb.writestr(member.filename, content, compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(CorruptCheckpoint, match="is compressed"):
        read_bin(tmp_path / "x.bin")


def test_torchscript_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as archive:
        archive.writestr("model/constants.pkl", b"x")
    with pytest.raises(CheckpointError, match="TorchScript"):
        read_bin(tmp_path / "x.bin")


def test_not_a_torch_file(tmp_path: Path) -> None:
    for number, content in enumerate(
        [b"hello", b"PK\x03\x04rest", b"\x80\x02}q\x00.", bytes(100), io.BytesIO().read() or b"\x80"]
    ):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint, match=str(path)):
            read_bin(path)


# -- hostile paths ---------------------------------------------------------------------------------------------------

PATHS = [
    "../secret", "..", ".", "", "/etc/passwd", "a/../../secret", "a/b", "a\\b", "..\\secret", "C:\\secret", "C:secret",
    "secret\x00.safetensors", "\x00", "~/secret/x", "//host/share", "\\\\host\\share", "file:///etc/passwd",
    "secret\n", " secret", "secret ", "a" * 300, "\u202esecret", "./secret", "..\u2215\x1fsecret", "secret/", "COM1:",
]  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_index_and_modules_name_only_their_own_folder(saved: Path, name: str) -> None:
    (saved.parent / "secret").mkdir()
    (saved.parent / "secret" / "config.json").write_bytes((saved / "config.json").read_bytes())
    (saved / "model.safetensors").rename(saved.parent / "secret" / "model.safetensors")
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CorruptCheckpoint, match="only plain names"):
        load(saved)
    if name not in ("", "."):
        (saved / "config.json").unlink()
        module = {"path": name, "type": "sentence_transformers.models.Transformer"}
        (saved / "modules.json").write_text(json.dumps([module]))
        with pytest.raises(CorruptCheckpoint, match="only plain names"):
            load(saved)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    BertModel(CONFIG).save_pretrained(folder, max_shard_size="4KB")
    outside.mkdir()
    shard = sorted(folder.glob("model-*"))[0]
    shard.rename(outside / shard.name)
    shard.symlink_to(outside / shard.name)
    refused(folder, CorruptCheckpoint, "a link that leads out of the folder")
    shard.unlink()
    (outside / shard.name).rename(folder / "elsewhere")
    shard.symlink_to("elsewhere")  # within the folder: fine
    assert type(load(folder)) is BertModel


def test_links_of_the_hub_cache_lead_to_its_own_blobs_only(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "abc" / "sub"
    blobs = tmp_path / "models--a--b" / "blobs"
    other = tmp_path / "models--c--d" / "blobs"
    for folder in (snapshot, blobs, other):
        folder.mkdir(parents=True)
    for place in (blobs, other):
        (place / "1234").write_text("x")
    (snapshot / "mine").symlink_to(Path("../../../blobs/1234"))
    (snapshot / "theirs").symlink_to(other / "1234")
    assert inside(snapshot, "mine", named_by=snapshot).is_file()
    with pytest.raises(CorruptCheckpoint, match="leads out of the folder"):
        inside(snapshot, "theirs", named_by=snapshot)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 10**5, "x"])
def test_broken_index(saved: Path, content: str) -> None:
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors.index.json").write_text(content)
    refused_kinds = (CorruptCheckpoint, WeightsMismatch)
    with pytest.raises(refused_kinds, match=r"index\.json"):
        BertForMaskedLM.from_pretrained(saved)
