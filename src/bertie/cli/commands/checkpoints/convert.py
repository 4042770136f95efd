"""`bertie convert`: another format: hub safetensors or Google TensorFlow."""

from __future__ import annotations

import click


@click.command(
    "convert",
    epilog="\b\nExamples:\n  bertie convert ./uncased_L-12_H-768_A-12 ./my-bert\n"
    "  bertie convert ./my-bert ./for-tensorflow --to tf\n  bertie convert ./my-bert ./half --dtype float16",
)
@click.argument("source")
@click.argument("destination", type=click.Path())
@click.option(
    "--to", "target", type=click.Choice(["hub", "tf"]), default="hub", show_default=True, help="Format to write."
)
@click.option("--dtype", default="auto", show_default=True, help="Type of the weights: auto keeps the checkpoint's.")
def command(source: str, destination: str, target: str, dtype: str) -> None:
    """Write the checkpoint SOURCE to the folder DESTINATION in another format.

    `hub` is config.json and model.safetensors, which Bertie and transformers read; `tf` is Google's layout,
    bert_config.json and bert_model.ckpt, which google-research/bert reads. The vocabulary is written too.
    """
    from bertie.convert import convert

    result = convert(source, destination, target=target, dtype=dtype)
    click.echo(f"{result.model}: {result.num_tensors} tensors from {source} ({result.source_format}) to {destination}")
    for line in result.notes:
        click.echo(f"note: {line}")
