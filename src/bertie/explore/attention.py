"""Attention, looked at: maps of any head, what each head does on the whole, and the scores behind one weight.

Maps are not kept: one layer's map of 512 tokens takes 12 MB. A session keeps the states between layers, and a map is
computed from its layer's state when it is asked for, with the model's own projections and the model's own attention
(ops/attention.py), so relative positions, causality and pruned heads are what they are in the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, linear

from bertie.errors import InputError
from bertie.explore.result import Column, Floats, Result, heat_html, heat_map, long_table
from bertie.explore.switches import check_head, encoder_of
from bertie.model.bert import BertSelfAttention
from bertie.ops.attention import AttentionPlan, attention_probabilities
from bertie.ops.relative import RelativePositions, SharedBias, shared_bias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap(Result):
    """How much each token (row) looks at each other (column) in one head: `weights[query, key]`, rows add up to 1."""

    layer: int
    head: int
    tokens: tuple[str, ...]
    weights: Floats  # [S, S]

    def columns(self) -> dict[str, Column]:
        numbered = _numbered(self.tokens)
        return long_table(self.weights, ("query", "key"), (numbered, numbered), "weight")

    def html(self) -> str:
        return heat_html(self.weights, rows=self.tokens, columns=self.tokens, title=self._title)

    def draw(self, axes: Axes) -> None:
        heat_map(axes, self.weights, rows=self.tokens, columns=self.tokens, title=self._title)

    @property
    def _title(self) -> str:
        return f"layer {self.layer}, head {self.head}"


@dataclass(frozen=True, eq=False, repr=False)
class HeadStatistics(Result):
    """What each head does on this text, means over its queries: a row to a head, pruned ones left out.

    `entropy` in nats: 0 looks at one token, log S at all alike. `distance` in tokens. The others are the weight on
    [CLS], on [SEP]s, on the token itself, on the one after it and on the one before it.
    """

    layer: tuple[int, ...]
    head: tuple[int, ...]
    entropy: Floats
    distance: Floats
    cls: Floats
    sep: Floats
    self_: Floats
    next: Floats
    previous: Floats

    def columns(self) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for field in fields(self):
            values = getattr(self, field.name)
            found[field.name.rstrip("_")] = list(values) if isinstance(values, tuple) else values.tolist()
        return found

    def draw(self, axes: Axes) -> None:
        axes.scatter(self.distance, self.entropy, c=self.layer)
        for layer, head, x, y in zip(self.layer, self.head, self.distance, self.entropy, strict=True):
            axes.annotate(f"{layer}.{head}", (float(x), float(y)), fontsize=6)
        axes.set_xlabel("mean distance (tokens)")
        axes.set_ylabel("entropy (nats)")


@dataclass(frozen=True, eq=False, repr=False)
class NeuronView(Result):
    """The score of one query and one key, number by number: `product` adds up to q·k.

    score = (Σ product + relative_query + relative_key) · scale, and the weight is its share in the query's softmax. The
    relative parts are what the query and the key make of their distance; 0 for absolute positions.
    """

    layer: int
    head: int
    query: int
    key: int
    query_token: str
    key_token: str
    q: Floats  # [H]
    k: Floats  # [H]
    product: Floats  # [H]
    relative_query: float
    relative_key: float
    scale: float
    score: float
    weight: float

    def columns(self) -> dict[str, Column]:
        return {
            "neuron": list(range(len(self.q))),
            "q": self.q.tolist(),
            "k": self.k.tolist(),
            "product": self.product.tolist(),
        }

    def html(self) -> str:
        return heat_html(
            np.stack((self.q, self.k, self.product)), rows=("q", "k", "q × k"), columns=(), title=self._title
        )

    def draw(self, axes: Axes) -> None:
        neurons = [str(number) for number in range(len(self.q))]
        stacked = np.stack((self.q, self.k, self.product))
        heat_map(axes, stacked, rows=("q", "k", "q × k"), columns=neurons, title=self._title)

    @property
    def _title(self) -> str:
        place = f"layer {self.layer}, head {self.head}"
        return f"{place}: {self.query_token} → {self.key_token}, score {self.score:.3f}, weight {self.weight:.3f}"


# -- computing ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def probabilities(session: Session, layer: int, row: int, heads: Sequence[int] | None = None) -> Tensor:
    """`[heads, S, S]` float32 on the model's device: those of all heads that are left, or of some."""
    part = session.bert.encoder.layer[layer].attention.self
    slots = None if heads is None else [part.heads.index(head) for head in heads]
    state, relative = session.states(row)[layer], _relative(session, layer, row)
    q, k = (_projected(part, project, state, slots) for project in (part.query, part.key))
    if relative is not None and slots is not None:
        relative = relative.of_heads(slots)
    plan = AttentionPlan(causal=session.config.is_decoder, maps=True)
    return attention_probabilities(q, k, plan, relative=relative)[0].float()


def _projected(part: BertSelfAttention, project: nn.Module, state: Tensor, slots: list[int] | None) -> Tensor:
    """`[1, heads, S, H]`: queries or keys of all heads, or of some, for which only their weights are multiplied.

    A projection that is not as the model has it (an adapter's, say) is run whole: there is more to it than its weights.
    """
    if slots is None or type(project) is not nn.Linear:
        found = part.split_heads(project(state[None]))
        return found if slots is None else found[:, slots]
    size, width = part.attention_head_size, project.in_features
    weight, bias = project.weight.view(-1, size, width)[slots], project.bias.view(-1, size)[slots]
    found = linear(state, weight.view(-1, width), bias.view(-1))
    return found.view(len(state), len(slots), size).transpose(0, 1)[None]


