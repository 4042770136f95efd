"""Parts of a model switched off, put at their mean, or weighed: heads, layers, feed-forward networks, neurons.

    with switched(model, Switches(heads={(3, 7)})):
        model(ids)                                          padded or packed, any head class

The model's code stays as it is: hooks multiply what a part gives by its *gate*, a number from 0 (off) to 1 (on), and
add (1 − gate) of its mean where means are given.

    head           its part of the context, before the output projection: 0 is what pruning it gives
    neuron         its activation between the two halves of the feed-forward network
    feed_forward   all neurons of a layer at once
    layer          what the layer adds to the states that come in: 0 passes them on

Hooks belong to the model, which several threads may share, so whoever uses them holds the model (`held`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bertie.errors import InputError
from bertie.explore.result import Floats
from bertie.model import BertModel
from bertie.model.bert import BertLayer
from bertie.model.pretrained import BertPreTrainedModel

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


@dataclass(frozen=True)
class Switches:
    """What is off, by original numbers: (layer, head) pairs, layers, layers' feed-forward parts, (layer, neuron) pairs.

    >>> Switches(heads={(0, 1)}) | Switches(layers={2})
    Switches(heads=[(0, 1)], layers=[2])
    """

    heads: Collection[tuple[int, int]] = frozenset()
    layers: Collection[int] = frozenset()
    feed_forward: Collection[int] = frozenset()
    neurons: Collection[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for name in _PARTS:
            given = getattr(self, name)
            pairs = name in ("heads", "neurons")
            try:
                found = frozenset((int(a), int(b)) for a, b in given) if pairs else frozenset(map(int, given))
            except (TypeError, ValueError):
                wanted = "(layer, number) pairs" if pairs else "layer numbers"
                raise InputError(f"{{{name}:is}} it must be {wanted}.", **{name: given}) from None
            object.__setattr__(self, name, found)

    def __or__(self, other: Switches) -> Switches:
        return Switches(**{name: {*getattr(self, name), *getattr(other, name)} for name in _PARTS})

    def __sub__(self, other: Switches) -> Switches:
        return Switches(**{name: {*getattr(self, name)} - {*getattr(other, name)} for name in _PARTS})

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _PARTS)

    def __repr__(self) -> str:
        return f"Switches({', '.join(f'{name}={found}' for name, found in self.to_json().items())})"

    def to_json(self) -> dict[str, list[object]]:
        """Lists of what is off, in order; what is not mentioned is on."""
        return {name: sorted(getattr(self, name)) for name in _PARTS if getattr(self, name)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Switches:
        """The inverse of `to_json`."""
        unknown = sorted(set(given) - set(_PARTS))
        if unknown:
            raise InputError(f"There is no part {unknown[0]!r} to switch off.", f"There are: {', '.join(_PARTS)}.")
        return cls(**given)

    def lowest(self) -> int | None:
        """The first layer that anything is off in; None where nothing is."""
        found = {*self.layers, *self.feed_forward, *(pair[0] for pair in (*self.heads, *self.neurons))}
        return min(found, default=None)

    def check(self, bert: BertModel) -> None:
        """Refuse what the model does not have."""
        layers = bert.encoder.layer
        last = len(layers) - 1
        for layer in sorted({*self.layers, *self.feed_forward, *(pair[0] for pair in (*self.heads, *self.neurons))}):
            if not 0 <= layer <= last:
                raise InputError(f"There is no layer {layer} to switch off.", f"Layers are 0 to {last}.")
        for layer, head in sorted(self.heads):
            check_head(bert, layer, head)
        for layer, neuron in sorted(self.neurons):
            if not 0 <= neuron < (width := _num_neurons(layers[layer])):
                raise InputError(f"Layer {layer} has no neuron {neuron}.", f"Neurons are 0 to {width - 1}.")


_PARTS = ("heads", "layers", "feed_forward", "neurons")
EVERYTHING_ON = Switches()


def check_head(bert: BertModel, layer: int, head: int) -> None:
    """Refuse a layer or head that is not there, or that is pruned."""
    config, last = bert.config, len(bert.encoder.layer) - 1
    there = 0 <= layer <= last
    if there and head in bert.encoder.layer[layer].attention.self.heads:
        return
    pruned = there and 0 <= head < config.num_attention_heads
    raise InputError(
        f"Layer {layer} has no head {head}{': it is pruned' if pruned else ''}.",
        f"Layers are 0 to {last}, heads 0 to {config.num_attention_heads - 1}.",
    )


def _num_neurons(layer: BertLayer) -> int:
    return layer.intermediate.dense.out_features


@dataclass(frozen=True)
class Means:
    """What each part gives on average over the tokens of a sample; heads have their original numbers."""

    heads: Floats  # [layers, N, H]; pruned heads are 0
    neurons: Floats  # [layers, intermediate]
    layers: Floats  # [layers, D], what a layer adds to its input
    num_tokens: int


@dataclass
class Gates:
    """Numbers the parts are multiplied by; a part without any is left alone. Heads are in their original numbering.

    Each is one number for everything, or one for every row (a leading axis R), so that one backward pass gives the
    gradients of each row by itself: `rows` says to which row a token of a packed batch belongs; the items of a padded
    batch are its rows.
    """

    heads: dict[int, Tensor] = field(default_factory=dict)  # {layer: [N] or [R, N]}
    layers: dict[int, Tensor] = field(default_factory=dict)  # {layer: [] or [R]}
    feed_forward: dict[int, Tensor] = field(default_factory=dict)  # {layer: [] or [R]}
    neurons: dict[int, Tensor] = field(default_factory=dict)  # {layer: [intermediate] or [R, intermediate]}
    rows: Tensor | None = None  # [T]


# -- holding a model ---------------------------------------------------------------------------------------------------


@contextmanager
def held(model: BertPreTrainedModel) -> Iterator[None]:
    """This thread alone runs the model and hangs hooks on it; a thread may hold it several times."""
    with _locks_lock:
        lock = _locks.setdefault(encoder_of(model).encoder, threading.RLock())
    with lock:
        yield


def encoder_of(model: BertPreTrainedModel) -> BertModel:
    """The `BertModel` inside a model, or itself."""
    bert: BertModel = model.base_model
    return bert


@contextmanager
def switched(model: BertPreTrainedModel, off: Switches, means: Means | None = None) -> Iterator[None]:
    """While this lasts, `model` answers without the parts that are `off`, or with their `means` in their place."""
    bert = encoder_of(model)
    off.check(bert)
    config, weight = bert.config, bert.embeddings.word_embeddings.weight
    gates = Gates()
    for layer in {pair[0] for pair in off.heads}:
        gates.heads[layer] = _without(weight, config.num_attention_heads, (h for at, h in off.heads if at == layer))
    for layer in {pair[0] for pair in off.neurons}:
        width = _num_neurons(bert.encoder.layer[layer])
        gates.neurons[layer] = _without(weight, width, (n for at, n in off.neurons if at == layer))
    gates.feed_forward = dict.fromkeys(off.feed_forward, weight.new_zeros(()))
    gates.layers = dict.fromkeys(off.layers, weight.new_zeros(()))
    with gated(model, gates, means):
        yield


def _without(like: Tensor, count: int, missing: Iterator[int]) -> Tensor:
    gate = torch.ones(count, dtype=like.dtype, device=like.device)
    gate[list(missing)] = 0
    return gate


@contextmanager
def gated(model: BertPreTrainedModel, gates: Gates, means: Means | None = None) -> Iterator[None]:
    """While this lasts, parts are multiplied by their gates."""
    layers = encoder_of(model).encoder.layer
    with ExitStack() as stack:
        stack.enter_context(held(model))
        handles: list[RemovableHandle] = []
        stack.enter_context(_removed(handles))
        for number, gate in gates.heads.items():
            part = layers[number].attention.self
            of_head = gate[..., list(part.heads)].repeat_interleave(part.attention_head_size, dim=-1)
            mean = None if means is None else means.heads[number, list(part.heads)].ravel()
            handles.append(part.register_forward_hook(_first_output(_weighed(of_head, mean, gates.rows))))
        for kind in (gates.feed_forward, gates.neurons):
            for number, gate in kind.items():
                mean = None if means is None else means.neurons[number]
                of_neuron = gate[..., None] if kind is gates.feed_forward else gate
                weigh = _weighed(of_neuron, mean, gates.rows)
                handles.append(layers[number].intermediate.register_forward_hook(_whole_output(weigh)))
        for number, gate in gates.layers.items():
            mean = None if means is None else means.layers[number]
            weigh = _weighed(gate[..., None], mean, gates.rows)
            handles.append(layers[number].register_forward_hook(_added_output(weigh)))
        yield


@contextmanager
def _removed(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


Weigh = Callable[[Tensor], Tensor]
Hook = Callable[[nn.Module, tuple[Tensor, ...], Any], object]


def _weighed(gate: Tensor, mean: Floats | None, rows: Tensor | None) -> Weigh:
    """x `[…, width]` · gate + (1 − gate) · mean. A gate is `[width]` (or `[1]`), or one of these for every row."""

    def weigh(x: Tensor) -> Tensor:
        by_token = gate.to(x.dtype)
        if gate.dim() == 2:
            by_token = by_token[rows] if x.dim() == 2 else by_token[:, None]
        weighed = x * by_token
        if mean is None:
            return weighed
        return weighed + (1 - by_token) * torch.from_numpy(mean).to(x.device, x.dtype)

    return weigh


def _first_output(weigh: Weigh) -> Hook:
    return lambda module, given, output: (weigh(output[0]), *output[1:])


def _whole_output(weigh: Weigh) -> Hook:
    return lambda module, given, output: weigh(output)


def _added_output(weigh: Weigh) -> Hook:
    return lambda module, given, output: (given[0] + weigh(output[0] - given[0]), *output[1:])


@contextmanager
def from_layer(bert: BertModel, states: Callable[[], Tensor], layer: int) -> Iterator[None]:
    """While this lasts, a run begins after `layer` layers, with `states()[layer]`, `[S, D]` of the row that is run.

    The layers below give what they gave: a run that differs above alone need not begin with the embeddings. They stay
    where they are, for other threads look at them, and pass on what they are given.
    """
    if layer == 0:
        yield
        return

    def begin(module: nn.Module, given: tuple[object, ...], output: Tensor) -> Tensor:
        found = states()[layer]
        return found if output.dim() == 2 else found.expand_as(output)

    with held(bert):
        handle = bert.embeddings.register_forward_hook(begin)
        below = bert.encoder.layer[:layer]
        for part in below:
            vars(part)["forward"] = _pass_on
        try:
            yield
        finally:
            handle.remove()
            for part in below:
                del vars(part)["forward"]


def _pass_on(hidden_states: Tensor, *given: object, **options: object) -> tuple[Tensor, None, None]:
    return hidden_states, None, None


# -- means -------------------------------------------------------------------------------------------------------------


@contextmanager
def summing(model: BertPreTrainedModel) -> Iterator[Callable[[], Means]]:
    """While this lasts, what the parts of a model give is added up; the function gives the means so far.

    Batches must hold no padding: it would be counted.
    """
    bert = encoder_of(model)
    config, layers = bert.config, bert.encoder.layer
    shape = (len(layers), config.num_attention_heads, config.attention_head_size)
    heads, widest = np.zeros(shape), max((_num_neurons(layer) for layer in layers), default=0)
    neurons, added = np.zeros((len(layers), widest)), np.zeros((len(layers), config.hidden_size))
    tokens = 0

    def add_heads(number: int) -> Hook:
        kept = list(layers[number].attention.self.heads)

        def hook(module: nn.Module, given: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
            nonlocal tokens
            tokens += output[0].shape[:-1].numel() if number == 0 else 0
            heads[number, kept] += _summed(output[0]).reshape(len(kept), heads.shape[-1])

        return hook

    def add_neurons(number: int) -> Hook:
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            neurons[number] += _summed(output)

        return hook

    def add_layer(number: int) -> Hook:
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
            added[number] += _summed(output[0] - given[0])

        return hook

    def found() -> Means:
        count = max(1, tokens)
        by_head, by_neuron, by_layer = ((sums / count).astype(np.float32) for sums in (heads, neurons, added))
        return Means(by_head, by_neuron, by_layer, tokens)

    with held(model):
        handles: list[RemovableHandle] = []
        with _removed(handles):
            for number, layer in enumerate(layers):
                handles.append(layer.attention.self.register_forward_hook(add_heads(number)))
                handles.append(layer.intermediate.register_forward_hook(add_neurons(number)))
                handles.append(layer.register_forward_hook(add_layer(number)))
            yield found


def _summed(x: Tensor) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = x.detach().double().flatten(0, -2).sum(0).cpu().numpy()
    return found
