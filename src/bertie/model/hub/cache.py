"""transformers' cache objects as `past_key_values`.

A `DynamicCache` or an `EncoderDecoderCache` is made by the caller, filled by the model and given back: the same object,
grown. So it is here. Neither class is imported: whatever has `update` and `get_seq_length` is taken for one. A cache of
another shape than "all positions so far" (static, sliding, quantised) is refused, because its keys would not be those
that the attention mask speaks of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from bertie.errors import InputError
from bertie.model.cache import KeyValue, KeyValueCache


def adopt(past: Any, num_layers: int) -> KeyValueCache:
    """A cache of ours as it is, transformers' behind our interface, and a tuple of tuples copied into one of ours."""
    if isinstance(past, KeyValueCache):
        return past
    if hasattr(past, "update") and hasattr(past, "get_seq_length"):
        return HubCache(past, num_layers)
    return KeyValueCache.from_legacy(past)


class LayerShare:
    """One layer's cache as transformers' attention uses a cache."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def update(self, k: Tensor, v: Tensor, layer_idx: int | None = None, cache_kwargs: Any = None) -> KeyValue:
        grown: KeyValue = self.layer.append(k, v)
        return grown

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        return 0 if self.layer.own is None else int(self.layer.own[0].shape[-2])


def layer_of(past: Any, number: int) -> Any:
    """One layer's share of a cache, which the layer adds to."""
    if isinstance(past, LayerShare):
        return past.layer
    if isinstance(past, KeyValueCache):
        return past.layers[number]
    return _HubLayer(*_halves(past), past, number)


def _halves(past: Any) -> tuple[Any, Any]:
    return getattr(past, "self_attention_cache", past), getattr(past, "cross_attention_cache", None)


def contents(past: Any) -> KeyValueCache:
    """A copy of what a cache holds, which may grow without it."""
    held: Iterable[Iterable[Tensor | None]] = past
    if hasattr(past, "update") and hasattr(past, "get_seq_length"):
        held = HubCache(past, len(getattr(past, "self_attention_cache", past).layers))
    return KeyValueCache.from_legacy(held)


class HubCache(KeyValueCache):
    """A cache of transformers'. What is appended goes into it, and the model gives it back in the end."""

    def __init__(self, given: Any, num_layers: int) -> None:
        own, cross = _halves(given)
        held = len(own.layers)
        if held and held != num_layers:  # a lazily made one has none yet
            raise InputError(f"past_key_values holds {held} layers; the model has {num_layers}.")
        self.layers = [_HubLayer(own, cross, given, number) for number in range(num_layers)]  # type: ignore[misc]
        self._given = given

    @property
    def given(self) -> Any:
        return self._given


class _HubLayer:
    """One layer's share; has what a `LayerCache` has."""

    def __init__(self, own: Any, cross: Any, given: Any, number: int) -> None:
        self._own, self._cross, self._given, self._number = own, cross, given, number

    @property
    def own(self) -> KeyValue | None:
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
    def cross(self, computed: KeyValue) -> None:
        if self._cross is not None:
            self._cross.update(*computed, self._number)
            self._given.is_updated[self._number] = True


def _held(cache: Any, number: int) -> KeyValue | None:
    layers = cache.layers
    if number >= len(layers) or layers[number].keys is None or not layers[number].keys.numel():
        return None
    return layers[number].keys, layers[number].values
