"""Input checks: what a kernel would crash on, or quietly make nonsense of, is refused first, with the numbers in it.

Checking values costs a look at the data (on a GPU, a wait for it); `model.check_inputs = False` turns those off. Shapes
are always checked. While a model is traced, exported or compiled, nothing may depend on the example's values: they are
not those of later calls.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from bertie.errors import IdOutOfRange, InputError
from bertie.ops.tracing import records_sizes


def one_of_ids_or_embeds(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Exactly one of the two; gives it back."""
    if input_ids is not None and inputs_embeds is not None:
        raise InputError("Both input_ids and inputs_embeds were given.", "Give exactly one of them.")
    if input_ids is not None:
        are_ids("input_ids", input_ids)
        return input_ids
    if inputs_embeds is not None:
        is_tensor("inputs_embeds", inputs_embeds)
        return inputs_embeds
    raise InputError("Neither input_ids nor inputs_embeds was given.", "Give exactly one of them.")


def is_tensor(name: str, given: object) -> None:
    if not isinstance(given, Tensor | Proxy):  # torch.fx has proxies in the place of tensors
        raise InputError(f"{name} is of type {type(given).__name__}; it takes a tensor: torch.tensor({name}).")


def are_ids(name: str, given: Tensor) -> None:
    """A tensor of whole numbers that embeddings can look up."""
    is_tensor(name, given)
    if isinstance(given, Tensor) and given.dtype not in (torch.long, torch.int):
        raise InputError(f"{name} has dtype {given.dtype}; it takes whole numbers, torch.long: {name}.long().")


def same_dtype(name: str, given: Tensor, wanted: torch.dtype) -> None:
    """States in the model's own precision; under autocast they need not be."""
    is_tensor(name, given)
    if given.dtype != wanted and not torch.is_autocast_enabled(given.device.type):
        raise InputError(f"{name} has dtype {given.dtype}; the model is in {wanted}: {name}.to({wanted}).")


def nothing_more(model: object, given: dict[str, Any]) -> None:
    """Refuse what a forward with open keywords was given and has no use for, as Python would."""
    if not isinstance(given, Proxy) and given:
        raise TypeError(f"{type(model).__name__}.forward() got an unexpected keyword argument {next(iter(given))!r}")


def is_whole(given: object) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool)


def whole_number(name: str, given: Any, least: int = 1) -> None:
    if not is_whole(given) or given < least:
        raise InputError(f"{name} is {given!r}; it takes a whole number of at least {least}.")


def ids_below(name: str, ids: Tensor, limit: int, limit_name: str) -> None:
    """Every id in 0 … limit−1."""
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= limit:
        wrong = low if low < 0 else high
        where = (ids == wrong).nonzero()[0].tolist()
        raise IdOutOfRange(
            f"{name} holds {wrong} at {where}; it takes 0 to {limit - 1} ({limit_name} is {limit}).",
            "Ids come from the tokenizer of the same checkpoint; a vocabulary of another size gives ids like this."
            if name == "input_ids"
            else None,
        )


def shape_like(name: str, tensor: Tensor | None, wanted: tuple[int, ...], *, batch_may_be_one: bool = False) -> None:
    if tensor is None or tuple(tensor.shape) == wanted:
        return
    if batch_may_be_one and tuple(tensor.shape) in ((1, *wanted[1:]), wanted[1:]):
        return
    raise InputError(f"{name} has shape {list(tensor.shape)}; it takes {list(wanted)}, like the input.")


def fits_positions(length: int, past: int, max_positions: int) -> None:
    if not records_sizes() and length + past > max_positions:
        cached = f" after {past} cached ones" if past else ""
        raise InputError(
            f"The input is {length} tokens long{cached}; the model has {max_positions} positions "
            "(config.max_position_embeddings).",
            f"Truncate or window the text, or give the model more positions: "
            f"model.resize_position_embeddings({length + past}).",
        )


def labels_in_range(name: str, labels: Tensor, num_classes: int, *, ignored: int | None = -100) -> None:
    """Class labels 0 … num_classes−1, or the one value that is ignored."""
    if labels.is_floating_point():
        raise InputError(f"{name} has dtype {labels.dtype}; class labels are whole numbers (torch.long).")
    bad = (labels < 0) | (labels >= num_classes)
    if ignored is not None:
        bad &= labels != ignored
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        also = f" or {ignored} (ignored)" if ignored is not None else ""
        raise IdOutOfRange(
            f"{name} holds {int(labels[tuple(where)])} at {where}; it takes 0 to {num_classes - 1}{also}.",
            None if name != "labels" else f"The head has {num_classes} classes.",
        )
