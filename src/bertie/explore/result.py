"""What every result can do: become a pandas table, a matplotlib plot, or a small picture in a notebook.

A result is a frozen dataclass of numpy arrays, numbers and texts, so it pickles, compares and travels; it holds no
tensor, no model and no session. It says its `columns()`, and what it looks like as `html()` and on matplotlib's `axes`;
pandas and matplotlib are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bertie.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[np.floating[Any]]
Column: TypeAlias = Sequence[Any]

_SHOWN_ROWS = 40
_LONGEST = 60  # characters of a value in a repr
_INK = "37, 99, 235"  # rgb of what is large or speaks for an answer
_AGAINST = "220, 38, 38"  # of what speaks against it


class Result:
    """The base of all results."""

    def columns(self) -> Mapping[str, Column]:
        """The result as a long table: a column's name and its values, which are plain numbers and texts."""
        raise NotImplementedError

    def html(self) -> str:
        """A picture of it; by default the first rows of its table."""
        return table_html(self.columns())

    def draw(self, axes: Axes) -> None:
        """Onto matplotlib's axes."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with the columns of `columns()`."""
        _need("pandas", "to_frame()")
        import pandas as pd

        return pd.DataFrame(dict(self.columns()))

    def plot(self, axes: Axes | None = None) -> Axes:
        """Drawn with matplotlib, onto `axes` or a new figure; the axes are given back."""
        _need("matplotlib", "plot()")
        if axes is None:
            from matplotlib.figure import Figure

            # A figure of its own: pyplot would keep every one of them in memory, and wants a display in some set-ups.
            axes = Figure(layout="constrained").subplots()
        self.draw(axes)
        return axes

    def __repr__(self) -> str:
        """One line: arrays by type and shape, long values by their beginning; `@dataclass` would print every number."""
        said = ", ".join(f"{name}={_brief(value)}" for name, value in vars(self).items())
        return f"{type(self).__name__}({said})"

    def _repr_html_(self) -> str:
        return self.html()


def _brief(value: object) -> str:
    match value:
        case np.ndarray():
            return f"{value.dtype}{list(value.shape)}"
    shown = repr(value)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def _need(package: str, purpose: str) -> None:
    if find_spec(package) is None:
        raise MissingExtra(package, "explore", purpose)


# -- pictures ----------------------------------------------------------------------------------------------------------


def heat_map(axes: Axes, values: Numbers, *, rows: Sequence[str], columns: Sequence[str], title: str) -> None:
    """A matrix with its labels. Values of both signs get a scale that is white at 0."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    signed = bool(np.nanmin(values, initial=0.0) < 0)
    image = axes.imshow(
        values, cmap="RdBu" if signed else "Blues", vmin=-largest if signed else 0.0, vmax=largest, aspect="auto"
    )
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks(range(len(columns)), list(columns), rotation=90)
    axes.set_title(title)
    if axes.figure is not None:
        axes.figure.colorbar(image, ax=axes)


def heat_html(values: Numbers, *, rows: Sequence[str], columns: Sequence[str], title: str) -> str:
    """The same as a table of coloured cells; each says its number when it is pointed at."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    head = "".join(f'<th style="writing-mode:vertical-rl;font-weight:400">{escape(name)}</th>' for name in columns)
    body = []
    for name, numbers in zip(rows, values.tolist(), strict=True):
        cells = "".join(
            f'<td title="{value:.4g}" style="background:{shade(value / largest)};width:1em"></td>' for value in numbers
        )
        body.append(f'<tr><th style="font-weight:400;text-align:right">{escape(name)}</th>{cells}</tr>')
    return (
        f'<div style="overflow:auto"><b>{escape(title)}</b><table style="border-collapse:collapse;font-size:80%">'
        f"<tr><td></td>{head}</tr>{''.join(body)}</table></div>"
    )


def coloured_text(tokens: Sequence[str], scores: Numbers) -> str:
    """Tokens on backgrounds as strong as their scores."""
    largest = float(np.abs(scores).max(initial=0.0)) or 1.0
    spans = (
        f'<span title="{score:.4g}" style="background:{shade(score / largest)};padding:1px 3px">{escape(token)}</span>'
        for token, score in zip(tokens, scores.tolist(), strict=True)
    )
    return f'<div style="line-height:2">{" ".join(spans)}</div>'


def shade(share: float) -> str:
    """A colour for a number from −1 to 1."""
    return f"rgba({_INK if share >= 0 else _AGAINST}, {min(1.0, abs(share)):.3f})"


def table_html(columns: Mapping[str, Column], title: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = list(zip(*columns.values(), strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_written(value))}</td>" for value in row) + "</tr>" for row in rows[:_SHOWN_ROWS]
    )
    more = f"<div>… {len(rows) - _SHOWN_ROWS} more rows</div>" if len(rows) > _SHOWN_ROWS else ""
    caption = f"<b>{escape(title)}</b>" if title else ""
    return f'<div style="overflow:auto">{caption}<table><tr>{head}</tr>{body}</table>{more}</div>'


def _written(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def long_table(
    values: Numbers, names: Sequence[str], axes: Sequence[Sequence[object]], value: str
) -> dict[str, Column]:
    """An array as a long table: a column for each axis, whose entries `axes` names, and one for the values."""
    places = np.unravel_index(np.arange(values.size), values.shape)
    table: dict[str, Column] = {
        name: [labels[place] for place in column.tolist()]
        for name, labels, column in zip(names, axes, places, strict=True)
    }
    table[value] = values.ravel().tolist()
    return table
