"""The tasks' readings: words for masks, labels, tags, quotations, choices, vectors and similarities.

Each asks its own task of `bertie.tasks` for the answer, and says which of the head's numbers are behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.errors import InputError
from bertie.explore.answers import Answer, Choices, Embedded, Similarity, Target
from bertie.explore.reading import Measure, Reading, encoded, fitted
from bertie.running.open import OpenModel
from bertie.running.rows import Cuts
from bertie.tasks.answer import Answerer
from bertie.tasks.classify import Classifier, label_names, scores
from bertie.tasks.embed import Embedder
from bertie.tasks.fill import MaskFiller
from bertie.tasks.next_sentence import NextSentencePredictor
from bertie.tasks.similarity import score_pairs
from bertie.tasks.tag import Tagger
from bertie.text import BertTokenizer

_BEST = 5  # candidates that are shown


class Words(Reading):
    task = "fill"

    def __init__(self, loaded: OpenModel, first: str, cuts: Cuts) -> None:
        self.loaded = loaded
        limit = loaded.max_length
        around = _around_mask(loaded.tokenizer, first, limit)
        cuts.count(int(len(around) < len(first)), 0)
        first, _ = fitted(loaded.tokenizer, around, None, limit, cuts if around == first else Cuts("truncate", limit))
        self.texts = (first,)
        self.rows = (encoded(loaded.tokenizer, first),)
        mask = loaded.tokenizer.mask_token_id
        self.masks = [place for place, token in enumerate(self.rows[0].tokens) if token.id == mask]
        self._filler = MaskFiller(loaded, joint=False, top_k=_BEST)

    def no_answer(self) -> tuple[str, str] | None:
        if self.masks:
            return None
        token = self.loaded.tokenizer.mask_token
        return f"There is no {token} in the text, so there is no word to find.", f"Write {token} in place of a word."

    def answer(self) -> Answer:
        filled = self._filler(self.texts[0])
        several = len(filled.masks) > 1
        top = tuple(
            (f"{number + 1}: {one.token}" if several else one.token, one.score)
            for number, candidates in enumerate(filled.masks)
            for one in candidates
        )
        return Answer(self.task, filled, top)

    def targets(self) -> tuple[Target, ...]:
        if not self.masks:
            return ()
        filled = self._filler(self.texts[0])
        return tuple(
            Target(one.token, 0, place, one.ids[0])
            for place, candidates in zip(self.masks, filled.masks, strict=True)
            for one in candidates
        )

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """`[B, masks, vocabulary]`."""
        places = torch.tensor(self.masks, device=embeds.device).expand(len(embeds), -1)
        return self._run(row, embeds, masked_positions=places)["logits"]

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        assert target.place is not None
        if target.place not in self.masks:
            raise InputError(
                f"Token {target.place} is no {self.loaded.tokenizer.mask_token}.", f"Masks are at {self.masks}."
            )
        logits = readouts[0][:, self.masks.index(target.place)]
        return _measured(logits, measure)[:, target.index]


def _around_mask(tokenizer: BertTokenizer, text: str, limit: int) -> str:
    """A text whose first mask would be cut off, from a word on that leaves as much before the mask as after it."""
    whole = tokenizer(text, return_offsets_mapping=True, verbose=False)[0]
    masks = [place for place, id_ in enumerate(whole.ids) if id_ == tokenizer.mask_token_id]
    if not masks or len(whole) <= limit or masks[0] < limit - 2:
        return text
    first = masks[0] - (limit - 2) // 2
    while whole.word_ids[first] == whole.word_ids[first - 1]:
        first += 1
    return text[whole.offsets[first][0] :]


class TextLabels(Reading):
    """One vector of logits to a text or pair: labels, or whether B follows A."""

    def __init__(self, loaded: OpenModel, task: str, first: str, second: str | None, cuts: Cuts) -> None:
        self.loaded, self.task = loaded, task
        first, second = fitted(loaded.tokenizer, first, second, loaded.max_length, cuts)
        self.texts = (first,) if second is None else (first, second)
        self.rows = (encoded(loaded.tokenizer, first, second),)
        self._next = NextSentencePredictor(loaded) if task == "next" else None
        self._classifier = Classifier(loaded, top_k=None) if task == "classify" else None
        self.names = ["follows", "does not follow"] if task == "next" else label_names(loaded.config)

    def answer(self) -> Answer:
        if self._next is not None:
            found = self._next((self.texts[0], self.texts[1]))
            top = [(self.names[0], found.probability), (self.names[1], 1 - found.probability)]
            return Answer(self.task, found, tuple(sorted(top, key=lambda pair: -pair[1])))
        assert self._classifier is not None
        given = self.texts[0] if len(self.texts) == 1 else (self.texts[0], self.texts[1])
        labels = self._classifier(given)
        return Answer(self.task, labels, labels.labels)

    def targets(self) -> tuple[Target, ...]:
        return tuple(Target(label, index=self.names.index(label)) for label, _ in self.answer().top)

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """`[B, labels]`."""
        return self._run(row, embeds)["logits"]

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        if measure == "logit":
            return readouts[0][:, target.index]
        function = "softmax" if self._classifier is None else self._classifier.function
        return scores(readouts[0].float(), function)[:, target.index]


class Tags(Reading):
    task = "tag"

    def __init__(self, loaded: OpenModel, first: str, cuts: Cuts) -> None:
        self.loaded = loaded
        first, _ = fitted(loaded.tokenizer, first, None, loaded.max_length, cuts)
        self.texts = (first,)
        self.rows = (encoded(loaded.tokenizer, first),)
        self._tagger = Tagger(loaded)
        self.names = self._tagger.labels.names

    def answer(self) -> Answer:
        found = tuple(self._tagger(self.texts[0]))
        return Answer(self.task, found, tuple((f"{one.text} ({one.label})", one.score) for one in found))

    def targets(self) -> tuple[Target, ...]:
        """The likeliest label of every token, those of entities first, the surest first."""
        with torch.no_grad():
            probabilities = self.readout(0, self.embeds(0)[None])[0].float().softmax(-1)
        best, labels = (found.tolist() for found in probabilities.max(-1))
        tokens = self.rows[0].tokens
        found = [
            (labels[place] == 0 or self.names[labels[place]] == "O", -best[place], place)
            for place, token in enumerate(tokens)
            if not token.special
        ]
        return tuple(
            Target(f"{tokens[place].text}: {self.names[labels[place]]}", 0, place, labels[place])
            for _, _, place in sorted(found)
        )

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """`[B, S, labels]`."""
        return self._run(row, embeds)["logits"]

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        assert target.place is not None
        return _measured(readouts[0][:, target.place], measure)[:, target.index]


class Quotations(Reading):
    task = "answer"

    def __init__(self, loaded: OpenModel, question: str, context: str, cuts: Cuts) -> None:
        self.loaded = loaded
        self._answerer = Answerer(loaded, n_best=_BEST)
        limit = self._answerer.max_length
        question, kept = fitted(loaded.tokenizer, question, context, limit, cuts, only_second=True)
        self.texts = (question, kept or "")
        self.rows = (encoded(loaded.tokenizer, question, kept),)

    def answer(self) -> Answer:
        found = self._answerer((self.texts[0], self.texts[1]))
        top = [(one.text, one.score) for one in found.candidates]
        nothing = ("no answer", found.no_answer_score)
        return Answer(self.task, found, tuple([nothing, *top] if found.best is None else [*top, nothing]))

    def targets(self) -> tuple[Target, ...]:
        found = self._answerer((self.texts[0], self.texts[1]))
        tokens, segments = self.rows[0].tokens, self.rows[0].segments
        spans = []
        for one in found.candidates:
            inside = [
                place
                for place, token in enumerate(tokens)
                if segments[place] == 1
                and token.start is not None
                and token.stop is not None
                and one.start <= token.start
                and token.stop <= one.end
            ]
            if inside:
                spans.append(Target(one.text, 0, inside[0], 0, inside[-1]))
        nothing = Target("no answer", 0, 0, 0, 0)
        return tuple([nothing, *spans] if found.best is None else [*spans, nothing])

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """`[B, S, 2]`, start and end logits."""
        output = self._run(row, embeds)
        return torch.stack((output["start_logits"], output["end_logits"]), dim=-1)

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        """The span's logit, start + end; its probability is the product of both, each among all tokens of the row."""
        assert target.place is not None
        end = target.place if target.end is None else target.end
        values = readouts[0] if measure == "logit" else readouts[0].float().log_softmax(1)
        total = values[:, target.place, 0] + values[:, end, 1]
        return total if measure == "logit" else total.exp()


