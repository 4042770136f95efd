"""Operations the model is built from: the one attention seam, relative positions and the packed layout."""

from bertie.ops.attention import (
    BACKENDS,
    AttentionPlan,
    attention,
    attention_probabilities,
    choose_backend,
    packed_kernel,
)
from bertie.ops.forks import survive_forks
from bertie.ops.packing import Packing
from bertie.ops.relative import RelativePositions

survive_forks()

__all__ = [
    "BACKENDS",
    "AttentionPlan",
    "Packing",
    "RelativePositions",
    "attention",
    "attention_probabilities",
    "choose_backend",
    "packed_kernel",
]
