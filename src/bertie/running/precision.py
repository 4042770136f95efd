"""Vectors in fewer bits, with sentence-transformers' numbers.

    int8, uint8       256 steps between a least and a greatest value per dimension (`ranges`, `[2, dimension]`)
    binary, ubinary   one bit per dimension, whether it is above zero, eight to a byte, the first one highest

`ranges` should come from many vectors of the kind that will be stored (`calibration_ranges`), and queries must use the
ranges of the corpus.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertie.errors import InputError

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
Numbers: TypeAlias = NDArray[np.float32] | NDArray[np.int8] | NDArray[np.uint8]
NEED_RANGES = ("int8", "uint8")
_FEW = 100
logger = logging.getLogger("bertie.tasks")


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"There is no precision {precision!r}.", f"Use one of {', '.join(PRECISIONS)}.")


def calibration_ranges(vectors: ArrayLike) -> NDArray[np.float32]:
    """The least and the greatest value of each dimension, `[2, dimension]`."""
    array = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or not len(array):
        raise InputError(f"Ranges are taken from vectors [n, dimension]; this is {list(array.shape)}.")
    return np.stack((array.min(axis=0), array.max(axis=0)))


def quantize(vectors: ArrayLike, precision: str, *, ranges: ArrayLike | None = None) -> Numbers:
    """Vectors `[n, dimension]` in another precision. Without `ranges`, int8 and uint8 take those of these vectors.

    >>> quantize([[0.5, -1.0, 0.25, 2.0, -3.0, 0.0, 1.0, 1.0]], "ubinary").tolist()
    [[179]]
    """
    check_precision(precision)
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise InputError(
            f"Vectors to quantize are floating-point numbers [n, dimension]; these are {array.dtype} "
            f"{list(array.shape)}.",
            "Quantize once, from float32.",
        )
    if precision == "float32":
        return array.astype(np.float32, copy=False)
    if precision in NEED_RANGES:
        return _in_steps(array, precision, ranges)
    bits = np.packbits(array > 0, axis=-1)
    return bits if precision == "ubinary" else (bits ^ 0x80).view(np.int8)


def _in_steps(array: NDArray[np.floating], precision: str, ranges: ArrayLike | None) -> Numbers:
    if ranges is None:
        if len(array) == 1:
            raise InputError(
                f"{precision} of one vector: its own least and greatest values are the same, so nothing is left of it.",
                "Give many texts at once, or use another {precision=}. Or give {ranges=} (calibration_ranges).",
            )
        if len(array) < _FEW:
            logger.warning("The %s ranges come from %d vectors only; take them from more.", precision, len(array))
        limits = calibration_ranges(array) if len(array) else np.zeros((2, array.shape[1]), np.float32)
    else:
        limits = np.asarray(ranges)
    if limits.shape != (2, array.shape[1]):
        raise InputError(
            f"ranges is {list(limits.shape)}; these vectors need [2, {array.shape[1]}].",
            "Take it from vectors of the same model and length: calibration_ranges(vectors).",
        )
    steps = (limits[1] - limits[0]) / 255
    steps = np.where(steps == 0, 1, steps)
    levels: NDArray[np.floating] = np.clip(np.floor((array - limits[0]) / steps), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)
