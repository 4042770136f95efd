"""Tokenizer files: what may lie in a checkpoint's folder, and what we write.

    tokenizer.json            the whole Rust tokenizer; preferred when it is there
    vocab.txt                 one token per line; enough by itself
    vocab.json, merges.txt    byte-level BPE, and
    sentencepiece.bpe.model   SentencePiece: older files of BERT's relatives, converted (converting.py)
    tokenizer_config.json     do_lower_case, model_max_length, names of the special tokens, added_tokens_decoder …
    special_tokens_map.json   names of the special tokens (older folders)
    chat_template.jinja       how a conversation becomes a text, where the model is for that (hub/chat.py)
    added_tokens.json         {"token": id} of tokens beyond vocab.txt (older folders)
    config.json               the model's; read for the longest text and the model's kind, where nothing else says them
    bert_config.json          the same in Google's folders

Nothing in these files is executed or imported; keys that are not understood are left alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, cast

from tokenizers import AddedToken

from bertie.config.relatives import first_position
from bertie.errors import CheckpointNotFound, TokenizerError
from bertie.files import NewFile
from bertie.json_values import items, members, parsed, text, texts, whole
from bertie.text.converting import converted, from_sentencepiece
from bertie.text.kinds import KINDS, kind_by_files, kind_name
from bertie.text.rust import rust_errors
from bertie.text.settings import ADDITIONAL, SPECIAL_ROLES, ChatTemplate, Settings
from bertie.text.wordpiece.vocabulary import read_text

TEMPLATE_FILE, TEMPLATES_FOLDER = "chat_template.jinja", "additional_chat_templates"
_TEMPLATE_NAME = re.compile(r"[\w\-][\w.\-]{0,80}")
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


@dataclass(frozen=True)
class TokenizerFiles:
    """What a folder says. `settings` holds only what some file states; `added` is sorted by id."""

    source: str
    name: str
    tokenizer_json: str | None = None
    vocab_file: Path | None = None
    settings: Settings = field(default_factory=Settings)
    added: tuple[tuple[int, AddedToken], ...] = ()
    chat_template: ChatTemplate | None = None
    kind: str = "BertTokenizer"  # the hub's class


def read_tokenizer_files(path: str | Path, wanted: str | None = None) -> TokenizerFiles:
    """Read a folder, or a single `tokenizer.json` or vocabulary file.

    `wanted` is the kind that the caller's class is for (`RobertaTokenizer`); a folder of another is refused.
    """
    path = Path(path)
    if path.is_file():
        settings = cast(Settings, kind_settings(wanted or "BertTokenizer"))
        files = TokenizerFiles(str(path), path.parent.name, settings=settings, kind=wanted or "BertTokenizer")
        if path.suffix == ".json":
            return replace(files, tokenizer_json=read_text(path))
        if KINDS[files.kind].first_pieces:
            return replace(files, tokenizer_json=from_sentencepiece(path, KINDS[files.kind], add_prefix_space=None))
        return replace(files, vocab_file=path)
    if not path.is_dir():
        raise CheckpointNotFound(f"There is no tokenizer at {path}.", "Check the path; it may be a folder or a file.")

    json_file, vocab_file = path / "tokenizer.json", path / "vocab.txt"
    config = read_json(path / "tokenizer_config.json")
    model_type = read_json(path / "config.json").get("model_type")
    named = kind_name(config.get("tokenizer_class"), model_type)
    kind = wanted or named or kind_by_files(os.listdir(path))
    if named is not None and not KINDS[kind].reads(KINDS[named]):
        raise TokenizerError(
            f"{path} holds a {named}, not a {kind}.",
            f"Load it with bertie.{named}.from_pretrained(…), or with bertie.AutoTokenizer, which reads every kind.",
        )
    text = read_text(json_file) if json_file.is_file() else None
    if text is None and not vocab_file.is_file():
        prefix = config.get("add_prefix_space")
        text = converted(path, KINDS[kind], add_prefix_space=prefix if isinstance(prefix, bool) else None)
    if text is None and not vocab_file.is_file():
        listing = ", ".join(sorted(entry.name for entry in path.iterdir())[:12]) or "nothing"
        raise CheckpointNotFound(
            f"{path} holds neither tokenizer.json nor {KINDS[kind].files} (it holds {listing}).",
            f"Copy the checkpoint's {KINDS[kind].files} or tokenizer.json into the folder.",
        )
    return TokenizerFiles(
        source=str(path),
        name=path.resolve().name,
        tokenizer_json=text,
        vocab_file=vocab_file if vocab_file.is_file() else None,
        settings=_settings(path, config, kind),
        kind=kind,
        added=_added_tokens(path, config),
        chat_template=read_chat_template(path, config),
    )


def read_json(path: Path) -> dict[str, Json]:
    """The object in a JSON file; an empty one when there is no such file."""
    if not path.is_file():
        return {}
    source = read_text(path)
    try:
        content = parsed(source)
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}", "Get the file again.") from error
    if (found := members(content)) is None:
        raise TokenizerError(f"{path} should hold a JSON object, not {type(content).__name__}.", "Get the file again.")
    return found


def _is_flag(value: object) -> bool:
    return value is True or value is False


def _are_words(value: Json) -> bool:
    return texts(value) is not None


# The fields of tokenizer_config.json that are taken as they are: what each may hold, and how that is said.
_FIELDS: Mapping[str, tuple[Callable[[Json], bool], str]] = {
    "do_lower_case": (_is_flag, "true or false"),
    "strip_accents": (_is_flag, "true or false"),
    "tokenize_chinese_chars": (_is_flag, "true or false"),
    "clean_up_tokenization_spaces": (_is_flag, "true or false"),
    "add_prefix_space": (_is_flag, "true or false"),
    "split_special_tokens": (_is_flag, "true or false"),
    "max_input_chars_per_word": (lambda it: 0 < (whole(it) or 0) < 2**31, "a positive number"),
    "padding_side": (lambda it: it in ("left", "right"), "'left' or 'right'"),
    "truncation_side": (lambda it: it in ("left", "right"), "'left' or 'right'"),
    "never_split": (_are_words, "a list of words"),
    "model_input_names": (_are_words, "a list of words"),
}


def kind_settings(kind: str) -> dict[str, object]:
    """What goes without saying for a kind of tokenizer; none for BERT's."""
    settings: dict[str, object] = {**KINDS[kind].special}
    if (inputs := KINDS[kind].inputs) is not None:
        settings["model_input_names"] = list(inputs)
    if (clean_up := KINDS[kind].clean_up) is not None:
        settings["clean_up_tokenization_spaces"] = clean_up
    if kind != "BertTokenizer":
        settings["tokenizer_class"] = kind
    return settings


