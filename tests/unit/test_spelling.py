"""Settings of errors in the words that were typed."""

from __future__ import annotations

import click
import pytest

from bertie.cli.main import cli
from bertie.cli.support.spelling import named_command, typed
from bertie.errors import ConfigError

FINETUNE, PATH = named_command(cli, ["finetune", "classify", "--lr", "0"])


@pytest.mark.parametrize(
    ("name", "value", "sentence", "said"),
    [
        ("learning_rate", 0.0, "{learning_rate:is} it must be above 0.", "--lr 0: it must be above 0."),
        ("optimizer", "sgd", "{optimizer:is} it must be adamw.", "--optimizer sgd: it must be adamw."),
        ("resume", True, "Continue it with {resume}, or not.", "Continue it with --resume, or not."),
        ("encoding", "utf-16", "Say so: {encoding}.", "Say so: --encoding utf-16."),
        ("delimiter", ";", "If that separates them: {delimiter}.", "If that separates them: --delimiter ';'."),
        ("label", ..., "Name its column: {label}, or stop.", "Name its column: --label, or stop."),
        ("max_steps", None, "It was started with {max_steps}.", "It was started with no --max-steps."),
        ("fused", False, "It was started with {fused}.", "It was started with --no-fused."),
        ("shard", False, "It was started with {shard}.", "It was started with no --shard."),
        ("class_weights", [1.0, 2.5], "{class_weights:is} there are 3.", "--class-weights 1,2.5: there are 3."),
        ("distil", (0.5, 0.5, 0.0, 1.0), "Leave {distil} out.", "Leave --distil 0.5 0.5 0 1 out."),
        ("format", "csv", "Say so: {format}.", "Say so: --input-format csv."),
        ("delimiter", "\t", "Try {delimiter}.", r"Try --delimiter '\t'."),
        (
            "seed",
            1,
            "Propose {long=windows}, {resume=True} or {label=}.",
            "Propose long='windows', --resume or --label.",
        ),
        ("ranges", ..., "Give {ranges}.", "Give ranges."),
        ("seed", 3, "The {loss} is high.", "The {loss} is high."),
    ],
)
def test_settings_become_options(name: str, value: object, sentence: str, said: str) -> None:
    assert ConfigError(sentence, **{name: value}).said(typed(FINETUNE)) == (said, None)


def test_a_command_is_found_through_its_groups() -> None:
    assert (FINETUNE.name, PATH) == ("classify", "bertie finetune classify")
    assert named_command(cli, ["embed", "classify"])[1] == "bertie embed"
    assert named_command(cli, ["--version"]) == (cli, "bertie")
    assert isinstance(named_command(cli, ["client"])[0], click.Group)
