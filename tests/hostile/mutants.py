"""What a mutant of corpus.py must do: be refused with a typed error, or load as exactly what its bytes say.

What "exactly" is compared with:

    safetensors     the reference implementation's reading of the same bytes. The format has no checksums: a flip inside
                    a tensor's bytes cannot be noticed by anyone, so there the loaded tensor must show that very flip.
    .bin            torch's own reading of the same bytes without the memory map, or the sound tensor; where only
                    tensors' bytes differ from the sound file, the sound tensors with those bytes changed.
    TensorFlow      the sound bundle, bit for bit: everything has a checksum. Where the index was sealed again after the
                    change, every tensor's bytes must be those of a tensor of the sound bundle.
    tokenizer       the Rust library on the same tokenizer.json, the plain-Python reference on the same vocab.txt.
    configuration   the weights, which were not touched, bit for bit; and the configuration survives a round trip.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer

from bertie.checkpoint.safetensors import SafeFile
from bertie.checkpoint.tensorflow import BundleReader, load_tf_checkpoint
from bertie.checkpoint.torch_bin import read_bin
from bertie.config import BertConfig
from bertie.errors import BertieError
from bertie.loading import load
from bertie.text import BertTokenizer
from bertie.text.wordpiece.reference import WordPieceTokenizer
from hostile.corpus import SAMPLES, Mutant, mutant, weights
from hostile.isolation import Trial

Tensors = Mapping[str, torch.Tensor]


def trial(case: str, folder: Path) -> Trial:
    """The trial of `kind:seed`."""
    kind, _, seed = case.partition(":")
    one = mutant(kind, int(seed))
    place = folder / "mutant"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in one.files.items():
        (place / name).write_bytes(content)
    return {
        "safetensors": _safetensors,
        "bin": _bin,
        "tensorflow": _tensorflow,
        "tokenizer": _tokenizer,
        "config": _config,
    }[kind](one, place)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.contiguous().view(-1).view(torch.uint8).equal(second.contiguous().view(-1).view(torch.uint8))
    )


def assert_same(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys(), sorted(found.keys() ^ wanted.keys())[:5]
    different = [name for name in found if not same_bits(found[name], wanted[name])]
    assert not different, f"{different[:5]} differ"


def assert_model_holds(loaded: tuple[Any, Any], tensors: Tensors) -> None:
    """Every parameter that is not reported as fresh is one of the file's tensors, in the model's dtype."""
    model, report = loaded
    fresh = set(report.newly_initialised)
    stored = {new: old for old, new in report.renamed.items()}
    parameters = {name: p for name, p in model.named_parameters() if name not in fresh}
    for name, parameter in parameters.items():
        source = stored.get(name, name)
        # A tied weight whose own name was damaged comes from its other place.
        candidates = [tensors[source]] if source in tensors else list(tensors.values())
        assert any(same_bits(parameter.detach(), one.to(parameter.dtype)) for one in candidates), name
    assert parameters


def _safetensors(one: Mutant, place: Path) -> Trial:
    path = place / one.hit

    def check(loaded: tuple[Any, Any]) -> None:
        file = SafeFile(path)
        tensors = {name: file.tensor(name) for name in file.entries}
        assert_same(tensors, safetensors.torch.load(one.files[one.hit]))
        assert_model_holds(loaded, tensors)

    return Trial(lambda: load(place, output_loading_info=True), check, size=one.size)


def _bin(one: Mutant, place: Path) -> Trial:
    path = place / one.hit
    content = one.files[one.hit]

    def check(loaded: tuple[Any, Any]) -> None:
        tensors = read_bin(path)
        patched = _with_same_header(one.sound, content)
        if patched is not None:
            assert_same({name: tensors[name] for name in patched}, patched)
        reference = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        # Where the archive's list calls a member a folder, torch reads nothing and shows memory it never filled.
        sound = {n: weights()[n] for n in reference if n in weights() and same_bits(tensors[n], weights()[n])}
        assert_same(tensors, reference | sound)
        assert_model_holds(loaded, tensors)

    return Trial(lambda: load(place, output_loading_info=True), check, size=one.size)


def _with_same_header(sound: bytes, content: bytes) -> dict[str, torch.Tensor] | None:
    """What the tensors are in a file that differs from the sound one inside their bytes only; None for another."""
    if len(content) != len(sound):
        return None
    found = {name: tensor.numpy().tobytes() for name, tensor in weights().items()}
    places = {name: (sound.index(raw), len(raw)) for name, raw in found.items()}
    header_of = [bytearray(sound), bytearray(content)]
    for start, length in places.values():
        for data in header_of:
            data[start : start + length] = bytes(length)
    if header_of[0] != header_of[1]:
        return None
    return {
        name: torch.frombuffer(bytearray(content[start : start + length]), dtype=torch.float32).view(
            weights()[name].shape
        )
        for name, (start, length) in places.items()
    }


def _tensorflow(one: Mutant, place: Path) -> Trial:
    def read() -> dict[str, Any]:
        found: dict[str, Any] = {}
        with BundleReader(place / "bert_model.ckpt") as reader:
            for name, entry in reader.entries.items():
                if entry.dtype.is_string:
                    found[name] = reader.read_strings(name)
                elif entry.dtype.torch is not None:
                    found[name] = reader.read(name)
        return found

    def read_and_load() -> dict[str, Any]:
        found = read()
        if "bert_config.json" in one.files:
            load(place)
        else:
            load_tf_checkpoint(place / "bert_model.ckpt", {})
        return found

    sound = _sound_bundle(one, place, read)

    def check(found: dict[str, Any]) -> None:
        if one.sealed:
            known = {_raw(value) for value in sound.values()}
            strangers = [name for name, value in found.items() if _raw(value) not in known]
            assert not strangers, strangers
            return
        assert found.keys() == sound.keys()
        assert all(_raw(value) == _raw(sound[name]) for name, value in found.items())

    bare = "bert_config.json" not in one.files and not _is_bert(sound)
    return Trial(read if bare else read_and_load, check, size=one.size)


def _sound_bundle(one: Mutant, place: Path, read: Any) -> dict[str, Any]:
    path = place / one.hit
    path.write_bytes(one.sound)
    try:
        found: dict[str, Any] = read()
    finally:
        path.write_bytes(one.files[one.hit])
    return found


def _is_bert(found: Mapping[str, Any]) -> bool:
    return any("attention" in name for name in found)


def _raw(value: Any) -> bytes:
    if isinstance(value, list):
        return b"\x00".join(value)
    return bytes(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _tokenizer(one: Mutant, place: Path) -> Trial:
    def tokenize() -> tuple[BertTokenizer, list[list[int]]]:
        tokenizer = BertTokenizer.from_pretrained(place, check_case=False)
        ids = [tokenizer(text)["input_ids"] for text in SAMPLES]
        tokenizer.decode([0, 1, 2, 3, 50])
        tokenizer(list(SAMPLES), padding=True, truncation=True, max_length=8)
        return tokenizer, ids

    def check(loaded: tuple[BertTokenizer, list[list[int]]]) -> None:
        _, ids = loaded
        if one.hit == "tokenizer.json":
            backend = Tokenizer.from_str(one.files[one.hit].decode("utf-8-sig"))
            backend.no_truncation()
            backend.no_padding()
            assert ids == [backend.encode(text).ids for text in SAMPLES]
        elif one.hit == "vocab.txt":
            text = one.files[one.hit].decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
            lines = text.split("\n")
            vocab = {token: number for number, token in enumerate(lines[:-1] if lines[-1] == "" else lines)}
            settings = json.loads(one.files["tokenizer_config.json"])
            reference = WordPieceTokenizer(vocab, do_lower_case=settings["do_lower_case"])
            assert ids == [reference.encode(text) for text in SAMPLES]

    return Trial(tokenize, check, size=one.size)


def _config(one: Mutant, place: Path) -> Trial:
    def check(loaded: tuple[Any, Any]) -> None:
        assert_model_holds(loaded, weights())
        config = BertConfig.from_json_file(place / one.hit)
        again = BertConfig.from_dict(json.loads(config.to_json()))
        assert again.to_json() == config.to_json()

    def load_twice() -> tuple[Any, Any]:
        with contextlib.suppress(BertieError):  # config.dtype is read only when it is asked for
            load(place, dtype="auto")
        model, report = load(place, output_loading_info=True)
        return model, report

    return Trial(load_twice, check, size=one.size)
