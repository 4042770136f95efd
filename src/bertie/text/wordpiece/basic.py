"""The two halves of Google's Python tokenizer, under the names people import: `BasicTokenizer`, `WordpieceTokenizer`.

`BertTokenizer` does not use them. They are for code that was written on them: own pre-processing, answers of SQuAD
that are aligned with the text (`get_final_text`), tests. They follow `transformers` 4.57, which follows Python's
Unicode tables; `reference.py` follows Rust's, whose ids are the ones checkpoints were trained with. The differences
are characters that are younger than the Rust library's tables, and accents on capitals that lower-case to two letters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from bertie.text.wordpiece.characters import is_chinese
from bertie.text.wordpiece.reference import WORD_LIMIT, longest_pieces


def is_whitespace(char: str) -> bool:
    """Spaces of Unicode (Zs), and tab, line feed and carriage return, which Unicode calls control characters."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    """Every category of Unicode that starts with C: control, format, surrogate, private use, unassigned."""
    return char not in "\t\n\r" and unicodedata.category(char).startswith("C")


def is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and all of ASCII that is neither letter, digit nor space: "$", "^" and "`" are symbols."""
    is_ascii_symbol = "!" <= char <= "~" and not char.isalnum()
    return is_ascii_symbol or unicodedata.category(char).startswith("P")


class BasicTokenizer:
    """Text to words: clean, put spaces around ideographs, lower-case, strip accents, split off punctuation.

    >>> BasicTokenizer().tokenize("Héllo, wörld!")
    ['hello', ',', 'world', '!']
    """

    def __init__(
        self,
        do_lower_case: bool = True,
        never_split: Iterable[str] | None = None,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        do_split_on_punc: bool = True,
    ) -> None:
        self.do_lower_case = do_lower_case
        self.never_split = set(never_split or ())
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        self.do_split_on_punc = do_split_on_punc

    def tokenize(self, text: str, never_split: Iterable[str] | None = None) -> list[str]:
        """Words and punctuation marks, cleaned as BERT does before it cuts words into pieces."""
        kept = self.never_split | set(never_split or ())
        cleaned = (c for c in text if c not in "\0\ufffd" and not is_control(c))
        spaced = "".join(map(self._space, cleaned))
        # NFC: the same letter may come as one code point or as two.
        words = unicodedata.normalize("NFC", spaced).split()
        # Once more split: letters may have become spaces on the way.
        return " ".join(part for word in words for part in self._parts(word, kept)).split()

    def _space(self, char: str) -> str:
        # `is_chinese` has a gap, which is Rust's; Google's Python has none.
        if self.tokenize_chinese_chars and (is_chinese(char) or "\U0002b820" <= char < "\U0002b920"):
            return f" {char} "
        return " " if is_whitespace(char) else char

    def _parts(self, word: str, kept: set[str]) -> list[str]:
        if word in kept:
            return [word]
        strip = self.do_lower_case if self.strip_accents is None else self.strip_accents
        if self.do_lower_case:
            word = word.lower()
        if strip:
            decomposed = unicodedata.normalize("NFD", word)
            word = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        if not self.do_split_on_punc or word in kept:
            return [word]
        return "".join(f" {char} " if is_punctuation(char) else char for char in word).split(" ")


class WordpieceTokenizer:
    """Words to the longest pieces the vocabulary has, from the left.

    >>> WordpieceTokenizer({"un": 0, "##aff": 1, "##able": 2}).tokenize("unaffable thing")
    ['un', '##aff', '##able', '[UNK]']
    """

    def __init__(
        self, vocab: Mapping[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = WORD_LIMIT
    ) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word

    def tokenize(self, text: str) -> list[str]:
        """Pieces of words that white space separates."""
        tokens: list[str] = []
        for word in text.split():
            pieces = longest_pieces(word, self.vocab) if len(word) <= self.max_input_chars_per_word else None
            tokens += [self.unk_token] if pieces is None else [piece for _, _, piece in pieces]
        return tokens
