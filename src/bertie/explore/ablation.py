"""The task's own answer with parts of the model off, or at their mean over a sample of texts.

Off is zero: what pruning would give. A part that always gives about the same is missed when it is zero and not when it
is at its mean, so the mean tells what the part knows of *this* text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertie.errors import InputError
from bertie.explore.answers import Answer, Embedded, Target
from bertie.explore.result import Column, Result, table_html
from bertie.explore.switches import Means, Switches, encoder_of, summing
from bertie.running.batching import split_by_tokens
from bertie.running.open import OpenModel
from bertie.running.rows import truncated_rows
from bertie.running.task import checked_text_or_pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Result):
    """An answer before and after. `effect` is how much the first answer lost: its probability, or a similarity.

    Of a single text's vector, which has no answer, it is 1 − the cosine of the two vectors.
    """

    off: Switches
    before: Answer
    after: Answer
    target: Target | None
    effect: float

    def columns(self) -> dict[str, Column]:
        before, after = dict(self.before.top), dict(self.after.top)
        labels = list(dict.fromkeys([*before, *after]))
        return {
            "answer": labels,
            "before": [before.get(label) for label in labels],
            "after": [after.get(label) for label in labels],
        }

    def html(self) -> str:
        return table_html(self.columns(), f"{self.off}: effect {self.effect:.4g}")

    def draw(self, axes: Axes) -> None:
        table = self.columns()
        places = np.arange(len(table["answer"]))
        for shift, name in ((-0.2, "before"), (0.2, "after")):
            axes.barh(places + shift, [value or 0.0 for value in table[name]], height=0.4, label=name)
        axes.set_yticks(places, list(table["answer"]))
        axes.invert_yaxis()
        axes.legend()


def ablate(session: Session, off: Switches, means: Means | None) -> Ablation:
    without = session.switch(session.off | off, means)
    before, after = session.answer(), without.answer()
    match before.value, after.value:
        case Embedded(vector=a), Embedded(vector=b):
            cosine = float(a @ b / max(1e-12, float(np.linalg.norm(a) * np.linalg.norm(b))))
            return Ablation(off, before, after, None, 1 - cosine)
    target = session.target()
    return Ablation(off, before, after, target, session.score(target) - without.score(target))


def means_of(loaded: OpenModel, texts: Iterable[str | tuple[str, str]]) -> Means:
    items = [checked_text_or_pair(text, f"Text {number}") for number, text in enumerate(texts)]
    if not items:
        raise InputError("There are no texts to take means over.", "Give at least one; a few hundred are better.")
    rows = truncated_rows(loaded.tokenizer, items, max_length=loaded.max_length)
    # Without its head, which is not asked, and which may want other rows.
    layers = OpenModel(encoder_of(loaded.model), loaded.tokenizer, loaded.folder, loaded.name)
    with summing(loaded.model) as found:
        for group in split_by_tokens([len(row) for row in rows], loaded.budget):
            layers.run([rows[place] for place in group])
        return found()
