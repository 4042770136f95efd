"""What a tokenizer returns: columns of ids, masks and offsets, and the way from tokens back to words and characters.

`BatchEncoding` is a dict of columns that can also be read as attributes; `model(**encoding)` works. The columns are
made at once. Everything else (which word, which characters, which of the two texts) is worked out per row when it is
asked for, from the Rust encodings kept behind it, because most callers want ids and nothing else.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bertie.errors import MissingExtra, TokenizerError
from bertie.text.truncation import Cut, Side, take


class CharSpan(NamedTuple):
    """Characters `start` to `end` (exclusive) of the original text."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a row."""

    start: int
    end: int


class RustEncoding(Protocol):
    """The part of `tokenizers.Encoding` that is used here."""

    ids: list[int]
    type_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """One row, everything about it: each list has an entry for every token, special and padding tokens included."""

    ids: list[int]
    type_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    attention_mask: list[int]
    special_tokens_mask: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]


@dataclass(frozen=True, slots=True)
class Padding:
    """Rows are filled up to `length` tokens on one side."""

    length: int
    side: Side
    pad_id: int
    pad_type_id: int
    pad_token: str

    def fill(self, values: list[Any], filler: Any) -> list[Any]:
        missing = self.length - len(values)
        if missing <= 0:
            return values
        return values + [filler] * missing if self.side == "right" else [filler] * missing + values


class Trace:
    """Where each row came from: `samples[i]` is its text's index, `cuts[i]` the slices kept of the whole row."""

    def __init__(
        self,
        encodings: Callable[[], Sequence[RustEncoding]],
        *,
        samples: Sequence[int],
        cuts: Sequence[Cut | None],
        padding: Padding | None,
    ) -> None:
        self.samples = samples
        self._encodings = encodings
        self.cuts = cuts
        self._padding = padding
        # The rows of one long text are asked for one after another: its lists are made once, not for every row.
        self._latest: tuple[int, EncodedRow] | None = None

    def row(self, index: int) -> EncodedRow:
        row = self._whole(self.samples[index])
        cut, padding = self.cuts[index], self._padding
        if cut is not None:
            row = EncodedRow(*(take(getattr(row, name), cut) for name in EncodedRow.__slots__))
        if padding is not None and len(row.ids) < padding.length:
            fillers = (padding.pad_id, padding.pad_type_id, padding.pad_token, (0, 0), 0, 1, None, None)
            row = EncodedRow(
                *(padding.fill(getattr(row, n), f) for n, f in zip(EncodedRow.__slots__, fillers, strict=True))
            )
        return row

    def _whole(self, sample: int) -> EncodedRow:
        latest = self._latest
        if latest is None or latest[0] != sample:
            rust = self._encodings()[sample]
            row = EncodedRow(
                ids=rust.ids,
                type_ids=rust.type_ids,
                tokens=rust.tokens,
                offsets=rust.offsets,
                attention_mask=[1] * len(rust.ids),
                special_tokens_mask=rust.special_tokens_mask,
                word_ids=rust.word_ids,
                sequence_ids=rust.sequence_ids,
            )
            latest = self._latest = (sample, row)
        return latest[1]


