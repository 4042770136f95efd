"""Which model is meant when none is named.

all-MiniLM-L6-v2 embeds, and is what fine-tuning begins with; a package of its own carries it, and where that is not
installed it comes from the hub. bertie-mini, which `bertie pretrain` made, is for fill, next_sentence and features; it
is inside this package. What happens when one of
them is named is in `bertie.checkpoint.shipped`.
"""

from __future__ import annotations

from pathlib import Path

from bertie.checkpoint.shipped import BESIDE, HOW_TO_INSTALL, installed, on_hub, shipped_folder
from bertie.errors import CheckpointError, CheckpointNotFound

LANGUAGE_MODEL = Path(__file__).parent / "shipped" / "bertie-mini"


def default_embedding_model() -> str:
    """The folder of all-MiniLM-L6-v2, a real 6-layer BERT: of the package that carries it, or fetched from the hub."""
    if BESIDE in installed():
        return str(shipped_folder(BESIDE))
    from bertie.checkpoint import hub

    try:
        return str(hub.fetch(on_hub(BESIDE), with_companions=True))
    except CheckpointError as error:
        raise CheckpointNotFound(
            f"No model was named; the default, {BESIDE}, is not installed, and the hub did not give it: {error.cause}",
            f"Install it with: {HOW_TO_INSTALL}, or name a model: a folder or a hub name.",
        ) from None


def default_language_model() -> str:
    """The folder of bertie-mini, a small BERT with both heads of pretraining, in this package."""
    if not (LANGUAGE_MODEL / "model.safetensors").is_file():
        raise CheckpointNotFound(
            "No model was named, and the default one (bertie-mini) is not in this installation.",
            "Install bertie again, or name a model: a folder or a hub name, such as bert-base-uncased.",
        )
    return str(LANGUAGE_MODEL)
