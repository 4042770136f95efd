"""What tests of bulk jobs share: a small model, 400 texts in parquet files, and their vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bertie
from bulk_jobs import parquet_files, some_texts
from sentence_models import tiny_sentence_model

TEXTS = some_texts(400)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_sentence_model(tmp_path_factory.mktemp("bulk") / "model")


@pytest.fixture(scope="module")
def wanted(model: str) -> Any:
    return bertie.embed(TEXTS, model=model)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return parquet_files(tmp_path / "texts", TEXTS)
