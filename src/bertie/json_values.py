"""Values out of files that nobody has checked: asked for by kind, they come, or None comes (of an object: no fields).

>>> given = {"names": ["a", 1], "size": "large"}
>>> items(given["names"]), fields(given["size"]), text(given["size"]), texts(given["names"])
(['a', 1], {}, 'large', None)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Json = Mapping[str, "Json"] | list["Json"] | str | int | float | bool | None


def parsed(source: str | bytes, pairs: Callable[[list[tuple[str, object]]], object] | None = None) -> object:
    """What JSON says; a `ValueError` says why it is none. `pairs` makes an object of its members."""
    try:
        return json.loads(source, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def members(value: object) -> dict[str, Any] | None:
    """An object's values by name; None for what is no object."""
    return value if isinstance(value, dict) else None


def fields(value: object) -> Mapping[str, object]:
    """An object's values by name; nothing for what is no object."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[object] | None:
    """A list's items; None for what is no list."""
    return list(value) if isinstance(value, list | tuple) else None


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def texts(value: object) -> list[str] | None:
    """A list of nothing but texts; None for anything else."""
    given = items(value)
    found = [each for each in given or () if isinstance(each, str)]
    return found if given is not None and len(found) == len(given) else None


def whole(value: object) -> int | None:
    """A whole number; true and false are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
