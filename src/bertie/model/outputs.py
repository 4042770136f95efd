"""What models return: dictionaries whose entries are attributes too, with the hub's field names.

An output can be read as attributes (`out.logits`), by name (`out["logits"]`) and by number (`out[0]`, `out[:2]`). Like
every dictionary it iterates over its names, and it holds the fields that are not None, in order; `to_tuple()` gives
their values, so `loss, logits = out.to_tuple()`. That is how transformers' `ModelOutput` behaves, and what code around
models relies on: DataParallel, accelerate, export and tracing all look for dictionaries or pytrees.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Never, Protocol, TypeVar, overload

from torch import Tensor
from torch.fx import Proxy
from torch.utils import _pytree as pytree

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.ops.attention import Maps

if TYPE_CHECKING:
    from bertie.model.cache import KeyValueCache
    from bertie.model.pretrained import BertPreTrainedModel

# All layers' maps, or, when single heads were asked for, {(layer, head): [batch, queries, keys]}.
Attentions = tuple[Maps | None, ...] | dict[tuple[int, int], Maps]


class ModelOutput(OrderedDict[str, Any]):
    """The base of all outputs. A subclass is a dataclass whose fields, but for the first, default to None.

    Besides fields, the first argument may be a dictionary or (name, value) pairs: the way containers are rebuilt.
    Methods name `OrderedDict` and not `super()`: transformers' own class may come to stand between (hub/methods.py).
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        # Wrappers that look for tensors inside a model's output (DDP, FSDP, export) go through pytrees.
        pytree.register_pytree_node(
            cls, _flatten, partial(_unflatten, cls), serialized_type_name=f"{cls.__module__}.{cls.__name__}"
        )

    def __init__(self, *args: object, **named: object) -> None:  # not that of the subclasses, which are dataclasses
        if type(self) is not ModelOutput:
            raise TypeError(f"{type(self).__name__} is an output and must be a dataclass: decorate it with @dataclass.")
        OrderedDict.__init__(self)
        given: dict[str, object] = dict(*args, **named)
        for name, value in given.items():
            self[name] = value

    def __post_init__(self) -> None:
        values = self.__dict__
        first, *others = type(self).__dataclass_fields__
        given = values[first]
        if not isinstance(given, Tensor | Proxy) and given is not None and all(values[name] is None for name in others):
            pairs = _pairs(given)
            if pairs is not None:
                values[first] = None
                for name, value in pairs:
                    values[name] = value
                    if value is not None:
                        OrderedDict.__setitem__(self, name, value)
                return
        for name in (first, *others):
            if values[name] is not None:
                OrderedDict.__setitem__(self, name, values[name])

    def to_tuple(self) -> tuple[Any, ...]:
        """The values, without names."""
        return tuple(self.values())

    def __getitem__(self, key: str | int | slice) -> Any:
        return OrderedDict.__getitem__(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def __missing__(self, name: str) -> Never:
        raise KeyError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}")

    def __setitem__(self, name: str, value: object) -> None:
        OrderedDict.__setitem__(self, name, value)
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if value is not None and name in self:
            OrderedDict.__setitem__(self, name, value)
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), dict(self.__dict__), list(self.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(value)}' for name, value in self.items())})"

    # A model's answer is not a bag to take things out of; transformers refuses these as well.

    def __delitem__(self, *args: object, **named: object) -> Never:
        raise InputError(f"Nothing can be deleted from a {type(self).__name__}.", _COPY_FIRST)

    def pop(self, *args: object, **named: object) -> Never:
        raise InputError(f"Nothing can be popped from a {type(self).__name__}.", _COPY_FIRST)

    def setdefault(self, *args: object, **named: object) -> Never:
        raise InputError(f"A {type(self).__name__} has no setdefault.", "Assign the item: output[name] = value.")

    def update(self, *args: object, **named: object) -> Never:
        raise InputError(f"A {type(self).__name__} has no update.", "Assign items one by one: output[name] = value.")


_COPY_FIRST = "Copy it first: dict(output)."

Output = TypeVar("Output", bound=ModelOutput)
Output_co = TypeVar("Output_co", bound=ModelOutput, covariant=True)


def wants_dict(config: BertConfig, return_dict: bool | None) -> bool:
    """Whether an output object is wanted, or the plain tuple: as the call says, or the config."""
    if return_dict is not None:
        return return_dict
    return config.return_dict and not config.extra.get("torchscript")  # TorchScript knows tuples


def as_wanted(model: BertPreTrainedModel, output: Output, return_dict: bool | None) -> Output | tuple[Any, ...]:
    """An output as this call, or the configuration, wants it."""
    return output if wants_dict(model.config, return_dict) else output.to_tuple()


class _Call(Protocol[Output_co]):
    @overload
    def __call__(self, *inputs: Any, return_dict: Literal[False], **named: Any) -> tuple[Any, ...]: ...
    @overload
    def __call__(self, *inputs: Any, return_dict: Literal[True] | None = None, **named: Any) -> Output_co: ...


