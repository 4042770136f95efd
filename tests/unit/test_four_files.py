"""A new task in the library, on the command line, in the server and in the client: four files, counted.

The package is copied, a small task is added to the copy, and another process calls it all four ways. Nothing is patched
while it runs, so what is counted is what a person has to write.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra serve")

import bertie
from tiny_models import saved

SOURCE = Path(bertie.__file__).parent
MOST_FILES = 4

TASK = '''
"""How sure a classifier is of a text: its largest logit."""

from collections.abc import Callable
from typing import ClassVar, Unpack

from bertie.answers import Sureness
from bertie.model import BertForSequenceClassification
from bertie.running.open import ModelLike
from bertie.running.rows import Reading, Row
from bertie.running.task import RunSettings, ScoringTask, TextTask, function_of


class SurenessJudge(ScoringTask[str, float, Sureness], TextTask[Sureness]):
    """How sure the model is of a text.

    The largest logit, `times` so much.
    """

    name: ClassVar[str] = "sureness"
    long = "truncate"
    stride = 0

    def __init__(self, model: ModelLike, *, times: int = 1, **settings: Unpack[RunSettings]) -> None:
        self.open(model, BertForSequenceClassification, settings)
        self.times = times

    def start(self, rows: list[Row]) -> Callable[[], list[float]]:
        logits = self.loaded.logits(rows)
        return lambda: (logits().amax(-1) * self.times).tolist()

    def decode(self, context: Reading, judged: list[float]) -> Sureness:
        return Sureness(round(judged[0], 4))


sureness = function_of(SurenessJudge, "sureness")
'''

COMMAND = '''"""`bertie sureness`: how sure a classifier is of texts."""

from functools import partial

import click

from bertie import tasks
from bertie.cli.support.options import Chosen, input_options, model_options, output_options
from bertie.cli.support.show import Out, clipped
from bertie.cli.support.texts import Given, beside


@click.command("sureness")
@input_options()
@model_options(needs="a text classifier")
@click.option("--times", type=click.IntRange(min=1), default=1, help="A factor.")
@output_options
def command(given: Given, chosen: Chosen, times: int, out: Out) -> None:
    """Say how sure a classifier is of TEXTs."""
    task = tasks.sureness.SurenessJudge(**chosen.required, times=times)
    found = beside(given.read(), partial(task, progress=out.progress))
    out.emit(found, lambda one: {"text": one[0], "value": one[1].value}, lambda one: clipped(one[0]))
'''

ANSWER = """

@dataclass(frozen=True, slots=True)
class Sureness:
    value: float


TASK_ROUTES["sureness"] = TaskRoute("/v1/sureness", Sureness, checkpoints=("BertForSequenceClassification",))
"""

CALLS = """
import asyncio, contextlib, io, json, sys

import bertie

assert "torch" not in sys.modules and "sureness" in dir(bertie) and "sureness" in bertie.__all__
folder = sys.argv[1]
texts = ["the dog", "Paris is the capital of France."]
# The library.
one, several = bertie.sureness(texts[0], model=folder), bertie.sureness(texts, model=folder)
doubled = bertie.sureness(texts[0], model=folder, times=2)
assert several[0] == one and several[1] != one and abs(doubled.value - 2 * one.value) < 1e-3, (one, doubled)
assert bertie.sureness.__doc__.startswith("How sure")
# The command line.
from bertie.cli.main import main

assert main(["sureness", *texts, "-m", folder, "-o", "out.jsonl"]) == 0
with open("out.jsonl") as written:
    assert [json.loads(line)["value"] for line in written] == [found.value for found in several]
with contextlib.redirect_stdout(io.StringIO()) as written:
    main(["--help"])
assert "sureness    How sure a classifier is of texts." in written.getvalue(), written.getvalue()
with contextlib.redirect_stdout(io.StringIO()) as written:
    main(["serve", "--help"])
assert "features, sureness" in " ".join(written.getvalue().split()), "--task does not take it"
# The server, which serves it of a classifier without being told.
import httpx

from bertie.answers import Sureness
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice, Settings

