"""ELECTRA: taught to tell words that a small model put in from the real ones (Clark et al. 2020,
https://arxiv.org/abs/2003.10555).

How it differs from BERT:

- Embeddings may be narrower than the layers (`embedding_size`); a projection follows them. (The seams are
  `config.embedding_width` and `embeddings.project`, `embeddings_project` in files.)
- No pooler: a text is judged by its first token through a layer of the head's own, with GELU.
- Two models are trained together. The *generator* predicts words (`ElectraForMaskedLM`), its decoder as narrow as the
  embeddings; the *discriminator*, which is what people fine-tune, says of every token whether it was put in
  (`ElectraForPreTraining`).
- Choices go through `sequence_summary`, as its `summary_…` keys say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch.nn import functional as F

from bertie.config import BertConfig, Values
from bertie.config.relatives import RelativeConfig
from bertie.errors import ConfigError
from bertie.family.heads import ForAnswers, ForReplaced, ForTexts, ForTokens, ForWords, Relative, TextHead, WordHead
from bertie.model.activations import activation
from bertie.model.bert import BertModel
from bertie.model.classifiers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertie.model.heads import BertForMaskedLM, BertLMHeadModel
from bertie.model.pretrained import BertPreTrainedModel

NAMES: tuple[tuple[str, str], ...] = (("embeddings_project.", "embeddings.project."),)


class ElectraConfig(RelativeConfig):
    model_type = "electra"
    has_pooler = False
    defaults: ClassVar[Values] = {
        "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu", "summary_last_dropout": 0.1,
    }  # fmt: skip

    @property
    def embedding_width(self) -> int:
        return int(self.embedding_size)

    def validate(self) -> None:
        if not isinstance(self.embedding_size, int) or not 1 <= self.embedding_size <= 2**20:
            raise ConfigError(f"config.embedding_size is {self.embedding_size!r}; it must be a width of at least 1.")
        super().validate()


class ElectraPreTrainedModel(BertPreTrainedModel):
    config_class = ElectraConfig
    base_model_prefix = "electra"
    names_in_files: ClassVar[Sequence[tuple[str, str]]] = NAMES


class ElectraModel(ElectraPreTrainedModel, BertModel): ...


class ElectraHead(ElectraPreTrainedModel, Relative):
    body = ElectraModel


class ElectraWords(ElectraHead, ForWords):
    names_in_files = (
        *NAMES,
        ("generator_predictions.dense.", "lm_head.dense."),
        ("generator_predictions.LayerNorm.", "lm_head.layer_norm."),
        ("generator_lm_head.", "lm_head.decoder."),
    )

    def make_head(self, config: BertConfig) -> None:
        self.lm_head = WordHead(config, F.gelu, width=config.embedding_width)


class ElectraForMaskedLM(ElectraWords, BertForMaskedLM): ...


class ElectraForCausalLM(ElectraWords, BertLMHeadModel): ...


class ElectraForPreTraining(ElectraHead, ForReplaced):
    """Was this token put in? One score to a token, above 0 for yes; `labels` are 1 for tokens that were."""


class ElectraForSequenceClassification(ElectraHead, ForTexts, BertForSequenceClassification):
    def make_head(self, config: BertConfig) -> None:
        rate = config.head_dropout
        self.classifier = TextHead(config, F.gelu, config.num_labels, before=rate, after=rate)


class ElectraForMultipleChoice(ElectraHead, ForTexts, BertForMultipleChoice):
    names_in_files = (
        *NAMES,
        ("classifier.", "classifier.out_proj."),
        ("sequence_summary.summary.", "classifier.dense."),
    )

    def make_head(self, config: BertConfig) -> None:
        if config.summary_type != "first" or config.summary_use_proj is not True:
            raise ConfigError(
                f"config.summary_type is {config.summary_type!r} and summary_use_proj is {config.summary_use_proj!r}.",
                "Choices are judged by the first token through a projection: 'first' and true.",
            )
        act = activation(config.summary_activation or "linear")
        self.classifier = TextHead(config, act, 1, before=0.0, after=config.summary_last_dropout)


class ElectraForTokenClassification(ElectraHead, ForTokens, BertForTokenClassification): ...


class ElectraForQuestionAnswering(ElectraHead, ForAnswers, BertForQuestionAnswering): ...
