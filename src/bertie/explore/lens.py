"""What the model would say after each layer, and how far each token's state has come.

The lens puts the state after every layer through the masked-word head, which was trained on the last one only
(nostalgebraist 2020, "interpreting GPT: the logit lens"). After the last layer it is the model's own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from bertie.explore.result import Column, Floats, Result, heat_html, heat_map, long_table, shade
from bertie.model.heads import LanguageModel

_SCORES = 1 << 21  # words' scores at a time, which are as many as the vocabulary for each token

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session


@dataclass(frozen=True, eq=False, repr=False)
class Lens(Result):
    """The likeliest words after each layer (0: the embeddings) at the tokens `places`, best first."""

    places: tuple[int, ...]
    tokens: tuple[str, ...]  # what stands there
    words: tuple[tuple[tuple[str, ...], ...], ...]  # [layers + 1][places][k]
    probabilities: Floats  # [layers + 1, places, k]

    def columns(self) -> dict[str, Column]:
        num_layers, _, best = self.probabilities.shape
        axes = (range(num_layers), [f"{p} {token}" for p, token in zip(self.places, self.tokens, strict=True)])
        table = long_table(self.probabilities, ("layer", "token", "rank"), (*axes, range(best)), "probability")
        return table | {"word": [word for layer in self.words for place in layer for word in place]}

    def html(self) -> str:
        head = "".join(f"<th>{escape(token)}</th>" for token in self.tokens)
        body = "".join(
            f"<tr><th>{layer}</th>"
            + "".join(
                f'<td title="{escape(", ".join(best))}" style="background:{shade(float(likely[0]))}">'
                f"{escape(best[0])}</td>"
                for best, likely in zip(words, self.probabilities[layer], strict=True)
            )
            + "</tr>"
            for layer, words in enumerate(self.words)
        )
        return f'<div style="overflow:auto"><table><tr><th>layer</th>{head}</tr>{body}</table></div>'

    def draw(self, axes: Axes) -> None:
        best = self.probabilities[:, :, 0]
        layers = [str(layer) for layer in range(len(best))]
        heat_map(axes, best, rows=layers, columns=self.tokens, title="the likeliest word after each layer")
        for layer, words in enumerate(self.words):
            for place, word in enumerate(words):
                ink = "white" if best[layer, place] > best.max() / 2 else "black"
                axes.text(place, layer, word[0], ha="center", va="center", fontsize=7, color=ink)
        axes.set_ylabel("layer")


@dataclass(frozen=True, eq=False, repr=False)
class Drift(Result):
    """The cosine of each token's state after each layer (0: the embeddings) to its first state and to its last."""

    tokens: tuple[str, ...]
    to_first: Floats  # [layers + 1, S]
    to_last: Floats  # [layers + 1, S]

    def columns(self) -> dict[str, Column]:
        numbered = [f"{place} {token}" for place, token in enumerate(self.tokens)]
        table = long_table(self.to_first, ("layer", "token"), (range(len(self.to_first)), numbered), "to_first")
        return table | {"to_last": self.to_last.ravel().tolist()}

    def html(self) -> str:
        layers = [str(layer) for layer in range(len(self.to_first))]
        return "".join(
            heat_html(values, rows=layers, columns=self.tokens, title=title)
            for values, title in ((self.to_first, "cosine to the first state"), (self.to_last, "cosine to the last"))
        )

    def draw(self, axes: Axes) -> None:
        layers = [str(layer) for layer in range(len(self.to_first))]
        heat_map(axes, self.to_last, rows=layers, columns=self.tokens, title="cosine to the last state")
        axes.set_ylabel("layer")


@torch.no_grad()
def lens(session: Session, top_k: int, row: int, places: Sequence[int] | None) -> Lens:
    chosen = tuple(range(len(session.rows[row]))) if places is None else tuple(places)
    for place in chosen:
        session.check_place(place, row)
    model = session.model
    assert isinstance(model, LanguageModel)  # the session has looked: this view is there
    decode, names = session.tokenizer.convert_ids_to_tokens, session.rows[row].names
    best_of = min(top_k, session.config.vocab_size)
    at_once = max(1, _SCORES // session.config.vocab_size)
    words, likely = [], []
    for state in session.states(row)[:, list(chosen)]:
        found = [model._predictions(some).float().softmax(-1).topk(best_of) for some in state.split(at_once)]
        likely.append(torch.cat([best.values for best in found]).cpu().numpy())
        words.append(tuple(tuple(decode(ids)) for best in found for ids in best.indices.tolist()))
    return Lens(chosen, tuple(names[place] for place in chosen), tuple(words), np.stack(likely))


@torch.no_grad()
def drift(session: Session, row: int) -> Drift:
    states = session.states(row).float()
    found = [F.cosine_similarity(states, states[end, None], dim=-1).cpu().numpy() for end in (0, -1)]
    return Drift(session.rows[row].names, found[0], found[1])
