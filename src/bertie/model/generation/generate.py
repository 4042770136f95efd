"""Writing text with a decoder, one token at a time: greedy, sampling, beam search.

`generate()` is the same for a `BertLMHeadModel` and a `BertEncoderDecoder`; they differ only in how the next token's
logits are had, which is a `Stepper`. With a cache a step costs one token; without, the whole text again, and the result
is the same. Options are in options.py, what they do to scores in rules.py, beams in beam_search.py.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from bertie.arguments import whole_number
from bertie.config import BertConfig, Values
from bertie.config.checks import plain_int
from bertie.errors import InputError
from bertie.model.cache import KeyValueCache
from bertie.model.generation.beam_search import Ends, beam_search
from bertie.model.generation.options import GenerationConfig, GenerationOptions, read_options
from bertie.model.generation.rules import Rule, apply_rules, rules_for
from bertie.model.inputs import is_tensor, shape_like
from bertie.model.outputs import Attentions, BertModelOutput, CausalLMOutput, ModelOutput

States = tuple[Tensor, ...] | None
Criterion = Callable[[Tensor, tuple[Tensor, ...] | None], object]  # tokens and scores so far → which rows have ended
MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)
_DEFAULT_NEW_TOKENS = 20
# What is passed on to the model and has a row for every prompt, so that copies of a prompt need copies of it.
_ROW_FOR_EVERY_PROMPT = ("encoder_hidden_states", "encoder_attention_mask")
# Keywords of transformers' generate() that change nothing here.
_IGNORED = ("synced_gpus", "return_dict", "custom_generate", "trust_remote_code", "use_model_defaults")


class Streamer(Protocol):
    """Is given the prompts, then every token as soon as it is chosen."""

    def put(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


@dataclass
class Generated(ModelOutput):
    """What `generate(return_dict_in_generate=True)` gives. Tuples have one entry to a step.

    `scores` are what tokens were chosen by, `logits` what the model gave; of a beam search there are also the
    `sequences_scores` and, for every token, the row that it continued (`beam_indices`, −1 behind a text's end).
    """

    sequences: Tensor  # [texts, length]
    sequences_scores: Tensor | None = None  # [texts]
    scores: tuple[Tensor, ...] | None = None  # each [rows, vocabulary]
    logits: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None  # [texts, new tokens]
    encoder_attentions: Attentions | None = None
    encoder_hidden_states: States = None
    attentions: tuple[Attentions | None, ...] | None = None  # a decoder's own; each has one entry to a layer
    hidden_states: tuple[States, ...] | None = None
    decoder_attentions: tuple[Attentions | None, ...] | None = None  # the same of a decoder that has an encoder
    cross_attentions: tuple[Attentions | None, ...] | None = None
    decoder_hidden_states: tuple[States, ...] | None = None
    past_key_values: KeyValueCache | None = None


class Stepper(Protocol):
    """Gives the logits of the next token; remembers what it has seen."""

    prompts: Tensor  # [rows, length]
    mask: Tensor  # [rows, length] 1 for the prompts' real tokens
    source: Tensor | None  # [rows, length] what an encoder read
    encoded: BertModelOutput | None  # its output
    output: CausalLMOutput | None  # the model's, of the last step

    def __call__(self, tokens: Tensor) -> Tensor:
        """`[rows, length]` (all tokens so far) → `[rows, vocabulary]`."""

    def reorder(self, rows: Tensor) -> None:
        """From now on, row i continues what row rows[i] was."""


@dataclass
class Steps:
    """A model's steps, with its rules applied and kept as far as they were asked for."""

    step: Stepper
    rules: Sequence[Rule]
    options: GenerationOptions
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    attentions: list[Attentions | None] = field(default_factory=list)
    cross_attentions: list[Attentions | None] = field(default_factory=list)
    hidden_states: list[States] = field(default_factory=list)

    def __call__(self, tokens: Tensor) -> Tensor:
        """The scores that the next tokens are chosen by; of beams they are log-probabilities."""
        logits, options = self.step(tokens), self.options
        scores = torch.log_softmax(logits, dim=-1) if options.num_beams > 1 else logits
        scores = apply_rules(self.rules, tokens, scores)
        output = self.step.output
        if options.return_dict_in_generate and output is not None:
            self.logits += [logits] if options.output_logits else []
            self.scores += [scores] if options.output_scores else []
            if options.output_attentions:
                self.attentions.append(output.attentions)
                self.cross_attentions.append(output.cross_attentions)
            if options.output_hidden_states:
                self.hidden_states.append(output.hidden_states)
        return scores

    def generated(self, sequences: Tensor, **more: Tensor) -> Generated:
        options, encoded = self.options, self.step.encoded
        attentions = tuple(self.attentions) if options.output_attentions else None
        hidden_states = tuple(self.hidden_states) if options.output_hidden_states else None
        found = Generated(
            sequences,
            scores=tuple(self.scores) if options.output_scores else None,
            logits=tuple(self.logits) if options.output_logits else None,
            sequences_scores=more.get("sequences_scores"),
            beam_indices=more.get("beam_indices"),
            past_key_values=getattr(self.step.output, "past_key_values", None),
        )
        if encoded is None:
            return replace(found, attentions=attentions, hidden_states=hidden_states)
        return replace(
            found,
            encoder_attentions=encoded.attentions,
            encoder_hidden_states=encoded.hidden_states,
            decoder_attentions=attentions,
            cross_attentions=tuple(self.cross_attentions) if options.output_attentions else None,
            decoder_hidden_states=hidden_states,
        )


class Generation(nn.Module):
    """Gives a model `generate()`; the model provides `_stepper()`."""

    config: BertConfig
    get_input_embeddings: Callable[[], nn.Module]

    @property
    def generation_config(self) -> GenerationConfig:
        """The defaults of `generate()`; its attributes may be set."""
        if "_generation_config" not in self.__dict__:
            names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
            values = {name: getattr(self.config, name, None) for name in names}
            self.__dict__["_generation_config"] = GenerationConfig(**{n: v for n, v in values.items() if v is not None})
        found: GenerationConfig = self.__dict__["_generation_config"]
        return found

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        self.__dict__["_generation_config"] = config

    def _stepper(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, options: GenerationOptions, extra: Values
    ) -> Stepper:
        """A stepper over as many copies of every prompt as `options` ask for."""
        return CausalStepper(self, input_ids, attention_mask, options, extra)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | Mapping[str, object] | Tensor | None = None,
        logits_processor: Sequence[Rule] | None = None,
        stopping_criteria: Sequence[Criterion] | None = None,
        prefix_allowed_tokens_fn: Callable[[int, Tensor], Sequence[int]] | None = None,
        streamer: Streamer | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> Tensor | Generated:
        """Continue every prompt; returns `[rows, length]` ids, prompt included, filled up with the padding id.

        `settings` are the fields of `GenerationOptions`, with transformers' names and defaults: `max_new_tokens` (20),
        `max_length` (with the prompt), `do_sample` with `temperature`, `top_k` and `top_p`, `num_beams` with
        `length_penalty` and `early_stopping`, `repetition_penalty`, `no_repeat_ngram_size`, `bad_words_ids`, …; or they
        come in a `generation_config`. Prompts of different lengths are padded on the *left*, with an `attention_mask`;
        a decoder's may be `inputs_embeds`, and then only new tokens are returned. `return_dict_in_generate=True` gives
        a `Generated`, with `output_scores`, `output_logits`, `output_attentions` and `output_hidden_states`.
        """
        if isinstance(generation_config, Tensor):  # generate(ids, mask)
            attention_mask, generation_config = generation_config, None
        prompts = inputs if input_ids is None else input_ids
        if prompts is not None or not settings.keys() & {"inputs_embeds", "encoder_outputs"}:
            is_tensor("input_ids", prompts)
        if attention_mask is not None:
            is_tensor("attention_mask", attention_mask)
        extra = {name: value for name, value in settings.items() if name not in _IGNORED}
        base = self.generation_config if generation_config is None else generation_config
        options = read_options(self.config, base, extra)
        _check_names(self, extra)
        if streamer is not None and options.num_beams > 1:
            raise InputError("A streamer was given with beams, which settle no token before the end.", "Use one beam.")
        in_training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            stepper = self._stepper(prompts, attention_mask, options, extra)
            start, embedded = stepper.prompts.shape[1], stepper.mask.shape[1] - stepper.prompts.shape[1]
            options = replace(
                options,
                max_length=_total(start, embedded, options, self._position_limit()),
                min_length=_least(start, embedded, options),
            )
            rules = rules_for(
                options,
                start=start,
                seen=stepper.mask.bool()[:, :start],
                source=stepper.source,
                allowed=prefix_allowed_tokens_fn,
                own=list(logits_processor or ()),
            )
            steps = Steps(stepper, rules, options)
            ends = _ends(options, stopping_criteria, steps)
            if options.num_beams == 1:
                found = steps.generated(_one_by_one(steps, ends, options, generator, streamer))
            else:
                found = steps.generated(**beam_search(stepper, steps, ends, options, generator))
            return found if options.return_dict_in_generate else found.sequences
        finally:
            for module in in_training:
                module.training = True

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: KeyValueCache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **other: Any,
    ) -> Values:
        """The model's arguments for the next step: all tokens so far, or with a cache those it has not read yet.

        Prompts that are given as `inputs_embeds` come before the tokens.
        """
        prompt = 0 if inputs_embeds is None else inputs_embeds.shape[1]
        done = 0 if past_key_values is None else past_key_values.get_seq_length()
        other.pop("cache_position", None)
        for name in ("token_type_ids", "position_ids"):
            if other.get(name) is not None:
                other[name] = other[name][:, done:]
        found: Values = {"input_ids": input_ids[:, max(0, done - prompt) :]}
        if inputs_embeds is not None and done < prompt:
            embed = self.get_input_embeddings()
            found = {"inputs_embeds": torch.cat([inputs_embeds, embed(input_ids)], dim=1)}
        return {
            **found,
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            **{name: value for name, value in other.items() if value is not None},
        }

    def _position_limit(self) -> int:
        limit: int = self.config.max_input_length
        return limit


