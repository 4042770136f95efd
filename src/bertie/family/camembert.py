"""CamemBERT: RoBERTa in French (Martin et al. 2019, https://arxiv.org/abs/1911.03894).

As XLM-RoBERTa it is RoBERTa's model behind SentencePiece, so every class here is one of XLM-RoBERTa's by another name.
What differs are the first pieces of its vocabulary (text/kinds.py).
"""

from __future__ import annotations

from bertie.family.heads import Relative
from bertie.family.xlm_roberta import (
    XLMRobertaConfig,
    XLMRobertaForCausalLM,
    XLMRobertaForMaskedLM,
    XLMRobertaForMultipleChoice,
    XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
    XLMRobertaModel,
    XLMRobertaPreTrainedModel,
)


class CamembertConfig(XLMRobertaConfig):
    model_type = "camembert"


class CamembertPreTrainedModel(XLMRobertaPreTrainedModel):
    config_class = CamembertConfig


class CamembertModel(CamembertPreTrainedModel, XLMRobertaModel): ...


class CamembertHead(CamembertPreTrainedModel, Relative):
    body = CamembertModel


class CamembertForMaskedLM(CamembertHead, XLMRobertaForMaskedLM): ...


class CamembertForCausalLM(CamembertHead, XLMRobertaForCausalLM): ...


class CamembertForSequenceClassification(CamembertHead, XLMRobertaForSequenceClassification): ...


class CamembertForMultipleChoice(CamembertHead, XLMRobertaForMultipleChoice): ...


class CamembertForTokenClassification(CamembertHead, XLMRobertaForTokenClassification): ...


class CamembertForQuestionAnswering(CamembertHead, XLMRobertaForQuestionAnswering): ...
