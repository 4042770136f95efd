"""What a tokenizer returns: columns of ids, masks and offsets, and the way from tokens back to words and characters.

`BatchEncoding` is a dict of columns that can also be read as attributes; `model(**encoding)` works. The columns are
made at once. Everything else (which word, which characters, which of the two texts) is worked out per row when it is
asked for, from the Rust encodings kept behind it, because most callers want ids and nothing else.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self, TypeVar, overload

from bertie.errors import MissingExtra, TokenizerError
from bertie.text.rust import Rows, WholeRow
from bertie.text.truncation import Side, take

T = TypeVar("T")

WHOLE_NUMBERS = frozenset({"input_ids", "token_type_ids", "attention_mask", "special_tokens_mask", "offset_mapping"})


class CharSpan(NamedTuple):
    """Characters `start` to `end` (exclusive) of the original text."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a row."""

    start: int
    end: int


class NoRows(TokenizerError, KeyError):
    """Columns without rows behind them were asked for one; on the hub a KeyError."""


class NoRow(TokenizerError, IndexError):
    """A row that an encoding does not have."""


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """One row, everything about it: each list has an entry for every token, special and padding tokens included.

    It reads as the `Encoding` of the Rust library does, which is what the hub keeps behind a `BatchEncoding`.
    """

    ids: list[int]
    type_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    attention_mask: list[int]
    special_tokens_mask: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def words(self) -> list[int | None]:
        """An older name of `word_ids`."""
        return self.word_ids

    @property
    def n_sequences(self) -> int:
        """1 for a text, 2 for a pair."""
        return 2 if 1 in self.sequence_ids else 1

    def token_to_sequence(self, token_index: int) -> int | None:
        """The text of a pair that a token belongs to."""
        return self.sequence_ids[token_index]

    def token_to_word(self, token_index: int) -> int | None:
        """The word of a token: (text of the pair, word)."""
        return self.word_ids[token_index]

    def token_to_chars(self, token_index: int) -> CharSpan | None:
        """Where a token begins and ends: (text of the pair, (begin, end))."""
        return None if self.sequence_ids[token_index] is None else CharSpan(*self.offsets[token_index])

    def char_to_token(self, char_index: int, sequence_index: int = 0) -> int | None:
        """The token of a character; None between tokens."""
        for index, ((start, end), sequence) in enumerate(zip(self.offsets, self.sequence_ids, strict=True)):
            if sequence == sequence_index and start <= char_index < end:
                return index
        return None

    def char_to_word(self, char_index: int, sequence_index: int = 0) -> int | None:
        """The word of a character; None between words."""
        token = self.char_to_token(char_index, sequence_index)
        return None if token is None else self.word_ids[token]

    def word_to_tokens(self, word_index: int, sequence_index: int = 0) -> TokenSpan | None:
        """The first token of a word, and the one after its last."""
        of_word = [
            index
            for index, (word, sequence) in enumerate(zip(self.word_ids, self.sequence_ids, strict=True))
            if word == word_index and sequence == sequence_index
        ]
        return TokenSpan(of_word[0], of_word[-1] + 1) if of_word else None

    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> CharSpan | None:
        """Where a word begins and ends, in characters."""
        tokens = self.word_to_tokens(word_index, sequence_index)
        return None if tokens is None else CharSpan(self.offsets[tokens.start][0], self.offsets[tokens.end - 1][1])


@dataclass(frozen=True, slots=True)
class Padding:
    """Rows are filled up to `length` tokens on one side."""

    length: int
    side: Side
    pad_id: int
    pad_type_id: int = 0
    pad_token: str = ""

    def fill(self, values: list[T], filler: T) -> list[T]:
        missing = self.length - len(values)
        if missing <= 0:
            return values
        return values + [filler] * missing if self.side == "right" else [filler] * missing + values

    def fill_columns(self, columns: Mapping[str, list[Any]], ids_name: str = "input_ids") -> dict[str, list[Any]]:
        """Pad the columns a tokenizer makes; any other column passes through."""
        fillers: dict[str, int | tuple[int, int]] = {
            ids_name: self.pad_id,
            "token_type_ids": self.pad_type_id,
            "attention_mask": 0,
            "special_tokens_mask": 1,
            "offset_mapping": (0, 0),
        }
        return {
            name: [self.fill(row, fillers[name]) for row in column] if name in fillers else column
            for name, column in columns.items()
        }


