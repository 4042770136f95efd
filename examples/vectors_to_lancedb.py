"""Load the vectors of a bulk job into a LanceDB table, a batch at a time, and search in it.

bertie bulk embed texts.parquet vectors
python examples/vectors_to_lancedb.py vectors lance "how do animals find food at night?"
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import lancedb
import pyarrow.dataset as ds

import bertie


def load(folder: str, database: str) -> Any:
    answers = ds.dataset(folder, format="parquet")  # _job is left out, as every name that begins with _

    def batches() -> Iterator[Any]:
        yield from answers.to_batches(filter=ds.field("error").is_null())

    return lancedb.connect(database).create_table("texts", batches(), schema=answers.schema, mode="overwrite")


def search(table: Any, query: str, k: int = 3) -> list[tuple[str, float]]:
    vector = bertie.embed(query, prompt_name="query")
    found = table.search(vector, vector_column_name="embedding").distance_type("cosine").limit(k).to_list()
    return [(row["text"], 1 - row["_distance"]) for row in found]


if __name__ == "__main__":
    for text, score in search(load(sys.argv[1], sys.argv[2]), sys.argv[3]):
        print(f"{score:.3f}  {text}")
