"""Documents to sentences to ids, a piece of a corpus at a time: what the processes that prepare a corpus run.

Paragraphs are split simply: after . ! or ? (and closing quotes) where a capital, a digit or a quote follows. Known
abbreviations (Mr., Dr., U.S.) and single initials (J. Smith) end nothing. It is a splitter for pretraining data, where
a sentence now and then cut wrongly costs nothing; what matters is that it is fast and always the same.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.text.tokenizer import BertTokenizer

_SENTENCES_AT_ONCE = 8192
_UNPACKED = 1 << 18  # bytes of a packed file, to tell how far it unpacks
_TITLES = ("mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "messrs", "mme", "mlle", "rev", "hon", "esq")
_OTHERS = ("gen", "col", "capt", "lt", "sgt", "no", "vol", "fig", "vs", "etc", "e.g", "i.e", "cf", "al")
_ABBREVIATIONS = frozenset((*_TITLES, *_OTHERS))
# Only the first of a row of stops begins an end: looking again from each would take as long as their number squared.
_END = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’»)\]]*\s+(?=[\"'“‘«(\[]*[A-Z0-9À-ÖØ-Þ])")
_END_CJK = re.compile(_END.pattern + "|[。！？]+[」』”’）]*")
_LAST_WORD = re.compile(r"([^\s\"'“‘«(\[]*)$")
_LONGEST_ABBREVIATION = 16
_LINES_LOOKED_AT = 400  # lines, to tell sentences from paragraphs


class TokenizedDocuments(NamedTuple):
    """Sentences end to end, without special tokens."""

    ids: npt.NDArray[Any]  # [tokens]
    lengths: npt.NDArray[np.int64]  # [sentences]
    counts: npt.NDArray[np.int64]  # [documents]: the sentences of each


def tokenize_documents(
    documents: Sequence[Sequence[str]], tokenizer: BertTokenizer, by_line: bool, dtype: str
) -> TokenizedDocuments:
    """The lines of some documents as ids; a line is a sentence (`by_line`) or a paragraph, which is split."""
    texts: list[str] = []
    counts: list[int] = []
    for lines in documents:
        before = len(texts)
        texts.extend(lines if by_line else chain.from_iterable(map(split_sentences, lines)))
        counts.append(len(texts) - before)
    parts: list[npt.NDArray[Any]] = []
    lengths: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(texts), _SENTENCES_AT_ONCE):
        ids, sizes = tokenizer.encode_flat(texts[start : start + _SENTENCES_AT_ONCE])
        # [CLS] and [SEP] are put on by the tokenizer; here sentences are wanted bare.
        ends = np.cumsum(sizes)
        inner = np.ones(len(ids), dtype=np.bool_)
        inner[ends - sizes] = inner[ends - 1] = False
        parts.append(ids[inner].astype(dtype))
        lengths.append(sizes - 2)
    return TokenizedDocuments(
        np.concatenate(parts) if parts else np.zeros(0, dtype),
        np.concatenate(lengths) if lengths else np.zeros(0, np.int64),
        np.asarray(counts, dtype=np.int64),
    )


def text_size(path: str | os.PathLike[str]) -> int:
    """Bytes of text in a file: its size, or for a packed one a guess from how far its first part unpacks."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(_UNPACKED)
    try:
        if head.startswith(b"\x1f\x8b"):
            unpacked = zlib.decompressobj(wbits=31).decompress(head)
        elif head.startswith(b"\xfd7zXZ\0"):
            unpacked = lzma.LZMADecompressor().decompress(head)
        elif head.startswith(b"BZh"):
            unpacked = bz2.BZ2Decompressor().decompress(head)
        else:
            return size
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return size  # whoever reads it will say what is wrong with it
    return max(size, round(size * len(unpacked) / len(head)))


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, without the space around them.

    >>> split_sentences('Mr. Hall came in. "Good!" he said. It was 3.14 p.m. already.')
    ['Mr. Hall came in.', '"Good!" he said.', 'It was 3.14 p.m. already.']
    """
    sentences: list[str] = []
    start = 0
    for match in (_END_CJK if "。" in text or "！" in text or "？" in text else _END).finditer(text):
        end = match.end()
        if text[match.start()] == "." and _is_abbreviation(
            text[max(start, match.start() - _LONGEST_ABBREVIATION) : match.start()]
        ):
            continue
        sentence = text[start:end].strip()
        if sentence:
            sentences.append(sentence)
        start = end
    rest = text[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


def looks_like_sentences(lines: Iterable[str]) -> bool:
    """Whether a file has one sentence per line, as Google's format has, rather than a paragraph: few lines split."""
    split = total = 0
    for line in islice((line for line in lines if line.strip()), _LINES_LOOKED_AT):
        total += 1
        split += len(split_sentences(line)) > 1
    return split <= 0.2 * total


def _is_abbreviation(before: str) -> bool:
    found = _LAST_WORD.search(before)
    word = found.group(1) if found else ""
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word.isupper() and word != "I")
