"""Calling the Rust tokenizer, or its form in C++ for much text: texts to whole rows, which are cut to fit afterwards.

Rust reports errors as bare `Exception`s, and bugs as a `PanicException` that is no `Exception` at all and would end a
server thread. Neither may leave this file: both become a `TokenizerError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from tokenizers import Tokenizer

from bertie.errors import BertieError, TokenizerError, TokenizerTypeError
from bertie.text.truncation import Cut, Layout, Truncation, cut_row, take
from bertie.text.wordpiece.reference import replace_surrogates

if TYPE_CHECKING:
    from bertie.text.wordpiece.native import NativeTokenizer

# A text, a pair of texts, or with `is_split_into_words` a list of words or a pair of such lists.
Input: TypeAlias = "str | Sequence[str] | Sequence[Sequence[str]]"
T = TypeVar("T")
_MUCH = 20_000  # characters

# Rust's threads are not in a forked child, which would wait for them for ever. The library sees to it by itself, unless
# this variable says that threads are wanted.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class WholeRow(Protocol):
    """A text or pair as it was encoded: the part of `tokenizers.Encoding` that is used here."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...
    @property
    def tokens(self) -> list[str]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...
    @property
    def special_tokens_mask(self) -> list[int]: ...
    @property
    def word_ids(self) -> list[int | None]: ...
    @property
    def sequence_ids(self) -> list[int | None]: ...
    def __len__(self) -> int: ...


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


def set_prefix_space(backend: Tokenizer, on: bool) -> Tokenizer:
    """A byte-level tokenizer that puts a space before a text, so that its first word is as any other; others as is."""
    described = json.loads(backend.to_str())
    for part in (described["pre_tokenizer"], described["post_processor"]):
        for one in (part or {}, *(part or {}).get("pretokenizers", ()), *(part or {}).get("processors", ())):
            if "add_prefix_space" in one:
                one["add_prefix_space"] = on
    with rust_errors("The tokenizer cannot be made with another add_prefix_space"):
        return Tokenizer.from_str(json.dumps(described))


def joins_words(backend: Tokenizer) -> bool:
    """Whether words given one by one would lose the spaces between them: byte-level, with none put before a text."""
    if backend.pre_tokenizer is None:
        return False
    described = json.loads(backend.pre_tokenizer.__getstate__())
    parts = (described, *described.get("pretokenizers", ()))
    return any(part["type"] == "ByteLevel" and part["add_prefix_space"] is False for part in parts)


def word_start(backend: Tokenizer) -> str | None:
    """The mark of pieces that begin a word, where a tokenizer marks those."""
    if backend.pre_tokenizer is None:
        return None
    described = json.loads(backend.pre_tokenizer.__getstate__())
    marks = {"Metaspace": "▁", "ByteLevel": "Ġ"}
    parts = (described, *described.get("pretokenizers", ()))
    return next((marks[part["type"]] for part in parts if part["type"] in marks), None)


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
                f"it must be {'a list of words' if words else 'a string'}, or a pair of them.",
                "Pass str, not bytes, numbers or None; words already split need {is_split_into_words}.",
                is_split_into_words=True,
            )


def whole_rows(
    inputs: Sequence[Input],
    backend: Tokenizer,
    native: NativeTokenizer | None,
    *,
    paired: bool,
    framed: bool = True,
    words: bool = False,
    offsets: bool = False,
) -> list[WholeRow]:
    """Every input's whole row: in C++ where there is such a form and it can, else in Rust."""
    rust = partial(encode_all, backend, framed=framed, words=words, offsets=offsets)
    rows = None
    if native is not None:
        rows = native.encode_rows(inputs, paired=paired, framed=framed, offsets=offsets, others=rust)
    return rust(inputs) if rows is None else rows


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


class Rows:
    """The rows of an answer. `samples[i]` is the index of row i's text; `cuts[i]` how that text's whole row is cut."""

    def __init__(self, whole: Sequence[WholeRow], truncation: Truncation | None, *, overflow: bool = False) -> None:
        self.whole = whole
        self.samples: Sequence[int] = range(len(whole))
        self.cuts: list[Cut | None] = [None] * len(whole)
        self._is_cut = truncation is not None and any(len(row) > truncation.max_length for row in whole)
        if self._is_cut and truncation is not None:
            samples: list[int] = []
            cuts: list[Cut | None] = []
            for index, row in enumerate(whole):
                fits = len(row) <= truncation.max_length
                found = [None] if fits else cut_row(Layout.of(row.sequence_ids), truncation, overflow=overflow)
                samples.extend([index] * len(found))
                cuts.extend(found)
            self.samples, self.cuts = samples, cuts

    def read(self, read: Callable[[WholeRow], list[T]]) -> list[list[T]]:
        """One list to a row. Reading a list out of Rust copies it, so a text cut to many rows is read once."""
        if not self._is_cut:
            return [read(row) for row in self.whole]
        column: list[list[T]] = []
        latest, values = -1, list[T]()
        for sample, cut in zip(self.samples, self.cuts, strict=True):
            if sample != latest:
                latest, values = sample, read(self.whole[sample])
            column.append(values if cut is None else take(values, cut))
        return column

    def ids(self) -> list[list[int]]:
        return self.read(lambda row: row.ids)

    def type_ids(self) -> list[list[int]]:
        return self.read(lambda row: row.type_ids)
