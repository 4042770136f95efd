"""How similar texts or vectors are: cosine, dot product, or the negative of a distance; larger is more similar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bertie.data.lists import is_table, listed
from bertie.errors import InputError
from bertie.running.sentence_folder import SIMILARITIES
from bertie.running.task import checked_text

if TYPE_CHECKING:
    from bertie.running.open import ModelLike
    from bertie.tasks.embed import Embedder, EmbedderSettings

_ROWS_AT_ONCE = 64  # of a distance matrix, whose differences take `dimension` times its room


@overload
def similarity(  # type: ignore[overload-overlap]  # two texts, which an Iterable[str] includes, have one score
    a: str,
    b: str,
    *,
    model: ModelLike | Embedder | None = None,
    function: str | None = None,
    long: str = "truncate",
    progress: bool | None = None,
    **settings: Unpack[EmbedderSettings],
) -> float: ...


@overload
def similarity(
    a: str | Iterable[str] | ArrayLike,
    b: str | Iterable[str] | ArrayLike | None = None,
    *,
    model: ModelLike | Embedder | None = None,
    function: str | None = None,
    long: str = "truncate",
    progress: bool | None = None,
    **settings: Unpack[EmbedderSettings],
) -> NDArray[np.float32]: ...


def similarity(
    a: str | Iterable[str] | ArrayLike,
    b: str | Iterable[str] | ArrayLike | None = None,
    *,
    model: ModelLike | Embedder | None = None,
    function: str | None = None,
    long: str = "truncate",
    progress: bool | None = None,
    **settings: Unpack[EmbedderSettings],
) -> float | NDArray[np.float32]:
    """How similar texts (or vectors) are: one number for two texts, and a matrix for lists.

    Scores of lists are `[len(a), len(b)]`; without `b`, `a` is compared with itself. A single text together with a list
    counts as a list of one.

    - `a`, `b`: a text, several texts, or vectors `[n, d]`.
    - `model`: a folder, a hub name, an `Embedder` or a model object; by default all-MiniLM-L6-v2.
    - `function`: "cosine", "dot", "euclidean" or "manhattan"; by default the one the model was trained for, or cosine.
    - `long`: what happens to texts that are too long, as in `embed`.
    - `progress`: True shows a progress bar, False hides it; by default it is shown on a terminal and in notebooks.
    - `settings`: those of `Embedder`: `tokenizer`, `device`, `dtype`, `pooling`, `normalize`, `truncate_dim`, …

    >>> similarity([[1.0, 0.0]], [[2.0, 0.0], [0.0, 3.0]]).tolist()
    [[1.0, 0.0]]
    """
    check_function(function)
    if a is None:
        checked_text(a, "The text")
    left, right = _read(a), None if b is None else _read(b)
    embedder = None
    if any(type(side) is list and side for side in (left, right)):
        from bertie.tasks.embed import as_embedder  # which scores its own vectors with what is here

        embedder = as_embedder(model, **settings)
        function = function or embedder.similarity_fn_name

    def vectors(side: list[str] | NDArray[np.float32]) -> NDArray[np.float32]:
        match side:
            case list() if embedder is not None and side:
                return embedder.embed(side, long=long, progress=progress)
            case list():
                return np.zeros((0, 0), dtype=np.float32)
        return side

    first = vectors(left)
    second = first if right is None else vectors(right)
    if not len(first) or not len(second):
        return np.zeros((len(first), len(second)), dtype=np.float32)
    scores = score_matrix(first, second, function or "cosine")
    return float(scores[0, 0]) if isinstance(a, str) and isinstance(b, str) else scores


def check_function(function: str | None) -> None:
    if function is not None and function not in SIMILARITIES:
        raise InputError(f"There is no similarity {function!r}.", f"Use one of {', '.join(SIMILARITIES)}.")


def score_matrix(a: ArrayLike, b: ArrayLike, function: str = "cosine") -> NDArray[np.float32]:
    """Scores `[n, m]` of vectors `a` `[n, d]` and `b` `[m, d]`, by `function` (as in `similarity`).

    >>> score_matrix([[1.0, 0.0]], [[2.0, 0.0], [0.0, 3.0]]).tolist()
    [[1.0, 0.0]]
    """
    left, right = _compared(a, b, function)
    if function in ("cosine", "dot"):
        return left @ right.T
    order = 2 if function == "euclidean" else 1
    scores = np.empty((len(left), len(right)), dtype=np.float32)
    for start in range(0, len(left), _ROWS_AT_ONCE):
        for column in range(0, len(right), _ROWS_AT_ONCE):
            rows, columns = slice(start, start + _ROWS_AT_ONCE), slice(column, column + _ROWS_AT_ONCE)
            scores[rows, columns] = -np.linalg.norm(left[rows, None] - right[None, columns], ord=order, axis=2)
    return scores


def score_pairs(a: ArrayLike, b: ArrayLike, function: str = "cosine") -> NDArray[np.float32]:
    """Scores `[n]` of the vectors `a` and `b`, two lists of one length, pair by pair, by `function`."""
    left, right = _compared(a, b, function)
    if len(left) != len(right):
        raise InputError(f"Pairs need lists of one length; these have {len(left)} and {len(right)} vectors.")
    if function in ("cosine", "dot"):
        products: NDArray[np.float32] = (left * right).sum(axis=1)
        return products
    distances: NDArray[np.float32] = np.linalg.norm(left - right, ord=2 if function == "euclidean" else 1, axis=1)
    return -distances


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of unit length; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return scaled


def _read(value: object) -> list[str] | NDArray[np.float32]:
    """A list of texts, from a text or any collection of them; or vectors, as they are."""
    match value:
        case str():
            return [value]
        case list() | tuple():
            items = list(value)
        case torch.Tensor():
            return _matrix(value)
        case _ if getattr(getattr(value, "dtype", None), "kind", "O") in "biuf":
            return _matrix(value)
        case _ if isinstance(value, Iterable) or is_table(value):
            items = listed(value)
        case _:
            return _matrix(value)
    # A missing text is the embedder's to refuse, by its number.
    return items if all(item is None or isinstance(item, str) for item in items) else _matrix(items)


def _matrix(value: object) -> NDArray[np.float32]:
    try:
        given = value.detach().float().cpu() if isinstance(value, torch.Tensor) else value
        array = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "Similarity takes texts or vectors of one length; this is neither (or a mixture).",
            "Give a list of strings, or an array [n, dimension].",
        ) from None
    if array.ndim == 1 and array.size:
        array = array[None]
    if array.ndim != 2:
        raise InputError(f"Vectors must be [n, dimension]; these are {list(array.shape)}.")
    return array


def _compared(a: ArrayLike, b: ArrayLike, function: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both as `[n, d]`, of unit length where the function is cosine."""
    check_function(function)
    left, right = _matrix(a), _matrix(b)
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"Vectors of {left.shape[1]} and of {right.shape[1]} numbers cannot be compared.",
            "Embed both with the same model and the same truncate_dim.",
        )
    return (unit(left), unit(right)) if function == "cosine" else (left, right)
