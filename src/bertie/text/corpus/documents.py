"""Documents to sentences to ids, a piece of a corpus at a time: what the processes that prepare a corpus run."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.text.corpus.sentences import split_sentences
from bertie.text.tokenizer import BertTokenizer

_SENTENCES_AT_ONCE = 8192
_LOOKED_AT = 1 << 18  # bytes of a packed file, to tell how far it unpacks


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
        head = file.read(_LOOKED_AT)
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
