"""Making a tokenizer: from files, or from a vocabulary and settings, to a Rust tokenizer and the settings in force."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from bertie.errors import TokenizerError
from bertie.text.converting import add_special, frame
from bertie.text.files import TokenizerFiles
from bertie.text.kinds import KINDS
from bertie.text.rust import joins_words, rust_errors, set_prefix_space
from bertie.text.settings import SPECIAL_ROLES, Settings, SpecialToken, as_added
from bertie.text.wordpiece.reference import WORD_LIMIT
from bertie.text.wordpiece.vocabulary import check_case_matches, guess_lower_case, read_text, read_vocabulary

DEFAULT_SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_LARGEST_WORD_LIMIT = 1000
_LARGEST_POST_PROCESSOR = 1 << 20  # bytes, of which BERT's has 700
_LONGEST_TEMPLATE = 64  # BERT's has five pieces: [CLS] A [SEP] B [SEP]
_LARGEST_GROWTH = 100
_GET_AGAIN = "Get the file again, or use vocab.txt instead."


@dataclass(frozen=True)
class TokenizerParts:
    """What a `BertTokenizer` is made of. A role whose token the vocabulary does not have has None."""

    backend: Tokenizer
    settings: Settings


def parts_from_vocabulary(
    vocab: Mapping[str, int],
    settings: Settings,
    *,
    check_case: bool,
    name: str = "",
    source: str = "this vocabulary",
) -> TokenizerParts:
    """BERT's own tokenizer over a vocabulary. `settings` may leave anything out."""
    backend = _build(vocab, settings, check_case=check_case, name=name, source=source)
    _add_named(backend, settings)
    return _parts(backend, settings)


def parts_from_rust(
    file: str | Path | None, backend: Tokenizer | None, settings: Settings, *, check_case: bool
) -> TokenizerParts:
    """A `tokenizer.json`, or a copy of a Rust tokenizer, with settings laid over it."""
    if backend is not None:
        text, source = backend.to_str(), "tokenizer_object"
    elif file is not None:
        text, source = read_text(file), str(file)
    else:
        raise TokenizerError(
            "There is nothing to make a tokenizer from.", "Pass vocab_file=, tokenizer_file= or tokenizer_object=."
        )
    return parts_from_files(TokenizerFiles(source, "", tokenizer_json=text), settings, check_case=check_case)


def parts_from_backend(backend: Tokenizer, settings: Settings) -> TokenizerParts:
    """A Rust tokenizer as it is, with special tokens and settings."""
    _add_named(backend, settings)
    _frame(backend, settings)
    return _parts(backend, settings)


def parts_from_files(files: TokenizerFiles, given: Settings, *, check_case: bool) -> TokenizerParts:
    """A folder's tokenizer.

    `tokenizer.json` is the tokenizer when it is there; what another file or the caller states is laid over it, and what
    nobody states stays as it is there.
    """
    given = cast(Settings, {name: value for name, value in given.items() if value is not None})
    settings: Settings = {**files.settings, **given}
    strict = "never_split" in given
    if files.tokenizer_json is None:
        assert files.vocab_file is not None  # read_tokenizer_files gives one of the two
        vocab = read_vocabulary(files.vocab_file)
        settings["never_split"] = _known_words(settings, vocab, files, strict=strict)
        backend = _build(vocab, settings, check_case=check_case, name=files.name, source=files.source)
        if KINDS[files.kind].two_separators:
            add_special(backend, KINDS[files.kind])
            frame(backend, {role: str(settings.get(role)) for role in ("cls_token", "sep_token")}, second=1)
    else:
        backend = parse_backend(files.tokenizer_json, source=f"{files.source} (tokenizer.json)")
        _apply_normalizer(backend, settings, files, check_case=check_case)
        if (prefix := settings.get("add_prefix_space")) is not None and joins_words(backend) is prefix:
            backend = set_prefix_space(backend, prefix)
        limit = settings.get("max_input_chars_per_word")
        if limit is not None and hasattr(backend.model, "max_input_chars_per_word"):
            check_word_limit(limit, files.source)
            backend.model.max_input_chars_per_word = limit
        vocab = backend.get_vocab(with_added_tokens=True)
        words = settings["never_split"] = _known_words(settings, vocab, files, strict=strict)
        keep_whole(backend, words)
    _add_missing(backend, files)
    _add_named(backend, settings)
    _frame(backend, given)
    return _parts(backend, settings)


