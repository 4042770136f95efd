"""Which architectures are read, and why their neighbours are not.

A relative has BERT's layers behind another front door: other positions, segments, names, heads. `family/` has a file
for each that says how it differs. `RelativeConfig` is what their configurations have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from bertie.config.bert import BertConfig
from bertie.config.checks import Values
from bertie.errors import ConfigError

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet")
# Near enough to be tried, too far to be one of them; each with what its layers do that BERT's do not.
OTHERS: Mapping[str, str] = {
    "albert": "ALBERT runs one layer's weights over and over",
    "deberta": "DeBERTa's attention keeps content and position apart",
    "deberta-v2": "DeBERTa's attention keeps content and position apart",
    "modernbert": "ModernBERT turns queries and keys by their position and gates its feed-forward layers",
    "nomic_bert": "NomicBERT turns queries and keys by their position and gates its feed-forward layers",
}


_COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")


def first_position(model_type: object, pad_token_id: int | None) -> int:
    """The row of the position table that a text's first token has: RoBERTa and those after it start after padding."""
    return (1 if pad_token_id is None else pad_token_id) + 1 if model_type in _COUNT_FROM_PADDING else 0


class RelativeConfig(BertConfig):
    """A configuration whose keys, or their defaults, are not BERT's.

    `attribute_map` has the keys that BERT calls otherwise (`{"dim": "hidden_size"}`); both names can be read, set and
    given, and files have the relative's.
    """

    defaults: ClassVar[Values] = {}  # where they are not BERT's, and keys that BERT does not have
    fixed: ClassVar[Values] = {}  # BERT's keys that this one does not have: what its layers have in their place

    def __init__(self, /, **values: object) -> None:
        named = {self.attribute_map.get(name, name): value for name, value in values.items()}
        for name in ("is_decoder", "add_cross_attention"):
            if name in self.fixed and named.get(name):
                raise ConfigError(
                    f"config.{name} is {named[name]!r}; a {self.model_type!r} model is always an encoder."
                )
        super().__init__(**{**self.defaults, **named, **self.fixed})

    def to_dict(self) -> Values:
        return self._in_files(super().to_dict())

    def to_diff_dict(self) -> Values:
        own = {name: getattr(self, name) for name in self.defaults}
        return self._in_files({**super().to_diff_dict(), **own})

    def _in_files(self, values: Values) -> Values:
        names = {ours: theirs for theirs, ours in self.attribute_map.items()}
        return {names.get(name, name): value for name, value in values.items() if name not in self.fixed}
