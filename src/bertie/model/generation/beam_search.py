"""Beam search: keep the likeliest beginnings of every text, until none can beat the finished ones.

A finished text's score is its log-probability over length^length_penalty, the length being what was generated. With
`do_sample` the continuations are drawn instead of being the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from bertie.model.generation.options import GenerationOptions

Ends = Callable[[Tensor], Tensor]  # [rows, length] tokens → [rows] whether each text has ended

# The score of what is not to be chosen: far below any real one, and finite.
_OUT = -1.0e9


class Continues(Protocol):
    """The part of a stepper that a search needs."""

    prompts: Tensor

    def reorder(self, rows: Tensor) -> None: ...


@dataclass(frozen=True)
class _Beam:
    """The beginning of a text: its log-probability (or final score), tokens, and the row each new token continued."""

    score: float
    tokens: list[int]
    rows: list[int]


@dataclass
class _Search:
    """One text's search: what is still running, and the best finished texts."""

    running: list[_Beam]
    finished: list[_Beam] = field(default_factory=list)
    can_improve: bool = True


def beam_search(
    step: Continues,
    scores_of: Callable[[Tensor], Tensor],
    ends: Ends,
    options: GenerationOptions,
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """The texts `[texts, length]`, their scores and their beams, as `Generated` names them."""
    prompts, width = step.prompts, options.num_beams
    start = length = prompts.shape[1]
    # All beams of a text start alike; only the first may be continued, or they would stay alike.
    searches = [
        _Search([_Beam(0.0 if beam == 0 else _OUT, prompts[row + beam].tolist(), []) for beam in range(width)])
        for row in range(0, len(prompts), width)
    ]
    # Enough candidates that `width` go on even if as many end.
    num_candidates = max(2, 1 + len(options.eos_token_ids)) * width
    tokens = prompts
    while True:
        scores = scores_of(tokens)
        so_far = torch.tensor([[beam.score for beam in one.running] for one in searches], device=scores.device)
        totals = (scores.view(len(searches), width, -1) + so_far[:, :, None]).flatten(1)
        vocabulary = scores.shape[-1]
        values, places = _candidates(totals, min(num_candidates, totals.shape[1]), options, generator)
        length += 1
        candidates = [
            [
                _continued(one.running[place // vocabulary], value, place, vocabulary, number * width)
                for value, place in zip(its_values, its_places, strict=True)
            ]
            for number, (one, its_values, its_places) in enumerate(
                zip(searches, values.tolist(), places.tolist(), strict=True)
            )
        ]
        every = torch.tensor([beam.tokens for own in candidates for beam in own], device=prompts.device)
        ended = ends(every).view(len(searches), -1).tolist()
        for one, own, over in zip(searches, candidates, ended, strict=True):
            _advance(one, own, over, length - start, options)
        improvable = any(one.can_improve for one in searches)
        all_full = options.early_stopping is True and all(len(one.finished) == width for one in searches)
        if all(map(all, ended)) or not improvable or all_full:
            break
        running = [beam for one in searches for beam in one.running]
        step.reorder(torch.tensor([beam.rows[-1] for beam in running], device=prompts.device))
        tokens = torch.tensor([beam.tokens for beam in running], device=prompts.device)
    chosen = [beam for one in searches for beam in one.finished[: options.num_return_sequences]]
    return {
        "sequences": _padded([beam.tokens for beam in chosen], options.pad_token_id, prompts),
        "sequences_scores": torch.tensor([beam.score for beam in chosen], device=prompts.device),
        "beam_indices": _padded([beam.rows for beam in chosen], -1, prompts).int(),
    }


def _candidates(
    totals: Tensor, count: int, options: GenerationOptions, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The scores and places of the continuations that are looked at, `[texts, count]` each."""
    if not options.do_sample:
        return totals.topk(count, dim=-1)
    places = torch.multinomial(torch.softmax(totals, dim=-1), count, generator=generator)
    return totals.gather(1, places), places


def _continued(beam: _Beam, score: float, place: int, vocabulary: int, first_row: int) -> _Beam:
    return _Beam(score, [*beam.tokens, place % vocabulary], [*beam.rows, first_row + place // vocabulary])


def _advance(
    one: _Search, candidates: list[_Beam], ended: list[bool], written: int, options: GenerationOptions
) -> None:
    """Take in what has ended, and choose what goes on. `written` is the number of tokens after the prompt."""
    width = options.num_beams
    full = options.early_stopping is True and len(one.finished) == width
    if one.can_improve and not full:
        over = [
            _Beam(beam.score / written**options.length_penalty, beam.tokens, beam.rows)
            for beam, is_over in zip(candidates[:width], ended, strict=False)
            if is_over
        ]
        one.finished = sorted(one.finished + over, key=lambda beam: -beam.score)[:width]
    going_on = [
        _Beam(beam.score + _OUT, beam.tokens, beam.rows) if is_over else beam
        for beam, is_over in zip(candidates, ended, strict=True)
    ]
    one.running = sorted(going_on, key=lambda beam: -beam.score)[:width]
    if len(one.finished) == width:
        longest = (options.max_length or 0) - (len(candidates[0].tokens) - written)
        hoped = longest if options.early_stopping == "never" and options.length_penalty > 0 else written
        best_possible = one.running[0].score / hoped**options.length_penalty
        one.can_improve = one.can_improve and best_possible > one.finished[-1].score


def _padded(rows: list[list[int]], filler: int, like: Tensor) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows], device=like.device)
