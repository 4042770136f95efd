"""What the relatives' models have in common: where they keep their encoder, and the heads that BERT does not have.

A relative's class is one of BERT's (`BertForMaskedLM` …) with another encoder and another head inside; what it takes
and answers, its loss, packing and checks are BERT's own. Two kinds of heads cover all relatives. Words are predicted by
a dense layer, a norm and the decoder, all in one module. Texts are judged by their first token, through a dense layer
of the head's own, where BERT has its pooler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model.activations import activation
from bertie.model.bert import BertModel
from bertie.model.classifiers import TextModel
from bertie.model.heads import HeadModel
from bertie.model.inputs import WantedMaps
from bertie.model.losses import yes_or_no_loss
from bertie.model.outputs import Answers, BertModelOutput, LogitsOutput, as_wanted
from bertie.model.pretrained import BertPreTrainedModel


class Relative(HeadModel):
    """A relative's encoder with a head. The encoder is kept under the hub's name for it; `bert` is another name."""

    body: ClassVar[type[BertModel]]  # the relative's encoder
    pooled: ClassVar[bool] = False  # whether the head looks at the encoder's pooler

    def __init__(self, config: BertConfig) -> None:
        if not isinstance(config, self.config_class):
            raise InputError(
                f"{type(self).__name__} was given a {type(config).__name__}.",
                f"Pass a {self.config_class.__name__}: the configuration of a {self.config_class.model_type!r}.",
            )
        BertPreTrainedModel.__init__(self, config)
        self.bert = self.body(config, add_pooling_layer=self.pooled)
        self.num_labels = config.num_labels
        self.make_head(config)
        self.init_weights()

    def make_head(self, config: BertConfig) -> None:
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(self.base_model_prefix if name == "bert" else name, value)

    def __getattr__(self, name: str) -> Any:  # modules are found here
        return super().__getattr__({"bert": self.base_model_prefix, "cls": "lm_head"}.get(name, name))


class WordHead(nn.Module):
    """A score for every word of the vocabulary: dense, activation, norm, and the decoder with its bias."""

    def __init__(
        self, config: BertConfig, act: Callable[[Tensor], Tensor], *, width: int | None = None, bias_alone: bool = False
    ) -> None:
        super().__init__()
        width = width or config.hidden_size
        self.act = act
        self.dense = nn.Linear(config.hidden_size, width)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(width, config.vocab_size)
        if bias_alone:  # files of some relatives have it by itself
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))
            self._tie_weights()

    def _tie_weights(self) -> None:
        if "bias" in self._parameters:
            self.decoder.bias = self.bias

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.decoder(self.layer_norm(self.act(self.dense(states))))
        return scores


class TextHead(nn.Module):
    """A text's scores from its first token's state: dropout, dense, activation, dropout, output."""

    def __init__(
        self, config: BertConfig, act: Callable[[Tensor], Tensor], outputs: int, *, before: float, after: float
    ) -> None:
        super().__init__()
        self.act = act
        self.before, self.after = nn.Dropout(before), nn.Dropout(after)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, outputs)

    def forward(self, first: Tensor) -> Tensor:
        scores: Tensor = self.out_proj(self.after(self.act(self.dense(self.before(first)))))
        return scores


class ForWords(Relative):
    """The relatives' `ForMaskedLM` and `ForCausalLM`; `make_head` makes `self.lm_head`."""

    lm_head: WordHead
    _tied_weights_keys: ClassVar = ["lm_head.decoder.weight", "lm_head.decoder.bias"]

    @property
    def _predictions(self) -> Any:  # BERT's head and this one have a decoder in common, and that they can be called
        return self.lm_head

    def set_output_embeddings(self, decoder: nn.Linear) -> None:
        self.lm_head.decoder = decoder
        if "bias" in self.lm_head._parameters:
            self.lm_head.bias = decoder.bias


class ForTexts(Relative, TextModel):
    """The relatives' `ForSequenceClassification`, and some of their `ForMultipleChoice`; the head is a `TextHead`."""

    def judge(self, outputs: BertModelOutput, cu_seqlens: Tensor | None) -> Tensor:
        states = outputs.last_hidden_state
        first = states[:, 0] if cu_seqlens is None else states[cu_seqlens[:-1].to(states.device).long()]
        scores: Tensor = self.classifier(first)
        return scores


class ForChoices(Relative, TextModel):
    """A relative's `ForMultipleChoice` that looks at the pooler, as BERT's does."""

    pooled = True

    def make_head(self, config: BertConfig) -> None:
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)


class ForTokens(Relative):
    """The relatives' `ForTokenClassification`."""

    def make_head(self, config: BertConfig) -> None:
        self.dropout = nn.Dropout(config.head_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)


class ForAnswers(Relative):
    """The relatives' `ForQuestionAnswering`: two scores to a token, whatever the configuration's labels were."""

    def __init__(self, config: BertConfig) -> None:
        if config.num_labels != 2:
            config = config.replace(num_labels=2, id2label=None, label2id=None)
        super().__init__(config)

    def make_head(self, config: BertConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)


class TokenHead(nn.Module):
    """One score to a token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense, self.act = nn.Linear(config.hidden_size, config.hidden_size), activation(config.hidden_act)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.dense_prediction(self.act(self.dense(states)))
        return scores.squeeze(-1)


class ForReplaced(Answers[LogitsOutput], Relative):
    """ELECTRA's `ForPreTraining`: which tokens are not the text's own. Hidden tokens have no part in the loss."""

    def make_head(self, config: BertConfig) -> None:
        self.discriminator_predictions = TokenHead(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: WantedMaps | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> LogitsOutput | tuple[Any, ...]:
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        logits: Tensor = self.discriminator_predictions(outputs.last_hidden_state)
        loss = None if labels is None else yes_or_no_loss(logits, labels, attention_mask)
        return as_wanted(self, LogitsOutput(loss, logits, outputs.hidden_states, outputs.attentions), return_dict)
