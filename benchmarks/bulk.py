"""Bulk jobs: what reading, writing and distributing cost beside the model.

    python -m benchmarks.bulk [--rows 4096] [--rounds 3] [--save]               a CPU: all three comparisons
    python -m benchmarks.bulk --device cuda --dtype bf16 --rows 2000000 --save  a GPU: the first, also in two processes

1. A job in this process (parquet in, parquet out) beside `Embedder` on the same texts in a list, in turn; both with the
   model loaded and warm. Expected: at least 0.95 on a CPU, where a text takes milliseconds; 0.85 on a GPU, where it is
   five microseconds, and every column that is read and written counts. What the disk alone takes (the bytes of a part,
   written and synced) is measured beside them: where that is slower than the model, a job is as fast as the disk.
2. Two Ray actors of one core each beside one. Expected: 1.8 or more; there is nothing that they share but the disk.
3. Two of our actors beside two of a plain `ray.data` job with sentence-transformers on the same cluster. Expected: 3 or
   more in float32, as without Ray (benchmarks.cpu).

On Ray, rates are counted from when every worker has finished its first piece to the last piece, so that starting
processes, loading models and Ray itself are left out; for both. The last lines are the ratios.
"""

from __future__ import annotations

import argparse
import lzma
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe, save_result
from benchmarks.texts import data_folder, paragraphs
from bertie.bulk import prepare, run
from bertie.bulk.manifest import part_name
from bertie.defaults import default_embedding_model
from bertie.tasks import Embedder

PACKAGES = ("torch", "ray", "pyarrow", "sentence-transformers")
_PIECES = 12  # to a worker and round, on Ray
_WARM = 2048  # texts


def all_paragraphs(count: int) -> list[str]:
    """The paragraphs of the books, in their order; where these are too few, others made of two halves of them."""
    books = sorted((data_folder() / "text" / "books").glob("books-*.txt.xz"))
    if not books or count <= 100_000:
        return list(islice(cycle(paragraphs(min(count, 8192)).texts), count))

    def lines() -> Iterator[str]:
        for book in books:
            with lzma.open(book, "rt", encoding="utf-8") as text:
                yield from (line.strip() for line in text if len(line) > 20)

    found = list(islice(lines(), count))

    def recombined() -> Iterator[str]:
        halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in found]
        for step in range(1, len(halves)):
            for number, (begin, _) in enumerate(halves):
                yield begin + halves[(number + step) % len(halves)][1]

    return list(islice(chain(found, recombined()), count))


def written(folder: Path, texts: Sequence[str], *, rows: int = 1 << 20) -> Path:
    folder.mkdir()
    for number, start in enumerate(range(0, len(texts), rows)):
        table = pa.table({"id": range(start, min(start + rows, len(texts))), "text": texts[start : start + rows]})
        pq.write_table(table, folder / f"{number:04d}.parquet", row_group_size=1 << 16)
    return folder


def in_process(
    folder: Path, texts: list[str], rounds: int, model: str, device: str | None, dtype: str | None
) -> dict[str, Any]:
    """Rows a second of `Embedder` and of a job, in turn."""
    settings = {} if dtype is None else {"dtype": dtype}
    source = written(folder / "texts", texts)
    embedder = Embedder(model, device=device, **settings)
    embedder.embed(texts[:_WARM])
    ours: list[float] = []
    theirs: list[float] = []
    disk: list[float] = []
    work: list[float] = []  # processor time of a job's round to that of Embedder's: what a busy machine does not change
    for number in range(rounds):
        started, worked = time.perf_counter(), time.process_time()
        embedder.embed(texts)
        own_work = time.process_time() - worked
        theirs.append(len(texts) / (time.perf_counter() - started))
        prepared = prepare("embed", source, folder / f"out{number}", model, **settings)
        started, worked = time.perf_counter(), time.process_time()
        report = run(prepared, device=device)  # the model is the one that the embedder has
        ours.append(report.rows / (time.perf_counter() - started))
        work.append(own_work / (time.process_time() - worked))
        disk.append(disk_rate(folder / f"out{number}" / part_name(0)))
        rates = f"Embedder {theirs[-1]:,.0f} rows/s, job {ours[-1]:,.0f} rows/s, disk alone {disk[-1]:,.0f} rows/s"
        print(f"  round {number + 1}: {rates}", flush=True)
        shutil.rmtree(folder / f"out{number}")
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    return {
        "what": "job / Embedder",
        "ratio": ratio,
        "ratio_of_processor_time": statistics.median(work),
        "job_rows_per_second": statistics.median(ours),
        "embedder_rows_per_second": statistics.median(theirs),
        "disk_rows_per_second": statistics.median(disk),
    }


def disk_rate(part: Path) -> float:
    """Rows a second that the disk takes when nothing else is done."""
    rows, content = pq.read_metadata(part).num_rows, part.read_bytes()
    started = time.perf_counter()
    with part.with_suffix(".copy").open("wb") as copy:
        copy.write(content)
        copy.flush()
        os.fsync(copy.fileno())
    return rows / (time.perf_counter() - started)


