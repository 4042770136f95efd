"""Documents longer than the model: overlapping windows over one encoding, and the way back from a window to the text.

    document tokens    0 1 2 3 4 5 6 7 8 9
    window 0           0 1 2 3 4                    each window is a whole row: [CLS] (question [SEP]) tokens [SEP]
    window 1                 3 4 5 6 7              stride = 2 tokens are shared with the window before
    window 2                       6 7 8 9

The text is tokenized once. Every token lies in at least one window; a token in several is best judged in the one where
it has most context, by Google's rule for SQuAD (`_check_is_max_context` in google-research/bert `run_squad.py`).
Offsets are characters of the original text, so what is found in a window is quoted exactly: `document.quote(first,
last)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bertie.errors import TokenizerError
from bertie.text.rust import WholeRow
from bertie.text.truncation import Layout

if TYPE_CHECKING:
    from bertie.text.tokenizer import BertTokenizer

DEFAULT_STRIDE = 128
_LONGEST_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """One row for the model, holding the document's tokens `start` to `end` (exclusive).

    Document token `t` stands at `input_ids[t + shift]`.
    """

    index: int
    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    start: int
    end: int
    shift: int

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class WindowedDocument:
    """A text, its tokens (special ones not counted) with their characters and words, and the windows over them."""

    text: str
    question: str | None
    token_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    word_ids: tuple[int, ...]
    windows: tuple[Window, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def token_at(self, window: int, position: int) -> int | None:
        """The document token at a position of a window's row; None for special tokens, question and padding."""
        row = self.windows[window]
        token = position - row.shift
        return token if row.start <= token < row.end else None

    def windows_with(self, token: int) -> list[int]:
        """The windows that hold a token, in order."""
        return [row.index for row in self.windows if row.start <= token < row.end]

    @cached_property
    def best_windows(self) -> tuple[int, ...]:
        """For each token, the window where it has most context."""
        return max_context_windows([(row.start, row.end) for row in self.windows], len(self))

    def is_max_context(self, window: int, token: int) -> bool:
        """Is this the window in which the token is to be judged?"""
        return self.best_windows[token] == window

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Characters from token `first` to token `last`, both included; not the spaces that pieces may begin with."""
        start, end = self.offsets[first][0], self.offsets[last][1]
        found = self.text[start:end]
        words = found.strip()
        if not words:
            return start, end
        start += len(found) - len(found.lstrip())
        return start, start + len(words)

    def quote(self, first: int, last: int) -> str:
        """The text's own words from token `first` to token `last`, both included."""
        start, end = self.span(first, last)
        return self.text[start:end]


def split_document(
    tokenizer: BertTokenizer,
    text: str,
    *,
    question: str | None = None,
    max_length: int | None = None,
    stride: int = DEFAULT_STRIDE,
    keep_words: bool = False,
) -> WindowedDocument:
    """`text` in windows of at most `max_length` tokens (default: the model's length of the `tokenizer`), special tokens
    and `question` included.

    `stride` is the number of tokens two neighbouring windows share, as on the hub; Google's `doc_stride` is the step
    from one window to the next instead. Where a long question leaves little room, windows share half of it at most. A
    question that leaves none is an error: nothing is cut off silently. With `keep_words` windows begin and end
    between words wherever a word is not longer than the window itself.
    """
    questions = None if question is None else [question]
    documents = split_documents(
        tokenizer, [text], questions=questions, max_length=max_length, stride=stride, keep_words=keep_words
    )
    return next(documents)


def split_documents(
    tokenizer: BertTokenizer,
    texts: Sequence[str],
    *,
    questions: Sequence[str] | None = None,
    max_length: int | None = None,
    stride: int = DEFAULT_STRIDE,
    keep_words: bool = False,
) -> Iterator[WindowedDocument]:
    """As `split_document` for many texts, tokenized in one call; an error comes when its text's turn does.

    `tokenizer`, `max_length`, `stride` and `keep_words` are those of `split_document`; there is one of `questions` for
    each of `texts`.
    """
    if max_length is None:
        max_length = min(tokenizer.model_max_length, _LONGEST_WINDOW)
    if stride < 0:
        raise TokenizerError("{stride} should not be negative.", stride=stride)
    rows = tokenizer.encode_whole(texts) if questions is None else tokenizer.encode_whole(questions, texts)
    for number, (text, row) in enumerate(zip(texts, rows, strict=True)):
        question = None if questions is None else questions[number]
        yield _document(row, text, question, max_length, stride, keep_words)


