"""Which tokens of a whole row stay when it is too long: the rest is dropped or goes to further rows.

The Rust tokenizer can truncate by itself, but its settings are state shared by every caller. Here a row is encoded
whole and cut afterwards, so two threads with different settings cannot disturb each other, and one long document is
encoded once however it is cut.

A whole row, special tokens included, has this shape; cutting takes tokens from A and B only:

    [CLS]  A A A A A A  [SEP]  B B B B  [SEP]
           a_start     a_end   b_start  b_end

A *cut* is the list of slices of the whole row that, one after the other, make the new row. Ids, type ids, offsets and
everything else that runs along the row are cut by the same slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from bertie.errors import TokenizerError

Strategy = Literal["longest_first", "only_first", "only_second"]
Side = Literal["left", "right"]
Cut = tuple[tuple[int, int], ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Truncation:
    """How rows are made to fit: at most `max_length` tokens; overflowing rows share `stride` with the one before."""

    max_length: int
    strategy: Strategy = "longest_first"
    stride: int = 0
    side: Side = "right"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the two sequences lie in a whole row of `length` tokens. Without B, `b_start == b_end == length`."""

    length: int
    a_start: int
    a_end: int
    b_start: int
    b_end: int

    @classmethod
    def of(cls, sequence_ids: Sequence[int | None]) -> Layout:
        """From the row's sequence ids: 0 in A, 1 in B, None for special tokens.

        >>> Layout.of([None, 0, 0, None, 1, None])
        Layout(length=6, a_start=1, a_end=3, b_start=4, b_end=5)
        """
        length = len(sequence_ids)
        size_a, size_b = sequence_ids.count(0), sequence_ids.count(1)
        b_start = sequence_ids.index(1) if size_b else length
        a_start = sequence_ids.index(0) if size_a else b_start
        return cls(length, a_start, a_start + size_a, b_start, b_start + size_b)

    @property
    def num_special(self) -> int:
        return self.length - (self.a_end - self.a_start) - (self.b_end - self.b_start)

    def cut(self, a: tuple[int, int], b: tuple[int, int]) -> Cut:
        """The row with tokens a[0] to a[1] of A and b[0] to b[1] of B, and all that is special."""
        return (
            (0, self.a_start),
            (self.a_start + a[0], self.a_start + a[1]),
            (self.a_end, self.b_start),
            (self.b_start + b[0], self.b_start + b[1]),
            (self.b_end, self.length),
        )


def take(values: Sequence[T], cut: Cut) -> list[T]:
    """The values that a cut keeps, in order."""
    kept: list[T] = []
    for start, end in cut:
        kept.extend(values[start:end])
    return kept


def cut_row(layout: Layout, truncation: Truncation, *, overflow: bool = False) -> list[Cut]:
    """The cuts that make one row fit: first the row itself, then, with `overflow`, the rows for what it left out.

    When both sequences are cut, the overflowing rows are every combination of their parts, in the order the Rust
    library gives them: each later part of A with all parts of B, then the first part of A with the later parts of B.
    """
    if layout.length <= truncation.max_length:
        return [((0, layout.length),)]
    size_a, size_b = _sizes_kept(layout, truncation)
    parts_a = _parts(layout.a_end - layout.a_start, size_a, truncation)
    parts_b = _parts(layout.b_end - layout.b_start, size_b, truncation)
    pairs = [(parts_a[0], parts_b[0])]
    if overflow:
        pairs += [(a, b) for a in parts_a[1:] for b in parts_b]
        pairs += [(parts_a[0], b) for b in parts_b[1:]]
    return [layout.cut(a, b) for a, b in pairs]


def _sizes_kept(layout: Layout, truncation: Truncation) -> tuple[int, int]:
    """How many tokens of A and of B the first row keeps."""
    size_a, size_b = layout.a_end - layout.a_start, layout.b_end - layout.b_start
    room = truncation.max_length - layout.num_special
    if room < 0:
        raise TokenizerError(
            f"{{max_length}} leaves no room: the special tokens alone are {layout.num_special}.",
            f"Use max_length of at least {layout.num_special + 1}, or {{add_special_tokens}}.",
            max_length=truncation.max_length,
            add_special_tokens=False,
        )
    if truncation.strategy == "longest_first":
        return _share_room(room, size_a, size_b)
    excess = size_a + size_b - room
    target = size_a if truncation.strategy == "only_first" else size_b
    # With no room at all Rust empties both sequences under any strategy; a row of one sequence may be emptied as well.
    if room == 0:
        return 0, 0
    if target <= excess:
        which, other = ("first", "second") if truncation.strategy == "only_first" else ("second", "first")
        raise TokenizerError(
            f"{{truncation}} cannot make a row of {layout.length} tokens fit {{max_length}}: "
            f"the {which} sequence has only {target} tokens and {excess} must go.",
            f"Raise max_length, shorten the {other} sequence, or use truncation='longest_first'.",
            truncation=truncation.strategy,
            max_length=truncation.max_length,
        )
    return (size_a - excess, size_b) if truncation.strategy == "only_first" else (size_a, size_b - excess)


def _share_room(room: int, size_a: int, size_b: int) -> tuple[int, int]:
    """`longest_first`: only the longer is cut while that is enough; else each gets half, the longer the odd one."""
    shorter, longer = sorted((size_a, size_b))
    if shorter + longer > room:
        longer = max(shorter, room - shorter)
        if shorter + longer > room:
            shorter = room // 2
            longer = room - shorter
    return (shorter, longer) if size_a <= size_b else (longer, shorter)


def _parts(size: int, limit: int, truncation: Truncation) -> list[tuple[int, int]]:
    """Overlapping parts of at most `limit` tokens, from the side that is kept; the last one ends exactly at the end."""
    if size <= limit:
        return [(0, size)]
    if limit == 0:
        return [(0, 0), (0, size)]
    if truncation.stride >= limit:
        raise TokenizerError(
            f"{{stride}} is not smaller than the {limit} tokens that a row keeps of the sequence: "
            "the rows would never advance.",
            "Use a smaller stride or a larger max_length.",
            stride=truncation.stride,
        )
    step = limit - truncation.stride
    starts = range(0, size - truncation.stride, step)
    parts = [(start, min(start + limit, size)) for start in starts]
    if truncation.side == "right":
        return parts
    return [(size - end, size - start) for start, end in parts]
