"""RoBERTa: BERT trained longer, with byte-level BPE (Liu et al. 2019, https://arxiv.org/abs/1907.11692).

How it differs from BERT:

- Positions start after the padding id: a text's first token has position `pad_token_id + 1`, and padding has its own
  row. A table of 514 positions reads 512 tokens. (The seam is `config.position_padding`.)
- One segment: `type_vocab_size` is 1 in its checkpoints.
- A text is judged by its first token through a layer of the head's own; the pooler is there for multiple choice alone.
- The head that predicts words is `lm_head`, with GELU whatever the layers have.
- No next-sentence head: it was trained without.

Names of tensors are the hub's in the model too.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
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
from bertie.model.heads import BertForMaskedLM, BertLMHeadModel
from bertie.model.outputs import LogitsOutput
from bertie.model.pretrained import BertPreTrainedModel


class RobertaConfig(RelativeConfig):
    model_type = "roberta"
    defaults: ClassVar[Values] = {"vocab_size": 50265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

    @property
    def position_padding(self) -> int:
        return self.pad_token_id or 0

    def validate(self) -> None:
        if self.pad_token_id is None or self.pad_token_id + 1 >= self.max_position_embeddings:
            raise ConfigError(
                f"config.pad_token_id is {self.pad_token_id}; positions start after it, and there are "
                f"{self.max_position_embeddings} (config.max_position_embeddings).",
                "Use the configuration that came with the weights.",
            )
        super().validate()


class RobertaPreTrainedModel(BertPreTrainedModel):
    config_class = RobertaConfig
    base_model_prefix = "roberta"


class RobertaModel(RobertaPreTrainedModel, BertModel): ...


class RobertaHead(RobertaPreTrainedModel, Relative):
    body = RobertaModel


class RobertaWords(RobertaHead, ForWords):
    def make_head(self, config: BertConfig) -> None:
        self.lm_head = WordHead(config, F.gelu, bias_alone=True)


class RobertaForMaskedLM(RobertaWords, BertForMaskedLM): ...


class RobertaForCausalLM(RobertaWords, BertLMHeadModel): ...


class RobertaForSequenceClassification(RobertaHead, ForTexts, BertForSequenceClassification):
    def make_head(self, config: BertConfig) -> None:
        rate = config.head_dropout
        self.classifier = TextHead(config, torch.tanh, config.num_labels, before=rate, after=rate)


class RobertaForMultipleChoice(RobertaHead, ForChoices, BertForMultipleChoice):
    def forward(  # type: ignore[override]  # the hub's order, which is not that of its other classes
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *others: Any,
        **named: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        given = (input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds, labels)
        return super().forward(*given, *others, **named)


class RobertaForTokenClassification(RobertaHead, ForTokens, BertForTokenClassification): ...


class RobertaForQuestionAnswering(RobertaHead, ForAnswers, BertForQuestionAnswering): ...
