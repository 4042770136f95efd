"""What kind of character is this? The Unicode facts a BERT tokenizer asks about, one character at a time.

The Rust `tokenizers` library carries its own Unicode tables: general categories from Unicode 8, canonical
decompositions from Unicode 9, lower-casing from Unicode 17. Python's `unicodedata` moves on with every Python release,
so a reference built on it would disagree with Rust on newer characters, and with itself between two Pythons. The tables
that decide are therefore written out in characters.txt; `unicodedata` is asked only for facts that Unicode promises
never to change (the decomposition and the combining class of a character that already has one).

A test walks all 1,112,064 code points and compares every answer with the Rust library.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path


def _read_tables() -> dict[str, frozenset[str]]:
    """The sets of characters.txt: `[name]`, then lines such as `41-43 5A` for the characters A, B, C and Z."""
    tables: dict[str, list[str]] = {}
    name = ""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
        for entry in line.split() if line[:1] not in ("[", "#") else ():
            first, _, last = entry.partition("-")
            tables.setdefault(name, []).extend(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return {name: frozenset(found) for name, found in tables.items()}


_TABLES = _read_tables()
WHITESPACE, PUNCTUATION = _TABLES["whitespace"], _TABLES["punctuation"]
NONSPACING_MARKS = _TABLES["nonspacing marks"]
OTHER_COMBINING = _TABLES["other combining"]
_CONTROL, _YOUNG_WORDS = _TABLES["control"], _TABLES["young word characters"]
_DECOMPOSABLE = _TABLES["supplementary decomposable"]

# Lower case of letters that became cased after Unicode 14, for Pythons that do not know them yet.
_YOUNG_LOWERCASE = {
    "\u1c89": "\u1c8a",
    "\ua7cb": "\u0264",
    "\ua7cc": "\ua7cd",
    "\ua7ce": "\ua7cf",
    "\ua7d2": "\ua7d3",
    "\ua7d4": "\ua7d5",
    "\ua7da": "\ua7db",
    "\ua7dc": "\u019b",
    **{chr(c): chr(c + 0x20) for c in range(0x10D50, 0x10D66)},
    **{chr(c): chr(c + 0x1B) for c in range(0x16EA0, 0x16EB9)},
}


def is_removed(char: str) -> bool:
    """True for what cleaning drops: control, format and private-use characters, NUL and U+FFFD.

    Unassigned code points stay: the Rust tables do not list them.
    """
    return char in _CONTROL or char == "\ufffd" or _is_private_use(ord(char))


def _is_private_use(code: int) -> bool:
    return 0xE000 <= code <= 0xF8FF or 0xF0000 <= code <= 0xFFFFD or 0x100000 <= code <= 0x10FFFD


def is_chinese(char: str) -> bool:
    """True for CJK ideographs, which are made words of their own; kana and Hangul are not.

    These are Google's blocks except one: Rust starts CJK extension E at U+2B920, a slip (it should be U+2B820) that is
    kept, because the ids of every checkpoint in use come from it.
    """
    code = ord(char)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B81F
        or 0x2B920 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


@lru_cache(maxsize=8192)
def lowercase(char: str) -> str:
    """Lower case of one character, alone: a capital sigma gives σ even at the end of a word; İ gives two characters."""
    return _YOUNG_LOWERCASE.get(char) or char.lower()


@lru_cache(maxsize=8192)
def decompose(char: str) -> str:
    """The full canonical decomposition (NFD) of one character."""
    if ord(char) > 0xFFFF and char not in _DECOMPOSABLE:
        return char
    return unicodedata.normalize("NFD", char)


def combining_class(char: str) -> int:
    """0 for a starter; marks with a class are sorted by it when text is decomposed."""
    if char in NONSPACING_MARKS or char in OTHER_COMBINING:
        return unicodedata.combining(char)
    return 0


def is_word_character(char: str) -> bool:
    r"""Unicode's `\w`: letters, marks, digits, connecting punctuation, joiners. Only `never_split` asks for it.

    This set is large, so `unicodedata` gives most of it, and a table what Python 3.11 does not know yet (Unicode 16).
    """
    code = ord(char)
    return (
        unicodedata.category(char) in _WORD_CATEGORIES
        or char in "\u200c\u200d"
        or char in _YOUNG_WORDS
        or 0x24B6 <= code <= 0x24E9  # letters in circles and squares: symbols by category, alphabetic by property
        or 0x1F130 <= code <= 0x1F149
        or 0x1F150 <= code <= 0x1F169
        or 0x1F170 <= code <= 0x1F189
    )


_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"})
