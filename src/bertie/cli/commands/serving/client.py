"""`bertie client`: the tasks asked of a server instead of a model on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bertie.cli.support.options import (
    columns_option,
    encoding_option,
    input_options,
    listed,
    output_options,
    single_option,
)
from bertie.cli.support.show import Out, clipped
from bertie.cli.support.texts import Given, beside
from bertie.errors import InputError

if TYPE_CHECKING:
    from bertie.client import Client

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """\b
Examples:
  bertie client health
  bertie client embed -f texts.txt -o vectors.jsonl
  bertie client fill "He drank a cup of [MASK]."
  bertie client tag --url http://127.0.0.1:8001 "Ada lived in London."
A key is taken from BERTIE_API_KEY, the address from BERTIE_URL.
"""


@click.group("client", epilog=EXAMPLES)
def command() -> None:
    """Ask a server that was started with `bertie serve`.

    Answers are those of the commands without `client`, and look the same.
    """


def server_options(function: F) -> F:
    """--url, --model, --timeout as `client`, open while the command runs."""

    @wraps(function)
    def connected(url: str | None, model: str | None, timeout: float, **values: Any) -> Any:
        from bertie.client import Client

        with Client(url, model=model, timeout=timeout) as client:
            return function(client=client, **values)

    decorated: Any = connected
    for option in (
        click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
                     metavar="SECONDS", help="How long one request may take."),
        click.option("-m", "--model", metavar="NAME", help="A model of the server. [default: the task's own]"),
        click.option("--url", metavar="URL", help="The server. [default: BERTIE_URL, or http://127.0.0.1:8000]"),
    ):  # fmt: skip
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@command.command("health", short_help="Is the server well?")
@server_options
def health(client: Client) -> None:
    """Is the server well, how long does it take to say so, and which models does it have?"""
    started = time.perf_counter()
    client.health()
    seconds = time.perf_counter() - started
    names = [clipped(name).plain for name in client.models()]
    click.echo(f"{client.url} is well ({seconds * 1000:.0f} ms): {', '.join(names)}")


@command.command("embed")
@input_options()
@server_options
@click.option(
    "--truncate-dim", type=click.IntRange(min=1), metavar="N", help="Keep the first N numbers. [default: all]"
)
@output_options
def embed(given: Given, client: Client, truncate_dim: int | None, out: Out) -> None:
    """Turn TEXTs into vectors."""
    from bertie.cli.commands.tasks.embed import _shown

    found = beside(given.read(), partial(client.embed, truncate_dim=truncate_dim))
    out.emit(found, row=lambda answer: {"text": answer[0], "embedding": answer[1]}, text=_shown)


@command.command("rerank")
@click.argument("query")
@input_options("[DOCUMENT]...", what="documents")
@server_options
@click.option("-k", "--top-k", type=click.IntRange(min=1), metavar="K", help="Give the best K only. [default: all]")
@output_options
def rerank(query: str, given: Given, client: Client, top_k: int | None, out: Out) -> None:
    """Put DOCUMENTs in the order of how well they answer QUERY."""
    from bertie.cli.support.show import scored, table

    found = list(enumerate(client.rerank(query, list(given.read()), top_k=top_k), start=1))

    def shown(ranking: list[tuple[int, Any]]) -> Any:
        made = table("", "score", "document")
        for rank, one in ranking:
            made.add_row(str(rank), scored(one.score), clipped(one.text))
        return made

    def rows(ranking: list[tuple[int, Any]]) -> list[dict[str, Any]]:
        return [
            {"query": query, "rank": rank, "index": one.index, "score": one.score, "text": one.text}
            for rank, one in ranking
        ]

    out.emit([found], row=rows, text=shown)


@command.command("classify", short_help="Give TEXTs labels, a classifier's or your own.")
@input_options()
@server_options
@click.option("--labels", metavar="A,B,C", help="Your own labels, judged by an inference model (zero-shot).")
@click.option("--pairs", is_flag=True, help="Texts are pairs: two arguments, or two columns of a file.")
@columns_option
@click.option("-k", "--top-k", type=click.IntRange(min=1), metavar="K", help="Labels to give. [default: the server's]")
@output_options
def classify(
    given: Given,
    client: Client,
    labels: str | None,
    pairs: bool,
    columns: tuple[str, str] | None,
    top_k: int | None,
    out: Out,
) -> None:
    """Give TEXTs the labels of a classifier, or with --labels your own."""
    from bertie.cli.commands.tasks.classify import _row, _shown

    if labels is not None and (pairs or columns):
        raise InputError("--labels and --pairs were both given.", "Your own labels are for single texts.")
    items: Any = given.read_pairs(columns) if pairs or columns else given.read()
    task = partial(client.classify, labels=listed(labels), top_k=top_k)
    out.emit(beside(items, task), row=_row, text=_shown)


@command.command("tag")
@input_options()
@server_options
@click.option(
    "--aggregation",
    type=click.Choice(["none", "simple", "first", "average", "max"]),
    default="simple",
    show_default=True,
    help="How tokens become entities: each token alone, joined, or one label to a word first.",
)
@output_options
def tag(given: Given, client: Client, aggregation: str, out: Out) -> None:
    """Find the entities of TEXTs, with their exact characters."""
    from bertie.cli.commands.tasks.tag import _row, _shown

    out.emit(beside(given.read(), partial(client.tag, aggregation=aggregation)), row=_row, text=_shown)


@command.command("answer")
@click.argument("question")
@click.option("-c", "--context", metavar="TEXT", help="The text to answer from.")
@single_option(
    "--context-file", metavar="FILE", help="Read the text to answer from out of a file; - is standard input."
)
@encoding_option
@click.option("--n-best", type=click.IntRange(min=1), default=1, show_default=True, help="How many quotations to give.")
@click.option("--threshold", type=float, default=0.0, show_default=True, help="How much better 'no answer' has to be.")
@server_options
@output_options
def answer(
    question: str,
    context: str | None,
    context_file: str | None,
    encoding: str,
    n_best: int,
    threshold: float,
    client: Client,
    out: Out,
) -> None:
    """Answer QUESTION by quoting a text."""
    from bertie.cli.commands.tasks.answer import _row, _shown
    from bertie.cli.support.squad import given_questions

    questions = given_questions(question, context, context_file, (), encoding=encoding)

    def task(items: Any) -> Any:
        pairs = ((one.question, one.context) for one in items)
        return client.answer(pairs, n_best=n_best, threshold=threshold)

    out.emit(beside(questions, task), row=partial(_row, several=n_best > 1), text=_shown)


@command.command("fill")
@input_options()
@server_options
@click.option("-k", "--top-k", type=click.IntRange(min=1), default=5, show_default=True, help="Fillings to give.")
@click.option("--targets", metavar="A,B", help="Only these words. [default: any]")
@output_options
def fill(given: Given, client: Client, top_k: int, targets: str | None, out: Out) -> None:
    """Find the likeliest words for every [MASK] in TEXTs."""
    from bertie.cli.commands.tasks.fill import _row, _shown

    out.emit(beside(given.read(), partial(client.fill, top_k=top_k, targets=listed(targets))), row=_row, text=_shown)


@command.command("next")
@input_options("[A B]", what="pairs")
@columns_option
@server_options
@output_options
def following(given: Given, columns: tuple[str, str] | None, client: Client, out: Out) -> None:
    """Say how likely the text B is to follow the text A."""
    from bertie.cli.commands.tasks.next import _row, _shown

    out.emit(beside(given.read_pairs(columns), client.next_sentence), row=_row, text=_shown)


@command.command("features", short_help="Give a vector for every token of TEXTs.")
@input_options()
@server_options
@click.option("--layers", metavar="N,N", help="0 is the first layer, -1 the last. [default: the server's]")
@output_options
def features(given: Given, client: Client, layers: str | None, out: Out) -> None:
    """Give a vector for every token of TEXTs from chosen layers, in the jsonl of Google's extract_features.py."""
    from bertie.cli.commands.tasks.features import _numbers, _shown

    found = client.features(given.read(), layers=_numbers(layers))
    out.emit(found, row=lambda one: one.to_google_json(), text=_shown)


@command.command("info")
@server_options
def info(client: Client) -> None:
    """What the server says about itself, as JSON."""
    click.echo(json.dumps(client.info(), indent=2))
