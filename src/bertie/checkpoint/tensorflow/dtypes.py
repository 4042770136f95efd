"""TensorFlow's element types (`types.proto`) and what they are in torch.

Quantised types are plain integers here: the scale that gives them meaning is not part of a checkpoint's entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DType:
    """One element type. `torch` is None where torch has no such thing; `itemsize` is None where sizes vary."""

    number: int
    name: str
    torch: torch.dtype | None = None

    @property
    def itemsize(self) -> int | None:
        return None if self.torch is None else self.torch.itemsize

    @property
    def is_string(self) -> bool:
        return self.number == _STRING


_STRING = 7

_TABLE: tuple[tuple[int, str, torch.dtype | None], ...] = (
    (1, "float32", torch.float32),
    (2, "float64", torch.float64),
    (3, "int32", torch.int32),
    (4, "uint8", torch.uint8),
    (5, "int16", torch.int16),
    (6, "int8", torch.int8),
    (_STRING, "string", None),
    (8, "complex64", torch.complex64),
    (9, "int64", torch.int64),
    (10, "bool", torch.bool),
    (11, "qint8", torch.int8),
    (12, "quint8", torch.uint8),
    (13, "qint32", torch.int32),
    (14, "bfloat16", torch.bfloat16),
    (15, "qint16", torch.int16),
    (16, "quint16", torch.uint16),
    (17, "uint16", torch.uint16),
    (18, "complex128", torch.complex128),
    (19, "float16", torch.float16),
    (20, "resource", None),
    (21, "variant", None),
    (22, "uint32", torch.uint32),
    (23, "uint64", torch.uint64),
    (24, "float8_e5m2", torch.float8_e5m2),
    (25, "float8_e4m3fn", torch.float8_e4m3fn),
    (29, "int4", None),
    (30, "uint4", None),
)

BY_NUMBER = {number: DType(number, name, kind) for number, name, kind in _TABLE}

STRING = BY_NUMBER[_STRING]

# The quantised types share torch's integers with the plain ones, which are the ones to write.
BY_TORCH = {one.torch: one for one in BY_NUMBER.values() if one.torch is not None and not one.name.startswith("q")}


def from_number(number: int) -> DType:
    """The type TensorFlow numbers so. One we have never heard of can still be listed by its number."""
    return BY_NUMBER.get(number, DType(number, f"DataType({number})"))
