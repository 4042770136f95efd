"""Inputs and checks that the tests of bulk jobs share."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertie.bulk import work
from tiny_models import SENTENCES


def some_texts(count: int, *, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(" ".join(SENTENCES).split(), k=chance.randint(1, 12))) for _ in range(count)]


def parquet_files(folder: Path, texts: list[str], *, files: int = 3, row_group: int = 70) -> Path:
    """The texts, with ids, in files of unequal size and in row groups that fit no piece."""
    folder.mkdir(parents=True)
    bounds = [len(texts) * part * (part + 1) // (files * (files + 1)) for part in range(files + 1)]
    for number in range(files):
        start, stop = bounds[number], bounds[number + 1]
        table = pa.table({"id": list(range(start, stop)), "text": texts[start:stop]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group)
    return folder


def jsonl_file(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def answers(output: Path) -> pa.Table:
    """All parts of a job, in the order of their names."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(output.glob("*.parquet"))])


def vectors(table: pa.Table, column: str = "embedding") -> Any:
    return np.stack(table[column].to_pylist()).astype(np.float32)


def check_whole(output: Path, wanted: Any) -> None:
    table = answers(output)
    assert table["id"].to_pylist() == list(range(len(wanted)))
    np.testing.assert_array_equal(vectors(table), wanted)
    assert table["error"].null_count == len(wanted)


def stop_after(monkeypatch: pytest.MonkeyPatch, pieces: int, error: BaseException) -> None:
    """Let a worker do so many pieces, and then raise."""
    actual, left = work.Worker.start, pieces

    def start(self: work.Worker, *arguments: Any, **more: Any) -> Any:
        nonlocal left
        if not left:
            raise error
        left -= 1
        return actual(self, *arguments, **more)

    monkeypatch.setattr(work.Worker, "start", start)