class CausalStepper:
    """Steps a decoder-only model over left-padded prompts, or an encoder's decoder over what it has written."""

    def __init__(
        self,
        model: Generation,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        options: GenerationOptions,
        extra: Values,
        *,
        source: Tensor | None = None,
        encoded: BertModelOutput | None = None,
    ) -> None:
        if not model.config.is_decoder:
            raise InputError("generate() needs a decoder.", "Load the model with is_decoder=True.")
        embeds: Tensor | None = extra.pop("inputs_embeds", None)
        if embeds is None and (input_ids is None or input_ids.dim() != 2 or 0 in input_ids.shape):
            shape = "None" if input_ids is None else list(input_ids.shape)
            raise InputError(f"input_ids has shape {shape}; it must be [batch, length] with a prompt in it.")
        if embeds is not None and input_ids is None:
            input_ids = torch.zeros(len(embeds), 0, dtype=torch.long, device=embeds.device)
        elif embeds is not None and input_ids is not None:
            embeds = torch.cat([embeds, model.get_input_embeddings()(input_ids[:, embeds.shape[1] :])], dim=1)
        assert input_ids is not None  # one of the two was given
        shown = input_ids if embeds is None else embeds[..., 0]
        mask = torch.ones_like(shown).long() if attention_mask is None else attention_mask.long()
        if mask.shape != shown.shape:
            raise InputError(f"attention_mask has shape {list(mask.shape)}; it must be {list(shown.shape)}.")
        if bool((mask[:, -1] == 0).any()):
            raise InputError(
                "A prompt ends in padding: attention_mask is 0 at its last token.",
                "Pad prompts on the left to generate.",
            )
        self.padded = bool((mask == 0).any())
        segments = _one_per_token("token_type_ids", extra.pop("token_type_ids", None), shown)
        positions = _one_per_token("position_ids", extra.pop("position_ids", None), shown)
        if self.padded and positions is None:
            # Padding takes no position: a prompt means the same however far it was padded.
            first = model.config.max_position_embeddings - model.config.max_input_length
            positions = (mask.cumsum(-1) - 1).clamp(min=0) + first
        copies = options.num_copies
        for name in _ROW_FOR_EVERY_PROMPT:
            if name in extra:
                extra[name] = _repeated(extra[name], copies)
        if options.return_dict_in_generate:
            extra["output_attentions"] = options.output_attentions
            extra["output_hidden_states"] = options.output_hidden_states
        self.model, self.extra, self.encoded = model, extra, encoded
        self.prompts, self.mask = _repeated(input_ids, copies), _repeated(mask, copies)
        self.embeds, self.source = _repeated(embeds, copies), _repeated(source, copies)
        self.segments, self.positions = _repeated(segments, copies), _repeated(positions, copies)
        self.use_cache, self.cache = options.use_cache, _given_cache(extra, copies)
        self.output: CausalLMOutput | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        new = tokens.shape[1] + (0 if self.embeds is None else self.embeds.shape[1]) - self.mask.shape[1]
        if self.embeds is not None and self.prompts.shape[1]:
            new -= self.prompts.shape[1]
        self.mask = _continued(self.mask, new, by=0)
        along = {"attention_mask": self.mask if self.padded else None}
        if self.segments is not None:
            along["token_type_ids"] = self.segments = _continued(self.segments, new, by=0)
        if self.positions is not None:
            along["position_ids"] = self.positions = _continued(self.positions, new, by=1)
        written = tokens if self.embeds is None else tokens[:, self.prompts.shape[1] :]
        inputs = self.model.prepare_inputs_for_generation(
            written, past_key_values=self.cache, inputs_embeds=self.embeds, **along, **self.extra
        )
        output: CausalLMOutput = self.model(**{**inputs, "use_cache": self.use_cache, "return_dict": True})
        self.output = output
        if self.use_cache:
            self.cache = output.past_key_values
        return output.logits[:, -1].float()

    def reorder(self, rows: Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder_cache(rows)


def _given_cache(extra: Values, copies: int) -> KeyValueCache | None:
    """A cache that the caller made: empty, or of the beginning of the prompts."""
    cache: KeyValueCache | None = extra.pop("past_key_values", None)
    if cache is not None and copies > 1 and cache.get_seq_length():
        raise InputError(
            f"past_key_values holds {cache.get_seq_length()} positions, and every prompt is continued {copies} times.",
            "Give an empty cache, or continue every prompt once.",
        )
    return cache


def _one_by_one(
    steps: Steps, ends: Ends, options: GenerationOptions, generator: torch.Generator | None, streamer: Streamer | None
) -> Tensor:
    """Greedy or sampled: the next token of every row, until all have ended."""
    tokens = steps.step.prompts
    running = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    if streamer is not None:
        streamer.put(tokens.cpu())
    while bool(running.any()):
        scores = steps(tokens)
        if options.do_sample:
            chosen = torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=generator)[:, 0]
        else:
            chosen = scores.argmax(dim=-1)
        if options.eos_token_ids:
            chosen = torch.where(running, chosen, options.pad_token_id)
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
        if streamer is not None:
            streamer.put(chosen.cpu())
        running = running & ~ends(tokens)
    if streamer is not None:
        streamer.end()
    return tokens


