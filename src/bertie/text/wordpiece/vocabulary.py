"""The vocabulary file of a BERT, `vocab.txt`: one token per line, its id is the number of the line.

Also here: is it the vocabulary of a cased or of an uncased model? Google's scripts refuse to lower-case for a cased
checkpoint and the reverse, by the checkpoint's name (`validate_case_matches_checkpoint` in google-research/bert). The
words in the vocabulary tell more than a name: a cased English one is a third capitalised words, all of which
lower-cased text can never reach; an uncased one has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from bertie.errors import CheckpointNotFound, TokenizerError

Case = Literal["cased", "uncased"]

# One of Google's released folders or archives, e.g. multi_cased_L-12_H-768_A-12.
_GOOGLE_NAME = re.compile(r"(uncased|cased|multi_cased|multilingual|chinese|wwm_uncased|wwm_cased)_L-\d+_H-\d+_A-\d+")
_NAMES_OF_CASED = frozenset({"cased", "multi_cased", "wwm_cased"})

MAX_FILE_BYTES = 512 * 2**20


def read_vocabulary(path: str | Path) -> dict[str, int]:
    """Token to id, from the file at `path`.

    A token on two lines keeps the later id, as on the hub; an empty line is the empty token. A
    byte-order mark at the start is no part of the first token.
    """
    text = read_text(path)
    lines = text.split("\n")  # universal newlines are done already; U+2028 and the like are no line ends here
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise TokenizerError(f"{path} is empty: it should hold one token per line.", "Get the file again.")
    return {token: index for index, token in enumerate(lines)}


def format_vocabulary(vocab: Mapping[str, int]) -> str:
    """The text of `vocab.txt`. An id that has no token repeats the last one, which reading gives its own, later id."""
    by_id = {index: token for token, index in vocab.items()}
    last = max(by_id, default=-1)
    if min(by_id, default=0) < 0 or last > 2 * len(by_id) + 1000:
        raise TokenizerError(
            f"The vocabulary's {len(by_id)} tokens have ids up to {last}: too sparse for vocab.txt, one line per id.",
            "Give the tokens consecutive ids from 0.",
        )
    for token in vocab:
        if "\n" in token or "\r" in token:
            raise TokenizerError(f"The token {token!r} holds a line break and cannot stand in vocab.txt.")
    return "".join(by_id.get(index, by_id[last]) + "\n" for index in range(last + 1))


def read_text(path: str | Path) -> str:
    """A UTF-8 file as text, or an error that says what is wrong with it."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise TokenizerError(f"{path} has {size:,} bytes; no tokenizer file is larger than {MAX_FILE_BYTES:,}.")
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFound(f"There is no file {path}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}.",
            "Get the file again, or convert it to UTF-8.",
        ) from error
    except TokenizerError:
        raise
    except (OSError, ValueError) as error:  # a directory, no permission, a NUL in the path
        raise TokenizerError(f"{path} cannot be read: {error}.") from error


def vocabulary_case(vocab: Iterable[str]) -> Case | None:
    """What the tokens say about the model: "cased", "uncased", or None when they do not tell.

    Cased: of the tokens with letters of a script that has case, at least one in twenty holds a capital. An uncased
    vocabulary to which a few capitalised terms were added stays below that; the amino-acid letters A, C, D … of a
    protein model lie far above. Uncased: no capital at all among a thousand words or more that are most of the
    vocabulary; the Chinese vocabulary, mostly ideographs and used both ways, is not called uncased.
    """
    num_whole = num_words = num_lettered = num_capital = 0
    for token in vocab:
        if len(token) > 1 and (token[0], token[-1]) in (("[", "]"), ("<", ">")):
            continue
        continues = token.startswith("##")
        num_whole += not continues
        if token.lower() == token.upper():
            continue
        num_lettered += 1
        num_capital += token != token.lower()
        num_words += not continues and len(token) > 1 and token.isalpha()
    if num_capital and num_capital * 20 >= num_lettered:
        return "cased"
    if num_capital == 0 and num_words >= 1000 and num_words * 2 > num_whole:
        return "uncased"
    return None


def name_case(name: str) -> Case | None:
    """The case that one of Google's own checkpoint names states.

    >>> name_case("multi_cased_L-12_H-768_A-12"), name_case("my-cased-study")
    ('cased', None)
    """
    match = _GOOGLE_NAME.search(name)
    if match is None:
        return None
    return "cased" if match[1] in _NAMES_OF_CASED else "uncased"


def guess_lower_case(vocab: Iterable[str], name: str = "") -> bool:
    """Lower-case for this vocabulary? Asked when no file and no argument says it; yes when in doubt."""
    case = vocabulary_case(vocab) or name_case(name)
    if case is None and "cased" in name.lower():
        case = "uncased" if "uncased" in name.lower() else "cased"
    return case != "cased"


def check_case_matches(vocab: Iterable[str], do_lower_case: bool, *, name: str = "", source: str = "") -> None:
    """Refuse to lower-case for a cased model, and not to for an uncased one."""
    case = vocabulary_case(vocab)
    evidence = (
        "its vocabulary is full of capitalised words" if case == "cased" else "its vocabulary has no capitals at all"
    )
    if case is None:
        case = name_case(name)
        evidence = f"it is named {name!r}"
    if case is None or (case == "uncased") == do_lower_case:
        return
    raise TokenizerError(
        f"{{do_lower_case}} does not fit {source or 'this vocabulary'}: it is of "
        f"{'a cased' if case == 'cased' else 'an uncased'} model ({evidence}), so most words "
        "would become [UNK] or fall to pieces.",
        f"Use do_lower_case={not do_lower_case}; if the setting is right all the same, {{check_case}}.",
        do_lower_case=do_lower_case,
        check_case=False,
    )


def as_vocabulary(vocab: Mapping[str, int] | Sequence[str]) -> dict[str, int]:
    """A mapping of tokens to ids, or a list of tokens, checked."""
    tokens = dict(vocab) if isinstance(vocab, Mapping) else {token: index for index, token in enumerate(vocab)}
    for token, index in tokens.items():
        match token, index:
            case (_, bool()):  # which Python counts among the numbers
                pass
            case (str(), int()) if 0 <= index < 2**31:
                continue
        raise TokenizerError(f"The vocabulary maps {token!r} to {index!r}; it must map strings to ids of at least 0.")
    return tokens
