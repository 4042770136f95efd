"""How workers share a machine, and heads their weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bertie.serve.models import Place, chosen_tasks, open_runners
from bertie.serve.settings import ModelChoice
from bertie.serve.tasks import TASKS
from bertie.serve.workers import share
from tiny_models import saved


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
def test_workers_share_the_cores_without_overlap(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    parts = [share(index, count, "cpu")[1] for index in range(count)]
    assert all(parts)
    if count <= 8:
        assert sorted(core for part in parts for core in part) == list(range(8))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_device_that_was_named_is_everyone_s() -> None:
    assert share(1, 2, "cuda:1") == (None, [])


def test_tasks_of_one_head_share_its_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForMaskedLM")
    _, tasks = chosen_tasks(TASKS, ModelChoice("m", folder))
    made = open_runners(tasks, folder, Place("cpu", None))
    assert set(made) == {"embed", "features", "fill", "embed_sparse", "explore"}
    assert made["embed"].loaded.model is made["features"].loaded.model
    assert made["fill"].loaded.model is made["embed_sparse"].loaded.model
