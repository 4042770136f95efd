"""The server at the speed of its device: load from several processes, beside the same texts offline and a plain server.

    python -m benchmarks.serve --device cuda [--model FOLDER] [--seconds 5] [--save]

One after another: the embedder offline; our server with one client, then with 64 and 256 clients that send a text each,
then with 64 texts a request; a client that posts batches of 1,024 beside one that sends single texts; BERT-base with
paragraphs, offline and served; and FastAPI + sentence-transformers in float16, in one thread: text by text, and with
the texts that wait in batches of up to 64. Answers are compared with the offline ones. What the processes that make the
load take of the processor counts against the server.

Expected before measuring (H200, 16 cores): the fronts are the limit for single texts, at about 200 µs of a core each;
64 texts a request are limited by the model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.load import OneClient, post, texts_of
from benchmarks.load_many import ManyLoad, run_many, vectors_of
from benchmarks.machine import describe, save_result

TARGETS = {
    "one text a request, 256 clients, texts/s": 25_000,
    "64 texts a request, texts/s": 60_000,
    "one text alone, p50 ms": 1.0,
    "one text alone, p99 ms": 3.0,
    "64 single-text clients, p99 ms": 10.0,
    "BERT-base paragraphs, share of offline": 0.85,
    "times the plain server": 20.0,
}
OFFLINE = """
import json, sys, time
import numpy as np
from bertie.tasks.embed import Embedder
folder, device, source, out = sys.argv[1:5]
texts = json.load(open(source))
embedder = Embedder(folder, device=device)
for _ in range(2):
    embedder.embed(texts[:2048], progress=False)
rates = []
for _ in range(3):
    began = time.perf_counter()
    vectors = embedder.embed(texts, progress=False)
    rates.append(len(texts) / (time.perf_counter() - began))
singles = []
for text in texts[:300]:
    began = time.perf_counter()
    embedder.embed(text, progress=False)
    singles.append((time.perf_counter() - began) * 1000)
np.save(out, vectors)
print(json.dumps({"rate": sorted(rates)[1], "single": sorted(singles)[150], "dtype": embedder.loaded.dtype}))
"""
# What many people run: FastAPI around `encode`. In FastAPI's pool of threads forty calls would hold each other up (25
# texts a second on an H200), so one thread calls it: with one text at a time, or with as many as wait, up to a number.
PLAIN_SERVER = """
import asyncio, contextlib, sys
from concurrent.futures import ThreadPoolExecutor
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

folder, port, device, most = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
model = SentenceTransformer(folder, device=device)
if device != "cpu":
    model.half()
thread, waiting, wanted = ThreadPoolExecutor(1), [], asyncio.Event()

def encode(texts):
    return model.encode(texts, batch_size=most, show_progress_bar=False).tolist()

async def work():
    while True:
        await wanted.wait()
        batch, waiting[:] = waiting[:most], waiting[most:]
        if not waiting:
            wanted.clear()
        vectors = await asyncio.get_running_loop().run_in_executor(thread, encode, [text for text, _ in batch])
        for (_, future), vector in zip(batch, vectors):
            if not future.done():
                future.set_result(vector)

@contextlib.asynccontextmanager
async def lifespan(_):
    task = asyncio.create_task(work())
    yield
    task.cancel()

app = FastAPI(lifespan=lifespan)

class Request(BaseModel):
    inputs: str

@app.post("/embed")
async def embed(request: Request) -> list[list[float]]:
    future = asyncio.get_running_loop().create_future()
    waiting.append((request.inputs, future))
    wanted.set()
    return [await future]

@app.get("/ready")
def ready() -> str:
    return "ready"

