"""Every task in every precision, with every attention kernel: no NaN, on nothing, one token, full length and more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bertie.running.open import OpenModel
from bertie.tasks.classify import classify
from bertie.tasks.features import features
from bertie.tasks.fill import fill
from bertie.tasks.generate import generate
from bertie.tasks.next_sentence import next_sentence
from bertie.tasks.rerank import rerank
from bertie.tasks.zero_shot import zero_shot
from tiny_models import MAX_LENGTH, tiny, tokenizer

TEXTS = ["", "dog", "dog " * (MAX_LENGTH - 2), "the dog and the fox " * 40]
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}

TASKS: dict[str, tuple[str, dict[str, Any], Callable[[OpenModel], list[float]]]] = {
    "classify": (
        "BertForSequenceClassification",
        {},
        lambda model: [
            one.score for long in ("truncate", "windows") for one in classify(TEXTS, model=model, long=long)
        ],
    ),
    "zero_shot": (
        "BertForSequenceClassification",
        {"id2label": NLI},
        lambda model: [score for one in zero_shot(TEXTS, ["a", "b"], model=model) for _, score in one.labels],
    ),
    "rerank": (
        "BertForSequenceClassification",
        {"num_labels": 1},
        lambda model: [one.score for ranking in rerank(TEXTS, TEXTS, model=model) for one in ranking],
    ),
    "fill": (
        "BertForMaskedLM",
        {},
        lambda model: [one.fillings[0].score for one in fill([text + " [MASK]" for text in TEXTS], model=model)],
    ),
    "next_sentence": (
        "BertForNextSentencePrediction",
        {},
        lambda model: [one.probability for one in next_sentence(TEXTS, TEXTS[::-1], model=model)],
    ),
    "features": (
        "BertModel",
        {},
        lambda model: [float(abs(t.vector(-1)).sum()) for one in features(TEXTS, model=model) for t in one.tokens],
    ),
    "generate": (
        "BertLMHeadModel",
        {"is_decoder": True},
        lambda model: [float(len(one.ids)) for one in generate(TEXTS, model=model, max_new_tokens=3)],
    ),
}


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_answers_are_finite(task: str, dtype: torch.dtype, backend: str) -> None:
    name, config, run = TASKS[task]
    model = tiny(name, **config).to(dtype)
    model.set_attention_backend(backend)
    found = run(OpenModel(model, tokenizer()))
    assert found
    assert all(map(math.isfinite, found))
