"""Vectors as NumPy's files: what was written is what numpy.load gives, and what does not fit is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bertie.data import RowWriter
from bertie.errors import DataError

ROWS = [{"text": f"text {n}", "embedding": np.full(3, n, dtype=np.float32)} for n in range(4)]
MATRIX = np.stack([row["embedding"] for row in ROWS])


@pytest.mark.parametrize("count", [0, 1, 4])
def test_npy_is_the_matrix(tmp_path: Path, count: int) -> None:
    with RowWriter(tmp_path / "v.npy") as out:
        out.write_all(ROWS[:count])
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, MATRIX[:count] if count else np.zeros((0, 0), dtype=np.float32))


@pytest.mark.parametrize("kind", ["int8", "uint8", "float16"])
def test_npy_keeps_the_type(tmp_path: Path, kind: str) -> None:
    with RowWriter(tmp_path / "v.npy") as out:
        out.write({"embedding": np.arange(3, dtype=kind)})
    assert np.load(tmp_path / "v.npy").dtype == np.dtype(kind)


def test_npz_has_the_texts_beside_the_vectors(tmp_path: Path) -> None:
    with RowWriter(tmp_path / "v.npz") as out:
        out.write_all(ROWS)
    with np.load(tmp_path / "v.npz") as found:
        np.testing.assert_array_equal(found["embedding"], MATRIX)
        assert found["text"].tolist() == [row["text"] for row in ROWS]


@pytest.mark.parametrize("name", ["v.npy", "v.npz"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "score": 0.5}], "one vector per row; these rows have text, score"),
        ([ROWS[0], {"text": "b", "embedding": np.ones(2, dtype=np.float32)}], "row 2: its embedding is not like the"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(DataError, match=message), RowWriter(tmp_path / name) as out:
        out.write_all(rows)
    assert os.listdir(tmp_path) == []


def test_texts_too_long_for_npz_are_refused_before_they_take_the_room(tmp_path: Path) -> None:
    long = {"text": "x" * 200_000_000, "embedding": np.zeros(1, dtype=np.float32)}
    with pytest.raises(DataError, match=r"Write parquet, or \.npy"), RowWriter(tmp_path / "v.npz") as out:
        out.write_all([long, {**long, "text": "y"}])
