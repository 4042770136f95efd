"""What test_forks.py runs in a process of its own, where torch has two threads.

    python -m tests.unit.engine.forked JOB…

Every child ends by itself: an alarm kills it, also where it hangs in C.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.tiny_models import SENTENCES, saved, tiny
from torch.utils.data import DataLoader, Dataset

import bertie
from bertie.errors import InputError

PATIENCE = 100  # seconds until a child is killed
MANY = SENTENCES * 10
SIZE = {"hidden_size": 64, "intermediate_size": 256}


def models(folder: Path) -> dict[str, Callable[[], Any]]:
    """A call of every task, on enough text for torch to share it out among its threads."""

    def model(name: str, **config: Any) -> str:
        return saved(folder / f"{name}{len(config)}", name, **SIZE, **config)

    plain, labels = model("BertModel"), model("BertForSequenceClassification")
    ranking = model("BertForSequenceClassification", num_labels=1)
    masked, tags = model("BertForMaskedLM"), model("BertForTokenClassification")
    spans, following = model("BertForQuestionAnswering"), model("BertForNextSentencePrediction")
    unmodified = bertie.Embedder(plain, engine="reference")
    return {
        "embed": lambda: bertie.embed(MANY, model=plain),
        "the reference": lambda: unmodified.embed(MANY),
        "similarity": lambda: bertie.similarity(MANY, model=plain),
        "features": lambda: [*bertie.features(MANY[:20], model=plain)],
        "fill": lambda: bertie.fill([text + " [MASK]" for text in MANY], model=masked),
        "classify": lambda: bertie.classify(MANY, model=labels),
        "rerank": lambda: bertie.rerank("the dog", MANY, model=ranking),
        "tag": lambda: bertie.tag(MANY, model=tags),
        "answer": lambda: bertie.answer("Which dog?", SENTENCES[0], model=spans),
        "next_sentence": lambda: bertie.next_sentence(MANY, MANY[::-1], model=following),
    }


def same(a: Any, b: Any) -> bool:
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else repr(a) == repr(b)


def in_child(function: Callable[[], bool]) -> None:
    """A forked child runs `function`, which says whether all was well."""
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        os._exit(0 if function() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child {'was killed: it hung' if status == -signal.SIGALRM else f'ended with {status}'}"


def tasks(folder: Path) -> None:
    for name, call in models(folder).items():
        wanted = call()
        print(name, flush=True)
        in_child(lambda call=call, wanted=wanted: same(call(), wanted))  # type: ignore[misc]
        assert same(call(), wanted), f"{name} in the parent, after the fork"


def threads(_: Path) -> None:
    """The child computes with as many threads as the parent did, torch's and ours, and a grandchild too."""
    fast = bertie.compile(tiny("BertModel", max_position_embeddings=512, **SIZE), threads=2)
    ids = torch.arange(2000) % 100
    ends = torch.arange(0, 2001, 100)
    large = torch.linspace(-1, 1, 1 << 20).view(1024, 1024)

    def answer() -> list[torch.Tensor]:
        return [fast(ids, cu_seqlens=ends)[0], large @ large, large.exp()]

    wanted = answer()

    def well() -> bool:
        found = answer()
        enough = torch.get_num_threads() == 2 and len(os.listdir("/proc/self/task")) >= 3
        return enough and all(map(torch.equal, found, wanted))

    def well_and_below() -> bool:
        in_child(well)
        return well()

    assert well()
    in_child(well_and_below)


def stream(folder: Path) -> None:
    """A stream that the parent began is refused in a child; its reader threads are not there."""
    embedder = bertie.Embedder(saved(folder / "m", "BertModel"))
    begun = embedder.embed(itertools.islice(itertools.cycle(SENTENCES), 20_000))
    next(begun)

    def refused() -> bool:
        try:
            for _ in begun:
                pass
        except InputError as error:
            return "forked" in error.cause
        return False

    in_child(refused)


# -- pools and workers: the same in each -------------------------------------------------------------------------------

_EMBEDDERS: dict[str, bertie.Embedder] = {}


def embed_in_worker(job: tuple[str, list[str]]) -> Any:
    signal.alarm(PATIENCE)
    folder, texts = job
    if folder not in _EMBEDDERS:
        _EMBEDDERS[folder] = bertie.Embedder(folder)
    return _EMBEDDERS[folder].embed(texts)


class Embedded(Dataset[Any]):
    """Texts that are embedded by whoever loads them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(embed_in_worker((self.folder, MANY[: 10 + number])))


def workers(folder: Path, method: str) -> None:
    name = saved(folder / "m", "BertModel", **SIZE)
    wanted = [embed_in_worker((name, MANY[: 10 + number])) for number in range(8)]
    signal.alarm(0)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map_async(embed_in_worker, [(name, MANY[: 10 + number]) for number in range(8)])
        assert all(map(same, found.get(PATIENCE), wanted))
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        jobs = [executor.submit(embed_in_worker, (name, MANY[: 10 + number])) for number in range(8)]
        assert all(same(job.result(PATIENCE), answer) for job, answer in zip(jobs, wanted, strict=True))
    loader = DataLoader(
        Embedded(name), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=PATIENCE
    )
    assert all(same(rows.numpy(), answer) for rows, answer in zip(loader, wanted, strict=True))


def main() -> None:
    torch.set_num_threads(2)
    jobs = {"tasks": tasks, "threads": threads, "stream": stream}
    for job in sys.argv[1:]:
        print(job, flush=True)
        with tempfile.TemporaryDirectory() as made:
            jobs[job](Path(made)) if job in jobs else workers(Path(made), job)
    print("well")


if __name__ == "__main__":
    main()
