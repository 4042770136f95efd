"""DistilBERT: half of BERT's layers, taught by all of them (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

How it differs from BERT:

- No segments and no pooler: `token_type_ids` are taken and change nothing.
- Keys of the configuration have other names (`dim`, `n_layers`, `hidden_dim` …), and every norm's eps is 1e-12.
- Tensors have other names: `transformer.layer.0.attention.q_lin` is BERT's `encoder.layer.0.attention.self.query`.
- A text is judged by its first token through `pre_classifier` and ReLU, with a dropout of its own
  (`seq_classif_dropout`); answers have one too (`qa_dropout`).
- Positions may be sines (`sinusoidal_pos_embds`), which are not trained.
- Always an encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from bertie.config import BertConfig, Values
from bertie.config.relatives import RelativeConfig
from bertie.family.heads import ForAnswers, ForTexts, ForTokens, ForWords, Relative, TextHead, WordHead
from bertie.model.activations import activation
from bertie.model.bert import BertEmbeddings, BertModel
from bertie.model.classifiers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertie.model.heads import BertForMaskedLM
from bertie.model.pretrained import BertPreTrainedModel

NAMES: tuple[tuple[str, str], ...] = (
    ("transformer.layer.", "encoder.layer."),
    ("attention.q_lin.", "attention.self.query."),
    ("attention.k_lin.", "attention.self.key."),
    ("attention.v_lin.", "attention.self.value."),
    ("attention.out_lin.", "attention.output.dense."),
    ("sa_layer_norm.", "attention.output.LayerNorm."),
    ("ffn.lin1.", "intermediate.dense."),
    ("ffn.lin2.", "output.dense."),
    ("output_layer_norm.", "output.LayerNorm."),
)
_WORDS = (("vocab_transform.", "lm_head.dense."), ("vocab_layer_norm.", "lm_head.layer_norm."))
_TEXTS = (("classifier.", "classifier.out_proj."), ("pre_classifier.", "classifier.dense."))


class DistilBertConfig(RelativeConfig):
    model_type = "distilbert"
    has_segments = has_pooler = False
    attribute_map: ClassVar[dict[str, str]] = {
        "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size", "activation": "hidden_act", "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }  # fmt: skip
    defaults: ClassVar[Values] = {
        "num_hidden_layers": 6, "sinusoidal_pos_embds": False, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
    }  # fmt: skip
    fixed: ClassVar[Values] = {
        "type_vocab_size": 1, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "is_decoder": False,
        "add_cross_attention": False, "classifier_dropout": None, "use_cache": False,
    }  # fmt: skip


class DistilBertPreTrainedModel(BertPreTrainedModel):
    config_class = DistilBertConfig
    base_model_prefix = "distilbert"
    names_in_files: ClassVar[Sequence[tuple[str, str]]] = NAMES

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BertEmbeddings) and self.config.sinusoidal_pos_embds:
            table = module.position_embeddings.weight
            steps = torch.arange(len(table))[:, None] / 10000 ** (torch.arange(0, table.shape[1], 2) / table.shape[1])
            waves = torch.stack([steps.sin(), steps.cos()], dim=-1).flatten(1)
            table.requires_grad_(False).copy_(waves[:, : table.shape[1]])


class DistilBertModel(DistilBertPreTrainedModel, BertModel): ...


class DistilBertHead(DistilBertPreTrainedModel, Relative):
    body = DistilBertModel


class DistilBertForMaskedLM(DistilBertHead, ForWords, BertForMaskedLM):
    names_in_files = (*NAMES, *_WORDS, ("vocab_projector.", "lm_head.decoder."))

    def make_head(self, config: BertConfig) -> None:
        self.lm_head = WordHead(config, activation(config.hidden_act))


class DistilBertForSequenceClassification(DistilBertHead, ForTexts, BertForSequenceClassification):
    names_in_files = (*NAMES, *_TEXTS)

    def make_head(self, config: BertConfig) -> None:
        self.classifier = TextHead(config, F.relu, config.num_labels, before=0.0, after=config.seq_classif_dropout)


class DistilBertForMultipleChoice(DistilBertHead, ForTexts, BertForMultipleChoice):
    names_in_files = (*NAMES, *_TEXTS)

    def make_head(self, config: BertConfig) -> None:
        self.classifier = TextHead(config, F.relu, 1, before=0.0, after=config.seq_classif_dropout)


class DistilBertForTokenClassification(DistilBertHead, ForTokens, BertForTokenClassification): ...


class DistilBertForQuestionAnswering(DistilBertHead, ForAnswers, BertForQuestionAnswering):
    qa_outputs: nn.Module  # type: ignore[assignment]  # a layer more than BERT's
    names_in_files = (*NAMES, ("qa_outputs.", "qa_outputs.1."))

    def make_head(self, config: BertConfig) -> None:
        self.qa_outputs = nn.Sequential(nn.Dropout(config.qa_dropout), nn.Linear(config.hidden_size, 2))
