"""What models return: typed objects with the hub's field names.

An output can be read as attributes (`out.logits`), by key (`out["logits"]`), by index (`out[0]`) and unpacked
(`loss, logits = out`); index and unpacking see the fields that are not None, in order: the tuple `to_tuple()` gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from bertie.model.cache import KeyValueCache
    from bertie.ops.attention import Maps

    # All layers' maps, or, when single heads were asked for, {(layer, head): [batch, queries, keys]}.
    Attentions = tuple[Maps, ...] | dict[tuple[int, int], Maps]

__all__ = [
    "BertForPreTrainingOutput",
    "CausalLMOutput",
    "LogitsOutput",
    "ModelOutput",
    "Output",
    "QuestionAnsweringOutput",
    "Seq2SeqOutput",
]


class Output:
    """Attribute, key, index and tuple access over a dataclass's fields."""

    def __init_subclass__(cls) -> None:
        # Wrappers that look for tensors inside a model's output (data parallel, FSDP, export) go through pytrees.
        pytree.register_pytree_node(cls, cls._flatten, cls._unflatten)

    def _flatten(self) -> tuple[list[Any], list[str]]:
        return list(self.values()), list(self.keys())

    @classmethod
    def _unflatten(cls, values: Any, names: Any) -> Output:
        return cls(**dict(zip(names, values, strict=True)))

    def keys(self) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]  # type: ignore[arg-type]

    def values(self) -> list[Any]:
        return [getattr(self, name) for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.keys()]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())

    def get(self, name: str, default: Any = None) -> Any:
        return default if name not in self.keys() else getattr(self, name)

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in self.keys():
                raise KeyError(f"{type(self).__name__} has no {key!r}; it has {', '.join(self.keys())}")
            return getattr(self, key)
        return self.to_tuple()[key]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __len__(self) -> int:
        return len(self.keys())


@dataclass
class ModelOutput(Output):
    """What `BertModel` returns."""

    last_hidden_state: Tensor  # [batch, length, hidden], or [tokens, hidden] of a packed batch
    pooler_output: Tensor | None = None  # [batch, hidden]
    past_key_values: KeyValueCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None  # layers + 1, the embedding output first
    attentions: Attentions | None = None
    cross_attentions: Attentions | None = None


@dataclass
class LogitsOutput(Output):
    """What masked LM, next sentence, classification, multiple choice and tagging return."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None


@dataclass
class BertForPreTrainingOutput(Output):
    loss: Tensor | None = None
    prediction_logits: Tensor | None = None  # [batch, length, vocabulary]
    seq_relationship_logits: Tensor | None = None  # [batch, 2]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None


@dataclass
class CausalLMOutput(Output):
    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: KeyValueCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None
    cross_attentions: Attentions | None = None


@dataclass
class QuestionAnsweringOutput(Output):
    loss: Tensor | None = None
    start_logits: Tensor | None = None  # [batch, length], or [tokens]
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None


@dataclass
class Seq2SeqOutput(Output):
    """What `BertEncoderDecoder` returns."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: KeyValueCache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: Attentions | None = None
    cross_attentions: Attentions | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: Attentions | None = None
