"""QUALITY 6: small files that ask for the world. Each is an error within a second and 200 MB.

Where a bomb is not an error but a tokenizer or model that merely is large, the same two limits hold.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.inspect import summarise
from bertie.checkpoint.tensorflow.sstable import write_table
from bertie.checkpoint.tensorflow.wire import Entry, Header
from bertie.loading import load
from bertie.text import BertTokenizer, train_vocabulary
from hostile.corpus import CONFIG, TEXTS, bin_files, config_json, safetensors_files
from hostile.isolation import Trial
from hostile.pickles import legacy, zipped
from hostile.torch_bombs import FILES as TORCH_FILES

Files = dict[str, bytes]


def _config(**changes: Any) -> Callable[[], Files]:
    def make() -> Files:
        values = json.loads(config_json()) | changes
        return {"config.json": json.dumps(values).encode(), "model.safetensors": safetensors_files()[0]}

    return make


def _config_text(text: str) -> Callable[[], Files]:
    return lambda: {"config.json": text.encode(), "model.safetensors": safetensors_files()[0]}


def _safetensors(
    header: dict[str, Any] | bytes, data: bytes = b"", *, length: int | None = None
) -> Callable[[], Files]:
    def make() -> Files:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        content = struct.pack("<Q", len(text) if length is None else length) + text + data
        return {"config.json": config_json(), "model.safetensors": content}

    return make


def _tensor(shape: list[int], *offsets: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def _billion_layers() -> Files:
    """One tensor in layer 999,999,999 and a configuration to match."""
    small = {"hidden_size": 1, "num_attention_heads": 1, "intermediate_size": 1, "num_hidden_layers": 10**9}
    header = {"bert.encoder.layer.999999999.output.dense.bias": _tensor([1], 0, 4)}
    return _safetensors(header, bytes(4))() | {"config.json": json.dumps(json.loads(config_json()) | small).encode()}


def _many_layers(number: int) -> Files:
    """As many layers as a header can name, with nothing in them."""
    header = {f"encoder.layer.{n}.x": _tensor([0], 0, 0) for n in range(number)}
    return _safetensors(header)() | {
        "config.json": json.dumps(json.loads(config_json()) | {"num_hidden_layers": number}).encode()
    }


def _bin(content: Callable[[], bytes]) -> Callable[[], Files]:
    return lambda: {"config.json": config_json(), "pytorch_model.bin": content()}


def _inflating() -> bytes:
    """A megabyte of deflated zeros, a gigabyte when inflated, that ten members of the archive share."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    body = block * 1024 + squeeze.flush(zlib.Z_FINISH)
    crc, name = 0, b"archive/data.pkl"
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 0, crc, len(body), 1 << 30, len(name), 0) + name
    directory = b""
    for number in range(10):
        member = name if number == 0 else f"archive/data/{number}".encode()
        directory += (
            struct.pack(
                "<IHHHHHHIIIHHHHHII",
                0x02014B50,
                20,
                20,
                0,
                8,
                0,
                0,
                crc,
                len(body),
                1 << 30,
                len(member),
                0,
                0,
                0,
                0,
                0,
                0,
            )
            + member
        )
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 10, 10, len(directory), len(local + body), 0)
    return local + body + directory + end


def _claiming(size: int) -> bytes:
    """A sound archive, one of whose members says it is larger than the file."""
    sound = bin_files()[0]
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        last = archive.infolist()[5]
    at = sound.index(struct.pack("<I", 0x02014B50), sound.rindex(last.filename.encode()) - 46)
    return sound[: at + 20] + struct.pack("<II", size, size) + sound[at + 28 :]


