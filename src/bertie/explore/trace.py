"""One forward pass as a tree: every module with what went in and came out, and the lines of our source that did it.

The tree is that of the modules, in the order in which they ran. A step's `source` is the module's own `forward` where
that is ours; a Linear or LayerNorm of torch has the line of its parent that calls it. The numbers are of all tokens, or
of one token's vector, which a walk through the model follows from id to prediction.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import bertie
from bertie.explore.result import Column, Floats, Result
from bertie.explore.switches import held

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session

_WIDEST = 1 << 14  # a vector that is kept: wider than any activation, and not a vocabulary
_SOURCE = Path(bertie.__file__).parent

# What each part computes, as a formula; the shapes are those of model/bert.py's legend.
FORMULAS: dict[str, str] = {
    "BertEmbeddings": "h⁰ = LayerNorm(word + segment + position)",
    "BertEncoder": "hˡ⁺¹ = layerˡ(hˡ)",
    "BertLayer": "hˡ⁺¹ = LayerNorm(a + feed_forward(a)),  a = LayerNorm(hˡ + attention(hˡ))",
    "BertAttention": "a = LayerNorm(h + W·context + b)",
    "BertSelfAttention": "context = softmax(q·kᵀ / √H) · v,  for each of N heads",
    "BertSelfOutput": "LayerNorm(W·context + b + h)",
    "BertIntermediate": "GELU(W·a + b)",
    "BertOutput": "LayerNorm(W·x + b + a)",
    "BertPooler": "tanh(W·h[CLS] + b)",
    "BertPredictionHeadTransform": "LayerNorm(GELU(W·h + b))",
    "BertLMPredictionHead": "logits = E·transform(h) + b,  E: the word embeddings",
    "BertOnlyMLMHead": "logits = E·transform(h) + b",
    "BertOnlyNSPHead": "logits = W·pooled + b",
    "Embedding": "row number id of the table",
    "Linear": "W·x + b",
    "LayerNorm": "(x − mean) / √(variance + ε) · weight + bias",
    "Dropout": "x  (nothing is dropped when a model answers)",
    "Tanh": "tanh(x)",
}


@dataclass(frozen=True)
class Source:
    """Lines of a file of the package, the first of them numbered `first`."""

    file: str
    first: int
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """One module's run. `kind` is its class; mean, std and norm are of its output (of one token, where one is asked).

    `vector` is the token's own output, where there is one for every token: `[width]`.
    """

    name: str
    kind: str
    formula: str
    source: Source | None
    shapes_in: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    mean: float
    std: float
    norm: float
    num_parameters: int
    vector: Floats | None
    children: tuple[Step, ...]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Step]]:
        """(depth, step) of all steps, in the order in which they began."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Result):
    """The steps of one forward pass; `place` is the token whose numbers they hold, None for all tokens."""

    root: Step
    tokens: tuple[str, ...]
    place: int | None

    def steps(self) -> list[tuple[int, Step]]:
        """All steps in the order they run, each with its depth."""
        return list(self.root.walk())

    def find(self, name: str) -> Step:
        """The step of a module, by its full name."""
        for _, step in self.root.walk():
            if step.name == name:
                return step
        raise KeyError(name)

    def columns(self) -> dict[str, Column]:
        steps = self.steps()
        return {
            "depth": [depth for depth, _ in steps],
            "name": [step.name for _, step in steps],
            "kind": [step.kind for _, step in steps],
            "shape": [list(step.shape) for _, step in steps],
            "mean": [step.mean for _, step in steps],
            "std": [step.std for _, step in steps],
            "norm": [step.norm for _, step in steps],
            "parameters": [step.num_parameters for _, step in steps],
            "formula": [step.formula for _, step in steps],
            "source": [f"{step.source.file}:{step.source.first}" if step.source else "" for _, step in steps],
        }

    def draw(self, axes: Axes) -> None:
        layers = [step for _, step in self.root.walk() if step.kind in ("BertEmbeddings", "BertLayer")]
        axes.plot([step.norm for step in layers], marker="o")
        axes.set_xlabel("layer (0: the embeddings)")
        axes.set_ylabel("norm of the state")


