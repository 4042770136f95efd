"""Ids of many texts at once, by a small C++ library that `pip install` built beside this file, if there was a compiler.

Rust answers with an object a text, which Python then has to read out one by one: with a GPU behind it, that was the
narrow place. Here a list of texts goes in as one string and all ids come back in one array, many times as fast. The ids
are the same: what a character becomes is looked up in tables that the reference itself (wordpiece.py) makes when they
are first wanted, and a text that needs more than tables is left to Rust: one with special tokens in it, or with marks
that have to be sorted. So is every text where the library was not built, or where the tokenizer is not BERT's own.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertie.text.characters import NONSPACING_MARKS, PUNCTUATION, WHITESPACE, combining_class, decompose
from bertie.text.wordpiece import WordPieceTokenizer

Ids = NDArray[np.int64]
Encode = Callable[[list[str]], list[list[int]]]

VERSION = 1  # of the interface at the end of csrc/wordpiece.cpp
_PAGES = 0x110000 // 256
_MOST_NODES = 1 << 23  # of the trie, which has room for twice as many; BERT's 30,522 pieces make 90,000
_LEFT, _LACKS_PAGE = -1, -2
_LETTERS, _REMOVED, _SPACE, _WORD, _HARD = range(5)
_ENTRY = np.dtype([("kind", "u1"), ("size", "u1"), ("chars", "u1"), ("out", "S13")])
_POINTER, _INT, _LONG, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bertie_wordpiece_version": (ctypes.c_int, []),
    "bertie_wordpiece_new": (_POINTER, [_TEXT, _POINTER, _LONG, _TEXT, _TEXT, _LONG, _INT, _INT]),
    "bertie_wordpiece_free": (None, [_POINTER]),
    "bertie_wordpiece_page": (None, [_POINTER, _INT, _POINTER]),
    "bertie_wordpiece_encode": (
        _LONG,
        [_POINTER, _TEXT, _LONG, _POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER],
    ),
}


@lru_cache(maxsize=1)
def load_library() -> Any | None:
    """The library, or None where it was not built (or is an older one)."""
    for path in sorted(Path(__file__).parent.glob("_wordpiece*.so")):
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue
        if library.bertie_wordpiece_version() == VERSION:
            return library
    return None


class NativeTokenizer:
    """A vocabulary in C++ and the frame around every text. `of` says whether a Rust tokenizer has such a form."""

    @classmethod
    def of(cls, backend: Tokenizer) -> NativeTokenizer | None:
        """The same tokenizer in C++, or None: something about it is not BERT's own, or the library is not there."""
        library, model = load_library(), backend.model
        if library is None or not isinstance(model, WordPiece) or type(backend.pre_tokenizer) is not BertPreTokenizer:
            return None
        if type(backend.normalizer) is not BertNormalizer:
            return None
        added = list(backend.get_added_tokens_decoder().values())
        if any(token.normalized or "\0" in token.content or not token.content for token in added):
            return None  # found in the normalised text, which there never is here
        if backend.token_to_id(model.unk_token) is None or "\0" in model.continuing_subword_prefix:
            return None
        if 2 * sum(len(piece.encode()) for piece in backend.get_vocab(with_added_tokens=False)) >= _MOST_NODES:
            return None
        frame = _frame(backend)
        return None if frame is None else cls(library, backend, [token.content for token in added], *frame)

    def __init__(self, library: Any, backend: Tokenizer, added: list[str], before: list[int], after: list[int]) -> None:
        model, normalizer = backend.model, backend.normalizer
        self._library = library
        self._before, self._after = np.array(before, np.int64), np.array(after, np.int64)
        self._reference = WordPieceTokenizer(
            {model.unk_token: 0},
            do_lower_case=normalizer.lowercase,
            strip_accents=normalizer.strip_accents,
            tokenize_chinese_chars=normalizer.handle_chinese_chars,
            clean_text=normalizer.clean_text,
            unk_token=model.unk_token,
        )
        self._lock = threading.Lock()
        known = backend.get_vocab(with_added_tokens=False)
        pieces = [piece for piece in known if "\0" not in piece]  # no text that comes here has a zero in it
        ids = np.array([known[piece] for piece in pieces], np.int32)
        self._vocabulary = library.bertie_wordpiece_new(
            _zero_ended(pieces), ids.ctypes.data, len(ids), model.continuing_subword_prefix.encode(),
            _zero_ended(added), len(added), backend.token_to_id(model.unk_token), model.max_input_chars_per_word,
        )  # fmt: skip
        self._load_page(0)

    def __del__(self) -> None:
        if (vocabulary := getattr(self, "_vocabulary", None)) is not None:
            self._library.bertie_wordpiece_free(vocabulary)

    def encode_flat(self, texts: list[str], *, max_length: int | None, others: Encode) -> tuple[Ids, Ids] | None:
        """All ids, one text's after the other's, and how many are each text's; None: ask Rust.

        Every text is framed and cut at its end to `max_length`. `others` gives the same for the texts left to it.
        """
        frame = len(self._before) + len(self._after)
        room = np.iinfo(np.int64).max if max_length is None else max_length - frame
        if room < 1:
            return None
        try:
            given = _zero_ended(texts)
        except (TypeError, UnicodeEncodeError):  # not texts; lone surrogates
            return None
        if given.count(b"\0") != len(texts):
            return None
        lengths = np.empty(len(texts), np.int64)
        wanted = np.zeros(_PAGES, np.uint8)
        ids = np.empty(len(given) + frame * len(texts), np.int64)
        while True:
            used = self._library.bertie_wordpiece_encode(
                self._vocabulary, given, len(texts), self._before.ctypes.data, len(self._before),
                self._after.ctypes.data, len(self._after), room, ids.ctypes.data, len(ids), lengths.ctypes.data,
                wanted.ctypes.data,
            )  # fmt: skip
            if used < 0:
                return None
            if not wanted.any():
                break
            for page in np.flatnonzero(wanted).tolist():
                self._load_page(page)
            wanted[:] = 0
        left = np.flatnonzero(lengths == _LEFT)
        if not len(left):
            return ids[:used], lengths
        return _filled_in(ids[:used], lengths, left, others([texts[place] for place in left]))

    def _load_page(self, page: int) -> None:
        """Tell the library what the characters 256·page … become."""
        entries = np.array([self._entry(code) for code in range(256 * page, 256 * page + 256)], _ENTRY)
        with self._lock:
            self._library.bertie_wordpiece_page(self._vocabulary, page, entries.ctypes.data)

    def _entry(self, code: int) -> tuple[int, int, int, bytes]:
        if 0xD800 <= code < 0xE000:
            return _HARD, 0, 0, b""
        char = chr(code)
        made = "".join(part for part, _ in self._reference.normalize([(char, 0)]))
        if self._reference.strip_accents and any(
            combining_class(part) and part not in NONSPACING_MARKS for part in decompose(char)
        ):
            return _HARD, 0, 0, b""  # a mark that stays, and has its place among those around it
        words = "".join(" " if part in WHITESPACE else part for part in made).split(" ")
        letters = [word for word in words if word]
        marks = [part for part in made if part in PUNCTUATION]
        out = "".join(letters).encode()
        if len(letters) > 1 or (marks and len(made.strip(" ")) > 1) or len(out) > _ENTRY["out"].itemsize:
            return _HARD, 0, 0, b""
        if not made:
            return _REMOVED, 0, 0, b""
        if not letters:
            return _SPACE, 0, 0, b""
        if marks or (len(words) > 1 and words[0] == words[-1] == ""):
            return _WORD, len(out), len(letters[0]), out
        return (_LETTERS if len(words) == 1 else _HARD), len(out), len(letters[0]), out


def _zero_ended(texts: Iterable[str]) -> bytes:
    return "\0".join([*texts, ""]).encode()


def _frame(backend: Tokenizer) -> tuple[list[int], list[int]] | None:
    """The special tokens before and after a text; None where they cannot be told from it."""
    for word in ("a", "b"):
        bare = backend.encode(word, add_special_tokens=False).ids
        whole = backend.encode(word, add_special_tokens=True).ids
        places = [k for k in range(len(whole)) if whole[k : k + len(bare)] == bare]
        if bare and len(places) == 1:
            return whole[: places[0]], whole[places[0] + len(bare) :]
    return None


def _filled_in(ids: Ids, lengths: Ids, left: NDArray[np.intp], rows: list[list[int]]) -> tuple[Ids, Ids]:
    """The ids with `rows`, those of the texts at `left`, in their places."""
    lengths[left] = 0
    ends = np.cumsum(lengths)
    parts: list[Ids] = []
    done = 0
    for place, row in zip(left.tolist(), rows, strict=True):
        parts += [ids[done : ends[place]], np.array(row, np.int64)]
        done = int(ends[place])
        lengths[place] = len(row)
    return np.concatenate([*parts, ids[done:]]), lengths
