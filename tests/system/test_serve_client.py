"""Every task through `bertie.Client`, `bertie.AsyncClient` and `bertie client` is what the task gives offline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.cli.main import main
from bertie.client import AsyncClient, Client
from bertie.errors import InputError
from system.serve_process import Server, serving
from system.workshop import build
from tiny_models import SENTENCES, TEXTS

MODELS = ("my-bert", "my-sentiment", "my-nli", "my-cross-encoder", "my-ner", "my-squad")
MASKED = ["The [MASK] fox jumps over the lazy dog.", "Paris is the [MASK] of [MASK]."]
PAIRS = list(pairwise(SENTENCES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    named = [part for name in MODELS for part in ("--model", str(folder / name))]
    with serving(folder, *named) as started:
        yield started


def same(found: Any, wanted: Any) -> None:
    """Equal, numbers to 1e-5, and of the same types."""
    if is_dataclass(wanted) and not isinstance(wanted, type):
        assert type(found) is type(wanted)
        found, wanted = asdict(found), asdict(wanted)
        for one in (found, wanted):
            one.pop("truncated", None)  # counted for a whole request over HTTP
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name in wanted:
            same(found[name], wanted[name])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, (float, np.ndarray)):
        assert np.allclose(found, wanted, atol=1e-5)
    else:
        assert found == wanted


# The question to a client, and the same offline. `at` gives a model's folder.
TASKS: dict[str, tuple[str, Any, Any]] = {
    "embed": ("my-bert", lambda c: c.embed(TEXTS), lambda at: bertie.embed(TEXTS, model=at, progress=False)),
    "embed-one": ("my-bert", lambda c: c.embed("dog"), lambda at: bertie.embed("dog", model=at)),
    "similarity": (
        "my-bert",
        lambda c: c.similarity(SENTENCES[:2], SENTENCES),
        lambda at: bertie.similarity(SENTENCES[:2], SENTENCES, model=at, progress=False),
    ),
    "rerank": (
        "my-cross-encoder",
        lambda c: c.rerank("the dog", SENTENCES, top_k=4),
        lambda at: bertie.rerank("the dog", SENTENCES, model=at, top_k=4),
    ),
    "rerank-by-cosine": (
        "my-bert",
        lambda c: c.rerank("the dog", SENTENCES),
        lambda at: bertie.rerank(
            "the dog",
            SENTENCES,
            model=bertie.BertModel.from_pretrained(at),
            tokenizer=bertie.BertTokenizer.from_pretrained(at),
        ),
    ),
    "classify": (
        "my-sentiment",
        lambda c: c.classify(TEXTS, top_k=2),
        lambda at: bertie.classify(TEXTS, model=at, top_k=2, progress=False),
    ),
    "classify-pair": (
        "my-nli",
        lambda c: c.classify((SENTENCES[0], SENTENCES[1]), top_k=3),
        lambda at: bertie.classify((SENTENCES[0], SENTENCES[1]), model=at, top_k=3),
    ),
    "zero-shot": (
        "my-nli",
        lambda c: c.classify(SENTENCES, labels=["dogs", "money"]),
        lambda at: bertie.zero_shot(SENTENCES, ["dogs", "money"], model=at, progress=False),
    ),
    "tag": ("my-ner", lambda c: c.tag(TEXTS), lambda at: bertie.tag(TEXTS, model=at, progress=False)),
    "answer": (
        "my-squad",
        lambda c: c.answer(["What fox?"] * 7, SENTENCES, n_best=3),
        lambda at: bertie.answer(["What fox?"] * 7, SENTENCES, model=at, n_best=3, progress=False),
    ),
    "fill": (
        "my-bert",
        lambda c: c.fill(MASKED, top_k=3),
        lambda at: bertie.fill(MASKED, model=at, top_k=3, progress=False),
    ),
    "next": (
        "my-bert",
        lambda c: c.next_sentence(PAIRS),
        lambda at: bertie.next_sentence(PAIRS, model=at, progress=False),
    ),
    "features": (
        "my-bert",
        lambda c: c.features(SENTENCES, layers=[-1, 0]),
        lambda at: bertie.features(SENTENCES, model=at, layers=[-1, 0], progress=False),
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_answers_of_the_server_are_those_of_the_task(server: Server, folder: Path, task: str) -> None:
    model, ask, offline = TASKS[task]
    wanted = offline(str(folder / model))
    with Client(server.url, model=model, batch_size=4) as client:
        same(ask(client), wanted)

    async def asked() -> Any:
        async with AsyncClient(server.url, model=model, batch_size=3) as client:
            return await ask(client)

    same(asyncio.run(asked()), wanted)


def test_tokenize_models_and_health(server: Server) -> None:
    with Client(server.url, model="my-bert") as client:
        assert client.health() is True
        assert client.models() == list(MODELS)
        tokens = client.tokenize("the dog")
        assert [token.text for token in tokens if not token.special] == ["the", "dog"]
        assert client.info()["version"] == bertie.__version__


def test_mistakes_come_back_as_the_errors_of_the_tasks(server: Server) -> None:
    with Client(server.url, model="my-bert") as client:
        with pytest.raises(InputError, match="MASK"):
            client.fill("There is nothing to fill in here.")
        with pytest.raises(InputError):
            client.embed("a", dimensions=10_000)
        with pytest.raises(InputError):
            client.tag("A model that cannot tag.")


def test_streams_are_numbered_as_the_task_numbers_them(server: Server, folder: Path) -> None:
    wanted = list(bertie.features(iter(SENTENCES), model=str(folder / "my-bert"), layers=[-1]))
    with Client(server.url, model="my-bert", batch_size=2) as client:
        same(list(client.features(iter(SENTENCES), layers=[-1])), wanted)


COMMANDS = [
    ("health", ["health"]),
    ("info", ["info"]),
    ("embed", ["embed", "A text.", "Another.", "-m", "my-bert"]),
    ("embed-file", ["embed", "-f", "texts.txt", "-m", "my-bert", "--truncate-dim", "4"]),
    ("similarity", ["similarity", "A dog.", "A cat.", "It rains.", "-m", "my-bert"]),
    ("rerank", ["rerank", "dog", "A dog.", "A cat.", "-k", "1", "-m", "my-cross-encoder"]),
    ("classify", ["classify", "A fine film.", "-m", "my-sentiment"]),
    ("pairs", ["classify", "--pairs", "It rains.", "It is wet.", "-k", "3", "-m", "my-nli"]),
    ("labels", ["classify", "Shares fell.", "--labels", "sports,business", "-m", "my-nli"]),
    ("tag", ["tag", "Ada lived in London.", "-m", "my-ner"]),
    ("answer", ["answer", "Where?", "-c", "Ada lived in London.", "--n-best", "2", "-m", "my-squad"]),
    ("fill", ["fill", "The [MASK] fox.", "-k", "2", "-m", "my-bert"]),
    ("next", ["next", "She opened the door.", "It was dark.", "-m", "my-bert"]),
    ("features", ["features", "dog", "--layers", "-1", "-m", "my-bert"]),
]


@pytest.mark.parametrize("given", [case[1] for case in COMMANDS], ids=[case[0] for case in COMMANDS])
def test_the_command_answers_as_the_one_without_a_server(
    server: Server,
    folder: Path,
    given: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BERTIE_URL", server.url)
    assert main(["client", *given]) == 0
    shown = capsys.readouterr().out
    if given[0] in ("health", "info"):
        assert "my-bert" in shown
        return
    rows = [json.loads(line) for line in shown.splitlines()]
    assert main(given) == 0  # the same command on this machine: the folder of the model has the model's name
    for found, wanted in zip(rows, map(json.loads, capsys.readouterr().out.splitlines()), strict=True):
        same(found, wanted)


@pytest.mark.parametrize("given", [case[1] for case in COMMANDS[2:]], ids=[case[0] for case in COMMANDS[2:]])
def test_the_command_shows_answers_to_people(
    server: Server,
    folder: Path,
    given: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(["client", *given, "--url", server.url, "--format", "text"]) == 0
    assert capsys.readouterr().out.strip()


def test_a_server_that_is_not_there_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["client", "embed", "A text.", "--url", "localhost"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


def test_every_example_of_the_help_runs(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import shlex

    from bertie.cli.commands.serving.client import EXAMPLES

    monkeypatch.chdir(folder)
    monkeypatch.setenv("BERTIE_URL", server.url)
    lines = [line.strip() for line in EXAMPLES.splitlines() if line.strip().startswith("bertie client ")]
    assert len(lines) >= 3
    for line in lines:
        given = shlex.split(line.replace("http://127.0.0.1:8001", server.url))[1:]
        assert main(given) == 0, (line, capsys.readouterr().err)
