"""`bertie serve`: models behind HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import click

from bertie.cli.support.options import DEFAULT_MODEL
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import InputError, MissingExtra
from bertie.serve.settings import (
    ADMIN_VARIABLE,
    KEYS_VARIABLE,
    Limits,
    ModelChoice,
    Settings,
    read_keys,
    read_model_choice,
)
from bertie.serve.sockets import bind, take_socket

EXAMPLES = """\b
Examples:
  bertie serve
  bertie serve -m ./my-sentiment --port 9000
  bertie serve -m all-MiniLM-L6-v2 -m ner=./my-ner
  BERTIE_API_KEYS=$KEY bertie serve -m ./my-bert --task embed --host 0.0.0.0

\b
Then open the address in a browser, or:
  curl 127.0.0.1:8000/embed -H 'content-type: application/json' \\
    -d '{"inputs": "A text."}'
"""
NEEDED = ("fastapi", "uvicorn", "httptools", "msgspec", "prometheus_client")
TASKS = (
    "embed", "embed_sparse", "classify", "zero_shot", "rerank", "tag", "answer", "fill", "next", "features", "explore",
)  # fmt: skip
_LANGUAGE_TASKS = ("fill", "next", "features")


@click.command("serve", epilog=EXAMPLES)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="Folder or name; several may be given. [default: all-MiniLM-L6-v2 for embed, bertie-mini for fill, "
    "next and features]",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(TASKS),
    metavar="TASK",
    help=f"Serve only this; several may be given: {', '.join(TASKS)}. [default: all that the model can do]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: cuda where there is one]")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "int8", "fp8"]),
    help="What the model computes in; int8 on a CPU, fp8 on a GPU. [default: float32]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes behind the one port; each has its share of the GPUs or cores.",
)
@click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="Threads of a CPU engine. [default: torch's choice]"
)
@click.option("--batch-tokens", type=click.IntRange(0), default=0, help="Tokens of a batch. [default: by the device]")
@click.option(
    "--truncation",
    type=click.Choice(["request", "error", "right", "left"]),
    default="request",
    show_default=True,
    help="Texts that are too long: as the request says, refused, or cut at the end or the beginning.",
)
@click.option("--max-batch", type=click.IntRange(1), default=1024, show_default=True, help="Texts of one request.")
@click.option("--max-body", type=click.IntRange(1), default=8 << 20, show_default=True, help="Bytes of one body.")
@click.option(
    "--max-text-tokens", type=click.IntRange(1), default=16384, show_default=True, help="Tokens of one long text."
)
@click.option("--max-tokens", type=click.IntRange(1), default=1 << 20, show_default=True, help="Tokens of one request.")
@click.option("--max-answer", type=click.IntRange(1), default=32 << 20, show_default=True, help="Bytes of one answer.")
@click.option("--queue-tokens", type=click.IntRange(0), default=0, help="Tokens that may wait. [default: 16 batches]")
@click.option(
    "--queue-requests", type=click.IntRange(1), default=512, show_default=True, help="Requests that may wait."
)
@click.option("--rate", type=click.FloatRange(0), default=0.0, help="Requests a second and key. [default: no limit]")
@click.option("--request-seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Longest wait.")
@click.option(
    "--body-seconds", type=click.FloatRange(0.1), default=20.0, show_default=True, help="For a body to arrive."
)
@click.option("--header-seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="For a header.")
@click.option(
    "--drain-seconds", type=click.FloatRange(0), default=25.0, show_default=True, help="To finish in, at the end."
)
@click.option("--api-key-file", metavar="FILE", help="API keys, one to a line; or set BERTIE_API_KEYS. [default: open]")
@click.option(
    "--admin-key-file",
    metavar="FILE",
    help="The same for keys that may load models; BERTIE_ADMIN_KEYS. [default: none]",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name it is called by; * is any. [default: addresses]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Of the JSON lines on standard error.",
)
@click.option("--fd", type=int, hidden=True, help="A socket that is bound already. [default: a new one]")
@click.option("--parent", type=int, hidden=True, help="End when this process has. [default: never]")
@click.option("--when-ready", is_flag=True, hidden=True, help="Accept nobody before. [default: accept at once]")
def command(
    models: tuple[str, ...],
    tasks: tuple[str, ...],
    host: str,
    port: int,
    workers: int,
    fd: int | None,
    parent: int | None,
    when_ready: bool,
    **options: Any,
) -> int:
    """Serve models over HTTP: OpenAI's, text-embeddings-inference's and Cohere's routes, and all of Bertie's tasks."""
    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(package, "serve", "bertie serve")
    choices = tuple(read_model_choice(given, tasks) for given in models) or _default_models(tasks)
    names = [choice.name for choice in choices]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"Two models are called {twice!r}.", "Name them: --model NAME=PATH.")
    settings = Settings(
        models=choices,
        host=host,
        port=port,
        device=options["device"],
        dtype=options["dtype"],
        batch_tokens=options["batch_tokens"],
        threads=options["threads"],
        truncation=options["truncation"],
        limits=Limits(
            body_bytes=options["max_body"],
            batch=options["max_batch"],
            text_tokens=options["max_text_tokens"],
            request_tokens=options["max_tokens"],
            answer_bytes=options["max_answer"],
            queue_requests=options["queue_requests"],
            queue_tokens=options["queue_tokens"],
            rate=options["rate"],
            header_seconds=options["header_seconds"],
            body_seconds=options["body_seconds"],
            request_seconds=options["request_seconds"],
        ),
        keys=read_keys(KEYS_VARIABLE, options["api_key_file"]),
        admin_keys=read_keys(ADMIN_VARIABLE, options["admin_key_file"]),
        allowed_hosts=options["hosts"],
        drain_seconds=options["drain_seconds"],
        log_level=options["log_level"],
    )
    if workers > 1 and fd is None:
        from bertie.serve.workers import serve_workers  # needs the extra

        return serve_workers(settings, workers, say=click.echo)
    sock = bind(settings) if fd is None else take_socket(fd)
    from bertie.serve.run import serve  # with torch, which takes seconds: mistakes in what was asked are found before

    return serve(settings, sock, parent=parent, when_ready=when_ready, say=click.echo)


def _default_models(tasks: tuple[str, ...]) -> tuple[ModelChoice, ...]:
    """The models that the tasks have without a server. No task has two of them, so that a request which names a model
    of another server finds the one there is; the one that embeds is first, for /info and /tokenize."""
    language = tuple(task for task in tasks or _LANGUAGE_TASKS if task in _LANGUAGE_TASKS)
    others = tuple(task for task in tasks or ("embed",) if task not in _LANGUAGE_TASKS)
    if not tasks:  # all that they can do, so both can be looked into
        language, others = (*language, "explore"), (*others, "explore")
    choices = []
    if others:
        choices.append(ModelChoice(DEFAULT_MODEL, default_embedding_model(), others))
    if language:
        choices.append(ModelChoice("bertie-mini", default_language_model(), language))
    return tuple(choices)
