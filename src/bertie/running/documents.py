"""Documents for the tasks that judge tokens (answer, tag): any length, in windows of one model, with exact offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

from bertie.errors import InputError, TokenizerError
from bertie.running.batching import Answers, Row, growing_chunks, map_ahead, run_groups
from bertie.running.inputs import TEXTS_AT_ONCE, checked_count
from bertie.running.open import Loaded
from bertie.running.stream import tokenizing_beside
from bertie.text import WindowedDocument, split_documents

T = TypeVar("T")
R = TypeVar("R")
DocumentRows: TypeAlias = tuple[WindowedDocument, list[Row]]


@dataclass(frozen=True)
class DocumentReader:
    """A model's way of reading documents: how long its windows are and what they share."""

    loaded: Loaded
    max_length: int
    stride: int
    keep_words: bool = False

    def rows(self, text: str, question: str | None = None) -> DocumentRows:
        """A text with its rows. A question that leaves no room is an error which quotes it."""
        return next(self.many([text], None if question is None else [question]))

    def many(self, texts: Sequence[str], questions: Sequence[str] | None = None) -> Iterator[DocumentRows]:
        """The same for several, tokenized in one call."""
        documents = split_documents(
            self.loaded.tokenizer, texts, questions=questions, max_length=self.max_length, stride=self.stride,
            keep_words=self.keep_words,
        )  # fmt: skip
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

    def judged(
        self,
        items: Iterable[T],
        texts_of: Callable[[T], tuple[str, str | None]],
        start: Callable[[list[Row]], Answers[R]],
    ) -> Iterator[tuple[T, WindowedDocument, list[R]]]:
        """Every item with its document and what `start` gives for its rows; `texts_of` gives text and question.

        Texts are tokenized beside the model.
        """
        device = self.loaded.model.device
        how = tokenizing_beside(device)
        most = how.texts if device.type == "cuda" else TEXTS_AT_ONCE

        def read(chunk: list[T]) -> list[tuple[tuple[T, WindowedDocument], list[Row]]]:
            texts, given = zip(*map(texts_of, chunk), strict=True)
            questions = None if given[0] is None else given
            found = zip(chunk, self.many(texts, questions), strict=True)
            return [((item, document), rows) for item, (document, rows) in found]

        with closing(map_ahead(read, growing_chunks(items, most), depth=how.calls, threads=how.threads)) as chunks:
            groups = chain.from_iterable(chunks)
            found = run_groups(groups, start, budget=self.loaded.budget, ahead=self.loaded.windows_ahead)
            for (item, document), answers in found:
                yield item, document, answers


def checked_length(loaded: Loaded, max_length: int | None, *, default: int | None = None) -> int:
    """`max_length` where it was given, otherwise the default; never more than the model takes."""
    if max_length is None:
        return loaded.max_length if default is None else min(default, loaded.max_length)
    checked_count("max_length", max_length)
    if max_length > loaded.max_length:
        raise InputError(
            f"max_length is {max_length}; the model takes at most {loaded.max_length} tokens at once.",
            "Leave it out: longer texts are read in overlapping windows.",
        )
    return max_length


def checked_stride(stride: int) -> int:
    """The number of tokens two windows share."""
    if isinstance(stride, bool) or not isinstance(stride, int) or stride < 0:
        raise InputError(f"stride is {stride!r}; it takes a whole number of at least 0.")
    return stride