def steady(arrivals: Sequence[tuple[float, int]], workers: int) -> float:
    """Rows a second after every worker's first piece; `arrivals` are (moment, rows)."""
    begin = arrivals[workers - 1][0]
    later = arrivals[workers:]
    return sum(rows for _, rows in later) / (later[-1][0] - begin)


def our_rate(folder: Path, source: Path, workers: int, piece_rows: int, name: str) -> float:
    prepared = prepare("embed", source, folder / name, default_embedding_model(), piece_rows=piece_rows)
    run(prepared, ray="auto", workers=workers)
    return rate_of_parts(folder / name, workers)


def rate_of_parts(output: Path, workers: int) -> float:
    return steady(
        sorted((path.stat().st_mtime, pq.read_metadata(path).num_rows) for path in output.glob("*.parquet")), workers
    )


def in_processes(folder: Path, source: Path, model: str, device: str, dtype: str | None) -> float:
    """Rows a second of a job in two processes on one GPU: a small model leaves it waiting for one core's Python."""
    settings = {} if dtype is None else {"dtype": dtype}
    run(prepare("embed", source, folder / "two", model, **settings), device=device, workers=2)
    return rate_of_parts(folder / "two", 2)


class _Theirs:
    """What people write: a batch of rows in, vectors out."""

    def __init__(self) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(1)
        self.model = SentenceTransformer(default_embedding_model(), device="cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        batch["embedding"] = self.model.encode(list(batch["text"]), batch_size=32)
        return batch


def their_rate(source: Path, workers: int, piece_rows: int, rows: int) -> float:
    import ray

    # Ray Data joins small files to one block, which is one worker's; ours have pieces of as many rows.
    data = ray.data.read_parquet(str(source)).repartition(rows // piece_rows)
    done = data.map_batches(
        _Theirs, batch_size=piece_rows, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=workers)
    )
    arrivals = [
        (time.time(), len(batch["embedding"])) for batch in done.iter_batches(batch_size=None, prefetch_batches=0)
    ]
    return steady(arrivals, workers)


def on_ray(folder: Path, rounds: int, piece_rows: int) -> list[dict[str, Any]]:
    import ray

    texts = paragraphs(piece_rows * _PIECES * 2).texts
    source = written(folder / "ray-texts", texts, rows=piece_rows)
    # A core for each worker, and one to spare: Ray Data reads in a task of its own.
    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 << 20,
        _system_config={"worker_niceness": 0},  # else a busy machine leaves workers next to nothing
    )
    one, two, theirs = [], [], []
    for number in range(rounds):
        one.append(our_rate(folder, source, 1, piece_rows, f"one{number}"))
        print(f"  round {number + 1}: one actor {one[-1]:,.1f} rows/s", flush=True)
        two.append(our_rate(folder, source, 2, piece_rows, f"two{number}"))
        print(f"  round {number + 1}: two actors {two[-1]:,.1f} rows/s", flush=True)
        theirs.append(their_rate(source, 2, piece_rows, len(texts)))
        print(f"  round {number + 1}: two of theirs {theirs[-1]:,.1f} rows/s", flush=True)
    ray.shutdown()
    return [
        {"what": "two Ray actors / one", "ratio": statistics.median(b / a for a, b in zip(one, two, strict=True))},
        {
            "what": "two of our actors / two of ray.data + sentence-transformers",
            "ratio": statistics.median(b / c for b, c in zip(two, theirs, strict=True)),
            "ours_rows_per_second": statistics.median(two),
            "theirs_rows_per_second": statistics.median(theirs),
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096, help="of the comparison with Embedder; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=None, help="of the comparison with Embedder; all-MiniLM-L6-v2 by default")
    parser.add_argument("--device", default=None, help="cpu or cuda")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--piece-rows", type=int, default=128, help="on Ray")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--save", action="store_true", help="write results/bulk-DATE.json")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    print(describe(PACKAGES), flush=True)
    on_gpu = (arguments.device or "cpu").startswith("cuda")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = arguments.model or default_embedding_model()
        rows: list[dict[str, Any]] = []

        def found(*more: dict[str, Any]) -> None:
            """What is known so far is saved: the rest takes minutes."""
            rows.extend(more)
            if arguments.save:
                name = "bulk-gpu" if on_gpu else "bulk"
                print(save_result(name, f"python -m benchmarks.bulk {' '.join(sys.argv[1:])}", rows), flush=True)

        if arguments.rows:
            texts = all_paragraphs(arguments.rows)
            print(f"{len(texts):,} paragraphs, {len(set(texts)):,} of them different", flush=True)
            found(in_process(folder, texts, arguments.rounds, model, arguments.device, arguments.dtype))
        if on_gpu:
            two = in_processes(folder, folder / "texts", model, arguments.device, arguments.dtype)
            own = rows[0]["embedder_rows_per_second"]
            found({"what": "job in two processes / Embedder", "ratio": two / own, "job_rows_per_second": two})
        elif not arguments.no_ray:
            found(*on_ray(folder, arguments.rounds, arguments.piece_rows))
    for row in rows:
        work = f" (of processor time: {row['ratio_of_processor_time']:.2f})" if "ratio_of_processor_time" in row else ""
        print(f"{row['what']}: {row['ratio']:.2f}{work}")


if __name__ == "__main__":
    main()
