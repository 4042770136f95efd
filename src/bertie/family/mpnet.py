"""MPNet: masked and permuted words at once (Song et al. 2020, https://arxiv.org/abs/2004.09297).

How it differs from BERT:

- Positions start after the padding row, as RoBERTa's do, and besides them all layers share a bias that depends on how
  far apart two tokens are (`encoder.relative_attention_bias`). (The seams are `config.position_padding` and
  `config.position_buckets`; ops/relative.py computes the bias.)
- No segments: `token_type_ids` are taken and change nothing.
- Tensors of attention have other names: `attention.attn.q` is BERT's `attention.self.query`.
- The heads are RoBERTa's, with `hidden_dropout_prob` as the only dropout.
- Always an encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch.nn import functional as F

from bertie.config import BertConfig, Values
from bertie.config.relatives import RelativeConfig
from bertie.errors import ConfigError
from bertie.family.heads import ForAnswers, ForChoices, ForTexts, ForTokens, ForWords, Relative, TextHead, WordHead
from bertie.model.bert import BertModel
from bertie.model.classifiers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertie.model.heads import BertForMaskedLM
from bertie.model.pretrained import BertPreTrainedModel

_BUCKETS = (
    32  # the published code computes with as many whatever the configuration says, so the table has at least these
)


class MPNetConfig(RelativeConfig):
    model_type = "mpnet"
    has_segments = False
    defaults: ClassVar[Values] = {
        "vocab_size": 30527, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        "relative_attention_num_buckets": _BUCKETS,
    }  # fmt: skip
    fixed: ClassVar[Values] = {
        "type_vocab_size": 1, "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
        "classifier_dropout": None, "use_cache": False,
    }  # fmt: skip

    @property
    def position_padding(self) -> int:
        return 1

    @property
    def position_buckets(self) -> int:
        return int(self.relative_attention_num_buckets)

    def validate(self) -> None:
        given = self.relative_attention_num_buckets
        if not isinstance(given, int) or not _BUCKETS <= given <= 2**16:
            raise ConfigError(
                f"config.relative_attention_num_buckets is {given!r}; it must be at least {_BUCKETS}, the number that "
                "distances are sorted into."
            )
        super().validate()


class MPNetPreTrainedModel(BertPreTrainedModel):
    config_class = MPNetConfig
    base_model_prefix = "mpnet"
    names_in_files: ClassVar[Sequence[tuple[str, str]]] = (
        ("attention.attn.q.", "attention.self.query."),
        ("attention.attn.k.", "attention.self.key."),
        ("attention.attn.v.", "attention.self.value."),
        ("attention.attn.o.", "attention.output.dense."),
        ("attention.LayerNorm.", "attention.output.LayerNorm."),
    )


class MPNetModel(MPNetPreTrainedModel, BertModel): ...


class MPNetHead(MPNetPreTrainedModel, Relative):
    body = MPNetModel


class MPNetForMaskedLM(MPNetHead, ForWords, BertForMaskedLM):
    def make_head(self, config: BertConfig) -> None:
        self.lm_head = WordHead(config, F.gelu, bias_alone=True)


class MPNetForSequenceClassification(MPNetHead, ForTexts, BertForSequenceClassification):
    def make_head(self, config: BertConfig) -> None:
        rate = config.hidden_dropout_prob
        self.classifier = TextHead(config, torch.tanh, config.num_labels, before=rate, after=rate)


class MPNetForMultipleChoice(MPNetHead, ForChoices, BertForMultipleChoice): ...


class MPNetForTokenClassification(MPNetHead, ForTokens, BertForTokenClassification): ...


class MPNetForQuestionAnswering(MPNetHead, ForAnswers, BertForQuestionAnswering): ...
