"""Tasks: texts in, typed answers out; each is one file.

The path of one text: a task turns it into rows (running/rows.py), which go through the model in batches of many texts
(running/stream.py), and turns what the model says of them into an answer (`RowTask` in running/task.py).

A module has the class that holds a model that is ready, and the function that is one call of it. Modules are imported
when they are first used (`bertie.tasks.tag`), and torch with them; the classes below have short names here, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertie.tasks.answer import Answerer as Answerer
    from bertie.tasks.classify import Classifier as Classifier
    from bertie.tasks.embed import Embedder as Embedder
    from bertie.tasks.features import FeatureExtractor as FeatureExtractor
    from bertie.tasks.fill import MaskFiller as MaskFiller
    from bertie.tasks.generate import TextGenerator as TextGenerator
    from bertie.tasks.next_sentence import NextSentencePredictor as NextSentencePredictor
    from bertie.tasks.represent import Representer as Representer
    from bertie.tasks.rerank import Reranker as Reranker
    from bertie.tasks.similarity import score_matrix as score_matrix
    from bertie.tasks.similarity import score_pairs as score_pairs
    from bertie.tasks.tag import Tagger as Tagger
    from bertie.tasks.zero_shot import ZeroShotClassifier as ZeroShotClassifier

_WHERE = {
    "Answerer": "answer",
    "Classifier": "classify",
    "Embedder": "embed",
    "FeatureExtractor": "features",
    "MaskFiller": "fill",
    "NextSentencePredictor": "next_sentence",
    "Representer": "represent",
    "Reranker": "rerank",
    "Tagger": "tag",
    "TextGenerator": "generate",
    "ZeroShotClassifier": "zero_shot",
    "score_matrix": "similarity",
    "score_pairs": "similarity",
}


def __getattr__(name: str) -> object:
    where = _WHERE.get(name, name)
    try:
        module = import_module(f"bertie.tasks.{where}")
    except ModuleNotFoundError as error:
        if error.name != f"bertie.tasks.{where}":
            raise
        raise AttributeError(f"module 'bertie.tasks' has no attribute {name!r}") from None
    globals()[name] = found = getattr(module, name) if name in _WHERE else module
    return found
