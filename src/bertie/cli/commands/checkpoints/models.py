"""`bertie models`: the models on this machine, and a suggestion for each task."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from bertie.checkpoint.shipped import SHIPPED, installed, shipped_folder
from bertie.cli.support.show import console, table
from bertie.config.relatives import MODEL_TYPES

# What the end of a class's name says that a model is for.
_TASKS = {
    "ForSequenceClassification": "classify, rerank",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
    "ForMultipleChoice": "choose",
    "ForMaskedLM": "fill, embed",
    "ForPreTraining": "fill, next, embed",
    "ForNextSentencePrediction": "next",
    "LMHeadModel": "generate, fill",
    "ForCausalLM": "generate",
    "Model": "embed, features",
}
# One suggestion for each task; models that do not come with Bertie are on the hub.
SUGGESTED = {
    "embed": ("all-MiniLM-L6-v2", "small and good; the default"),
    "embed, many languages": ("intfloat/multilingual-e5-small", "about 100 languages"),
    "rerank": ("cross-encoder/ms-marco-MiniLM-L6-v2", "for search results"),
    "classify": ("distilbert-base-uncased-finetuned-sst-2-english", "positive or negative"),
    "classify --labels": ("MoritzLaurer/multilingual-MiniLMv2-L6-mnli-xnli", "your own labels, without training"),
    "tag": ("dslim/bert-base-NER", "people, places, organisations"),
    "answer": ("deepset/bert-base-cased-squad2", "knows when there is no answer"),
    "fill, next, features": ("bertie-mini", "tiny, comes with Bertie; the default"),
    "fill, larger": ("bert-base-uncased", "Google's original BERT"),
}


@click.command("models", epilog="\b\nExamples:\n  bertie models\n  bertie models --json\n  bertie models .")
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(folders: tuple[str, ...], as_json: bool) -> None:
    """List the models on this machine: those that came with Bertie, in the hub's cache, and below each FOLDER."""
    found = [*_shipped(), *_cached(), *(one for folder in folders for one in _below(Path(folder)))]
    if as_json:
        suggested = [{"task": task, "model": model, "note": note} for task, (model, note) in SUGGESTED.items()]
        click.echo(json.dumps({"models": found, "suggested": suggested}, indent=2, ensure_ascii=False))
        return
    screen = console()
    here = table("model", "for", "size", words=True)
    for one in found:
        here.add_row(one["model"], one["for"], one["size"])
    screen.print(here)
    names = {one["model"] for one in found}
    if missing := {task: entry for task, entry in SUGGESTED.items() if entry[0] not in names}:
        screen.print("\nSuggested models on the hub, downloaded when first used (-m NAME):")
        widest = max(len(model) for model, _ in missing.values())
        for task, (model, note) in missing.items():
            # Names are copied from here, so no line is folded in the middle of one.
            screen.print(f"  {task:<22} [bold]{model:<{widest}}[/]  [dim]{note}[/]", soft_wrap=True, highlight=False)


def _shipped() -> Iterator[dict[str, str]]:
    for name in SHIPPED:
        if name in installed():
            yield from _described(name, shipped_folder(name))


def _cached() -> Iterator[dict[str, str]]:
    """Models in the hub's cache: the newest snapshot of each."""
    from huggingface_hub import constants

    for repository in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        snapshots = sorted(repository.glob("snapshots/*/config.json"), key=os.path.getmtime)
        if snapshots:
            name = repository.name.removeprefix("models--").replace("--", "/")
            yield from _described(name, snapshots[-1].parent)


def _below(folder: Path) -> Iterator[dict[str, str]]:
    for config in sorted(folder.rglob("config.json")):
        yield from _described(str(config.parent), config.parent)


def _described(name: str, folder: Path) -> Iterator[dict[str, str]]:
    """What a folder with a config.json holds; nothing where it is no BERT or has no weights."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    weights = [file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern)]
    if not isinstance(config, dict) or config.get("model_type", "bert") not in MODEL_TYPES or not weights:
        return
    classes = [str(one) for one in config.get("architectures") or ["Model"]]
    purpose = next((tasks for end, tasks in _TASKS.items() if classes[0].endswith(end)), "embed, features")
    if (folder / "modules.json").is_file():
        purpose = "embed"
    size = sum(file.stat().st_size for file in weights) / 1e6
    yield {"model": name, "for": purpose, "size": f"{size:,.0f} MB", "folder": str(folder)}
