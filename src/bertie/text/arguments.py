"""The arguments of a tokenizer call, as the hub spells them, turned into what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from bertie.errors import TokenizerError
from bertie.text.truncation import Side, Strategy, Truncation

PaddingArgument = bool | Literal["longest", "max_length", "do_not_pad"]
TruncationArgument = bool | Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
PaddingTarget = Literal["longest", "max_length"]

# "No limit": what the hub puts in model_max_length when nothing is known.
NO_LIMIT = int(1e30)
_LONGEST_BELIEVED = int(1e20)


@dataclass(frozen=True, slots=True)
class PaddingPlan:
    """Pad to the longest row or to `max_length`, rounded up to `multiple_of`."""

    target: PaddingTarget
    max_length: int | None
    multiple_of: int | None

    def length(self, longest: int) -> int:
        length = longest if self.target == "longest" or self.max_length is None else self.max_length
        return -(-length // self.multiple_of) * self.multiple_of if self.multiple_of else length


@dataclass(frozen=True, slots=True)
class Inputs:
    """Texts as Rust takes them: strings, or pairs as tuples. A single text is a list of one and not `batched`."""

    rows: list[Any]
    batched: bool
    paired: bool


def plan_padding(
    padding: PaddingArgument, *, max_length: int | None, model_max_length: int, pad_to_multiple_of: int | None
) -> PaddingPlan | None:
    if padding is False or padding is None or padding == "do_not_pad":
        return None
    if padding is not True and padding not in get_args(PaddingTarget):
        raise TokenizerError(
            f"padding={padding!r} is not known.", "Use True or 'longest', 'max_length', False or 'do_not_pad'."
        )
    if pad_to_multiple_of is not None and pad_to_multiple_of < 1:
        raise TokenizerError(f"pad_to_multiple_of={pad_to_multiple_of} should be a positive number, or None.")
    if padding == "max_length" and max_length is None:
        if model_max_length > _LONGEST_BELIEVED:
            raise TokenizerError(
                "padding='max_length' needs a length: none was given and this tokenizer has no model_max_length.",
                "Pass max_length=, or padding=True to pad to the longest text.",
            )
        max_length = model_max_length
    return PaddingPlan("longest" if padding is True else padding, max_length, pad_to_multiple_of)


def plan_truncation(
    truncation: TruncationArgument | None,
    *,
    padding: PaddingArgument,
    max_length: int | None,
    stride: int,
    side: Side,
    model_max_length: int,
) -> Truncation | None:
    """As on the hub: a `max_length` alone truncates; with no limit known `truncation=True` does nothing."""
    if truncation is None and max_length is not None and padding is False:
        truncation = True
    if truncation is None or truncation is False or truncation == "do_not_truncate":
        return None
    if truncation is not True and truncation not in get_args(Strategy):
        raise TokenizerError(
            f"truncation={truncation!r} is not known.",
            "Use True or 'longest_first', 'only_first', 'only_second', False or 'do_not_truncate'.",
        )
    if max_length is None:
        if model_max_length > _LONGEST_BELIEVED:
            return None
        max_length = model_max_length
    if max_length < 0 or stride < 0:
        raise TokenizerError(f"max_length={max_length} and stride={stride} should not be negative.")
    return Truncation(max_length, "longest_first" if truncation is True else truncation, stride, side)


def gather_inputs(text: Any, text_pair: Any, *, is_split_into_words: bool) -> Inputs:
    """One text or many, with or without a second one each."""

    def is_one(item: Any) -> bool:
        if is_split_into_words:
            return isinstance(item, (list, tuple)) and (not item or isinstance(item[0], str))
        return isinstance(item, str)

    if is_one(text):
        if text_pair is not None and not is_one(text_pair):
            raise TokenizerError(
                f"text is a single text but text_pair is a {type(text_pair).__name__}.", "Pass two texts, or two lists."
            )
        return Inputs([text if text_pair is None else (text, text_pair)], batched=False, paired=text_pair is not None)
    if isinstance(text, (bytes, dict)) or not hasattr(text, "__iter__"):
        raise TokenizerError(
            f"Cannot tokenize {type(text).__name__}.", "Pass a string, or a list of strings; decode bytes first."
        )
    texts = list(text)  # a copy: words are looked up later, when the caller's list may hold something else
    if text_pair is None:
        paired = bool(texts) and isinstance(texts[0], (tuple, list)) and not is_one(texts[0])
        return Inputs(texts, batched=True, paired=paired)
    pairs = list(text_pair) if not isinstance(text_pair, str) else [text_pair]
    if len(texts) != len(pairs) or isinstance(text_pair, str):
        raise TokenizerError(
            f"text has {len(texts)} entries and text_pair {len(pairs)}.", "Each text needs exactly one second text."
        )
    return Inputs(list(zip(texts, pairs, strict=True)), batched=True, paired=True)
