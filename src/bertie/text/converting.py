"""Older tokenizer files as a `tokenizer.json`: byte-level BPE (RoBERTa) and SentencePiece (XLM-RoBERTa, CamemBERT).

    vocab.json, merges.txt        the pieces with their ids, and which two become one, in order of rank
    sentencepiece.bpe.model       a protocol buffer with pieces, scores and a table of character replacements

The result is what the Rust library would have saved, and `transformers`' fast tokenizers are the oracle for it.
Sources: https://github.com/google/sentencepiece (`sentencepiece_model.proto`) for the fields' numbers, and
https://protobuf.dev/programming-guides/encoding for the wire format.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertie.errors import CheckpointNotFound, TokenizerError
from bertie.text.kinds import Kind
from bertie.text.rust import rust_errors
from bertie.text.wordpiece.vocabulary import read_text

VOCAB, MERGES, SENTENCEPIECE = "vocab.json", "merges.txt", "sentencepiece.bpe.model"
_MOST_BYTES = 1 << 28
_GET_AGAIN = "Get the file again."
_UNIGRAM = 1
_CONTROL, _USER_DEFINED = 3, 4  # kinds of pieces
_WHOLE, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # kinds of fields


def converted(folder: Path, kind: Kind, *, add_prefix_space: bool | None) -> str | None:
    """A folder's older files as the text of a `tokenizer.json`; None where it has none of them."""
    if (folder / SENTENCEPIECE).is_file() and kind.first_pieces:
        return from_sentencepiece(folder / SENTENCEPIECE, kind, add_prefix_space=add_prefix_space)
    if ((folder / VOCAB).is_file() or (folder / MERGES).is_file()) and kind.special:
        for name, other in ((VOCAB, MERGES), (MERGES, VOCAB)):
            if not (folder / name).is_file():
                raise CheckpointNotFound(
                    f"{folder} holds {other} without {name}.",
                    f"Byte-level BPE needs both: fetch {name}, or tokenizer.json, which holds the two.",
                )
        return from_merges(folder / VOCAB, folder / MERGES, kind, add_prefix_space=add_prefix_space)
    return None


def from_sentencepiece(path: Path, kind: Kind, *, add_prefix_space: bool | None) -> str:
    """A `sentencepiece.bpe.model` as the text of a `tokenizer.json`."""
    pieces = read_sentencepiece(path)
    with rust_errors(f"{path} cannot be used", _GET_AGAIN):
        return str(_from_pieces(pieces, kind, prefix=add_prefix_space is not False).to_str())


def from_merges(vocab_file: Path, merges_file: Path, kind: Kind, *, add_prefix_space: bool | None) -> str:
    """A `vocab.json` and a `merges.txt` as the text of a `tokenizer.json`."""
    vocab, merges = _read_bpe(vocab_file, merges_file)
    with rust_errors(f"{vocab_file} and {merges_file.name} cannot be used", _GET_AGAIN):
        return str(_from_merges(vocab, merges, kind, prefix=bool(add_prefix_space)).to_str())


