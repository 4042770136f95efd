"""Load the vectors of a bulk job into a FAISS index, a batch at a time, and search in it.

    bertie bulk embed texts.parquet vectors
    python examples/vectors_to_faiss.py vectors "how do animals find food at night?"

The index holds vectors alone. A vector's number is its row's among those without an error, in the order of the files,
so the texts stay in them. IndexFlatIP compares with every vector; for more than a few million see faiss.index_factory.
"""

from __future__ import annotations

import sys
from typing import Any

import faiss
import pyarrow.dataset as ds

import bertie

GOOD = ds.field("error").is_null()


def load(folder: str) -> Any:
    answers = ds.dataset(folder, format="parquet")  # _job is left out, as every name that begins with _
    index = faiss.IndexFlatIP(answers.schema.field("embedding").type.list_size)
    for batch in answers.to_batches(columns=["embedding"], filter=GOOD):
        index.add(batch["embedding"].flatten().to_numpy().reshape(len(batch), -1))  # without a copy
    return index


def search(folder: str, index: Any, query: str, k: int = 3) -> list[tuple[str, float]]:
    vector = bertie.embed(query, prompt_name="query")
    scores, places = index.search(vector[None], k)
    texts = ds.dataset(folder, format="parquet").filter(GOOD).take(places[0], columns=["text"])["text"].to_pylist()
    return list(zip(texts, scores[0].tolist(), strict=True))


if __name__ == "__main__":
    for text, score in search(sys.argv[1], load(sys.argv[1]), sys.argv[2]):
        print(f"{score:.3f}  {text}")
