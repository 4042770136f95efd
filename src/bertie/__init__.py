"""Bertie: BERT, whole.

>>> import bertie
>>> model = bertie.BertModel(bertie.BertConfig.preset("tiny", vocab_size=1000))

Names are imported when they are first used, so that `import bertie` costs next to nothing and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from bertie import explore as explore
    from bertie.bulk import bulk as bulk
    from bertie.client import AsyncClient as AsyncClient
    from bertie.client import Client as Client
    from bertie.compat.auto import *  # noqa: F403
    from bertie.compat.register import register as register
    from bertie.compression.run import compress as compress
    from bertie.config import BertConfig as BertConfig
    from bertie.config import EncoderDecoderConfig as EncoderDecoderConfig
    from bertie.engine.compile import compile as compile  # noqa: A004
    from bertie.errors import BertieError as BertieError
    from bertie.errors import CalibrationWarning as CalibrationWarning
    from bertie.errors import TruncationWarning as TruncationWarning
    from bertie.family.camembert import *  # noqa: F403
    from bertie.family.distilbert import *  # noqa: F403
    from bertie.family.electra import *  # noqa: F403
    from bertie.family.mpnet import *  # noqa: F403
    from bertie.family.roberta import *  # noqa: F403
    from bertie.family.xlm_roberta import *  # noqa: F403
    from bertie.loading import load as load
    from bertie.model import *  # noqa: F403
    from bertie.model import BertEncoderDecoder as EncoderDecoderModel  # noqa: F401
    from bertie.model.generation.options import GenerationConfig as GenerationConfig
    from bertie.search.index import Index as Index
    from bertie.search.index import build_index as build_index
    from bertie.tasks.answer import answer as answer
    from bertie.tasks.classify import classify as classify
    from bertie.tasks.embed import Embedder as Embedder
    from bertie.tasks.embed import embed as embed
    from bertie.tasks.features import features as features
    from bertie.tasks.fill import fill as fill
    from bertie.tasks.generate import generate as generate
    from bertie.tasks.next_sentence import next_sentence as next_sentence
    from bertie.tasks.represent import represent as represent
    from bertie.tasks.rerank import rerank as rerank
    from bertie.tasks.similarity import similarity as similarity
    from bertie.tasks.tag import tag as tag
    from bertie.tasks.zero_shot import zero_shot as zero_shot
    from bertie.text import BertTokenizer as BertTokenizer
    from bertie.text import BertTokenizerFast as BertTokenizerFast
    from bertie.text.hub.relatives import *  # noqa: F403

_MODEL_NAMES = (
    "BertAttention", "BertEmbeddings", "BertEncoder", "BertEncoderDecoder", "BertForMaskedLM", "BertForMultipleChoice",
    "BertForNextSentencePrediction", "BertForPreTraining", "BertForQuestionAnswering", "BertForSequenceClassification",
    "BertForTokenClassification", "BertIntermediate", "BertLMHeadModel", "BertLMPredictionHead", "BertLayer",
    "BertModel", "BertOnlyMLMHead", "BertOnlyNSPHead", "BertOutput", "BertPooler", "BertPreTrainedModel",
    "BertPreTrainingHeads", "BertPredictionHeadTransform", "BertSelfAttention", "BertSelfOutput", "KeyValueCache",
    "apply_chunking_to_forward",
)  # fmt: skip
_AUTO_NAMES = (
    "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction", "AutoModelForPreTraining", "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification", "AutoModelForTextEncoding", "AutoModelForTokenClassification",
    "AutoTokenizer",
)  # fmt: skip
# BERT's relatives: how their classes begin, where they are, and those that not all of them have.
_RELATIVES = {
    "Roberta": ("roberta", "ForCausalLM"),
    "XLMRoberta": ("xlm_roberta", "ForCausalLM"),
    "Camembert": ("camembert", "ForCausalLM"),
    "DistilBert": ("distilbert",),
    "Electra": ("electra", "ForCausalLM", "ForPreTraining"),
    "MPNet": ("mpnet",),
}
_OF_RELATIVES = (
    "Config", "ForMaskedLM", "ForMultipleChoice", "ForQuestionAnswering", "ForSequenceClassification",
    "ForTokenClassification", "Model", "PreTrainedModel",
)  # fmt: skip
_WHERE = {
    "BertConfig": "bertie.config",
    "EncoderDecoderConfig": "bertie.config",
    "BertieError": "bertie.errors",
    "GenerationConfig": "bertie.model.generation.options",
    "CalibrationWarning": "bertie.errors",
    "TruncationWarning": "bertie.errors",
    "BertTokenizer": "bertie.text",
    "BertTokenizerFast": "bertie.text",
    "Client": "bertie.client",
    "AsyncClient": "bertie.client",
    "compile": "bertie.engine.compile",
    "compress": "bertie.compression.run",
    "register": "bertie.compat.register",
    "load": "bertie.loading",
    "answer": "bertie.tasks.answer",
    "bulk": "bertie.bulk",
    "classify": "bertie.tasks.classify",
    "embed": "bertie.tasks.embed",
    "Embedder": "bertie.tasks.embed",
    "features": "bertie.tasks.features",
    "fill": "bertie.tasks.fill",
    "generate": "bertie.tasks.generate",
    "next_sentence": "bertie.tasks.next_sentence",
    "represent": "bertie.tasks.represent",
    "rerank": "bertie.tasks.rerank",
    "Index": "bertie.search.index",
    "build_index": "bertie.search.index",
    "similarity": "bertie.tasks.similarity",
    "tag": "bertie.tasks.tag",
    "zero_shot": "bertie.tasks.zero_shot",
    **dict.fromkeys(_MODEL_NAMES, "bertie.model"),
    **dict.fromkeys(_AUTO_NAMES, "bertie.compat.auto"),
    **{
        begins + ends: f"bertie.family.{file}"
        for begins, (file, *own) in _RELATIVES.items()
        for ends in (*_OF_RELATIVES, *own)
    },
    **{begins + ends: "bertie.text.hub.relatives" for begins in _RELATIVES for ends in ("Tokenizer", "TokenizerFast")},
}

# Rooms that are public as they are.
_ROOMS = ("explore",)

# Names that scripts written for the hub's library import.
_ALIASES = {"EncoderDecoderModel": "BertEncoderDecoder"}

__all__ = sorted([*_WHERE, *_ALIASES, *_ROOMS, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"bertie.{name}")
    actual = _ALIASES.get(name, name)
    if actual not in _WHERE:
        raise AttributeError(f"module 'bertie' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[actual]), actual)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
