"""From Rust encodings to the columns of a `BatchEncoding`: cut, read out, fill up; later padding as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bertie.errors import TokenizerError
from bertie.text.arguments import PaddingPlan
from bertie.text.encoding import BatchEncoding, Padding, RustEncoding
from bertie.text.truncation import Cut, Layout, Side, Truncation, cut_row, take

Read = Callable[[RustEncoding], list[Any]]


class Rows:
    """The rows of an answer. `samples[i]` is the index of row i's text; `cuts[i]` how that text's whole row is cut."""

    def __init__(self, encodings: Sequence[RustEncoding], truncation: Truncation | None, *, overflow: bool) -> None:
        self.encodings = encodings
        self.samples: Sequence[int] = range(len(encodings))
        self.cuts: list[Cut | None] = [None] * len(encodings)
        if truncation is not None and any(len(row) > truncation.max_length for row in encodings):
            self._cut(truncation, overflow)

    def _cut(self, truncation: Truncation, overflow: bool) -> None:
        self.samples, self.cuts = samples, cuts = [], []
        for index, row in enumerate(self.encodings):
            row_cuts: list[Any] = [None]
            if len(row) > truncation.max_length:
                row_cuts = cut_row(Layout.of(row.sequence_ids), truncation, overflow=overflow)
            samples.extend([index] * len(row_cuts))
            cuts.extend(row_cuts)

    def read(self, read: Read) -> list[list[Any]]:
        """One list to a row. Reading a list out of Rust copies it, so a text cut to many rows is read once."""
        if isinstance(self.samples, range):
            return [read(row) for row in self.encodings]
        column: list[list[Any]] = []
        latest, whole = -1, []
        for sample, cut in zip(self.samples, self.cuts, strict=True):
            if sample != latest:
                latest, whole = sample, read(self.encodings[sample])
            column.append(whole if cut is None else take(whole, cut))
        return column

    def ids(self) -> list[list[int]]:
        return self.read(lambda row: row.ids)

    def type_ids(self) -> list[list[int]]:
        return self.read(lambda row: row.type_ids)

    def special_tokens_mask(self) -> list[list[int]]:
        return self.read(lambda row: row.special_tokens_mask)

    def offsets(self) -> list[list[tuple[int, int]]]:
        return self.read(lambda row: row.offsets)


def fill_columns(columns: dict[str, list[Any]], pad: Padding, ids_name: str = "input_ids") -> dict[str, list[Any]]:
    """Pad the columns a tokenizer makes; any other column passes through."""
    fillers: dict[str, Any] = {
        ids_name: pad.pad_id,
        "token_type_ids": pad.pad_type_id,
        "attention_mask": 0,
        "special_tokens_mask": 1,
        "offset_mapping": (0, 0),
    }
    return {
        name: [pad.fill(row, fillers[name]) for row in column] if name in fillers else column
        for name, column in columns.items()
    }


def pad_columns(
    encoded: Any,
    plan: PaddingPlan | None,
    *,
    side: Side,
    pad_id: int,
    pad_type_id: int = 0,
    attention_mask: bool = True,
    ids_name: str = "input_ids",
    tensor_type: str | None = None,
) -> BatchEncoding:
    """Pad a dict of columns, or a list of dicts that have the same keys. One row alone (a flat list of ids) stays one.

    Padded are ids, type ids, attention and special-token masks; other columns pass through as they are. Where the ids
    came as tensors or arrays, and no type is asked for, all columns go back as such.
    """
    if not hasattr(encoded, "keys"):
        encoded = list(encoded)
        if not encoded:
            return BatchEncoding()
        encoded = {name: [row[name] for row in encoded] for name in encoded[0]}
    if ids_name not in encoded:
        raise TokenizerError(f"There are no {ids_name} to pad; there are {', '.join(encoded) or 'no columns'}.")
    tensor_type = tensor_type or _tensor_type(encoded[ids_name])
    columns: dict[str, Any] = {name: _as_lists(column) for name, column in encoded.items()}
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
    if plan is not None:
        pad = Padding(plan.length(max(lengths, default=0)), side, pad_id, pad_type_id, "")
        columns = fill_columns(columns, pad, ids_name)
    if single:
        columns = {name: column[0] for name, column in columns.items()}
    return BatchEncoding(columns, tensor_type=tensor_type)


def _tensor_type(column: Any) -> str | None:
    """ "pt" or "np" for tensors and arrays, and for lists of them."""
    first = column[0] if isinstance(column, (list, tuple)) and column else column
    return {"torch": "pt", "numpy": "np"}.get(type(first).__module__.partition(".")[0])


def _as_lists(column: Any) -> Any:
    if hasattr(column, "tolist"):
        return column.tolist()
    if isinstance(column, (list, tuple)):
        return [_as_lists(entry) for entry in column]
    return column
