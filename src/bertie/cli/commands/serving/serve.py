"""`bertie serve`: serve models over HTTP, with OpenAI's and other servers' routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from bertie.answers import TASK_ROUTES
from bertie.cli.support.options import DEFAULT_MODEL, choice_option
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import InputError, MissingExtra
from bertie.serve.http.sockets import bind, take_socket
from bertie.serve.settings import (
    ADMIN_VARIABLE,
    KEYS_VARIABLE,
    TRUNCATIONS,
    Limits,
    ModelChoice,
    Settings,
    chosen_devices,
    default_fronts,
    read_keys,
    read_model_choice,
)

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
NEEDED = ("fastapi", "uvicorn", "httptools", "msgspec", "orjson", "prometheus_client")
F = TypeVar("F", bound=Callable[..., object])
_FIRST = ("embed", "embed_sparse", "classify", "zero_shot", "rerank", "tag", "answer", "fill", "next", "features")
TASKS = tuple(dict.fromkeys((*_FIRST, *TASK_ROUTES, "explore")))
_LANGUAGE_TASKS = ("fill", "next", "features")


def _limit(flag: str, name: str, shown: str) -> Callable[[F], F]:
    """An option for one of the `Limits`, with its default; a number of seconds need not be whole."""
    default = getattr(Limits, name)
    kind = click.IntRange(1) if type(default) is int else click.FloatRange(0.1)
    return click.option(flag, name, type=kind, default=default, show_default=True, help=shown)


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
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="cpu, cuda, cuda:1 …; several with commas, an engine each. [default: all GPUs, else cpu]",
)
@choice_option(
    "--dtype", "float32", "bfloat16", "float16", "int8", "fp8",
    shown="What the model computes in; int8 on a CPU, fp8 on a GPU. [default: float32; on a GPU float16 or bfloat16]",
)  # fmt: skip
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=None,
    help="Processes that speak HTTP, beside one for each device; 1: all in one process. "
    "[default: by the cores; 1 where there are fewer than 4]",
)
@click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="Threads of a CPU engine. [default: torch's choice]"
)
@click.option("--batch-tokens", type=click.IntRange(0), default=0, help="Tokens of a batch. [default: by the device]")
@choice_option(
    "--truncation", *TRUNCATIONS, default="request",
    shown="Texts that are too long: as the request says, refused, or cut at the end or the beginning.",
)  # fmt: skip
@_limit("--max-batch", "batch", "Texts of one request.")
@_limit("--max-body", "body_bytes", "Bytes of one body.")
@_limit("--max-text-tokens", "text_tokens", "Tokens of one long text.")
@_limit("--max-tokens", "request_tokens", "Tokens of one request.")
@_limit("--max-answer", "answer_bytes", "Bytes of one answer.")
@click.option("--queue-tokens", type=click.IntRange(0), default=0, help="Tokens that may wait. [default: 16 batches]")
@_limit("--queue-requests", "queue_requests", "Requests that may wait.")
@click.option("--rate", type=click.FloatRange(0), default=0.0, help="Requests per second and key. [default: no limit]")
@_limit("--request-seconds", "request_seconds", "Longest wait.")
@_limit("--body-seconds", "body_seconds", "Seconds for a body to arrive.")
@_limit("--header-seconds", "header_seconds", "Seconds for a header to arrive.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0),
    default=25.0,
    show_default=True,
    help="Seconds to finish accepted requests when it stops.",
)
@click.option(
    "--hung-seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds after which a process that does not respond is replaced; 0 is never.",
)
@click.option("--api-key-file", metavar="FILE", help="API keys, one per line; or set BERTIE_API_KEYS. [default: open]")
@click.option(
    "--admin-key-file",
    metavar="FILE",
    help="The same for keys that may load models; BERTIE_ADMIN_KEYS. [default: none]",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Host name that requests may be for; * is any. [default: addresses]",
)
@choice_option(
    "--log-level",
    "debug",
    "info",
    "warning",
    "error",
    default="info",
    shown="Level of the JSON lines on standard error.",
)
@click.option(
    "--log-sample", type=click.FloatRange(0, 1), default=1.0, show_default=True,
    help="Share of the answered requests that is logged; failed ones always are.",
)  # fmt: skip
@click.option("--fd", type=int, hidden=True, help="A socket that is bound already. [default: a new one]")
def command(
    models: tuple[str, ...],
    tasks: tuple[str, ...],
    host: str,
    port: int,
    workers: int | None,
    fd: int | None,
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
    keys = read_keys(KEYS_VARIABLE, options.pop("api_key_file"))
    admin_keys = read_keys(ADMIN_VARIABLE, options.pop("admin_key_file"))
    limits = Limits(**{one.name: options.pop(one.name) for one in fields(Limits) if one.name in options})
    settings = Settings(choices, host, port, limits=limits, keys=keys, admin_keys=admin_keys, **options)
    sock = bind(settings) if fd is None else take_socket(fd)
    devices = chosen_devices(settings.device)
    fronts = workers or default_fronts(devices)
    many = len(devices) > 1 and (workers != 1 or "," in (settings.device or ""))
    if (fronts > 1 or many) and fd is None:
        from bertie.serve.processes.supervisor import serve_processes  # with torch, as below

        return serve_processes(settings, sock, fronts, devices, say=click.echo)
    from bertie.serve.run import serve  # with torch, which takes seconds: mistakes in what was asked are found before

    return serve(settings, sock, say=click.echo)


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
