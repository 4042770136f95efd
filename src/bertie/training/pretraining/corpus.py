"""Raw text, tokenized once: documents → sentences → one long array of ids on the disk.

    ids          [tokens]           without special tokens
    sentences    [sentences + 1]    where each sentence begins in ids
    documents    [documents + 1]    which sentence each document begins with

Text has one sentence per line, as Google's pretraining takes it, or one paragraph, which is split here; blank
lines are between documents. Which of the two it is can be said, or is looked at (`lines="auto"`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, get_args

import numpy as np

from bertie.arguments import number, one_of
from bertie.data import BadRows, Document, read_documents
from bertie.data.source import PathLike, check_readable, is_regular
from bertie.errors import DataError
from bertie.files import sha256
from bertie.text import BertTokenizer
from bertie.text.corpus.documents import TokenizedDocuments, looks_like_sentences, text_size, tokenize_documents
from bertie.text.corpus.processes import in_order, num_processes
from bertie.training.metrics import Array
from bertie.training.pretraining.array_folder import ArrayBuilder, locked, open_arrays
from bertie.training.token_rows import fingerprint

Lines = Literal["auto", "sentences", "paragraphs"]
# Documents done so far, what was made of them (tokens, pairs), and which share of the work that is; at every commit.
Progress = Callable[[int, int, float], None]

LARGE = 20 << 20  # characters from which on several processes are worth their start
_CHARACTERS_AT_ONCE = 8 << 20  # between two commits
_CHARACTERS_IN_A_PIECE = 1 << 20  # of them, that a process gets at a time


class CorpusKey(TypedDict):
    """What the arrays are made of; the same key makes the same bytes."""

    format: str
    files: list[str]
    tokenizer: str
    lines: Lines
    encoding: str
    skip_bad: bool


@dataclass(frozen=True)
class TokenizedCorpus:
    """The arrays of a corpus, mapped; `fingerprint` names text, tokenizer and settings."""

    ids: Array
    sentences: Array
    documents: Array
    fingerprint: str
    lines: str
    skipped: str = ""  # what was left out, for people
    sentences_file: str | None = None  # where `sentences` is mapped from

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
        number("dev_share", share, above=0, below=1, error=DataError)
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
    processes: int | None = None,
) -> TokenizedCorpus:
    """Tokenize files into `folder`, or open what is there already of the same text, tokenizer and settings.

    `processes` share the work; by default as many as there are cores, eight at most, for 20 MB of text and more. The
    bytes are the same with any number of them.
    """
    if not paths:
        raise DataError("No corpus was given.", "Name one text file or more.")
    for path in paths:
        check_readable(path)
        if not is_regular(path):
            raise DataError(f"{path}: a corpus is read more than once, so it cannot be a pipe.", "Save it to a file.")
    one_of("lines", lines, get_args(Lines), DataError)
    key: CorpusKey = {
        "format": "bertie tokenized corpus 1",
        "files": [sha256(path) for path in paths],
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "lines": lines,
        "encoding": encoding,
        "skip_bad": skip_bad,
    }
    target = Path(folder)
    with locked(target):
        found = open_arrays(target, key)
        if found is None:
            _build(paths, tokenizer, target, key, progress, processes)
            found = open_arrays(target, key)
    if found is None:
        raise DataError(f"{target}: what was written there reads back differently.", "Check the disk.")
    arrays, notes = found
    return TokenizedCorpus(
        arrays["ids"], arrays["sentences"], arrays["documents"], fingerprint(key), notes["lines"], notes["skipped"],
        str(target / "sentences.bin"),
    )  # fmt: skip


def _build(
    paths: Sequence[PathLike],
    tokenizer: BertTokenizer,
    folder: Path,
    key: CorpusKey,
    progress: Progress | None,
    processes: int | None,
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
        size = sum(map(text_size, paths))
        pieces = _Pieces(reader.reading(bad), passed_over=builder.done)
        setup = (tokenizer, by_line, columns["ids"])
        number = num_processes(processes, worth_it=size >= LARGE)
        with closing(in_order(tokenize_documents, pieces, setup=setup, processes=number)) as made:
            for part in made:
                _append(builder, part)
                piece = pieces.given.popleft()
                if piece.last:
                    builder.commit(piece.done)
                    if progress is not None:
                        progress(piece.done, builder.counts["ids"], min(1.0, piece.characters / max(1, size)))
        if not builder.counts["ids"]:
            raise DataError(f"{paths[0]}: there is no text in it.", "Check the file.")
        builder.notes = {"lines": "sentences" if by_line else "paragraphs", "skipped": bad.summary()}
        builder.finish()


class _Piece(NamedTuple):
    """What is known of a piece that was given out: documents and characters up to its end, and is a commit due?"""

    done: int
    characters: int
    last: bool


class _Pieces:
    """A corpus in pieces of whole documents; `given` are those given out, which whoever gets the results takes off."""

    def __init__(self, documents: Iterator[Document], *, passed_over: int) -> None:
        self.documents, self.passed_over = documents, passed_over
        self.given: deque[_Piece] = deque()

    def __iter__(self) -> Iterator[list[tuple[str, ...]]]:
        lines: list[tuple[str, ...]] = []
        done = characters = in_piece = in_block = 0
        for document in self.documents:
            done += 1
            size = sum(map(len, document.lines))
            characters += size + len(document.lines)
            if done <= self.passed_over:  # it is there already
                continue
            lines.append(document.lines)
            in_piece, in_block = in_piece + size, in_block + size
            last = in_block >= _CHARACTERS_AT_ONCE
            if last or in_piece >= _CHARACTERS_IN_A_PIECE:
                self.given.append(_Piece(done, characters, last))
                yield lines
                lines, in_piece, in_block = [], 0, 0 if last else in_block
        # The last commit may have nothing new to say: then the one before it was at the very end.
        if lines or in_block:
            self.given.append(_Piece(done, characters, last=True))
            yield lines


def _append(builder: ArrayBuilder, part: TokenizedDocuments) -> None:
    """Sentences without any token (nothing but control characters) are left out, and documents without sentences."""
    ids, lengths, counts = part
    first = builder.counts["ids"]
    builder.append(ids=ids, sentences=(first + np.cumsum(lengths))[lengths > 0])
    # How many sentences each document keeps: the kept ones before its end, less those before its beginning.
    before = np.concatenate([[0], np.cumsum(lengths > 0)])
    kept = np.diff(before[np.concatenate([[0], np.cumsum(counts)])])
    sentences = builder.counts["sentences"] - 1 - int(kept.sum())
    builder.append(documents=(sentences + np.cumsum(kept))[kept > 0])


def _first_lines(paths: Sequence[PathLike], encoding: str) -> Iterator[str]:
    for document in read_documents(list(paths), encoding=encoding, skip_bad=True, max_lines=64):
        yield from document.lines


def tokenizer_fingerprint(tokenizer: BertTokenizer) -> str:
    """A hash of the vocabulary, the special tokens, and of how a text full of hard cases comes out."""
    probe = "Ünïcödé ÉCOLE don't 漢字kanji\u200b U.S. naïve–café ½ İstanbul ##ing [MASK] " + "x" * 150
    vocabulary = sorted(tokenizer.get_vocab().items())
    return fingerprint(vocabulary, tokenizer.special_tokens_map, tokenizer.encode_ids([probe]))
