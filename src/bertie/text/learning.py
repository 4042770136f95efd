"""Learning a new WordPiece vocabulary from raw text.

The Rust trainer counts words, then merges the most frequent pair of pieces until the vocabulary is full. By itself it
numbers the continuing letters (##a, ##b …) in the order of a hash table, which differs from run to run, and ties
between merges are broken by those numbers. Here the alphabet is counted first and handed over in a fixed order, so the
same text gives the same vocabulary, id for id.
"""

from __future__ import annotations

import gzip
import lzma
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from bertie.errors import TokenizerError
from bertie.text.backend import rust_errors
from bertie.text.characters import WHITESPACE
from bertie.text.tokenizer import BertTokenizer
from bertie.text.wordpiece import replace_surrogates

_CONTINUES = "##"
# In the order of Google's vocabularies, so [PAD] is 0.
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_vocabulary(
    source: Path | Sequence[Path] | Iterable[str],
    *,
    vocab_size: int = 30522,
    min_frequency: int = 2,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    num_unused: int = 0,
    limit_alphabet: int = 1000,
    model_max_length: int = 512,
    show_progress: bool = False,
) -> BertTokenizer:
    """A tokenizer whose vocabulary was learned from files (`Path`s; .gz and .xz too) or from an iterable of texts.

    At most `vocab_size` tokens, special ones included; fewer when the text has no more pairs that occur
    `min_frequency` times. `num_unused` tokens [unused0] … are kept free for later. The `limit_alphabet` most frequent
    characters can be spelled, others become [UNK]. An iterable is read once and kept in a temporary file meanwhile.
    """
    if isinstance(source, str):
        raise TokenizerError("train_vocabulary() was given one string.", "Pass a Path to a file, or a list of texts.")
    paths = _as_paths(source)
    normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=tokenize_chinese_chars, strip_accents=strip_accents, lowercase=lowercase
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
        texts = _read_files(paths) if paths is not None else _checked(source)
        letters = _count_letters(texts, normalizer, spool=None if paths is not None else spool)
        if not letters:
            raise TokenizerError("There is no text to learn a vocabulary from: no letter was found.")
        alphabet = sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:limit_alphabet])
        special = [*_SPECIAL, *(f"[unused{index}]" for index in range(num_unused))]
        pieces = [_CONTINUES + letter for letter in alphabet]
        needed = len(special) + 2 * len(alphabet)
        if vocab_size < needed:
            raise TokenizerError(
                f"vocab_size={vocab_size} is too small: {len(special)} special tokens and {len(alphabet)} characters, "
                f"first and continuing, are {needed} already.",
                "Use a larger vocab_size or a smaller limit_alphabet.",
            )
        spool.seek(0)
        learner = Tokenizer(WordPiece(unk_token="[UNK]"))
        learner.normalizer = normalizer
        learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            # Not special at all: naming the letters here is what fixes their ids before words are counted.
            special_tokens=[*special, *alphabet, *pieces],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            continuing_subword_prefix=_CONTINUES,
            show_progress=show_progress,
        )
        with rust_errors("The vocabulary could not be learned"):
            learner.train_from_iterator(_read_files(paths) if paths is not None else spool, trainer)
    return BertTokenizer(
        learner.get_vocab(),
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=tokenize_chinese_chars,
        model_max_length=model_max_length,
        check_case=False,
    )


def _as_paths(source: object) -> list[Path] | None:
    entries = source if isinstance(source, (list, tuple)) else [source]
    paths = [entry for entry in entries if isinstance(entry, Path)]
    return paths if paths and len(paths) == len(entries) else None


def _checked(texts: Any) -> Iterator[str]:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TokenizerError(
                f"Text {index} is a {type(text).__name__}, not a string.", "Pass texts, or a list of Paths."
            )
        yield replace_surrogates(text)


def _read_files(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
            opener = openers.get(path.suffix, open)
            with opener(path, "rt", encoding="utf-8") as file:
                yield from file
        except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError) as error:
            raise TokenizerError(f"{path} cannot be read as text: {error}") from error


def _count_letters(
    texts: Iterable[str], normalizer: normalizers.BertNormalizer, *, spool: IO[str] | None
) -> Counter[str]:
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(normalizer.normalize_str(text))
        if spool is not None:
            # A line break is whitespace to the tokenizer like any other.
            spool.write(text.replace("\n", " ").replace("\r", " ") + "\n")
    for space in WHITESPACE:
        letters.pop(space, None)
    return letters
