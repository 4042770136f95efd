"""Raw text, tokenized once: documents → sentences → one long array of ids on the disk.

    ids          [tokens]           without special tokens
    sentences    [sentences + 1]    where each sentence begins in ids
    documents    [documents + 1]    which sentence each document begins with

Text comes a sentence to a line, as Google's pretraining takes it, or a paragraph to a line, which is split here; blank
lines are between documents. Which of the two it is can be told, or is looked at (`lines="auto"`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertie.data import BadRows, Document, read_documents
from bertie.data.source import PathLike, check_readable, is_regular
from bertie.errors import DataError
from bertie.text import BertTokenizer
from bertie.training.array_folder import Array, ArrayBuilder, locked, open_arrays
from bertie.training.rows import fingerprint
from bertie.training.sentences import looks_like_sentences, split_sentences

Lines = Literal["auto", "sentences", "paragraphs"]
Progress = Callable[[int, int], None]  # documents and tokens so far

_CHARACTERS_AT_ONCE = 8 << 20  # between two commits
_SENTENCES_AT_ONCE = 8192


@dataclass(frozen=True)
class TokenizedCorpus:
    """The arrays of a corpus, mapped; `fingerprint` names text, tokenizer and settings."""

    ids: Array
    sentences: Array
    documents: Array
    fingerprint: str
    lines: str
    skipped: str = ""  # what was left out, for people

    @property
    def num_tokens(self) -> int:
        return int(self.sentences[self.documents[-1]] - self.sentences[self.documents[0]])

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    def document_bounds(self) -> Array:
        """`[documents + 1]`: where each document begins in ids."""
        return np.asarray(self.sentences[np.asarray(self.documents)])

    def split(self, share: float) -> tuple[TokenizedCorpus, TokenizedCorpus]:
        """Two corpora out of whole documents; the second are the last ones, and hold about this share of the tokens."""
        if not 0 < share < 1:
            raise DataError(f"dev_share is {share}; it takes a number between 0 and 1.")
        if self.num_documents < 4:
            raise DataError(
                f"The corpus has {self.num_documents} documents, too few to hold some out.", "Give a development file."
            )
        bounds = self.document_bounds()
        cut = int(np.searchsorted(bounds, bounds[0] + (1 - share) * (bounds[-1] - bounds[0])))
        cut = min(max(cut, 2), self.num_documents - 2)
        halves = ((slice(0, cut + 1), "first"), (slice(cut, None), "last"))
        first, last = (
            replace(self, documents=self.documents[part], fingerprint=fingerprint(self.fingerprint, cut, name))
            for part, name in halves
        )
        return first, last


def tokenize_corpus(
    paths: Sequence[PathLike],
    tokenizer: BertTokenizer,
    folder: str | os.PathLike[str],
    *,
    lines: Lines = "auto",
    encoding: str = "utf-8",
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> TokenizedCorpus:
    """Tokenize files into `folder`, or open what is there already of the same text, tokenizer and settings."""
    if not paths:
        raise DataError("No corpus was given.", "Name one text file or more.")
    for path in paths:
        check_readable(path)
        if not is_regular(path):
            raise DataError(f"{path}: a corpus is read more than once, so it cannot be a pipe.", "Save it to a file.")
    if lines not in ("auto", "sentences", "paragraphs"):
        raise DataError(f"lines={lines!r} is not known.", "Use 'auto', 'sentences' or 'paragraphs'.")
    key = {
        "format": "bertie tokenized corpus 1",
        "files": [_file_hash(path) for path in paths],
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "lines": lines,
        "encoding": encoding,
        "skip_bad": skip_bad,
    }
    target = Path(folder)
    with locked(target):
        found = open_arrays(target, key)
        if found is None:
            _build(paths, tokenizer, target, key, progress)
            found = open_arrays(target, key)
    if found is None:
        raise DataError(f"{target}: what was written there reads back differently.", "Check the disk.")
    arrays, notes = found
    return TokenizedCorpus(
        arrays["ids"], arrays["sentences"], arrays["documents"], fingerprint(key), notes["lines"], notes["skipped"]
    )


def _build(
    paths: Sequence[PathLike],
    tokenizer: BertTokenizer,
    folder: Path,
    key: dict[str, Any],
    progress: Progress | None,
) -> None:
    small = max(tokenizer.get_vocab().values()) < 2**16
    columns = {"ids": "<u2" if small else "<u4", "sentences": "<i8", "documents": "<i8"}
    with ArrayBuilder(folder, key, columns) as builder:
        reader = read_documents(paths, encoding=key["encoding"], skip_bad=key["skip_bad"])
        by_line = key["lines"] == "sentences"
        if key["lines"] == "auto":
            by_line = looks_like_sentences(_first_lines(paths, key["encoding"]))
        if not builder.done:
            builder.append(sentences=np.zeros(1), documents=np.zeros(1))
        bad = BadRows(skip=key["skip_bad"])
        documents = reader.reading(bad)
        done = sum(1 for _ in zip(range(builder.done), documents, strict=False))  # passed over: they are there already
        for block in _ahead(_blocks(documents, by_line)):
            _append(builder, tokenizer, block)
            done += len(block.counts)
            builder.commit(done)
            if progress is not None:
                progress(done, builder.counts["ids"])
        if not builder.counts["ids"]:
            raise DataError(f"{paths[0]}: there is no text in it.", "Check the file.")
        builder.notes = {"lines": "sentences" if by_line else "paragraphs", "skipped": bad.summary()}
        builder.finish()


class _Block(NamedTuple):
    """The sentences of some documents, and how many each has."""

    texts: list[str]
    counts: list[int]


def _blocks(documents: Iterator[Document], by_line: bool) -> Iterator[_Block]:
    block = _Block([], [])
    size = 0
    for document in documents:
        before = len(block.texts)
        block.texts.extend(document.lines if by_line else chain.from_iterable(map(split_sentences, document.lines)))
        block.counts.append(len(block.texts) - before)
        size += sum(map(len, document.lines))
        if size >= _CHARACTERS_AT_ONCE:
            yield block
            block, size = _Block([], []), 0
    if block.counts:
        yield block


def _ahead(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """One block is read and split while the one before it is tokenized, which Rust does outside Python's lock."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block


