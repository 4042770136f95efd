"""What the tests of this folder run on: every class with inputs of its shape, for transformers and Bertie alike."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import transformers
from torch import Tensor

# The comparison is with 4.57.6; with 5 what still exists there is compared too.
FIVE = int(transformers.__version__.split(".")[0]) >= 5
HEADS = [
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertLMHeadModel",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]
CLASSES = ["BertModel", *HEADS]
VOCABULARY, NUM_CHOICES = 61, 3


def settings(name: str) -> dict[str, Any]:
    return {"is_decoder": True, "use_cache": False} if name == "BertLMHeadModel" else {}


def inputs(name: str, batch: int, length: int, *, padded: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Ids, mask and segments; the first row is whole, every other is padded at its end."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, NUM_CHOICES, length) if name == "BertForMultipleChoice" else (batch, length)
    ids = torch.randint(1, VOCABULARY, shape, generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row in range(1, batch):
            mask[row, ..., length - 1 - row % (length - 2) :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.randint(0, 2, shape, generator=generator)}


def labels(name: str, batch: int, length: int, *, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def below(limit: int, *shape: int) -> Tensor:
        return torch.randint(0, limit, shape, generator=generator)

    words = below(VOCABULARY, batch, length)
    some_words = words.masked_fill(below(10, batch, length) < 6, -100)
    found: dict[str, dict[str, Tensor]] = {
        "BertForPreTraining": {"labels": some_words, "next_sentence_label": below(2, batch)},
        "BertForMaskedLM": {"labels": some_words},
        "BertLMHeadModel": {"labels": words},
        "BertForMultipleChoice": {"labels": below(NUM_CHOICES, batch)},
        "BertForTokenClassification": {"labels": below(2, batch, length)},
        "BertForQuestionAnswering": {
            "start_positions": below(length, batch),
            "end_positions": below(length, batch),
        },
    }
    return found.get(name, {} if name == "BertModel" else {"labels": below(2, batch)})


def forget_accelerate() -> None:
    """accelerate and Trainer keep settings, such as mixed precision, for the whole process and its environment."""
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    state = sys.modules.get("accelerate.state")
    for name in ("AcceleratorState", "PartialState", "GradientState") if state is not None else ():
        getattr(state, name)._reset_state()