class Trace:
    """Where each row came from: `whole()` are all texts' whole rows, with offsets and words."""

    def __init__(self, rows: Rows, whole: Callable[[], Sequence[WholeRow]], padding: Padding | None = None) -> None:
        self.samples, self.cuts = rows.samples, rows.cuts
        self._all, self._padding = whole, padding
        # The rows of one long text are asked for one after another: its lists are made once, not for every row.
        self._latest: tuple[int, EncodedRow] | None = None

    def row(self, index: int) -> EncodedRow:
        row = self._whole(self.samples[index])
        cut, padding = self.cuts[index], self._padding
        if cut is not None:
            row = EncodedRow(*(take(getattr(row, field.name), cut) for field in fields(row)))
        if padding is not None and len(row.ids) < padding.length:
            fillers = (padding.pad_id, padding.pad_type_id, padding.pad_token, (0, 0), 0, 1, None, None)
            row = EncodedRow(*map(padding.fill, (getattr(row, field.name) for field in fields(row)), fillers))
        return row

    def _whole(self, sample: int) -> EncodedRow:
        latest = self._latest
        if latest is None or latest[0] != sample:
            row = self._all()[sample]
            mask = getattr(row, "attention_mask", None) or [1] * len(row.ids)  # only rows of Rust's have one
            read = {
                field.name: getattr(row, field.name) for field in fields(EncodedRow) if field.name != "attention_mask"
            }
            latest = self._latest = sample, EncodedRow(attention_mask=mask, **read)
        return latest[1]


