"""The reference is whole: every public name is on a page, documented, and has an example; every parameter is explained.

tests/system/test_reference_examples.py runs the examples.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bertie

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "site"))

from example_cells import examples
from glossary import GLOSSARY, explanation
from public import doc, explained, field_comments, is_ours, methods, parameters, resolve
from themes import THEMES, Theme


def functions() -> Iterator[tuple[str, Any]]:
    for theme in THEMES:
        for name in theme.names:
            path, thing = resolve(name)
            if callable(thing) and not inspect.isclass(thing):
                yield path, thing


def classes() -> Iterator[tuple[str, type]]:
    for theme in THEMES:
        for name in theme.names:
            path, thing = resolve(name)
            if inspect.isclass(thing):
                yield path, thing


def test_every_exported_name_is_on_a_page() -> None:
    listed = {name for theme in THEMES for name in theme.names}
    assert set(bertie.__all__) - {"__version__"} <= listed
    for module in ("explore", "client", "training", "bulk"):
        exported = sys.modules[f"bertie.{module}"].__all__ if f"bertie.{module}" in sys.modules else []
        assert {f"{module}:{name}" for name in exported} - listed <= {
            "client:Client", "client:AsyncClient", "bulk:bulk",
        }, "exported by bertie, too"  # fmt: skip


def test_every_public_name_has_a_docstring() -> None:
    without = [path for path, function in functions() if not doc(function)]
    seen: set[Any] = set()
    for path, kind in classes():
        if not doc(kind):
            without.append(path)
        without += [f"{path}.{name}" for name, member, _ in methods(kind, seen) if not doc(member)]
    assert without == []


def test_help_explains_every_parameter_of_a_function() -> None:
    """In its own docstring, which is what help() shows."""
    without = [
        f"{path}({each.name})"
        for path, function in functions()
        for each in parameters(function)
        if not explained(each.name, doc(function))
    ]
    assert without == []


def test_the_reference_explains_every_parameter_of_a_class_and_its_methods() -> None:
    """In a docstring of it or its class, in the comment beside a field, or in the glossary."""
    without = []
    seen: set[Any] = set()
    for path, kind in classes():
        about = " ".join([*(doc(each) for each in kind.__mro__ if is_ours(each)), inspect.getdoc(kind.__init__) or ""])
        called = [] if issubclass(kind, BaseException) else [(kind.__name__, kind, about)]
        for name, function, sort in methods(kind, seen):
            if sort != "property":
                called.append((f"{kind.__name__}.{name}", function, f"{doc(function)} {about}"))
        for where, function, text in called:
            for each in parameters(function):
                said = explained(each.name, text) or explanation(where, each.name)
                if not (said or each.name in field_comments(kind)):
                    without.append(f"{path}: {where}({each.name})")
    assert without == []


def test_the_glossary_explains_nothing_that_does_not_exist() -> None:
    names = {each.name for _, function in functions() for each in parameters(function)}
    seen: set[Any] = set()
    for _, kind in classes():
        names |= {each.name for each in parameters(kind)}
        names |= {
            each.name
            for _, function, sort in methods(kind, seen)
            if sort != "property"
            for each in parameters(function)
        }
    assert {entry.rpartition(".")[2] for entry in GLOSSARY} <= names


def test_every_parameter_and_every_answer_of_a_function_has_a_type() -> None:
    empty = inspect.Parameter.empty
    without = []
    for path, function in functions():
        without += [f"{path}({each.name})" for each in parameters(function) if each.annotation is empty]
        if inspect.signature(function).return_annotation is empty:
            without.append(f"{path}() ->")
    seen: set[Any] = set()
    for path, kind in classes():
        for name, function, sort in methods(kind, seen):
            if sort != "property":
                without += [f"{path}.{name}({each.name})" for each in parameters(function) if each.annotation is empty]
    assert without == []


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.page)
def test_every_public_name_has_an_example(theme: Theme) -> None:
    """Which uses it, by that name."""
    cells = examples(theme.page)
    names = [resolve(name)[0].rpartition(".")[2] for name in theme.names]
    assert [name for name in names if not any(name in cell.names for cell in cells)] == []
    named = [(name, cell) for cell in cells for name in cell.names]
    assert [name for name, _ in named if name not in names] == [], "which are not on the page"
    imported = cells[0].code
    unused = [name for name, cell in named if not re.search(rf"\b{name}\b", cell.code) and name not in imported]
    assert unused == []


def test_help_of_embed_names_its_parameters_with_their_meaning() -> None:
    said = inspect.getdoc(bertie.embed) or ""
    for name in inspect.signature(bertie.embed).parameters:
        assert re.search(rf"^- .*`{name}`.*: \S", said, re.MULTILINE), name