def _storage(numel: int, *, old: bool) -> bytes:
    raw = b"X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    return b"(" + raw + pickle.dumps(numel, 2)[2:-1] + (b"N" if old else b"") + b"tQ"


def _rebuilt(numel: int, shape: tuple[int, ...], stride: tuple[int, ...], *, old: bool) -> bytes:
    """A state dict of one tensor, by hand: what it claims need not be there."""
    sizes = pickle.dumps(shape, 2)[2:-1] + pickle.dumps(stride, 2)[2:-1]
    made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + _storage(numel, old=old) + b"K\x00" + sizes + b"\x89}tR"
    return b"\x80\x02}X\x18\x00\x00\x00bert.embeddings.position" + made + b"s."


def _legacy(body: bytes) -> bytes:
    return legacy(body, at=3)[: -len(pickle.dumps([], 2))] + pickle.dumps(["0"], 2) + struct.pack("<q", 1) + bytes(4)


def _sharded(weight_map: dict[str, str]) -> Callable[[], Files]:
    return lambda: {
        "config.json": config_json(),
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "a.safetensors": safetensors_files()[0],
    }


def _bundle(entries: dict[bytes, Entry], *, num_shards: int = 1, data: bytes = b"") -> Callable[[], Files]:
    def make() -> Files:
        pairs = {b"": Header(num_shards).encode()} | {key: entry.encode() for key, entry in entries.items()}
        return {
            "bert_config.json": json.dumps(CONFIG.to_google_dict()).encode(),
            "bert_model.ckpt.index": write_table(sorted(pairs.items())),
            "bert_model.ckpt.data-00000-of-00001": data,
        }

    return make


def _tokenizer(**changes: Any) -> Callable[[], Files]:
    def make() -> Files:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            train_vocabulary(TEXTS, vocab_size=120).save_pretrained(folder)
            values = json.loads((Path(folder) / "tokenizer.json").read_text())
        return {"tokenizer.json": json.dumps(values | changes).encode()}

    return make


def _nested(kind: str, key: str, depth: int) -> Callable[[], Files]:
    """Written by hand: the JSON writer does not go that deep either."""

    def make() -> Files:
        one = f'{{"type": "Sequence", "{key}": ['
        text = _tokenizer(**{kind: "HERE"})()["tokenizer.json"].decode()
        return {"tokenizer.json": text.replace('"HERE"', one * depth + "]}" * depth).encode()}

    return make


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _laughs(count: int, pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [_replace(pattern, content)] * count}


def _template(pieces: int) -> dict[str, Any]:
    sequence = [{"Sequence": {"id": "A", "type_id": 0}}] * pieces
    return {"type": "TemplateProcessing", "single": sequence, "pair": sequence, "special_tokens": {}}


DEEP = 100_000
BOMBS: dict[str, Callable[[], Files]] = {
    "config: hidden_size 1e9": _config(hidden_size=10**9),
    "config: num_hidden_layers 1e9": _config(num_hidden_layers=10**9),
    "config: vocab_size 1e12": _config(vocab_size=10**12),
    "config: intermediate_size 1e9": _config(intermediate_size=10**9),
    "config: max_position_embeddings 1e10": _config(max_position_embeddings=10**10),
    "config: type_vocab_size 1e9": _config(type_vocab_size=10**9),
    "config: hidden_size 10**400": _config(hidden_size=10**400),
    "config: num_labels 1e7": _config(num_labels=10**7, architectures=["BertForSequenceClassification"]),
    "config: num_labels 1e6": _config(num_labels=10**6, architectures=["BertForTokenClassification"]),
    "config: relative positions, all of them": _config(
        position_embedding_type="relative_key", max_position_embeddings=10**9
    ),
    "config: 1e6 pruned heads": _config(pruned_heads={"0": list(range(10**6))}),
    "config: JSON 1e5 deep": _config_text('{"a":' * DEEP + "1" + "}" * DEEP),
    "config: lists 1e5 deep": _config_text("[" * DEEP),
    "config: 6 MB of lists": _config_text('{"a":[' + "[]," * 2_090_000 + "[]]}"),
    "config: 6 MB of objects": _config_text('{"a":[' + "{}," * 2_090_000 + "{}]}"),
    "config: 40 MB": _config_text("{" + " " * 40_000_000 + "}"),
    "config: 1e5 digits": _config_text('{"hidden_size":' + "9" * 100_000 + "}"),
    "config: dtype is a module": _config(dtype="_inductor"),
    "safetensors: a shape of 2^63": _safetensors({"a": _tensor([2**63], 0, 4)}, bytes(4)),
    "safetensors: shapes that overflow": _safetensors({"a": _tensor([2**32, 2**32], 0, 0)}),
    "safetensors: 2^62 elements": _safetensors({"a": _tensor([2**62], 0, 2**62, dtype="U8")}, bytes(4)),
    "safetensors: huge offsets": _safetensors({"a": _tensor([1], 2**60, 2**60 + 4)}, bytes(4)),
    "safetensors: overlapping": _safetensors({"a": _tensor([4], 0, 16), "b": _tensor([4], 8, 24)}, bytes(24)),
    "safetensors: one place for all": _safetensors({f"a{n}": _tensor([2], 0, 8) for n in range(1000)}, bytes(8)),
    "safetensors: a header of 2^63": _safetensors(b"{}", length=2**63),
    "safetensors: 99 MB of header": _safetensors(b" " * 99_000_000),
    "safetensors: header 1e5 deep": _safetensors(b'{"a":' * DEEP),
    "safetensors: a shape of 1e5 ones": _safetensors({"a": _tensor([1] * DEEP, 0, 4)}, bytes(4)),
    "safetensors: nothing, 2^62 times": _safetensors({"a": _tensor([0, 2**62], 0, 0)}),
    "safetensors: nothing, 2^124 times": _safetensors({"a": _tensor([0, 2**62, 2**62], 0, 0)}),
    "safetensors: a billion layers": _billion_layers,
    "safetensors: 24,000 layers of nothing": lambda: _many_layers(24_000),
    "safetensors: 2 MB of entries": lambda: _safetensors({str(n): [] for n in range(130_000)})(),
    "bin: 1 MB that inflates to 10 GB": _bin(_inflating),
    "bin: a member that claims 4 GB": _bin(lambda: _claiming(0xFFFFFFF0)),
    "bin: 2^62 elements": _bin(lambda: zipped(_rebuilt(2**62, (2**62,), (1,), old=False))),
    "bin: 2^33 elements": _bin(lambda: zipped(_rebuilt(2**33, (2**33,), (1,), old=False))),
    "bin: 2^40 elements of one": _bin(lambda: zipped(_rebuilt(1, (2**40,), (0,), old=False))),
    "bin: 2^30 elements beyond one": _bin(lambda: zipped(_rebuilt(1, (2**30,), (1,), old=False))),
    "bin: 190,000 lists": _bin(lambda: zipped(b"\x80\x02" + b"]" * 190_000 + b".")),
    "bin: 2 MB of objects": _bin(lambda: zipped(b"\x80\x02" + b"}" * 2_000_000 + b".")),
    "bin: 20 MB of lists": _bin(lambda: zipped(b"\x80\x02" + b"]" * 20_000_000 + b".")),
    "bin: lists 1e5 deep": _bin(lambda: zipped(b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b".")),
    "legacy: 2^62 elements": _bin(lambda: _legacy(_rebuilt(2**62, (2**62,), (1,), old=True))),
    "legacy: 2^31 elements": _bin(lambda: _legacy(_rebuilt(2**31, (2**31,), (1,), old=True))),
    "legacy: 2^40 elements of one": _bin(lambda: _legacy(_rebuilt(1, (2**40,), (0,), old=True))),
    "legacy: 2^28 elements beyond one": _bin(lambda: _legacy(_rebuilt(1, (2**28,), (1,), old=True))),
    "legacy: 20 MB of lists": _bin(lambda: legacy(b"\x80\x02" + b"]" * 20_000_000 + b".", at=2)),
    "legacy: a text of 4 GB": _bin(lambda: legacy(b"\x80\x02X\xff\xff\xff\xffabc.", at=2)),
    **{f"bin: {name}": _bin(make) for name, make in TORCH_FILES.items()},
    **{f"inspect: {name}": _bin(make) for name, make in TORCH_FILES.items()},
    "tar: a name of 8 GB": _bin(
        lambda: b"././@LongLink".ljust(124, b"\0") + b"77777777777\0" + b"\0" * 20 + b"L" + b"\0" * 867
    ),
    "index: 1e6 entries": lambda: _sharded({f"tensor.{n}": "a.safetensors" for n in range(10**6)})(),
    "index: 80,000 entries": lambda: _sharded({f"tensor.{n}": "a.safetensors" for n in range(80_000)})(),
    "index: 1e5 files": lambda: _sharded({f"t{n}": f"f{n}" for n in range(100_000)})(),
    "modules.json 1e5 deep": lambda: {"modules.json": b"[" * DEEP},
    "bundle: a shape of 2^63": _bundle({b"a": Entry(dtype=1, shape=(2**62, 2), size=2**63 - 1)}),
    "bundle: 2^62 elements": _bundle({b"a": Entry(dtype=4, shape=(2**62,), size=2**62)}),
    "bundle: 1e9 data files": _bundle({b"a": Entry(dtype=1, shape=(1,), size=4)}, num_shards=10**9),
    "bundle: 60,000 variables of nothing": lambda: _bundle(
        {b"a%d" % n: Entry(dtype=1, shape=(0, 2**60), size=0) for n in range(60_000)}
    )(),
    "bundle: 14,000 variables of nothing": lambda: _bundle(
        {b"a%d" % n: Entry(dtype=1, shape=(0, 2**60), size=0) for n in range(14_000)}
    )(),
    "tokenizer: normalizers 1e5 deep": _nested("normalizer", "normalizers", DEEP),
    "tokenizer: normalizers 120 deep": _nested("normalizer", "normalizers", 120),
    "tokenizer: pre-tokenizers 1e5 deep": _nested("pre_tokenizer", "pretokenizers", DEEP),
    "tokenizer: a billion laughs": _tokenizer(normalizer=_laughs(9, {"String": "a"}, "a" * 10)),
    "tokenizer: laughs between letters": _tokenizer(normalizer=_laughs(4, {"Regex": ""}, "a" * 300)),
    "tokenizer: one long laugh": _tokenizer(normalizer=_replace({"String": "a"}, "a" * 10_000_000)),
    "tokenizer: an expression without end": _tokenizer(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    ),
    "tokenizer: a template of 1e5 texts": _tokenizer(post_processor=_template(100_000)),
    "tokenizer: templates in templates": _tokenizer(
        post_processor={"type": "Sequence", "processors": [_template(30)] * 6}
    ),
    "tokenizer: padding to 1e12": _tokenizer(
        padding={"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "[PAD]"}
    ),
}  # fmt: skip
# These are no error: what the bomb claims is not used, or there is nothing in it.
HARMLESS = {"tokenizer: padding to 1e12", "config: dtype is a module"}
TEXT = "a banana, " * 200 + "x" * 60


def trial(case: str, folder: Path) -> Trial:
    home = folder / "bomb"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    files = BOMBS[case]()
    for name, content in files.items():
        (home / name).write_bytes(content)
    del files

    def tokenize() -> None:
        tokenizer = BertTokenizer.from_pretrained(home, check_case=False)
        tokenizer(TEXT)
        tokenizer(TEXT, TEXT)

    def check(loaded: Any) -> None:
        assert case in HARMLESS, "it loaded"

    if case.startswith("tokenizer"):
        return Trial(tokenize, check)
    if case.startswith("inspect"):
        return Trial(lambda: summarise(home), check)
    return Trial(lambda: load(home, dtype="auto" if "dtype" in case else torch.float32), check)