@dataclass
class _Running:
    """A module's run while it lasts."""

    name: str
    module: nn.Module
    parent: nn.Module | None
    shapes_in: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...] = ()
    figures: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    vector: Floats | None = None
    children: list[_Running] = field(default_factory=list)

    def look_at(self, output: Tensor | None, place: int | None, length: int) -> None:
        """Numbers are taken at once: all outputs of a pass together are many times its states."""
        if output is None:
            return
        self.shape = tuple(output.shape)
        # [1, S, …] has a vector for every token; a position's or a pooled vector is no token's own.
        if place is not None and output.dim() == 3 and output.shape[1] == length:
            output = output[0, place]
            if len(output) <= _WIDEST:
                self.vector = output.float().cpu().numpy().copy()
        self.figures = _figures(output)


def trace(session: Session, row: int, place: int | None) -> Trace:
    session.check_row(row)
    if place is not None:
        session.check_place(place, row)
    model = session.model
    names = {module: name or "model" for name, module in model.named_modules()}
    roots: list[_Running] = []
    open_steps: list[_Running] = []

    def begin(module: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        parent = open_steps[-1] if open_steps else None
        shapes = tuple(tuple(x.shape) for x in (*given, *named.values()) if isinstance(x, Tensor))
        step = _Running(names[module], module, None if parent is None else parent.module, shapes)
        (roots if parent is None else parent.children).append(step)
        open_steps.append(step)

    def end(module: nn.Module, given: tuple[object, ...], output: Tensor | Iterable[object]) -> None:
        open_steps.pop().look_at(_tensor_of(output), place, len(session.rows[row]))

    with ExitStack() as stack:
        stack.enter_context(held(model))
        stack.enter_context(session.running())
        for module in names:
            handles = (
                module.register_forward_pre_hook(begin, with_kwargs=True),
                module.register_forward_hook(end),
            )
            for handle in handles:
                stack.callback(handle.remove)
        with torch.no_grad():
            session.reading.run_ids(row)
    return Trace(_step(roots[0]), session.rows[row].names, place)


def _tensor_of(output: Tensor | Iterable[object]) -> Tensor | None:
    """The first tensor of what a module gave: its states, or the logits of a whole model."""
    match output:
        case Tensor():
            return output
        case dict():
            output = output.values()
    return next((x for x in output if isinstance(x, Tensor)), None)


def _step(run: _Running) -> Step:
    mean, std, norm = run.figures
    kind = type(run.module).__name__
    return Step(
        name=run.name,
        kind=kind,
        formula=FORMULAS.get(kind, ""),
        source=_source_of(run),
        shapes_in=run.shapes_in,
        shape=run.shape,
        mean=mean,
        std=std,
        norm=norm,
        num_parameters=sum(p.numel() for p in run.module.parameters(recurse=False)),
        vector=run.vector,
        children=tuple(map(_step, run.children)),
    )


def _figures(numbers: Tensor) -> tuple[float, float, float]:
    """Mean, standard deviation, and the norm of a vector: of several, their mean norm."""
    if not numbers.numel() or not numbers.is_floating_point():
        return math.nan, math.nan, math.nan
    x = numbers.float()
    return float(x.mean()), float(x.std(correction=0)), float(torch.linalg.vector_norm(x, dim=-1).mean())


def _source_of(run: _Running) -> Source | None:
    own = _lines(inspect.unwrap(type(run.module).forward), None)
    if own is not None or run.parent is None:
        return own
    return _lines(inspect.unwrap(type(run.parent).forward), run.name.rpartition(".")[2])


@cache
def _lines(forward: Callable[..., object], called: str | None) -> Source | None:
    """A `forward` of ours, or the statement of it that calls `self.called(…)`."""
    try:
        file = Path(inspect.getsourcefile(forward) or "")
        if not file.is_relative_to(_SOURCE):
            return None
        lines, first = inspect.getsourcelines(forward)
    except (OSError, TypeError):  # a class made in a notebook has no file
        return None
    name = str(file.relative_to(_SOURCE.parent))
    if called is None:
        return Source(name, first, tuple(line.rstrip("\n") for line in lines))
    for statement in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(statement, ast.stmt) and _calls(statement, called):
            start, stop = statement.lineno - 1, (statement.end_lineno or statement.lineno)
            return Source(name, first + start, tuple(line.rstrip("\n") for line in lines[start:stop]))
    return Source(name, first, tuple(line.rstrip("\n") for line in lines))


def _calls(statement: ast.stmt, called: str) -> bool:
    """Whether a single statement (not one with a body) has `self.called` in it."""
    match statement:
        case ast.FunctionDef() | ast.If() | ast.For() | ast.With():
            return False
    for node in ast.walk(statement):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name == called:
                return True
    return False
