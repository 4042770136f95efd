"""TensorFlow's element types (`types.proto`) and what they are in torch.

Quantised types are plain integers here: the scale that gives them meaning is not part of a checkpoint's entry. An index
can be read without torch, so torch's own types are looked up when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """One element type; without a name in torch where torch has no such thing, without a size where sizes vary."""

    number: int
    name: str
    torch_name: str | None = None
    itemsize: int | None = None

    @property
    def torch(self) -> torch.dtype | None:
        import torch

        return None if self.torch_name is None else getattr(torch, self.torch_name)

    @property
    def is_string(self) -> bool:
        return self.number == _STRING


_STRING = 7

# number, name, torch's name, bytes
_TABLE: tuple[tuple[int, str, str | None, int | None], ...] = (
    (1, "float32", "float32", 4),
    (2, "float64", "float64", 8),
    (3, "int32", "int32", 4),
    (4, "uint8", "uint8", 1),
    (5, "int16", "int16", 2),
    (6, "int8", "int8", 1),
    (_STRING, "string", None, None),
    (8, "complex64", "complex64", 8),
    (9, "int64", "int64", 8),
    (10, "bool", "bool", 1),
    (11, "qint8", "int8", 1),
    (12, "quint8", "uint8", 1),
    (13, "qint32", "int32", 4),
    (14, "bfloat16", "bfloat16", 2),
    (15, "qint16", "int16", 2),
    (16, "quint16", "uint16", 2),
    (17, "uint16", "uint16", 2),
    (18, "complex128", "complex128", 16),
    (19, "float16", "float16", 2),
    (20, "resource", None, None),
    (21, "variant", None, None),
    (22, "uint32", "uint32", 4),
    (23, "uint64", "uint64", 8),
    (24, "float8_e5m2", "float8_e5m2", 1),
    (25, "float8_e4m3fn", "float8_e4m3fn", 1),
    (29, "int4", None, None),
    (30, "uint4", None, None),
)

BY_NUMBER = {number: DType(number, name, kind, size) for number, name, kind, size in _TABLE}

STRING = BY_NUMBER[_STRING]


@cache
def by_torch() -> dict[torch.dtype, DType]:
    """What to write for torch's types. The quantised ones share integers with the plain ones, which are meant."""
    plain = [one for one in BY_NUMBER.values() if not one.name.startswith("q")]
    return {kind: one for one in plain if (kind := one.torch) is not None}


def from_number(number: int) -> DType:
    """The type TensorFlow numbers so. One we have never heard of can still be listed by its number."""
    return BY_NUMBER.get(number, DType(number, f"DataType({number})"))
