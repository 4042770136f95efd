"""Tokenizer files: what may lie in a checkpoint's folder, and what we write.

    tokenizer.json            the whole Rust tokenizer; preferred when it is there
    vocab.txt                 one token to a line; enough by itself
    tokenizer_config.json     do_lower_case, model_max_length, names of the special tokens, added_tokens_decoder …
    special_tokens_map.json   names of the special tokens (older folders)
    chat_template.jinja       how a conversation becomes a text, where the model is for that (chat.py)
    added_tokens.json         {"token": id} of tokens beyond vocab.txt (older folders)
    config.json               the model's; read for max_position_embeddings only, when nothing else gives the length
    bert_config.json          the same in Google's folders

Nothing in these files is executed or imported; keys that are not understood are left alone.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from bertie.errors import CheckpointNotFound, TokenizerError
from bertie.text.backend import rust_errors
from bertie.text.hub.chat import read_chat_template
from bertie.text.wordpiece.vocabulary import read_text

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """What a folder says. `settings` holds only what some file states; `added` is sorted by id."""

    source: str
    name: str
    tokenizer_json: str | None = None
    vocab_file: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    added: tuple[tuple[int, AddedToken], ...] = ()
    chat_template: str | dict[str, str] | None = None


def read_tokenizer_files(path: str | Path) -> TokenizerFiles:
    """Read a folder, or a single `tokenizer.json` or vocabulary file."""
    path = Path(path)
    if path.is_file():
        if path.suffix == ".json":
            return TokenizerFiles(source=str(path), name=path.parent.name, tokenizer_json=read_text(path))
        return TokenizerFiles(source=str(path), name=path.parent.name, vocab_file=path)
    if not path.is_dir():
        raise CheckpointNotFound(f"There is no tokenizer at {path}.", "Check the path; it may be a folder or a file.")

    json_file, vocab_file = path / "tokenizer.json", path / "vocab.txt"
    if not json_file.is_file() and not vocab_file.is_file():
        listing = ", ".join(sorted(entry.name for entry in path.iterdir())[:12]) or "nothing"
        raise CheckpointNotFound(
            f"{path} holds neither tokenizer.json nor vocab.txt (it holds {listing}).",
            "Copy the checkpoint's vocab.txt or tokenizer.json into the folder.",
        )
    config = read_json(path / "tokenizer_config.json") or {}
    return TokenizerFiles(
        source=str(path),
        name=path.resolve().name,
        tokenizer_json=read_text(json_file) if json_file.is_file() else None,
        vocab_file=vocab_file if vocab_file.is_file() else None,
        settings=_settings(path, config),
        added=_added_tokens(path, config),
        chat_template=read_chat_template(path, config),
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, TokenizerError):
            raise
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TokenizerError(f"{path} is not valid JSON: {reason}", "Get the file again.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} should hold a JSON object, not {type(content).__name__}.", "Get the file again.")
    return content


def _settings(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    where = folder / "tokenizer_config.json"
    for key in (
        "do_lower_case",
        "strip_accents",
        "tokenize_chinese_chars",
        "clean_up_tokenization_spaces",
        "split_special_tokens",
    ):
        if (value := config.get(key)) is not None:
            if not isinstance(value, bool):
                raise _bad_field(where, key, value, "true or false")
            settings[key] = value
    if (limit := config.get("max_input_chars_per_word")) is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit < 2**31:
            raise _bad_field(where, "max_input_chars_per_word", limit, "a positive number")
        settings["max_input_chars_per_word"] = limit
    for key in ("padding_side", "truncation_side"):
        if (value := config.get(key)) is not None:
            if value not in ("left", "right"):
                raise _bad_field(where, key, value, "'left' or 'right'")
            settings[key] = value
    for key in ("never_split", "model_input_names"):
        if (names := config.get(key)) is not None:
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise _bad_field(where, key, names, "a list of words")
            settings[key] = names

    # The configuration is newer than the map and wins.
    special = read_json(folder / "special_tokens_map.json") or {}
    for origin, file in ((special, folder / "special_tokens_map.json"), (config, where)):
        for role in SPECIAL_ROLES:
            if origin.get(role) is not None:
                settings[role] = _added_token(origin[role], file, role, special=True).content
        extra = origin.get("additional_special_tokens") or []
        if not extra and isinstance(origin.get("extra_special_tokens"), list):  # the name in transformers 5
            extra = origin["extra_special_tokens"]
        if not isinstance(extra, list):
            raise _bad_field(file, "additional_special_tokens", extra, "a list of tokens")
        if extra:
            settings["additional_special_tokens"] = [
                _added_token(token, file, "additional_special_tokens", special=True) for token in extra
            ]
    length = _model_max_length(folder, config)
    if length is not None:
        settings["model_max_length"] = length
    return settings


def _model_max_length(folder: Path, config: dict[str, Any]) -> int | None:
    length = config.get("model_max_length")
    if length is not None:
        if isinstance(length, bool) or not isinstance(length, (int, float)) or not 0 < length < float("inf"):
            raise _bad_field(folder / "tokenizer_config.json", "model_max_length", length, "a positive number")
        return int(length)
    for name in ("config.json", "bert_config.json"):
        positions = (read_json(folder / name) or {}).get("max_position_embeddings")
        if isinstance(positions, int) and positions > 0:
            return positions
    return None


def _added_tokens(folder: Path, config: dict[str, Any]) -> tuple[tuple[int, AddedToken], ...]:
    added: dict[int, AddedToken] = {}
    older = folder / "added_tokens.json"
    for token, index in (read_json(older) or {}).items():
        added[_token_id(index, older, token)] = _added_token(token, older, token, special=False)
    where = folder / "tokenizer_config.json"
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise _bad_field(where, "added_tokens_decoder", decoder, "an object of id: token")
    for index, token in decoder.items():
        field_name = f"added_tokens_decoder[{index!r}]"
        added[_token_id(index, where, field_name)] = _added_token(token, where, field_name, special=False)
    return tuple(sorted(added.items(), key=lambda entry: entry[0]))


def _token_id(value: Any, file: Path, name: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise _bad_field(file, name, value, "a token id")
    return value


def _added_token(value: Any, file: Path, name: str, *, special: bool) -> AddedToken:
    """A token written as a string, or as the hub's object with its matching rules."""
    with rust_errors(f"{file}: {name!r} is no token"):  # a lone surrogate, which JSON can spell and Rust cannot hold
        return _parse_added_token(value, file, name, special=special)