def _relative(session: Session, layer: int, row: int) -> RelativePositions | SharedBias | None:
    """A layer's own relative positions, or those that all layers of a relative share."""
    encoder = session.bert.encoder
    own, table = encoder.layer[layer].attention.self, encoder.relative_attention_bias
    if table is None:
        return own.relative_positions()
    return shared_bias(table, len(session.rows[row])).of_heads(own.heads)


def attention_map(session: Session, layer: int, head: int, row: int) -> AttentionMap:
    check_head(session.bert, layer, head)
    weights = probabilities(session, layer, row, [head])[0].cpu().numpy()
    return AttentionMap(layer, head, session.rows[row].names, weights)


def map_bytes(session: Session, layer: int, head: int, row: int) -> bytes:
    check_head(session.bert, layer, head)
    return companded(probabilities(session, layer, row, [head])[0]).tobytes()


def companded(weights: Tensor) -> Bytes:
    """A byte to a weight, which is (byte / 255)²: small weights, of which there are many, keep their differences."""
    return (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8).cpu().numpy()


@torch.no_grad()
def thumbnails(session: Session, row: int, size: int) -> Bytes:
    """`[layers, N, h, w]`. A layer at a time: all maps of a text of 512 tokens would be 150 MB."""
    length, config = len(session.rows[row]), session.config
    small = min(size, length)
    found = np.zeros((config.num_hidden_layers, config.num_attention_heads, small, small), np.uint8)
    for layer, heads in session.heads.items():
        if heads:
            maps = probabilities(session, layer, row)
            shrunk = maps if small == length else adaptive_max_pool2d(maps, small)
            found[layer, heads] = companded(shrunk)
    return found


@torch.no_grad()
def head_statistics(session: Session, row: int) -> HeadStatistics:
    measure = _Measure(session, row)
    places = [(layer, head) for layer, heads in session.heads.items() for head in heads]
    found = [measure(probabilities(session, layer, row)) for layer, heads in session.heads.items() if heads]
    table = torch.cat(found).cpu().numpy() if found else np.zeros((0, 7), np.float32)
    layers, numbers = zip(*places, strict=True) if places else ((), ())
    return HeadStatistics(layers, numbers, *table.T)


class _Measure:
    """`[heads, S, S]` → `[heads, 7]`, in the order of `HeadStatistics`."""

    def __init__(self, session: Session, row: int) -> None:
        device, tokenizer = session.device, session.tokenizer
        ids = torch.tensor(session.rows[row].ids, device=device)
        places = torch.arange(len(ids), device=device, dtype=torch.float32)
        self.distances = (places[:, None] - places).abs()
        self.is_sep = (ids == (tokenizer.sep_token_id if tokenizer.sep_token_id is not None else -1)).float()

    def __call__(self, maps: Tensor) -> Tensor:
        diagonals = [maps.diagonal(offset, dim1=1, dim2=2) for offset in (0, 1, -1)]
        on_diagonals = [x.mean(-1) if x.shape[-1] else x.new_zeros(len(x)) for x in diagonals]
        return torch.stack(
            [
                torch.special.entr(maps).sum(-1).mean(-1),
                (maps * self.distances).sum(-1).mean(-1),
                maps[:, :, 0].mean(-1),
                (maps * self.is_sep).sum(-1).mean(-1),
                *on_diagonals,
            ],
            dim=1,
        )


@torch.no_grad()
def neuron_view(session: Session, layer: int, head: int, query: int, key: int, row: int) -> NeuronView:
    check_head(session.bert, layer, head)
    tokens = session.rows[row].names
    for name, place in (("query", query), ("key", key)):
        session.check_place(place, row, name)
    part = encoder_of(session.model).encoder.layer[layer].attention.self
    if session.config.is_decoder and key > query:
        raise InputError("In a decoder a query does not see the keys after it.", "Choose a key up to the query.")
    slot, state = part.heads.index(head), session.states(row)[layer]
    q, k = (_projected(part, project, state, [slot]).float() for project in (part.query, part.key))
    one, other = q[0, 0, query], k[0, 0, key]
    product, scale = one * other, 1 / math.sqrt(len(one))
    by_query = by_key = 0.0
    match _relative(session, layer, row):
        case RelativePositions() as relative:
            by_query = float(replace(relative, with_keys=False).scores(q, k)[0, 0, query, key])
            by_key = float(relative.scores(q, k)[0, 0, query, key]) - by_query
        case SharedBias() as shared:  # it is added to what is scaled already
            by_query = float(shared.of_heads([slot]).bias[0, query, key]) / scale
    return NeuronView(
        layer=layer,
        head=head,
        query=query,
        key=key,
        query_token=tokens[query],
        key_token=tokens[key],
        q=one.cpu().numpy(),
        k=other.cpu().numpy(),
        product=product.cpu().numpy(),
        relative_query=by_query,
        relative_key=by_key,
        scale=scale,
        score=(float(product.sum()) + by_query + by_key) * scale,
        weight=float(probabilities(session, layer, row, [head])[0, query, key]),
    )


def _numbered(tokens: Sequence[str]) -> list[str]:
    return [f"{place} {token}" for place, token in enumerate(tokens)]
