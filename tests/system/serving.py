"""What the tests of the server share: tiny models of every head as folders, and a server that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from bertie.serve.run import Running
from bertie.serve.settings import Limits, ModelChoice, Settings, digest
from tiny_models import saved

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "embed": ("BertModel", {}),
    "classify": ("BertForSequenceClassification", {"id2label": {0: "good", 1: "bad", 2: "ugly"}}),
    "nli": ("BertForSequenceClassification", {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}),
    "rank": ("BertForSequenceClassification", {"id2label": {0: "LABEL_0"}}),
    "tag": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}}),
    "answer": ("BertForQuestionAnswering", {}),
    "fill": ("BertForMaskedLM", {}),
    "next": ("BertForNextSentencePrediction", {}),
}


def folders(where: Path, *names: str) -> dict[str, str]:
    """A folder for each kind of model."""
    found = {}
    for name in names or tuple(HEADS):
        architecture, config = HEADS[name]
        found[name] = saved(where / name, architecture, seed=len(name), **config)
    return found


def settings(models: dict[str, str], *, limits: Limits | None = None, **values: Any) -> Settings:
    """Settings for tests: quiet, on a free port, one thread."""
    keys = {name: frozenset(digest(key.encode()) for key in values.pop(name, ())) for name in ("keys", "admin_keys")}
    choices = tuple(ModelChoice(name, path) for name, path in models.items())
    return Settings(choices, port=0, limits=limits or Limits(), threads=1, **keys, **values)


def client(server: Running, **values: Any) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=30, verify=False, **values)  # plain HTTP: no certificates to load