def _ends(options: GenerationOptions, criteria: Sequence[Criterion] | None, steps: Steps) -> Ends:
    """Which rows have ended: at the longest length, with a token that ends texts, in time, or by what was given."""
    own = list(criteria or ())
    started = time.monotonic()

    def ends(tokens: Tensor) -> Tensor:
        eos = torch.tensor(options.eos_token_ids, dtype=torch.long, device=tokens.device)
        ended = torch.isin(tokens[:, -1], eos)
        late = options.max_time is not None and time.monotonic() - started > options.max_time
        if tokens.shape[1] >= (options.max_length or 0) or late:
            ended = torch.ones_like(ended)
        scores = tuple(steps.scores) if options.return_dict_in_generate and options.output_scores else None
        for criterion in own:
            ended = ended | torch.as_tensor(criterion(tokens, scores), device=tokens.device)
        return ended

    return ends


# -- reading what was asked for --------------------------------------------------------------------------------------


def _total(start: int, embedded: int, options: GenerationOptions, limit: int) -> int:
    """How long the text may become, with a prompt of tokens; `embedded` more positions come before it."""
    read = start + embedded
    if read >= limit:
        raise InputError(
            f"The prompt is {read} tokens long; the model has {limit} positions (config.max_position_embeddings), "
            "and a new token needs one more.",
            "Shorten the prompt, or give the model more positions: model.resize_position_embeddings(…).",
        )
    if options.max_new_tokens is not None:
        whole_number("max_new_tokens", plain_int(options.max_new_tokens), 1)
        total = read + options.max_new_tokens
    elif options.max_length is not None:
        whole_number("max_length", plain_int(options.max_length), 1)
        total = options.max_length
    else:
        total = min(read + _DEFAULT_NEW_TOKENS, limit)
    if total <= read:
        raise InputError(
            f"{{max_length:is}} the prompt has {read} tokens already.",
            "Raise it, or use {max_new_tokens}.",
            max_length=total,
            max_new_tokens=...,
        )
    if total > limit:
        raise InputError(
            f"Asked for {total} tokens in all; the model has {limit} positions (config.max_position_embeddings).",
            f"Ask for at most {limit - read} new tokens here.",
        )
    return total - embedded


