"""Both libraries with one configuration and one set of weights: what the tests of models in this folder import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bertie

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 36,
    "max_position_embeddings": 40, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2, "num_labels": 3,
}  # fmt: skip
IDS = torch.arange(3, 27).reshape(3, 8)
MASK = torch.tensor([[1] * 8, [1] * 6 + [0] * 2, [1] * 3 + [0] * 5])


@pytest.fixture(scope="session")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is the other side of these comparisons")


@pytest.fixture(params=["transformers", "bertie"])
def library(request: pytest.FixtureRequest) -> Any:
    """Each library in turn: the same test runs on both."""
    return pytest.importorskip(request.param, reason="transformers is the other side of these comparisons")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved BertModel, as people start from."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(1)
    bertie.BertModel(bertie.BertConfig(**SIZES)).save_pretrained(folder)
    return folder
