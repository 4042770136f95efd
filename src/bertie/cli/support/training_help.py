"""`--help` of the training commands: their many options under headings, what is used most first."""

from __future__ import annotations

import click

from bertie.cli.support.spelling import see_help
from bertie.errors import InputError

# Options by their names in Python; a command shows those that it has. Every one of them is in exactly one section.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Most used": (
        "train", "corpus", "dev", "output", "model", "size", "epochs", "learning_rate", "batch_size", "max_length",
        "resume", "help",
    ),
    "Data": (
        "dev_share", "column", "columns", "label", "glue", "input_format", "encoding", "delimiter", "lines", "skip_bad",
        "processes",
    ),
    "Vocabulary": ("vocab", "vocab_size", "lowercase"),
    "Masks and pairs": (
        "nsp", "whole_words", "mask_probability", "max_predictions", "masking", "dupe_factor", "short_seq_prob",
    ),
    "The task": (
        "best_metric", "class_weights", "label_smoothing", "several_labels", "stride", "max_answer_tokens", "repair",
        "loss", "scale", "pooling",
    ),
    "Learning": (
        "max_steps", "seed", "warmup", "schedule", "optimizer", "weight_decay", "layer_decay", "clip", "dropout",
        "attention_dropout", "ema",
    ),
    "A teacher": ("teacher", "student_layers", "distil", "temperature"),
    "Batches and memory": ("batch_tokens", "micro_batch_tokens", "gradient_checkpointing", "workers"),
    "Speed and processes": ("device", "precision", "fused", "compile_layers", "shard"),
    "Checkpoints and evaluation": ("evaluate_every", "patience", "save_every", "keep", "log_every", "tensorboard"),
}  # fmt: skip
_WIDEST = 24  # of the options' column; a longer one has its explanation on the next line
_SHORT = 24
_GLUE = "\N{NO-BREAK SPACE}"  # between words of one line, until the help is printed
SCREEN = {"max_content_width": 120, "help_option_names": ["-h", "--help"]}


class SectionedCommand(click.Command):
    """A command that lists its options in sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            cause, remedy = error.format_message(), see_help(ctx.command_path)
            if cause.startswith("Got unexpected extra argument"):
                remedy = f"Several files have an option each: --train A --train B. {remedy}"
            raise InputError(cause, remedy) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {_key(param): param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        width = max(len(_names(option)) for option in options.values() if len(_names(option)) <= _WIDEST)
        for title, names in SECTIONS.items():
            rows = [(_names(options[n]).ljust(width), explained(options[n])) for n in names if n in options]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=width)
        formatter.buffer[:] = [part.replace(_GLUE, " ") for part in formatter.buffer]


def _key(option: click.Option) -> str:
    return "help" if "--help" in option.opts else str(option.name)


def _names(option: click.Option) -> str:
    """`-m, --model MODEL`, `--fused / --no-fused`, `--resume`."""
    names = ", ".join(option.opts)
    if option.secondary_opts:
        return f"{names} / {', '.join(option.secondary_opts)}"
    return names if option.is_flag or option.metavar is None else f"{names} {option.metavar}"


def explained(option: click.Option) -> str:
    """What an option's line says: its help, and its default where the help does not tell it."""
    text = option.help or ""
    if option.required:
        text = f"{text} [required]"
    elif option.show_default:
        text = f"{text} [default: {_plain(option.default)}]"
    what, bracket, default = text.rpartition("[default: ")
    if bracket and len(default) <= _SHORT:  # a short one is not torn apart at the end of a line
        text = what + (bracket + default).replace(" ", _GLUE)
    return text


def _plain(value: object) -> str:
    """As one would type it: `3`, `3e-5`, `0.5 0.5 0 0`."""
    match value:
        case tuple() | list():
            return " ".join(map(_plain, value))
        case float():
            return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 0.001 else f"{value:g}"
    return str(value)
