"""What a model is pretrained on, out of a tokenized corpus: sentence pairs as Google made them, or plain sequences.

`make_pairs` makes the pairs of text/corpus/sentence_pairs.py, once, into a folder. A pair is two pieces of the
corpus, so five numbers keep it; the ids stay where they are. Masking comes when a batch is made (masking.py):
`masking="static"` masks an example the same way in every epoch, as Google's files do, "dynamic" differently each time.
Chance is decided by (seed, pass, document) and (seed, epoch, index), so a build can be resumed, or shared by
several processes, and the same seed makes the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise, tee
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bertie.errors import ConfigError, DataError
from bertie.text import BertTokenizer
from bertie.text.corpus.processes import in_order, num_processes
from bertie.text.corpus.sentence_pairs import COLUMNS, Bounds, PairRules, example_key, pairs_of_part
from bertie.training.contract import Examples, Numbers
from bertie.training.metrics import Array
from bertie.training.pretraining.array_folder import ArrayBuilder, locked, open_arrays
from bertie.training.pretraining.corpus import LARGE, Progress, TokenizedCorpus
from bertie.training.token_rows import TokenRow, fingerprint

Masking = Literal["static", "dynamic"]
_DOCUMENTS_AT_ONCE = 512  # between two commits
_TOKENS_AT_ONCE = 1 << 17  # of them, that a process gets at a time
_SHORTEST = 5  # a shorter end of a document is not worth a sequence


class PretrainingExample(NamedTuple):
    """A sequence before masking; `key` decides its masks, `is_random` is the next-sentence label (None: no pair)."""

    row: TokenRow
    key: int
    is_random: int | None


@dataclass(frozen=True)
class PairExamples(Examples[PretrainingExample]):
    """`[CLS] A [SEP] B [SEP]` with a next-sentence label: 0 where B follows A, 1 where it is random."""

    corpus: TokenizedCorpus
    pairs: dict[str, Array]
    rules: PairRules
    cls_id: int
    sep_id: int
    masking: Masking = "static"

    def __len__(self) -> int:
        return len(self.pairs["is_random"])

    def length(self, index: int) -> int:
        return int(self.pairs["a_size"][index]) + int(self.pairs["b_size"][index]) + 3

    def lengths(self) -> Numbers:
        return np.asarray(self.pairs["a_size"].astype(np.int64) + self.pairs["b_size"] + 3)

    def get(self, index: int, epoch: int) -> PretrainingExample:
        pairs, ids = self.pairs, self.corpus.ids
        a, a_size = int(pairs["a_start"][index]), int(pairs["a_size"][index])
        b, b_size = int(pairs["b_start"][index]), int(pairs["b_size"][index])
        row = np.empty(a_size + b_size + 3, dtype=np.int64)
        row[0], row[a_size + 1], row[-1] = self.cls_id, self.sep_id, self.sep_id
        row[1 : a_size + 1] = ids[a : a + a_size]
        row[a_size + 2 : -1] = ids[b : b + b_size]
        key = example_key(self.rules.seed, epoch if self.masking == "dynamic" else 0, index)
        return PretrainingExample(TokenRow(row, a_size + 2), key, int(pairs["is_random"][index]))

    def fingerprint(self) -> str:
        return fingerprint(self.corpus.fingerprint, vars(self.rules), self.masking)


def make_pairs(
    corpus: TokenizedCorpus,
    tokenizer: BertTokenizer,
    folder: str | os.PathLike[str],
    *,
    rules: PairRules | None = None,
    masking: Masking = "static",
    progress: Progress | None = None,
    processes: int | None = None,
) -> PairExamples:
    """The pairs of a corpus, from `folder` if they are there; made by several `processes` if there are many."""
    rules = rules or PairRules()
    cls_id, sep_id = _special(tokenizer)
    if corpus.num_documents < 2:
        raise DataError(
            "The corpus has one document; next sentences are drawn from another one.",
            "Put blank lines between documents, or train on masked words alone.",
        )
    key = {"format": "bertie sentence pairs 1", "corpus": corpus.fingerprint, **vars(rules)}
    target = Path(folder)
    with locked(target):
        found = open_arrays(target, key)
        if found is None:
            # A token is about four characters, and gone through dupe_factor times.
            many = 4 * corpus.num_tokens * rules.dupe_factor >= LARGE
            with ArrayBuilder(target, key, COLUMNS) as builder:
                _build_pairs(builder, corpus, rules, progress, num_processes(processes, worth_it=many))
            found = open_arrays(target, key)
    if found is None:
        raise DataError(f"{target}: what was written there reads back differently.", "Check the disk.")
    return PairExamples(corpus, found[0], rules, cls_id, sep_id, masking)


def _build_pairs(
    builder: ArrayBuilder, corpus: TokenizedCorpus, rules: PairRules, progress: Progress | None, processes: int
) -> None:
    total = rules.dupe_factor * corpus.num_documents
    parts, ends = tee(_parts(builder.done, total, np.diff(corpus.document_bounds())))
    bounds = Bounds(corpus.sentences, corpus.documents, file=corpus.sentences_file)
    with closing(in_order(pairs_of_part, parts, setup=(bounds, rules), processes=processes)) as made:
        for (_, end), columns in zip(ends, made, strict=True):
            builder.append(**columns)
            if end % _DOCUMENTS_AT_ONCE == 0 or end == total:
                builder.commit(end)
                if progress is not None:
                    progress(end, builder.counts["is_random"], end / total)
    builder.finish()


def _parts(start: int, total: int, sizes: Array) -> Iterator[tuple[int, int]]:
    """(first, end) of parts of the work, none of which goes past a commit; long documents are in smaller ones."""
    for first in range(start, total, _DOCUMENTS_AT_ONCE):
        end = min(first + _DOCUMENTS_AT_ONCE, total)
        filled = np.cumsum(sizes[np.arange(first, end) % len(sizes)]) // _TOKENS_AT_ONCE
        cuts = [first, *(first + 1 + np.flatnonzero(np.diff(filled))).tolist(), end]
        yield from pairwise(cuts)


@dataclass(frozen=True)
class SequenceExamples(Examples[PretrainingExample]):
    """`[CLS] tokens [SEP]`: every document cut into sequences of `max_length`, for masked words alone."""

    corpus: TokenizedCorpus
    starts: Array
    sizes: Array
    max_length: int
    cls_id: int
    sep_id: int
    seed: int
    masking: Masking = "dynamic"

    @classmethod
    def of(
        cls,
        corpus: TokenizedCorpus,
        tokenizer: BertTokenizer,
        *,
        max_length: int = 128,
        seed: int = 12345,
        masking: Masking = "dynamic",
    ) -> SequenceExamples:
        if max_length < 8:
            raise ConfigError("{max_length:is} a sequence needs at least 8.", max_length=max_length)
        room = max_length - 2
        bounds = corpus.document_bounds()
        sizes = np.diff(bounds)
        counts = -(-sizes // room)
        offsets = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * room
        starts = np.repeat(bounds[:-1], counts) + offsets
        lengths = np.minimum(room, np.repeat(bounds[1:], counts) - starts)
        kept = (lengths >= _SHORTEST) | (offsets == 0)  # a document that is short altogether stays
        return cls(corpus, starts[kept], lengths[kept], max_length, *_special(tokenizer), seed, masking)

    def __len__(self) -> int:
        return len(self.starts)

    def length(self, index: int) -> int:
        return int(self.sizes[index]) + 2

    def lengths(self) -> Numbers:
        return np.asarray(self.sizes + 2)

    def get(self, index: int, epoch: int) -> PretrainingExample:
        start, size = int(self.starts[index]), int(self.sizes[index])
        row = np.empty(size + 2, dtype=np.int64)
        row[0], row[-1] = self.cls_id, self.sep_id
        row[1:-1] = self.corpus.ids[start : start + size]
        key = example_key(self.seed, epoch if self.masking == "dynamic" else 0, index)
        return PretrainingExample(TokenRow(row, size + 2), key, None)

    def fingerprint(self) -> str:
        return fingerprint(self.corpus.fingerprint, [self.max_length, self.seed, self.masking])


def _special(tokenizer: BertTokenizer) -> tuple[int, int]:
    cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if cls_id is None or sep_id is None:
        raise ConfigError("The vocabulary has no [CLS] or [SEP].", "Pretraining frames its sequences with them.")
    return cls_id, sep_id
