"""`BertConfig`: the numbers that make one BERT different from another.

bert.py has the class, checks.py what its values may be, encoder_decoder.py the configuration of a pair. No torch: a
configuration can be read and checked without it.
"""

from bertie.config.bert import PRESETS, BertConfig
from bertie.config.checks import (
    ACTIVATIONS,
    MAX_CONFIG_BYTES,
    MAX_LABELS,
    MAX_PARAMETERS,
    POSITION_TYPES,
    PROBLEM_TYPES,
    Values,
    from_the_start,
    read_json_object,
    read_pruned_heads,
)
from bertie.config.encoder_decoder import OF_BOTH, EncoderDecoderConfig

__all__ = [
    "ACTIVATIONS",
    "MAX_CONFIG_BYTES",
    "MAX_LABELS",
    "MAX_PARAMETERS",
    "OF_BOTH",
    "POSITION_TYPES",
    "PRESETS",
    "PROBLEM_TYPES",
    "BertConfig",
    "EncoderDecoderConfig",
    "Values",
    "from_the_start",
    "read_json_object",
    "read_pruned_heads",
]
