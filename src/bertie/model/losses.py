"""The losses of the heads. Each averages over what is labelled; a batch with nothing labelled has loss 0, not NaN."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.errors import IdOutOfRange, InputError
from bertie.model.inputs import is_tensor

IGNORED = -100


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    num_items: Tensor | int | None = None,
) -> Tensor:
    """`[rows, classes]` and `[rows]` → the mean over the rows whose label is not −100.

    With `num_items` the sum is divided by that instead: the rows here are then part of a larger batch.
    """
    _check_options(logits.shape[-1], class_weights, smoothing)
    weights = None if class_weights is None else class_weights.to(logits)
    total = F.cross_entropy(
        logits, labels, weight=weights, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )
    if num_items is not None:
        return total / (num_items.to(total.device) if isinstance(num_items, Tensor) else num_items)
    kept = labels != IGNORED
    if weights is None:
        return total / kept.sum().clamp(min=1)
    mass = (weights[labels.clamp(min=0)] * kept).sum()
    return total / torch.where(mass > 0, mass, 1.0)


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    problem_type: str | None,
    *,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    check_values: bool = True,
) -> Tensor:
    """Regression (MSE), one label (cross-entropy) or several (BCE), as `problem_type` says or the labels imply."""
    num_labels = logits.shape[-1]
    is_tensor("labels", labels)
    _check_options(num_labels, class_weights, smoothing)
    if problem_type is None:
        if num_labels == 1:
            problem_type = "regression"
        else:
            floating = labels.is_floating_point() or labels.dtype == torch.bool
            problem_type = "multi_label_classification" if floating else "single_label_classification"
    if problem_type == "regression":
        if not _fits(labels, logits.shape):
            raise InputError(f"labels has shape {list(labels.shape)}; for regression it must be {list(logits.shape)}.")
        return F.mse_loss(logits.flatten(), labels.flatten().to(logits.dtype))
    if problem_type == "multi_label_classification":
        if labels.shape != logits.shape:
            raise InputError(
                f"labels has shape {list(labels.shape)}; with several labels per text it must be {list(logits.shape)}, "
                "1.0 where a label applies."
            )
        targets = labels.to(logits.dtype)
        if smoothing:
            targets = targets * (1 - smoothing) + 0.5 * smoothing
        return F.binary_cross_entropy_with_logits(logits, targets, weight=class_weights)
    labels = class_labels("labels", labels, logits.shape[:-1], num_labels, check_values=check_values)
    return cross_entropy(logits, labels, class_weights=class_weights, smoothing=smoothing)


def class_labels(
    name: str, labels: Tensor, shape: torch.Size | tuple[int, ...], num_classes: int, *, check_values: bool
) -> Tensor:
    """Labels flattened to `[rows]`, refused unless there is one per row and each names a class or is −100."""
    is_tensor(name, labels)
    if not _fits(labels, shape):
        raise InputError(f"{name} has shape {list(labels.shape)}; it must be {list(shape)}.")
    if labels.is_floating_point():
        raise InputError(f"{name} has dtype {labels.dtype}; class labels are whole numbers (torch.long).")
    if check_values and bool((bad := (labels != IGNORED) & ((labels < 0) | (labels >= num_classes))).any()):
        where = bad.nonzero()[0].tolist()
        accepted = f"0 to {num_classes - 1} or {IGNORED} (ignored)"
        raise IdOutOfRange(
            f"{name} holds {int(labels[tuple(where)])} at {where}; it must be {accepted}.",
            None if name != "labels" else f"The head has {num_classes} classes.",
        )
    return labels.flatten().long()


def span_loss(logits: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
    """`[texts, length]` and `[texts]` → cross-entropy over the positions, leaving out those outside the window.

    `lengths` are those of the texts themselves, where they differ.
    """
    is_tensor("start_positions and end_positions", positions)
    if positions.is_floating_point():
        raise InputError(f"Answer positions have dtype {positions.dtype}; they are whole numbers (torch.long).")
    positions = positions.flatten().long()
    if len(positions) != len(logits):
        raise InputError(f"There are {len(positions)} answer positions for {len(logits)} texts.")
    inside = (positions >= 0) & (positions < (logits.shape[1] if lengths is None else lengths))
    return cross_entropy(logits, positions.masked_fill(~inside, IGNORED))


def yes_or_no_loss(logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    """One question to a token, 1 for yes: the mean over the tokens that the mask does not hide."""
    is_tensor("labels", labels)
    if labels.shape != logits.shape:
        raise InputError(f"labels has shape {list(labels.shape)}; it must be {list(logits.shape)}: 1 is yes, 0 no.")
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
    kept = torch.ones_like(losses) if mask is None else (mask == 1).to(losses.dtype)
    return (losses * kept).sum() / kept.sum().clamp(min=1)


def _fits(labels: Tensor, shape: torch.Size | tuple[int, ...]) -> bool:
    """Whether labels are of this shape, but for sizes of 1, or flat already. Turned round is another thing."""
    sizes, wanted = ([size for size in given if size != 1] for given in (labels.shape, shape))
    return sizes == wanted or (labels.dim() == 1 and len(labels) == math.prod(shape))


def _check_options(num_classes: int, class_weights: Tensor | None, smoothing: float) -> None:
    if class_weights is not None:
        is_tensor("class_weights", class_weights)
        if list(class_weights.shape) != [num_classes]:
            raise InputError(f"class_weights has shape {list(class_weights.shape)}; it must be [{num_classes}].")
    if not 0 <= smoothing <= 1:
        raise InputError("{smoothing:is} it must be a share, 0 to 1.", smoothing=smoothing)
