"""Ids of many texts at once, by a small C++ library that `pip install` built beside this file, if there was a compiler.

Rust answers with an object a text, which Python then has to read out one by one: with a GPU behind it, that was the
narrow place. Here a list of texts goes in as one string and all ids come back in one array, many times as fast. The ids
are the same: what a character becomes is looked up in tables that the reference itself (reference.py) makes when they
are first wanted, and a text that needs more than tables is left to Rust: one with special tokens in it, or with marks
that have to be sorted. So is every text where the library was not built, or where the tokenizer is not BERT's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product, repeat
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertie.errors import TokenizerError
from bertie.library import Signatures, open_library
from bertie.text.rust import Input, WholeRow, encode_all
from bertie.text.truncation import Layout
from bertie.text.wordpiece.characters import NONSPACING_MARKS, PUNCTUATION, WHITESPACE, combining_class, decompose
from bertie.text.wordpiece.reference import WordPieceTokenizer, replace_surrogates

T = TypeVar("T")
Ids = NDArray[np.int64]
Encode = Callable[[list[str]], list[list[int]]]
EncodeRows = Callable[[list[Input]], list[WholeRow]]

VERSION = 2  # of the interface at the end of csrc/wordpiece.cpp
_PAGES = 0x110000 // 256
_MOST_NODES = 1 << 23  # of a trie, which has room for twice as many; BERT's 30,522 pieces make 90,000
_NO_LIMIT, _NO_TRACES = (1 << 63) - 1, [None] * 3
_LONGEST_ADDED = 256  # bytes: at every letter of a text, so much of an added token may have to be compared
_LEFT, _LACKS_PAGE = -1, -2
_LETTERS, _REMOVED, _SPACE, _WORD, _HARD = range(5)
_ENTRY = np.dtype([("kind", "u1"), ("size", "u1"), ("chars", "u1"), ("out", "S13")])
_POINTER, _INT, _LONG, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: Signatures = {
    "bertie_wordpiece_version": (ctypes.c_int, []),
    "bertie_wordpiece_new": (_POINTER, [_TEXT, _POINTER, _LONG, _TEXT, _TEXT, _LONG, _INT, _INT]),
    "bertie_wordpiece_free": (None, [_POINTER]),
    "bertie_wordpiece_page": (None, [_POINTER, _INT, _POINTER]),
    "bertie_wordpiece_encode": (
        _LONG,
        [_POINTER, _TEXT, _LONG, _POINTER, _LONG, _POINTER, _LONG, _LONG, *[_POINTER] * 4, _LONG, _POINTER, _POINTER],
    ),
}


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The library, or None where it was not built (or is an older one)."""
    return open_library(__file__, "_wordpiece", _SIGNATURES, version=("bertie_wordpiece_version", VERSION))


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens of a row, `before A between B after`, and the types of all its parts; B may be missing."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[tuple[int, ...], ...]  # of before, A, between, B, after: one of A and of B is that of all their tokens

    @classmethod
    def of(cls, row: WholeRow, tokens: tuple[int, int]) -> Frame | None:
        """That of a row of texts of this many tokens; None where it is not of this shape."""
        found = Layout.of(row.sequence_ids)
        ends = (0, found.a_start, found.a_end, found.b_start, found.b_end, found.length)
        sizes = [end - start for start, end in pairwise(ends)]
        shape = [of for of, size in zip((None, 0, None, 1, None), sizes, strict=True) for _ in range(size)]
        special = [int(of is None) for of in shape]
        if shape != row.sequence_ids or special != row.special_tokens_mask or (sizes[1], sizes[3]) != tokens:
            return None
        before, _, between, _, after = (tuple(row.ids[start:end]) for start, end in pairwise(ends))
        types = [tuple(row.type_ids[start:end]) for start, end in pairwise(ends)]
        return cls(before, between, after, (types[0], types[1][:1], types[2], types[3][:1], types[4]))


