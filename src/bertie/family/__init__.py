"""BERT's family: checkpoints whose layers are BERT's behind another front door.

One file for each relative says how it differs from BERT, and nothing else; heads.py has what their heads share. Their
classes are BERT's with another encoder and head inside, so tasks, engines, training and the server see a BERT. Which
relatives there are is said here, and nobody else asks for a `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import bertie.model
from bertie.checkpoint.open_checkpoint import Checkpoint
from bertie.config import BertConfig
from bertie.config.relatives import MODEL_TYPES
from bertie.errors import ConfigError, InputError
from bertie.family import camembert, distilbert, electra, mpnet, roberta, xlm_roberta
from bertie.model.pretrained import BertPreTrainedModel

# model_type: (where its classes are, how their names begin)
_RELATIVES: Mapping[str, tuple[ModuleType, str]] = {
    "roberta": (roberta, "Roberta"),
    "xlm-roberta": (xlm_roberta, "XLMRoberta"),
    "camembert": (camembert, "Camembert"),
    "distilbert": (distilbert, "DistilBert"),
    "electra": (electra, "Electra"),
    "mpnet": (mpnet, "MPNet"),
}
# How a head's tensors begin: the class it belongs to. Choices of DistilBERT look like its texts.
_BY_TENSORS = (
    (("lm_head.", "vocab_projector.", "generator_lm_head."), "ForMaskedLM"),
    (("discriminator_predictions.",), "ForPreTraining"),
    (("qa_outputs.",), "ForQuestionAnswering"),
    (("sequence_summary.",), "ForMultipleChoice"),
    (("classifier.out_proj.", "pre_classifier."), "ForSequenceClassification"),
    (("classifier.",), "ForTokenClassification"),
)
_BERT = ("bertie.model.bert", "bertie.model.heads", "bertie.model.classifiers")
_OTHERWISE = {"LMHeadModel": "ForCausalLM"}  # BERT's name for it: the relatives'


def related(kind: type[BertPreTrainedModel], model_type: object) -> type[BertPreTrainedModel]:
    """The class that is to this model_type what `kind` is to BERT; `kind` itself for a BERT."""
    found = _RELATIVES.get(str(model_type))
    if found is None or kind.config_class.model_type == model_type:
        return kind
    module, prefix = found
    name = kind.__name__.removeprefix("Bert")
    relative = getattr(module, prefix + _OTHERWISE.get(name, name), None)
    if relative is None and name == "ForPreTraining":  # on the hub, what they were pretrained as
        relative = getattr(module, f"{prefix}ForMaskedLM")
    if relative is None:
        raise InputError(
            f"A {model_type!r} model has nothing like {kind.__name__}.",
            f"It has {', '.join(class_names(str(model_type)))}.",
        )
    chosen: type[BertPreTrainedModel] = relative
    return chosen


def kind_of(model: type[BertPreTrainedModel]) -> type[BertPreTrainedModel]:
    """BERT's class that a relative's class is one of; a class that is like none of BERT's is its own kind."""
    found = (base for base in model.__mro__ if base.__module__ in _BERT and base.__name__ in bertie.model.__all__)
    kind: type[BertPreTrainedModel] = next(found, model)
    return kind


def by_tensors(checkpoint: Checkpoint) -> tuple[str, str]:
    """A class's name, and why, for a relative's checkpoint whose configuration names none."""
    model_type = str(checkpoint.config["model_type"])
    _, prefix = _RELATIVES[model_type]
    for begins, name in _BY_TENSORS:
        if any(found.startswith(begins) for found in checkpoint.tensors.info) and (
            f"{prefix}{name}" in class_names(model_type)
        ):
            causal = name == "ForMaskedLM" and checkpoint.config.get("is_decoder") is True
            return prefix + ("ForCausalLM" if causal else name), f"it holds {begins[0]}"
    return f"{prefix}Model", "it holds no head"


def class_names(model_type: str) -> list[str]:
    """The relative's models, by the hub's names."""
    module, prefix = _RELATIVES[model_type]
    return [name for name in vars(module) if name == f"{prefix}Model" or name.startswith(f"{prefix}For")]


def named(model_type: object, architecture: str) -> type[BertPreTrainedModel] | None:
    """A relative's class by the name that its configuration has for it."""
    if model_type not in _RELATIVES or architecture not in class_names(str(model_type)):
        return None
    found: type[BertPreTrainedModel] = getattr(_RELATIVES[str(model_type)][0], architecture)
    return found


def config_class(model_type: object) -> type[BertConfig]:
    """The configuration class of a model_type; BERT's for None."""
    if model_type in (None, "bert"):
        return BertConfig
    if model_type not in _RELATIVES:
        raise ConfigError(f"model_type is {model_type!r}.", f"Known: {', '.join(MODEL_TYPES)}.")
    module, prefix = _RELATIVES[str(model_type)]
    found: type[BertConfig] = getattr(module, f"{prefix}Config")
    return found
