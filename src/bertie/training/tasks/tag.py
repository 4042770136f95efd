"""A label for every word: `BertForTokenClassification`, judged by whole entities.

A word's label is on its first piece, its other pieces have none (−100). A sentence longer than the model is cut between
words into rows of their own, and every word is in exactly one of them, so nothing is lost and nothing counted twice.

An entity is right when its type and both its ends are. Tags are read as conlleval and `seqeval` (Nakayama 2018) read
them: an `I-` that continues nothing begins an entity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bertie.config import BertConfig
from bertie.data import BadRows, Reader, Scheme, Sentence, read_conll, tag_scheme, tagged_rows
from bertie.data.source import COMPRESSIONS
from bertie.data.tags import OUTSIDE, split_tag, tag_spans
from bertie.errors import DataError, InputError
from bertie.model import BertForTokenClassification
from bertie.model.losses import IGNORED
from bertie.running.batching import chunked
from bertie.text import BertTokenizer
from bertie.training.contract import Batch, Examples, LabelObjective, Numbers, RowExamples, own_examples
from bertie.training.sources import Columns, LabelNumbers, Source, label_numbers, sources_of
from bertie.training.task import LoadedTask, Request, Task, notes_of
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint, pack

_ROW_FORMATS = {".jsonl", ".ndjson", ".json", ".parquet", ".pq", ".arrow", ".feather", ".ipc"}
_SENTENCES_AT_ONCE = 256


def load(request: Request) -> LoadedTask:
    options = request.options
    sentences, dev_sentences = request.both(
        lambda given: read_tagged(given, skip_bad=options.skip_bad, columns=options.columns)
    )
    labels = sentences.label_numbers(request.config())
    model = request.load(BertForTokenClassification, id2label=labels.id2label)
    length = request.max_length(model)
    train = sentences.encode(request.tokenizer, max_length=length, labels=labels)
    dev = None if dev_sentences is None else dev_sentences.encode(request.tokenizer, max_length=length, labels=labels)
    kind = Tagging if sentences.scheme() != "plain" else WordTagging
    objective = kind(
        model,
        request.tokenizer,
        label_smoothing=options.label_smoothing,
        class_weights=request.class_weights(labels, train.labels[train.labels >= 0]),
        best_metric=options.best_metric,
    )
    return LoadedTask(objective, train, dev, notes_of(train, dev, labels), max_length=length)


_FIGURES = ("f1", "precision", "recall", "f1_macro", "f1[TYPE]", "accuracy", "loss")
TASKS = (Task("tag", _FIGURES, load, reported=("label_smoothing",)),)


# -- examples ----------------------------------------------------------------------------------------------------------


class TagExample(NamedTuple):
    row: TokenRow
    labels: Numbers  # [length], −100 where there is none


@dataclass(frozen=True)
class TagExamples(RowExamples[TagExample]):
    """Rows with a label for every piece (−100 for none), and the sentence and words each row's labels belong to."""

    labels: Numbers  # [tokens]
    sentences: tuple[Sentence, ...]
    places: tuple[tuple[int, Numbers], ...]  # per row: the sentence, and its labelled words in order
    bad: BadRows

    def get(self, index: int, epoch: int) -> TagExample:
        start, end = self.rows.ends[index], self.rows.ends[index + 1]
        return TagExample(self.rows[index], self.labels[start:end])

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.labels)

    def groups(self) -> list[int]:
        """Every sentence is a thing of its own, however many rows it has."""
        return list(range(len(self.sentences)))

    def take(self, things: Numbers) -> TagExamples:
        """These sentences alone."""
        number = {int(sentence): place for place, sentence in enumerate(things)}
        kept = np.asarray([row for row, (sentence, _) in enumerate(self.places) if sentence in number], dtype=np.int64)
        labels = [self.labels[self.rows.ends[row] : self.rows.ends[row + 1]] for row in kept]
        return TagExamples(
            self.rows.take(kept),
            np.concatenate(labels),
            tuple(self.sentences[sentence] for sentence in number),
            tuple((number[self.places[row][0]], self.places[row][1]) for row in kept),
            self.bad,
        )


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences as they were read."""

    items: list[Sentence]
    bad: BadRows
    source: str

    def scheme(self) -> Scheme:
        """The scheme of the tags; "plain" for tags that are no spans, such as parts of speech."""
        try:
            return tag_scheme(self.items, source=self.source)
        except DataError:
            # Spans that follow no one scheme are still read as conlleval reads them; a tag without prefix is an error.
            for sentence in self.items:
                for index, tag in enumerate(sentence.tags):
                    _check_span(tag, sentence.where(index))
            return "BIO"

    def label_numbers(self, config: BertConfig | None = None) -> LabelNumbers:
        tags = {tag for sentence in self.items for tag in sentence.tags}
        return label_numbers(tags, config=config, tags=True, source=self.source)

    def encode(self, tokenizer: BertTokenizer, *, max_length: int, labels: LabelNumbers) -> TagExamples:
        kept: list[Sentence] = []
        rows: list[tuple[list[int], None]] = []
        flat: list[int] = []
        places: list[tuple[int, Numbers]] = []
        for sentence, numbers, ids, words in self._tokenized(tokenizer, labels):
            for start, end in _cuts(words, max_length - tokenizer.num_special_tokens_to_add()):
                rows.append((tokenizer.build_inputs_with_special_tokens(ids[start:end]), None))
                firsts = [t for t in range(start, end) if t == 0 or words[t] != words[t - 1]]
                places.append((len(kept), np.asarray([words[t] for t in firsts], dtype=np.int64)))
                marks = [IGNORED] * (end - start)
                for token in firsts:
                    marks[token - start] = numbers[words[token]]
                flat += [IGNORED, *marks, IGNORED]
            kept.append(sentence)
        if not rows:
            raise DataError(f"{self.source} has no sentences to use.", "Check the file and its tags.")
        return TagExamples(TokenRows.of(rows), np.asarray(flat, dtype=np.int64), tuple(kept), tuple(places), self.bad)

    def _tokenized(
        self, tokenizer: BertTokenizer, labels: LabelNumbers
    ) -> Iterator[tuple[Sentence, list[int], list[int], list[int]]]:
        """(sentence, a number per word, ids without special tokens, the word of each)."""
        known: list[tuple[Sentence, list[int]]] = []
        for sentence in self.items:
            try:
                if len(sentence.tags) != len(sentence.tokens):
                    raise DataError(f"{sentence.where(0)}: the sentence has no tags.", "Training needs tags.")
                numbers = [labels.number(tag, sentence.where(i)) for i, tag in enumerate(sentence.tags)]
            except DataError as error:
                self.bad.report(error)
                continue
            known.append((sentence, numbers))
        for chunk in chunked(known, _SENTENCES_AT_ONCE):
            encoded = tokenizer(
                [list(sentence.tokens) for sentence, _ in chunk],
                is_split_into_words=True,
                add_special_tokens=False,
                return_offsets_mapping=True,
                truncation=False,
            )
            for place, (sentence, numbers) in enumerate(chunk):
                row = encoded[place]
                words = [word if word is not None else 0 for word in row.word_ids]
                if words:  # nothing but characters that are dropped has no pieces
                    yield sentence, numbers, row.ids, words


def read_tagged(given: object, *, skip_bad: bool = False, columns: Columns | None = None) -> TaggedSentences:
    """All sentences of CoNLL files, or of rows with lists of tokens and tags."""
    bad = BadRows(skip=skip_bad)
    sources = sources_of(given, columns)
    items = [sentence for source in sources for sentence in _reader(source, skip_bad).reading(bad)]
    return TaggedSentences(items, bad, sources[0].name)


def _reader(source: Source, skip_bad: bool) -> Reader[Sentence]:
    if source.path is None:
        return tagged_rows(source.open(skip_bad=skip_bad))
    suffixes = [suffix.lower() for suffix in Path(source.path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    how = source.columns
    if how.format not in (None, "conll") or (how.format is None and suffixes and suffixes[-1] in _ROW_FORMATS):
        return tagged_rows(source.open(skip_bad=skip_bad))
    return read_conll(source.path, encoding=how.encoding, skip_bad=skip_bad)


def _check_span(tag: str, where: str) -> None:
    try:
        split_tag(tag, where=where)
    except DataError as error:  # it is the file's tags together that follow no scheme: no row to skip
        raise DataError(error.cause, "Correct it: either all tags are O and spans such as B-PER, or none is.") from None


def _cuts(words: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """(start, end) of pieces of at most `room` tokens that end between words; a longer word loses its end."""
    start = 0
    while start < len(words):
        end = min(start + room, len(words))
        if end < len(words) and words[end] == words[end - 1]:
            whole = end
            while whole > start and words[whole - 1] == words[end]:
                whole -= 1
            if whole > start:
                end = whole
            else:
                yield start, end
                while end < len(words) and words[end] == words[start]:
                    end += 1
                start = end
                continue
        yield start, end
        start = end


# -- objective ---------------------------------------------------------------------------------------------------------


class Tagging(LabelObjective[TagExample]):
    """Cross-entropy over the first pieces of words. Units are those pieces, or with `class_weights` their weights."""

    name = "tag"
    spans = True  # False for tags that are no entities (parts of speech): they are judged word by word

    def default_metric(self) -> str:
        return "f1" if self.spans else "accuracy"

    def collate(self, examples: Sequence[TagExample]) -> Batch:
        labels = torch.from_numpy(np.concatenate([example.labels for example in examples]))
        tensors = pack([example.row for example in examples]) | {"labels": labels}
        kept = labels[labels != IGNORED]
        units = float(len(kept)) if self.class_weights is None else float(self.class_weights[kept].sum())
        return Batch(tensors, units, len(labels), len(examples))

    def metric_names(self, dev: Examples[TagExample]) -> tuple[str, ...]:
        """F1 by type for the types that the development data has."""
        if not self.spans:
            return "accuracy", "loss"
        sentences = own_examples(dev, TagExamples, self).sentences
        types = sorted({span.type for sentence in sentences for span in tag_spans(sentence.tags)})
        return ("f1", "precision", "recall", "f1_macro", *(f"f1[{kind}]" for kind in types), "accuracy", "loss")

    def evaluate(
        self, model: nn.Module, examples: Examples[TagExample], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        data = own_examples(examples, TagExamples, self)
        names = self.model.config.id2label
        default = OUTSIDE if OUTSIDE in names.values() else names[0]
        predicted = [[default] * len(sentence.tokens) for sentence in data.sentences]
        total = units = 0.0
        for indices, batch, logits, loss in self.scored(model, data, token_budget, device):
            total, units = total + loss, units + batch.units
            best = logits.argmax(dim=-1).cpu().numpy()
            marked = (batch.tensors["labels"] != IGNORED).cpu().numpy()
            ends = batch.tensors["cu_seqlens"].tolist()
            for place, index in enumerate(indices):
                here = slice(ends[place], ends[place + 1])
                sentence, words = data.places[index]
                for word, label in zip(words, best[here][marked[here]], strict=True):
                    predicted[sentence][word] = names[int(label)]
        gold = [sentence.tags for sentence in data.sentences]
        words_right = sum(
            a == b for ours, theirs in zip(predicted, gold, strict=True) for a, b in zip(ours, theirs, strict=True)
        )
        figures = {"loss": total / max(units, 1e-12), "accuracy": words_right / max(1, sum(map(len, gold)))}
        if not self.spans:
            return figures
        scores = entity_scores(predicted, gold)
        figures |= {"f1": scores.micro.f1, "precision": scores.micro.precision, "recall": scores.micro.recall}
        figures |= {"f1_macro": scores.macro_f1}
        return figures | {f"f1[{kind}]": score.f1 for kind, score in scores.by_type.items() if score.support}


class WordTagging(Tagging):
    """Tags that are no entities."""

    spans = False


# -- entities ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntityScore:
    """Of one type, or over all of them; `support` counts the true entities."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class EntityScores:
    """Over all entities (micro), by type, and the plain mean of the types' F1 (macro)."""

    micro: EntityScore
    macro_f1: float
    by_type: dict[str, EntityScore]


def entity_scores(predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]) -> EntityScores:
    """Score sentences of tags, e.g. `[["B-PER", "I-PER", "O"]]`."""
    right: Counter[str] = Counter()
    found: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for number, (ours, theirs) in enumerate(zip(predicted, gold, strict=True)):
        if len(ours) != len(theirs):
            raise InputError(f"Sentence {number} has {len(theirs)} tags, and {len(ours)} were predicted.")
        spans = [set(tag_spans(tags)) for tags in (ours, theirs)]
        found.update(span.type for span in spans[0])
        wanted.update(span.type for span in spans[1])
        right.update(span.type for span in spans[0] & spans[1])
    by_type = {kind: _score(right[kind], found[kind], wanted[kind]) for kind in sorted({*found, *wanted})}
    macro = sum(score.f1 for score in by_type.values()) / len(by_type) if by_type else 0.0
    return EntityScores(_score(right.total(), found.total(), wanted.total()), macro, by_type)


def _score(right: int, found: int, wanted: int) -> EntityScore:
    precision = right / found if found else 0.0
    recall = right / wanted if wanted else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return EntityScore(precision, recall, f1, wanted)
