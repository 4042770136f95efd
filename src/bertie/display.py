"""How answers look when they are displayed: one short line in a terminal, a small table in a notebook.

Nothing here needs torch. An answer says its `line()` and its `rows()`; `Displayed` makes a repr and HTML of them. The
values themselves are in the answer's fields, in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_MOST_ROWS = 20
_LONGEST = 120  # characters of a cell
_FEW = 3  # scores that a line lists


class Displayed:
    """An answer with a short repr, and a table in notebooks."""

    __slots__ = ()

    def line(self) -> str:
        """What the repr says after the name of the class."""
        raise NotImplementedError

    def rows(self) -> Sequence[Mapping[str, object]]:
        """The rows of its table; scores are called "score" and are drawn as bars."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.line()}>"

    def _repr_html_(self) -> str:
        return table(self.rows())


def scores(pairs: Iterable[tuple[str, float]]) -> str:
    """The first few words with their scores.

    >>> scores([("cat", 0.71), ("dog", 0.2), ("cow", 0.01), ("fox", 0.01)])
    'cat 0.710, dog 0.200, cow 0.010, …'
    """
    listed = [f"{word} {score:.3f}" for word, score in pairs]
    return ", ".join(listed[:_FEW] + ["…"] * (len(listed) > _FEW))


def clipped(text: str, size: int = _LONGEST) -> str:
    """The beginning of a text.

    >>> clipped("The quick brown fox", 10)
    'The quick…'
    """
    return text if len(text) <= size else text[: size - 1].rstrip() + "…"


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as an HTML table: its columns are the first row's."""
    if not rows:
        return "<i>nothing found</i>"
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in rows[0])
    body = "".join(f"<tr>{''.join(map(_cell, row.items()))}</tr>" for row in rows[:_MOST_ROWS])
    more = f"<i>and {len(rows) - _MOST_ROWS} more</i>" if len(rows) > _MOST_ROWS else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _cell(entry: tuple[str, object]) -> str:
    name, value = entry
    match value:
        case float() if name == "score" and 0 <= value <= 1:
            # The bar is absolute: a full cell is a score of 1.
            share = f"{100 * value:.1f}%"
            fill = f"linear-gradient(to right,rgba(37,99,235,.25) {share},transparent {share})"
            return f'<td style="text-align:left;min-width:8em;background:{fill}">{value:.3f}</td>'
        case float():
            return f'<td style="text-align:left">{value:.3f}</td>'
    return f'<td style="text-align:left">{escape(clipped(str(value)))}</td>'
