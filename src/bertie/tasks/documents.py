"""Documents for the tasks that judge tokens (answer, tag): any length, in windows of one model, with exact offsets."""

from __future__ import annotations

from bertie.errors import InputError, TokenizerError
from bertie.tasks.batching import Row
from bertie.tasks.inputs import checked_count
from bertie.tasks.loaded import Loaded
from bertie.text import WindowedDocument, split_document


def split_for_model(
    loaded: Loaded, text: str, *, max_length: int, stride: int, question: str | None = None, keep_words: bool = False
) -> tuple[WindowedDocument, list[Row]]:
    """A text with its rows. A question that leaves no room is an error which quotes it."""
    try:
        document = split_document(
            loaded.tokenizer, text, question=question, max_length=max_length, stride=stride, keep_words=keep_words
        )
    except TokenizerError as error:
        opening = "" if question is None else f"The question {question[:40]!r}{'…' if len(question) > 40 else ''}: "
        raise InputError(opening + error.cause, error.remedy) from error
    return document, [Row(window.input_ids, window.token_type_ids) for window in document.windows]


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