def _build(vocab: Mapping[str, int], settings: Settings, *, check_case: bool, name: str, source: str) -> Tokenizer:
    """BERT's tokenizer over a vocabulary: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, type ids 0 and 1."""
    do_lower_case = settings.get("do_lower_case")
    if do_lower_case is None:
        do_lower_case = guess_lower_case(vocab, name)
    elif check_case:
        check_case_matches(vocab, do_lower_case, name=name, source=source)
    special = {role: str(settings.get(role) or default) for role, default in DEFAULT_SPECIAL.items()}
    unk_token, cls_token, sep_token = special["unk_token"], special["cls_token"], special["sep_token"]
    for role, token in (("unknown", unk_token), ("classification", cls_token), ("separator", sep_token)):
        if token not in vocab:
            raise TokenizerError(
                f"The vocabulary ({len(vocab)} tokens) has no {token!r}, the {role} token.",
                "Is it a BERT vocabulary? If the token has another name, pass it: unk_token=, cls_token=, sep_token=.",
            )
    given = settings.get("max_input_chars_per_word")
    limit = WORD_LIMIT if given is None else given
    check_word_limit(limit, "The tokenizer")
    with rust_errors("The vocabulary cannot be used"):
        backend = Tokenizer(WordPiece(dict(vocab), unk_token=unk_token, max_input_chars_per_word=limit))
        backend.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
            strip_accents=settings.get("strip_accents"),
            lowercase=do_lower_case,
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        set_template(backend, cls_token=cls_token, sep_token=sep_token)
        backend.add_special_tokens([as_added(token) for token in special.values() if token in vocab])
    keep_whole(backend, settings.get("never_split") or ())
    return backend


def _role(settings: Settings, role: str) -> SpecialToken | None:
    return cast("SpecialToken | None", settings.get(role))


def _parts(backend: Tokenizer, settings: Settings) -> TokenizerParts:
    special: dict[str, SpecialToken | None] = {}
    for role in SPECIAL_ROLES:
        token = _role(settings, role) or DEFAULT_SPECIAL.get(role)
        special[role] = token if token and backend.token_to_id(str(token)) is not None else None
    with rust_errors("The special tokens cannot be used"):
        # A token that the files describe stays as described: a name alone says nothing about spaces around it.
        known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        additional = settings.get("additional_special_tokens") or ()
        named = [token for token in (*special.values(), *additional) if token and token not in known]
        backend.add_special_tokens([as_added(t) for t in named if backend.token_to_id(str(t)) is not None])
    return TokenizerParts(backend, cast(Settings, {**settings, **special}))


def _add_named(backend: Tokenizer, settings: Settings) -> None:
    """Special tokens that files or caller name and the vocabulary lacks get ids after it, as on the hub.

    The tokens of BERT's own names do not: a vocabulary without [MASK] is that of a model without one.
    """
    roles = [token for role in SPECIAL_ROLES if (token := _role(settings, role)) and token != DEFAULT_SPECIAL.get(role)]
    named = [*roles, *(settings.get("additional_special_tokens") or ())]
    new = [as_added(token) for token in named if backend.token_to_id(str(token)) is None]
    if new:
        add_to_vocabulary(backend, new, special=True)