def _settings(folder: Path, config: dict[str, Json], kind: str) -> Settings:
    settings = kind_settings(kind)
    where, older = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    for key, (fits, wanted) in _FIELDS.items():
        if (value := config.get(key)) is not None:
            if not fits(value):
                raise _bad_field(where, key, value, wanted)
            settings[key] = value
    # The configuration is newer than the map and wins.
    for origin, file in ((read_json(older), older), (config, where)):
        for role in SPECIAL_ROLES:
            if origin.get(role) is not None:
                settings[role] = _added_token(origin[role], file, role, special=True).content
        match origin.get(ADDITIONAL) or None, origin.get("extra_special_tokens"):  # the name in transformers 5
            case ([*extra], _) | (None, [*extra]):
                if extra:
                    settings[ADDITIONAL] = [_added_token(token, file, ADDITIONAL, special=True) for token in extra]
            case (None, _):
                pass
            case (bad, _):
                raise _bad_field(file, ADDITIONAL, bad, "a list of tokens")
    length = _model_max_length(folder, config)
    if length is not None:
        settings["model_max_length"] = length
    return cast(Settings, settings)  # each was checked on its way in


def _model_max_length(folder: Path, config: dict[str, Json]) -> int | None:
    length = config.get("model_max_length")
    if length is not None:
        number = length if isinstance(length, float) else whole(length)
        if number is None or not 0 < number < float("inf"):
            raise _bad_field(folder / "tokenizer_config.json", "model_max_length", length, "a positive number")
        return int(number)
    for name in ("config.json", "bert_config.json"):
        model = read_json(folder / name)
        if (positions := whole(model.get("max_position_embeddings")) or 0) > 0:
            first = first_position(model.get("model_type"), whole(model.get("pad_token_id")))
            return positions - first if positions > first else positions
    return None


def _added_tokens(folder: Path, config: dict[str, Json]) -> tuple[tuple[int, AddedToken], ...]:
    added: dict[int, AddedToken] = {}
    older, where = folder / "added_tokens.json", folder / "tokenizer_config.json"
    for token, index in read_json(older).items():
        added[_token_id(index, older, token)] = _added_token(token, older, token, special=False)
    stated = config.get("added_tokens_decoder") or {}
    if (decoder := members(stated)) is None:
        raise _bad_field(where, "added_tokens_decoder", stated, "an object of id: token")
    for index, described in decoder.items():
        name = f"added_tokens_decoder[{index!r}]"
        added[_token_id(index, where, name)] = _added_token(described, where, name, special=False)
    return tuple(sorted(added.items(), key=lambda entry: entry[0]))


