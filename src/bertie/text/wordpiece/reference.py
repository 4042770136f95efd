"""How BERT cuts a text into word pieces: the whole algorithm in plain Python, to be read.

    "Äpfel, [MASK]!"
      special tokens   Äpfel,␣ | [MASK] | !        found first, in the raw text; they are never changed
      clean            control characters out, every whitespace becomes a space
      CJK              a space on both sides of every ideograph, so each is a word of its own
      accents          decompose (Ä → A + ¨), drop the marks
      lower-case       Apfel → apfel
      split            on whitespace, then around every punctuation character
      word pieces      the longest piece in the vocabulary, from the left: apfel → ap ##fel

Every character carries the index of the character it came from, so each token knows where it stands in the *original*
text: `text[token.start:token.end]` is what the token was made of, accents, capitals and all.

Sources: Devlin et al. 2018 (https://arxiv.org/abs/1810.04805); `tokenization.py` of google-research/bert; and the Rust
`tokenizers` library, whose ids and offsets this file equals on every string. Where Google's Python and Rust differ we
follow Rust, because its ids are the ones people have: accents are stripped before lower-casing, not after; characters
are lower-cased one by one (a final Σ gives σ); a word may have 100 characters before it becomes [UNK], where Google's
first release said 200 (`max_input_chars_per_word=GOOGLE_WORD_LIMIT`).

This is the reference and the oracle of the tests. The tokenizer to *use* is `bertie.text.BertTokenizer`, which is a
hundred times faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bertie.errors import TokenizerError
from bertie.text.wordpiece.characters import (
    NONSPACING_MARKS,
    PUNCTUATION,
    WHITESPACE,
    combining_class,
    decompose,
    is_chinese,
    is_removed,
    is_word_character,
    lowercase,
)

WORD_LIMIT = 100
GOOGLE_WORD_LIMIT = 200
SPECIAL_TOKENS = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

# A text on its way to tokens: (character now, index of the character it came from), in order.
Traced = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Token:
    """One word piece: its id, its text in the vocabulary, and where it came from: `text[start:end]`, word `word`."""

    id: int
    text: str
    start: int
    end: int
    word: int


def replace_surrogates(text: str) -> str:
    """Each lone surrogate becomes U+FFFD: no UTF-8 holds one, and every other character keeps its position.

    >>> replace_surrogates("a\\ud800b") == "a\\ufffdb"
    True
    """
    return _LONE_SURROGATE.sub("\ufffd", text)


def clean(text: Traced) -> Traced:
    """Drop control characters and U+FFFD; turn every kind of whitespace into a space."""
    return [(" " if char in WHITESPACE else char, at) for char, at in text if not is_removed(char)]


def space_chinese(text: Traced) -> Traced:
    """Put a space on both sides of every CJK ideograph."""
    spaced: Traced = []
    for char, at in text:
        if is_chinese(char):
            spaced += [(" ", at), (char, at), (" ", at)]
        else:
            spaced.append((char, at))
    return spaced


def decompose_accents(text: Traced) -> Traced:
    """Canonical decomposition (NFD): é becomes e and a combining acute; runs of marks are sorted by their class."""
    parts: list[tuple[str, bool]] = []  # (character, is it the first one of its original)
    run_start = 0  # parts[run_start:] are marks waiting to be sorted
    for char, _ in text:
        for index, part in enumerate(decompose(char)):
            if combining_class(part) == 0:
                _sort_marks(parts, run_start)
                run_start = len(parts) + 1
            parts.append((part, index == 0))
    _sort_marks(parts, run_start)

    # Sorting can carry a mark past the characters around it. Rust then numbers by position, not by origin: a first part
    # takes the next original character, a later part shares the one before it.
    traced: Traced = []
    source = -1
    for part, is_first in parts:
        source += is_first
        traced.append((part, text[source][1]))
    return traced


def _sort_marks(parts: list[tuple[str, bool]], start: int) -> None:
    if len(parts) - start > 1:
        parts[start:] = sorted(parts[start:], key=lambda part: combining_class(part[0]))


def strip_accents(text: Traced) -> Traced:
    """Drop nonspacing marks from decomposed text."""
    return [(char, at) for char, at in decompose_accents(text) if char not in NONSPACING_MARKS]


def lower(text: Traced) -> Traced:
    """Lower-case character by character."""
    return [(small, at) for char, at in text for small in lowercase(char)]


def split_words(text: Traced) -> Iterator[Traced]:
    """Cut at whitespace, which disappears, and around punctuation, each character of which is a word."""
    word: Traced = []
    for char, at in text:
        if char in WHITESPACE or char in PUNCTUATION:
            if word:
                yield word
            word = []
            if char in PUNCTUATION:
                yield [(char, at)]
        else:
            word.append((char, at))
    if word:
        yield word


def longest_pieces(word: str, vocab: Mapping[str, int], *, prefix: str = "##") -> list[tuple[int, int, str]] | None:
    """Greedy longest match from the left: (start, end, piece) each, or None when the vocabulary cannot spell it.

    >>> longest_pieces("unaffable", {"un": 0, "##aff": 1, "##able": 2})
    [(0, 2, 'un'), (2, 5, '##aff'), (5, 9, '##able')]
    """
    pieces: list[tuple[int, int, str]] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end] if start == 0 else prefix + word[start:end]
            if piece in vocab:
                break
        else:
            return None
        pieces.append((start, end, piece))
        start = end
    return pieces


class WordPieceTokenizer:
    """The reference tokenizer.

    >>> vocab = {"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3, "!": 4}
    >>> [token.text for token in WordPieceTokenizer(vocab).tokenize("Unaffable!")]
    ['un', '##aff', '##able', '!']
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        *,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        clean_text: bool = True,
        unk_token: str = "[UNK]",
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        never_split: Sequence[str] = (),
        max_input_chars_per_word: int = WORD_LIMIT,
    ) -> None:
        if unk_token not in vocab:
            raise TokenizerError(
                f"The vocabulary has no {unk_token!r}, the token that stands for words it cannot spell.",
                "Add it to the vocabulary, or name the one it has with unk_token=.",
            )
        self.vocab = vocab
        self.do_lower_case = do_lower_case
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.clean_text = clean_text
        self.unk_token = unk_token
        self.never_split = frozenset(never_split)
        self.max_input_chars_per_word = max_input_chars_per_word
        kept = {token for token in (*special_tokens, *never_split) if token in vocab and token}
        longest_first = sorted(kept, key=len, reverse=True)
        self._kept_whole = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def tokenize(self, text: str) -> list[Token]:
        """Tokens of a text, without [CLS] and [SEP]."""
        text = replace_surrogates(text)
        tokens: list[Token] = []
        word = 0
        for start, end, is_kept in self._segments(text):
            if is_kept:
                tokens.append(Token(self.vocab[text[start:end]], text[start:end], start, end, word))
                word += 1
                continue
            for letters in split_words(self.normalize([(text[at], at) for at in range(start, end)])):
                tokens.extend(self._pieces(letters, word))
                word += 1
        return tokens

    def encode(self, text: str, pair: str | None = None) -> list[int]:
        """Ids as the model reads them: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""
        cls, sep = self.vocab["[CLS]"], self.vocab["[SEP]"]
        ids = [cls, *(token.id for token in self.tokenize(text)), sep]
        if pair is not None:
            ids += [*(token.id for token in self.tokenize(pair)), sep]
        return ids

    def normalize(self, text: Traced) -> Traced:
        """Cleaning, CJK spacing, accents and case, in that order, each as the settings say."""
        if self.clean_text:
            text = clean(text)
        if self.tokenize_chinese_chars:
            text = space_chinese(text)
        if self.strip_accents:
            text = strip_accents(text)
        if self.do_lower_case:
            text = lower(text)
        return text

    def _segments(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """(start, end, kept whole?) over the text: special tokens and never_split words, and what lies between them.

        Special tokens are found anywhere, `never_split` words only where no word character touches them.
        """
        done = 0
        for match in self._kept_whole.finditer(text):
            start, end = match.span()
            if match[0] in self.never_split and (
                (start > 0 and is_word_character(text[start - 1])) or (end < len(text) and is_word_character(text[end]))
            ):
                continue
            if done < start:
                yield done, start, False
            yield start, end, True
            done = end
        if done < len(text):
            yield done, len(text), False

    def _pieces(self, letters: Traced, word: int) -> list[Token]:
        spelled = "".join(char for char, _ in letters)
        pieces = longest_pieces(spelled, self.vocab) if len(spelled) <= self.max_input_chars_per_word else None
        if pieces is None:
            pieces = [(0, len(spelled), self.unk_token)]
        return [
            Token(self.vocab[piece], piece, letters[start][1], letters[end - 1][1] + 1, word)
            for start, end, piece in pieces
        ]
