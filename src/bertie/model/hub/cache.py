"""transformers' cache objects as `past_key_values`.

A `DynamicCache` or an `EncoderDecoderCache` is made by the caller, filled by the model and given back: the same object,
grown. So it is here. Neither class is imported: whatever has `update` and `get_seq_length` is taken for one. A cache of
another shape than "all positions so far" (static, sliding, quantised) is refused, because its keys would not be those
that the attention mask speaks of.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor

from bertie.errors import InputError
from bertie.model.cache import KeyValue, KeyValueCache, LayerCache

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class _Held(Protocol):
    """One layer of a cache of transformers'."""

    keys: Tensor | None
    values: Tensor | None


class TheirCache(Protocol):
    """What is asked of a cache of transformers'; one of two halves has the last three as well."""

    layers: Sequence[_Held]
    self_attention_cache: TheirCache
    cross_attention_cache: TheirCache
    is_updated: MutableMapping[int, bool]

    def update(self, k: Tensor, v: Tensor, layer_idx: int) -> KeyValue: ...
    def get_seq_length(self) -> int: ...


Past: TypeAlias = KeyValueCache | TheirCache | Sequence[Sequence[Tensor | None]]


def _is_theirs(past: object) -> TypeIs[TheirCache]:
    return hasattr(past, "update") and hasattr(past, "get_seq_length")


def adopt(past: Past, num_layers: int) -> KeyValueCache:
    """Our cache as it is, transformers' behind our interface, and a tuple of tuples copied into our cache."""
    if isinstance(past, KeyValueCache):
        return past
    if _is_theirs(past):
        return HubCache(past, num_layers)
    return KeyValueCache.from_legacy(past)


class LayerShare:
    """One layer's cache as transformers' attention uses a cache."""

    def __init__(self, layer: LayerCache) -> None:
        self.layer = layer

    def update(self, k: Tensor, v: Tensor, layer_idx: int | None = None, cache_kwargs: object = None) -> KeyValue:
        return self.layer.append(k, v)

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        return 0 if self.layer.own is None else self.layer.own[0].shape[-2]


def layer_of(past: object, number: int) -> LayerCache | None:
    """One layer's share of a cache, which the layer adds to; None where it is no cache."""
    if isinstance(past, LayerShare):
        return past.layer
    if isinstance(past, KeyValueCache):
        return past.layers[number]
    return _HubLayer(past, number) if _is_theirs(past) else None


def contents(past: Past) -> KeyValueCache:
    """A copy of what a cache holds, which may grow without it."""
    num_layers = len(getattr(past, "self_attention_cache", past).layers) if _is_theirs(past) else 0
    held: Iterable[Iterable[Tensor | None]] = adopt(past, num_layers)
    return KeyValueCache.from_legacy(held)


class HubCache(KeyValueCache):
    """A cache of transformers'. What is appended goes into it, and the model gives it back in the end."""

    def __init__(self, given: TheirCache, num_layers: int) -> None:
        held = len(getattr(given, "self_attention_cache", given).layers)
        if held and held != num_layers:  # a lazily made one has none yet
            raise InputError(f"past_key_values holds {held} layers; the model has {num_layers}.")
        self.layers = [_HubLayer(given, number) for number in range(num_layers)]
        self._given = given

    @property
    def given(self) -> TheirCache:
        return self._given


class _HubLayer(LayerCache):
    """One layer's share: nothing is held here, everything there."""

    def __init__(self, given: TheirCache, number: int) -> None:
        self._own: TheirCache = getattr(given, "self_attention_cache", given)
        self._cross: TheirCache | None = getattr(given, "cross_attention_cache", None)
        self._given, self._number = given, number

    @property
    def own(self) -> KeyValue | None:  # type: ignore[override]  # only `append` changes it
        return _held(self._own, self._number)

    def append(self, k: Tensor, v: Tensor) -> KeyValue:
        before = 0 if self.own is None else self.own[0].shape[-2]
        new = k.shape[-2]
        k, v = self._own.update(k, v, self._number)
        if k.shape[-2] != before + new:
            raise InputError(
                f"past_key_values is a {type(self._own).__name__} and gave {k.shape[-2]} positions back for "
                f"{before} old and {new} new ones.",
                "Use a DynamicCache, an EncoderDecoderCache of two, or the cache that the model makes itself.",
            )
        return k, v

    @property
    def cross(self) -> KeyValue | None:
        """Of the encoder's states. A cache for one attention has no room for them; they are computed every time."""
        if self._cross is None or not self._given.is_updated.get(self._number):
            return None
        return _held(self._cross, self._number)

    @cross.setter
    def cross(self, computed: KeyValue | None) -> None:
        if self._cross is not None and computed is not None:
            self._cross.update(*computed, self._number)
            self._given.is_updated[self._number] = True


def _held(cache: TheirCache, number: int) -> KeyValue | None:
    if number >= len(cache.layers):
        return None
    keys, values = cache.layers[number].keys, cache.layers[number].values
    return None if keys is None or values is None or not keys.numel() else (keys, values)