with Running(Settings(models=(ModelChoice("m", folder),), port=0, device="cpu")) as server:
    url = server.url + "/v1/sureness"
    found = httpx.post(url, json={"inputs": texts}).raise_for_status().json()
    assert found["model"] == "m" and found["results"] == [{"value": one.value} for one in several], found
    assert httpx.post(url, json={"inputs": texts[0], "times": 2}).json()["results"] == [{"value": doubled.value}]
    assert httpx.post(url, json={"inputs": texts[0], "times": "often"}).status_code == 422
    assert httpx.post(url, json={"inputs": [["a", "pair"]]}).status_code == 422
    tasks = httpx.get(server.url + "/v1/models").json()["data"][0]["tasks"]
    assert {"classify", "sureness"} <= set(tasks), tasks
    document = httpx.get(server.url + "/openapi.json").json()
    assert document["paths"]["/v1/sureness"]["post"]["summary"] == "How sure the model is of a text."
    options = document["components"]["schemas"]["SurenessRequest"]["properties"]
    assert set(options) == {"model", "inputs", "times"} and options["times"]["default"] == 1, options
    # The clients.
    with bertie.Client(server.url) as client:
        assert client.sureness(texts[0]) == one and client.sureness(texts) == several
        assert list(client.sureness(iter(texts))) == several
        assert client.sureness(texts[0], times=2) == doubled

    async def asked():
        async with bertie.AsyncClient(server.url) as client:
            return await client.sureness(texts)

    assert asyncio.run(asked()) == several
print("answered four ways")
"""


def written(tree: Path, file: str, text: str, *, before: str = "") -> None:
    """A file of the copy, new, or with a text added at its end or in front of a line."""
    place = tree / file
    old = place.read_text(encoding="utf-8") if place.exists() else ""
    assert before in old
    added = old.replace(before, text + before, 1) if before else old + text
    place.write_text(added, encoding="utf-8")


def link(source: str, target: str) -> str:
    """Python is copied; what is large, or built, is pointed at."""
    return shutil.copy(source, target) if source.endswith(".py") else os.symlink(source, target) or target


def touched(tree: Path) -> set[str]:
    files = {str(file.relative_to(tree)) for file in tree.rglob("*.py")}
    return {
        file
        for file in files
        if not (SOURCE / file).exists() or (SOURCE / file).read_bytes() != (tree / file).read_bytes()
    }


def test_a_new_task_touches_four_files_and_answers_everywhere(tmp_path: Path) -> None:
    tree = tmp_path / "copy" / "bertie"
    shutil.copytree(SOURCE, tree, copy_function=link, ignore=shutil.ignore_patterns("__pycache__"))
    written(tree, "tasks/sureness.py", TASK)
    written(tree, "cli/commands/tasks/sureness.py", COMMAND)
    written(tree, "answers.py", ANSWER)
    imported = "    from bertie.tasks.sureness import sureness as sureness\n"
    written(tree, "__init__.py", imported, before="    from bertie.tasks.tag import tag as tag\n")
    written(
        tree, "__init__.py", '    "sureness": "bertie.tasks.sureness",\n', before='    "tag": "bertie.tasks.tag",\n'
    )
    files = touched(tree)
    assert files == {"tasks/sureness.py", "cli/commands/tasks/sureness.py", "answers.py", "__init__.py"}
    assert len(files) <= MOST_FILES
    folder = saved(tmp_path / "model", "BertForSequenceClassification", num_labels=3)
    environment = os.environ | {"PYTHONPATH": str(tree.parent), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", CALLS, folder],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=300,
    )
    assert result.stdout.strip().endswith("answered four ways"), result.stderr


def test_what_editors_are_shown_is_what_there_is() -> None:
    """The names that only type checkers import are those of the table, from the same modules; every task is one."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    shown = {
        alias.asname or alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    shown.pop("*")
    shown.pop("EncoderDecoderModel")
    assert tuple(name for name, module in shown.items() if module == "bertie") == bertie._ROOMS
    for room in bertie._ROOMS:
        del shown[room]
    stars = {
        "bertie.model",
        "bertie.compat.auto",
        "bertie.text.hub.relatives",
        *(m for m in bertie._WHERE.values() if m.startswith("bertie.family.")),
    }
    assert shown == {name: module for name, module in bertie._WHERE.items() if module not in stars}
    modules = {file.stem for file in (SOURCE / "tasks").glob("[!_]*.py")}
    assert modules <= set(shown), "a task that `bertie` does not know"
