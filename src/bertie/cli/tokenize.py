"""`bertie tokenize`: how a text is cut into word pieces."""

from __future__ import annotations

from typing import Any

import click

from bertie.cli.options import input_options, output_options


@click.command(
    "tokenize",
    epilog='\b\nExamples:\n  bertie tokenize "Tokenization is fun."\n'
    "  bertie tokenize -m ./my-bert -f texts.txt --format jsonl",
)
@input_options
@click.option("-m", "--model", help="Folder or hub name of the model. [default: all-MiniLM-L6-v2]")
@output_options
def command(
    texts: tuple[str, ...],
    file: str | None,
    input_format: str | None,
    column: str | None,
    skip_bad: bool,
    model: str | None,
    format_: str | None,
    output: str | None,
) -> None:
    """Show the word pieces of TEXTS with their ids and the characters they come from."""
    from rich.text import Text

    from bertie.cli.show import emit
    from bertie.cli.texts import given_texts
    from bertie.text import BertTokenizer
    from bertie.text.encoding import BatchEncoding

    if model is None:
        from bertie.defaults import default_embedding_model

        model = default_embedding_model()
    tokenizer = BertTokenizer.from_pretrained(model)
    given = given_texts(texts, file, input_format=input_format, column=column, skip_bad=skip_bad)

    def encoded() -> Any:
        for text in given:
            yield text, tokenizer(text, return_offsets_mapping=True)

    def row(answer: tuple[str, BatchEncoding]) -> dict[str, Any]:
        text, encoding = answer
        return {
            "text": text,
            "tokens": encoding.tokens(),
            "ids": encoding["input_ids"],
            "offsets": encoding["offset_mapping"],
        }

    def shown(answer: tuple[str, BatchEncoding]) -> Text:
        _, encoding = answer
        line = Text()
        for token, number in zip(encoding.tokens(), encoding["input_ids"], strict=True):
            line.append(token, style="dim" if token.startswith("[") else "bold")
            line.append(f" {number}  ", style="cyan")
        return line

    emit(encoded(), row=row, text=shown, format_=format_, output=output)
