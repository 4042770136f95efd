"""Writing text with a decoder, one token at a time: greedy, sampling, beam search.

`generate()` is the same for a `BertLMHeadModel` and a `BertEncoderDecoder`; they differ only in how the next token's
logits are had, which is a `Stepper`. With a cache a step costs one token; without, the whole text again, and the result
is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor

from bertie.errors import InputError
from bertie.model import checks

_HIDDEN = float("-inf")
# What goes along to the model and has a row for every prompt, so that copies of a prompt need copies of it.
_ROW_FOR_EVERY_PROMPT = ("encoder_hidden_states", "encoder_attention_mask")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to choose tokens and when to stop; checked when made."""

    max_length: int = 20
    min_length: int = 0
    do_sample: bool = False
    num_beams: int = 1
    num_return_sequences: int = 1
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool = False
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num_beams", 1), ("num_return_sequences", 1), ("top_k", 0)):
            checks.whole_number(name, getattr(self, name), least)
        if not checks.is_whole(self.pad_token_id):
            raise InputError(f"pad_token_id is {self.pad_token_id!r}; it takes an id, a whole number.")
        if not _is_number(self.length_penalty):
            raise InputError(f"length_penalty is {self.length_penalty!r}; it takes a finite number.")
        for name in ("temperature", "repetition_penalty"):
            number = getattr(self, name)
            if not _is_number(number) or not number > 0:
                raise InputError(f"{name} is {number!r}; it takes a finite number above 0.")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p!r}; it takes a probability above 0, up to 1.")
        if self.num_return_sequences > 1 and not self.do_sample and self.num_return_sequences > self.num_beams:
            raise InputError(
                f"{self.num_return_sequences} texts of each prompt were asked for, and the beams are {self.num_beams}.",
                "Use as many beams (num_beams=), fewer texts (num_return_sequences=), or draw them: do_sample=True.",
            )
        if self.num_beams > 1 and self.do_sample:
            raise InputError(
                "num_beams and do_sample were both asked for.",
                "Beam search looks for the likeliest text; sampling draws one. Choose one of them.",
            )

    @property
    def num_copies(self) -> int:
        """How many texts go on from every prompt side by side."""
        return self.num_beams if self.num_beams > 1 else self.num_return_sequences


class Stepper(Protocol):
    """Gives the logits of the next token; remembers what it has seen."""

    prompts: Tensor  # [rows, length]
    mask: Tensor  # [rows, length] 1 for the prompts' real tokens

    def __call__(self, tokens: Tensor) -> Tensor:
        """`[rows, length]` (all tokens so far) → `[rows, vocabulary]`."""

    def reorder(self, rows: Tensor) -> None:
        """From now on, row i continues what row rows[i] was."""


class Generation:
    """Gives a model `generate()`; the model provides `_stepper()`."""

    config: Any

    def _stepper(
        self, input_ids: Tensor, attention_mask: Tensor | None, num_copies: int, use_cache: bool, extra: dict[str, Any]
    ) -> Stepper:
        """A stepper over `num_copies` of every prompt."""
        return CausalStepper(self, input_ids, attention_mask, num_copies, use_cache, extra)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        min_length: int = 0,
        min_new_tokens: int | None = None,
        do_sample: bool = False,
        num_beams: int = 1,
        num_return_sequences: int = 1,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        use_cache: bool = True,
        generator: torch.Generator | None = None,
        **extra: Any,
    ) -> Tensor:
        """Continue every prompt; returns `[rows, length]` ids, prompt included, filled up with the padding id.

        Prompts of different lengths are padded on the *left*, with an `attention_mask`. `temperature`, `top_k` (0: all)
        and `top_p` shape sampling; `length_penalty` above 0 favours longer beams; `early_stopping` ends a beam search
        as soon as there are `num_beams` finished texts. The length counts the prompt (20 if nothing is said).
        """
        checks.is_tensor("input_ids", input_ids)
        if attention_mask is not None:
            checks.is_tensor("attention_mask", attention_mask)
        extra.pop("return_dict", None)  # how the model's own outputs come; these are ids either way
        pad = self.config.pad_token_id if pad_token_id is None else pad_token_id
        eos = self.config.eos_token_id if eos_token_id is None else eos_token_id
        options = GenerationOptions(
            do_sample=do_sample,
            num_beams=num_beams,
            num_return_sequences=num_return_sequences,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_ids=_as_ids(eos, self.config.vocab_size),
            pad_token_id=0 if pad is None else pad,
        )
        in_training = [module for module in self.modules() if module.training]  # type: ignore[attr-defined]
        self.eval()  # type: ignore[attr-defined]
        try:
            stepper = self._stepper(input_ids, attention_mask, options.num_copies, use_cache, extra)
            start = stepper.prompts.shape[1]
            options = replace(
                options,
                max_length=_total(start, max_length, max_new_tokens, self._position_limit()),
                min_length=_least(start, min_length, min_new_tokens),
            )
            if options.num_beams > 1:
                return _beam_search(stepper, options)
            return _one_by_one(stepper, options, generator)
        finally:
            for module in in_training:
                module.training = True

    def _position_limit(self) -> int:
        limit: int = self.config.max_position_embeddings
        return limit