class BatchEncoding(UserDict[str, Any]):
    """Columns by name: `encoding["input_ids"]` or `encoding.input_ids`; `encoding[0]` is the whole first row.

    Rows are counted as they came out: with overflow a text may have several, and `overflow_to_sample_mapping` says
    which text each belongs to. For a single text without tensors the columns are plain lists and row 0 is meant.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        encoding: WholeRow | list[WholeRow] | tuple[WholeRow, ...] | None = None,
        tensor_type: str | None = None,
        prepend_batch_axis: bool = False,
        n_sequences: int | None = None,
        *,
        trace: Trace | None = None,
    ) -> None:
        """`encoding` is one `tokenizers.Encoding`, or a list of them: the rows behind columns made elsewhere."""
        super().__init__(data or {})
        if encoding is not None:
            found: Sequence[WholeRow] = encoding if isinstance(encoding, (list, tuple)) else [encoding]
            trace = Trace(Rows(found, None), lambda: found)
        self._trace = trace
        self._rows: dict[int, EncodedRow] = {}
        self._n_sequences = n_sequences
        self.convert_to_tensors(tensor_type, prepend_batch_axis)

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: int) -> EncodedRow: ...
    @overload
    def __getitem__(self, key: slice) -> list[EncodedRow] | dict[str, Any]: ...
    def __getitem__(self, key: str | int | slice) -> object:
        match key:
            case str():
                return self.data[key]
            case slice():
                rows = self.encodings
                return {name: column[key] for name, column in self.data.items()} if rows is None else rows[key]
        return self._row(key)

    def __getattr__(self, name: str) -> Any:
        # `data` itself is missing while copying and unpickling, before __init__ has run.
        if name == "data" or name.startswith("__") or name not in self.data:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; it has {', '.join(self.__dict__.get('data', ()))}."
            )
        return self.data[name]

    def __getstate__(self) -> dict[str, Any]:
        # The Rust encodings stay behind; the rows that are read from them travel with the columns.
        return {"data": self.data, "rows": self.encodings, "n_sequences": self.n_sequences}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state["rows"]
        BatchEncoding.__init__(self, state["data"], encoding=rows, n_sequences=state["n_sequences"])
        self._rows = dict(enumerate(rows or ()))

    @property
    def is_fast(self) -> bool:
        """True where rows stand behind the columns, so that words and characters can be asked for."""
        return self._trace is not None

    @property
    def truncated(self) -> list[bool]:
        """For each row, whether it holds only a part of its text."""
        return [False] * self.num_rows if self._trace is None else [cut is not None for cut in self._trace.cuts]

    @property
    def encodings(self) -> list[EncodedRow] | None:
        """All rows; None for columns without any."""
        return None if self._trace is None else [self._row(index) for index in range(len(self._trace.samples))]

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs; None for columns without rows."""
        if self._n_sequences is None and self._trace is not None and len(self._trace.samples):
            self._n_sequences = self._row(0).n_sequences
        return self._n_sequences

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
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
            raise NoRows(
                "This encoding has only its columns: no tokenizer call made it, but pad(), or a dict.",
                "Ask what the tokenizer returned, or for {return_offsets_mapping} there.",
                return_offsets_mapping=True,
            )
        if not 0 <= index < len(self._trace.samples):
            raise NoRow(f"There is no row {index}: the encoding has {len(self._trace.samples)}.")
        row = self._rows[index] = self._trace.row(index)
        return row

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of a row as text."""
        return self._row(batch_index).tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token, the number of its word in its own text; None for special tokens."""
        return self._row(batch_index).word_ids

    def words(self, batch_index: int = 0) -> list[int | None]:
        """The old name of `word_ids`."""
        return self.word_ids(batch_index)

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token 0 (first text), 1 (second text) or None (special)."""
        return self._row(batch_index).sequence_ids

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """0 or 1: the text a token is from."""
        row, at = self._locate(batch_or_token_index, token_index)
        return row.token_to_sequence(at)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """The number of a token's word."""
        row, at = self._locate(batch_or_token_index, token_index)
        return row.token_to_word(at)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """The characters a token was made of; None for a special token."""
        row, at = self._locate(batch_or_token_index, token_index)
        return row.token_to_chars(at)

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The token that a character became part of; None for whitespace and other characters that left no trace."""
        row, at = self._locate(batch_or_char_index, char_index)
        return row.char_to_token(at, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The number of the word that a character belongs to."""
        row, at = self._locate(batch_or_char_index, char_index)
        return row.char_to_word(at, sequence_index)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word."""
        row, at = self._locate(batch_or_word_index, word_index)
        return row.word_to_tokens(at, sequence_index)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word."""
        row, at = self._locate(batch_or_word_index, word_index)
        return row.word_to_chars(at, sequence_index)

    def _locate(self, first: int, second: int | None) -> tuple[EncodedRow, int]:
        """The hub's two ways of asking: (index in the first row), or (row, index in it)."""
        return (self._row(0), first) if second is None else (self._row(first), second)

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> Self:
        """Turn the columns into "pt" or "np" arrays, in place."""
        if tensor_type is not None:
            for name, column in self.data.items():
                self.data[name] = to_array(column, tensor_type, name=name, add_axis=prepend_batch_axis)
        return self

    def to(self, device: object, *, non_blocking: bool = False) -> Self:
        """Move tensor columns to a device, in place."""
        for name, column in self.data.items():
            if callable(getattr(column, "to", None)):
                self.data[name] = column.to(device=device, non_blocking=non_blocking)
        return self