def _read_bpe(vocab_file: Path, merges_file: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    try:
        vocab = json.loads(read_text(vocab_file))
        if not isinstance(vocab, dict) or not all(type(index) is int and index >= 0 for index in vocab.values()):
            raise ValueError("it should hold an object of pieces and their ids")
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{vocab_file} is no vocabulary: {error!s:.200}", _GET_AGAIN) from None
    merges = []
    for number, line in enumerate(read_text(merges_file).split("\n"), start=1):
        if not line or line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise TokenizerError(f"{merges_file}, line {number}: {line!r:.80} is not two pieces.", _GET_AGAIN)
        merges.append((pair[0], pair[1]))
    return vocab, merges


def format_merges(vocab: Mapping[str, int], merges: Iterable[Sequence[str]]) -> dict[str, str]:
    """The two files of a byte-level tokenizer, as the Rust library writes them."""
    ordered = dict(sorted(vocab.items(), key=lambda entry: entry[1]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    return {VOCAB: json.dumps(ordered, ensure_ascii=False), MERGES: "\n".join(lines) + "\n"}


def _from_merges(vocab: dict[str, int], merges: list[tuple[str, str]], kind: Kind, *, prefix: bool) -> Tokenizer:
    backend = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    add_special(backend, kind)
    ends = ((kind.special[role], backend.token_to_id(kind.special[role])) for role in ("sep_token", "cls_token"))
    backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=prefix, trim_offsets=True)
    return backend


def add_special(backend: Tokenizer, kind: Kind) -> None:
    """The kind's special tokens. The mask takes the space before it along, as a word would."""
    names = dict.fromkeys(kind.special[role] for role in ("bos_token", "eos_token", "unk_token", "pad_token"))
    tokens = [AddedToken(name, normalized=False, special=True) for name in names]
    mask = AddedToken(kind.special["mask_token"], lstrip=True, normalized=False, special=True)
    backend.add_special_tokens([*tokens, mask])


# -- SentencePiece ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentencePiece:
    """A SentencePiece model, as far as tokenizing needs it: pieces with score and kind, and the character table."""

    pieces: list[tuple[str, float, int]]
    algorithm: int
    characters: bytes


def read_sentencepiece(path: Path) -> SentencePiece:
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise TokenizerError(f"{path} is {size >> 20} MB; no vocabulary is that large.", _GET_AGAIN)
    pieces, algorithm, characters = [], _UNIGRAM, b""
    try:
        for number, value in _fields(path.read_bytes()):
            match number, value:
                case 1, bytes():
                    pieces.append(_piece(value))
                case 2, bytes():
                    algorithm = next((v for n, v in _fields(value) if n == 3 and isinstance(v, int)), algorithm)
                case 3, bytes():
                    characters = next((v for n, v in _fields(value) if n == 2 and isinstance(v, bytes)), characters)
    except (IndexError, ValueError, struct.error) as error:
        raise TokenizerError(f"{path} is no SentencePiece model: {error!s:.100}.", _GET_AGAIN) from None
    if len(pieces) < 4:
        raise TokenizerError(f"{path} is no SentencePiece model: it has {len(pieces)} pieces.", _GET_AGAIN)
    if algorithm != _UNIGRAM:
        raise TokenizerError(
            f"{path} is a SentencePiece model of another algorithm than Unigram.",
            "Save the tokenizer as tokenizer.json with the program that made it.",
        )
    return SentencePiece(pieces, algorithm, characters)


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                text = value.decode()
            case 2, bytes():
                score = struct.unpack("<f", value)[0]
            case 3, int():
                kind = value
    return text, score, kind


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: (number, value), whole numbers for varints and bytes for all else."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == _WHOLE:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"a field of kind {kind} at byte {place}")
        if place + size > len(data):
            raise ValueError("it ends in the middle of a field")
        yield tag >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number longer than ten bytes")


def _from_pieces(model: SentencePiece, kind: Kind, *, prefix: bool) -> Tokenizer:
    mask = kind.special["mask_token"]
    own = [(text, score) for text, score, _ in model.pieces[kind.replaced :]]
    vocab = [*kind.first_pieces, *own, (mask, 0.0)]
    backend = Tokenizer(models.Unigram(vocab, unk_id=[text for text, _ in vocab].index(kind.special["unk_token"])))
    added = [(text, of) for text, _, of in model.pieces if of in (_CONTROL, _USER_DEFINED)]
    backend.add_tokens([AddedToken(text, normalized=False, special=of == _CONTROL) for text, of in added])
    add_special(backend, kind)
    steps: list[normalizers.Normalizer] = [normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), "▁")]
    if model.characters:
        steps.insert(0, normalizers.Precompiled(model.characters))
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    frame(backend, kind.special)
    return backend


def frame(backend: Tokenizer, special: Mapping[str, str], *, second: int = 0) -> None:
    """`<s> A </s>` and `<s> A </s> </s> B </s>`; `second` is the segment of B."""
    cls, sep = special["cls_token"], special["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=[f"{cls}:0", "$A:0", f"{sep}:0"],
        pair=[f"{cls}:0", "$A:0", f"{sep}:0", f"{sep}:0", f"$B:{second}", f"{sep}:{second}"],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys((cls, sep))],
    )