class MultipleChoice(Reading):
    """A row for each choice; no task of `bertie.tasks` answers these, so the head is read here."""

    task = "choice"

    def __init__(self, loaded: OpenModel, first: str, choices: Sequence[str], cuts: Cuts) -> None:
        self.loaded = loaded
        pairs = [fitted(loaded.tokenizer, first, choice, loaded.max_length, cuts) for choice in choices]
        self.choices = tuple(second or "" for _, second in pairs)
        self.texts = (first, *self.choices)
        self.rows = tuple(encoded(loaded.tokenizer, *pair) for pair in pairs)

    def answer(self) -> Answer:
        with torch.no_grad():
            logits = [self.readout(row, self.embeds(row)[None])[0, 0] for row in range(len(self.rows))]
        found: list[float] = torch.stack(logits).float().softmax(0).tolist()
        top = sorted(zip(self.choices, found, strict=True), key=lambda pair: -pair[1])
        return Answer(self.task, Choices(tuple(found)), tuple(top))

    def run_ids(self, row: int) -> None:
        ids = torch.tensor([[self.rows[row].ids]], device=self.loaded.device)
        self.loaded.model(ids, token_type_ids=self.types(row, 1)[:, None], return_dict=True)

    def targets(self) -> tuple[Target, ...]:
        value = self.answer().value
        assert isinstance(value, Choices)
        order = sorted(range(len(self.choices)), key=lambda choice: -value.probabilities[choice])
        return tuple(Target(self.choices[choice], choice, None, choice) for choice in order)

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """`[B, 1]`, the score of this choice."""
        self.current = row
        types = self.types(row, len(embeds))
        output = self.loaded.model(inputs_embeds=embeds[:, None], token_type_ids=types[:, None], return_dict=True)
        return cast(Tensor, output["logits"])

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        logits = torch.cat([x.expand(max(map(len, readouts)), 1) for x in readouts], dim=1)
        return _measured(logits, measure)[:, target.index]