def _least(start: int, embedded: int, options: GenerationOptions) -> int:
    """How long the text must become, with a prompt of tokens."""
    more = 0 if options.min_new_tokens is None else options.min_new_tokens
    whole_number("min_length", plain_int(options.min_length), 0)
    whole_number("min_new_tokens", plain_int(more), 0)
    return max(options.min_length - embedded, start + more if more else 0)


def _check_names(model: nn.Module, extra: Values) -> None:
    """Refuse an option that neither generate() nor the model has: it would be ignored."""
    known = {"decoder_input_ids", "decoder_attention_mask", "encoder_outputs"}
    inside: list[nn.Module] = [getattr(model, name, model) for name in ("encoder", "decoder")]
    for one in (model, *inside):
        parameters = inspect.signature(one.forward).parameters
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return
        known |= set(parameters)
    unknown = sorted(name for name, value in extra.items() if name not in known and value is not None)
    if unknown:
        raise InputError(f"generate() has no option {', '.join(unknown)}.", "Is it spelled as in GenerationOptions?")


def _one_per_token(name: str, value: Tensor | None, prompts: Tensor) -> Tensor | None:
    """The prompts' segments or positions, `[rows, length]`; one row may stand for all."""
    if value is None:
        return None
    is_tensor(name, value)
    shape_like(name, value, tuple(prompts.shape), batch_may_be_one=True)
    return value.expand_as(prompts)


def _continued(values: Tensor, new: int, *, by: int) -> Tensor:
    """`[rows, length]` → `[rows, length + new]`: each row goes on from its last value in steps of `by`."""
    steps = torch.arange(1, new + 1, device=values.device, dtype=values.dtype) * by
    return torch.cat([values, values[:, -1:] + steps], dim=1)


def _repeated(value: MaybeTensor, times: int) -> MaybeTensor:
    return None if value is None else value.repeat_interleave(times, dim=0)