if TYPE_CHECKING:

    class Answers(Generic[Output_co]):
        """Says what calling a model gives, so that an editor completes `model(ids).logits`."""

        __call__: _Call[Output_co]

else:

    class _NoBase:
        """Not a base at all when programs run: libraries exchange the classes of models (FSDP), and look at bases."""

        def __getitem__(self, output):
            return self

        def __mro_entries__(self, bases):
            return ()

    Answers = _NoBase()


def _pairs(given: object) -> list[tuple[str, object]] | None:
    """The (name, value) pairs that a dictionary or an iterable holds, or None where it is one value."""
    match given:
        case dict():
            return list(given.items())
        case Iterable():
            found = list(given)
        case _:
            return None
    fitting = [isinstance(x, tuple | list) and len(x) == 2 and isinstance(x[0], str) for x in found]
    if found and any(fitting) and not all(fitting):
        raise InputError(f"Pairs (name, value) were given, and among them {found[fitting.index(False)]!r}.")
    return [(name, value) for name, value in found] if found and all(fitting) else None


def _flatten(output: ModelOutput) -> tuple[list[object], list[str]]:
    return list(output.values()), list(output)


def _unflatten(cls: type[ModelOutput], values: Iterable[object], names: Iterable[str]) -> ModelOutput:
    """Whatever the values are: pytrees put other things in the place of tensors."""
    attributes = dict.fromkeys(field.name for field in fields(cls)) if is_dataclass(cls) else {}
    return _rebuilt(cls, attributes, list(zip(names, values, strict=True)))


def _rebuilt(cls: type[ModelOutput], attributes: Mapping[str, object], items: list[tuple[str, object]]) -> ModelOutput:
    output = cls.__new__(cls)
    output.__dict__.update(attributes)
    for name, value in items:
        output[name] = value
    return output


pytree.register_pytree_node(
    ModelOutput,
    _flatten,
    partial(_unflatten, ModelOutput),
    serialized_type_name=f"{ModelOutput.__module__}.{ModelOutput.__name__}",
)


def _brief(value: object) -> str:
    """A shape in place of a wall of numbers."""
    match value:
        case Tensor() if value.dim():
            return f"Tensor{list(value.shape)}"
        case tuple() | list() if value:
            return f"{len(value)} × {_brief(value[0])}"
        case Tensor() | int() | float() | str():
            return repr(value)
    return f"{type(value).__name__}(…)"


GIVEN: Any = None  # the default of a field that every model gives: a dataclass wants one


@dataclass(repr=False)
class BertEncoderOutput(ModelOutput):
    """What `BertEncoder` returns."""

    # [batch, length, hidden], or [tokens, hidden] of a packed batch
    last_hidden_state: Tensor = GIVEN
    past_key_values: KeyValueCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None  # layers + 1, the embedding output first
    attentions: Attentions | None = None
    cross_attentions: Attentions | None = None


@dataclass(repr=False)
class BertModelOutput(ModelOutput):
    """What `BertModel` returns."""

    last_hidden_state: Tensor = GIVEN
    pooler_output: Tensor | None = None  # [batch, hidden]
    hidden_states: tuple[Tensor, ...] | None = None
    past_key_values: KeyValueCache | None = None
    attentions: Attentions | None = None
    cross_attentions: Attentions | None = None


@dataclass(repr=False)
class LogitsOutput(ModelOutput):
    """What masked LM, next sentence, classification, multiple choice and tagging return."""

    loss: Tensor | None = None
    logits: Tensor = GIVEN
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None


@dataclass(repr=False)
class BertForPreTrainingOutput(ModelOutput):
    loss: Tensor | None = None
    prediction_logits: Tensor = GIVEN  # [batch, length, vocabulary]
    seq_relationship_logits: Tensor = GIVEN  # [batch, 2]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None


@dataclass(repr=False)
class CausalLMOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor = GIVEN
    past_key_values: KeyValueCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None
    cross_attentions: Attentions | None = None


@dataclass(repr=False)
class QuestionAnsweringOutput(ModelOutput):
    loss: Tensor | None = None
    start_logits: Tensor = GIVEN  # [batch, length], or [tokens]
    end_logits: Tensor = GIVEN
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: Attentions | None = None


@dataclass(repr=False)
class Seq2SeqOutput(ModelOutput):
    """What `BertEncoderDecoder` returns."""

    loss: Tensor | None = None
    logits: Tensor = GIVEN
    past_key_values: KeyValueCache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: Attentions | None = None
    cross_attentions: Attentions | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: Attentions | None = None


# The hub's names of the same, for code that imports or checks them.
BaseModelOutputWithPastAndCrossAttentions = BertEncoderOutput
BaseModelOutputWithPoolingAndCrossAttentions = BertModelOutput
MaskedLMOutput = NextSentencePredictorOutput = LogitsOutput
SequenceClassifierOutput = TokenClassifierOutput = MultipleChoiceModelOutput = LogitsOutput
CausalLMOutputWithCrossAttentions = CausalLMOutput
QuestionAnsweringModelOutput = QuestionAnsweringOutput
Seq2SeqLMOutput = Seq2SeqOutput
