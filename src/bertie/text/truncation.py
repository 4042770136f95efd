"""Which tokens of an encoded row stay when it is too long, and which go to further rows.

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
from typing import Any, Literal, TypeVar, get_args

from bertie.errors import TokenizerError

Strategy = Literal["longest_first", "only_first", "only_second"]
Side = Literal["left", "right"]
Cut = tuple[tuple[int, int], ...]
T = TypeVar("T")


def check_side(side: Any, name: str) -> Side:
    """A misspelt side would otherwise be taken for the left one."""
    if side == "left" or side == "right":
        return side  # type: ignore[no-any-return]
    raise TokenizerError(f"{name} is {side!r}; wanted 'left' or 'right'.")


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
    return [_cut(layout, a, b) for a, b in pairs]


def _cut(layout: Layout, a: tuple[int, int], b: tuple[int, int]) -> Cut:
    return (
        (0, layout.a_start),
        (layout.a_start + a[0], layout.a_start + a[1]),
        (layout.a_end, layout.b_start),
        (layout.b_start + b[0], layout.b_start + b[1]),
        (layout.b_end, layout.length),
    )


def _sizes_kept(layout: Layout, truncation: Truncation) -> tuple[int, int]:
    """How many tokens of A and of B the first row keeps."""
    size_a, size_b = layout.a_end - layout.a_start, layout.b_end - layout.b_start
    room = truncation.max_length - layout.num_special
    if room < 0:
        raise TokenizerError(
            f"max_length={truncation.max_length} leaves no room: the special tokens alone are {layout.num_special}.",
            f"Use max_length of at least {layout.num_special + 1}, or add_special_tokens=False.",
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
            f"truncation='{truncation.strategy}' cannot make a row of {layout.length} tokens fit max_length="
            f"{truncation.max_length}: the {which} sequence has only {target} tokens and {excess} must go.",
            f"Raise max_length, shorten the {other} sequence, or use truncation='longest_first'.",
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
            f"stride={truncation.stride} is not smaller than the {limit} tokens that a row keeps of the sequence: "
            "the rows would never advance.",
            "Use a smaller stride or a larger max_length.",
        )
    step = limit - truncation.stride
    starts = range(0, size - truncation.stride, step)
    parts = [(start, min(start + limit, size)) for start in starts]
    if truncation.side == "right":
        return parts
    return [(size - end, size - start) for start, end in parts]


def shorten_ids(
    ids: list[int], pair_ids: list[int] | None, excess: int, strategy: str, *, stride: int, side: Side
) -> tuple[list[int], list[int] | None, list[int]]:
    """Remove `excess` ids as the hub's `truncate_sequences` does; third, what was removed and `stride` ids before it.

    Of a pair under "longest_first" nothing is given back. Its two sides get an odd id the other way round than in rows
    that Rust makes (`_share_room`): that is the hub's difference too, between `prepare_for_model` and a call.
    """
    if excess <= 0 or strategy == "do_not_truncate":
        return ids, pair_ids, []
    if strategy not in get_args(Strategy):
        raise TokenizerError(f"truncation_strategy={strategy!r} is not known.", f"Use one of {get_args(Strategy)}.")
    if strategy == "longest_first" and pair_ids is not None:
        from_longer = min(abs(len(ids) - len(pair_ids)), excess)
        rest = excess - from_longer
        from_a, from_b = rest // 2, rest - rest // 2
        from_a, from_b = (from_a + from_longer, from_b) if len(ids) > len(pair_ids) else (from_a, from_b + from_longer)
        return _shortened(ids, from_a, side), _shortened(pair_ids, from_b, side), []
    target = pair_ids if strategy == "only_second" else ids
    if target is None or len(target) <= excess:
        size = 0 if target is None else len(target)
        raise TokenizerError(
            f"truncation='{strategy}' cannot remove {excess} tokens: the sequence has {size}.",
            "Raise max_length, or use truncation='longest_first'.",
        )
    window = min(len(target), stride + excess)
    removed = target[:window] if side == "left" else target[-window:]
    kept = _shortened(target, excess, side)
    return (ids, kept, removed) if strategy == "only_second" else (kept, pair_ids, removed)


def _shortened(ids: list[int], count: int, side: Side) -> list[int]:
    return ids[count:] if side == "left" else ids[: len(ids) - count]