class CausalStepper:
    """Steps a decoder-only model over left-padded prompts."""

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        num_copies: int,
        use_cache: bool,
        extra: dict[str, Any],
    ) -> None:
        if not model.config.is_decoder:
            raise InputError("generate() needs a decoder.", "Load the model with is_decoder=True.")
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise InputError(
                f"input_ids has shape {list(input_ids.shape)}; it takes [batch, length] with a prompt in it."
            )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        if mask.shape != input_ids.shape:
            raise InputError(f"attention_mask has shape {list(mask.shape)}; it takes {list(input_ids.shape)}.")
        if bool((mask[:, -1] == 0).any()):
            raise InputError(
                "A prompt ends in padding: attention_mask is 0 at its last token.",
                "Pad prompts on the left to generate.",
            )
        self.padded = bool((mask == 0).any())
        segments = _one_per_token("token_type_ids", extra.pop("token_type_ids", None), input_ids)
        positions = _one_per_token("position_ids", extra.pop("position_ids", None), input_ids)
        if self.padded and positions is None:
            # Padding takes no position: a prompt means the same however far it was padded.
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        self.model, self.extra = model, extra
        for name in _ROW_FOR_EVERY_PROMPT:
            if name in extra:
                extra[name] = _repeated(extra[name], num_copies)
        self.prompts, self.mask = _repeated(input_ids, num_copies), _repeated(mask, num_copies)
        self.segments, self.positions = _repeated(segments, num_copies), _repeated(positions, num_copies)
        self.use_cache, self.cache, self.done = use_cache, None, 0

    def __call__(self, tokens: Tensor) -> Tensor:
        new = tokens.shape[1] - self.mask.shape[1]
        self.mask = _continued(self.mask, new, by=0)
        inputs: dict[str, Any] = {"attention_mask": self.mask} if self.padded else {}
        if self.segments is not None:
            self.segments = _continued(self.segments, new, by=0)
            inputs["token_type_ids"] = self.segments[:, self.done :]
        if self.positions is not None:
            self.positions = _continued(self.positions, new, by=1)
            inputs["position_ids"] = self.positions[:, self.done :]
        output = self.model(
            tokens[:, self.done :],
            past_key_values=self.cache,
            use_cache=self.use_cache,
            return_dict=True,
            **inputs,
            **self.extra,
        )
        if self.use_cache:
            self.cache, self.done = output.past_key_values, tokens.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits.float()

    def reorder(self, rows: Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder(rows)


# -- choosing tokens -------------------------------------------------------------------------------------------------


def _one_by_one(step: Stepper, options: GenerationOptions, generator: torch.Generator | None) -> Tensor:
    """Greedy or sampled: the next token of every row, until all have ended."""
    tokens, seen = step.prompts, step.mask.bool()
    eos = torch.tensor(options.eos_token_ids, dtype=torch.long, device=tokens.device)
    running = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    while tokens.shape[1] < options.max_length and bool(running.any()):
        scores = _adjusted(step(tokens), tokens, seen, options)
        if options.do_sample:
            scores = _shaped(scores, options)
            chosen = torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=generator)[:, 0]
        else:
            chosen = scores.argmax(dim=-1)
        chosen = torch.where(running, chosen, options.pad_token_id)
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
        running = running & ~torch.isin(chosen, eos)
    return tokens