def _frame(backend: Tokenizer, given: Settings) -> None:
    """A text stands between the tokens that the caller names; where he names none, as the files have it."""
    if given.get("cls_token") or given.get("sep_token"):
        cls, sep = (str(_role(given, role) or DEFAULT_SPECIAL[role]) for role in ("cls_token", "sep_token"))
        if backend.token_to_id(cls) is not None and backend.token_to_id(sep) is not None:
            set_template(backend, cls_token=cls, sep_token=sep)


def _apply_normalizer(backend: Tokenizer, settings: Settings, files: TokenizerFiles, *, check_case: bool) -> None:
    """Lay explicit settings over the normalizer of a `tokenizer.json`, and check its case."""
    old = backend.normalizer
    if not isinstance(old, normalizers.BertNormalizer):
        return  # another tokenizer than BERT's: it is used as it is
    new = {
        "lowercase": settings.get("do_lower_case", old.lowercase),
        "strip_accents": settings.get("strip_accents", old.strip_accents),
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", old.handle_chinese_chars),
    }
    if any(getattr(old, key) != value for key, value in new.items()):
        backend.normalizer = normalizers.BertNormalizer(clean_text=old.clean_text, **new)
    if check_case:
        vocab = backend.get_vocab(with_added_tokens=False)
        check_case_matches(vocab, bool(new["lowercase"]), name=files.name, source=files.source)


def _known_words(settings: Settings, vocab: Mapping[str, int], files: TokenizerFiles, *, strict: bool) -> list[str]:
    """never_split words, less those a *file* lists that the vocabulary does not have: those only ever gave [UNK]."""
    words = list(settings.get("never_split") or ())
    missing = [word for word in words if word not in vocab]
    if missing and not strict:
        warnings.warn(
            f"{files.source}: never_split words that are not in the vocabulary are ignored: {missing[:5]}", stacklevel=4
        )
        return [word for word in words if word in vocab]
    return words


def _add_missing(backend: Tokenizer, files: TokenizerFiles) -> None:
    """Tokens beyond the vocabulary that other files list, each with the id it is listed under."""
    with rust_errors(f"{files.source}: the added tokens cannot be used"):
        for index, token in files.added:
            known = backend.token_to_id(token.content)
            if known is None:
                add_to_vocabulary(backend, [token], special=False)
                known = backend.token_to_id(token.content)
            elif known == index and known not in backend.get_added_tokens_decoder():
                backend.add_tokens([token])
            if known != index:
                raise TokenizerError(
                    f"{files.source}: the added token {token.content!r} is listed with id {index}, but has {known}.",
                    "The added tokens' ids should continue where vocab.txt ends. Correct the file or get it again.",
                )


def add_to_vocabulary(backend: Tokenizer, tokens: Sequence[AddedToken], *, special: bool) -> None:
    """Tokens that get ids after the last one.

    Where ids are not 0 … n-1 (a token on two lines of vocab.txt), Rust would give a new token an id in use.
    """
    vocab = backend.get_vocab(with_added_tokens=True)
    has_holes = max(vocab.values(), default=-1) + 1 != len(vocab)
    if has_holes and any(token.content not in vocab for token in tokens):
        raise TokenizerError(
            "The vocabulary has unused ids (a token on two lines of vocab.txt), so tokens cannot be added to it.",
            "Give every line of vocab.txt its own token first.",
        )
    with rust_errors("The tokens cannot be added"):
        (backend.add_special_tokens if special else backend.add_tokens)(list(tokens))


# -- the Rust tokenizer's parts ----------------------------------------------------------------------------------------


def set_template(backend: Tokenizer, *, cls_token: str, sep_token: str) -> None:
    """`[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, type ids 0 for the first part and 1 for the second."""
    with rust_errors(f"{cls_token!r} and {sep_token!r} cannot frame a text"):
        backend.post_processor = processors.TemplateProcessing(
            single=[f"{cls_token}:0", "$A:0", f"{sep_token}:0"],
            pair=[f"{cls_token}:0", "$A:0", f"{sep_token}:0", "$B:1", f"{sep_token}:1"],
            special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys((cls_token, sep_token))],
        )


