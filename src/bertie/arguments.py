"""Checks of single arguments, once for every room: what a setting takes, and the error that says so.

Each function returns the value it was given, so that a check can stand where the value is used. An error carries the
setting, its value and what is accepted (errors.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from bertie.errors import BertieError, InputError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")


def one_of(name: str, value: T, known: Collection[T], error: type[BertieError] = InputError) -> T:
    """One of a few; the error lists them."""
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise error(f"{{{name}}} is not known.", f"Use one of {listed}.", accepted=tuple(known), **{name: value})
    return value


def is_whole(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Whether this is a whole number (True and False are none) inside its bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_path(value: object) -> TypeIs[str | os.PathLike[str]]:
    """Whether this names a file or folder, or a checkpoint."""
    return isinstance(value, str | os.PathLike)


def one_or_several(value: str | Iterable[str]) -> tuple[str, ...]:
    """Names, where a single one may be given as it is."""
    return (value,) if isinstance(value, str) else tuple(value)


def whole_number(
    name: str, value: object, least: int = 1, *, or_none: str | None = None, error: type[BertieError] = InputError
) -> None:
    """A whole number of at least `least`, or None where that means something (`or_none` says what)."""
    if value is None and or_none is not None:
        return
    if not is_whole(value, least):
        extra = "" if or_none is None else f", or None for {or_none}"
        raise error(f"{{{name}:is}} it must be a whole number of at least {least}{extra}.", **{name: value})


def number(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    finite: bool = True,
    error: type[BertieError] = InputError,
) -> float:
    """A number inside its bounds; NaN is in none."""
    infinite = value in (math.inf, -math.inf)  # whole numbers may be too large for math.isinf
    fits = (
        (not finite or not infinite)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
        and value == value  # not NaN
    )
    if not fits:
        bounds = [
            f"{words} {bound}"
            for words, bound in (("at least", least), ("above", above), ("at most", most), ("less than", below))
            if bound is not None
        ]
        wanted = " and ".join(bounds) or "a number"
        if finite and infinite:
            wanted = "a finite number"
        raise error(f"{{{name}:is}} it must be {wanted}.", **{name: value})
    return value
