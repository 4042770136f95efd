"""Keys and values a decoder has already computed, so that the next token costs one token.

Per layer the cache holds the self-attention's keys and values, which grow, and the cross-attention's, computed once
from the encoder's states. All are `[batch, heads, length, head]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bertie.errors import InputError

KeyValue = tuple[Tensor, Tensor]


@dataclass
class LayerCache:
    """One layer's keys and values."""

    own: KeyValue | None = None
    cross: KeyValue | None = None

    def append(self, k: Tensor, v: Tensor) -> KeyValue:
        """Add new keys and values behind the old; returns all of them."""
        if self.own is not None:
            k, v = torch.cat([self.own[0], k], dim=-2), torch.cat([self.own[1], v], dim=-2)
        self.own = (k, v)
        return self.own


class KeyValueCache:
    """All layers' caches. A model fills the one it is given and returns it.

    `cache[layer]` reads like the legacy tuple: (keys, values) or (keys, values, cross keys, cross values).
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """How many positions are held."""
        own = self.layers[0].own
        return 0 if own is None else own[0].shape[-2]

    @property
    def given(self) -> Any:
        """What the model returns as `past_key_values`: the object that the caller knows."""
        return self

    def check(self, batch: int, heads: Sequence[int]) -> None:
        """That it was made by a batch of as many texts, and layers of this many heads."""
        for number, (layer, wanted) in enumerate(zip(self.layers, heads, strict=True)):
            for k, v in filter(None, (layer.own, layer.cross)):
                if k.shape != v.shape or k.shape[0] != batch:
                    raise InputError(
                        f"past_key_values[{number}] has keys of shape {list(k.shape)} and values of {list(v.shape)}; "
                        f"the batch has {batch} texts."
                    )
            if layer.own is None:
                continue
            _, found, length, _ = layer.own[0].shape
            if found != wanted or length != self.length:
                raise InputError(
                    f"past_key_values[{number}] holds {length} positions of {found} heads; the layer has {wanted} "
                    f"heads, and the first one holds {self.length} positions."
                )

    def reorder(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order: what beam search does after every step."""
        for layer in self.layers:
            if layer.own is not None:
                layer.own = (layer.own[0].index_select(0, rows), layer.own[1].index_select(0, rows))
            if layer.cross is not None:
                layer.cross = (layer.cross[0].index_select(0, rows), layer.cross[1].index_select(0, rows))

    @classmethod
    def from_legacy(cls, past: Iterable[Iterable[Tensor | None]]) -> KeyValueCache:
        """Read the older tuple of tuples, 2 or 4 tensors to a layer (some writers put None for the latter two)."""
        try:
            past = [list(given) for given in past]
        except TypeError:
            raise InputError(
                f"past_key_values is of type {type(past).__name__}; it must be what a model returned under that name."
            ) from None
        cache = cls(len(past))
        for number, (layer, given) in enumerate(zip(cache.layers, past, strict=True)):
            tensors = [tensor for tensor in given if tensor is not None]
            if len(tensors) not in (2, 4) or any(not isinstance(t, Tensor) or t.dim() != 4 for t in tensors):
                shapes = [list(t.shape) if isinstance(t, Tensor) else t for t in tensors]
                raise InputError(
                    f"past_key_values[{number}] holds {shapes}; it must be 2 or 4 tensors [batch, heads, length, head]."
                )
            layer.own = (tensors[0], tensors[1])
            layer.cross = (tensors[2], tensors[3]) if len(tensors) == 4 else None
        return cache

    def to_legacy(self) -> tuple[tuple[Tensor, ...], ...]:
        """The older tuple of tuples."""
        return tuple(self[number] for number in range(len(self)))

    # The names that code written for the hub's library uses.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many positions the cache holds."""
        return self.length

    def get_max_cache_shape(self) -> int:
        """None: the cache grows as needed."""
        return -1  # it grows

    reorder_cache = reorder
    to_legacy_cache = to_legacy
    from_legacy_cache = from_legacy

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        layer = self.layers[number]
        return (layer.own or ()) + (layer.cross or ())

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self.to_legacy())


def _flatten(cache: KeyValueCache) -> tuple[list[Tensor], list[int]]:
    return [tensor for layer in cache for tensor in layer], [len(layer) for layer in cache]


def _unflatten(tensors: Iterable[Tensor], counts: list[int]) -> KeyValueCache:
    rest, cache = iter(tensors), KeyValueCache(len(counts))
    for layer, count in zip(cache.layers, counts, strict=True):
        found = tuple(islice(rest, count))
        layer.own = (found[0], found[1]) if count else None
        layer.cross = (found[2], found[3]) if count == 4 else None
    return cache


# A model that is exported may take and return one.
pytree.register_pytree_node(
    KeyValueCache, _flatten, _unflatten, serialized_type_name=f"{KeyValueCache.__module__}.{KeyValueCache.__name__}"
)
