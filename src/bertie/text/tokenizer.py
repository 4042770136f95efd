"""`BertTokenizer`: text to ids and back, with the call signature people know from the hub, on the Rust library.

    tokenizer = BertTokenizer.from_pretrained("path/to/checkpoint")
    batch = tokenizer(["A text.", "Another one."], padding=True, truncation=True, return_tensors="pt")

Here it is made, loaded, retrained and saved. What it does is in text_to_ids.py and token_table.py, and what else
the hub's tokenizers do in hub/. Much text is encoded in C++. The algorithm itself, to be read, is
wordpiece/reference.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Self, TypedDict, Unpack, cast

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.trainers import WordPieceTrainer

from bertie.errors import CheckpointNotFound, TokenizerError, TokenizerTypeError
from bertie.text.building import (
    TokenizerParts,
    parts_from_backend,
    parts_from_files,
    parts_from_rust,
    parts_from_vocabulary,
)
from bertie.text.converting import format_merges
from bertie.text.files import (
    TEMPLATES_FOLDER,
    describe_added_token,
    format_json,
    read_tokenizer_files,
    template_files,
    template_setting,
    write_files,
)
from bertie.text.hub.interface import HubInterface
from bertie.text.rust import rust_errors
from bertie.text.settings import ADDITIONAL, NO_LIMIT, SPECIAL_ROLES, ChatTemplate, Settings, SpecialToken, check_others
from bertie.text.token_table import TokenTable
from bertie.text.truncation import Side
from bertie.text.wordpiece.reference import WORD_LIMIT
from bertie.text.wordpiece.vocabulary import as_vocabulary, format_vocabulary, read_vocabulary

Resolver = Callable[[str], str | Path]


class Fetching(TypedDict, total=False):
    """Where a name is looked for."""

    revision: str | None
    cache_dir: str | Path | None
    local_files_only: bool
    token: str | bool | None
    force_download: bool
    proxies: Mapping[str, str] | None


class Loading(Settings, Fetching, total=False):
    """All that `from_pretrained` takes by name beside its own."""

    subfolder: str
    use_auth_token: str | bool | None


def _resolve_name(name: str, subfolder: str, fetching: Fetching) -> str | Path:
    """The one place where a name becomes a local folder; shipped models and the hub live in the checkpoint room."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise CheckpointNotFound(f"There is no tokenizer at {name}.", "Check the path.")
    from bertie.checkpoint import find_checkpoint, hub

    if (shipped := find_checkpoint.find_shipped(name, wanted=hub.TOKENIZER, **fetching)) is not None:
        return shipped / subfolder
    return hub.fetch_tokenizer(name, subfolder=subfolder, **fetching)


