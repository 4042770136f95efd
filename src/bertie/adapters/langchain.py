"""LangChain's `Embeddings`, for its vector stores and chains.

store = InMemoryVectorStore(BertieEmbeddings("path/to/model"))
"""

from __future__ import annotations

from typing import Unpack

from bertie.errors import MissingExtra
from bertie.running.open import ModelLike
from bertie.tasks.embed import Embedder, EmbedderSettings, as_embedder

try:
    from langchain_core.embeddings import Embeddings
except ImportError:
    raise MissingExtra("langchain-core", "langchain", "The LangChain adapter") from None


class BertieEmbeddings(Embeddings):  # type: ignore[misc, unused-ignore]
    """Documents get the model's prompt for documents, queries its prompt for queries. `settings` are `Embedder`'s."""

    def __init__(
        self, model: ModelLike | Embedder | None = None, *, long: str = "truncate", **settings: Unpack[EmbedderSettings]
    ) -> None:
        self.embedder = as_embedder(model, **settings)
        self.long = long

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        name = self.embedder.document_prompt_name
        vectors: list[list[float]] = self.embedder.embed(list(texts), prompt_name=name, long=self.long).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self.embedder.embed(text, prompt_name="query", long=self.long).tolist()
        return vector