def _append(builder: ArrayBuilder, tokenizer: BertTokenizer, block: _Block) -> None:
    texts, counts = block
    lengths: list[int] = []
    for start in range(0, len(texts), _SENTENCES_AT_ONCE):
        # [CLS] and [SEP] are put on by the tokenizer; here sentences are wanted bare.
        rows = tokenizer.encode_ids(texts[start : start + _SENTENCES_AT_ONCE])
        sizes = [len(row) - 2 for row in rows]
        flat = np.fromiter(chain.from_iterable(row[1:-1] for row in rows), dtype=np.int64, count=sum(sizes))
        builder.append(ids=flat)
        lengths.extend(sizes)
    # Sentences without any token (nothing but control characters) are left out, and documents without sentences.
    sizes_array = np.asarray(lengths, dtype=np.int64)
    first = builder.counts["ids"] - int(sizes_array.sum())
    builder.append(sentences=(first + np.cumsum(sizes_array))[sizes_array > 0])
    kept = np.add.reduceat(np.append(sizes_array > 0, False).astype(np.int64), np.cumsum([0, *counts[:-1]]))
    kept[np.asarray(counts) == 0] = 0
    before = builder.counts["sentences"] - 1 - int(kept.sum())
    builder.append(documents=(before + np.cumsum(kept))[kept > 0])


def _first_lines(paths: Sequence[PathLike], encoding: str) -> Iterator[str]:
    for document in read_documents(list(paths), encoding=encoding, skip_bad=True, max_lines=64):
        yield from document.lines


def _file_hash(path: PathLike) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenizer_fingerprint(tokenizer: BertTokenizer) -> str:
    """A hash of the vocabulary, the special tokens, and of how a text full of hard cases comes out."""
    probe = "Ünïcödé ÉCOLE don't 漢字kanji\u200b U.S. naïve–café ½ İstanbul ##ing [MASK] " + "x" * 150
    vocabulary = sorted(tokenizer.get_vocab().items())
    return fingerprint(vocabulary, tokenizer.special_tokens_map, tokenizer.encode_ids([probe]))
