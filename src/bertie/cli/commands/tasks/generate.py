"""`bertie generate`: continue a prompt, with a decoder."""

from __future__ import annotations

import click

from bertie import tasks
from bertie.cli.support.options import Chosen, input_options, model_options, output_options
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given
from bertie.cli.support.views import GENERATED
from bertie.errors import InputError

EXAMPLES = """\b
Examples:
  bertie generate -m ./my-decoder "Once upon a time" --max-new-tokens 20
  bertie generate -m ./my-decoder "Once upon a time" --num-beams 4
  bertie generate -m ./my-decoder "Once upon a time" --sample --seed 7
"""


@click.command("generate", epilog=EXAMPLES)
@input_options("[PROMPT]...", what="prompts")
@model_options(needs="a decoder: a BertLMHeadModel that was trained to predict the next word (config.is_decoder)")
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=20, show_default=True, help="Most tokens to write."
)
@click.option("--num-beams", type=click.IntRange(min=1), default=1, show_default=True, help="Beams of the search.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Texts to give for a prompt.")
@click.option("--sample", is_flag=True, help="Sample instead of taking the most likely token.")
@click.option("--seed", type=int, help="With --sample: the same seed draws the same text. [default: another each time]")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="With --sample: lower is less random.")
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="With --sample: among the K most likely tokens.",
)
@click.option(
    "--top-p",
    type=float,
    default=1.0,
    show_default=True,
    help="With --sample: among the most likely tokens that add up to P.",
)
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="More than 1 repeats less.")
@click.option("--force", is_flag=True, help="Run a checkpoint that is not a decoder as one.")
@output_options
def command(
    given: Given,
    chosen: Chosen,
    max_new_tokens: int,
    num_beams: int,
    count: int,
    sample: bool,
    seed: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    force: bool,
    out: Out,
) -> None:
    """Continue every PROMPT, with a checkpoint that was trained as a decoder."""
    if sample and num_beams > 1:
        raise InputError("--sample and --num-beams were both given.", "Draw one text, or search for the likeliest.")
    task = tasks.TextGenerator(
        **chosen.required, max_new_tokens=max_new_tokens, num_beams=num_beams, num_return_sequences=count,
        do_sample=sample, temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
        seed=seed, force=force,
    )  # fmt: skip
    out.emit(task(given.read(), progress=out.progress), *GENERATED)
