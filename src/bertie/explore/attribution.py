"""Which tokens an answer depends on.

- *integrated gradients* (Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365): the gradient of the target with
  respect to the word vectors, averaged along the straight way from a baseline text to this one (Gauss–Legendre), times
  the difference. Scores add up to target − target of the baseline; by how much they do not is the completeness error.
- *gradient × input*: the same with the gradient at the text alone.
- *occlusion*: how much the target loses when a token is replaced by [MASK].
- *rollout*: how much of each token reaches the states that the head reads, by attention alone (flow.py).

Targets are logits, or a similarity. The baseline keeps [CLS] and [SEP], and has another token in the place of every
other: [PAD], [MASK], or the vector 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.arguments import one_of, whole_number
from bertie.errors import InputError
from bertie.explore.answers import Target
from bertie.explore.flow import rollout
from bertie.explore.progress import Progress, counted
from bertie.explore.readings import Vectors
from bertie.explore.result import Column, Floats, Result, coloured_text, heat_html, heat_map, long_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session

Method = Literal["integrated_gradients", "gradient_x_input", "occlusion", "rollout"]
Baseline = Literal["pad", "mask", "zero"]
METHODS: tuple[Method, ...] = ("integrated_gradients", "gradient_x_input", "occlusion", "rollout")
BASELINES: tuple[Baseline, ...] = ("pad", "mask", "zero")

_STEPS, _MOST_STEPS = 50, 800  # of the way, where nobody says how many: doubled until the scores add up
_GRADIENT_BYTES = 1 << 27  # of a CPU's memory, for what the way back needs; a single row may take more
_ERROR = 0.01  # that is, to within this part of what they should add up to


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Result):
    """A score for every token of every row: what it adds to the target (rollout: its share).

    `score` and `baseline_score` are the target's at the text and at the baseline (of methods that have one), and
    `error` is how far the scores are from adding up to their difference, as a part of it; `steps` that were taken.
    """

    method: str
    target: Target
    tokens: tuple[tuple[str, ...], ...]  # of each row
    scores: tuple[Floats, ...]  # of each row
    score: float
    baseline_score: float | None = None
    error: float | None = None
    steps: int | None = None

    def columns(self) -> dict[str, Column]:
        return {
            "row": [row for row, tokens in enumerate(self.tokens) for _ in tokens],
            "token": [token for tokens in self.tokens for token in tokens],
            "score": [score for scores in self.scores for score in scores.tolist()],
        }

    def html(self) -> str:
        error = "" if self.error is None else f", completeness error {self.error:.2%}"
        rows = "".join(coloured_text(*both) for both in zip(self.tokens, self.scores, strict=True))
        return f"<div><b>{self._title}</b>{error}{rows}</div>"

    def draw(self, axes: Axes) -> None:
        names = [token for tokens in self.tokens for token in tokens]
        values = np.concatenate(self.scores)
        axes.bar(range(len(names)), values, color=["C0" if value >= 0 else "C3" for value in values])
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_title(self._title)

    @property
    def _title(self) -> str:
        return f"{self.method.replace('_', ' ')}: {self.target.label}"


@dataclass(frozen=True, eq=False, repr=False)
class TokenMatch(Result):
    """Which token of A matched which of B: `weights[a, b]`.

    `kind` "contribution": the weights add up to the similarity (means of token vectors, compared by their product).
    "cosine", of models that pool otherwise: how similar two tokens' last states are.
    """

    kind: str
    tokens_a: tuple[str, ...]
    tokens_b: tuple[str, ...]
    weights: Floats  # [A, B]
    score: float

    def columns(self) -> dict[str, Column]:
        named = [[f"{place} {token}" for place, token in enumerate(side)] for side in (self.tokens_a, self.tokens_b)]
        return long_table(self.weights, ("a", "b"), named, "weight")

    def html(self) -> str:
        return heat_html(self.weights, rows=self.tokens_a, columns=self.tokens_b, title=self._title)

    def draw(self, axes: Axes) -> None:
        heat_map(axes, self.weights, rows=self.tokens_a, columns=self.tokens_b, title=self._title)

    @property
    def _title(self) -> str:
        return f"similarity {self.score:.3f}, by {self.kind}"


def attribute(
    session: Session,
    method: Method,
    target: Target | None,
    steps: int | None,
    baseline: Baseline,
    progress: Progress,
) -> Attribution:
    one_of("method", method, METHODS)
    one_of("baseline", baseline, BASELINES)
    whole_number("steps", steps, or_none="as many as it takes")
    chosen = session.target(target)
    if method == "rollout":
        return _by_rollout(session, chosen)
    # The model is held for one part of the work at a time: whoever waits for it comes in between.
    if method == "occlusion":
        return _by_occlusion(session, chosen, progress)
    if method == "gradient_x_input":
        with session.running():
            scores, score = _gradient_times(session, chosen)
        return Attribution(method, chosen, _names(session), scores, score)
    if steps is not None:
        return _integrated(session, chosen, baseline, steps, progress)
    steps = _STEPS
    while True:
        found = _integrated(session, chosen, baseline, steps, progress)
        if found.error is None or found.error < _ERROR or 2 * steps > _MOST_STEPS:
            return found
        steps *= 2


def _names(session: Session) -> tuple[tuple[str, ...], ...]:
    return tuple(row.names for row in session.rows)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _integrated(session: Session, target: Target, baseline: Baseline, steps: int, progress: Progress) -> Attribution:
    """All rows go their way at once: a similarity depends on both."""
    ends = [session.reading.embeds(row) for row in range(len(session.rows))]
    starts = [_baseline(session, row, baseline) for row in range(len(session.rows))]
    points, weights = np.polynomial.legendre.leggauss(steps)
    sums = [torch.zeros_like(end, dtype=torch.float32) for end in ends]
    parts = list(_chunks(steps, session, _tokens_with_gradients(session)))
    for part in counted(parts, "integrated gradients", progress):
        share = torch.tensor((points[part] + 1) / 2, dtype=ends[0].dtype, device=session.device)[:, None, None]
        weight = torch.tensor(weights[part] / 2, dtype=torch.float32, device=session.device)[:, None, None]
        ways = [start + share * (end - start) for start, end in zip(starts, ends, strict=True)]
        with session.running():
            gradients = _gradients(session, ways, target)
        for total, gradient in zip(sums, gradients, strict=True):
            total += (weight * gradient.float()).sum(0)
    scores = [((end - start).float() * total).sum(-1) for start, end, total in zip(starts, ends, sums, strict=True)]
    with session.running():
        score, before = (_score(session, rows, target) for rows in (ends, starts))
    added = float(sum(float(x.sum()) for x in scores))
    error = abs(added - (score - before)) / max(abs(score - before), 1e-12)
    found = tuple(x.cpu().numpy() for x in scores)
    return Attribution("integrated_gradients", target, _names(session), found, score, before, error, steps)


def _gradient_times(session: Session, target: Target) -> tuple[tuple[Floats, ...], float]:
    given = [session.reading.embeds(row)[None] for row in range(len(session.rows))]
    gradients = _gradients(session, given, target)
    scores = tuple((g * x).float().sum(-1)[0].cpu().numpy() for g, x in zip(gradients, given, strict=True))
    return scores, _score(session, [x[0] for x in given], target)


def _gradients(session: Session, given: Sequence[Tensor], target: Target) -> list[Tensor]:
    """Of the target with respect to word vectors `[B, S, D]` of every row, each item of the batch by itself."""
    with torch.enable_grad():
        wanted = [x.detach().requires_grad_() for x in given]
        readouts = [session.reading.readout(row, x) for row, x in enumerate(wanted)]
        total = session.reading.score(readouts, target, "logit").sum()
        # The logit of a choice has nothing to do with the rows of the other choices.
        found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


@torch.no_grad()
def _score(session: Session, given: Sequence[Tensor], target: Target) -> float:
    readouts = [session.reading.readout(row, x[None]) for row, x in enumerate(given)]
    return float(session.reading.score(readouts, target, "logit")[0])


def _baseline(session: Session, row: int, kind: Baseline) -> Tensor:
    """The word vectors `[S, D]` of the text that says nothing; special tokens, but for [MASK], stay."""
    tokenizer = session.tokenizer
    given = session.reading.embeds(row)
    kept = torch.tensor(
        [token.special and token.id != tokenizer.mask_token_id for token in session.rows[row].tokens],
        device=given.device,
    )
    if kind == "zero":
        return given * kept[:, None]
    id_ = tokenizer.pad_token_id if kind == "pad" else tokenizer.mask_token_id
    if id_ is None:
        raise InputError(f"{{baseline:is}} the tokenizer has no {kind} token.", "Use {baseline=zero}.", baseline=kind)
    return torch.where(kept[:, None], given, session.word_vector(id_))


def _tokens_with_gradients(session: Session) -> int:
    """How many tokens may be on their way through the model at once: a layer keeps about ten states and two activations
    of its feed-forward network for the way back."""
    config, loaded = session.config, session.reading.loaded
    a_token = 4 * config.num_hidden_layers * (10 * config.hidden_size + 2 * config.intermediate_size)
    return loaded.budget if session.device.type == "cuda" else min(loaded.budget, _GRADIENT_BYTES // a_token)


def _chunks(count: int, session: Session, budget: int) -> Iterator[slice]:
    """Parts of a batch of whole rows, each within the budget of tokens."""
    longest = max(map(len, session.rows))
    size = max(1, budget // longest)
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


# -- without gradients -------------------------------------------------------------------------------------------------


@torch.no_grad()
def _by_occlusion(session: Session, target: Target, progress: Progress) -> Attribution:
    tokenizer, reading = session.tokenizer, session.reading
    id_ = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.unk_token_id
    if id_ is None:
        raise InputError("Occlusion puts a mask token in place of each token, and this tokenizer has none.")
    hidden = session.word_vector(id_)
    with session.running():
        whole = [reading.readout(row, reading.embeds(row)[None]) for row in range(len(session.rows))]
    score = float(reading.score(whole, target, "logit")[0])
    found = []
    parts = [
        (number, part)
        for number, row in enumerate(session.rows)
        for part in _chunks(len(row), session, reading.loaded.budget)
    ]
    lost: dict[int, list[Tensor]] = {row: [] for row in range(len(session.rows))}
    for row, part in counted(parts, "occlusion", progress):
        places = torch.arange(part.start, part.stop, device=session.device)
        variants = reading.embeds(row).repeat(len(places), 1, 1)
        variants[torch.arange(len(places), device=session.device), places] = hidden
        with session.running():
            readout = reading.readout(row, variants)
        readouts = [readout if other == row else x for other, x in enumerate(whole)]
        lost[row].append(score - reading.score(readouts, target, "logit").float())
    for row, parts_lost in lost.items():
        scores = torch.cat(parts_lost).cpu().numpy()
        # Without [CLS] and [SEP] it is no text any more: their score would say nothing about them.
        special = [token.special and token.id != tokenizer.mask_token_id for token in session.rows[row].tokens]
        scores[special] = 0.0
        found.append(scores)
    return Attribution("occlusion", target, _names(session), tuple(found), score)


def _by_rollout(session: Session, target: Target) -> Attribution:
    """Of rows that the target is not read from, nothing."""
    rows = range(len(session.rows)) if isinstance(session.reading, Vectors) else [target.row]
    scores = [np.zeros(len(row), np.float32) for row in session.rows]
    for row in rows:
        places = session.reading.pooled_places(Target(target.label, row, target.place, target.index, target.end))
        scores[row] = rollout(session, row, None).weights[places].mean(0)
    return Attribution("rollout", target, _names(session), tuple(scores), session.score(target, "logit"))


@torch.no_grad()
def match(session: Session) -> TokenMatch:
    reading = session.reading
    assert isinstance(reading, Vectors)  # the session has looked: this view is there
    first, second = (session.states(row)[-1].float() for row in (0, 1))
    names = [row.names for row in session.rows]
    score = session.score()
    if not reading.adds_up:
        weights = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
        return TokenMatch("cosine", names[0], names[1], weights.cpu().numpy(), score)
    # A mean is a sum of tokens / their number, and the product of two sums is the sum of all products.
    parts = []
    for states in (first, second):
        counted = states.clone()
        counted[: reading.skipped] = 0
        counted /= max(1, len(states) - reading.skipped)
        parts.append(counted / (torch.linalg.vector_norm(counted.sum(0)) if reading.unit else 1))
    return TokenMatch("contribution", names[0], names[1], (parts[0] @ parts[1].T).cpu().numpy(), score)
