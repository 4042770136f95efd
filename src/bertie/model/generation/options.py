"""How `generate()` chooses tokens and when it stops: transformers' names and defaults, checked when made."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor

from bertie.arguments import whole_number
from bertie.config import Values, read_json_object
from bertie.config.checks import plain_int
from bertie.errors import InputError

# What transformers 4.57 takes and this does not, by name: what it would have done is not skipped silently.
REFUSED = {
    "assistant_model": "Assisted decoding",
    "constraints": "Constrained beam search",
    "force_words_ids": "Constrained beam search",
    "diversity_penalty": "Group beam search",
    "num_beam_groups": "Group beam search",
    "guidance_scale": "Classifier-free guidance",
    "penalty_alpha": "Contrastive search",
    "dola_layers": "DoLa decoding",
    "prompt_lookup_num_tokens": "Prompt lookup",
    "stop_strings": "Stopping at strings",
    "watermarking_config": "Watermarking",
}
_HARMLESS = {"num_beam_groups": 1, "diversity_penalty": 0.0, "guidance_scale": 1}


class GenerationConfig:
    """Settings for `generate()` under transformers' names; what is None (or not there) has its default.

    >>> GenerationConfig(max_new_tokens=5).max_new_tokens
    5
    """

    _from_model_config = False  # asked for by the hub's Seq2SeqTrainer, as is max_length

    def __init__(self, **settings: object) -> None:
        self.__dict__.update(settings)

    def __getattr__(self, name: str) -> Any:
        if name in _NAMES:
            return 20 if name == "max_length" else None  # that many new tokens, where nothing is set
        raise AttributeError(f"GenerationConfig has no {name!r}.")

    def to_dict(self) -> Values:
        """The settings that differ from the defaults, as plain values."""
        return dict(self.__dict__)

    def to_diff_dict(self) -> Values:
        """What is set."""
        return {name: value for name, value in self.__dict__.items() if value is not None}

    def update(self, **settings: object) -> None:
        """Set several attributes."""
        self.__dict__.update(settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenerationConfig) and other.to_dict() == self.to_dict()

    def __repr__(self) -> str:
        return f"GenerationConfig({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **settings: object) -> GenerationConfig:
        """From a folder's generation_config.json."""
        return cls(**{**read_json_object(Path(folder) / "generation_config.json"), **settings})

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `generation_config.json`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
        (Path(folder) / "generation_config.json").write_text(written, encoding="utf-8")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


_WHOLE = {  # the least that each takes
    "num_beams": 1,
    "num_return_sequences": 1,
    "top_k": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
}
_TAKEN: tuple[tuple[tuple[str, ...], Callable[[object], bool], str], ...] = (
    (("pad_token_id",), _is_whole, "an id, a whole number"),
    (("length_penalty",), _is_number, "a finite number"),
    (
        ("temperature", "repetition_penalty", "encoder_repetition_penalty"),
        lambda x: _is_number(x) and x > 0,
        "a finite number above 0",
    ),
    (("top_p", "typical_p"), lambda x: _is_number(x) and 0 < x <= 1, "a probability above 0, up to 1"),
    (
        ("epsilon_cutoff", "eta_cutoff", "min_p"),
        lambda x: x is None or (_is_number(x) and 0 <= x <= 1),
        "a probability, from 0 to 1",
    ),
    (("early_stopping",), lambda x: x in (True, False, "never"), "True, False or 'never'"),
)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """What was asked for, with defaults filled in."""

    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    max_time: float | None = None
    early_stopping: bool | str = False
    do_sample: bool = False
    num_beams: int = 1
    num_return_sequences: int = 1
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    repetition_penalty: float = 1.0
    encoder_repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    sequence_bias: Mapping[tuple[int, ...], float] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_ids: tuple[int, ...] = ()
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    renormalize_logits: bool = False
    use_cache: bool = True
    output_attentions: bool = False
    output_hidden_states: bool = False
    output_scores: bool = False
    output_logits: bool = False
    return_dict_in_generate: bool = False
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0
    decoder_start_token_id: int | None = None

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            whole_number(name, plain_int(getattr(self, name)), least)
        for names, fits, wanted in _TAKEN:
            for name in names:
                value = getattr(self, name)
                if not fits(value):
                    raise InputError(f"{{{name}:is}} it must be {wanted}.", **{name: value})
        for words in self.bad_words_ids:
            if not isinstance(words, list | tuple) or not words or not all(_is_whole(one) for one in words):
                raise InputError(
                    f"bad_words_ids holds {words!r}; it must hold lists of ids.",
                    "tokenizer(words, add_special_tokens=False)['input_ids'] makes them.",
                )
        if self.num_return_sequences > self.num_beams and (self.num_beams > 1 or not self.do_sample):
            ways = "fewer texts ({num_return_sequences=}), or draw them: {do_sample=True}."
            raise InputError(
                f"{self.num_return_sequences} texts of each prompt were asked for, and the beams are {self.num_beams}.",
                "Use as many beams ({num_beams=}), "
                + ("or fewer texts ({num_return_sequences=})." if self.do_sample else ways),
            )

    @property
    def num_copies(self) -> int:
        """How many texts go on from every prompt side by side."""
        return self.num_beams if self.num_beams > 1 else self.num_return_sequences


_NAMES = {
    *(field.name for field in fields(GenerationOptions)),
    "eos_token_id",
    "bos_token_id",
    "forced_eos_token_id",
    *REFUSED,
} - {"eos_token_ids", "forced_eos_token_ids"}


def read_options(config: Any, given: Any, settings: Values) -> GenerationOptions:
    """From a generation config (ours, transformers' or a dict) and keywords, which go before it.

    The keywords that are read are taken out of `settings`; what is left is for the model.
    """
    base = given if isinstance(given, Mapping) else vars(given)
    values = {name: value for name, value in base.items() if name in _NAMES and value is not None}
    for name in _NAMES & set(settings):
        value = settings.pop(name)
        if value is not None:
            values[name] = value
    for name in set(values) & set(REFUSED):
        if values.pop(name) != _HARMLESS.get(name):
            raise InputError(f"{name} was given: {REFUSED[name]} is not done here.", "Leave it out.")
    values.pop("bos_token_id", None)
    eos = values.pop("eos_token_id", config.eos_token_id)
    pad = values.pop("pad_token_id", config.pad_token_id)
    forced = values.pop("forced_eos_token_id", None)
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if name in values:
            values[name] = as_ids(name, values[name], config.vocab_size)
    if isinstance(values.get("sequence_bias"), list):
        values["sequence_bias"] = {tuple(words): bias for words, bias in values["sequence_bias"]}
    return GenerationOptions(
        **values,
        eos_token_ids=as_ids("eos_token_id", eos, config.vocab_size),
        forced_eos_token_ids=as_ids("forced_eos_token_id", forced, config.vocab_size),
        pad_token_id=0 if pad is None else pad,
    )


def as_ids(name: str, value: Any, vocab_size: int) -> tuple[int, ...]:
    """No id, one or several."""
    if value is None:
        return ()
    if isinstance(value, Tensor):
        value = value.tolist()
    ids = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(_is_whole(one) and 0 <= one < vocab_size for one in ids):
        raise InputError(
            f"{name} is {value!r}; it must be an id from 0 to {vocab_size - 1} (vocab_size is {vocab_size}), or "
            "a list of them.",
            "Ids come from the tokenizer of the same checkpoint; an empty list lets no token end a text."
            if name == "eos_token_id"
            else "Ids come from the tokenizer of the same checkpoint.",
        )
    return ids