encode(["warm"])
uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)
"""


class Bench:
    def __init__(self, arguments: argparse.Namespace, place: Path) -> None:
        self.arguments, self.place = arguments, place
        self.found: dict[str, float] = {}
        self.loads: list[str] = []
        self.texts = texts_of(arguments.texts)

    def note(self, name: str, value: float) -> None:
        self.found[name.strip()] = value
        target = TARGETS.get(name)
        print(f"{name:52} {value:12.3f}" + ("" if target is None else f"   (wanted {target:g})"), flush=True)

    def offline(self, folder: str, texts: list[str], name: str) -> np.ndarray:
        source, out = self.place / "texts.json", self.place / f"{name}.npy"
        source.write_text(json.dumps(texts))
        command = [sys.executable, "-c", OFFLINE, folder, self.arguments.device, str(source), str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if ended.returncode:
            raise RuntimeError(ended.stderr[-2000:])
        found = json.loads(ended.stdout.splitlines()[-1])
        self.note(f"{name}: offline texts/s ({found['dtype']})", found["rate"])
        self.note(f"{name}: offline, one text ms", found["single"])
        self.found[f"{name}: offline"] = found["rate"]
        vectors = np.load(out)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    @contextmanager
    def server(self, command: list[str], name: str, *more: str) -> Iterator[tuple[int, int]]:
        """(port, pid) of a server until the block ends."""
        from benchmarks.serve import free_port, process

        port = free_port()
        began = time.monotonic()
        given = ["--port", str(port)] if "bertie" in command else [str(port), self.arguments.device, *more]
        with process([*command, *given], port, self.place / f"{name}.log") as target:
            print(f"{name} was ready after {time.monotonic() - began:.1f} s", flush=True)
            yield port, target.pid

    def ours(self, folder: str, name: str):  # type: ignore[no-untyped-def]
        command = [
            sys.executable,
            "-m",
            "bertie",
            "serve",
            "-m",
            f"m={folder}",
            "--task",
            "embed",
            "--log-level",
            "warning",
        ]
        command += ["--device", self.arguments.device]
        if self.arguments.fronts:
            command += ["--workers", str(self.arguments.fronts)]
        return self.server(command, name)

    def load(
        self,
        port: int,
        pid: int,
        texts: list[str],
        *,
        per: int,
        clients: int,
        vectors: np.ndarray | None,
        binary: bool = False,
    ) -> ManyLoad:
        headers = {"Accept": "application/octet-stream"} if binary else None
        bodies = [
            texts[start] if per == 1 else texts[start : start + per] for start in range(0, len(texts) - per + 1, per)
        ]
        requests = [post("/embed", {"inputs": body, "truncate": True}, headers=headers) for body in bodies]
        before = cpu_seconds(pid)
        load = run_many(
            port, requests, clients=clients, processes=self.arguments.processes, seconds=self.arguments.seconds
        )
        cores = {
            name: tuple(
                round((now - then) / (self.arguments.seconds + 1), 2)
                for now, then in zip(times, before.get(name, (0.0, 0.0)), strict=True)
            )
            for name, times in cpu_seconds(pid).items()
        }
        line = (
            f"{clients} clients × {per}: {load.rate * per:.0f} texts/s, p50 {load.percentile(50):.2f} "
            f"p99 {load.percentile(99):.2f} ms, failed {load.failed}, load {load.cpu_micros:.0f} µs a request, "
            f"cores (user, system) {cores}"
        )
        self.loads.append(line)
        print("    " + line, flush=True)
        if vectors is not None:
            cosines = [
                float((found * vectors[number * per : number * per + per]).sum(axis=1).min())
                for number, found in vectors_of(load)
            ]
            worst = min(cosines, default=float("nan"))
            self.note(f"    least cosine to offline, {clients} × {per}", worst)
        return load

    def run(self) -> None:
        for step in (self.sentences, self.plain, self.paragraphs):
            try:
                step()
            except Exception:  # the other figures are still wanted
                traceback.print_exc()

    def sentences(self) -> None:
        texts, folder = self.texts, str(self.arguments.model)
        vectors = self.offline(folder, texts, "sentences")
        with self.ours(folder, "ours") as (port, pid):
            self.alone(port, texts)
            self.load(port, pid, texts, per=1, clients=64, vectors=vectors)  # warm
            load = self.load(port, pid, texts, per=1, clients=64, vectors=vectors)
            self.note("64 single-text clients, texts/s", load.rate)
            self.note("64 single-text clients, p99 ms", load.percentile(99))
            single = max(self.load(port, pid, texts, per=1, clients=256, vectors=vectors).rate for _ in range(2))
            self.note("one text a request, 256 clients, texts/s", single)
            few = self.load(port, pid, texts, per=64, clients=16, vectors=vectors)
            many = self.load(port, pid, texts, per=64, clients=64, vectors=vectors)
            self.note("64 texts a request, 16 clients, texts/s", few.rate * 64)
            self.note("64 texts a request, texts/s", max(few.rate, many.rate) * 64)
            self.note("share of offline", max(few.rate, many.rate) * 64 / self.found["sentences: offline"])
            binary = self.load(port, pid, texts, per=64, clients=64, vectors=None, binary=True)
            self.note("64 texts a request, answered in binary, texts/s", binary.rate * 64)
            self.fairness(port, texts)

    def plain(self) -> None:
        if self.arguments.no_plain:
            return
        script = self.place / "plain_server.py"
        script.write_text(PLAIN_SERVER)
        ours = self.found["one text a request, 256 clients, texts/s"]
        for most, name in ((1, "plain"), (64, "batching")):
            with self.server([sys.executable, str(script), str(self.arguments.model)], name, str(most)) as (port, pid):
                rate = self.load(port, pid, self.texts, per=1, clients=64, vectors=None).rate
            self.note(f"{name} FastAPI + sentence-transformers, texts/s", rate)
            self.note(f"times the {name} server", ours / rate)

    def alone(self, port: int, texts: list[str]) -> None:
        client, times = OneClient("127.0.0.1", port), []
        for text in texts[: self.arguments.singles + 200]:
            request = post("/embed", {"inputs": text})
            began = time.perf_counter()
            status, _ = client.ask(request)
            times.append((time.perf_counter() - began) * 1000)
            assert status == 200
        client.close()
        self.note("one text alone, p50 ms", statistics.median(times[200:]))
        self.note("one text alone, p99 ms", float(np.percentile(times[200:], 99)))

    def fairness(self, port: int, texts: list[str]) -> None:
        """Batches of 1,024 without pause beside single texts."""
        big = post("/embed", {"inputs": texts[:1024], "truncate": True})
        stop, batches = threading.Event(), list[float]()

        def post_batches() -> None:
            client = OneClient("127.0.0.1", port)
            while not stop.is_set():
                began = time.perf_counter()
                assert client.ask(big)[0] == 200
                batches.append((time.perf_counter() - began) * 1000)

        thread = threading.Thread(target=post_batches)
        thread.start()
        time.sleep(0.5)
        client, times = OneClient("127.0.0.1", port), []
        for text in texts[:300]:
            began = time.perf_counter()
            assert client.ask(post("/embed", {"inputs": text}))[0] == 200
            times.append((time.perf_counter() - began) * 1000)
        stop.set()
        thread.join()
        self.note("beside batches of 1,024: one text, p99 ms", float(np.percentile(times, 99)))
        self.note("a batch of 1,024, median ms", statistics.median(batches))

    def paragraphs(self) -> None:
        if not (folder := self.arguments.base):
            return
        texts = [" ".join(texts_of(8, seed=seed)) for seed in range(min(2048, self.arguments.texts))]
        vectors = self.offline(folder, texts, "BERT-base paragraphs")
        with self.ours(folder, "base") as (port, pid):
            self.load(port, pid, texts, per=64, clients=16, vectors=vectors)
            load = self.load(port, pid, texts, per=64, clients=16, vectors=vectors)
        self.note("BERT-base paragraphs, 64 texts a request, texts/s", load.rate * 64)
        share = load.rate * 64 / self.found["BERT-base paragraphs: offline"]
        self.note("BERT-base paragraphs, share of offline", share)


def cpu_seconds(pid: int) -> dict[str, tuple[float, float]]:
    """Of the server's processes, as its own and the kernel's work for it: the engine is the first child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for number, child in enumerate([str(pid), *children]):
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        found[f"{number}"] = int(fields[11]) / ticks, int(fields[12]) / ticks
    return found


def main(arguments: argparse.Namespace) -> None:
    print(describe(("torch", "fastapi", "uvicorn", "sentence-transformers")), flush=True)
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(arguments, Path(place))
        try:
            bench.run()
        finally:
            for log in Path(place).glob("*.log"):
                lines = log.read_text(errors="replace").splitlines()
                print(f"{log.name}: {len(lines)} lines", *lines[-6:], sep="\n    ", flush=True)
    if arguments.save:
        command = f"python -m benchmarks.serve {' '.join(sys.argv[1:])}"
        print(save_result("serve-device", command, bench.found, targets=TARGETS, loads=bench.loads))
