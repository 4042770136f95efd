"""Tagged sentences, tokenized: a word's label is on its first piece, its other pieces have none (−100).

A sentence longer than the model is cut between words into rows of their own, and every word is in exactly one of them,
so nothing is lost and nothing counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.config import BertConfig
from bertie.data import BadRows, Reader, Scheme, Sentence, read_conll, tag_scheme, tagged_rows
from bertie.data.source import COMPRESSIONS
from bertie.data.tags import split_tag
from bertie.errors import DataError
from bertie.model.losses import IGNORED
from bertie.running.batching import chunked
from bertie.text import BertTokenizer
from bertie.training.labels import LabelNumbers, label_numbers
from bertie.training.sources import Columns, open_rows, several, source_label
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint

_ROW_FORMATS = {".jsonl", ".ndjson", ".json", ".parquet", ".pq", ".arrow", ".feather", ".ipc"}
_SENTENCES_AT_ONCE = 256


class TagExample(NamedTuple):
    row: TokenRow
    labels: npt.NDArray[np.int64]  # [length], −100 where there is none


@dataclass(frozen=True)
class TagExamples:
    """Rows with a label for every piece (−100 for none), and the sentence and words each row's labels belong to."""

    rows: TokenRows
    labels: npt.NDArray[np.int64]  # [tokens]
    sentences: tuple[Sentence, ...]
    places: tuple[tuple[int, npt.NDArray[np.int64]], ...]  # per row: the sentence, and its labelled words in order
    bad: BadRows

    def __len__(self) -> int:
        return len(self.rows)

    def length(self, index: int) -> int:
        return self.rows.length(index)

    def get(self, index: int, epoch: int) -> TagExample:
        start, end = self.rows.ends[index], self.rows.ends[index + 1]
        return TagExample(self.rows[index], self.labels[start:end])

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.labels)

    def groups(self) -> list[int]:
        """Every sentence is a thing of its own, however many rows it has."""
        return list(range(len(self.sentences)))

    def take(self, things: npt.NDArray[np.int64]) -> TagExamples:
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
        places: list[tuple[int, npt.NDArray[np.int64]]] = []
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
    items: list[Sentence] = []
    for source in several(given):
        items.extend(_reader(source, skip_bad, columns or Columns()).reading(bad))
    return TaggedSentences(items, bad, source_label(next(iter(several(given)))))


def _reader(given: object, skip_bad: bool, columns: Columns) -> Reader[Sentence]:
    if not isinstance(given, str | os.PathLike):
        return tagged_rows(open_rows(given, skip_bad=skip_bad))
    suffixes = [suffix.lower() for suffix in Path(given).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if columns.format not in (None, "conll") or (columns.format is None and suffixes and suffixes[-1] in _ROW_FORMATS):
        return tagged_rows(open_rows(given, skip_bad=skip_bad, columns=columns))
    return read_conll(given, encoding=columns.encoding, skip_bad=skip_bad)


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