class BatchEncoding(UserDict[str, Any]):
    """Columns by name: `encoding["input_ids"]` or `encoding.input_ids`; `encoding[0]` is the whole first row.

    Rows are counted as they came out: with overflow a text may have several, and `overflow_to_sample_mapping` says
    which text each belongs to. For a single text without tensors the columns are plain lists and row 0 is meant.
    """

    def __init__(self, data: dict[str, Any] | None = None, *, trace: Trace | None = None) -> None:
        super().__init__(data or {})
        self._trace = trace
        self._rows: dict[int, EncodedRow] = {}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            return self._row(key)
        if isinstance(key, slice):
            return {name: column[key] for name, column in self.data.items()}
        return self.data[key]

    def __getattr__(self, name: str) -> Any:
        # `data` itself is missing while copying and unpickling, before __init__ has run.
        if name == "data" or name.startswith("__") or name not in self.data:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; it has {', '.join(self.__dict__.get('data', ()))}."
            )
        return self.data[name]

    def __getstate__(self) -> dict[str, Any]:
        # Rust encodings stay behind: what travels to another process is the columns and the rows already looked at.
        return {"data": self.data, "_trace": None, "_rows": self._rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def is_fast(self) -> bool:
        return self._trace is not None

    @property
    def truncated(self) -> list[bool]:
        """For each row, whether it holds only a part of its text."""
        return [False] * self.num_rows if self._trace is None else [cut is not None for cut in self._trace.cuts]

    @property
    def num_rows(self) -> int:
        if self._trace is None:
            return len(next(iter(self.data.values()), ()))
        return len(self._trace.samples)

    def _row(self, index: int) -> EncodedRow:
        if index < 0:
            index += self.num_rows
        row = self._rows.get(index)
        if row is not None:
            return row
        if self._trace is None:
            raise TokenizerError(
                "This encoding has only its columns: it did not come from a tokenizer call in this process.",
                "Call the tokenizer here, or ask for return_offsets_mapping=True there.",
            )
        if not 0 <= index < len(self._trace.samples):
            raise TokenizerError(f"There is no row {index}: the encoding has {len(self._trace.samples)}.")
        row = self._rows[index] = self._trace.row(index)
        return row

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of a row as text."""
        return self._row(batch_index).tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token, the number of its word in its own text; None for special tokens."""
        return self._row(batch_index).word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token 0 (first text), 1 (second text) or None (special)."""
        return self._row(batch_index).sequence_ids

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """0 or 1: the text a token is from."""
        row, index = self._locate(batch_or_token_index, token_index)
        return row.sequence_ids[index]

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """The number of a token's word."""
        row, index = self._locate(batch_or_token_index, token_index)
        return row.word_ids[index]

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """The characters a token was made of; None for a special token."""
        row, index = self._locate(batch_or_token_index, token_index)
        return None if row.sequence_ids[index] is None else CharSpan(*row.offsets[index])

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The token that a character became part of; None for whitespace and other characters that left no trace."""
        row, char = self._locate(batch_or_char_index, char_index)
        for index, ((start, end), sequence) in enumerate(zip(row.offsets, row.sequence_ids, strict=True)):
            if sequence == sequence_index and start <= char < end:
                return index
        return None

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The number of the word that a character belongs to."""
        token = self.char_to_token(batch_or_char_index, char_index, sequence_index)
        if token is None:
            return None
        return self.token_to_word(token) if char_index is None else self.token_to_word(batch_or_char_index, token)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word."""
        row, word = self._locate(batch_or_word_index, word_index)
        of_word = [
            index
            for index, (candidate, sequence) in enumerate(zip(row.word_ids, row.sequence_ids, strict=True))
            if candidate == word and sequence == sequence_index
        ]
        return TokenSpan(of_word[0], of_word[-1] + 1) if of_word else None

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word."""
        tokens = self.word_to_tokens(batch_or_word_index, word_index, sequence_index)
        if tokens is None:
            return None
        row, _ = self._locate(batch_or_word_index, word_index)
        return CharSpan(row.offsets[tokens.start][0], row.offsets[tokens.end - 1][1])

    def _locate(self, first: int, second: int | None) -> tuple[EncodedRow, int]:
        """The hub's two ways of asking: (index in the first row), or (row, index in it)."""
        return (self._row(0), first) if second is None else (self._row(first), second)

    def convert_to_tensors(self, tensor_type: str | None, *, prepend_batch_axis: bool = False) -> BatchEncoding:
        """Turn the columns into "pt" or "np" arrays, in place."""
        if tensor_type is not None:
            for name, column in self.data.items():
                self.data[name] = to_array(column, tensor_type, name=name, add_axis=prepend_batch_axis)
        return self

    def to(self, device: Any, *, non_blocking: bool = False) -> BatchEncoding:
        """Move tensor columns to a device, in place."""
        for name, column in self.data.items():
            if hasattr(column, "to"):
                self.data[name] = column.to(device=device, non_blocking=non_blocking)
        return self


def to_array(column: Any, tensor_type: str, *, name: str, add_axis: bool = False) -> Any:
    """A column of lists as an int64 array of `tensor_type` "np" or "pt"."""
    if tensor_type not in ("np", "pt"):
        raise TokenizerError(f"return_tensors={tensor_type!r} is not known.", "Use 'pt', 'np' or None.")
    if type(column).__module__.partition(".")[0] in ("numpy", "torch"):
        return column
    import numpy as np

    if column and isinstance(column[0], list) and len(lengths := {len(row) for row in column}) > 1:
        raise TokenizerError(
            f"The rows of {name!r} have different lengths ({min(lengths)} to {max(lengths)}): they make no tensor.",
            "Pass padding=True, and truncation=True if some are too long.",
        )
    array = np.asarray([column] if add_axis else column, dtype=np.int64)
    if tensor_type == "np":
        return array
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "all", "return_tensors='pt'") from error
    return torch.from_numpy(array)