@dataclass
class _Beams:
    """One text's search: what is still running, and the best finished texts, each as (score, tokens)."""

    running: list[tuple[float, list[int]]]
    finished: list[tuple[float, list[int]]]
    can_improve: bool = True


def _beam_search(step: Stepper, options: GenerationOptions) -> Tensor:
    """Keep the `num_beams` likeliest beginnings of every text, until none can beat the finished ones.

    A finished text's score is its log-probability over length^length_penalty, the length being what was generated.
    """
    prompts, seen = step.prompts, step.mask.bool()
    width, start = options.num_beams, prompts.shape[1]
    # All beams of a text start alike; only the first may be continued, or they would stay alike.
    texts = [
        _Beams([(0.0 if beam == 0 else -1e9, prompts[row + beam].tolist()) for beam in range(width)], [])
        for row in range(0, len(prompts), width)
    ]
    # Enough candidates that `width` go on even if as many end.
    num_candidates = max(2, 1 + len(options.eos_token_ids)) * width
    length, tokens = start, prompts
    while True:
        scores = _adjusted(torch.log_softmax(step(tokens), dim=-1), tokens, seen, options)
        running_scores = torch.tensor([[score for score, _ in text.running] for text in texts], device=scores.device)
        totals = scores.view(len(texts), width, -1) + running_scores[:, :, None]
        vocabulary = totals.shape[-1]
        best, flat = totals.flatten(1).topk(min(num_candidates, width * vocabulary), dim=-1)
        length += 1
        rows, any_open = [], False
        for number, (text, values, places) in enumerate(zip(texts, best.tolist(), flat.tolist(), strict=True)):
            origins = [place // vocabulary for place in places]
            continued = [
                (value, [*text.running[origin][1], place % vocabulary])
                for value, place, origin in zip(values, places, origins, strict=True)
            ]
            ends = [length >= options.max_length or words[-1] in options.eos_token_ids for _, words in continued]
            full = options.early_stopping and len(text.finished) == width
            if text.can_improve and not full:
                ended = [
                    (value / (length - start) ** options.length_penalty, words)
                    for (value, words), end in zip(continued[:width], ends, strict=False)
                    if end
                ]
                text.finished = sorted(text.finished + ended, key=lambda scored: -scored[0])[:width]
            order = sorted(range(len(continued)), key=lambda i: ends[i])[:width]  # those that go on, best first
            text.running = [continued[i] for i in order]
            rows += [number * width + origins[i] for i in order]
            if len(text.finished) == width:
                best_possible = text.running[0][0] / (length - start) ** options.length_penalty
                text.can_improve = text.can_improve and best_possible > text.finished[-1][0]
            any_open = any_open or not all(ends)
        improvable = any(text.can_improve for text in texts)
        all_full = options.early_stopping and all(len(text.finished) == width for text in texts)
        if not any_open or not improvable or all_full:
            break
        step.reorder(torch.tensor(rows, device=prompts.device))
        tokens = torch.tensor([words for text in texts for _, words in text.running], device=prompts.device)
    chosen = [words for text in texts for _, words in text.finished[: options.num_return_sequences]]
    longest = max(map(len, chosen))
    filled = [words + [options.pad_token_id] * (longest - len(words)) for words in chosen]
    return torch.tensor(filled, device=prompts.device)


def _adjusted(scores: Tensor, tokens: Tensor, seen: Tensor, options: GenerationOptions) -> Tensor:
    """Apply the minimum length and the repetition penalty; prompt tokens not `seen` are padding, not used words."""
    if options.repetition_penalty != 1:
        used = torch.zeros_like(scores, dtype=torch.bool)
        real = torch.ones_like(tokens, dtype=torch.bool)
        real[:, : seen.shape[1]] = seen
        used.scatter_reduce_(1, tokens, real, reduce="amax", include_self=True)
        penalised = torch.where(scores < 0, scores * options.repetition_penalty, scores / options.repetition_penalty)
        scores = torch.where(used, penalised, scores)
    if options.eos_token_ids and tokens.shape[1] < options.min_length:
        scores = scores.index_fill(1, torch.tensor(options.eos_token_ids, device=scores.device), _HIDDEN)
    return scores


def _shaped(scores: Tensor, options: GenerationOptions) -> Tensor:
    """Temperature, then the k likeliest, then the likeliest that make up top_p."""
    scores = scores / options.temperature
    if 0 < options.top_k < scores.shape[-1]:
        least = scores.topk(options.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, _HIDDEN)
    if options.top_p < 1:
        ascending, order = scores.sort(dim=-1)
        unlikely = torch.softmax(ascending, dim=-1).cumsum(dim=-1) <= 1 - options.top_p
        unlikely[:, -1] = False  # the likeliest always stays
        scores = scores.masked_fill(unlikely.scatter(1, order, unlikely), _HIDDEN)
    return scores


# -- reading what was asked for --------------------------------------------------------------------------------------


def _total(start: int, max_length: int | None, max_new_tokens: int | None, limit: int) -> int:
    """How long the text may become, the prompt included."""
    if start >= limit:
        raise InputError(
            f"The prompt is {start} tokens long; the model has {limit} positions (config.max_position_embeddings), "
            "and a new token needs one more.",
            "Shorten the prompt, or give the model more positions: model.resize_position_embeddings(…).",
        )
    if max_new_tokens is not None:
        checks.whole_number("max_new_tokens", max_new_tokens, 1)
        total = start + max_new_tokens
    elif max_length is not None:
        checks.whole_number("max_length", max_length, 1)
        total = max_length
    else:
        total = 20 if start < 20 else start + 20
    if total <= start:
        raise InputError(
            f"max_length is {total}, but the prompt has {start} tokens already.", "Raise it, or use max_new_tokens."
        )
    if total > limit:
        raise InputError(
            f"Asked for {total} tokens in all; the model has {limit} positions (config.max_position_embeddings).",
            f"Ask for at most {limit - start} new tokens here.",
        )
    return total


def _least(start: int, min_length: int, min_new_tokens: int | None) -> int:
    """How long the text must become, the prompt included."""
    min_new_tokens = 0 if min_new_tokens is None else min_new_tokens
    checks.whole_number("min_length", min_length, 0)
    checks.whole_number("min_new_tokens", min_new_tokens, 0)
    return max(min_length, start + min_new_tokens)


def _as_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a text: none, one or several."""
    if value is None:
        return ()
    if isinstance(value, Tensor):
        value = value.tolist()
    ids = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(checks.is_whole(one) and 0 <= one < vocab_size for one in ids):
        raise InputError(
            f"eos_token_id is {value!r}; it takes an id from 0 to {vocab_size - 1} (vocab_size is {vocab_size}), or "
            "a list of them.",
            "Ids come from the tokenizer of the same checkpoint; an empty list lets no token end a text.",
        )
    return ids


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _one_per_token(name: str, value: Tensor | None, prompts: Tensor) -> Tensor | None:
    """The prompts' segments or positions, `[rows, length]`; one row may stand for all."""
    if value is None:
        return None
    checks.is_tensor(name, value)
    checks.shape_like(name, value, tuple(prompts.shape), batch_may_be_one=True)
    return value.expand_as(prompts)


def _continued(values: Tensor, new: int, *, by: int) -> Tensor:
    """`[rows, length]` → `[rows, length + new]`: each row goes on from its last value in steps of `by`."""
    steps = torch.arange(1, new + 1, device=values.device, dtype=values.dtype) * by
    return torch.cat([values, values[:, -1:] + steps], dim=1)


def _repeated(value: Any, times: int) -> Any:
    return None if value is None else value.repeat_interleave(times, dim=0)
