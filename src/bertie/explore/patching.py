"""States of one text put into another: where in the model an answer is decided (causal tracing).

Meng et al. 2022, "Locating and Editing Factual Associations in GPT" (https://arxiv.org/abs/2202.05262). A *clean* text
gives the answer that is looked for, a *corrupted* one does not. The corrupted text is run again and again, each time
with one state of the clean run, of one layer at one token, in its place: where that brings the clean answer back, it
was decided by what stands there.

    patched(layer, token) − corrupted
    ---------------------------------       0: this state changes nothing, 1: it brings back the whole answer
           clean − corrupted

Layer 0 is the embeddings' output, layer l what the l-th layer gives. A run begins at the layer that is patched: below
it nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bertie.arguments import one_of
from bertie.errors import InputError
from bertie.explore.answers import Answer, Target
from bertie.explore.progress import Progress, counted
from bertie.explore.reading import MEASURES, Measure
from bertie.explore.result import Column, Floats, Result, heat_html, heat_map, long_table
from bertie.explore.switches import from_layer, held

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session

Part = Literal["state", "attention", "feed_forward"]
PARTS: tuple[Part, ...] = ("state", "attention", "feed_forward")
Output = Tensor | tuple[Tensor, ...]  # what a layer gives


@dataclass(frozen=True, eq=False, repr=False)
class Patching(Result):
    """The target's score with the clean state of (layer, token) in the corrupted run, and its effect from 0 to 1.

    `layers` and `places` say which; the tokens are the corrupted text's and the clean one's. `effect` is NaN where both
    runs score the same, so that there is nothing to bring back.
    """

    target: Target
    part: str
    measure: str
    layers: tuple[int, ...]
    places: tuple[int, ...]
    tokens: tuple[str, ...]
    clean_tokens: tuple[str, ...]
    clean: float
    corrupted: float
    scores: Floats  # [layers, places]
    effect: Floats  # [layers, places]

    def columns(self) -> dict[str, Column]:
        named = [f"{place} {token}" for place, token in zip(self.places, self.tokens, strict=True)]
        table = long_table(self.scores, ("layer", "token"), (self.layers, named), "score")
        return table | {"effect": self.effect.ravel().tolist()}

    def html(self) -> str:
        rows, columns = self._labels
        return heat_html(np.nan_to_num(self.effect), rows=rows, columns=columns, title=self._title)

    def draw(self, axes: Axes) -> None:
        rows, columns = self._labels
        heat_map(axes, self.effect, rows=rows, columns=columns, title=self._title)
        axes.set_ylabel("layer")

    @property
    def _labels(self) -> tuple[list[str], list[str]]:
        pairs = zip(self.tokens, self.clean_tokens, strict=True)
        return [str(layer) for layer in self.layers], [a if a == b else f"{a} ← {b}" for a, b in pairs]

    @property
    def _title(self) -> str:
        return f"{self.target.label}: {self.measure} {self.corrupted:.3f} → {self.clean:.3f}, by {self.part}"


@torch.no_grad()
def patch(
    session: Session,
    clean: Session,
    row: int,
    target: Target | None,
    layers: Sequence[int] | None,
    places: Sequence[int] | None,
    part: Part,
    measure: Measure,
    progress: Progress,
) -> Patching:
    one_of("part", part, PARTS)
    one_of("measure", measure, MEASURES)
    here = _same_model(session, clean, row, places)
    chosen = clean.target(target)
    session.target(chosen)  # is it a place of this text too?
    lowest = 0 if part == "state" else 1
    walked = tuple(range(lowest, session.num_layers + 1)) if layers is None else tuple(layers)
    for layer in walked:
        if not lowest <= layer <= session.num_layers:
            raise InputError(f"There is no layer {layer} to patch.", f"Use {lowest} to {session.num_layers}.")
    given = _outputs(clean, row, part)
    states = session.states(row)  # before there are hooks
    reading = session.reading
    scores = np.zeros((len(walked), len(here)), np.float32)
    with session.running():
        others = [reading.readout(other, reading.embeds(other)[None]) for other in range(len(session.rows))]
    size = max(1, reading.loaded.budget // len(session.rows[row]))
    cells = [(number, start) for number in range(len(walked)) for start in range(0, len(here), size)]
    for number, start in counted(cells, "patching", progress):
        layer, some = walked[number], here[start : start + size]
        with (  # one cell at a time: whoever waits for the model comes in between
            session.running(),
            _replacing(session, part, layer, given[layer], [[place] for place in some]),
            from_layer(session.bert, lambda: states, max(0, layer - 1)),
        ):
            readout = reading.readout(row, reading.embeds(row).expand(len(some), -1, -1))
        variants = [readout if other == row else x for other, x in enumerate(others)]
        scores[number, start : start + len(some)] = reading.score(variants, chosen, measure).float().cpu().numpy()
    before, after = session.score(chosen, measure), clean.score(chosen, measure)
    gap = after - before
    effect = (scores - before) / gap if gap else np.full_like(scores, np.nan)
    names, clean_names = session.rows[row].names, clean.rows[row].names
    return Patching(
        target=chosen,
        part=part,
        measure=measure,
        layers=walked,
        places=tuple(here),
        tokens=tuple(names[place] for place in here),
        clean_tokens=tuple(clean_names[place] for place in here),
        clean=after,
        corrupted=before,
        scores=scores,
        effect=effect.astype(np.float32),
    )


def patched_answer(
    session: Session, clean: Session, *, row: int, layer: int, places: Sequence[int] | None, part: Part
) -> Answer:
    """The task's own answer with the clean states of one layer at some tokens, or at all."""
    one_of("part", part, PARTS)
    here = _same_model(session, clean, row, places)
    lowest = 0 if part == "state" else 1
    if not lowest <= layer <= session.num_layers:
        raise InputError(f"There is no layer {layer} to patch.", f"Use {lowest} to {session.num_layers}.")
    given = _outputs(clean, row, part)[layer]
    with session.running(), session.reading.only_row(row), _replacing(session, part, layer, given, [here]):
        return session.reading.answer()


