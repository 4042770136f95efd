"""How a task reads a text, what it answers, and the numbers behind the answer.

A `Reading` holds the rows that a task makes of its texts. It asks the task itself (bertie.tasks) for the answer, and
runs single rows through the model with gradients for everything else. A row goes through the model by itself: hooks
then know whose states they see, and an answer's bits do not depend on its company.

A `Target` is one number of an answer: the logit of a word, a label, a choice or a span, or a similarity. Attribution,
ablation and patching ask what it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertie.answers import Token
from bertie.explore.answers import Answer, Target
from bertie.running.open import OpenModel
from bertie.running.rows import Cuts
from bertie.text import BertTokenizer
from bertie.text.truncation import Strategy

Measure = Literal["logit", "probability"]
MEASURES: tuple[Measure, ...] = ("logit", "probability")


@dataclass(frozen=True)
class TextRow:
    """One input of the model, token by token; `segments` are the model's token types."""

    tokens: tuple[Token, ...]
    segments: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ids(self) -> list[int]:
        """Token ids."""
        return [token.id for token in self.tokens]

    @property
    def names(self) -> tuple[str, ...]:
        """The word pieces."""
        return tuple(token.text for token in self.tokens)


# -- texts to rows -----------------------------------------------------------------------------------------------------


def encoded(tokenizer: BertTokenizer, first: str, second: str | None = None, *, prompt: int = 0) -> TextRow:
    """A text or pair as the model reads it. Characters are counted after the first `prompt` of them."""
    row = tokenizer(first, second, return_offsets_mapping=True)[0]
    tokens = tuple(
        Token(id_, name, bool(special), *(None, None) if special else (max(0, start - prompt), max(0, stop - prompt)))
        for id_, name, special, (start, stop) in zip(
            row.ids, row.tokens, row.special_tokens_mask, row.offsets, strict=True
        )
    )
    return TextRow(tokens, tuple(row.type_ids))


def fitted(
    tokenizer: BertTokenizer, first: str, second: str | None, limit: int, cuts: Cuts, *, only_second: bool = False
) -> tuple[str, str | None]:
    """The texts, cut at the end of a word to what fits into `limit` tokens; whoever is cut is counted in `cuts`."""
    whole = tokenizer(first, second, return_offsets_mapping=True, verbose=False)[0]
    if len(whole) <= limit:
        cuts.count(0, 1)
        return first, second
    strategy: Strategy = "only_second" if only_second else "longest_first"
    part = tokenizer(first, second, return_offsets_mapping=True, truncation=strategy, max_length=limit)[0]
    cuts.count(1, 1)
    kept = []
    for number, text in enumerate((first, second)):
        words = [word for word, owner in zip(part.word_ids, part.sequence_ids, strict=True) if owner == number]
        size = sum(owner == number for owner in whole.sequence_ids)
        if text is None or len(words) == size:
            kept.append(text)
            continue
        # The last word may have lost pieces, and be another one then.
        places = [
            place
            for place, (owner, word) in enumerate(zip(part.sequence_ids, part.word_ids, strict=True))
            if owner == number and word != words[-1]
        ]
        kept.append(text[: part.offsets[places[-1]][1]] if places else "")
    return kept[0] or "", kept[1]


# -- readings ----------------------------------------------------------------------------------------------------------


class Reading:
    """Texts as a task reads them. `texts` are what was kept of them."""

    task: str
    loaded: OpenModel
    texts: tuple[str, ...]
    rows: tuple[TextRow, ...]
    current: int = 0  # the row that is in the model
    _only: int | None = None

    def answer(self) -> Answer:
        """The task's own."""
        raise NotImplementedError

    def targets(self) -> tuple[Target, ...]:
        """What can be asked about, the model's own answer first; nothing where there is no answer."""
        raise NotImplementedError

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """What the head says of variants of a row, `[B, S, D]` word vectors in; `score` reads it."""
        raise NotImplementedError

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        """`[B]` out of the readouts of every row; those that are not varied have B = 1."""
        raise NotImplementedError

    def pooled_places(self, target: Target) -> list[int]:
        """The tokens of the target's row whose last states the head reads."""
        return [0] if target.place is None else sorted({target.place, target.end or target.place})

    def no_answer(self) -> tuple[str, str] | None:
        """Why there is no answer to this text and what to do about it; None where there is one."""
        return None

    def embeds(self, row: int) -> Tensor:
        """The word vectors `[S, D]` of a row."""
        ids = torch.tensor(self.rows[row].ids, device=self.loaded.device)
        table: Callable[[Tensor], Tensor] = self.loaded.model.get_input_embeddings()
        return table(ids).detach()

    def types(self, row: int, batch: int) -> Tensor:
        return torch.tensor(self.rows[row].segments, device=self.loaded.device).expand(batch, -1)

    @property
    def is_current(self) -> bool:
        """Whether the row that is in the model is one that hooks are about."""
        return self._only is None or self.current == self._only

    @contextmanager
    def only_row(self, row: int) -> Iterator[None]:
        """While this lasts, hooks are about one row."""
        self._only = row
        try:
            yield
        finally:
            self._only = None

    def run_ids(self, row: int) -> None:
        """The model once over a row, from its ids, for hooks that look on."""
        ids = torch.tensor([self.rows[row].ids], device=self.loaded.device)
        self.current = row
        self.loaded.model(ids, token_type_ids=self.types(row, 1), return_dict=True)

    def _run(self, row: int, embeds: Tensor, **options: Tensor | bool | int) -> dict[str, Tensor]:
        self.current = row
        output: dict[str, Tensor] = self.loaded.model(
            inputs_embeds=embeds, token_type_ids=self.types(row, len(embeds)), return_dict=True, **options
        )
        return output
