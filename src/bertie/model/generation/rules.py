"""What is done to the next token's scores before one is chosen.

A rule takes the tokens so far `[rows, length]` and scores `[rows, vocabulary]`, and returns scores. `rules_for` puts
them together in transformers' order: what forbids and forces tokens, the caller's own `logits_processor`, and, when
sampling, what shapes the distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bertie.model.generation.options import GenerationOptions

Rule = Callable[[Tensor, Tensor], Tensor]
Sequences = Mapping[tuple[int, ...], float]

HIDDEN = float("-inf")


def rules_for(
    options: GenerationOptions,
    *,
    start: int,
    seen: Tensor,
    source: Tensor | None = None,
    allowed: Callable[[int, Tensor], Sequence[int]] | None = None,
    own: Sequence[Rule] = (),
) -> list[Rule]:
    """The rules that `options` ask for.

    `start` is the prompt's length and `seen` its mask: padding is not a used word. `source` is what an encoder read,
    with a row to every row of tokens.
    """
    return [
        *_penalties(options, seen, source),
        *_forbidden(options, start, allowed),
        *_forced(options, start),
        *own,
        *(_shaping(options) if options.do_sample else ()),
        *([_normalised] if options.renormalize_logits else []),
    ]


def apply_rules(rules: Sequence[Rule], tokens: Tensor, scores: Tensor) -> Tensor:
    for rule in rules:
        scores = rule(tokens, scores)
    return scores


# -- used words ------------------------------------------------------------------------------------------------------


def _penalties(options: GenerationOptions, seen: Tensor, source: Tensor | None) -> Iterator[Rule]:
    if options.sequence_bias:
        yield _biased(options.sequence_bias)
    if source is not None and options.encoder_repetition_penalty != 1:
        # Words of the source are to be used: the penalty works the other way round.
        yield _penalised(1 / options.encoder_repetition_penalty, lambda _: (source, torch.ones_like(source).bool()))
    if options.repetition_penalty != 1:

        def used(tokens: Tensor) -> tuple[Tensor, Tensor]:
            real = torch.ones_like(tokens, dtype=torch.bool)
            real[:, : seen.shape[1]] = seen[:, : tokens.shape[1]]
            return tokens, real

        yield _penalised(options.repetition_penalty, used)
    if options.no_repeat_ngram_size:
        yield _without_repeated(options.no_repeat_ngram_size)
    if source is not None and options.encoder_no_repeat_ngram_size:
        yield _without_repeated(options.encoder_no_repeat_ngram_size, source)


def _penalised(penalty: float, words: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Rule:
    """Scores of some words divided by `penalty` where they are positive, multiplied where they are negative."""

    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        ids, real = words(tokens)
        used = torch.zeros_like(scores, dtype=torch.bool)
        used.scatter_reduce_(1, ids, real, reduce="amax", include_self=True)
        return torch.where(used, torch.where(scores < 0, scores * penalty, scores / penalty), scores)

    return rule


def _biased(biases: Sequences) -> Rule:
    """Adds to the score of a sequence's last token wherever the tokens before it are the last ones written."""

    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        bias = torch.zeros_like(scores)
        for sequence, value in biases.items():
            before, last = sequence[:-1], sequence[-1]
            # A sequence as long as all that is written is left alone, as in transformers.
            if before and len(sequence) > tokens.shape[1]:
                continue
            matching = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
            if before:
                matching = (tokens[:, -len(before) :] == torch.tensor(before, device=tokens.device)).all(1)
            bias[:, last] += torch.where(matching, value, 0.0)
        return scores + bias

    return rule


def _without_repeated(size: int, source: Tensor | None = None) -> Rule:
    """No run of `size` tokens a second time, or, with a `source`, none that is in it."""

    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        if source is None and tokens.shape[1] + 1 < size:
            return scores
        for row, words in enumerate(tokens.tolist()):
            among = words if source is None else source[row].tolist()
            before = words[len(words) + 1 - size :] if size > 1 else []
            if len(before) < size - 1:
                continue
            runs = (among[place : place + size] for place in range(len(among) + 1 - size))
            scores[row, [run[-1] for run in runs if run[:-1] == before]] = HIDDEN
        return scores

    return rule


# -- forbidden and forced --------------------------------------------------------------------------------------------


def _forbidden(
    options: GenerationOptions, start: int, allowed: Callable[[int, Tensor], Sequence[int]] | None
) -> Iterator[Rule]:
    ends = options.eos_token_ids
    if options.bad_words_ids:
        words = {tuple(words): HIDDEN for words in options.bad_words_ids if not (len(words) == 1 and words[0] in ends)}
        yield _biased(words)
    least = max(options.min_length, start + (options.min_new_tokens or 0))
    if ends and least:
        yield _hidden(ends, lambda length: length < least)
    if allowed is not None:
        yield _allowed_alone(allowed, options.num_beams)


