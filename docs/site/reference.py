"""The pages of the Python reference: signature, description and parameters of every public name, by theme.

The description is the docstring, which is Markdown. A table follows with the parameters that it does not list: what the
comment beside a field says of them, or the glossary.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from example_cells import examples
from glossary import explanation
from public import THEMES, Theme, doc, field_comments, is_ours, methods, parameters, resolve

INDEX = """# Python reference

Every public name, by theme. `help(bertie.embed)` shows the same text. Shapes are written as `[batch, length]`.
"""


def reference_pages() -> list[tuple[str, str]]:
    """(page name, Markdown): a first page, and one for each theme."""
    first = INDEX
    documented: set[Any] = set()
    pages = []
    for theme in THEMES:
        names = ", ".join(f"`{resolve(name)[0].removeprefix('bertie.')}`" for name in theme.names[:60])
        first += f"\n## [{theme.title}]({theme.page}.md)\n\n{theme.introduction}\n\n{names}\n"
        pages.append((f"reference/themes/{theme.page}", "\n\n".join(theme_parts(theme, documented)) + "\n"))
    first = first.replace("](", "](themes/")
    first += "\n```{toctree}\n:hidden:\n\n" + "\n".join(f"themes/{theme.page}" for theme in THEMES) + "\n```\n"
    return [("reference/index", first), *pages]


def theme_parts(theme: Theme, documented: set[Any]) -> Iterator[str]:
    yield f"# {theme.title}\n\n{theme.introduction}"
    setup, *cells = examples(theme.page)
    yield f"The examples on this page begin with:\n\n```python\n{setup.code}```"
    shown_at: dict[str, str] = {}
    for name in theme.names:
        path, thing = resolve(name)
        last = path.rpartition(".")[2]
        example = ""
        for cell in cells:
            if last in cell.names:
                first = shown_at.setdefault(cell.code, path)
                example = f"```python\n{cell.code}```" if first == path else f"Example: see `{first}` above."
        yield f"## `{path}`"
        if inspect.isclass(thing):
            yield from class_parts(thing, documented, example)
        elif callable(thing):
            yield from function_parts(last, thing, doc(thing), example=example)
        else:
            yield f"```python\n{path} = {thing!r:.400}\n```"
            yield example


def class_parts(kind: type, documented: set[Any], example: str) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if is_ours(base) and not base.__name__.startswith("_")]
    if bases:
        yield f"A subclass of {', '.join(f'`{base}`' for base in bases)}."
    made = not issubclass(kind, BaseException)
    yield from function_parts(
        kind.__name__, kind, doc(kind), comments=field_comments(kind), shown=made, example=example
    )
    for name, function, sort in methods(kind, documented):
        yield f"### `{kind.__name__}.{name}`"
        if sort == "property":
            yield f"*property* {markdown(doc(function))}"
        else:
            called = f"{'' if name == '__call__' else '.'}{'' if name == '__call__' else name}"
            prefix = f"*{sort}*\n\n" if sort != "method" else ""
            yield prefix + "\n\n".join(function_parts(f"{kind.__name__}{called}", function, doc(function)))


def function_parts(
    name: str, function: Any, text: str, *, comments: dict[str, str] | None = None, shown: bool = True,
    example: str = "",
) -> Iterator[str]:  # fmt: skip
    """The signature, the docstring, a table of the parameters that the docstring does not list, and the example."""
    if shown:
        yield f"```python\n{signature(name, function)}\n```"
    yield markdown(text)
    rows = []
    for parameter in parameters(function) if shown else ():
        if re.search(rf"^- .*`{parameter.name}`.*?:", text, re.MULTILINE):
            continue
        said = (comments or {}).get(parameter.name) or explanation(name, parameter.name) or "see above"
        rows.append(f"| `{parameter.name}` | {cell(said)} |")
    if rows:
        yield "| parameter | |\n|---|---|\n" + "\n".join(rows)
    if example:
        yield example


def signature(name: str, function: Any) -> str:
    """With types and defaults; one parameter per line if they do not fit into one."""
    try:
        found = inspect.signature(function)
    except (ValueError, TypeError):
        return f"{name}(...)"
    written, star = [], False
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            written.append("*")
            star = True
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            written.append(f"*{each.name}")
            star = True
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            written.append(f"**{each.name}")
        else:
            kind = "" if each.annotation is inspect.Parameter.empty else f": {readable(each.annotation)}"
            equals = " = " if kind else "="
            default = "" if each.default is inspect.Parameter.empty else f"{equals}{short(each.default)}"
            written.append(each.name + kind + default)
    given = found.return_annotation
    answer = "" if given is inspect.Signature.empty or inspect.isclass(function) else f" -> {readable(given)}"
    line = f"{name}({', '.join(written)}){answer}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in written) + f"){answer}"


def short(value: Any) -> str:
    written = repr(value)
    return "..." if len(written) > 40 or " at 0x" in written or written == "<factory>" else written


def readable(kind: Any) -> str:
    written = kind if isinstance(kind, str) else getattr(kind, "__name__", None) or repr(kind)
    written = repr(kind) if "[" in repr(kind) and not isinstance(kind, str) else written
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", written.replace("NoneType", "None"))[:160]


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(text: str) -> str:
    """A docstring as Markdown: its examples and its indented blocks become code."""
    blocks = []
    for block in filter(None, re.split(r"\n\s*\n", text.strip())):
        lines = block.splitlines()
        if lines[0].lstrip().startswith(">>>"):
            blocks.append("```pycon\n" + "\n".join(line.strip() for line in lines) + "\n```")
        elif all(line.startswith("    ") for line in lines):
            blocks.append("```text\n" + "\n".join(line[4:] for line in lines) + "\n```")
        else:
            blocks.append(escaped(block))
    return "\n\n".join(blocks)


def escaped(block: str) -> str:
    """What Markdown would take for a link, a tag or emphasis, outside of code, is written as it is."""
    pieces = re.split(r"(`[^`]*`)", block)
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([\[\]<>*_|$])", r"\\\1", pieces[at])
    return re.sub(r"^(\s*)(\d+)([.)])", r"\1\2\\\3", "".join(pieces), flags=re.MULTILINE)
