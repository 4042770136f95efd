"""Words for [MASK]: the likeliest at each, the likeliest together, and how likely given words are.

    fill("She opened the [MASK] and went in.").candidates[0].token
    fill("A [MASK] [MASK].").fillings[0].text                        both masks, chosen together
    fill("He was [MASK].", targets=["happy", "inconsolable"])         only these; word pieces may be several
    fill("Paris is the [MASK] of France.", model="bert-base-uncased")

The model is bertie-mini, which is small and came with this package, unless another is named.

**At each mask by itself** scores are transformers' fill-mask pipeline's: the softmax at that place. **Together**, masks
are filled from left to right by beam search: every choice is made knowing the ones before it (the model is run again),
the masks after it still being masks, and the score is the product of the choices' probabilities. **A target of several
pieces** gets as many masks, and its score is the product of its pieces' probabilities, filled from left to right in the
same way; so a longer word competes with one factor more for every piece (transformers takes its first piece alone).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, Unpack

import torch
from torch import Tensor

from bertie.answers import Candidate, Filled, Filling
from bertie.arguments import one_or_several, whole_number
from bertie.data import RowReader, texts
from bertie.defaults import default_language_model
from bertie.errors import InputError
from bertie.model import BertForMaskedLM
from bertie.running.batching import chunked
from bertie.running.open import ModelLike
from bertie.running.rows import Row
from bertie.running.stream import run_in_order
from bertie.running.task import RunSettings, TextTask, checked_text, function_of
from bertie.text import BertTokenizer

Ids = tuple[int, ...]

# Texts are filled together, round by round; each holds at most its beams.
_TEXTS_AT_ONCE = 32
_LEAST_BEAMS = 5


@dataclass(frozen=True, slots=True)
class _Query:
    """A row, places in it, and what is wanted there: the best `wanted`, or the scores of these ids."""

    row: Row
    places: tuple[int, ...]
    wanted: int | Ids

    def __len__(self) -> int:
        """Its work in tokens: the vocabulary's scores of a place cost about as much as a token of the row."""
        return len(self.row) + len(self.places)


@dataclass(frozen=True, slots=True)
class FillPlan:
    """A text that has been read, and what filling it takes."""

    tokens: Ids
    places: tuple[int, ...]  # of the masks
    work: int  # tokens that go through the model, at most
    candidates: int  # in the answer, at most, each with a text about as long as this one
    fillings: int  # likewise
    text: str
    spans: tuple[tuple[int, int], ...]  # of the masks in the text; none where its tokens have to be decoded instead


_Scored = list[tuple[int, float]]  # (id, log-probability)
_Reply = list[_Scored]  # for each of a query's places
Found = TypeVar("Found")
_Work = Generator[list[_Query], list[_Reply], Found]  # asks for queries to be run, is sent their replies
_Choices = list[tuple[Ids, float]]  # what may stand at a mask, with its log-probability, best first


@dataclass(frozen=True, slots=True)
class _Beam:
    """A text on its way: its tokens (special ones not counted), where masks are left, what was chosen, how likely."""

    tokens: Ids
    places: tuple[int, ...]
    chosen: tuple[Ids, ...] = ()
    score: float = 0.0