def _forced(options: GenerationOptions, start: int) -> Iterator[Rule]:
    if options.forced_bos_token_id is not None:
        yield _only((options.forced_bos_token_id,), lambda length: length == 1)
    if options.forced_eos_token_ids:
        yield _only(options.forced_eos_token_ids, lambda length: length + 1 == options.max_length)
    if options.remove_invalid_values:
        yield lambda _, scores: scores.nan_to_num(0.0)
    if options.exponential_decay_length_penalty is not None and options.eos_token_ids:
        yield _ending_sooner(*options.exponential_decay_length_penalty, options.eos_token_ids, start)
    if options.suppress_tokens:
        yield _hidden(options.suppress_tokens, lambda length: True)
    if options.begin_suppress_tokens:
        first = start if start > 1 or options.forced_bos_token_id is None else start + 1
        yield _hidden(options.begin_suppress_tokens, lambda length: length == first)


def _hidden(ids: Sequence[int], when: Callable[[int], bool]) -> Rule:
    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        if not when(tokens.shape[1]):
            return scores
        return scores.index_fill(1, torch.tensor(ids, device=scores.device), HIDDEN)

    return rule


def _only(ids: Sequence[int], when: Callable[[int], bool]) -> Rule:
    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        if not when(tokens.shape[1]):
            return scores
        return torch.full_like(scores, HIDDEN).index_fill(1, torch.tensor(ids, device=scores.device), 0.0)

    return rule


def _ending_sooner(after: int, factor: float, ends: Sequence[int], start: int) -> Rule:
    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        beyond = tokens.shape[1] - (after + start)
        if beyond <= 0:
            return scores
        ids = torch.tensor(ends, device=scores.device)
        return scores.index_add(1, ids, scores[:, ids].abs() * (factor**beyond - 1))

    return rule


def _allowed_alone(allowed: Callable[[int, Tensor], Sequence[int]], num_beams: int) -> Rule:
    def rule(tokens: Tensor, scores: Tensor) -> Tensor:
        mask = torch.full_like(scores, HIDDEN)
        for row, words in enumerate(tokens):
            mask[row, list(allowed(row // num_beams, words))] = 0.0
        return scores + mask

    return rule


# -- sampling --------------------------------------------------------------------------------------------------------


def _shaping(options: GenerationOptions) -> Iterator[Rule]:
    # Beams need a token to go on with beside those that end a text.
    least = 1 if options.num_beams == 1 else max(2, len(options.eos_token_ids) + 1)
    if options.temperature != 1:
        yield lambda _, scores: scores / options.temperature
    if options.top_k:
        yield lambda _, scores: _likeliest(scores, max(options.top_k, least))
    if options.top_p < 1:
        yield lambda _, scores: _nucleus(scores, options.top_p, least)
    if options.min_p is not None:
        least_p = options.min_p
        yield _at_least(lambda chances: least_p * chances.amax(-1, keepdim=True), least)
    if options.typical_p < 1:
        yield lambda _, scores: _typical(scores, options.typical_p, least)
    if options.epsilon_cutoff:
        yield _at_least(lambda chances: options.epsilon_cutoff, least)
    if options.eta_cutoff:
        yield _at_least(lambda chances: _eta(chances, options.eta_cutoff), least)


def _likeliest(scores: Tensor, count: int) -> Tensor:
    least = scores.topk(min(count, scores.shape[-1]), dim=-1).values[:, -1:]
    return scores.masked_fill(scores < least, HIDDEN)


def _nucleus(scores: Tensor, share: float, least: int) -> Tensor:
    """The likeliest that make up `share` of the probability (Holtzman et al. 2020)."""
    ascending, order = scores.sort(dim=-1)
    unlikely = torch.softmax(ascending, dim=-1).cumsum(dim=-1) <= 1 - share
    unlikely[:, -least:] = False
    return scores.masked_fill(unlikely.scatter(1, order, unlikely), HIDDEN)


def _at_least(threshold: Callable[[Tensor], Tensor | float], least: int) -> Rule:
    """Tokens whose probability reaches a threshold, and the `least` likeliest anyway."""

    def rule(_: Tensor, scores: Tensor) -> Tensor:
        chances = scores.softmax(-1)
        kept = scores.topk(min(least, scores.shape[-1]), dim=-1).values[:, -1:]
        return scores.masked_fill((chances < threshold(chances)) & (scores < kept), HIDDEN)

    return rule


def _eta(chances: Tensor, epsilon: float) -> Tensor:
    """Hewitt et al. 2022: a threshold that falls with the entropy."""
    entropy = -(chances * chances.clamp_min(torch.finfo(chances.dtype).tiny).log()).sum(-1, keepdim=True)
    return (-entropy).exp().mul(epsilon**0.5).clamp(max=epsilon)


def _typical(scores: Tensor, mass: float, least: int) -> Tensor:
    """Tokens about as surprising as is to be expected, up to `mass` of the probability (Meister et al. 2022)."""
    logs = torch.log_softmax(scores, dim=-1)
    entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)
    distance, order = (-logs - entropy).abs().sort(dim=-1)
    reached = scores.gather(-1, order).softmax(-1).cumsum(-1)
    last = (reached < mass).sum(1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    odd = distance > distance.gather(1, last)
    odd[:, :least] = False
    return scores.masked_fill(odd.scatter(1, order, odd), HIDDEN)


def _normalised(_: Tensor, scores: Tensor) -> Tensor:
    return scores.log_softmax(-1)
