"""The public names, by the page of the reference they are on, and which of them lack an explanation.

Public is what `bertie` exports, and what the modules below export for those who use a part of it. A method counts if
one of our classes defines it, not if it comes from torch.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from themes import THEMES as THEMES
from themes import Theme as Theme

# Methods that other parts of Bertie call on a task or a session, and that no user needs.
INTERNAL = {
    "all_vectors", "alone", "answered", "checked", "checked_dim", "counted", "cutting", "decode", "each_checked",
    "fault", "finished", "from_file", "from_table", "is_one", "is_cut", "paired", "plan", "pooled", "rounds", "rows",
    "run", "shaped", "tokenized", "vector_stream", "on", "make_head", "judge", "check_layers", "check_place",
    "check_row", "map_bytes", "need", "thumbnails", "word_vector", "draw", "last_state", "keep_neurons", "reorder",
    "check", "cuts", "start", "stream", "encode_flat", "encode_ids", "encode_whole", "vectors",
}  # fmt: skip


def resolve(name: str) -> tuple[str, Any]:
    """(what a user writes, the object)."""
    module, colon, attribute = name.rpartition(":")
    path = f"bertie.{module}" if colon else "bertie"
    thing = getattr(importlib.import_module(path), attribute)
    # bertie.explore, and bertie.bulk once that room has been imported, are modules that can be called.
    return f"{path}.{attribute}", thing.__call__ if inspect.ismodule(thing) else thing


def is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "bertie"


def methods(kind: type, documented: set[Any]) -> Iterator[tuple[str, Any, str]]:
    """(name, function, how it is written) of a class's public methods that no class before it has shown."""
    # A method that has two names is shown by the one without underscores: embed, not __call__.
    for name, value in sorted(inspect.getmembers_static(kind), key=lambda member: member[0].startswith("_")):
        if name in INTERNAL or (name.startswith("_") and name != "__call__"):
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, property):
            if is_ours(value.fget) and value.fget not in documented:
                documented.add(value.fget)
                yield name, value, "property"
        elif inspect.isfunction(function) and is_ours(function) and function not in documented:
            documented.add(function)
            sort = "class method" if isinstance(value, classmethod) else "static method"
            yield name, function, sort if function is not value else "method"


def parameters(function: Any) -> list[inspect.Parameter]:
    """A function's own, without self and without those that take whatever else comes."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in found if each.name not in ("self", "cls") and each.kind not in kinds]


def doc(thing: Any) -> str:
    """The docstring that we wrote for it; for a class that has none, that of the class of ours it builds on."""
    if not inspect.isclass(thing):
        return inspect.getdoc(thing) or ""
    for kind in thing.__mro__:
        written = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
        if is_ours(kind) and written and not written.startswith(f"{kind.__name__}("):  # which dataclasses write
            return written
    return ""


@cache
def field_comments(kind: type) -> dict[str, str]:
    """What the comments beside the fields of a dataclass say of them."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if is_ours(each) and is_dataclass(each):
            source = inspect.getsource(each)
            found |= dict(re.findall(r"^    (\w+): [^#\n]*# *(.+)$", source, re.MULTILINE))
    return found


def explained(name: str, text: str) -> bool:
    """Whether a text says something about a parameter: it names it as code."""
    return re.search(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`", text) is not None