@dataclass(frozen=True, slots=True)
class NativeRow:
    """A row with what is read of a `WholeRow`; without a trace it has no offsets and words."""

    ids: list[int]
    frame: Frame
    sizes: tuple[int, int]  # tokens of A and of B
    known: Mapping[int, str]  # tokens by id
    trace: NDArray[np.int32] | None  # [3, tokens of A and of B]: characters from, to, and words

    def __len__(self) -> int:
        return len(self.ids)

    def _framed(self, a: list[T], b: list[T], special: T) -> list[T]:
        """Values of A's and of B's tokens with those of special tokens around them."""
        before, between, after = (len(part) for part in (self.frame.before, self.frame.between, self.frame.after))
        return [*[special] * before, *a, *[special] * between, *b, *[special] * after]

    def _halves(self, values: list[T]) -> tuple[list[T], list[T]]:
        return values[: self.sizes[0]], values[self.sizes[0] :]

    @property
    def type_ids(self) -> list[int]:
        before, a, between, b, after = self.frame.types
        return [*before, *a * self.sizes[0], *between, *b * self.sizes[1], *after]

    @property
    def sequence_ids(self) -> list[int | None]:
        return self._framed([0] * self.sizes[0], [1] * self.sizes[1], None)

    @property
    def special_tokens_mask(self) -> list[int]:
        return self._framed([0] * self.sizes[0], [0] * self.sizes[1], 1)

    @property
    def tokens(self) -> list[str]:
        return [self.known[number] for number in self.ids]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        assert self.trace is not None, "encoded without offsets"
        starts, ends = self.trace[:2].tolist()
        return self._framed(*self._halves(list(zip(starts, ends, strict=True))), (0, 0))

    @property
    def word_ids(self) -> list[int | None]:
        assert self.trace is not None, "encoded without offsets"
        words: list[int | None] = self.trace[2].tolist()
        return self._framed(*self._halves(words), None)


Frames = dict[tuple[bool, bool], Frame]  # by whether there is a pair, and special tokens


