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
from typing import TYPE_CHECKING

from bertie.explore.ablation import Ablation
from bertie.explore.answers import Answer, Choices, Embedded, Similarity, Target
from bertie.explore.attention import AttentionMap, HeadStatistics, NeuronView
from bertie.explore.attribution import Attribution, TokenMatch
from bertie.explore.flow import TokenFlow
from bertie.explore.lens import Drift, Lens
from bertie.explore.opening import TASKS
from bertie.explore.patching import Patching
from bertie.explore.reading import TextRow
from bertie.explore.result import Result
from bertie.explore.session import VIEWS, Session, open_session
from bertie.explore.switches import Means, Switches, switched
from bertie.explore.trace import Source, Step, Trace

if TYPE_CHECKING:
    from bertie.explore.ranking import Importance as Importance
    from bertie.explore.ranking import importance as importance

__all__ = [
    "TASKS",
    "VIEWS",
    "Ablation",
    "Answer",
    "AttentionMap",
    "Attribution",
    "Choices",
    "Drift",
    "Embedded",
    "HeadStatistics",
    "Importance",
    "Lens",
    "Means",
    "NeuronView",
    "Patching",
    "Result",
    "Session",
    "Similarity",
    "Source",
    "Step",
    "Switches",
    "Target",
    "TextRow",
    "TokenFlow",
    "TokenMatch",
    "Trace",
    "importance",
    "open_session",
    "switched",
]  # fmt: skip


class _Room(ModuleType):
    """A room that is called: `bertie.explore(…)` is `bertie.explore.open_session(…)`.

    Python makes a package an attribute of the one above it, so there cannot be a function of its name as well.
    """

    __call__ = staticmethod(open_session)

    def __getattr__(self, name: str) -> object:
        if name in ("Importance", "importance"):  # reading data and losses takes the whole room of training
            from bertie.explore import ranking

            value = getattr(ranking, name)
            setattr(self, name, value)
            return value
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Room
