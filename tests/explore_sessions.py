"""Sessions of every task with tiny models, as the tests of bertie.explore open them."""

from __future__ import annotations

from typing import Any

import torch

from bertie.explore import Session, open_session
from tiny_models import tiny, tokenizer

KINDS = {
    "fill": "BertForMaskedLM",
    "next": "BertForNextSentencePrediction",
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "answer": "BertForQuestionAnswering",
    "choice": "BertForMultipleChoice",
    "embed": "BertModel",
}
TEXTS: dict[str, tuple[str, Any]] = {
    "fill": ("Paris is the [MASK] of France; the dog sleeps.", None),
    "next": ("She opened the door.", "The dog sleeps on."),
    "classify": ("Nobody expected the film to be good.", None),
    "tag": ("Paris is the capital of France.", None),
    "answer": ("What is the capital?", "Paris is the capital of France."),
    "choice": ("She opened the", ["door", "quick brown fox", "film"]),
    "embed": ("The fox jumps over the dog.", "The dog sleeps."),
}
TASKS = tuple(KINDS)
# Relative positions, and heads that are pruned: a whole layer of them too.
VARIANTS: dict[str, dict[str, Any]] = {
    "absolute": {},
    "relative": {"position_embedding_type": "relative_key_query"},
    "pruned": {"pruned_heads": {0: [1], 1: [0, 1, 2, 3]}},
}


def model_of(task: str, **config: Any) -> Any:
    labels = {"classify": 3, "tag": 5}.get(task)
    return tiny(KINDS[task], **({"num_labels": labels} if labels else {}), **config)


def session_of(task: str, model: Any = None, *, text: Any = None, second: Any = None, **config: Any) -> Session:
    first, other = TEXTS[task] if text is None else (text, second)
    return open_session(first, other, model=model or model_of(task, **config), task=task, tokenizer=tokenizer())


def ids_of(session: Session, row: int = 0) -> dict[str, torch.Tensor]:
    """A row as `BertModel` takes it, padded."""
    found = session.rows[row]
    return {"input_ids": torch.tensor([found.ids]), "token_type_ids": torch.tensor([found.segments])}
