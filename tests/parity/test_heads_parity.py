"""Every BertFor… class and every kind of label against transformers 4.57.6: outputs, loss and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from parity.oracle import TINY, check_same, check_same_gradients, difference, ids, pair, scalar

BATCH, LENGTH, CHOICES = 4, 9, 3
VOCAB = TINY["vocab_size"]


def some_ignored(labels: Tensor) -> Tensor:
    return labels.masked_fill(torch.rand(labels.shape) < 0.6, -100)


def label_kinds() -> list[Any]:
    token_labels = {"labels": some_ignored(torch.randint(0, VOCAB, (BATCH, LENGTH)))}
    classes = torch.randint(0, 5, (BATCH,))
    kinds: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("BertForPreTraining", "both", {}, token_labels | {"next_sentence_label": torch.randint(0, 2, (BATCH,))}),
        ("BertForPreTraining", "none", {}, {}),
        ("BertForMaskedLM", "labels", {}, token_labels),
        ("BertForMaskedLM", "untied", {"tie_word_embeddings": False}, token_labels),
        ("BertForMaskedLM", "none", {}, {}),
        ("BertLMHeadModel", "labels", {"is_decoder": True}, token_labels),
        ("BertLMHeadModel", "none", {"is_decoder": True, "use_cache": False}, {}),
        ("BertForNextSentencePrediction", "labels", {}, {"labels": torch.randint(0, 2, (BATCH,))}),
        ("BertForSequenceClassification", "none", {"num_labels": 3}, {}),
        ("BertForSequenceClassification", "regression", {"num_labels": 1}, {"labels": torch.randn(BATCH)}),
        (
            "BertForSequenceClassification",
            "wide regression",
            {"num_labels": 4, "problem_type": "regression"},
            {"labels": torch.randn(BATCH, 4)},
        ),
        ("BertForSequenceClassification", "one label", {"num_labels": 5}, {"labels": classes}),
        (
            "BertForSequenceClassification",
            "named one label",
            {"num_labels": 5, "problem_type": "single_label_classification", "classifier_dropout": 0.0},
            {"labels": classes},
        ),
        (
            "BertForSequenceClassification",
            "many labels",
            {"num_labels": 5},
            {"labels": torch.randint(0, 2, (BATCH, 5)).float()},
        ),
        ("BertForMultipleChoice", "labels", {}, {"labels": torch.randint(0, CHOICES, (BATCH,))}),
        ("BertForMultipleChoice", "none", {}, {}),
        (
            "BertForTokenClassification",
            "labels",
            {"num_labels": 7},
            {"labels": some_ignored(torch.randint(0, 7, (BATCH, LENGTH)))},
        ),
        ("BertForTokenClassification", "none", {"num_labels": 7}, {}),
        (
            "BertForQuestionAnswering",
            "positions",
            {},
            {"start_positions": torch.tensor([0, 3, 8, 9]), "end_positions": torch.tensor([2, 4, 50, 9])},
        ),
        (
            "BertForQuestionAnswering",
            "column positions",
            {},
            {
                "start_positions": torch.tensor([[0], [3], [8], [1]]),
                "end_positions": torch.tensor([[2], [4], [8], [1]]),
            },
        ),
        ("BertForQuestionAnswering", "none", {}, {}),
    ]
    return [pytest.param(*kind, id=f"{kind[0]}-{kind[1]}") for kind in kinds]


@pytest.mark.parametrize(("name", "kind", "config", "labels"), label_kinds())
@pytest.mark.parametrize("positions", ["absolute", "relative_key", "relative_key_query"])
def test_head_equals_reference(name: str, kind: str, config: dict[str, Any], labels: Any, positions: str) -> None:
    theirs, ours = pair(name, **config, position_embedding_type=positions)
    shape = (BATCH, CHOICES, LENGTH) if name == "BertForMultipleChoice" else (BATCH, LENGTH)
    lengths = torch.tensor([9, 5, 1, 7])
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    inputs = {
        "input_ids": torch.randint(1, VOCAB, shape),
        "token_type_ids": torch.randint(0, 3, shape),
        "attention_mask": mask[:, None].expand(shape).contiguous() if len(shape) == 3 else mask,
    }
    before = dict(ours.config.to_dict())
    wanted, got = theirs(**inputs, **labels), ours(**inputs, **labels)
    check_same(wanted, got)
    check_same(theirs(**inputs, **labels, return_dict=False), ours(**inputs, **labels, return_dict=False))
    check_same_gradients(theirs, ours, scalar(wanted), scalar(got))
    assert ours.config.to_dict() == before  # 4.57 writes problem_type into its config here


HEADS = [
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]


@settings(max_examples=40)
@given(
    name=st.sampled_from(HEADS),
    positions=st.sampled_from(["absolute", "relative_key", "relative_key_query"]),
    mask=st.sampled_from(["none", "2-D", "3-D"]),
    head_mask=st.booleans(),
    embeds=st.booleans(),
    states=st.booleans(),
    attentions=st.booleans(),
    seed=st.integers(0, 100),
)
def test_heads_pass_everything_on(
    name: str, positions: str, mask: str, head_mask: bool, embeds: bool, states: bool, attentions: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    theirs, ours = pair(name, position_embedding_type=positions, num_labels=3 if "Question" not in name else 2)
    inputs: dict[str, Any] = {"output_hidden_states": states, "output_attentions": attentions}
    if embeds:
        inputs["inputs_embeds"] = torch.randn(2, 6, TINY["hidden_size"])
    else:
        inputs["input_ids"] = ids(2, 6, seed=seed)
    if mask == "2-D":
        inputs["attention_mask"] = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    elif mask == "3-D":
        inputs["attention_mask"] = torch.ones(2, 6, 6).tril()
    if head_mask:
        inputs["head_mask"] = torch.rand(2, 3)
    check_same(theirs(**inputs), ours(**inputs))


def test_either_pretraining_label_alone_gives_a_loss_which_they_do_not() -> None:
    theirs, ours = pair("BertForPreTraining")
    tokens, labels = ids(2, 6), torch.randint(0, VOCAB, (2, 6))
    following = torch.tensor([0, 1])
    assert theirs(tokens, labels=labels).loss is None
    both = ours(tokens, labels=labels, next_sentence_label=following).loss
    alone = ours(tokens, labels=labels).loss + ours(tokens, next_sentence_label=following).loss
    assert difference(both, alone) <= 1e-6


def test_answer_positions_before_the_window_are_left_out_which_they_count_as_the_first_token() -> None:
    theirs, ours = pair("BertForQuestionAnswering")
    tokens = ids(2, 6)
    start, end = torch.tensor([-1, 2]), torch.tensor([-1, 3])
    only_second = ours(tokens[1:], start_positions=start[1:], end_positions=end[1:]).loss
    assert difference(ours(tokens, start_positions=start, end_positions=end).loss, only_second) <= 1e-6
    assert difference(theirs(tokens, start_positions=start, end_positions=end).loss, only_second) > 1e-3