def _same_model(session: Session, clean: Session, row: int, places: Sequence[int] | None) -> list[int]:
    """The places to patch, once both texts are known to fit."""
    session.check_row(row)
    clean.check_row(row)
    if session.model is not clean.model or session.task != clean.task:
        raise InputError(
            "The two texts are open with different models or tasks.", "Open both with the same model and task."
        )
    sizes = len(session.rows[row]), len(clean.rows[row])
    if places is None and sizes[0] != sizes[1]:
        raise InputError(
            f"The texts have {sizes[0]} and {sizes[1]} tokens, so their tokens cannot be paired.",
            "Use texts with the same number of tokens, or name the {places=} that stand for the same in both.",
        )
    chosen = range(sizes[0]) if places is None else places
    for place in chosen:
        session.check_place(place, row)
        clean.check_place(place, row)
    return list(chosen)


def _modules(session: Session, part: Part) -> dict[int, nn.Module]:
    """The module whose output is patched, for every layer."""
    bert = session.bert
    layers = list(enumerate(bert.encoder.layer, start=1))
    if part == "state":
        return {0: bert.embeddings, **dict(layers)}
    if part == "attention":
        return {number: layer.attention.output.dense for number, layer in layers}
    return {number: layer.output.dense for number, layer in layers}


@torch.no_grad()
def _outputs(session: Session, row: int, part: Part) -> dict[int, Tensor]:
    """What these modules give for a row: `[S, D]` each."""
    if part == "state":
        return dict(enumerate(session.states(row)))
    found: dict[int, Tensor] = {}
    with ExitStack() as stack:
        stack.enter_context(held(session.model))
        stack.enter_context(session.running())
        for number, module in _modules(session, part).items():

            def keep(module: nn.Module, given: tuple[object, ...], output: Tensor, number: int = number) -> None:
                found[number] = output[0]

            stack.callback(module.register_forward_hook(keep).remove)
        session.bert(inputs_embeds=session.reading.embeds(row)[None], token_type_ids=session.reading.types(row, 1))
    return found


@contextmanager
def _replacing(
    session: Session, part: Part, layer: int, given: Tensor, places: Sequence[Sequence[int]]
) -> Iterator[None]:
    """While this lasts, a layer's output has `given[place]` at its places: item i of a batch at `places[i]`.

    A task packs its one row: `[T, D]` is then item 0.
    """
    items = [item for item, some in enumerate(places) for _ in some]
    flat = [place for some in places for place in some]

    def replace(module: nn.Module, inputs: tuple[object, ...], output: Output) -> Output | None:
        if not session.reading.is_current:
            return None
        states, rest = (output, None) if isinstance(output, Tensor) else (output[0], output[1:])
        states = states.clone()
        states[(items, flat) if states.dim() == 3 else flat] = given[flat].to(states.dtype)
        return states if rest is None else (states, *rest)

    handle = _modules(session, part)[layer].register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
