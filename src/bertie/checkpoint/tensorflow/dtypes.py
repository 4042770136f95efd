"""TensorFlow's element types and what they are in torch, which is looked up only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from bertie.checkpoint.dtypes import ITEM_BYTES, TENSORFLOW

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """One element type. `itemsize` and `torch` are None where sizes vary, or torch has no such thing."""

    number: int
    name: str

    @property
    def itemsize(self) -> int | None:
        return ITEM_BYTES.get(self.name.removeprefix("q"))

    @property
    def torch(self) -> torch.dtype | None:
        import torch

        return None if self.itemsize is None else getattr(torch, self.name.removeprefix("q"))

    @property
    def is_string(self) -> bool:
        return self == STRING


STRING = DType(7, TENSORFLOW[7])


@cache
def by_torch() -> dict[torch.dtype, DType]:
    """What to write for torch's types. The quantised ones share integers with the plain ones, which are meant."""
    plain = [DType(number, name) for number, name in TENSORFLOW.items() if not name.startswith("q")]
    return {kind: one for one in plain if (kind := one.torch) is not None}


def from_number(number: int) -> DType:
    """The type TensorFlow numbers so. One we have never heard of can still be listed by its number."""
    return DType(number, TENSORFLOW.get(number, f"DataType({number})"))
