"""XLM-RoBERTa: RoBERTa in a hundred languages (Conneau et al. 2019, https://arxiv.org/abs/1911.02116).

The model is RoBERTa's, and so are the names of its tensors (`roberta.…`). What differs is the tokenizer: SentencePiece
(Unigram) with 250,000 pieces, from `tokenizer.json` or `sentencepiece.bpe.model`.
"""

from __future__ import annotations

from typing import ClassVar

from bertie.config import Values
from bertie.family.heads import Relative
from bertie.family.roberta import (
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    RobertaPreTrainedModel,
)


class XLMRobertaConfig(RobertaConfig):
    model_type = "xlm-roberta"
    defaults: ClassVar[Values] = {**RobertaConfig.defaults, "vocab_size": 30522}


class XLMRobertaPreTrainedModel(RobertaPreTrainedModel):
    config_class = XLMRobertaConfig


class XLMRobertaModel(XLMRobertaPreTrainedModel, RobertaModel): ...


class XLMRobertaHead(XLMRobertaPreTrainedModel, Relative):
    body = XLMRobertaModel


class XLMRobertaForMaskedLM(XLMRobertaHead, RobertaForMaskedLM): ...


class XLMRobertaForCausalLM(XLMRobertaHead, RobertaForCausalLM): ...


class XLMRobertaForSequenceClassification(XLMRobertaHead, RobertaForSequenceClassification): ...


class XLMRobertaForMultipleChoice(XLMRobertaHead, RobertaForMultipleChoice): ...


class XLMRobertaForTokenClassification(XLMRobertaHead, RobertaForTokenClassification): ...


class XLMRobertaForQuestionAnswering(XLMRobertaHead, RobertaForQuestionAnswering): ...
