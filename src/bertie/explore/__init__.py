"""See inside a BERT: attention, ablation, importance, attribution, the layers' own predictions, patching, traces.

    session = bertie.explore("The capital of France is [MASK].")       bertie-mini, or model=…
    session.answer(), session.attention(2, 1), session.attribute(), session.lens()

A `Session` holds a text, a model and its task; its methods are the views, and each gives a result that pickles, becomes
a pandas table (`to_frame()`), a plot (`plot()`) and a picture in a notebook. `importance` works over a file. Nothing
here knows of the web.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from bertie.explore.ablation import Ablation
from bertie.explore.answers import Answer, Choices, Embedded, Similarity, Target
from bertie.explore.attention import AttentionMap, HeadStatistics, NeuronView
from bertie.explore.opening import TASKS
from bertie.explore.reading import TextRow
from bertie.explore.result import Result
from bertie.explore.session import VIEWS, Session, open_session
from bertie.explore.switches import Means, Switches, switched

__all__ = [
    "TASKS",
    "VIEWS",
    "Ablation",
    "Answer",
    "AttentionMap",
    "Choices",
    "Embedded",
    "HeadStatistics",
    "Means",
    "NeuronView",
    "Result",
    "Session",
    "Similarity",
    "Switches",
    "Target",
    "TextRow",
    "open_session",
    "switched",
]


class _Callable(ModuleType):
    """A package has to be an attribute of `bertie`, and so cannot be a function of that name as well; it can be called.

    `bertie.explore(…)` is `bertie.explore.open_session(…)`.
    """

    def __call__(self, *given: Any, **named: Any) -> Session:
        return open_session(*given, **named)


sys.modules[__name__].__class__ = _Callable