class BertTokenizer(HubInterface):
    """WordPiece for BERT. `BertTokenizerFast` is the same under another name (hub/names.py).

    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"])
    >>> tokenizer("Hello worlds")["input_ids"]
    [2, 5, 6, 7, 3]
    """

    def __init__(
        self,
        vocab_file: str | Path | Mapping[str, int] | Sequence[str] | None = None,
        do_lower_case: bool | None = True,
        *,
        vocab: Mapping[str, int] | Sequence[str] | None = None,
        tokenizer_file: str | Path | None = None,
        tokenizer_object: Tokenizer | None = None,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool | None = True,
        never_split: Sequence[str] | None = None,
        do_basic_tokenize: bool = True,
        bos_token: SpecialToken | None = None,
        eos_token: SpecialToken | None = None,
        unk_token: SpecialToken | None = "[UNK]",
        sep_token: SpecialToken | None = "[SEP]",
        pad_token: SpecialToken | None = "[PAD]",
        cls_token: SpecialToken | None = "[CLS]",
        mask_token: SpecialToken | None = "[MASK]",
        additional_special_tokens: Sequence[SpecialToken] | None = None,
        model_max_length: int | None = NO_LIMIT,
        padding_side: Side | None = "right",
        truncation_side: Side | None = "right",
        clean_up_tokenization_spaces: bool | None = None,
        split_special_tokens: bool = False,
        model_input_names: Sequence[str] | None = None,
        max_input_chars_per_word: int | None = WORD_LIMIT,
        check_case: bool = True,
        **others: object,
    ) -> None:
        """From a `vocab.txt`, a token-to-id mapping or a list of tokens, or else a `tokenizer.json` or Rust tokenizer.

        `do_lower_case=None` asks the vocabulary; a `tokenizer.json` or Rust tokenizer keeps its own settings, and only
        what is given and is not the default is laid over it. Words in `never_split` (they must be in the vocabulary)
        are kept whole and in their case wherever no letter or digit touches them. `max_input_chars_per_word=200` is
        Google's first release. None means the default. `chat_template` is taken too, unnamed as on the hub.
        """
        given = {name: value for name, value in locals().items() if name in _DEFAULTS}
        others = check_others(type(self), others | {"do_basic_tokenize": do_basic_tokenize}, _DEFAULTS)
        if not isinstance(do_lower_case, bool) and do_lower_case is not None:
            raise TokenizerTypeError(
                "{do_lower_case:is} it must be True, False or None.",
                "Name tokenizer_file= if it is one.",
                do_lower_case=do_lower_case,
            )
        source = vocab_file if vocab is None else vocab
        if source is not None:
            name, where = "", "this vocabulary"
            match source:
                case str() | Path():
                    where, name, tokens = str(source), Path(source).parent.name, read_vocabulary(source)
                case _:
                    tokens = as_vocabulary(source)
            settings = cast(Settings, given)
            parts = parts_from_vocabulary(tokens, settings, check_case=check_case, name=name, source=where)
        else:
            changed = cast(Settings, {name: value for name, value in given.items() if value != _DEFAULTS[name]})
            parts = parts_from_rust(tokenizer_file, tokenizer_object, changed, check_case=check_case)
        self._fill(parts, "", others)

    def _fill(self, parts: TokenizerParts, name: str, others: dict[str, object]) -> None:
        TokenTable.__init__(self, parts, str(others.pop("name_or_path", name)))
        self.chat_template = cast("ChatTemplate | None", others.pop("chat_template", None))
        self.verbose = bool(others.pop("verbose", self.verbose))
        self.add_prefix_space = bool(parts.settings.get("add_prefix_space", others.get("add_prefix_space", False)))
        self.other_settings = others

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        check_case: bool = True,
        resolver: Resolver | None = None,
        vocab_file: str | Path | None = None,
        tokenizer_file: str | Path | None = None,
        chat_template: ChatTemplate | None = None,
        **settings: Unpack[Loading],
    ) -> Self:
        """From a checkpoint's folder, a `tokenizer.json`, a `vocab.txt`, or by name; `files.py` lists what is read.

        What is given here goes before the files. When nothing says whether to lower-case, the vocabulary does
        (**ours**: the hub lower-cases then, cased vocabulary or not). A setting that contradicts the vocabulary is
        refused. Settings of the hub's that have no meaning here are taken as well.
        """
        given = cast(Settings, {name: value for name, value in settings.items() if name in Settings.__annotations__})
        fetching = cast(Fetching, {name: value for name, value in settings.items() if name in Fetching.__annotations__})
        if fetching.get("token") is None:
            fetching["token"] = settings.get("use_auth_token")
        others = check_others(
            cls, {name: value for name, value in settings.items() if name not in Loading.__annotations__}, _DEFAULTS
        )
        subfolder = settings.get("subfolder", "")
        local = Path(pretrained_model_name_or_path) / subfolder
        if not os.path.exists(local):  # Path.exists raises for a name longer than a path can be
            find = resolver or partial(_resolve_name, subfolder=subfolder, fetching=fetching)
            local = Path(find(str(pretrained_model_name_or_path)))
        files = read_tokenizer_files(local, cls.kind)
        if tokenizer_file is not None or vocab_file is not None:
            named = read_tokenizer_files(Path(tokenizer_file or vocab_file or ""), cls.kind)
            files = replace(files, tokenizer_json=named.tokenizer_json, vocab_file=named.vocab_file)
        parts = parts_from_files(files, given, check_case=check_case)
        tokenizer = cls.__new__(cls)
        template = files.chat_template if chat_template is None else chat_template
        tokenizer._fill(parts, str(pretrained_model_name_or_path), {**others, "chat_template": template})
        return tokenizer

    def train_new_from_iterator(
        self,
        text_iterator: Iterable[str] | Iterable[list[str]],
        vocab_size: int,
        length: int | None = None,
        new_special_tokens: list[SpecialToken] | None = None,
        special_tokens_map: dict[str, str] | None = None,
        **trainer: object,
    ) -> Self:
        """A tokenizer with the same settings and a vocabulary learned from the texts.

        `special_tokens_map` renames special tokens. `trainer` goes to `tokenizers.trainers.WordPieceTrainer`.
        `bertie.text.train_vocabulary` learns one with Google's rules instead.
        """
        renamed = special_tokens_map or {}
        state = json.loads(self._backend.to_str())
        if state["model"]["type"] != "WordPiece":
            raise TokenizerError(f"A {state['model']['type']} tokenizer cannot be trained here, only WordPiece.")
        state["model"] |= {"vocab": {}, "unk_token": renamed.get(state["model"]["unk_token"], self.unk_token)}
        special = [token for token in state["added_tokens"] if token["special"]]
        learner = Tokenizer.from_str(json.dumps(state | {"added_tokens": [], "post_processor": None}))
        tokens = [
            AddedToken(renamed.get(t["content"], t["content"]), **{k: t[k] for k in _TOKEN_FLAGS}) for t in special
        ]
        new = list(new_special_tokens or ())
        trainer = {"show_progress": True} | trainer
        with rust_errors("The tokenizer could not be trained"):
            rules = WordPieceTrainer(vocab_size=vocab_size, special_tokens=[*tokens, *new], **trainer)
            learner.train_from_iterator(text_iterator, rules, length=length)
        settings = dict(self.init_kwargs)
        for role in SPECIAL_ROLES:
            if (token := self._roles[role]) is not None:
                settings[role] = renamed.get(str(token), str(token))
        settings[ADDITIONAL] = [renamed.get(t, t) for t in self.additional_special_tokens or ()] + new
        settings["never_split"] = [word for word in self.never_split if learner.token_to_id(word) is not None]
        trained = type(self).__new__(type(self))
        TokenTable.__init__(trained, parts_from_backend(learner, cast(Settings, settings)))
        trained.chat_template = self.chat_template
        return trained

    @property
    def init_kwargs(self) -> dict[str, object]:
        """What would make this tokenizer again, by the names of `__init__`, as it is now."""
        normalizer = self._backend.normalizer
        return {
            **dict.fromkeys(("vocab_file", "vocab", "tokenizer_file", "tokenizer_object")),
            "check_case": True,
            **self.other_settings,
            "do_lower_case": self.do_lower_case,
            "do_basic_tokenize": True,
            "strip_accents": getattr(normalizer, "strip_accents", None),
            "tokenize_chinese_chars": getattr(normalizer, "handle_chinese_chars", True),
            "never_split": list(self.never_split) or None,
            "max_input_chars_per_word": getattr(self._backend.model, "max_input_chars_per_word", WORD_LIMIT),
            "model_max_length": self.model_max_length,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
            "clean_up_tokenization_spaces": self.clean_up_tokenization_spaces,
            "split_special_tokens": self.split_special_tokens,
            **({"add_prefix_space": self.add_prefix_space} if self.word_start == "Ġ" else {}),
            "model_input_names": list(self.model_input_names),
            "name_or_path": self.name_or_path,
            "chat_template": self.chat_template,
            **dict.fromkeys(self.SPECIAL_TOKENS_ATTRIBUTES),
            **self.special_tokens_map_extended,
        }

    def save_pretrained(
        self,
        save_directory: str | Path,
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
        push_to_hub: bool = False,
        *,
        save_jinja_files: bool = True,
    ) -> tuple[str, ...]:
        """Write tokenizer.json, vocab.txt, tokenizer_config.json and special_tokens_map.json, as the hub reads them.

        A byte-level tokenizer has vocab.json and merges.txt in the place of vocab.txt, SentencePiece nothing.
        `legacy_format=True` leaves out tokenizer.json, `False` those. Chat templates get files of their own, or
        with `save_jinja_files=False` a place in tokenizer_config.json. Returns the paths written, as the hub's
        class lists them: a slow one's list is without tokenizer.json.
        """
        if push_to_hub:
            raise TokenizerError("push_to_hub is not supported.", "Save, then upload the folder with huggingface_hub.")
        left_out = {"check_case", "name_or_path", "do_basic_tokenize", "chat_template", *self.other_settings}
        if self.model_input_names == type(self).model_input_names:
            left_out.add("model_input_names")
        config: dict[str, object] = {name: value for name, value in self.init_kwargs.items() if name not in left_out}
        config |= {"tokenizer_class": self.tokenizer_class, **self.special_tokens_map}
        config["split_special_tokens"] = self.split_special_tokens or None
        if config["max_input_chars_per_word"] == WORD_LIMIT:
            del config["max_input_chars_per_word"]
        template, others = template_files(self.chat_template)
        if not save_jinja_files:
            config["chat_template"], template, others = template_setting(self.chat_template), {}, {}
        added = self.added_tokens_decoder
        config["added_tokens_decoder"] = {str(index): describe_added_token(token) for index, token in added.items()}
        contents = {
            "tokenizer_config.json": format_json({name: value for name, value in config.items() if value is not None}),
            "special_tokens_map.json": format_json(self.special_tokens_map),
            **template,
        }
        if legacy_format is not False and (legacy_format or self._has_older_files):
            contents |= self._vocabulary_files()
            beyond = {token.content: index for index, token in added.items() if index >= self.vocab_size}
            if beyond:
                contents["added_tokens.json"] = format_json(beyond)
        if legacy_format is not True:
            with rust_errors("The tokenizer cannot be written"):
                contents["tokenizer.json"] = self._backend.to_str(pretty=True)
        written = write_files(save_directory, contents, filename_prefix)
        if others:
            folder = f"{filename_prefix}-{TEMPLATES_FOLDER}" if filename_prefix else TEMPLATES_FOLDER
            written += write_files(Path(save_directory) / folder, others)
        return tuple(path for path in written if self.is_fast or not path.endswith("tokenizer.json"))

    def save_vocabulary(self, save_directory: str | Path, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write vocab.txt alone (of a byte-level tokenizer vocab.json and merges.txt), without the added tokens; the
        paths written."""
        return write_files(save_directory, self._vocabulary_files(), filename_prefix)

    @property
    def _has_older_files(self) -> bool:
        """Whether it can be written without tokenizer.json."""
        match self._backend.model:
            case BPE():
                return self.word_start == "Ġ"
            case model:
                return isinstance(model, WordPiece)

    def _vocabulary_files(self) -> dict[str, str]:
        if not self._has_older_files:
            raise TokenizerError(
                f"A {type(self._backend.model).__name__} tokenizer is written as tokenizer.json only.",
                "Call save_pretrained without legacy_format.",
            )
        vocab = self._backend.get_vocab(with_added_tokens=False)
        if isinstance(self._backend.model, WordPiece):
            return {"vocab.txt": format_vocabulary(vocab)}
        return format_merges(vocab, json.loads(self._backend.to_str())["model"]["merges"])


_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# What a vocabulary is read with, and the default of each.
_DEFAULTS = {
    name: parameter.default
    for name, parameter in signature(BertTokenizer.__init__).parameters.items()
    if name in Settings.__annotations__
}
