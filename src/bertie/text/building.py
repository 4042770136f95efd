"""Making a tokenizer: from files, or from a vocabulary and settings, to a Rust tokenizer and the settings in force."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from bertie.errors import TokenizerError
from bertie.text.converting import add_special, frame
from bertie.text.files import TokenizerFiles
from bertie.text.kinds import KINDS
from bertie.text.rust import check_word_limit, keep_whole, parse_backend, rust_errors, set_template
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
                    "The added tokens' ids should go on where vocab.txt ends. Correct the file or get it again.",
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