class Vectors(Reading):
    """A text's vector, or how similar two texts are: a row for each text."""

    task = "embed"

    def __init__(self, loaded: OpenModel, first: str, second: str | None, cuts: Cuts) -> None:
        self._embedder = Embedder(loaded)
        self.loaded = self._embedder.loaded
        limit, tokenizer = self._embedder.max_length, self.loaded.tokenizer
        cutting = self._embedder.cutting()
        self._skipped = 0 if cutting.count_prompt or not cutting.prompt else 1 + len(cutting.prompt_ids)
        given = [first] if second is None else [first, second]
        prompt = len(cutting.prompt)
        whole = [fitted(tokenizer, text, None, limit, cuts)[0] for text in cutting.prepared(given)]
        self.texts = tuple(text[: max(0, len(kept) - prompt)] for text, kept in zip(given, whole, strict=True))
        self.rows = tuple(encoded(tokenizer, kept, prompt=prompt) for kept in whole)
        self._stages = [stage.to(self.loaded.device) for stage in self._embedder.settings.stages]

    @property
    def is_pair(self) -> bool:
        return len(self.texts) == 2

    def answer(self) -> Answer:
        vectors = []
        for row, text in enumerate(self.texts):
            self.current = row
            vectors.append(self._embedder.embed(text))
        if not self.is_pair:
            largest = np.argsort(-np.abs(vectors[0]))[:_BEST].tolist()
            top = tuple((f"dimension {place}", float(vectors[0][place])) for place in largest)
            return Answer(self.task, Embedded(vectors[0]), top)
        function = self._embedder.similarity_fn_name
        score = float(score_pairs(vectors[0][None], vectors[1][None], function)[0])
        return Answer(self.task, Similarity(score, function), ((f"similarity ({function})", score),))

    def targets(self) -> tuple[Target, ...]:
        return (Target("similarity"),) if self.is_pair else ()

    def no_answer(self) -> tuple[str, str] | None:
        if self.is_pair:
            return None
        return "One text by itself has a vector and no answer to explain.", "Give a second text to compare it with."

    def readout(self, row: int, embeds: Tensor) -> Tensor:
        """`[B, dimension]`."""
        return self.vector(self._run(row, embeds)["last_hidden_state"].float())

    def vector(self, states: Tensor) -> Tensor:
        """`[B, S, D]` → `[B, dimension]`, as the embedder pools, with gradients."""
        vectors = torch.cat([pooled(states[:, self._skipped :], mode, self._skipped) for mode in self.modes], dim=-1)
        for stage in self._stages:
            vectors = stage(vectors)
        return vectors[:, : self._embedder.truncate_dim]

    @property
    def modes(self) -> tuple[str, ...]:
        return self._embedder.pooling.modes

    @property
    def adds_up(self) -> bool:
        """Whether a similarity is a sum over pairs of tokens: means of tokens, compared by their product."""
        plain = all(stage.normalizes for stage in self._stages) and self._embedder.truncate_dim is None
        return plain and self.modes == ("mean",) and self._embedder.similarity_fn_name in ("cosine", "dot")

    @property
    def unit(self) -> bool:
        """Whether the vectors that are compared have unit length."""
        return self._embedder.similarity_fn_name == "cosine" or any(stage.normalizes for stage in self._stages)

    @property
    def skipped(self) -> int:
        """How many tokens at the beginning do not count."""
        return self._skipped

    def score(self, readouts: Sequence[Tensor], target: Target, measure: Measure) -> Tensor:
        if not self.is_pair:
            raise InputError(*(self.no_answer() or ("There is no answer.",)))
        first, second = readouts
        function = self._embedder.similarity_fn_name
        if function == "cosine":
            return F.cosine_similarity(first, second, dim=-1)
        if function == "dot":
            return (first * second).sum(-1)
        distance: Tensor = torch.linalg.vector_norm(first - second, ord=2 if function == "euclidean" else 1, dim=-1)
        return -distance

    def pooled_places(self, target: Target) -> list[int]:
        length = len(self.rows[target.row])
        if self.modes == ("cls",):
            return [0]
        return [length - 1] if self.modes == ("lasttoken",) else list(range(self._skipped, length))