class NativeTokenizer:
    """A vocabulary in C++ and the frames around texts. `of` says whether a Rust tokenizer has such a form."""

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
        sizes = [len(token.content.encode()) for token in added]
        if max(sizes, default=0) > _LONGEST_ADDED or sum(sizes) >= _MOST_NODES:
            return None
        if backend.token_to_id(model.unk_token) is None or "\0" in model.continuing_subword_prefix:
            return None
        known = backend.get_vocab(with_added_tokens=False)
        if 2 * sum(len(piece.encode()) for piece in known) >= _MOST_NODES or max(known.values(), default=0) >= 1 << 31:
            return None
        tokens = {number: piece for piece, number in backend.get_vocab(with_added_tokens=True).items()}
        if len(tokens) < backend.get_vocab_size(with_added_tokens=True):
            return None  # two tokens with one id
        frames = _frames(backend, tokens)
        if frames is None:
            return None
        return cls(library, backend, tokens, [token.content for token in added], frames)

    def __init__(
        self, library: ctypes.CDLL, backend: Tokenizer, tokens: dict[int, str], added: list[str], frames: Frames
    ) -> None:
        model, normalizer = backend.model, backend.normalizer
        self._library, self._tokens, self._frames = library, tokens, frames
        self._reference = WordPieceTokenizer(
            {model.unk_token: 0},
            do_lower_case=normalizer.lowercase,
            strip_accents=normalizer.strip_accents,
            tokenize_chinese_chars=normalizer.handle_chinese_chars,
            clean_text=normalizer.clean_text,
            unk_token=model.unk_token,
        )
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
        frame = self._frames[False, True]
        after = frame.between + frame.after
        room = None if max_length is None else max_length - len(frame.before) - len(after)
        found = None if room is not None and room < 1 else self._run(texts, frame.before, after, room=room)
        if found is None:
            return None
        ids, lengths, _ = found
        is_left = lengths == _LEFT
        if not np.count_nonzero(is_left):
            return ids, lengths
        left = np.flatnonzero(is_left)
        return _filled_in(ids, lengths, left, others([texts[place] for place in left]))

    def encode_rows(
        self, inputs: Sequence[Input], *, paired: bool, framed: bool, offsets: bool, others: EncodeRows
    ) -> list[WholeRow] | None:
        """Whole rows of texts or of pairs, with special tokens or without; None: ask Rust.

        They are `NativeRow`s, except those of `others`, which gets the inputs that are left to Rust.
        """
        if paired and any(isinstance(pair, str) or len(pair) != 2 for pair in inputs):
            return None
        texts = cast("list[str]", [text for pair in inputs for text in pair] if paired else list(inputs))
        found = self._run(texts, traced=offsets)
        if found is None:
            return None
        ids, lengths, trace = found[0].tolist(), found[1].tolist(), found[2]
        frame = self._frames[paired, framed]
        before, between, after = ([*part] for part in (frame.before, frame.between, frame.after))
        rows: list[WholeRow] = []
        left: list[int] = []
        start = 0
        for a, b in zip(lengths[::2], lengths[1::2], strict=True) if paired else zip(lengths, repeat(0)):
            end = start + max(a, 0) + max(b, 0)
            if a == _LEFT or b == _LEFT:
                left.append(len(rows))
                a = b = 0
            row = before + ids[start : start + a] + between + ids[start + a : end] + after
            rows.append(NativeRow(row, frame, (a, b), self._tokens, None if trace is None else trace[:, start:end]))
            start = end
        if left:
            for place, other in zip(left, others([inputs[place] for place in left]), strict=True):
                rows[place] = other
        return rows

    def _run(
        self,
        texts: list[str],
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
        *,
        room: int | None = None,
        traced: bool = False,
    ) -> tuple[Ids, Ids, NDArray[np.int32] | None] | None:
        """Ids end to end, lengths, and the ids' traces `[3, ids]`; None: all texts are left to Rust.

        A text that is left to Rust has _LEFT for a length, and no ids.
        """
        try:
            given = _zero_ended(texts)
        except TypeError:  # not texts
            return None
        except UnicodeEncodeError:
            given = _zero_ended(map(replace_surrogates, texts))
        if given.count(b"\0") != len(texts):
            return None
        # One array for what goes in and what comes out: an address costs Python as much as many tokens cost C++.
        framed = len(before) + len(after)
        most = len(given) + framed * len(texts)
        ends = most + len(texts)
        numbers = np.empty(ends + framed, np.int64)
        numbers[ends:] = before + after
        ids, lengths = numbers[:most], numbers[most:ends]
        wanted = np.zeros(_PAGES, np.uint8)
        trace = np.empty((3, most), np.int32) if traced else None
        traces = _NO_TRACES if trace is None else [row.ctypes.data for row in trace]
        at, wanted_at = numbers.ctypes.data, wanted.ctypes.data
        lengths_at = at + 8 * most
        first_at = at + 8 * ends
        while True:
            used = self._library.bertie_wordpiece_encode(
                self._vocabulary, given, len(texts), first_at, len(before), first_at + 8 * len(before), len(after),
                _NO_LIMIT if room is None else room, at, *traces, most, lengths_at, wanted_at,
            )  # fmt: skip
            if used < 0:
                return None
            if not np.count_nonzero(wanted):
                return ids[:used], lengths, None if trace is None else trace[:, :used]
            for page in np.flatnonzero(wanted).tolist():
                self._load_page(page)
            wanted[:] = 0

    def _load_page(self, page: int) -> None:
        """Tell the library what the characters 256·page … become; of several threads' the first counts."""
        entries = np.array([self._entry(code) for code in range(256 * page, 256 * page + 256)], _ENTRY)
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


def _frames(backend: Tokenizer, tokens: Mapping[int, str]) -> Frames | None:
    """What is around texts and pairs, with special tokens and without; None where that is not of a shape known here."""
    frames: Frames = {}
    try:
        for paired, framed in product((False, True), repeat=2):
            texts = ("a", "b") if paired else "a"
            row = encode_all(backend, [texts], framed=framed, offsets=True)[0]
            sizes = len(backend.model.tokenize("a")), len(backend.model.tokenize("b")) if paired else 0
            frame = Frame.of(row, sizes)
            if frame is None or row.tokens != [tokens.get(number) for number in row.ids]:
                return None
            frames[paired, framed] = frame
    except TokenizerError:  # a template that Rust fails on
        return None
    return frames


def _zero_ended(texts: Iterable[str]) -> bytes:
    # One by one: a single letter beyond ASCII would make all of a joined text wide.
    return b"\0".join([*map(str.encode, texts), b""])


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
