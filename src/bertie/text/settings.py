"""What a tokenizer is made with: its settings by name, as files and callers state them, and checks of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, TypeAlias, TypedDict

from tokenizers import AddedToken

from bertie.errors import TokenizerError
from bertie.text.truncation import Side

SpecialToken: TypeAlias = "str | AddedToken"
ChatTemplate = str | dict[str, str]  # one, or several by name

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
ADDITIONAL: Final = "additional_special_tokens"
# "No limit": what the hub puts in model_max_length when nothing is known.
NO_LIMIT = int(1e30)

# Settings of transformers' from_pretrained that change nothing here: how it downloads, which of two classes it takes.
# fmt: off
_HARMLESS = frozenset({
    "resume_download", "use_fast", "from_slow", "legacy", "tokenizer_type", "config",
    "_from_auto", "_commit_hash", "mirror", "tokenizer_class", "special_tokens_map_file", "added_tokens_decoder",
    "device_map", "torch_dtype", "dtype",
})
# fmt: on
_KEPT = frozenset({"verbose", "add_prefix_space", "name_or_path", "chat_template"})
_ONLY = {"trust_remote_code": False, "do_basic_tokenize": True, "clean_text": True, "wordpieces_prefix": "##"}


class Settings(TypedDict, total=False):
    """None, or nothing at all, means: what the files say, or the default."""

    do_lower_case: bool | None
    strip_accents: bool | None
    tokenize_chinese_chars: bool | None
    never_split: Sequence[str] | None
    model_max_length: int | None
    max_input_chars_per_word: int | None
    padding_side: Side | None
    truncation_side: Side | None
    clean_up_tokenization_spaces: bool | None
    split_special_tokens: bool | None
    model_input_names: Sequence[str] | None
    add_prefix_space: bool | None  # before a text; of byte-level tokenizers
    tokenizer_class: str | None  # the hub's name for this kind, written again when it is saved
    additional_special_tokens: Sequence[SpecialToken] | None
    bos_token: SpecialToken | None
    eos_token: SpecialToken | None
    unk_token: SpecialToken | None
    sep_token: SpecialToken | None
    pad_token: SpecialToken | None
    cls_token: SpecialToken | None
    mask_token: SpecialToken | None


class ConflictingName(TokenizerError, AttributeError):
    """A setting that has the name of a method; on the hub an AttributeError."""


def check_side(side: Side, name: str) -> Side:
    """A misspelt side would otherwise be taken for the left one."""
    if side not in ("left", "right"):
        raise TokenizerError(f"{{{name}:is}} it must be 'left' or 'right'.", accepted=("left", "right"), **{name: side})
    return side


def check_others(tokenizer: type, others: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """What to keep of settings that we do not have; those that would change something are rejected with their names.

    On the hub any name passes and is kept in `init_kwargs`. Here one that looks like a misspelt setting is an error.
    """
    kept: dict[str, object] = {}
    for name, value in others.items():
        if name in _HARMLESS or value is None or (name in _ONLY and value == _ONLY[name]):
            continue
        if callable(getattr(tokenizer, name, None)):
            raise ConflictingName(f"{name} conflicts with the method {name} of {tokenizer.__name__}.")
        if name in _ONLY:
            raise TokenizerError(f"{{{name}}} is not supported; only {_ONLY[name]!r} is.", **{name: value})
        if name not in _KEPT:
            if meant := get_close_matches(name, known, n=1, cutoff=0.8):
                raise TokenizerError(f"A tokenizer has no setting {name}.", f"Did you mean {meant[0]}?")
            warnings.warn(f"{name} is no setting of a tokenizer: it is kept and changes nothing.", stacklevel=4)
        kept[name] = value
    return kept


def as_added(token: SpecialToken, *, special: bool = True) -> AddedToken:
    """A token with its rules; one that is given as text is found before the text is normalized if it is special."""
    return AddedToken(token, normalized=not special, special=special) if isinstance(token, str) else token
