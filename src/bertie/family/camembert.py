"""CamemBERT: RoBERTa in French (Martin et al. 2019, https://arxiv.org/abs/1911.03894).

The model is RoBERTa's, and so are the names of its tensors (`roberta.…`). What differs is the tokenizer: SentencePiece
(Unigram), from `tokenizer.json` or `sentencepiece.bpe.model`.
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


class CamembertConfig(RobertaConfig):
    model_type = "camembert"
    defaults: ClassVar[Values] = {**RobertaConfig.defaults, "vocab_size": 30522}


class CamembertPreTrainedModel(RobertaPreTrainedModel):
    config_class = CamembertConfig


class CamembertModel(CamembertPreTrainedModel, RobertaModel): ...


class CamembertHead(CamembertPreTrainedModel, Relative):
    body = CamembertModel


class CamembertForMaskedLM(CamembertHead, RobertaForMaskedLM): ...


class CamembertForCausalLM(CamembertHead, RobertaForCausalLM): ...


class CamembertForSequenceClassification(CamembertHead, RobertaForSequenceClassification): ...


class CamembertForMultipleChoice(CamembertHead, RobertaForMultipleChoice): ...


class CamembertForTokenClassification(CamembertHead, RobertaForTokenClassification): ...


class CamembertForQuestionAnswering(CamembertHead, RobertaForQuestionAnswering): ...
