"""The prediction heads, and the `BertFor…` classes that predict words; classifiers.py has those that judge texts.

Every class takes what `BertModel` takes (padded or packed) plus its labels, and returns a typed output with `loss`
first. The arguments are the hub's, in the hub's order, up to `return_dict` or `cache_position`; those after them are
ours, to be given by name. (They are not keyword-only: ONNX's older exporter passes every default by position.) A head
is a few lines; the parameter names are the hub's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model import inputs
from bertie.model.activations import activation
from bertie.model.bert import BertModel
from bertie.model.cache import KeyValueCache
from bertie.model.generation.generate import Generation
from bertie.model.inputs import WantedMaps
from bertie.model.losses import IGNORED, class_labels, classification_loss, cross_entropy
from bertie.model.outputs import (
    Answers,
    BertForPreTrainingOutput,
    CausalLMOutput,
    LogitsOutput,
    as_wanted,
)
from bertie.model.pretrained import BertPreTrainedModel

# -- heads -----------------------------------------------------------------------------------------------------------


class BertPredictionHeadTransform(nn.Module):
    """One more dense layer before the vocabulary."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_act_fn = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor) -> Tensor:
        transformed: Tensor = self.LayerNorm(self.transform_act_fn(self.dense(hidden_states)))
        return transformed


class BertLMPredictionHead(nn.Module):
    """A score for every word of the vocabulary; the decoder's matrix is the word embeddings', its bias its own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self._tie_weights()

    def _tie_weights(self) -> None:
        self.decoder.bias = self.bias  # checkpoints know it by both names

    def forward(self, hidden_states: Tensor) -> Tensor:
        logits: Tensor = self.decoder(self.transform(hidden_states))
        return logits


class BertOnlyMLMHead(nn.Module):
    """The head that predicts masked words, under the name that checkpoints use (`cls.predictions`)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(config)

    def forward(self, sequence_output: Tensor) -> Tensor:
        logits: Tensor = self.predictions(sequence_output)
        return logits


class BertOnlyNSPHead(nn.Module):
    """Does B follow A? Class 0 says yes, class 1 says B is random."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled_output: Tensor) -> Tensor:
        logits: Tensor = self.seq_relationship(pooled_output)
        return logits


class BertPreTrainingHeads(nn.Module):
    """Both heads of pretraining: masked words (`predictions`) and next sentences (`seq_relationship`)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, sequence_output: Tensor, pooled_output: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictions(sequence_output), self.seq_relationship(pooled_output)


# -- models ----------------------------------------------------------------------------------------------------------


class HeadModel(BertPreTrainedModel):
    """A BertModel as `self.bert` with something on top."""

    bert: BertModel


