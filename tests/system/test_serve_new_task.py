"""Another task over HTTP with a request of its own: its path, its class and what a request of it is.

The route, its part of the OpenAPI document and the client's request are made of these. What a task takes that has no
declaration of its own is in tests/unit/test_four_files.py.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra serve")

import httpx

from bertie import answers
from bertie.client import AsyncClient, Client
from bertie.running.rows import Row
from bertie.serve import app, tasks
from bertie.serve.routes.rows import RowRoute
from bertie.serve.run import Running
from bertie.serve.schemas import Request, as_list
from bertie.serve.settings import ModelChoice, Settings
from bertie.tasks.features import FeatureExtractor
from tiny_models import saved

# -- tasks/shout.py: the library's part ------------------------------------------------------------------------------


class Shouter(FeatureExtractor):
    """How loud a text is: its tokens, each of them counted `times`."""

    def __init__(self, model: Any, *, times: int = 1, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.times = times

    def run(self, rows: list[Row]) -> Any:
        return [len(row) for row in rows]

    def decode(self, context: Any, lengths: Any, **_: Any) -> Any:
        return Shouted(context[0][1].upper(), self.times * sum(lengths))


# -- answers.py ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shouted:
    word: str
    loudness: int


ROUTE = answers.TaskRoute("/v1/shout", Shouted)

# -- serve/tasks.py --------------------------------------------------------------------------------------------------


class ShoutRequest(Request):
    inputs: str | list[str]
    times: int = 1


DECLARED = tasks.ServedTask("shout", tasks.rows_by("shout", Shouter, warm="warm up"))
SHOWN = RowRoute[ShoutRequest, Shouted](
    summary="How loud a text is.",
    request=ShoutRequest,
    items=lambda body: as_list(body.inputs),
    options=lambda body: {"times": body.times},
    remedy="Send fewer texts at once.",
    examples={"one": {"inputs": "Hello."}},
)

# --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(answers.TASK_ROUTES, "shout", ROUTE)
        patch.setitem(tasks.TASKS, "shout", DECLARED)
        patch.setitem(tasks.ROW_ROUTES, "shout", SHOWN)
        importlib.reload(app)  # which makes the routes of what is declared
        patch.setattr("bertie.serve.run.make_app", app.make_app)
        choice = ModelChoice("m", saved(tmp_path, "BertModel"), ("shout",))
        with Running(Settings(models=(choice,), port=0, device="cpu")) as running:
            yield running
    importlib.reload(app)


def test_a_new_task_is_served_described_and_asked_for_by_its_declarations(server: Running) -> None:
    with Client(server.url) as client:
        assert client.ask("the dog", "shout") == Shouted("THE", 4)
        assert client.ask(["the dog", "a"], "shout", times=2) == [Shouted("THE", 8), Shouted("A", 6)]
        assert list(client.ask(iter(["the dog"]), "shout")) == [Shouted("THE", 4)]
        assert "shout" in httpx.get(f"{server.url}/v1/models").json()["data"][0]["tasks"]

    async def asked() -> Any:
        async with AsyncClient(server.url) as client:
            return await client.ask(["the dog"], "shout")

    assert asyncio.run(asked()) == [Shouted("THE", 4)]
    document = httpx.get(f"{server.url}/openapi.json").json()
    described = document["paths"]["/v1/shout"]["post"]
    assert described["summary"] == "How loud a text is."
    assert set(document["components"]["schemas"]["Shouted"]["properties"]) == {"word", "loudness"}
    refused = httpx.post(f"{server.url}/v1/shout", json={"inputs": "a", "times": "often"})
    assert refused.status_code == 422
