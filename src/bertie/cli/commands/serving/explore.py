"""`bertie explore`: see inside a model: a page in your browser, or in one HTML file."""

from __future__ import annotations

import os
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

import click

import bertie
from bertie.cli.commands.serving.serve import NEEDED
from bertie.cli.support.options import Chosen, model_options
from bertie.cli.support.show import check_place
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import InputError, MissingExtra
from bertie.serve.http.sockets import bind
from bertie.serve.settings import ModelChoice, Settings, read_model_choice

EXAMPLES = """\b
Examples:
  bertie explore
  bertie explore "The man went to the [MASK] to buy milk."
  bertie explore -m ./my-sentiment "A warm, funny film."
  bertie explore "She opened the door." "The room was empty." -o page.html
  bertie explore "He put on [MASK]." --patch "She put on [MASK]." -o p.html
"""
TASKS = ("fill", "next", "classify", "tag", "answer", "choice", "embed")


@click.command("explore", epilog=EXAMPLES)
@click.argument("text", required=False)
@click.argument("second", nargs=-1, metavar="[SECOND]...")
@model_options(default="bertie-mini")
@click.option(
    "--task",
    type=click.Choice(TASKS),
    metavar="TASK",
    help=f"How the text is read: {', '.join(TASKS)}. [default: the checkpoint's own]",
)
@click.option("-o", "--output", metavar="FILE", help="Write one HTML file instead of serving. [default: serve]")
@click.option("--patch", metavar="TEXT", help="Another text, whose states are put into this one. [default: none]")
@click.option(
    "--importance",
    metavar="FILE",
    help="With -o: measure which parts of the model the rows of this file need. [default: none]",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address. [default: open it in your browser]")
def command(
    text: str | None,
    second: tuple[str, ...],
    chosen: Chosen,
    task: str | None,
    output: str | None,
    patch: str | None,
    importance: str | None,
    port: int,
    no_browser: bool,
) -> int:
    """See inside a model: every head's attention, the answer with heads switched off, where an answer comes from, what
    the layers would say, and a walk of one word through the source.

    The page works without a network. TEXT may be followed by a SECOND one; more of them are choices.
    """
    if output is not None:
        return _write(text, second, chosen, task, Path(output), patch, importance)
    if importance is not None:
        raise InputError("--importance goes with -o FILE.", "Leave it out, and choose the file in the page.")
    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(package, "serve", "bertie explore without -o FILE")
    settings = Settings(
        models=(_choice(chosen, task),),
        port=port,
        device=chosen.settings["device"],
        dtype=chosen.dtype,
        log_level="warning",
        prune_folder=str(Path.cwd()),
    )
    sock = bind(settings)
    if "OMP_WAIT_POLICY" not in os.environ:
        # Torch's helpers look for their next part for about 30 µs, not for milliseconds: the browser needs the cores.
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    from bertie.serve.run import serve  # with torch, which takes seconds: mistakes in what was asked are found before

    said = [("text", text), *(("second", one) for one in second), ("task", task), ("otherText", patch)]
    said += [] if patch is None else [("view", "patching")]
    link = urlencode([(name, value) for name, value in said if value is not None])

    def show(address: str) -> None:
        page = f"{address}/#explore?{link}"
        click.echo(f"Ready: {page}\nCtrl-C ends it.")
        if not no_browser:
            webbrowser.open(page)

    return serve(settings, sock, say=lambda words: None, on_ready=show)


def _choice(chosen: Chosen, task: str | None) -> ModelChoice:
    if chosen.model is not None:
        return read_model_choice(chosen.model, ("explore",))
    source = default_embedding_model() if task == "embed" else default_language_model()
    return ModelChoice("all-MiniLM-L6-v2" if task == "embed" else "bertie-mini", source, ("explore",))


def _write(
    text: str | None,
    second: tuple[str, ...],
    chosen: Chosen,
    task: str | None,
    output: Path,
    patch: str | None,
    file: str | None,
) -> int:
    if text is None:
        raise InputError("A page in a file needs a text.", "Write it after `bertie explore`.")
    check_place(output)
    from bertie.explore.page.saved import write_page  # with torch, as above

    several = list(second) if len(second) > 1 or task == "choice" else None
    pair = second[0] if len(second) == 1 and several is None else several
    session = bertie.explore.open_session(text, pair, task=task, **chosen.settings)
    model, task = session.reading.loaded, session.task
    other = None if patch is None else bertie.explore.open_session(patch, pair, model=model, task=task)
    measured = None if file is None else bertie.explore.importance(file, model=model, task=task)
    size = write_page(session, output, other=other, importance=measured)
    click.echo(f"{output}: {size / 1e6:.2f} MB, opens in any browser.")
    return 0
