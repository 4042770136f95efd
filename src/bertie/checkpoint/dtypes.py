"""The types of numbers the formats know, by torch's names. No torch is needed to look one up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ITEM_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip

# safetensors' codes
SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip

# what torch calls the class of a storage, in its pickles
TORCH_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8",
}  # fmt: skip

# TensorFlow's numbers (types.proto). Its quantised types, q…, are plain integers here: the scale that gives them
# meaning is not part of a checkpoint's entry.
TENSORFLOW = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64",
    9: "int64", 10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16",
    17: "uint16", 18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64",
    24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip


@dataclass(frozen=True)
class TensorFlowType:
    """One of TensorFlow's types. `itemsize` and `torch` are None where sizes vary, or torch has no such thing."""

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
        return self.name == "string"


TENSORFLOW_STRING = TensorFlowType(7, TENSORFLOW[7])


@cache
def tensorflow_types() -> dict[torch.dtype, TensorFlowType]:
    """What to write for torch's types. The quantised ones share integers with the plain ones, which are meant."""
    plain = [TensorFlowType(number, name) for number, name in TENSORFLOW.items() if not name.startswith("q")]
    return {kind: one for one in plain if (kind := one.torch) is not None}


@lru_cache(maxsize=64)
def tensorflow_type(number: int) -> TensorFlowType:
    """The type TensorFlow numbers so. One we have never heard of can still be listed by its number."""
    return TensorFlowType(number, TENSORFLOW.get(number, f"DataType({number})"))
