"""`bertie client`: use a running server: the same tasks, the same answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import TypeVar, cast

import click

from bertie.answers import AnswerResult
from bertie.cli.commands.tasks.embed import truncate_dim_option
from bertie.cli.commands.tasks.features import layer_numbers
from bertie.cli.commands.tasks.similarity import emit_matrix, several_texts
from bertie.cli.commands.tasks.tag import Aggregation, aggregation_option
from bertie.cli.support.options import (
    columns_option,
    encoding_option,
    input_options,
    listed,
    output_options,
    single_option,
    with_options,
)
from bertie.cli.support.show import Out, clipped
from bertie.cli.support.squad import given_questions
from bertie.cli.support.texts import Given, beside
from bertie.cli.support.views import CLASSIFIED, EMBEDDED, FEATURES, FILLED, NEXT, RANKED, TAGGED, answered
from bertie.client import Client
from bertie.data import Question
from bertie.errors import InputError

F = TypeVar("F", bound=Callable[..., object])

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
    """Send requests to a server that was started with `bertie serve`.

    Answers are those of the commands without `client`, and look the same.
    """


def server_options(function: F) -> F:
    """--url, --model, --timeout as `client`, open while the command runs."""

    @wraps(function)
    def connected(url: str | None, model: str | None, timeout: float, **values: object) -> object:
        with Client(url, model=model, timeout=timeout) as client:
            return function(client=client, **values)

    return with_options(
        cast(F, connected),
        click.option("--url", metavar="URL", help="The server. [default: BERTIE_URL, or http://127.0.0.1:8000]"),
        click.option("-m", "--model", metavar="NAME", help="A model of the server. [default: the task's own]"),
        click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
                     metavar="SECONDS", help="How long one request may take."),
    )  # fmt: skip


@command.command("health", short_help="Show whether the server is ready.")
@server_options
def health(client: Client) -> None:
    """Show whether the server is ready, how fast it answers, and which models it has."""
    started = time.perf_counter()
    client.health()
    seconds = time.perf_counter() - started
    names = [clipped(name).plain for name in client.models()]
    click.echo(f"{client.url} is ready ({seconds * 1000:.0f} ms): {', '.join(names)}")


@command.command("embed")
@input_options()
@server_options
@truncate_dim_option
@output_options
def embed(given: Given, client: Client, truncate_dim: int | None, out: Out) -> None:
    """Turn TEXTs into vectors."""
    found = beside(given.read(), partial(client.embed, truncate_dim=truncate_dim))
    out.emit(found, *EMBEDDED)


@command.command("similarity")
@input_options()
@server_options
@output_options
def similarity(given: Given, client: Client, out: Out) -> None:
    """Show how similar TEXTs are, each to every other."""
    texts = several_texts(given)
    emit_matrix(out, texts, client.similarity(texts))


@command.command("rerank")
@click.argument("query")
@input_options("[DOCUMENT]...", what="documents")
@server_options
@click.option("-k", "--top-k", type=click.IntRange(min=1), metavar="K", help="Give the best K only. [default: all]")
@output_options
def rerank(query: str, given: Given, client: Client, top_k: int | None, out: Out) -> None:
    """Sort DOCUMENTs by how well they answer QUERY."""
    found = client.rerank(query, list(given.read()), top_k=top_k)
    out.emit([(query, found)], *RANKED)


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
    if labels is not None and (pairs or columns):
        raise InputError("--labels and --pairs were both given.", "Your own labels are for single texts.")
    items: Iterator[str | tuple[str, str]] = given.read_pairs(columns) if pairs or columns else given.read()
    task = partial(client.classify, labels=listed(labels), top_k=top_k)
    out.emit(beside(items, task), *CLASSIFIED)


@command.command("tag")
@input_options()
@server_options
@aggregation_option
@output_options
def tag(given: Given, client: Client, aggregation: Aggregation, out: Out) -> None:
    """Find the entities of TEXTs, with their exact characters."""
    out.emit(beside(given.read(), partial(client.tag, aggregation=aggregation)), *TAGGED)


@command.command("answer")
@click.argument("question")
@click.option("-c", "--context", metavar="TEXT", help="The text to answer from.")
@single_option(
    "--context-file", metavar="FILE", shown="Read the text to answer from out of a file; - is standard input."
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
    questions = given_questions(question, context, context_file, (), encoding=encoding)

    def task(items: Iterator[Question]) -> Iterable[AnswerResult]:
        pairs = ((one.question, one.context) for one in items)
        found: Iterable[AnswerResult] = client.answer(pairs, n_best=n_best, threshold=threshold)
        return found

    out.emit(beside(questions, task), *answered(several=n_best > 1))


@command.command("fill")
@input_options()
@server_options
@click.option("-k", "--top-k", type=click.IntRange(min=1), default=5, show_default=True, help="Fillings to give.")
@click.option("--targets", metavar="A,B", help="Only these words. [default: any]")
@output_options
def fill(given: Given, client: Client, top_k: int, targets: str | None, out: Out) -> None:
    """Find the likeliest words for every [MASK] in TEXTs."""
    out.emit(beside(given.read(), partial(client.fill, top_k=top_k, targets=listed(targets))), *FILLED)


@command.command("next")
@input_options("[A B]", what="pairs")
@columns_option
@server_options
@output_options
def following(given: Given, columns: tuple[str, str] | None, client: Client, out: Out) -> None:
    """Say how likely the text B is to follow the text A."""
    out.emit(beside(given.read_pairs(columns), client.next_sentence), *NEXT)


@command.command("features", short_help="Give a vector for every token of TEXTs.")
@input_options()
@server_options
@click.option("--layers", metavar="N,N", help="0 is the first layer, -1 the last. [default: the server's]")
@output_options
def features(given: Given, client: Client, layers: str | None, out: Out) -> None:
    """Give a vector for every token of TEXTs from chosen layers, in the jsonl of Google's extract_features.py."""
    found = client.features(given.read(), layers=layer_numbers(layers))
    out.emit(found, *FEATURES)


@command.command("info")
@server_options
def info(client: Client) -> None:
    """What the server says about itself, as JSON."""
    click.echo(json.dumps(client.info(), indent=2))
