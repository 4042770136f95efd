"""What code written for sentence-transformers calls on an embedder: `encode` and the methods beside it.

Source: sentence-transformers 5.7, `SentenceTransformer.encode`. The vectors are the embedder's own (tasks/embed.py),
which says how texts become rows and rows become vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.errors import InputError
from bertie.running.open import OpenModel
from bertie.running.precision import Numbers, check_precision, quantize
from bertie.running.rows import Cutting, Row
from bertie.running.stream import Vectors, VectorStream, run_in_order, text_chunks
from bertie.running.task import TextTask

# sentence-transformers' own batch size, which people leave as it is: ours is made by tokens.
_THEIR_BATCH = 32
_TOKENIZED_AT_ONCE = 256
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class SentenceTransformerMethods(TextTask[Vectors]):
    """The methods, for an embedder that has what is named first."""

    loaded: OpenModel
    prompts: dict[str, str]
    max_length: int

    @property
    def dimension(self) -> int:
        raise NotImplementedError

    def cutting(self, *, prompt_name: str | None = None, prompt: str | None = None) -> Cutting:
        raise NotImplementedError

    def vector_stream(
        self, cutting: Cutting, *, budget: int | None = None, truncate_dim: int | None = None
    ) -> VectorStream:
        raise NotImplementedError

    def all_vectors(self, texts: list[str], vectors: VectorStream, progress: bool | None) -> Vectors:
        raise NotImplementedError

    def checked_dim(self, truncate_dim: int | None) -> int | None:
        raise NotImplementedError

    def on(self, device: torch.device | str) -> SentenceTransformerMethods:
        """The same embedder elsewhere."""
        raise NotImplementedError

    # -- theirs ------------------------------------------------------------------------------------------------------

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: torch.device | str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **other: Any,
    ) -> Any:
        """`SentenceTransformer.encode`, with its arguments.

        Batches are made by tokens; a `batch_size` below 32 bounds them further. `output_value` is
        "sentence_embedding", "token_embeddings" (a tensor `[length, hidden]` per text) or None (a dict per text).
        """
        unused = sorted(name for name, value in other.items() if value is not None and name != "task")
        if unused:
            raise InputError(f"encode() has no argument {', '.join(unused)}.", "Leave it out.")
        if batch_size < 1:
            raise InputError("{batch_size}; it must be a whole number of at least 1.", batch_size=batch_size)
        check_precision(precision or "float32")
        if device is not None and torch.device(device) != self.loaded.device:
            return self.on(device).encode(
                sentences, prompt_name, prompt, batch_size, show_progress_bar, output_value, precision,
                convert_to_numpy, convert_to_tensor, None, normalize_embeddings, truncate_dim,
            )  # fmt: skip
        shape, items = self.shaped(list(sentences) if isinstance(sentences, Iterator) else sentences)
        texts = list(items)
        cutting = self.cutting(prompt=prompt, prompt_name=prompt_name)
        budget = self.loaded.budget
        if batch_size < _THEIR_BATCH:
            budget = min(budget, batch_size * self.max_length)
        size = self.checked_dim(truncate_dim)
        found: Sequence[object] | Tensor | Numbers
        if output_value == "token_embeddings":
            found = [hidden for _, hidden in self._tokens(texts, cutting, budget)]
            return found[0] if shape == "one" else found
        if output_value not in ("sentence_embedding", None):
            raise InputError(
                "{output_value} is not known.",
                "Use 'sentence_embedding', 'token_embeddings' or None for both.",
                output_value=output_value,
            )
        stream = self.vector_stream(cutting, budget=budget, truncate_dim=size)
        array = self.all_vectors(texts, stream, show_progress_bar)
        if output_value is None:
            both = zip(self._tokens(texts, cutting, budget), array, strict=True)
            found = [_features(ids, hidden, vector) for (ids, hidden), vector in both]
            return found[0] if shape == "one" else found
        if normalize_embeddings:
            array = F.normalize(torch.from_numpy(array), p=2, dim=1).numpy()
        found = quantize(array, precision or "float32")
        if convert_to_tensor:
            found = torch.from_numpy(found).to(self.loaded.device)
        elif not convert_to_numpy:
            found = list(torch.from_numpy(found))
        return found[0] if shape == "one" else found

    def encode_query(self, sentences: str | Iterable[str], prompt_name: str | None = None, **arguments: Any) -> Any:
        """`encode` with the prompt called "query", unless another is given."""
        if prompt_name is None and arguments.get("prompt") is None:
            prompt_name = "query"
        return self.encode(sentences, prompt_name, **arguments)

    def encode_document(self, sentences: str | Iterable[str], prompt_name: str | None = None, **arguments: Any) -> Any:
        """`encode` with the model's prompt called "document", "passage" or "corpus", unless another is given.

        sentence-transformers 5.7 says the same and never comes to "passage": it gives every model an empty "document".
        """
        if prompt_name is None and arguments.get("prompt") is None:
            prompt_name = self.document_prompt_name
        return self.encode(sentences, prompt_name, **arguments)

    @property
    def document_prompt_name(self) -> str:
        """The prompt that `encode_document` uses."""
        return next((name for name in _DOCUMENT_PROMPTS if self.prompts.get(name)), "document")

    @property
    def max_seq_length(self) -> int:
        """How many tokens of a text are read, as `max_length`."""
        return self.max_length

    def get_embedding_dimension(self) -> int:
        """The length of a vector, as `dimension`."""
        return self.dimension

    get_sentence_embedding_dimension = get_embedding_dimension

    def _tokens(self, texts: Iterable[str], cutting: Cutting, budget: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        def rows() -> Iterator[Row]:
            for chunk in text_chunks(texts, _TOKENIZED_AT_ONCE):
                pieces = cutting.pieces(chunk)
                yield from (Row(ids.tolist()) for ids in np.split(pieces.ids, pieces.begins[1:]))

        def run(batch: list[Row]) -> list[tuple[Sequence[int], Tensor]]:
            hidden = OpenModel.split(self.loaded.run(batch).last_hidden_state, batch)
            return [(row.ids, one.clone()) for row, one in zip(batch, hidden, strict=True)]

        return run_in_order(rows(), run, budget=budget)


def _features(ids: Sequence[int], hidden: Tensor, vector: Vectors) -> dict[str, Tensor]:
    input_ids = torch.tensor(ids, device=hidden.device)
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "token_embeddings": hidden,
        "sentence_embedding": torch.from_numpy(vector).to(hidden.device),
    }