def _document(
    row: WholeRow, text: str, question: str | None, max_length: int, stride: int, keep_words: bool
) -> WindowedDocument:
    layout = Layout.of(row.sequence_ids)
    start, end = (layout.a_start, layout.a_end) if question is None else (layout.b_start, layout.b_end)
    if start == end:  # an empty document stands where its tokens would: before the last special token
        start = end = max(layout.length - 1, 0)
    room = max_length - (layout.length - (end - start))
    if room < 1:
        taken = layout.length - (end - start)
        raise TokenizerError(
            "{max_length} leaves no room for the document: special tokens"
            f"{'' if question is None else ' and question'} take {taken}.",
            "Use a larger max_length." if question is None else "Shorten the question, or use a larger max_length.",
            max_length=max_length,
        )
    words = tuple(word if word is not None else 0 for word in row.word_ids[start:end])
    spans = [(0, end - start)]
    if end - start > room:
        stride = min(stride, room // 2 if stride >= room else stride)
        spans = window_spans(end - start, room, stride, words if keep_words else None)
    ids, type_ids = row.ids, row.type_ids
    windows = tuple(
        Window(
            index=index,
            input_ids=_row(ids, start, end, span),
            token_type_ids=_row(type_ids, start, end, span),
            start=span[0],
            end=span[1],
            shift=start - span[0],
        )
        for index, span in enumerate(spans)
    )
    return WindowedDocument(
        text=text,
        question=question,
        token_ids=tuple(ids[start:end]),
        offsets=tuple(row.offsets[start:end]),
        word_ids=words,
        windows=windows,
    )


def _row(values: list[int], start: int, end: int, span: tuple[int, int]) -> tuple[int, ...]:
    return (*values[:start], *values[start + span[0] : start + span[1]], *values[end:])


def window_spans(num_tokens: int, room: int, stride: int, words: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """(start, end) of windows of at most `room` tokens that share `stride` tokens and cover all of them.

    >>> window_spans(10, 5, 2)
    [(0, 5), (3, 8), (6, 10)]
    """
    if not 0 <= stride < room:
        raise TokenizerError(
            f"{{stride}} should be at least 0 and less than the {room} tokens of a window.", stride=stride
        )

    def end_of(start: int) -> int:
        end = min(start + room, num_tokens)
        if words is None or end == num_tokens:
            return end
        return _word_start(words, end, after=start) or end  # a word longer than the window is cut

    spans: list[tuple[int, int]] = []
    start, end = 0, end_of(0)
    while True:
        spans.append((start, end))
        if end == num_tokens:
            return spans
        following = end - stride
        if words is not None and words[end] != words[end - 1]:
            following = _word_start(words, following, after=start) or end
        if end_of(following) <= end:  # so much was shared that nothing new fitted in
            following = end
        start, end = following, end_of(following)


def _word_start(words: Sequence[int], token: int, *, after: int) -> int | None:
    """The first token of the word that `token` is in; None when the word began at `after` or before."""
    while token > after and words[token - 1] == words[token]:
        token -= 1
    return token if token > after else None


def max_context_score(token: int, start: int, end: int) -> float:
    """How well a window (start, end) sees a token: the smaller of its left and right context, longer windows first."""
    return min(token - start, end - 1 - token) + 0.01 * (end - start)


def max_context_windows(spans: Sequence[tuple[int, int]], num_tokens: int) -> tuple[int, ...]:
    """For each of `num_tokens` tokens the index of the window with the best `max_context_score`; the earlier of equals.

    `spans` are the windows: the first token, and the one after the last.

    >>> max_context_windows([(0, 5), (3, 8), (6, 10)], 10)
    (0, 0, 0, 0, 1, 1, 1, 2, 2, 2)
    """
    if len(spans) == 1:
        return (0,) * num_tokens
    best = [-1] * num_tokens
    best_score = [-1.0] * num_tokens
    for index, (start, end) in enumerate(spans):
        for token in range(start, end):
            score = max_context_score(token, start, end)
            if score > best_score[token]:
                best[token], best_score[token] = index, score
    return tuple(best)