def to_array(column: Any, tensor_type: str, *, name: str, add_axis: bool = False) -> Any:
    """A column of numbers as an array of `tensor_type` "np" or "pt": whole numbers as int64, others as they are.

    PyTorch's usual float32 is what fractions become in "pt".
    """
    if tensor_type not in ("np", "pt"):
        raise TokenizerError(
            "{return_tensors} is not known.",
            "Use 'pt', 'np' or None.",
            accepted=("pt", "np"),
            return_tensors=tensor_type,
        )
    if _array_type(column) is not None and not add_axis:
        return column
    import numpy as np

    if column and isinstance(column[0], list) and len(lengths := {len(row) for row in column}) > 1:
        raise TokenizerError(
            f"The rows of {name!r} have different lengths ({min(lengths)} to {max(lengths)}): they make no tensor.",
            "Pass {padding}, and {truncation} if some are too long.",
            padding=True,
            truncation=True,
        )
    try:
        # Saying the type halves the time; only columns of the tokenizer's own are known to hold nothing else.
        array = np.asarray([column] if add_axis else column, dtype=np.int64 if name in WHOLE_NUMBERS else None)
    except ValueError as error:  # lists in lists of different lengths
        raise TokenizerError(f"{name!r} makes no tensor: {error}.", "Its rows should have one shape.") from None
    if array.dtype.kind in "iu" or array.size == 0:
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind not in "bf":
        while isinstance(column, (list, tuple)) and column:
            column = column[0]
        raise TokenizerError(
            f"{name!r} makes no tensor: it holds {column!r}, which is no number.",
            f"Take the column out before, or convert it: {name!r} as numbers.",
        )
    if tensor_type == "np":
        return array
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "all", "return_tensors='pt'") from error
    tensor = torch.from_numpy(array)
    return tensor.to(torch.get_default_dtype()) if array.dtype.kind == "f" else tensor


def pad_columns(
    encoded: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    padding: Callable[[int], Padding | None],
    *,
    attention_mask: bool = True,
    ids_name: str = "input_ids",
    tensor_type: str | None = None,
) -> BatchEncoding:
    """A dict of columns, or a list of dicts that have the same keys, padded as `padding` says for the longest row.

    One row alone (a flat list of ids) stays one. Padded are ids, type ids, attention and special-token masks; other
    columns pass through as they are. Where the ids came as tensors or arrays, and no type is asked for, all columns go
    back as such.
    """
    if not isinstance(encoded, Mapping):
        given = list(encoded)
        if not given:
            return BatchEncoding()
        encoded = {name: [row[name] for row in given] for name in given[0]}
    if ids_name not in encoded:
        raise TokenizerError(f"There are no {ids_name} to pad; there are {', '.join(encoded) or 'no columns'}.")
    match encoded[ids_name]:
        case [first, *_] | first:
            tensor_type = tensor_type or _array_type(first)
    columns = {name: _as_lists(column) for name, column in encoded.items()}
    single = bool(columns[ids_name]) and isinstance(columns[ids_name][0], int)
    if single:
        columns = {name: [column] for name, column in columns.items()}
    rows = len(columns[ids_name])
    uneven = {name: len(column) for name, column in columns.items() if len(column) != rows}
    if uneven:
        raise TokenizerError(f"{ids_name} has {rows} rows, but {uneven} other columns have other numbers of them.")
    lengths = [len(row) for row in columns[ids_name]]
    if attention_mask and "attention_mask" not in columns:
        columns["attention_mask"] = [[1] * length for length in lengths]
    if (pad := padding(max(lengths, default=0))) is not None:
        columns = pad.fill_columns(columns, ids_name)
    if single:
        columns = {name: column[0] for name, column in columns.items()}
    return BatchEncoding(columns, tensor_type=tensor_type)


def _array_type(value: object) -> str | None:
    """ "pt" for tensors, "np" for arrays and their numbers."""
    return {"torch": "pt", "numpy": "np"}.get(type(value).__module__.partition(".")[0])


def _as_lists(column: Any) -> Any:
    if hasattr(column, "tolist"):
        return column.tolist()
    return [_as_lists(entry) for entry in column] if isinstance(column, (list, tuple)) else column
