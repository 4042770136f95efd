"""The arguments of a tokenizer call, as the hub spells them, turned into what is to be done."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

from bertie.errors import TokenizerError, TokenizerTypeError
from bertie.text.truncation import Side, Strategy, Truncation

PaddingArgument = bool | Literal["longest", "max_length", "do_not_pad"]
TruncationArgument = bool | Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
PaddingTarget = Literal["longest", "max_length"]

# "No limit": what the hub puts in model_max_length when nothing is known.
NO_LIMIT = int(1e30)
_LONGEST_BELIEVED = int(1e20)

# Settings of transformers' from_pretrained that change nothing here: how it downloads, which of two classes it takes.
# fmt: off
_HARMLESS = frozenset({
    "resume_download", "use_fast", "from_slow", "legacy", "tokenizer_type", "config",
    "_from_auto", "_commit_hash", "mirror", "tokenizer_class", "special_tokens_map_file", "added_tokens_decoder",
    "device_map", "torch_dtype", "dtype",
})
# fmt: on
_KEPT = frozenset({"verbose", "add_prefix_space", "name_or_path"})
_ONLY = {"trust_remote_code": False, "do_basic_tokenize": True, "clean_text": True, "wordpieces_prefix": "##"}


class ConflictingName(TokenizerError, AttributeError):
    """A setting that has the name of a method; on the hub an AttributeError."""


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


def check_lengths(padding: PaddingPlan | None, truncation: Truncation | None) -> None:
    """Rows that are cut to a length cannot be filled up to a multiple beyond it."""
    if padding is None or truncation is None or not padding.multiple_of:
        return
    if truncation.max_length % padding.multiple_of:
        raise TokenizerError(
            f"Rows are cut to {truncation.max_length} tokens and padded to a multiple of {padding.multiple_of}.",
            "Choose a max_length that is such a multiple.",
        )


def check_others(tokenizer: type, others: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """What to keep of settings that are none of ours; those that would change something are refused by name.

    On the hub any name passes and is kept in `init_kwargs`. Here one that looks like a misspelt setting is an error.
    """
    kept: dict[str, Any] = {}
    for name, value in others.items():
        if name in _HARMLESS or value is None or (name in _ONLY and value == _ONLY[name]):
            continue
        if callable(getattr(tokenizer, name, None)):
            raise ConflictingName(f"{name} conflicts with the method {name} of {tokenizer.__name__}.")
        if name in _ONLY:
            raise TokenizerError(f"{name}={value!r} is not supported; only {_ONLY[name]!r} is.")
        if name not in _KEPT:
            if meant := get_close_matches(name, known, n=1, cutoff=0.8):
                raise TokenizerError(f"A tokenizer has no setting {name}.", f"Did you mean {meant[0]}?")
            warnings.warn(f"{name} is no setting of a tokenizer: it is kept and changes nothing.", stacklevel=4)
        kept[name] = value
    return kept


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
        raise TokenizerTypeError(
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