def _parse_added_token(value: Any, file: Path, name: str, *, special: bool) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, normalized=not special, special=special)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise _bad_field(file, name, value, "a token: a string, or an object with 'content'")
    flags = {key: value.get(key, False) for key in ("single_word", "lstrip", "rstrip")}
    flags["special"] = value.get("special", special)
    flags["normalized"] = value.get("normalized", not flags["special"])
    for key, flag in flags.items():
        if not isinstance(flag, bool):
            raise _bad_field(file, f"{name}.{key}", flag, "true or false")
    return AddedToken(value["content"], **flags)


def _bad_field(file: Path, key: str, value: Any, wanted: str) -> TokenizerError:
    shown = repr(value)
    return TokenizerError(
        f"{file}: {key!r} is {shown[:80]}{'…' * (len(shown) > 80)}; wanted {wanted}.",
        "Correct the file or get it again.",
    )


def describe_added_token(token: AddedToken) -> dict[str, Any]:
    """The hub's JSON form of an added token."""
    return {
        "content": token.content,
        "lstrip": token.lstrip,
        "normalized": token.normalized,
        "rstrip": token.rstrip,
        "single_word": token.single_word,
        "special": token.special,
    }


def write_files(folder: str | Path, contents: Mapping[str, str]) -> list[Path]:
    """Write text files into a folder, each one whole or not at all."""
    folder = Path(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                    file.write(content)
                os.chmod(temporary, 0o644)
                os.replace(temporary, folder / name)
            except BaseException:
                os.unlink(temporary)
                raise
            written.append(folder / name)
    except OSError as error:
        raise TokenizerError(f"The tokenizer could not be saved in {folder}: {error}.") from error
    return written


def format_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
