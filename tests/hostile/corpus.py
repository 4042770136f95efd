"""The mutants of QUALITY 1: small genuine checkpoints, damaged by a seed.

`mutant(kind, seed)` depends on its two arguments alone. A kind has several genuine forms (who wrote it, which layout,
which of its files is hit); the seed chooses among them too.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import safetensors.torch
import torch

from bertie.checkpoint.tensorflow.sstable import read_table, write_table
from bertie.config import BertConfig
from bertie.model import BertForPreTraining
from bertie.text import train_vocabulary
from hostile.mutations import mutate_bytes, mutate_json, mutate_json_text, mutate_part

KINDS = ("safetensors", "bin", "tensorflow", "tokenizer", "config")
ASSETS = Path(__file__).resolve().parents[1] / "assets" / "tf"
TEXTS = [f"The cat sat on mat number {n}, and the dogs were unaffable." for n in range(30)]
SAMPLES = (
    "The cat sat on the mat.",
    "Unaffable dogs, 7 of them!",
    "",
    "ünïcödé 漢字 \u0301",
    "zzz qqq",
    "number 12 " * 9,
)
CONFIG = BertConfig(
    vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """`files` by name, all of a folder. `hit` names the damaged one; `sound` is what it held before.

    `sealed`: its checksums were made right again after the damage, so they vouch for nothing.
    """

    kind: str
    files: Mapping[str, bytes]
    hit: str
    sound: bytes
    sealed: bool = False

    @property
    def size(self) -> int:
        return max(len(content) for content in self.files.values())


def mutant(kind: str, seed: int) -> Mutant:
    rng = random.Random(f"{kind}:{seed}")
    return _MAKERS[kind](rng)


# -- the genuine ones -------------------------------------------------------------------------------------------------


@cache
def weights() -> dict[str, torch.Tensor]:
    """A small pretraining model's parameters. All are random, so that each one's bytes are found once in a file."""
    torch.manual_seed(20)
    with torch.no_grad():
        return {name: torch.randn(p.shape) for name, p in BertForPreTraining(CONFIG).named_parameters()}


@cache
def config_json() -> bytes:
    return CONFIG.replace(architectures=["BertForPreTraining"]).to_json().encode()


@cache
def safetensors_files() -> tuple[bytes, ...]:
    whole = safetensors.torch.save(weights(), metadata={"format": "pt"})
    half = safetensors.torch.save({name: tensor.bfloat16() for name, tensor in weights().items()})
    return whole, half


@cache
def bin_files() -> tuple[bytes, ...]:
    """As torch writes them now, and as it did before 1.6; the third has a parameter that views another's memory."""
    viewed = dict(weights())
    table = viewed["bert.embeddings.word_embeddings.weight"]
    viewed["cls.predictions.decoder.weight"] = table.view(table.shape)
    contents = []
    for tensors, zipped in ((weights(), True), (weights(), False), (viewed, True), (viewed, False)):
        buffer = io.BytesIO()
        torch.save(tensors, buffer, _use_new_zipfile_serialization=zipped)
        contents.append(buffer.getvalue() if zipped else _without_addresses(buffer.getvalue()))
    return tuple(contents)


def _without_addresses(content: bytes) -> bytes:
    """An old file with its storages numbered: torch names and sorts them by where they were in memory that time."""
    stream = io.BytesIO(content)
    for _ in range(4):
        for _ in pickletools.genops(stream):
            pass
    head = content[: stream.tell()]
    records = {}
    keys = [str(argument) for _, argument, _ in pickletools.genops(stream) if isinstance(argument, str)]
    for key in keys:
        count = stream.read(8)
        records[key] = count + stream.read(4 * int.from_bytes(count, "little"))  # all are float32
    for number, key in enumerate(sorted(keys, key=lambda key: head.index(_unicode(key)))):
        name = f"{10**13 + number}"
        head = head.replace(_unicode(key), _unicode(name))
        records[name] = records.pop(key)
    return head + pickle.dumps(list(records), 2) + b"".join(records.values())