def _token_id(value: Json, file: Path, name: str) -> int:
    match value:
        case str() if value.isascii() and value.isdigit() and len(value) < 12:
            index: int | None = int(value)
        case _:
            index = whole(value)
    if index is None or not 0 <= index < 2**31:
        raise _bad_field(file, name, value, "a token id")
    return index


def _added_token(value: Json, file: Path, name: str, *, special: bool) -> AddedToken:
    """A token written as a string, or as the hub's object with its matching rules."""
    match value if text(value) is None else {"content": value}:
        case {"content": str(content), **rules}:
            flags = {key: rules.get(key, False) for key in ("single_word", "lstrip", "rstrip")}
        case _:
            raise _bad_field(file, name, value, "a token: a string, or an object with 'content'")
    flags["special"] = rules.get("special", special)
    flags["normalized"] = rules.get("normalized", not flags["special"])
    for key, flag in flags.items():
        if not _is_flag(flag):
            raise _bad_field(file, f"{name}.{key}", flag, "true or false")
    with rust_errors(f"{file}: {name!r} is no token"):  # a lone surrogate, which JSON can spell and Rust cannot hold
        return AddedToken(content, **flags)


def _bad_field(file: Path, key: str, value: object, wanted: str) -> TokenizerError:
    shown = repr(value)
    return TokenizerError(
        f"{file}: {key!r} is {shown[:80]}{'…' * (len(shown) > 80)}; it must be {wanted}.",
        "Correct the file or get it again.",
    )


def describe_added_token(token: AddedToken) -> dict[str, object]:
    """The hub's JSON form of an added token."""
    fields = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {name: getattr(token, name) for name in fields}


def read_chat_template(folder: Path, config: dict[str, Json]) -> ChatTemplate | None:
    """A folder's templates: from their own files, or else from its tokenizer_config.json."""
    found: dict[str, str] = {}
    if (folder / TEMPLATE_FILE).is_file():
        found["default"] = read_text(folder / TEMPLATE_FILE)
    for file in sorted((folder / TEMPLATES_FOLDER).glob("*.jinja")):
        found[file.stem] = read_text(file)
    stated = config.get("chat_template")
    if not found and stated is not None:
        if (alone := text(stated)) is not None:
            return alone
        listed = items(stated)
        for one in [stated] if listed is None else listed:
            match one:
                case {"name": name, "template": template}:
                    found[str(name)] = str(template)
                case _:
                    wanted = "a template, or a list of objects with 'name' and 'template'"
                    raise _bad_field(folder / "tokenizer_config.json", "chat_template", stated, wanted)
    return found["default"] if list(found) == ["default"] else found or None


def template_files(template: ChatTemplate | None) -> tuple[dict[str, str], dict[str, str]]:
    """The files that hold a tokenizer's templates: beside the others, and in the folder TEMPLATES_FOLDER."""
    named = named_templates(template)
    bad = [name for name in named if not _TEMPLATE_NAME.fullmatch(name)]
    if bad:
        raise TokenizerError(f"A chat template cannot be named {bad[0]!r}.", "Use letters, digits, '_', '-' and '.'.")
    first = {TEMPLATE_FILE: named.pop("default")} if "default" in named else {}
    return first, {f"{name}.jinja": written for name, written in named.items()}


def named_templates(template: ChatTemplate | None) -> dict[str, str]:
    """Templates by name; one that stands alone is the default."""
    return {"default": template} if isinstance(template, str) else dict(template or {})


def template_setting(template: ChatTemplate | None) -> str | list[dict[str, str]] | None:
    """The older way to save them, in tokenizer_config.json."""
    named = named_templates(template)
    if template is None or template == named.get("default"):
        return named.get("default")
    return [{"name": name, "template": written} for name, written in named.items()]


def write_files(folder: str | Path, contents: Mapping[str, str], prefix: str | None = None) -> tuple[str, ...]:
    """Write text files into a folder, each one whole or not at all; the paths. A prefix stands before their names."""
    folder = Path(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = folder / (f"{prefix}-{name}" if prefix else name)
            new = NewFile(path)
            try:
                new.stream.write(content.encode())
                new.keep()
            except BaseException:
                new.discard()
                raise
            written.append(str(path))
    except OSError as error:
        raise TokenizerError(f"The tokenizer could not be saved in {folder}: {error}.") from error
    return tuple(written)


def format_json(content: Mapping[str, object]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