def pooled(states: Tensor, mode: str, skipped: int = 0) -> Tensor:
    """`[B, S, D]` → `[B, D]`; the first state is token number `skipped` of its text. Rules as in running/pooling.py."""
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[:, -1]
    if mode == "max":
        return states.amax(1)
    if mode == "mean_sqrt_len_tokens":
        return states.sum(1) / math.sqrt(states.shape[1])
    if mode == "weightedmean":
        weights = torch.arange(1, states.shape[1] + 1, device=states.device, dtype=states.dtype) + skipped
        return (states * weights[:, None]).sum(1) / weights.sum()
    return states.mean(1)


def _measured(logits: Tensor, measure: Measure) -> Tensor:
    return logits if measure == "logit" else logits.float().softmax(-1)


def read(
    loaded: OpenModel, task: str, first: str, second: str | Sequence[str] | None, *, warn: bool = True
) -> tuple[Reading, bool]:
    """The texts as the task reads them, and whether any was cut; a warning says so."""
    cuts = Cuts("truncate", loaded.max_length, choices=False)
    with cuts.told() if warn else nullcontext():
        found = _read(loaded, task, first, second, cuts)
    return found, cuts.cut > 0


def _read(loaded: OpenModel, task: str, first: str, second: str | Sequence[str] | None, cuts: Cuts) -> Reading:
    if task == "choice":
        if second is None or isinstance(second, str) or len(second) < 2:
            raise InputError("choice needs several choices.", "Give them as a list: second=['one', 'another'].")
        return MultipleChoice(loaded, first, second, cuts)
    if second is not None and not isinstance(second, str):
        raise InputError(f"{task} takes one second text, and was given {len(second)}.", "Pass a string.")
    if task in ("next", "answer") and second is None:
        what = "a second text" if task == "next" else "a context, in which the answer is looked for"
        raise InputError(f"{task} needs {what}.", "Give it as the second text.")
    if task in ("fill", "tag") and second is not None:
        raise InputError(f"{task} takes one text, and was given two.", "Leave out the second, or join them.")
    if task == "fill":
        return Words(loaded, first, cuts)
    if task == "tag":
        return Tags(loaded, first, cuts)
    if task == "answer":
        return Quotations(loaded, first, second or "", cuts)
    if task == "embed":
        return Vectors(loaded, first, second, cuts)
    return TextLabels(loaded, task, first, second, cuts)
