"""The search for one target on one engine: observe, choose, cut, fit, measure, until the measured speed is right.

A steep cut is made in two rounds: what is left after the first is looked at again before the second.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from bertie.compression.cost import CostTable, cost_table, rows_like, runner_of, speedup
from bertie.compression.importance import BLOCKS, Curve, Moments, curves, observe
from bertie.compression.layers import Sizes, keep, keep_layers
from bertie.compression.refit import refit
from bertie.compression.report import Point
from bertie.compression.search import cheapest_loss
from bertie.compression.targets import Target
from bertie.engine.compile import compile as compile_model
from bertie.errors import InputError
from bertie.model.pretrained import BertPreTrainedModel

FRONTIER = (1.5, 2.0, 3.0)  # speed-ups that a report shows besides the one that was asked for
SIZES = (0.8, 0.6, 0.4)  # shares of the parameters that it shows where a share was asked for
_FASTER = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # that are tried, one after the other, for what keeps a score
_STEEP = 2.0  # a speed-up above which there are two rounds
_CLOSE = 0.03  # how far the measured speed may be from the one asked for before sizes are chosen again
_TRIES = 4
_UNSEEN = 1e-3  # of the answers' squares: what may be lost with a layer that holds nothing


@dataclass(frozen=True)
class Made:
    """A model that was tried."""

    model: BertPreTrainedModel
    point: Point


@dataclass
class Work:
    """The search for one target on one engine."""

    target: Target
    on: str
    say: Callable[[str], None]
    trimmed: int = 0  # parameters that the given model had and `target.model` no longer has: tokens and positions
    stored: torch.dtype = torch.float32  # how the model is going to be saved
    full: Sizes = field(init=False)
    engine: str = field(init=False)

    def __post_init__(self) -> None:
        model, say = self.target.model, self.say
        self.full = Sizes.of(model)
        self._batch = rows_like(self.target.lengths, self.on, model.config.vocab_size)
        self._runner = runner_of(copy.deepcopy(model.base_model), self.on)
        self.engine = self._runner.describe()
        self._table: tuple[CostTable, float] | None = None
        self._bound: float | None = None
        say(f"{self.target.metric} of the original on {len(self.target.lengths):,} rows …")
        self.base = self.target.score(compile_model(model, strict=False))
        say(f"{self.target.metric} {abs(self.base):.4f}")
        self._seen: tuple[list[dict[str, Moments]], list[dict[str, Curve]]] | None = None

    # -- what is asked for -------------------------------------------------------------------------------------------

    def reach(
        self, faster: float | None, size: float | None, kept: float | None, *, careful: bool
    ) -> tuple[tuple[Point, ...], list[Made]]:
        """All points, the original first, and the models of those after it; the one that was asked for is the last.

        The others are for a report, and get a second round only where they are to be used too: `careful`.
        """
        model = self.target.model
        original = Point(1.0, 1.0, self.base, self._whole(), self.full)
        if faster == 1 or size == 1:
            self.say("a budget of all there is: nothing is taken out")
            return (original,), [Made(model, original)]
        if kept is not None:
            made = self._keeping(kept)
        elif size is not None:
            self._check_size(size)
            made = [self.of_size(s) for s in sorted({*SIZES} - {size}, reverse=True) if s > self._least_size()]
            made.append(self.of_size(size))
        else:
            assert faster is not None
            self._check_reachable(faster)
            others = [s for s in sorted({*FRONTIER} - {faster}) if s < self._fastest()]
            if others:
                self.say(f"first, for comparison: {', '.join(f'{s:g}' for s in others)} times the speed")
            made = [self.of_speed(s, careful=careful) for s in others]
            self.say(f"{faster:g} times the speed …")
            made.append(self.of_speed(faster))
        return (original, *(one.point for one in made)), made

    def _keeping(self, kept: float) -> list[Made]:
        least = self.base * kept if self.base > 0 else self.base / kept
        made: list[Made] = []
        passed: Made | None = None
        below, above = 1.0, math.inf
        for s in _FASTER:
            if s >= self._fastest():
                break
            made.append(self.of_speed(s))
            if made[-1].point.score < least:
                above = s
                break
            passed, below = made[-1], s
        if not made:
            raise InputError(
                f"{{keep:is}} without any heads and neurons, this model is only {self._fastest():.2f} times as fast "
                f"({self.engine}): there is nothing to gain.",
                "Use another engine: {on}.",
                keep=kept,
                on=...,
            )
        if above < math.inf:
            made.append(self.of_speed((below + above) / 2))
            if made[-1].point.score >= least:
                passed = made[-1]
        if passed is None:
            best = max((one.point for one in made), key=lambda point: point.score)
            raise InputError(
                f"{{keep:is}} the best found keeps {self._share(best.score):.3f} of the {self.target.metric}, "
                f"at {best.speedup:.2f} times the speed.",
                "Ask for less, or let the model learn again: {train}.",
                keep=kept,
                train=...,
            )
        return [*(one for one in made if one is not passed), passed]

    def _share(self, score: float) -> float:
        """How much of the original's score that is; of scores below 0, which are errors, the inverse."""
        above, below = (score, self.base) if self.base > 0 else (self.base, score)
        return above / below if below else 0.0

    def of_size(self, share: float) -> Made:
        """The model that loses least with this share of the parameters."""
        budget = share * self._whole() - self._fixed()
        sizes = cheapest_loss(self._curves(self.target.model)[1], self._parameters, budget)
        if sizes is None:  # what is always there fits, and nothing else: rounding
            raise self._too_small(share)
        return self._make(sizes, asked=share)

    def _parameters(self, block: str, units: int) -> float:
        config = self.target.model.config
        width, head = config.hidden_size, config.attention_head_size
        return units * (head * (4 * width + 3) if block == "attention" else 2 * width + 1)

    def _whole(self) -> int:
        """The parameters of the model that was given, with the tokens and positions that are gone."""
        return self.target.model.num_parameters() + self.trimmed

    def _fixed(self) -> float:
        """Parameters that no cut can save."""
        return self.target.model.num_parameters() - _sum(self.full, self._parameters)

    def _least_size(self) -> float:
        return self._fixed() / self._whole()

    def _check_size(self, share: float) -> None:
        if share <= self._least_size():
            raise self._too_small(share)

    def _too_small(self, share: float) -> InputError:
        return InputError(
            f"{{size:is}} without any heads and neurons, this model still has {self._least_size():.2f} of its "
            "parameters: embeddings and heads of tasks.",
            "Ask for more than that, or trim the vocabulary too: {vocab_from}.",
            size=share,
            vocab_from=...,
        )

    def of_speed(self, faster: float, *, careful: bool = True) -> Made:
        """The model that loses least at this many times the speed; if `careful`, in two rounds where it is steep."""
        return self._make(None, asked=faster, careful=careful)

    def better(self, made: Made, learned: BertPreTrainedModel, epochs: float) -> Made:
        """The model that has learned, unless it does worse than before."""
        _round(learned, self.stored)
        score = self.score(learned)
        self.say(f"{self.target.metric} {abs(score):.4f} after learning (before: {abs(made.point.score):.4f})")
        return made if score < made.point.score else Made(learned, replace(made.point, score=score, trained=epochs))

    # -- making ------------------------------------------------------------------------------------------------------

    def _make(self, sizes: Sizes | None, *, asked: float, careful: bool = True) -> Made:
        """The model of these sizes, or of those that are `asked` times as fast, in one round or in two."""
        target, model = self.target, self.target.model
        steep = sizes is None and careful and asked > _STEEP
        promised = 0.0
        for faster in [math.sqrt(asked), asked] if steep else [asked]:
            observed, found = self._curves(model)
            if sizes is None:
                chosen, promised = self._sizes(model, found, faster)
            else:
                chosen = sizes
            smaller = _cut(model, found, chosen)
            self.say(f"fitting {chosen.describe()} to the original's states …")
            refit(target.model, smaller, target.fit, observed)
            model = smaller
        model = self._without_empty_layers(model)
        _round(model, self.stored)
        speed = self.speed(model)
        point = Point(asked, speed, self.score(model), model.num_parameters(), Sizes.of(model), promised or speed)
        self.say(
            f"{point.speedup:.2f} times as fast: {target.metric} {abs(point.score):.4f} (was {abs(self.base):.4f})"
        )
        return Made(model, point)

    def _without_empty_layers(self, model: BertPreTrainedModel) -> BertPreTrainedModel:
        """A layer with neither heads nor neurons still normalises twice: it goes where the answers do not miss it."""
        sizes = Sizes.of(model)
        for number in reversed(range(len(sizes))):
            if not sizes.heads[number] and not sizes.neurons[number] and len(Sizes.of(model)) > 1:
                fewer = keep_layers(model, [other for other in range(len(Sizes.of(model))) if other != number])
                if self._distance(fewer) <= self._distance(model) + _UNSEEN:
                    model = fewer
        return model

    @torch.no_grad()
    def _distance(self, model: BertPreTrainedModel) -> float:
        """How far a model's answers are from the original's: the share of their squares."""
        off = whole = 0.0
        for batch in self.target.fit:
            wanted = self.target.answers(self.target.model, batch)
            off += float((self.target.answers(model, batch) - wanted).square().sum())
            whole += float(wanted.square().sum())
        return off / max(whole, 1e-30)

    def _sizes(self, model: BertPreTrainedModel, found: list[dict[str, Curve]], faster: float) -> tuple[Sizes, float]:
        """The best sizes whose measured speed is what is asked for, and that speed.

        The table's times are of parts alone, and what they are together differs a little: then the budget is moved by
        as much.
        """
        budget = 1 / faster
        best: tuple[float, Sizes, float] | None = None
        for _ in range(_TRIES):
            sizes = cheapest_loss(found, self._price, budget - self._empty())
            if sizes is None:
                break
            measured = self.speed(_cut(model, found, sizes))
            off = abs(math.log(measured / faster))
            if best is None or off < best[0]:
                best = off, sizes, measured
            if off <= _CLOSE:
                break
            budget *= measured / faster
        if best is None:
            raise self._unreachable(faster)
        return best[1], best[2]

    def _curves(self, model: BertPreTrainedModel) -> tuple[list[dict[str, Moments]], list[dict[str, Curve]]]:
        if model is self.target.model and self._seen is not None:
            return self._seen
        self.say("looking at what every head and neuron contributes …")
        observed = observe(self.target, model)
        seen = observed, curves(model, observed)
        if model is self.target.model:
            self._seen = seen
        return seen

    # -- measuring ---------------------------------------------------------------------------------------------------

    def speed(self, model: BertPreTrainedModel) -> float:
        """How many times as fast as the original, measured in turn with it."""
        return speedup(self._runner, runner_of(copy.deepcopy(model.base_model), self.on), *self._batch)

    def score(self, model: BertPreTrainedModel) -> float:
        """By the CPU engine: in int8 where that is asked for, else in float32."""
        rounded = self.on == "cpu-int8"
        dtype = "int8" if rounded else "float32"
        fast = compile_model(model, dtype=dtype, tokenizer=self.target.tokenizer, strict=rounded)
        return self.target.score(fast)

    def expected(self, sizes: Sizes) -> float:
        """How many times as fast such sizes would be, by the table."""
        return 1 / (self._empty() + _sum(sizes, self._price))

    def _price(self, block: str, units: int) -> float:
        """The time of a block, as a share of the original's."""
        table, scale = self._measured()
        return scale * table.price(block, units)

    def _measured(self) -> tuple[CostTable, float]:
        """The table, and what makes shares of its seconds: those of all parts and of what no cut can save are 1."""
        if self._table is None:
            table = cost_table(self.target.model.config, self.target.lengths, self.on, say=self.say)
            self._table = table, (1 - self._empty()) / max(_sum(self.full, table.price), 1e-30)
        return self._table

    def _empty(self) -> float:
        """The time that no cut can save, as a share of the original's."""
        return min(1.0, 1 / self._fastest())

    def _fastest(self) -> float:
        """How many times as fast this model is without any heads and neurons."""
        if self._bound is None:
            layers = len(self.full)
            self._bound = self.speed(keep(self.target.model, [[]] * layers, [torch.arange(0)] * layers))
        return self._bound

    def _check_reachable(self, faster: float) -> None:
        if faster >= self._fastest():
            raise self._unreachable(faster)

    def _unreachable(self, faster: float) -> InputError:
        return InputError(
            f"{{speedup:is}} without any heads and neurons, this model is {self._fastest():.1f} times as fast "
            f"({self.engine}); the rest is embeddings and LayerNorms.",
            "Ask for less.",
            speedup=faster,
        )


@torch.no_grad()
def _round(model: BertPreTrainedModel, dtype: torch.dtype) -> None:
    """Weights as they are going to be saved, so that what is judged is what is loaded again."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))


def _sum(sizes: Sizes, price: Callable[[str, int], float]) -> float:
    return sum(price(block, units) for pair in zip(sizes.heads, sizes.neurons, strict=True)
               for block, units in zip(BLOCKS, pair, strict=True))  # fmt: skip


def _cut(model: BertPreTrainedModel, found: Sequence[dict[str, Curve]], sizes: Sizes) -> BertPreTrainedModel:
    layers = model.base_model.encoder.layer
    heads = [
        [layer.attention.self.heads[slot] for slot in curve["attention"].kept(count)]
        for layer, curve, count in zip(layers, found, sizes.heads, strict=True)
    ]
    neurons = [
        torch.tensor(curve["feed-forward"].kept(count), dtype=torch.long)
        for curve, count in zip(found, sizes.neurons, strict=True)
    ]
    return keep(model, heads, neurons)
