"""Fifty steps of training, ours beside transformers 4.57.6: same weights, same batches, dropout 0, AdamW; same losses.

Ours packs a batch end to end, masks and labels as our objectives do; theirs gets the same texts padded, and its own
loss. What is compared is the data side with the models: packing, labels, masks and the sums that a loop divides.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertie.training.pretraining.masking import MaskRules, example_key
from bertie.training.pretraining.objective import Pretraining
from bertie.training.pretraining.pairs import PretrainingExample
from bertie.training.registry import load_task
from bertie.training.token_rows import TokenRows
from parity.oracle import pair
from tiny_models import SENTENCES, tokenizer

STEPS, TOLERANCE = 50, 1e-4
TEXTS = [sentence[: 20 + 7 * k] for k, sentence in enumerate(SENTENCES)] + SENTENCES


def padded(values: Tensor, ends: list[int], filler: int) -> Tensor:
    sizes = [b - a for a, b in pairwise(ends)]
    return pad_sequence(list(values.split(sizes)), batch_first=True, padding_value=filler)


def their_inputs(batch: Any) -> dict[str, Tensor]:
    ends = batch.tensors["cu_seqlens"].tolist()
    ids = padded(batch.tensors["input_ids"], ends, 0)
    return {
        "input_ids": ids,
        "attention_mask": padded(torch.ones_like(batch.tensors["input_ids"]), ends, 0),
        "token_type_ids": padded(batch.tensors["token_type_ids"], ends, 0),
    }


def curves(objective: Any, theirs: Any, examples: Any, their_labels: Any) -> list[tuple[float, float]]:
    """(ours, theirs) of every step."""
    ours = objective.model
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01) for model in (ours, theirs)]
    losses = []
    for step in range(STEPS):
        chosen = [(5 * step + k) % len(examples) for k in range(5)]
        batch = objective.collate([examples.get(index, step) for index in chosen])
        total, _ = objective.loss(ours, batch)
        mean = total / batch.units
        other = theirs(**their_inputs(batch), **their_labels(batch)).loss
        for optimizer, loss in zip(optimizers, (mean, other), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append((float(mean.detach()), float(other.detach())))
    return losses


def check(losses: list[tuple[float, float]]) -> None:
    assert max(abs(a - b) for a, b in losses) <= TOLERANCE
    assert losses[-1][0] < 0.9 * losses[0][0]  # it did learn


def models(name: str, **config: Any) -> tuple[Any, Any]:
    sizes = {"vocab_size": len(tokenizer()), "max_position_embeddings": 48, "initializer_range": 0.05}
    theirs, ours = pair(name, **(sizes | config))
    return theirs.train(), ours.train()


def test_classification_curves_are_equal() -> None:
    theirs, ours = models("BertForSequenceClassification", num_labels=3, problem_type="single_label_classification")
    rows = [{"text": text, "label": str(k % 3)} for k, text in enumerate(TEXTS)]
    prepared = load_task("classify", model=ours, tokenizer=tokenizer(), train=rows)
    check(curves(prepared.objective, theirs, prepared.train, lambda batch: {"labels": batch.tensors["labels"]}))


class MaskedTexts:
    """Masked anew in every epoch; an epoch is a step here."""

    def __init__(self) -> None:
        self.rows = TokenRows.encode(tokenizer(), TEXTS, max_length=40)

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, index: int, epoch: int) -> PretrainingExample:
        return PretrainingExample(self.rows[index], example_key(0, epoch, index), None)


@pytest.mark.parametrize("whole_words", [False, True])
def test_masked_language_model_curves_are_equal(whole_words: bool) -> None:
    theirs, ours = models("BertForMaskedLM")
    objective = Pretraining(ours, tokenizer(), rules=MaskRules.of(tokenizer(), whole_words=whole_words))

    def labels(batch: Any) -> dict[str, Tensor]:
        flat = torch.full_like(batch.tensors["input_ids"], -100)
        flat[batch.tensors["masked_positions"]] = batch.tensors["labels"]
        return {"labels": padded(flat, batch.tensors["cu_seqlens"].tolist(), -100)}

    check(curves(objective, theirs, MaskedTexts(), labels))


def test_question_answering_curves_are_equal() -> None:
    theirs, ours = models("BertForQuestionAnswering")
    # Contexts of one length: in their padded batches padding competes with the answer, in ours there is none.
    words = ["the", "dog", "and", "the", "fox", "sleeps", "on", "monday", "in", "paris"]
    rows = []
    for number in range(15):
        context = " ".join(words[number % 10 :] + words[: number % 10])
        answer = words[(3 * number) % 10]
        rows.append(
            {
                "id": str(number),
                "question": "what is the capital?",
                "context": context,
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
        )
    prepared = load_task("answer", model=ours, tokenizer=tokenizer(), train=rows)
    assert len({prepared.train.length(index) for index in range(len(prepared.train))}) == 1

    def labels(batch: Any) -> dict[str, Tensor]:
        begins = batch.tensors["cu_seqlens"][:-1].long()
        return {
            "start_positions": batch.tensors["starts"] - begins,
            "end_positions": batch.tensors["ends"] - begins,
        }

    check(curves(prepared.objective, theirs, prepared.train, labels))
