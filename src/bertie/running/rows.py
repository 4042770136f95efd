"""From texts, pairs and documents to rows for the model: cut to its length, or in windows that overlap and hold all.

    truncated     [CLS] A A A A A A [SEP] B B [SEP]           the longer text loses its end
    windows       [CLS] A A A A A A [SEP] B B [SEP]           one text slides, the other stands in every row
                  [CLS]         A A A A A A [SEP] B B [SEP]

Question and document, premise and hypothesis: the text that slides is the longer one unless a task says which. The one
that stands may take half of the room at most; what is longer is cut there. Embedding has no pairs and many texts, so
its rows are arrays (`Cutting`). Whoever cuts a text says so: `Cuts` counts, and warns once when a call ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from threading import Lock
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bertie.arguments import one_of, whole_number
from bertie.errors import InputError, TokenizerError, TruncationWarning
from bertie.running.pooling import Pieces
from bertie.text import BertTokenizer, EncodedRow, WindowedDocument, split_document, split_documents
from bertie.text.truncation import Cut, Layout, Strategy, take
from bertie.text.windows import DEFAULT_STRIDE, max_context_windows, window_spans

TextOrPair: TypeAlias = str | tuple[str, str]
Sliding = Literal["longer", "first", "second"]
Long = Literal["truncate", "windows", "error"]
LONG: tuple[Long, ...] = ("truncate", "windows", "error")
_QUOTED = 60

__all__ = [
    "DEFAULT_STRIDE", "LONG", "Cuts", "Cutting", "Long", "Reading", "Row", "TextOrPair", "Windows", "both", "cut_ids",
    "document_rows", "readings", "split_text_or_pair", "truncated_rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One input of the model: token ids with their segments (None: all 0), special tokens included.

    `is_cut`: it holds only a part of its text.
    """

    ids: Sequence[int]
    type_ids: Sequence[int] | None = None
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.ids)


class Reading(NamedTuple):
    """What was read of an item: the tokens that each of its rows counts for, and whether some were left out."""

    weights: list[int]
    is_cut: bool


class Cuts:
    """What one call of a task did with long texts: how many it saw, and of how many it read only a part.

    `limit` is the model's length; `choices` says whether the task has `long=`. A stream that is left early says what
    was cut up to there.
    """

    def __init__(self, long: str, limit: int, *, choices: bool = True) -> None:
        self.long, self.limit, self.choices = long, limit, choices
        self.cut = self.seen = 0
        self._lock = Lock()  # texts are tokenized in several threads

    def count(self, cut: int, seen: int) -> None:
        """Counts texts that were seen, and those of them that were cut."""
        with self._lock:
            self.cut, self.seen = self.cut + cut, self.seen + seen

    def refuse(self, item: TextOrPair) -> None:
        """Raise for a text that is too long, if that was asked for."""
        if self.long != "error":
            return
        first, second = both(item)
        what, shown = "text" if second is None else "pair", repr(first)
        raise InputError(
            f"The {what} that begins with {shown if len(shown) <= _QUOTED else shown[:_QUOTED] + '…'} has more than "
            f"{self.limit} tokens.",
            "Shorten it, or pass {long=windows} to read all of it or {long=truncate} to read its beginning.",
        )

    @contextmanager
    def told(self) -> Iterator[Cuts]:
        """Warn at the end of the call, also of one that is left early; an error speaks for itself."""
        try:
            yield self
        except GeneratorExit:
            self._warn()
            raise
        self._warn()

    def _warn(self) -> None:
        if not self.cut:
            return
        texts = "1 text was" if self.cut == 1 else f"{self.cut} of {self.seen} texts were"
        remedy = " Pass {long=windows} to read all of each, or {long=error} to refuse such texts."
        said = f"{texts} longer than the model's {self.limit} tokens and cut." + (remedy if self.choices else "")
        warnings.warn(TruncationWarning(said), stacklevel=3)


