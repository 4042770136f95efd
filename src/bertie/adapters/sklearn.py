"""A scikit-learn transformer: texts in, a matrix out, for pipelines and searches over settings.

make_pipeline(TextEmbedder(), LogisticRegression()).fit(texts, labels)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertie.errors import MissingExtra
from bertie.running.open import ModelLike
from bertie.tasks.embed import Embedder, as_embedder

try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn", "The scikit-learn adapter") from None


class TextEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns nothing: `fit` only opens the model. The settings are those of `Embedder`."""

    def __init__(
        self,
        model: ModelLike | Embedder | None = None,
        *,
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        long: str = "truncate",
    ) -> None:
        # scikit-learn copies an estimator by the very values it was given, so they are kept as they are.
        self.model = model
        self.pooling = pooling
        self.normalize = normalize
        self.truncate_dim = truncate_dim
        self.prompt_name = prompt_name
        self.long = long

    def fit(self, X: Iterable[str], y: object = None) -> TextEmbedder:  # noqa: N803  (scikit-learn's name)
        self.embedder_ = as_embedder(
            self.model, pooling=self.pooling, normalize=self.normalize, truncate_dim=self.truncate_dim
        )
        return self

    def transform(self, X: Iterable[str]) -> NDArray[np.float32]:  # noqa: N803
        embedder = getattr(self, "embedder_", None) or self.fit(X).embedder_
        return embedder.embed(list(X), prompt_name=self.prompt_name, long=self.long)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        return np.array([f"bertie{number}" for number in range(self.embedder_.dimension)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True  # there is nothing to learn
