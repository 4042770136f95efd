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
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from bertie.errors import TokenizerError
from bertie.text.corpus.processes import in_order
from bertie.text.rust import rust_errors
from bertie.text.tokenizer import BertTokenizer
from bertie.text.wordpiece.characters import WHITESPACE
from bertie.text.wordpiece.reference import replace_surrogates

_CONTINUES = "##"
# In the order of Google's vocabularies, so [PAD] is 0.
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CHARACTERS_AT_ONCE = 1 << 20

# What is going on ("letters", "words", "pieces") and how many characters of the text have been read for it.
Progress = Callable[[str, int], None]


def train_vocabulary(
    source: Path | Sequence[Path] | Iterable[str],
    *,
    encoding: str = "utf-8",
    vocab_size: int = 30522,
    min_frequency: int = 2,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    num_unused: int = 0,
    limit_alphabet: int = 1000,
    model_max_length: int = 512,
    skip_bad: bool = False,
    show_progress: bool = False,
    progress: Progress | None = None,
    processes: int = 1,
) -> BertTokenizer:
    """A tokenizer whose vocabulary was learned from files (`Path`s; .gz and .xz too) or from an iterable of texts.

    `source` are the files or the texts. There will be at most `vocab_size` tokens, special ones included; fewer when
    the text has no more pairs that occur `min_frequency` times. `num_unused` tokens [unused0] … are kept free for
    later. The `limit_alphabet` most frequent characters can be spelled, others become [UNK]. An iterable is read once
    and kept in a temporary file meanwhile.
    `encoding` is that of files; `skip_bad` skips lines that are not in it.
    `lowercase`, `strip_accents` and `tokenize_chinese_chars` say how text is normalized; the tokenizer keeps them and
    `model_max_length`. `show_progress` shows a bar; `progress` is called with what is being done and how much of it.
    The text is read twice, for its letters (`processes` share that) and for its words; then pieces are merged.
    """
    if isinstance(source, str):
        raise TokenizerError("train_vocabulary() was given one string.", "Pass a Path to a file, or a list of texts.")
    paths = _as_paths(source)
    normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=tokenize_chinese_chars, strip_accents=strip_accents, lowercase=lowercase
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
        texts = (
            _read_files(paths, encoding, skip_bad) if paths is not None else _checked(cast("Iterable[object]", source))
        )
        kept = texts if paths is not None else _spooled(texts, spool)
        letters = _count_letters(_with_progress(kept, "letters", progress), normalizer, processes)
        if not letters:
            raise TokenizerError(
                "There is no text to learn a vocabulary from: no letter was found.", "Check the files: are they empty?"
            )
        alphabet = sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:limit_alphabet])
        special = [*_SPECIAL, *(f"[unused{index}]" for index in range(num_unused))]
        pieces = [_CONTINUES + letter for letter in alphabet]
        needed = len(special) + 2 * len(alphabet)
        if vocab_size < needed:
            raise TokenizerError(
                f"{{vocab_size}} is too small: {len(special)} special tokens and {len(alphabet)} characters, "
                f"first and continuing, are {needed} already.",
                "Use a larger vocab_size or a smaller {limit_alphabet}.",
                vocab_size=vocab_size,
                limit_alphabet=...,
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
            again = _read_files(paths, encoding, skip_bad) if paths is not None else spool
            learner.train_from_iterator(_with_progress(again, "words", progress, then="pieces"), trainer)
    return BertTokenizer(
        learner.get_vocab(),
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=tokenize_chinese_chars,
        model_max_length=model_max_length,
        check_case=False,
    )


def _as_paths(source: object) -> list[Path] | None:
    match source:
        case Path():
            return [source]
        case [Path(), *_]:
            paths = [entry for entry in source if isinstance(entry, Path)]
            return paths if len(paths) == len(source) else None
    return None


def _checked(texts: Iterable[object]) -> Iterator[str]:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TokenizerError(
                f"Text {index} is a {type(text).__name__}, not a string.", "Pass texts, or a list of Paths."
            )
        yield replace_surrogates(text)


def _read_files(paths: Iterable[Path], encoding: str, skip_bad: bool) -> Iterator[str]:
    for path in paths:
        try:
            openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
            opener = openers.get(path.suffix, open)
            with opener(path, "rb") as file:
                yield from _decoded(file, path, encoding, skip_bad)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise TokenizerError(f"{path} cannot be read as text: {error}") from error


def _decoded(file: IO[bytes], path: Path, encoding: str, skip_bad: bool) -> Iterator[str]:
    """Lines of a file. Those of an encoding in which a line end is one byte can be left out one by one."""
    if len("\n".encode(encoding)) > 1:
        try:
            with TextIOWrapper(file, encoding=encoding) as text:
                yield from text
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path} is not {encoding}: {error}.", "Say which encoding it is.") from None
        return
    for number, line in enumerate(file, start=1):
        try:
            line_text = line.decode(encoding)
        except UnicodeDecodeError as error:
            if skip_bad:
                continue
            raise TokenizerError(
                f"{path}, line {number}: byte 0x{line[error.start]:02x} at {error.start + 1} is not {encoding}.",
                "Say which encoding it is, e.g. {encoding}, or leave such lines out: {skip_bad}.",
                encoding="latin-1",
                skip_bad=True,
            ) from None
        yield line_text


def _spooled(texts: Iterable[str], spool: IO[str]) -> Iterator[str]:
    for text in texts:
        # A line break is whitespace to the tokenizer like any other.
        spool.write(text.replace("\n", " ").replace("\r", " ") + "\n")
        yield text


def _with_progress(
    texts: Iterable[str], what: str, progress: Progress | None, *, then: str | None = None
) -> Iterator[str]:
    """The same texts; `progress` is called with how much of them has been read."""
    if progress is None:
        yield from texts
        return
    read = reported = 0
    progress(what, 0)
    for text in texts:
        yield text
        read += len(text)
        if read - reported >= _CHARACTERS_AT_ONCE:
            progress(what, read)
            reported = read
    progress(then or what, read)


def _count_letters(texts: Iterable[str], normalizer: normalizers.BertNormalizer, processes: int) -> Counter[str]:
    letters: Counter[str] = Counter()
    with closing(in_order(_letters_of, _portions(texts), setup=(normalizer,), processes=processes)) as counts:
        for found in counts:
            letters.update(found)
    for space in WHITESPACE:
        letters.pop(space, None)
    return letters


def _letters_of(texts: list[str], normalizer: normalizers.BertNormalizer) -> Counter[str]:
    return Counter(chain.from_iterable(map(normalizer.normalize_str, texts)))


def _portions(texts: Iterable[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    size = 0
    for text in texts:
        portion.append(text)
        size += len(text)
        if size >= _CHARACTERS_AT_ONCE:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