class LanguageModel(HeadModel):
    """A HeadModel whose head `self.cls` scores the vocabulary."""

    cls: BertOnlyMLMHead | BertPreTrainingHeads
    _tied_weights_keys: ClassVar = ["predictions.decoder.bias", "cls.predictions.decoder.weight"]

    @property
    def _predictions(self) -> BertLMPredictionHead:
        return self.cls.predictions

    def get_output_embeddings(self) -> nn.Linear:
        return self._predictions.decoder

    def set_output_embeddings(self, decoder: nn.Linear) -> None:
        """Replace the output layer over the vocabulary."""
        self._predictions.decoder = decoder
        self._predictions.bias = decoder.bias

    def _masked_lm(
        self,
        states: Tensor,
        labels: Tensor | None,
        masked_positions: Tensor | None,
        sparse_logits: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and loss; at the masked positions only, when those are named or `sparse_logits` is asked for.

        Pretraining predicts 15 % of the tokens: the vocabulary-wide product at the others is wasted work.
        """
        for name, given in (("labels", labels), ("masked_positions", masked_positions)):
            if given is not None:
                inputs.is_tensor(name, given)
        if labels is not None and labels.shape != states.shape[:-1] and masked_positions is None:
            raise InputError(f"labels has shape {list(labels.shape)}; it must be {list(states.shape[:-1])}.")
        if masked_positions is not None:
            packed = states.dim() == 2
            if self.check_inputs:
                inputs.ids_below("masked_positions", masked_positions, states.shape[-2], "the length of the input")
            if labels is not None and labels.shape != masked_positions.shape:
                labels = _at_positions(labels, masked_positions, "labels", packed=packed)
            states = _at_positions(states, masked_positions, "masked_positions", packed=packed)
        elif sparse_logits:
            if labels is None:
                raise InputError(
                    "sparse_logits was asked for without labels or masked_positions.",
                    "Give one of them: they say where logits are wanted.",
                )
            states, labels = states[labels != IGNORED], labels[labels != IGNORED]
        logits = self._predictions(states)
        if labels is None:
            return logits, None
        labels = class_labels("labels", labels, logits.shape[:-1], logits.shape[-1], check_values=self.check_inputs)
        return logits, cross_entropy(logits.flatten(0, -2), labels)


class BertForPreTraining(Answers[BertForPreTrainingOutput], LanguageModel):
    """Both pretraining heads: masked words and next sentence. Either label alone gives a loss too."""

    cls: BertPreTrainingHeads

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.cls = BertPreTrainingHeads(config)
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
        next_sentence_label: Tensor | None = None,
        output_attentions: WantedMaps | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        masked_positions: Tensor | None = None,
        sparse_logits: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> BertForPreTrainingOutput | tuple[Any, ...]:
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(*given, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        logits, loss = self._masked_lm(outputs.last_hidden_state, labels, masked_positions, sparse_logits)
        relationship: Tensor = self.cls.seq_relationship(outputs.pooler_output)
        if next_sentence_label is not None:
            next_loss = classification_loss(
                relationship, next_sentence_label, "single_label_classification", check_values=self.check_inputs
            )
            loss = next_loss if loss is None else loss + next_loss
        return as_wanted(
            self,
            BertForPreTrainingOutput(loss, logits, relationship, outputs.hidden_states, outputs.attentions),
            return_dict,
        )


class BertForMaskedLM(Answers[LogitsOutput], LanguageModel):
    """Predicts the words behind [MASK].

    `masked_positions` (`[batch, predictions]`, or `[predictions]` token numbers of a packed batch) limits the logits to
    those places; `sparse_logits=True` to the places whose label is not −100.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.init_weights()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: WantedMaps | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        masked_positions: Tensor | None = None,
        sparse_logits: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> LogitsOutput | tuple[Any, ...]:
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        outputs = self.bert(
            *given, encoder_hidden_states, encoder_attention_mask, **wanted, return_dict=True, cu_seqlens=cu_seqlens
        )
        logits, loss = self._masked_lm(outputs.last_hidden_state, labels, masked_positions, sparse_logits)
        return as_wanted(self, LogitsOutput(loss, logits, outputs.hidden_states, outputs.attentions), return_dict)


class BertLMHeadModel(Answers[CausalLMOutput], LanguageModel, Generation):
    """Predicts the next word: BERT as a decoder (`is_decoder=True`). `generate()` is in generation/generate.py."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.init_weights()

    @classmethod
    def can_generate(cls) -> bool:
        """True: this class can write texts."""
        return True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: KeyValueCache | Sequence[Sequence[Tensor | None]] | None = None,
        use_cache: bool | None = None,
        output_attentions: WantedMaps | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cu_seqlens: Tensor | None = None,
        **loss_kwargs: Any,
    ) -> CausalLMOutput | tuple[Any, ...]:
        """`num_items_in_batch` divides the summed loss, for a batch that comes in several parts.

        `loss_kwargs` is there for trainers that look for it in the signature; it takes nothing.
        """
        inputs.nothing_more(self, loss_kwargs)
        if labels is not None and past_key_values is None:
            use_cache = False
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        given = [input_ids, attention_mask, token_type_ids, position_ids, head_mask, inputs_embeds]
        given += [encoder_hidden_states, encoder_attention_mask]
        outputs = self.bert(*given, past_key_values, use_cache, **wanted, return_dict=True, cu_seqlens=cu_seqlens)
        logits: Tensor = self.cls(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            if labels.shape != logits.shape[:-1]:
                raise InputError(f"labels has shape {list(labels.shape)}; it must be {list(logits.shape[:-1])}.")
            following = _next_labels(labels, cu_seqlens)
            following = class_labels(
                "labels", following, logits.shape[:-1], logits.shape[-1], check_values=self.check_inputs
            )
            loss = cross_entropy(logits.flatten(0, -2).float(), following, num_items=num_items_in_batch)
        seen = (outputs.hidden_states, outputs.attentions, outputs.cross_attentions)
        return as_wanted(self, CausalLMOutput(loss, logits, outputs.past_key_values, *seen), return_dict)


# -- shapes ----------------------------------------------------------------------------------------------------------


def _at_positions(values: Tensor, positions: Tensor, name: str, *, packed: bool) -> Tensor:
    """`[B, S, …]` at `[B, P]` → `[B, P, …]`; packed `[T, …]` at `[P]` → `[P, …]`."""
    if positions.dim() == 1 and packed:
        return values[positions]
    if positions.dim() != 2 or packed or values.dim() < 2 or positions.shape[0] != values.shape[0]:
        raise InputError(
            f"{name}: positions of shape {list(positions.shape)} do not fit values of shape {list(values.shape)}; "
            "they take [batch, predictions], or [predictions] for a packed batch."
        )
    rows = torch.arange(len(values), device=values.device)[:, None]
    return values[rows, positions]


def _next_labels(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Every token's label is the token after it; the last of a text has none."""
    following = labels.long().roll(-1, dims=-1)
    if cu_seqlens is None:
        following[:, -1] = IGNORED
    else:
        following[cu_seqlens[1:].long() - 1] = IGNORED
    return following