def _unicode(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


@cache
def bundles() -> tuple[dict[str, bytes], ...]:
    """Bundles that TensorFlow wrote, each with all its files."""
    prefixes = ("tf1_dtypes.ckpt", "tf1_partitioned.ckpt", "tf1_two_shards.ckpt", "tf2_pretrainer", "keras_pretraining")
    google = {path.name: path.read_bytes() for path in sorted((ASSETS / "google_tiny").iterdir())}
    others = [
        {f"bert_model.ckpt{p.name.removeprefix(prefix)}": p.read_bytes() for p in sorted(ASSETS.glob(f"{prefix}.*"))}
        for prefix in prefixes
    ]
    return google, *others


@cache
def tokenizer_files(folder: Path) -> dict[str, bytes]:
    tokenizer = train_vocabulary(TEXTS, vocab_size=120)
    tokenizer.add_tokens(["purr"])
    tokenizer.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# -- what is done to them ---------------------------------------------------------------------------------------------


def _safetensors(rng: random.Random) -> Mutant:
    sound = rng.choice(safetensors_files())
    (length,) = struct.unpack("<Q", sound[:8])
    header, data = sound[8 : 8 + length], sound[8 + length :]
    kind = rng.randrange(6)
    if kind == 0:
        content = mutate_bytes(sound, rng)
    elif kind == 1:
        content = mutate_part(sound, 8, 8 + length, rng)
    elif kind == 2:
        content = mutate_part(sound, 0, 8, rng)
    elif kind == 3:  # the length made right again, so that the header itself is what is judged
        edited = mutate_part(header, 0, length, rng)
        content = struct.pack("<Q", len(edited)) + edited + data
    elif kind == 4:
        edited = mutate_json(header, rng)
        content = struct.pack("<Q", len(edited)) + edited + data
    else:
        content = mutate_part(sound, 8 + length, len(sound), rng)
    files = {"config.json": config_json(), "model.safetensors": content}
    return Mutant("safetensors", files, "model.safetensors", sound)


def _bin(rng: random.Random) -> Mutant:
    sound = rng.choice(bin_files())
    zipped = sound.startswith(b"PK")
    kind = rng.randrange(5)
    if kind == 0 or (kind == 1 and not zipped):
        content = mutate_bytes(sound, rng)
    elif kind == 1:
        content = _repacked(sound, rng)
    elif kind == 2 and zipped:
        directory = sound.rindex(b"PK\x05\x06")
        start = struct.unpack("<I", sound[directory + 16 : directory + 20])[0]
        content = mutate_part(sound, start, len(sound), rng)
    elif kind == 3:  # the pickle, or the pickles at the head of an old file
        pickles = (sound.index(b"PK\x07\x08") if zipped else min(len(sound), 6000)) if sound else 0
        content = mutate_part(sound, 0, pickles, rng)
    else:
        at = rng.randrange(len(sound) // 2, len(sound))
        content = mutate_part(sound, at, min(len(sound), at + 64), rng)
    files = {"config.json": config_json(), "pytorch_model.bin": content}
    return Mutant("bin", files, "pytorch_model.bin", sound)


def _repacked(sound: bytes, rng: random.Random) -> bytes:
    """The archive packed again with its own checksums, after something inside it was changed."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    kind = rng.randrange(6)
    at = rng.randrange(len(members))
    name, content = members[at]
    compression = zipfile.ZIP_STORED
    if kind <= 1:
        at = next(i for i, (member, _) in enumerate(members) if member.endswith("data.pkl"))
        members[at] = (members[at][0], mutate_bytes(members[at][1], rng))
    elif kind == 2:
        members[at] = (name, mutate_bytes(content, rng))
    elif kind == 3:
        del members[at]
    elif kind == 4:
        members[at] = (rng.choice((name.upper(), name + "/", "../" + name, "/" + name, "x" * 300, " ")), content)
    else:
        compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        rng.shuffle(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, body in members:
            archive.writestr(zipfile.ZipInfo(member), body, compression)  # of 1980: now would be another file each time
    return buffer.getvalue()


def _tensorflow(rng: random.Random) -> Mutant:
    files = dict(rng.choice(bundles()))
    index = "bert_model.ckpt.index"
    data = [name for name in files if ".data-" in name]
    kind = rng.randrange(5)
    hit = rng.choice(data) if kind == 0 else index
    sound = files[hit]
    if kind <= 2:
        files[hit] = mutate_bytes(sound, rng)
    elif kind == 3:
        files[hit] = mutate_part(sound, max(0, len(sound) - 120), len(sound), rng)
    else:
        files[hit] = _resealed(sound, rng)
    return Mutant("tensorflow", files, hit, sound, sealed=kind == 4)


def _resealed(sound: bytes, rng: random.Random) -> bytes:
    """An index whose entries were changed and whose checksums are right: only sense is left to refuse it."""
    pairs = [(bytes(key), bytes(value)) for key, value in read_table(sound)]
    for _ in range(rng.choice((1, 1, 3))):
        if not pairs:
            break
        at = rng.randrange(len(pairs))
        key, value = pairs[at]
        kind = rng.randrange(5)
        if kind <= 2:
            pairs[at] = key, mutate_bytes(value, rng, most=2)
        elif kind == 3:
            pairs[at] = mutate_bytes(key, rng, most=2), value
        else:
            pairs[at] = key, pairs[rng.randrange(len(pairs))][1]
    return write_table(sorted(dict(pairs).items()), block_size=rng.choice((64, 4096, 262144)))


def _tokenizer(rng: random.Random) -> Mutant:
    files = dict(_tokenizer_files())
    hit = rng.choice(("tokenizer.json", "tokenizer.json", "vocab.txt", "vocab.txt", "tokenizer_config.json"))
    if hit == "vocab.txt":
        del files["tokenizer.json"]
    sound = files[hit]
    if hit == "vocab.txt":
        files[hit] = _mutated_lines(sound, rng)
    else:
        files[hit] = rng.choice((mutate_json, mutate_json, mutate_json_text, mutate_bytes))(sound, rng)
    return Mutant("tokenizer", files, hit, sound)


def _mutated_lines(sound: bytes, rng: random.Random) -> bytes:
    lines = sound.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(7)
    if kind == 0:
        lines[at] = lines[rng.randrange(len(lines))]
    elif kind == 1:
        lines[at] = rng.choice((b"", b" ", b"##", b"[UNK]", b"x" * 100_000, b"\xef\xbb\xbfa", b"\x00", b"\xc2\x85"))
    elif kind == 2:
        del lines[at]
    elif kind == 3:
        rng.shuffle(lines)
    elif kind == 4:
        return b"\r\n".join(lines)
    else:
        return mutate_bytes(sound, rng)
    return b"\n".join(lines)


def _config(rng: random.Random) -> Mutant:
    hub = rng.random() < 0.7
    name = "config.json" if hub else "bert_config.json"
    sound = config_json() if hub else json.dumps(CONFIG.to_google_dict()).encode()
    change: Callable[[bytes, random.Random], bytes] = rng.choice(
        (mutate_json, mutate_json, mutate_json, mutate_json_text, mutate_bytes)
    )
    files = {name: change(sound, rng), "model.safetensors": safetensors_files()[0]}
    return Mutant("config", files, name, sound)


@cache
def _tokenizer_files() -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return tokenizer_files(Path(folder))


_MAKERS: dict[str, Callable[[random.Random], Mutant]] = {
    "safetensors": _safetensors,
    "bin": _bin,
    "tensorflow": _tensorflow,
    "tokenizer": _tokenizer,
    "config": _config,
}
