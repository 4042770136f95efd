"""How much memory and time it takes to go on with a large bulk job.

    python tests/scripts/bulk_memory.py FOLDER [--rows 10000000]

A job of so many short texts, of which all pieces but the first are done (their parts are stand-ins with the right
footers), is gone on with. The model has one layer of MiniLM's width, so that it is over soon: what is held are vectors
of 384 numbers, and they are as large as MiniLM's. Printed as JSON: seconds until the piece that is left begins, and the
most memory that is held beyond a process with the model loaded and used, in MB.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import deque
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import bertie
from bertie import tasks
from bertie.bulk import prepare, run
from bertie.bulk.manifest import FOOTER, part_name, write_job
from bertie.defaults import default_embedding_model


def build(folder: Path, rows: int) -> None:
    (folder / "in").mkdir(parents=True)
    for number, start in enumerate(range(0, rows, 1_000_000)):
        ids = pa.array(range(start, min(rows, start + 1_000_000)))
        texts = pc.binary_join_element_wise("a short text, number", pc.cast(ids, pa.string()), " ")
        pq.write_table(pa.table({"id": ids, "text": texts}), folder / "in" / f"{number:04d}.parquet")
    bertie.BertModel(bertie.BertConfig(hidden_size=384, num_hidden_layers=1, intermediate_size=384)).save_pretrained(
        folder / "model"
    )
    bertie.BertTokenizer.from_pretrained(default_embedding_model()).save_pretrained(folder / "model")
    prepared = prepare("embed", folder / "in", folder / "out", folder / "model")
    write_job(prepared.output, prepared.job)
    stand_in = pa.table({"id": [0]})
    for number in range(1, len(prepared.job.pieces)):
        about = {"job": prepared.job.fingerprint, "piece": number, "errors": 0, "truncated": 0, "tokens": 0}
        with pq.ParquetWriter(folder / "out" / part_name(number), stand_in.schema) as part:
            part.write_table(stand_in)
            part.add_key_value_metadata({FOOTER: json.dumps(about)})


class Begun(logging.Handler):
    """The moment at which the first piece begins."""

    moment: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.moment = self.moment or time.perf_counter()


def go_on(folder: Path) -> dict[str, Any]:
    # Weights are a mapping of the file, in memory once they are used: the vocabulary too, by texts of many words.
    model = tasks.Embedder(folder / "model", device="cpu")
    words = list(model.loaded.tokenizer.get_vocab())
    deque(model.embed(" ".join(words[start : start + 20]) for start in range(0, len(words), 20)), maxlen=0)
    deque(model.embed(f"a short text, number {number}" for number in range(10_000)), maxlen=0)
    process = psutil.Process()
    with_model = most = process.memory_info().rss
    over = Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.01):
            most = max(most, process.memory_info().rss)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    begun, logger = Begun(), logging.getLogger("bertie.bulk")
    logger.addHandler(begun)
    logger.setLevel(logging.INFO)
    started = time.perf_counter()
    report = run(prepare("embed", folder / "in", folder / "out", folder / "model"), device="cpu")
    over.set()
    watcher.join()
    assert begun.moment is not None
    assert report.computed == 1
    return {"pieces": report.pieces, "seconds": begun.moment - started, "megabytes": (most - with_model) / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--build", action="store_true", help="only write the input and the stand-ins")
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.folder, arguments.rows)
    else:
        print(json.dumps(go_on(arguments.folder)))


if __name__ == "__main__":
    main()
