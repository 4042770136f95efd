"""Texts to rows of the model for embedding: cut off at the model's length, or in windows that cover all of the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike

from bertie.data import Reader
from bertie.errors import InputError
from bertie.tasks.batching import Row
from bertie.tasks.pooling import Piece
from bertie.text import BertTokenizer, split_document
from bertie.text.windows import DEFAULT_STRIDE

TextStream = Iterator[str] | Reader[str] | PathLike[str]
LONG = ("truncate", "windows")
# Texts tokenized in one call: enough for the Rust threads, few enough to stream.
_AT_ONCE = 256


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

    def __post_init__(self) -> None:
        if self.long not in LONG:
            raise InputError(f"long={self.long!r} is not known.", f"Use one of {', '.join(LONG)}.")


def text_pieces(texts: Iterable[str], cutting: Cutting) -> Iterator[Piece]:
    """The pieces of every text, in order; the last piece of each is marked."""
    tokenizer, whole = cutting.tokenizer, cutting.long == "windows"
    prompt_ids = tokenizer.encode_ids([_cased(cutting.prompt, cutting)])[0][1:-1] if cutting.prompt else []
    skipped = 0 if cutting.count_prompt or not prompt_ids else 1 + len(prompt_ids)
    limit = None if whole else cutting.max_length
    for batch in _batches(checked_texts(texts)):
        prompted = [_cased(cutting.prompt + text, cutting) for text in batch]
        for text, ids in zip(prompted, tokenizer.encode_ids(prompted, max_length=limit), strict=True):
            if len(ids) <= cutting.max_length:
                start = min(skipped, len(ids))
                yield Piece(Row(ids), start, len(ids), position=start)
            else:
                yield from _windows(text, cutting, prompt_ids, skipped)


def checked_texts(texts: Iterable[object]) -> Iterator[str]:
    """The texts, or an error that says which of them is none."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"Text number {number} (counted from 0) is {_described(text)}, not a string.",
                "Give a list of strings; leave out or replace missing texts.",
            )
        yield text


def _windows(text: str, cutting: Cutting, prompt_ids: Sequence[int], skipped: int) -> Iterator[Piece]:
    """Each token counts where it has most context. The prompt, which the text begins with, precedes every window."""
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
        yield Piece(Row(ids), start, end, start if is_first else token + 1, is_first, is_last)
        token += count


def _cased(text: str, cutting: Cutting) -> str:
    # Letter by letter, as the Rust library lower-cases: str.lower() would look at a sigma's neighbours.
    return "".join(map(str.lower, text)) if cutting.lower else text


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, _AT_ONCE)):
        yield batch


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__} ({value!r:.40})"


def is_stream(texts: object) -> bool:
    return isinstance(texts, Iterator | Reader | PathLike)


def as_texts(texts: object) -> list[str]:
    """A list out of a list, a tuple, an array or a column; whether its items are strings is looked at later."""
    if isinstance(texts, bytes | dict) or not isinstance(texts, Iterable):
        raise InputError(
            f"Texts were wanted, and this is of type {type(texts).__name__}.",
            "Give a string, a list of strings, or an iterator of strings.",
        )
    return list(texts)
