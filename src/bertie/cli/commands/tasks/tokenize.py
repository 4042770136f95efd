"""`bertie tokenize`: how texts are cut into word pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import bertie
from bertie.cli.support.options import DEFAULT_MODEL, input_options, output_options
from bertie.cli.support.show import Out, Rows
from bertie.cli.support.texts import Given
from bertie.defaults import default_embedding_model

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bertie.text.encoding import BatchEncoding

EXAMPLES = """\b
Examples:
  bertie tokenize "Tokenization is fun."
  bertie tokenize -m ./my-bert -f texts.txt --format jsonl
"""


@click.command("tokenize", epilog=EXAMPLES)
@input_options()
@click.option("-m", "--model", metavar="MODEL", help=f"Folder or hub name of the model. [default: {DEFAULT_MODEL}]")
@output_options
def command(given: Given, model: str | None, out: Out) -> None:
    """Show the word pieces of TEXTs with their ids and the characters they come from."""
    tokenizer = bertie.BertTokenizer.from_pretrained(default_embedding_model() if model is None else model)
    encoded = ((text, tokenizer(text, return_offsets_mapping=True)) for text in given.read())
    out.emit(encoded, _row, _shown)


def _row(answer: tuple[str, BatchEncoding]) -> Rows:
    text, encoding = answer
    return {
        "text": text,
        "tokens": encoding.tokens(),
        "ids": encoding["input_ids"],
        "offsets": encoding["offset_mapping"],
    }


def _shown(answer: tuple[str, BatchEncoding]) -> RenderableType:
    from rich.text import Text

    _, encoding = answer
    line = Text()
    for token, number in zip(encoding.tokens(), encoding["input_ids"], strict=True):
        line.append(token, style="dim" if token.startswith("[") else "bold")
        line.append(f" {number}  ", style="cyan")
    return line
