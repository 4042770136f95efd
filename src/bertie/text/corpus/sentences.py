"""Paragraphs to sentences, simply: after . ! or ? (and closing quotes) where a capital, a digit or a quote follows.

Known abbreviations (Mr., Dr., U.S.) and single initials (J. Smith) end nothing. It is a splitter for pretraining data,
where a sentence now and then cut wrongly costs nothing; what matters is that it is fast and always the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

_TITLES = ("mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "messrs", "mme", "mlle", "rev", "hon", "esq")
_OTHERS = ("gen", "col", "capt", "lt", "sgt", "no", "vol", "fig", "vs", "etc", "e.g", "i.e", "cf", "al")
_ABBREVIATIONS = frozenset((*_TITLES, *_OTHERS))
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+(?=[\"'“‘«(\[]*[A-Z0-9À-ÖØ-Þ])")
_END_CJK = re.compile(_END.pattern + "|[。！？]+[」』”’）]*")
_LAST_WORD = re.compile(r"([^\s\"'“‘«(\[]*)$")
_LOOKED_AT = 400  # lines, to tell sentences from paragraphs


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, without the space around them.

    >>> split_sentences('Mr. Hall came in. "Good!" he said. It was 3.14 p.m. already.')
    ['Mr. Hall came in.', '"Good!" he said.', 'It was 3.14 p.m. already.']
    """
    sentences: list[str] = []
    start = 0
    for match in (_END_CJK if "。" in text or "！" in text or "？" in text else _END).finditer(text):
        end = match.end()
        if text[match.start()] == "." and _is_abbreviation(text[start : match.start()]):
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
    """Whether a file has a sentence to a line, as Google's format has, rather than a paragraph: few lines split."""
    split = total = 0
    for line in islice((line for line in lines if line.strip()), _LOOKED_AT):
        total += 1
        split += len(split_sentences(line)) > 1
    return split <= 0.2 * total


def _is_abbreviation(before: str) -> bool:
    found = _LAST_WORD.search(before)
    word = found.group(1) if found else ""
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word.isupper() and word != "I")
