"""Bertie: BERT, whole.

>>> import bertie
>>> model = bertie.BertModel(bertie.BertConfig.preset("tiny", vocab_size=1000))

Names are imported when they are first used, so that `import bertie` costs next to nothing and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertie.config import BertConfig as BertConfig
    from bertie.errors import BertieError as BertieError
    from bertie.model import *  # noqa: F403

_MODEL_NAMES = (
    "BertAttention", "BertEmbeddings", "BertEncoder", "BertEncoderDecoder", "BertForMaskedLM", "BertForMultipleChoice",
    "BertForNextSentencePrediction", "BertForPreTraining", "BertForQuestionAnswering", "BertForSequenceClassification",
    "BertForTokenClassification", "BertIntermediate", "BertLMHeadModel", "BertLMPredictionHead", "BertLayer",
    "BertModel", "BertOnlyMLMHead", "BertOnlyNSPHead", "BertOutput", "BertPooler", "BertPreTrainedModel",
    "BertPreTrainingHeads", "BertPredictionHeadTransform", "BertSelfAttention", "BertSelfOutput", "KeyValueCache",
    "apply_chunking_to_forward",
)  # fmt: skip
_WHERE = {
    "BertConfig": "bertie.config",
    "BertieError": "bertie.errors",
    **dict.fromkeys(_MODEL_NAMES, "bertie.model"),
}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'bertie' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