class MaskFiller(TextTask[Filled]):
    """A `Filled` for a text with the tokenizer's mask token in it; a list for a list, an iterator for an iterator.

    `Filled.masks` has `top_k` candidates for each mask; `Filled.fillings` has the `top_k` best ways to fill all of
    them together (beam search over `num_beams`, at least `top_k` and 5; `joint=False` leaves it out). `targets`
    restricts what may stand at a mask; words of several pieces are scored whole. Of a text longer than the model, as
    much around the mask as fits is read.
    """

    name: ClassVar[str] = "fill"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        joint: bool = True,
        num_beams: int | None = None,
        **settings: Unpack[RunSettings],
    ) -> None:
        whole_number("top_k", top_k)
        whole_number("num_beams", num_beams, or_none="enough for top_k")
        self.open(model, BertForMaskedLM, settings, default=default_language_model)
        mask = self.loaded.tokenizer.mask_token_id
        if mask is None:
            raise InputError(
                "fill needs a mask token, and this tokenizer has none in its vocabulary.",
                "Use the tokenizer the model was pretrained with, or name the token: mask_token=.",
            )
        self.mask: int = mask
        self.top_k, self.joint = top_k, joint
        self.num_beams = max(top_k, num_beams or _LEAST_BEAMS)
        self.targets = None if targets is None else read_targets(self.loaded.tokenizer, targets)

    def checked(self, item: object, where: str) -> str:
        text = checked_text(item, where)
        if (found := self.fault(text)) is not None:
            wrong, remedy = found
            raise InputError(f"{where} {wrong}", remedy)
        return text

    def fault(self, text: str) -> tuple[str, str] | None:
        """What is wrong with a text and what to do about it, as `bertie.data.texts` takes it; None for a good one."""
        token = self.loaded.tokenizer.mask_token or ""
        # The tokenizer has the last word (see `plan`); this one is quick, and names the text before any work is done.
        if token in text:
            return None
        return f"has no {token}: {shortened(text)!r}.", f"Write {token} where a word is to be found."

    def from_file(self, rows: RowReader) -> Iterable[object]:
        return texts(rows, fault=self.fault)

    def stream(self, items: Iterable[str]) -> Iterator[Filled]:
        for chunk in chunked(items, _TEXTS_AT_ONCE):
            yield from self._together([self.rounds(self.plan(text)) for text in chunk])

    def plan(self, text: str) -> FillPlan:
        """Read a text and say what it takes, before anything is computed."""
        tokenizer = self.loaded.tokenizer
        read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids: Ids = tuple(read["input_ids"])
        places = tuple(place for place, token in enumerate(ids) if token == self.mask)
        offsets = read["offset_mapping"] if tokenizer.writes_words else ()
        spans = tuple(_without_spaces(text, *offsets[place]) for place in places) if offsets else ()
        if not places:
            token = tokenizer.mask_token
            raise InputError(f"The tokenizer finds no {token} in {shortened(text)!r}.", f"Put spaces around {token}.")
        masks, beams = len(places), self.num_beams if self.joint and len(places) > 1 else 0
        if self.targets is None:
            length = self._room(len(ids))
            alone = len(self._windows(ids, places)) * length + masks
            together = masks * beams * (length + 1)
            choices = self.top_k
        else:
            pieces, longest = sum(map(len, self.targets)), max(map(len, self.targets))
            alone = masks * pieces * (self._room(len(ids) + longest) + 1)
            together = masks * beams * pieces * (self._room(len(ids) + masks * longest) + 1)
            choices = min(self.top_k, len(self.targets))
        fillings = self.top_k if beams or masks == 1 else 0
        return FillPlan(ids, places, alone + together, masks * choices, fillings, text, spans)

    def _room(self, tokens: int) -> int:
        """The row of a text of this many tokens."""
        return min(tokens + self.loaded.tokenizer.num_special_tokens_to_add(), self.loaded.max_length)

    # -- the model -----------------------------------------------------------------------------------------------------

    def _together(self, works: list[_Work[Filled]]) -> list[Filled]:
        """Run every text's work side by side: what they ask for in a round goes through the model in full batches."""
        answers: dict[int, Filled] = {}
        asked = {number: next(work) for number, work in enumerate(works)}
        while asked:
            queries = [query for its_queries in asked.values() for query in its_queries]
            replies = run_in_order(queries, self.run, budget=self.loaded.budget)
            rounds = {number: [next(replies) for _ in its_queries] for number, its_queries in asked.items()}
            asked = {}
            for number, reply in rounds.items():
                try:
                    asked[number] = works[number].send(reply)
                except StopIteration as done:
                    answers[number] = done.value
        return [answers[number] for number in range(len(works))]

    def run(self, batch: list[_Query]) -> list[_Reply]:
        """What was asked in a round; queries of many texts and settings may be mixed."""
        places, start = [], 0
        for query in batch:
            places += [start + place for place in query.places]
            start += len(query.row)
        device = self.loaded.device
        logits: Tensor = self.loaded.run(
            [query.row for query in batch], masked_positions=torch.tensor(places, device=device)
        ).logits
        by_query = torch.split(logits.float().log_softmax(-1), [len(query.places) for query in batch])
        return [_read(scores, query.wanted) for scores, query in zip(by_query, batch, strict=True)]

    def _start(self, length: int, first: int, last: int) -> int:
        """Where the window of a text of `length` tokens begins: as much on both sides of `first` … `last` as fits."""
        room = self.loaded.max_length - self.loaded.tokenizer.num_special_tokens_to_add()
        if length <= room:
            return 0
        if last - first > room:
            raise InputError(
                f"A target of {last - first} word pieces does not fit the model's {self.loaded.max_length} tokens.",
                "Use shorter targets.",
            )
        return min(max(0, first - (room - (last - first)) // 2), length - room)

    def _query(self, tokens: Ids, places: Sequence[int], wanted: int | Ids, start: int | None = None) -> _Query:
        """A row around `places`, or the one that begins at `start`: the whole text if it fits."""
        tokenizer = self.loaded.tokenizer
        room = self.loaded.max_length - tokenizer.num_special_tokens_to_add()
        if start is None:
            start = self._start(len(tokens), places[0], places[-1] + 1)
        ids = tokenizer.build_inputs_with_special_tokens(list(tokens[start : start + room]))
        return _Query(Row(ids), tuple(place - start + 1 for place in places), wanted)

    def _windows(self, tokens: Ids, places: Sequence[int]) -> dict[int, list[int]]:
        """The masks by where the window around each begins: those with the same window are read from one row."""
        last = self._start(len(tokens), len(tokens) - 1, len(tokens))
        half = (self.loaded.max_length - self.loaded.tokenizer.num_special_tokens_to_add() - 1) // 2
        found: dict[int, list[int]] = {}
        for place in places:
            found.setdefault(min(max(0, place - half), last), []).append(place)
        return found

    # -- one text ------------------------------------------------------------------------------------------------------

    def rounds(self, plan: FillPlan) -> _Work[Filled]:
        """A text's work: it asks for queries to be run, is sent their replies, and gives a `Filled` in the end."""
        masks = yield from self._each(plan)
        fillings: tuple[Filling, ...] = ()
        if len(plan.places) == 1:
            fillings = tuple(Filling((one.token,), one.score, one.text) for one in masks[0])
        elif self.joint:
            fillings = yield from self._all(plan)
        return Filled(masks, fillings)

    def _each(self, plan: FillPlan) -> _Work[tuple[tuple[Candidate, ...], ...]]:
        """The candidates of every mask by itself, the others staying masks."""
        tokens, places = plan.tokens, plan.places
        found: list[_Choices] = []
        if self.targets is None:
            windows = self._windows(tokens, places)
            replies = yield [self._query(tokens, group, self.top_k, start) for start, group in windows.items()]
            found = [[((token,), score) for token, score in scored] for reply in replies for scored in reply]
        else:
            for place in places:
                found.append((yield from self._targets_at(tokens, place)))
        return tuple(self._candidates(plan, number, scored[: self.top_k]) for number, scored in enumerate(found))

    def _candidates(self, plan: FillPlan, number: int, scored: _Choices) -> tuple[Candidate, ...]:
        """For one mask of a text; where there are others, these stay in the candidates' texts."""
        tokenizer = self.loaded.tokenizer
        words = [tokenizer.decode(list(ids)) for ids, _ in scored]
        if plan.spans:
            texts = [_written(plan.text, plan.spans[number : number + 1], [word]) for word in words]
        else:
            choices = [list(ids) for ids, _ in scored]
            skip = len(plan.places) == 1
            texts = tokenizer.decode_variants(list(plan.tokens), plan.places[number], choices, skip_special_tokens=skip)
        return tuple(
            Candidate(token=word, score=math.exp(score), text=text, ids=ids)
            for (ids, score), word, text in zip(scored, words, texts, strict=True)
        )

    def _all(self, plan: FillPlan) -> _Work[tuple[Filling, ...]]:
        """The best fillings of all masks, from left to right, `num_beams` kept at every mask."""
        beams = [_Beam(plan.tokens, plan.places)]
        for _ in plan.places:
            if self.targets is None:
                replies = yield [self._query(beam.tokens, beam.places[:1], self.num_beams) for beam in beams]
                choices: list[_Choices] = [[((token,), score) for token, score in reply[0]] for reply in replies]
            else:
                choices = []
                for beam in beams:
                    choices.append((yield from self._targets_at(beam.tokens, beam.places[0])))
            longer = [(beam, ids, score) for beam, scored in zip(beams, choices, strict=True) for ids, score in scored]
            longer.sort(key=lambda one: -(one[0].score + one[2]))
            beams = [_longer(beam, ids, score) for beam, ids, score in longer[: self.num_beams]]
        decode = self.loaded.tokenizer.decode
        found = []
        for beam in beams[: self.top_k]:
            words = tuple(decode(list(ids)) for ids in beam.chosen)
            text = (
                _written(plan.text, plan.spans, words)
                if plan.spans
                else decode(list(beam.tokens), skip_special_tokens=True)
            )
            found.append(Filling(tokens=words, score=math.exp(beam.score), text=text))
        return tuple(found)

    def _targets_at(self, tokens: Ids, place: int) -> _Work[_Choices]:
        """(ids, log-probability) of every target at one mask, best first; those of one length start from one row."""
        assert self.targets is not None
        scores = dict.fromkeys(self.targets, 0.0)
        for piece in range(max(map(len, self.targets))):
            wanted: dict[tuple[int, Ids], list[Ids]] = {}
            for target in self.targets:
                if len(target) > piece:
                    wanted.setdefault((len(target), target[:piece]), []).append(target)
            queries = []
            for (length, known), targets in wanted.items():
                row = _put(tokens, place, (*known, *[self.mask] * (length - piece)))
                next_pieces = tuple(dict.fromkeys(target[piece] for target in targets))
                # The window is laid round all of the target's places, so it is the same one for every piece.
                query = self._query(row, range(place, place + length), next_pieces)
                queries.append(_Query(query.row, query.places[piece : piece + 1], next_pieces))
            replies = yield queries
            for targets, reply in zip(wanted.values(), replies, strict=True):
                found = dict(reply[0])
                for target in targets:
                    scores[target] += found[target[piece]]
        return sorted(scores.items(), key=lambda entry: -entry[1])


fill = function_of(MaskFiller, "fill")


def read_targets(tokenizer: BertTokenizer, targets: str | Iterable[str]) -> tuple[Ids, ...]:
    """The word pieces of every target: the token of that very name, or what the tokenizer makes of it."""
    words = one_or_several(targets)
    if not words:
        raise InputError("targets is empty.", "Pass at least one word, or None for the whole vocabulary.")
    vocabulary = tokenizer.get_vocab()
    found: list[Ids] = []
    for number, word in enumerate(words):
        checked_text(word, f"Target {number}")
        ids = (vocabulary[word],) if word in vocabulary else tuple(tokenizer.encode(word, add_special_tokens=False))
        if not ids:
            raise InputError(f"Target {number} ({word!r}) is empty for this tokenizer.", "Leave it out.")
        if tokenizer.unk_token_id in ids and word != tokenizer.unk_token:
            raise InputError(
                f"Target {number} ({word!r}) has characters that this vocabulary cannot spell.", "Leave it out."
            )
        found.append(ids)
    return tuple(dict.fromkeys(found))


def _read(scores: Tensor, wanted: int | Ids) -> _Reply:
    """`[places, vocabulary]` log-probabilities → what was wanted of each place."""
    if isinstance(wanted, int):
        best, ids = scores.topk(min(wanted, scores.shape[-1]))
        return [list(zip(i, b, strict=True)) for i, b in zip(ids.tolist(), best.tolist(), strict=True)]
    values = scores[:, torch.tensor(wanted, device=scores.device)].tolist()
    return [list(zip(wanted, row, strict=True)) for row in values]


def _written(text: str, spans: Sequence[tuple[int, int]], words: Sequence[str]) -> str:
    """The user's own text with words in the places of masks; a piece that goes on a word joins what is before it.

    >>> _written("A [MASK] Day", [(2, 8)], ["fine"]), _written("Two dog [MASK].", [(8, 14)], ["##s"])
    ('A fine Day', 'Two dogs.')
    """
    parts, done = [], 0
    for (start, end), word in zip(spans, words, strict=True):
        joins = word.startswith("##") and len(word) > 2
        parts += [text[done:start].rstrip(), word[2:]] if joins else [text[done:start], word]
        done = end
    return "".join([*parts, text[done:]])


def _without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """The mask alone: that of some tokenizers (MPNet's) takes the space before it along."""
    found = text[start:end]
    return end - len(found.lstrip()), start + len(found.rstrip())


def _longer(beam: _Beam, ids: Ids, score: float) -> _Beam:
    place, *later = beam.places
    left = tuple(other + len(ids) - 1 for other in later)
    return _Beam(_put(beam.tokens, place, ids), left, (*beam.chosen, ids), beam.score + score)


def _put(tokens: Ids, place: int, ids: Ids) -> Ids:
    return (*tokens[:place], *ids, *tokens[place + 1 :])


def shortened(text: str, size: int = 60) -> str:
    """The beginning of a text, for an error."""
    return text if len(text) <= size else text[: size - 1] + "…"
