"""Embed a large file and load the vectors into a database: SQLite, which comes with Python.

    python examples/bulk_to_database.py texts.parquet vectors.db

The embedding is a bulk job: stopped at any moment, it goes on where it was when it is run again, and no row is lost or
written twice. examples/vectors_to_duckdb.py and vectors_to_lancedb.py search the same files without a copy.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

import bertie


def main(source: str, database: str) -> int:
    folder = Path(database).with_suffix(".parquet")
    bertie.bulk("embed", source, folder)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, text TEXT, vector BLOB)")
        connection.execute("DELETE FROM texts")
        for batch in ds.dataset(sorted(folder.glob("*.parquet"))).to_batches(filter=ds.field("error").is_null()):
            rows = zip(batch["text"].to_pylist(), batch["embedding"].to_pylist(), strict=True)
            blobs = [(text, np.asarray(vector, dtype=np.float32).tobytes()) for text, vector in rows]
            connection.executemany("INSERT INTO texts (text, vector) VALUES (?, ?)", blobs)
        (count,) = connection.execute("SELECT count(*) FROM texts").fetchone()
    print(f"{count:,} texts with their vectors are in {database}")
    return int(count)


def nearest(database: str, question: str, k: int = 3) -> list[tuple[str, float]]:
    """SQLite keeps, NumPy compares: enough for a million texts."""
    with sqlite3.connect(database) as connection:
        texts, blobs = zip(*connection.execute("SELECT text, vector FROM texts"), strict=True)
    vectors = np.stack([np.frombuffer(blob, dtype=np.float32) for blob in blobs])
    scores = vectors @ bertie.embed(question)
    return [(texts[place], float(scores[place])) for place in np.argsort(-scores)[:k]]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
