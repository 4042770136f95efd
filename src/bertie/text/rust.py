"""The Rust tokenizer: making, checking and calling it, and its form in C++ for much text.

Rust reports errors as bare `Exception`s, and bugs as a `PanicException` that is no `Exception` at all and would end a
server thread. Neither may leave this file: both become a `TokenizerError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenizers import AddedToken, Tokenizer, processors
from tokenizers.models import WordPiece

from bertie.errors import BertieError, TokenizerError, TokenizerTypeError
from bertie.text.truncation import WholeRow
from bertie.text.wordpiece.reference import replace_surrogates

if TYPE_CHECKING:
    from bertie.text.wordpiece.native import NativeTokenizer

# A text, a pair of texts, or with `is_split_into_words` a list of words or a pair of such lists.
Input: TypeAlias = "str | Sequence[str] | Sequence[Sequence[str]]"


_LARGEST_WORD_LIMIT = 1000
_LARGEST_POST_PROCESSOR = 1 << 20  # bytes, of which BERT's has 700
_LONGEST_TEMPLATE = 64  # BERT's has five pieces: [CLS] A [SEP] B [SEP]
_LARGEST_GROWTH = 100
_MUCH = 20_000  # characters
_GET_AGAIN = "Get the file again, or use vocab.txt instead."

# Rust's threads are not in a forked child, which would wait for them for ever. The library sees to it by itself, unless
# this variable says that threads are wanted.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


@contextmanager
def rust_errors(cause: str, remedy: str | None = None) -> Iterator[None]:
    """Errors and panics of the Rust library inside the block become `TokenizerError(f"{cause}: …")`."""
    try:
        yield
    except (BertieError, MemoryError):
        raise
    except Exception as error:
        raise TokenizerError(f"{cause}: {error}", remedy) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{cause}: the tokenizers library failed: {error}", remedy) from None


def set_template(backend: Tokenizer, *, cls_token: str, sep_token: str) -> None:
    """`[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, type ids 0 for the first part and 1 for the second."""
    with rust_errors(f"{cls_token!r} and {sep_token!r} cannot frame a text"):
        backend.post_processor = processors.TemplateProcessing(
            single=[f"{cls_token}:0", "$A:0", f"{sep_token}:0"],
            pair=[f"{cls_token}:0", "$A:0", f"{sep_token}:0", "$B:1", f"{sep_token}:1"],
            special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys((cls_token, sep_token))],
        )


def keep_whole(backend: Tokenizer, never_split: Sequence[str]) -> None:
    """Make words of the vocabulary immune to lower-casing and splitting wherever they stand as words of their own."""
    missing = [word for word in never_split if backend.token_to_id(word) is None]
    if missing:
        raise TokenizerError(
            f"never_split holds words that are not in the vocabulary: {', '.join(map(repr, missing[:5]))}. "
            "Kept whole, each could only become [UNK].",
            "Leave them out, or give the model new tokens with add_tokens().",
        )
    known = {added.content for added in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([AddedToken(w, single_word=True, normalized=False) for w in never_split if w not in known])


def parse_backend(text: str, *, source: str) -> Tokenizer:
    """A `tokenizer.json`. Truncation and padding stored in it are dropped: those are arguments of each call here."""
    with rust_errors(f"{source} is not a tokenizer this version can read", _GET_AGAIN):
        backend = Tokenizer.from_str(text)
        backend.no_truncation()
        backend.no_padding()
        unk = None
        if isinstance(backend.model, WordPiece):
            unk = backend.model.unk_token
            check_word_limit(backend.model.max_input_chars_per_word, source)
        if backend.post_processor is not None:
            described: bytes = backend.post_processor.__getstate__()
            if len(described) > _LARGEST_POST_PROCESSOR:  # which takes long to read, too
                size = len(described) >> 20
                raise TokenizerError(f"{source}: a template of {size} MB would repeat every text.", _GET_AGAIN)
            _check_template(json.loads(described), source)
        for part in (backend.normalizer, backend.decoder):
            if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > _LARGEST_GROWTH:
                raise TokenizerError(f"{source}: its replacements can make a text {growth} times as long.", _GET_AGAIN)
    if unk is not None and backend.token_to_id(unk) is None:
        raise TokenizerError(
            f"{source}: model.vocab has no {unk!r}, which model.unk_token names.", "Add it, or get the file again."
        )
    return backend


def word_start(backend: Tokenizer) -> str | None:
    """The mark of pieces that begin a word, where a tokenizer marks those."""
    if backend.pre_tokenizer is None:
        return None
    described = json.loads(backend.pre_tokenizer.__getstate__())
    marks = {"Metaspace": "▁", "ByteLevel": "Ġ"}
    parts = (described, *described.get("pretokenizers", ()))
    return next((marks[part["type"]] for part in parts if part["type"] in marks), None)


def check_word_limit(limit: int, source: str) -> None:
    """The time a word takes grows with the square of its length, so this limit is what keeps long texts linear."""
    if not 0 < limit <= _LARGEST_WORD_LIMIT:
        raise TokenizerError(
            f"{source}: {{max_input_chars_per_word:is}} wanted 1 to {_LARGEST_WORD_LIMIT}.",
            "BERT's is 100, and was 200 in Google's first release.",
            max_input_chars_per_word=limit,
        )


# A part of a tokenizer as Rust writes it. Rust has parsed it, so its fields are there and of their types.
_Part = dict[str, Any]


def _check_template(processor: _Part, source: str) -> None:
    """A template may name only tokens it defines; Rust finds out when it encodes, and panics."""
    for part in processor.get("processors", ()):
        _check_template(part, source)
    if processor.get("type") == "TemplateProcessing":
        longest = max(len(processor["single"]), len(processor["pair"]))
        if longest > _LONGEST_TEMPLATE:
            raise TokenizerError(f"{source}: a template of {longest} pieces would repeat every text.", _GET_AGAIN)
        pieces = processor["single"] + processor["pair"]
        named = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
        unknown = sorted(named - set(processor["special_tokens"]))
        if unknown:
            raise TokenizerError(
                f"{source}: post_processor names the special token {unknown[0]!r} and does not define it.", _GET_AGAIN
            )


def _growth(part: _Part) -> int:
    """How many times longer replacements can make a text. One after another they multiply: nine tens are a billion."""
    growth = 1
    for child in (*part.get("normalizers", ()), *part.get("decoders", ())):
        growth *= _growth(child)
    if part.get("type") == "Replace":
        plain = part["pattern"].get("String", "")
        # An expression may match nothing at all, between any two letters.
        growth = max(1, -(-len(part["content"]) // len(plain)) if plain else 1 + len(part["content"]))
    return growth


def copy_backend(backend: Tokenizer) -> Tokenizer:
    """An independent copy: changing it cannot disturb a thread that is encoding with the original."""
    with rust_errors("The tokenizer cannot be copied"):
        return Tokenizer.from_str(backend.to_str())


def encode_all(
    backend: Tokenizer, inputs: Sequence[Input], *, framed: bool = True, words: bool = False, offsets: bool = False
) -> list[WholeRow]:
    """Whole rows, `framed` by special tokens. Without `offsets` they have ids, type ids and sequence ids only."""
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    with rust_errors("The text could not be tokenized"):
        try:
            rows: list[WholeRow] = encode(inputs, words, framed)
        except (TypeError, UnicodeEncodeError):
            _check_inputs(inputs, words)
            # Only lone surrogates are left to blame; looking for them first would cost every caller.
            rows = encode([_encodable(item) for item in inputs], words, framed)
    return rows


def _encodable(item: Input) -> object:
    if isinstance(item, str):
        return replace_surrogates(item)
    parts = [_encodable(part) for part in item]
    return parts if isinstance(item, list) else tuple(parts)


def _check_inputs(inputs: Sequence[object], words: bool) -> None:
    def is_text(item: object) -> bool:
        match item:
            case str():
                return not words
            case [*parts]:
                return words and all(isinstance(word, str) for word in parts)
        return False

    def fits(item: object) -> bool:
        match item:
            case [first, second] if is_text(first) and is_text(second):
                return True
        return is_text(item)

    for index, item in enumerate(inputs):
        if not fits(item):
            shown = repr(item)
            raise TokenizerTypeError(
                f"Text {index} is {type(item).__name__} {shown[:60]}{'…' * (len(shown) > 60)}; "
                f"wanted {'a list of words' if words else 'a string'}, or a pair of them.",
                "Pass str, not bytes, numbers or None; words already split need {is_split_into_words}.",
                is_split_into_words=True,
            )


class Encoders:
    """A Rust tokenizer, and its C++ form for whoever has much text. A copy, or another process, makes its own.

    Making that form takes as long as it saves on some pages, so it is made when those have come, at once or one by one.
    """

    def __init__(self) -> None:
        self._native: tuple[Tokenizer | None, NativeTokenizer | None] = None, None  # made of, and made
        self._splitting: tuple[Tokenizer | None, Tokenizer] = None, None  # likewise a copy that splits special tokens
        self._seen = 0  # characters

    def native(self, backend: Tokenizer, inputs: Sequence[Input]) -> NativeTokenizer | None:
        """The form for these texts, or pairs of texts; None where Rust is to have them."""
        made_of, native = self._native
        if made_of is not backend:
            parts = (part for one in inputs for part in (one if isinstance(one, (tuple, list)) else (one,)))
            self._seen += sum(len(part) for part in parts if isinstance(part, str))
            if self._seen < _MUCH:
                return None
            # Here, for it needs numpy, which those who only ask for help do not.
            from bertie.text.wordpiece.native import NativeTokenizer

            native = NativeTokenizer.of(backend)
            self._native = backend, native
        return native

    def splitting(self, backend: Tokenizer) -> Tokenizer:
        """A copy that takes special tokens in texts for text. The hub sets that on the one that all threads share."""
        if self._splitting[0] is not backend:
            copied = copy_backend(backend)
            copied.encode_special_tokens = True
            self._splitting = backend, copied
        return self._splitting[1]

    def __reduce__(self) -> tuple[type[Encoders], tuple[()]]:
        return Encoders, ()
