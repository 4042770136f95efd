"""The reference model. Start reading at bert.py."""

from bertie.model.activations import ACTIVATIONS, activation
from bertie.model.bert import (
    BertAttention,
    BertEmbeddings,
    BertEncoder,
    BertIntermediate,
    BertLayer,
    BertModel,
    BertOutput,
    BertPooler,
    BertSelfAttention,
    BertSelfOutput,
    apply_chunking_to_forward,
)
from bertie.model.cache import KeyValueCache
from bertie.model.classifiers import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertie.model.encoder_decoder import BertEncoderDecoder
from bertie.model.heads import (
    BertForMaskedLM,
    BertForPreTraining,
    BertLMHeadModel,
    BertLMPredictionHead,
    BertOnlyMLMHead,
    BertOnlyNSPHead,
    BertPredictionHeadTransform,
    BertPreTrainingHeads,
)
from bertie.model.pretrained import BertPreTrainedModel

__all__ = [
    "ACTIVATIONS", "BertAttention", "BertEmbeddings", "BertEncoder", "BertEncoderDecoder", "BertForMaskedLM",
    "BertForMultipleChoice", "BertForNextSentencePrediction", "BertForPreTraining", "BertForQuestionAnswering",
    "BertForSequenceClassification", "BertForTokenClassification", "BertIntermediate", "BertLMHeadModel",
    "BertLMPredictionHead", "BertLayer", "BertModel", "BertOnlyMLMHead", "BertOnlyNSPHead", "BertOutput", "BertPooler",
    "BertPreTrainedModel", "BertPreTrainingHeads", "BertPredictionHeadTransform", "BertSelfAttention",
    "BertSelfOutput", "KeyValueCache", "activation", "apply_chunking_to_forward",
]  # fmt: skip