def keep_whole(backend: Tokenizer, never_split: Sequence[str]) -> None:
    """Make words of the vocabulary immune to lower-casing and splitting wherever they stand as words of their own."""
    missing = [word for word in never_split if backend.token_to_id(word) is None]
    if missing:
        raise TokenizerError(
            f"never_split holds words that are not in the vocabulary: {', '.join(map(repr, missing[:5]))}. "
            "Kept whole, each could only become [UNK].",
            "Leave them out, or give the model new tokens with add_tokens().",
        )
    known = {added.content for added in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([AddedToken(w, single_word=True, normalized=False) for w in never_split if w not in known])


def parse_backend(text: str, *, source: str) -> Tokenizer:
    """A `tokenizer.json`. Truncation and padding stored in it are dropped: those are arguments of each call here."""
    with rust_errors(f"{source} is not a tokenizer this version can read", _GET_AGAIN):
        backend = Tokenizer.from_str(text)
        backend.no_truncation()
        backend.no_padding()
        unk = None
        if isinstance(backend.model, WordPiece):
            unk = backend.model.unk_token
            check_word_limit(backend.model.max_input_chars_per_word, source)
        if backend.post_processor is not None:
            described: bytes = backend.post_processor.__getstate__()
            if len(described) > _LARGEST_POST_PROCESSOR:  # which takes long to read, too
                size = len(described) >> 20
                raise TokenizerError(f"{source}: a template of {size} MB would repeat every text.", _GET_AGAIN)
            _check_template(json.loads(described), source)
        for part in (backend.normalizer, backend.decoder):
            if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > _LARGEST_GROWTH:
                raise TokenizerError(f"{source}: its replacements can make a text {growth} times as long.", _GET_AGAIN)
    if unk is not None and backend.token_to_id(unk) is None:
        raise TokenizerError(
            f"{source}: model.vocab has no {unk!r}, which model.unk_token names.", "Add it, or get the file again."
        )
    return backend


def check_word_limit(limit: int, source: str) -> None:
    """The time a word takes grows with the square of its length, so this limit is what keeps long texts linear."""
    if not 0 < limit <= _LARGEST_WORD_LIMIT:
        raise TokenizerError(
            f"{source}: {{max_input_chars_per_word:is}} it must be from 1 to {_LARGEST_WORD_LIMIT}.",
            "BERT's is 100, and was 200 in Google's first release.",
            max_input_chars_per_word=limit,
        )


# A part of a tokenizer as Rust writes it. Rust has parsed it, so its fields are there and of their types.
_Part = dict[str, Any]


def _check_template(processor: _Part, source: str) -> None:
    """A template may name only tokens it defines; Rust finds out when it encodes, and panics."""
    for part in processor.get("processors", ()):
        _check_template(part, source)
    if processor.get("type") == "TemplateProcessing":
        longest = max(len(processor["single"]), len(processor["pair"]))
        if longest > _LONGEST_TEMPLATE:
            raise TokenizerError(f"{source}: a template of {longest} pieces would repeat every text.", _GET_AGAIN)
        pieces = processor["single"] + processor["pair"]
        named = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
        unknown = sorted(named - set(processor["special_tokens"]))
        if unknown:
            raise TokenizerError(
                f"{source}: post_processor names the special token {unknown[0]!r} and does not define it.", _GET_AGAIN
            )


def _growth(part: _Part) -> int:
    """How many times longer replacements can make a text. One after another they multiply: nine tens are a billion."""
    growth = 1
    for child in (*part.get("normalizers", ()), *part.get("decoders", ())):
        growth *= _growth(child)
    if part.get("type") == "Replace":
        plain = part["pattern"].get("String", "")
        # An expression may match nothing at all, between any two letters.
        growth = max(1, -(-len(part["content"]) // len(plain)) if plain else 1 + len(part["content"]))
    return growth
