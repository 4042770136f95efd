"""An MTEB encoder: `mteb.evaluate(MtebEncoder("path/to/model"), tasks)`.

Prompts are chosen as MTEB chooses them: by task name, by task type, or by whether a text is a query or a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertie.errors import MissingExtra
from bertie.running.open import ModelLike
from bertie.tasks.embed import Embedder, EmbedderSettings, as_embedder

try:
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import get_prompt_name
except ImportError:
    raise MissingExtra("mteb>=2", "mteb", "The MTEB adapter") from None


class MtebEncoder:
    """MTEB's `EncoderProtocol` (version 2). `revision` is MTEB's word for a model's version and only goes on record."""

    def __init__(
        self,
        model_name: ModelLike | Embedder | None = None,
        revision: str | None = None,
        **settings: Unpack[EmbedderSettings],
    ) -> None:
        self.embedder = as_embedder(model_name, **settings)
        name = self.embedder.loaded.name.rstrip("/").rpartition("/")[2] or "model"
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": f"bertie/{name}", "revision": revision, "embed_dim": self.embedder.dimension}
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: object = None,
        prompt_type: object = None,
        show_progress_bar: bool | None = None,
        **other: object,
    ) -> NDArray[np.float32]:
        texts = [text for batch in inputs for text in batch["text"]]
        prompt_name = None
        if task_metadata is not None:
            prompt_name = get_prompt_name(self.embedder.prompts, task_metadata, prompt_type)
        return self.embedder.embed(texts, prompt_name=prompt_name, progress=show_progress_bar)

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        return self.embedder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        return self.embedder.similarity_pairwise(embeddings1, embeddings2)
