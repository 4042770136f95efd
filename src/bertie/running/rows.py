"""From texts and pairs to rows for the model: cut to its length, or as windows that overlap.

    truncated     [CLS] A A A A A A [SEP] B B [SEP]           the longer text loses its end
    windows       [CLS] A A A A A A [SEP] B B [SEP]           one text slides, the other stands in every row
                  [CLS]         A A A A A A [SEP] B B [SEP]

Question and document, premise and hypothesis: the text that slides is the longer one unless a task says which. The one
that stands may take half of the room at most; what is longer is cut there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

from bertie.errors import InputError
from bertie.running.batching import Row
from bertie.running.inputs import TextOrPair
from bertie.text import BertTokenizer, EncodedRow
from bertie.text.truncation import Cut, Layout, Strategy, take
from bertie.text.windows import DEFAULT_STRIDE, max_context_windows, window_spans

Sliding = Literal["longer", "first", "second"]

__all__ = ["DEFAULT_STRIDE", "Windows", "split_text_or_pair", "truncated_rows"]


def truncated_rows(
    tokenizer: BertTokenizer,
    items: Sequence[TextOrPair],
    *,
    max_length: int,
    strategy: Strategy = "longest_first",
) -> list[Row]:
    """One row to an item, of at most `max_length` tokens."""
    rows: list[Row | None] = [None] * len(items)
    for paired in (False, True):  # texts and pairs are typed differently, so each are encoded by themselves
        places = [place for place, item in enumerate(items) if isinstance(item, tuple) == paired]
        if not places:
            continue
        found = tokenizer.encode_cut(
            [items[place] for place in places], paired=paired, max_length=max_length, strategy=strategy
        )
        columns = (found.ids, found.type_ids or repeat([0]), found.is_cut)
        for place, ids, types, is_cut in zip(places, *columns, strict=found.type_ids is not None):
            rows[place] = Row(ids, types if any(types) else None, is_cut)
    return [row for row in rows if row is not None]


@dataclass(frozen=True)
class Windows:
    """An item's rows. `whole` is the untruncated row, `cuts[i]` the slices of it that make window i.

    `spans[i]` are the tokens of the sliding text, counted from its own first, that window i holds.
    """

    whole: EncodedRow
    cuts: tuple[Cut, ...]
    spans: tuple[tuple[int, int], ...]
    start: int  # of the sliding text, in the whole row
    is_cut: bool = False  # the text that stands was too long, and lost its end

    @property
    def rows(self) -> list[Row]:
        types = self.whole.type_ids if any(self.whole.type_ids) else None
        return [Row(take(self.whole.ids, cut), None if types is None else take(types, cut)) for cut in self.cuts]

    @property
    def weights(self) -> list[int]:
        """How many tokens of the sliding text each window holds; 1 for an empty one."""
        return [max(1, end - start) for start, end in self.spans]

    def best_places(self) -> list[tuple[int, int, int]]:
        """(token of the whole row, window, place in that window's row) for every token that is in any window.

        A token of the sliding text is taken from the window where it has most context, every other from the first.
        """
        best = max_context_windows(self.spans, self.spans[-1][1])
        places = [{t: p for p, t in enumerate(take(range(len(self.whole.ids)), cut))} for cut in self.cuts]
        found = []
        for token in sorted(set().union(*places)):
            sliding = token - self.start
            window = best[sliding] if 0 <= sliding < len(best) else 0
            found.append((token, window, places[window][token]))
        return found


def split_text_or_pair(
    tokenizer: BertTokenizer,
    item: TextOrPair,
    *,
    max_length: int,
    stride: int = DEFAULT_STRIDE,
    sliding: Sliding = "longer",
) -> Windows:
    """Windows of at most `max_length` tokens that share `stride` tokens (half a window at most) with the one before."""
    if stride < 0:
        raise InputError(f"stride is {stride}; it takes a whole number of at least 0.")
    first, second = item if isinstance(item, tuple) else (item, None)
    whole = tokenizer(first, second, return_offsets_mapping=True)[0]
    layout = Layout.of(whole.sequence_ids)
    sizes = (layout.a_end - layout.a_start, layout.b_end - layout.b_start)
    if second is None:
        slides = 0
    elif sliding == "longer":
        slides = 0 if sizes[0] > sizes[1] else 1
    else:
        slides = 0 if sliding == "first" else 1
    start = (layout.a_start, layout.b_start)[slides]
    if layout.length <= max_length:
        return Windows(whole, (((0, layout.length),),), ((0, sizes[slides]),), start)
    room = max_length - layout.num_special
    if room < 2:
        raise InputError(
            f"The model takes {max_length} tokens, of which {layout.num_special} are special: no text fits.",
            "Use a model with more positions.",
        )
    standing = min(sizes[1 - slides], room // 2)
    is_cut = standing < sizes[1 - slides]
    room -= standing
    spans = window_spans(sizes[slides], room, min(stride, room // 2) if stride >= room else stride)
    parts = [((0, standing), span) if slides else (span, (0, standing)) for span in spans]
    return Windows(whole, tuple(layout.cut(a, b) for a, b in parts), tuple(spans), start, is_cut)