def both(item: TextOrPair) -> tuple[str, str | None]:
    """A pair, or a text and None."""
    return (item, None) if isinstance(item, str) else item


def truncated_rows(
    tokenizer: BertTokenizer,
    items: Sequence[TextOrPair],
    *,
    max_length: int,
    strategy: Strategy = "longest_first",
) -> list[Row]:
    """One row to an item, of at most `max_length` tokens."""
    rows: list[Row | None] = [None] * len(items)
    kinds = [both(item)[1] is not None for item in items]
    for paired in (False, True):  # texts and pairs are typed differently, so each are encoded by themselves
        places = [place for place, kind in enumerate(kinds) if kind == paired]
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
    whole_number("stride", stride, 0)
    first, second = both(item)
    whole = tokenizer(first, second, return_offsets_mapping=True, verbose=False)[0]
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


def readings(
    tokenizer: BertTokenizer,
    items: Sequence[TextOrPair],
    cuts: Cuts,
    *,
    max_length: int,
    stride: int,
    sliding: Sliding = "longer",
    strategy: Strategy = "longest_first",
    each: int = 1,
) -> Iterator[tuple[Reading, list[Row]]]:
    """The rows of every item. `each` items that follow one another are one text to the account of what was cut."""
    found: list[tuple[Reading, list[Row]]] = []
    if cuts.long == "windows":
        for item in items:
            split = split_text_or_pair(tokenizer, item, max_length=max_length, stride=stride, sliding=sliding)
            found.append((Reading(split.weights, split.is_cut), split.rows))
    else:
        for row, item in zip(
            truncated_rows(tokenizer, items, max_length=max_length, strategy=strategy), items, strict=True
        ):
            if row.is_cut:
                cuts.refuse(item)
            found.append((Reading([1], row.is_cut), [row]))
    is_cut = [reading.is_cut for reading, _ in found]
    cuts.count(sum(any(is_cut[start : start + each]) for start in range(0, len(items), each)), len(items) // each)
    return iter(found)


def document_rows(
    tokenizer: BertTokenizer,
    texts: Sequence[str],
    questions: Sequence[str] | None = None,
    *,
    max_length: int,
    stride: int,
    keep_words: bool = False,
) -> Iterator[tuple[WindowedDocument, list[Row]]]:
    """Documents of any length with their rows, tokenized in one call, for tasks that judge tokens.

    A question that leaves no room is an error which quotes it.
    """
    documents = split_documents(
        tokenizer, texts, questions=questions, max_length=max_length, stride=stride, keep_words=keep_words
    )
    done = 0
    try:
        for document in documents:
            yield document, [Row(window.input_ids, window.token_type_ids) for window in document.windows]
            done += 1
    except TokenizerError as error:
        opening = ""
        if questions is not None:
            question = questions[done]
            opening = f"The question {question[:40]!r}{'…' if len(question) > 40 else ''}: "
        raise InputError(opening + error.cause, error.remedy) from error


# -- embedding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cutting:
    """How texts become rows. `count_prompt`: whether the prompt's own tokens (and [CLS]) take part in pooling."""

    tokenizer: BertTokenizer
    max_length: int
    prompt: str = ""
    count_prompt: bool = True
    lower: bool = False
    long: str = "truncate"
    stride: int = DEFAULT_STRIDE
    cuts: Cuts = field(default_factory=lambda: Cuts("truncate", 0), compare=False)  # of the call these rows are for

    def __post_init__(self) -> None:
        one_of("long", self.long, LONG)

    @cached_property
    def prompt_ids(self) -> Sequence[int]:
        return self.tokenizer.encode_ids([self._cased(self.prompt)])[0][1:-1] if self.prompt else ()

    def pieces(self, texts: Sequence[str], cuts: Cuts | None = None) -> Pieces:
        """The rows of all texts, in order. Texts that are cut are counted (in `cuts`), or refused, as `long` says."""
        cuts = self.cuts if cuts is None else cuts
        given, texts = texts, self.prepared(texts)
        skipped = 0 if self.count_prompt or not self.prompt_ids else 1 + len(self.prompt_ids)
        if self.long != "windows":
            ids, lengths, is_cut = cut_ids(self.tokenizer, texts, self.max_length)
            for number in np.flatnonzero(is_cut).tolist():
                cuts.refuse(given[number])
            cuts.count(int(is_cut.sum()), len(texts))
            return Pieces.of_texts(ids, lengths, skipped=skipped)
        ids, lengths = self.tokenizer.encode_flat(texts)
        whole = Pieces.of_texts(ids, lengths, skipped=skipped)
        if int(lengths.max(initial=0)) <= self.max_length:
            return whole
        parts, done = [], 0
        for number in np.flatnonzero(lengths > self.max_length).tolist():
            parts += [whole.between(done, number), _windows(texts[number], self, skipped)]
            done = number + 1
        return Pieces.joined([*parts, whole.between(done, len(texts))])

    def prepared(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts as they are tokenized: with the prompt, in the model's case."""
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        return [self._cased(text) for text in texts] if self.lower else texts

    def _cased(self, text: str) -> str:
        # Letter by letter, as the Rust library lower-cases: str.lower() would look at a sigma's neighbours.
        return "".join(map(str.lower, text)) if self.lower else text


def cut_ids(
    tokenizer: BertTokenizer, texts: Sequence[str], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The ids of all texts end to end, how many are each text's, and which texts lost some to fit into `limit`.

    One token more than fits is asked for. It tells a text that is cut from one that just fits, and goes: the last
    before [SEP], or the first after [CLS] where texts lose their beginning.
    """
    ids, lengths = tokenizer.encode_flat(texts, max_length=limit + 1)
    is_cut = lengths > limit
    if np.count_nonzero(is_cut):
        ends = np.cumsum(lengths)
        surplus = ends - 2 if tokenizer.truncation_side == "right" else ends - lengths + 1
        ids, lengths = np.delete(ids, surplus[is_cut]), lengths - is_cut
    return ids, lengths, is_cut


def _windows(text: str, cutting: Cutting, skipped: int) -> Pieces:
    """Each token counts where it has most context. The prompt, which the text begins with, precedes every window."""
    prompt_ids = cutting.prompt_ids
    room = cutting.max_length - len(prompt_ids)
    if room < 3:
        raise InputError(
            f"The prompt has {len(prompt_ids)} tokens and leaves no room for text in windows of {cutting.max_length}.",
            "Use a shorter prompt or a larger max_length.",
        )
    document = split_document(cutting.tokenizer, text, max_length=room, stride=cutting.stride)
    counted = [0] * len(document.windows)  # tokens are counted in runs, one to a window, in the windows' order
    for best in document.best_windows:
        counted[best] += 1
    rows: list[Sequence[int]] = []
    columns: list[tuple[int, int, int, bool, bool]] = []
    token = 0
    for window, count in zip(document.windows, counted, strict=True):
        is_first, is_last = window.index == 0, window.index == len(document.windows) - 1
        ids, shift = window.input_ids, window.shift
        if not is_first:
            ids, shift = (ids[0], *prompt_ids, *ids[1:]), shift + len(prompt_ids)
        start = 0 if is_first else token + shift
        end = len(ids) if is_last else token + count + shift
        if is_first:
            start = min(skipped, end)
        # Position 0 of the whole text is [CLS], so its token t stands at t + 1.
        rows.append(ids)
        columns.append((start, end - start, start if is_first else token + 1, is_first, is_last))
        token += count
    starts, counts, positions, firsts, lasts = (np.array(column) for column in zip(*columns, strict=True))
    lengths = np.array([len(row) for row in rows])
    return Pieces(np.concatenate([np.array(row) for row in rows]), lengths, starts, counts, positions, firsts, lasts)
