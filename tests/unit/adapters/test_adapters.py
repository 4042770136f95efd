"""The adapters with the real packages, where they are installed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from bertie.tasks.embed import Embedder
from sentence_models import tiny_sentence_model

TEXTS = ["good film", "a very good film", "bad film", "a very bad film"] * 3
PROMPTS = {"prompts": {"query": "question : ", "document": "text : "}}


@pytest.fixture
def embedder(tmp_path: Path) -> Embedder:
    return Embedder(tiny_sentence_model(tmp_path / "model", shared=PROMPTS))


def test_langchain_embeds_documents_and_queries_with_their_prompts(embedder: Embedder) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from bertie.adapters.langchain import BertieEmbeddings

    adapter = BertieEmbeddings(embedder)
    assert isinstance(adapter, Embeddings)
    assert adapter.embed_documents(TEXTS) == embedder.embed(TEXTS, prompt_name="document").tolist()
    assert adapter.embed_query("good") == embedder.embed("good", prompt_name="query").tolist()
    assert asyncio.run(adapter.aembed_query("good")) == adapter.embed_query("good")
    store = InMemoryVectorStore(adapter)
    store.add_texts(TEXTS[:4])
    assert len(store.similarity_search("good film", k=2)) == 2


def test_sklearn_pipelines_clone_and_learn(embedder: Embedder) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    from bertie.adapters.sklearn import TextEmbedder

    folder = str(embedder.loaded.folder)
    labels = [1, 1, 0, 0] * 3
    pipeline = make_pipeline(TextEmbedder(folder), LogisticRegression(C=1e4, max_iter=1000))
    assert pipeline.fit(TEXTS, labels).score(TEXTS, labels) == 1.0
    copy = clone(TextEmbedder(folder, truncate_dim=5))
    assert copy.get_params()["truncate_dim"] == 5
    assert copy.transform(TEXTS[:2]).shape == (2, 5)
    assert list(copy.get_feature_names_out())[:2] == ["bertie0", "bertie1"]
    search = GridSearchCV(pipeline, {"textembedder__pooling": ["mean", "cls"]}, cv=2).fit(TEXTS, labels)
    assert search.best_score_ == 1.0


def test_mteb_runs_a_task(embedder: Embedder) -> None:
    mteb = pytest.importorskip("mteb", reason="mteb is not installed")
    from mteb.models.models_protocols import EncoderProtocol
    from torch.utils.data import DataLoader

    from bertie.adapters.mteb import MtebEncoder

    encoder = MtebEncoder(embedder)
    assert isinstance(encoder, EncoderProtocol)
    loader = DataLoader([{"text": text} for text in TEXTS], batch_size=5)
    task = mteb.get_task("STS12").metadata
    found = encoder.encode(loader, task_metadata=task, hf_split="test", hf_subset="default", prompt_type=None)
    assert np.array_equal(found, embedder.embed(TEXTS))
    query = encoder.encode(
        loader, task_metadata=task, hf_split="test", hf_subset="default", prompt_type=mteb.types.PromptType.query
    )
    assert np.array_equal(query, embedder.embed(TEXTS, prompt_name="query"))
    assert encoder.similarity(found, found).shape == (12, 12)
    assert encoder.mteb_model_meta.embed_dim == embedder.dimension
