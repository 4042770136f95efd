"""The `BertFor…` classes that judge texts and tokens: next sentence, classification, choice, tags and answers.

Like those in heads.py they take what `BertModel` takes (padded or packed) plus their labels, with the hub's arguments
in the hub's order, and return a typed output with `loss` first.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model.bert import BertModel
from bertie.model.heads import BertOnlyNSPHead, HeadModel
from bertie.model.inputs import WantedMaps, nothing_more
from bertie.model.losses import class_labels, classification_loss, cross_entropy, span_loss
from bertie.model.outputs import Answers, LogitsOutput, QuestionAnsweringOutput, as_wanted


class BertForNextSentencePrediction(Answers[LogitsOutput], HeadModel):
    """Does the second segment follow the first? Logits `[batch, 2]`: 0 follows, 1 random."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.cls = BertOnlyNSPHead(config)
        self.init_weights()

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
        num_items_in_batch: Tensor | int | None = None,
        cu_seqlens: Tensor | None = None,
        **kwargs: Any,
    ) -> LogitsOutput | tuple[Any, ...]:
        """`num_items_in_batch` divides the summed loss, for a batch that comes in several parts."""
        if "next_sentence_label" in kwargs:
            warnings.warn("next_sentence_label is deprecated: give it as labels.", FutureWarning, stacklevel=3)
            labels = kwargs.pop("next_sentence_label")
        nothing_more(self, kwargs)
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        logits: Tensor = self.cls(outputs.pooler_output)
        loss = None
        if labels is not None:
            labels = class_labels("labels", labels, logits.shape[:-1], 2, check_values=self.check_inputs)
            loss = cross_entropy(logits, labels, num_items=num_items_in_batch)
        return as_wanted(self, LogitsOutput(loss, logits, outputs.hidden_states, outputs.attentions), return_dict)


class BertForSequenceClassification(Answers[LogitsOutput], HeadModel):
    """Labels (or a number) for a text or a pair.

    What kind of problem it is comes from `config.problem_type`, or from `num_labels` and the labels' dtype each time;
    the config is never written to.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.dropout = nn.Dropout(config.head_dropout)
        self.num_labels = config.num_labels
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.init_weights()

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
        class_weights: Tensor | None = None,
        smoothing: float = 0.0,
        cu_seqlens: Tensor | None = None,
    ) -> LogitsOutput | tuple[Any, ...]:
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        logits: Tensor = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            loss = classification_loss(
                logits,
                labels,
                self.config.problem_type,
                class_weights=class_weights,
                smoothing=smoothing,
                check_values=self.check_inputs,
            )
        return as_wanted(self, LogitsOutput(loss, logits, outputs.hidden_states, outputs.attentions), return_dict)


class BertForMultipleChoice(Answers[LogitsOutput], HeadModel):
    """Scores every choice by itself and lets them compete: `[batch, choices, length]` → `[batch, choices]`.

    A packed batch holds the choices of one question after the other; say how many there are with `num_choices`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.dropout = nn.Dropout(config.head_dropout)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.init_weights()

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
        num_choices: int | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> LogitsOutput | tuple[Any, ...]:
        if cu_seqlens is None:
            shown = input_ids if input_ids is not None else inputs_embeds
            if shown is not None:
                num_choices = _num_choices(shown, 3 if input_ids is not None else 4)
            input_ids, attention_mask, token_type_ids = map(_flat, (input_ids, attention_mask, token_type_ids))
            position_ids, inputs_embeds = map(_flat, (position_ids, inputs_embeds))
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        scores: Tensor = self.classifier(self.dropout(outputs.pooler_output))
        if num_choices is None or (cu_seqlens is not None and (num_choices < 1 or len(scores) % num_choices)):
            raise InputError(
                f"{{num_choices:is}} the packed batch has {len(scores)} texts.",
                "Give how many choices every question has; the texts are question after question.",
                num_choices=num_choices,
            )
        logits = scores.view(-1, num_choices)
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, "single_label_classification", check_values=self.check_inputs)
        return as_wanted(self, LogitsOutput(loss, logits, outputs.hidden_states, outputs.attentions), return_dict)


class BertForTokenClassification(Answers[LogitsOutput], HeadModel):
    """A label for every token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.head_dropout)
        self.num_labels = config.num_labels
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.init_weights()

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
        class_weights: Tensor | None = None,
        smoothing: float = 0.0,
        cu_seqlens: Tensor | None = None,
    ) -> LogitsOutput | tuple[Any, ...]:
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        logits: Tensor = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            labels = class_labels("labels", labels, logits.shape[:-1], logits.shape[-1], check_values=self.check_inputs)
            loss = cross_entropy(logits.flatten(0, -2), labels, class_weights=class_weights, smoothing=smoothing)
        return as_wanted(self, LogitsOutput(loss, logits, outputs.hidden_states, outputs.attentions), return_dict)


class BertForQuestionAnswering(Answers[QuestionAnsweringOutput], HeadModel):
    """Where in the text the answer starts and where it ends: two scores to a token, whatever the config's labels were.

    `start_positions` and `end_positions` count from each text's first token; one outside the window is left out of the
    loss. The logits of a packed batch are `[tokens]`, and its loss has no padding to compete with.
    """

    def __init__(self, config: BertConfig) -> None:
        if config.num_labels != 2:
            config = config.replace(num_labels=2, id2label=None, label2id=None)
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.num_labels = config.num_labels
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.init_weights()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: WantedMaps | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> QuestionAnsweringOutput | tuple[Any, ...]:
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        start, end = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            lengths = None if cu_seqlens is None else cu_seqlens.diff().to(start.device)
            losses = [
                span_loss(_rectangle(logits, cu_seqlens), positions, lengths)
                for logits, positions in ((start, start_positions), (end, end_positions))
            ]
            loss = (losses[0] + losses[1]) / 2
        return as_wanted(
            self, QuestionAnsweringOutput(loss, start, end, outputs.hidden_states, outputs.attentions), return_dict
        )


# -- shapes ----------------------------------------------------------------------------------------------------------


def _num_choices(given: Tensor, dims: int) -> int:
    if given.dim() != dims:
        raise InputError(f"The input has shape {list(given.shape)}; multiple choice takes [batch, choices, length, …].")
    return given.shape[1]


def _flat(x: Tensor | None) -> Tensor | None:
    """`[batch, choices, …]` → `[batch·choices, …]`."""
    return None if x is None else x.flatten(0, 1)


def _rectangle(logits: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Packed `[T]` logits as `[texts, longest]`, with −inf where a text has ended."""
    if cu_seqlens is None:
        return logits
    texts = torch.tensor_split(logits, cu_seqlens[1:-1].cpu().long())
    return nn.utils.rnn.pad_sequence(list(texts), batch_first=True, padding_value=float("-inf"))
