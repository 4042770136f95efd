"""Search in the vectors of a bulk job with DuckDB, which reads the files where they are.

bertie bulk embed texts.parquet vectors
python examples/vectors_to_duckdb.py vectors "how do animals find food at night?"
"""

from __future__ import annotations

import sys

import duckdb

import bertie


def search(folder: str, query: str, k: int = 3) -> list[tuple[str, float]]:
    vector = bertie.embed(query, prompt_name="query").tolist()
    rows = duckdb.sql(
        f"""
        SELECT text, array_cosine_similarity(embedding::FLOAT[{len(vector)}], $vector::FLOAT[{len(vector)}]) AS score
        FROM read_parquet($files) WHERE error IS NULL ORDER BY score DESC LIMIT $k
        """,
        params={"vector": vector, "files": f"{folder}/*.parquet", "k": k},
    )
    return rows.fetchall()


if __name__ == "__main__":
    for text, score in search(*sys.argv[1:3]):
        print(f"{score:.3f}  {text}")
