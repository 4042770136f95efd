"""The tokens a tokenizer knows: ids and texts of them, special and added ones, back to text, and to files.

`BertTokenizer` (text to ids) is built on this half (ids to text).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordPiece

from bertie.errors import TokenizerError
from bertie.text.backend import copy_backend, encode_all, rust_errors
from bertie.text.folder import describe_added_token, format_json, write_files
from bertie.text.hub.chat import OTHERS_FOLDER, template_files, template_setting
from bertie.text.parts import TokenizerParts, add_to_vocabulary
from bertie.text.special_tokens import ADDITIONAL, SpecialTokens
from bertie.text.truncation import Side, check_side
from bertie.text.wordpiece.reference import WORD_LIMIT
from bertie.text.wordpiece.vocabulary import format_vocabulary

if TYPE_CHECKING:
    from bertie.text.wordpiece.native import NativeTokenizer

MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]
_LOGGER = logging.getLogger(__name__)
_MUCH = 20_000  # characters

# The hub's clean-up, applied in this order on top of the Rust decoder's own.
_CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
_MANY_IDS = 128


class NativeForm:
    """The C++ form of a Rust tokenizer, made for whoever has much text. A copy, or another process, makes its own.

    Making it takes as long as it saves on some pages, so it is made when those have come, at once or one by one.
    """

    def __init__(self) -> None:
        self._made: tuple[Tokenizer | None, NativeTokenizer | None] = None, None
        self._seen = 0  # characters

    def of(self, backend: Tokenizer, inputs: Sequence[Any]) -> NativeTokenizer | None:
        """The form for these texts, or pairs of texts; None where Rust is to have them."""
        made_of, native = self._made
        if made_of is not backend:
            parts = (part for one in inputs for part in (one if isinstance(one, (tuple, list)) else (one,)))
            self._seen += sum(len(part) for part in parts if isinstance(part, str))
            if self._seen < _MUCH:
                return None
            from bertie.text.wordpiece.native import (
                NativeTokenizer,  # with numpy, which those who only ask for help do not need
            )

            native = NativeTokenizer.of(backend)
            self._made = backend, native
        return native

    def __reduce__(self) -> tuple[type[NativeForm], tuple[()]]:
        return NativeForm, ()


class SideSetting:
    """`padding_side` and `truncation_side`: "left" or "right", checked when set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, table: TokenTable, owner: type | None = None) -> Side:
        side: Side = "right" if table is None else table.__dict__[self.name]
        return side

    def __set__(self, table: TokenTable, side: Side) -> None:
        table.__dict__[self.name] = check_side(side, self.name)


class TokenTable(SpecialTokens):
    """A vocabulary with its special tokens. `add_tokens` works on a copy of the Rust tokenizer and swaps it in."""

    padding_side = SideSetting()
    truncation_side = SideSetting()
    model_input_names: list[str] = MODEL_INPUT_NAMES
    chat_template: str | dict[str, str] | None = None
    is_fast = True  # which of transformers 4's two classes this answers as (hub_names.py); all are equally fast

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._native = NativeForm()
        self._backend_is_known = False  # to the caller, who may change it
        self._splitting: tuple[Tokenizer, Tokenizer] | None = None  # (backend, its copy that splits special tokens)
        self._special_tokens_map = {**parts.special, ADDITIONAL: list(parts.additional_special_tokens)}
        self.never_split = parts.never_split
        self.model_max_length = parts.model_max_length
        self.padding_side = parts.padding_side
        self.truncation_side = parts.truncation_side
        self.clean_up_tokenization_spaces = parts.clean_up_tokenization_spaces
        self.split_special_tokens = parts.split_special_tokens
        self.model_input_names = list(parts.model_input_names or type(self).model_input_names)
        self.pad_token_type_id = 0
        self.verbose = True
        self.other_settings: dict[str, Any] = {}  # names that mean nothing here; on the hub they are kept likewise
        self.name_or_path = parts.name
        self.init_inputs: tuple[Any, ...] = ()
        self.deprecation_warnings: dict[str, bool] = {}  # what was said already, by the hub's name for it
        # BERT types a single text 0 throughout, so the column need not be read; a foreign tokenizer.json may not.
        probe = encode_all(parts.backend, ["a"], add_special_tokens=True, is_split_into_words=False, offsets=False)
        self._types_single_texts = any(probe[0].type_ids)

    def _say_once(self, what: str, message: str) -> None:
        if not self.deprecation_warnings.get(what):
            _LOGGER.warning(message)
            self.deprecation_warnings[what] = True

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        *,
        spaces_between_special_tokens: bool = True,
        use_source_tokenizer: bool = False,
    ) -> str:
        """Text of ids, word pieces joined. The clean-up pulls punctuation back to its word ("end ." gives "end.").

        `clean_up_tokenization_spaces=False` leaves everything apart (**ours**: the hub's fast tokenizer cleans up even
        then); False in the tokenizer's own configuration leaves it to Rust, as on the hub. The last two settings change
        nothing for BERT, there as here.
        """
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        ids = [ids] if isinstance(ids, int) else list(ids)
        with rust_errors(f"Ids {ids[:8]} cannot be decoded"):
            if clean_up_tokenization_spaces is False:
                tokens = self.convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens)
                return self._joined(tokens)
            text = self._decode_raw(ids, skip_special_tokens)
        return self._clean_up(text, clean_up_tokenization_spaces)

    def decode_variants(
        self, ids: list[int], place: int, variants: Iterable[list[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """`decode` of `ids` with each of `variants` in the place of `ids[place]`; what is around it is decoded once."""
        before, after = ids[:place], ids[place + 1 :]
        raw = partial(self._decode_raw, skip_special_tokens=skip_special_tokens)
        start = raw(before)
        # A WordPiece decoder looks at a token by itself, but for the first one, which gets no space before it.
        anchor = next(([one] for one in reversed(before) if raw([one])), None) if start else None
        if anchor is None or not isinstance(self._backend.decoder, decoders.WordPiece):
            decode = partial(self.decode, skip_special_tokens=skip_special_tokens)
            return [decode([*before, *variant, *after]) for variant in variants]
        skipped = len(raw(anchor))
        end = raw(anchor + after)[skipped:]
        return [self._clean_up(start + raw(anchor + variant)[skipped:] + end) for variant in variants]

    def _decode_raw(self, ids: list[int], skip_special_tokens: bool) -> str:
        if len(ids) <= _MANY_IDS:
            text: str = self._backend.decode(ids, skip_special_tokens)
        else:  # the one call that lets other threads run meanwhile
            (text,) = self._backend.decode_batch([ids], skip_special_tokens)
        return text

    def _clean_up(self, text: str, wanted: bool | None = None) -> str:
        return self.clean_up_tokenization(text) if wanted or self.clean_up_tokenization_spaces is not False else text

    def batch_decode(
        self,
        sequences: Iterable[Any],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **settings: Any,
    ) -> list[str]:
        """`decode` for each row."""
        return [self.decode(ids, skip_special_tokens, clean_up_tokenization_spaces, **settings) for ids in sequences]

    @staticmethod
    def clean_up_tokenization(out_string: str) -> str:
        """Punctuation and English contractions pulled back to their words."""
        for before, after in _CLEAN_UP:
            out_string = out_string.replace(before, after)
        return out_string

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens joined to text; as in the hub's fast tokenizer, Rust's clean-up pulls punctuation to its word."""
        text: str = " ".join(tokens) if self._backend.decoder is None else self._backend.decoder.decode(tokens)
        return text

    def _joined(self, tokens: list[str]) -> str:
        """The same without clean-up."""
        prefix = getattr(self._backend.model, "continuing_subword_prefix", None)
        decoder = decoders.WordPiece(prefix, False) if prefix else self._backend.decoder
        text: str = decoder.decode(tokens)
        return text

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, or the ids of a list of them; [UNK]'s for a token that is not in the vocabulary."""
        if isinstance(tokens, str):
            index = self._backend.token_to_id(tokens)
            return self.unk_token_id if index is None else index
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id, or the tokens of a list of them; [UNK] for an id that has none."""
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        if isinstance(ids, int):
            with rust_errors(f"{ids} is not a token id"):
                return self._backend.id_to_token(ids) or self.unk_token
        skipped = set(self.all_special_ids) if skip_special_tokens else ()
        return [self.convert_ids_to_tokens(index) for index in ids if index not in skipped]

    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included."""
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocab

    def get_added_vocab(self) -> dict[str, int]:
        """The added and the special tokens only."""
        return {token.content: index for index, token in sorted(self.added_tokens_decoder.items())}

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        decoder: dict[int, AddedToken] = self._backend.get_added_tokens_decoder()
        return decoder

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, without added ones; `len(tokenizer)` has them too."""
        size: int = self._backend.get_vocab_size(with_added_tokens=False)
        return size

    def __len__(self) -> int:
        # Rust's get_vocab_size(with_added_tokens=True) copies the whole vocabulary to count it: milliseconds in which
        # no other thread of Python runs.
        in_vocabulary = self._backend.model.token_to_id
        return self.vocab_size + sum(in_vocabulary(one.content) is None for one in self.added_tokens_decoder.values())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        added = "".join(f"\n\t{index}: {token!r}," for index, token in self.added_tokens_decoder.items())
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, vocab_size={self.vocab_size}, "
            f"model_max_length={self.model_max_length}, do_lower_case={self.do_lower_case}, is_fast={self.is_fast}, "
            f"padding_side={self.padding_side!r}, truncation_side={self.truncation_side!r}, "
            f"special_tokens={self.special_tokens_map}, added_tokens_decoder={{{added}\n}})"
        )

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens (strings or `AddedToken`s) after the vocabulary; the number of new ids (the hub counts all).

        The model needs `resize_token_embeddings(len(tokenizer))` afterwards.
        """
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens or ())
        if not any(map(str, tokens)):
            return 0
        added = [
            AddedToken(token, normalized=not special_tokens, special=special_tokens)
            if isinstance(token, str)
            else token
            for token in tokens
        ]
        backend = copy_backend(self._backend)
        before = backend.get_vocab_size()
        add_to_vocabulary(backend, added, special=special_tokens)
        self._backend = backend
        return int(backend.get_vocab_size()) - int(before)

    @property
    def do_lower_case(self) -> bool:
        return bool(getattr(self._backend.normalizer, "lowercase", False))

    def _required_pad_id(self) -> int:
        index = self.pad_token_id
        if index is None:
            raise TokenizerError(
                "Padding needs a padding token, and this vocabulary has none.", "Name one: pad_token=."
            )
        return index

    @property
    def init_kwargs(self) -> dict[str, Any]:
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

        `legacy_format=True` leaves out tokenizer.json, `False` vocab.txt. Chat templates get files of their own, or
        with `save_jinja_files=False` a place in tokenizer_config.json. Returns the paths written, as the hub's
        class lists them: a slow one's list is without tokenizer.json.
        """
        if push_to_hub:
            raise TokenizerError("push_to_hub is not supported.", "Save, then upload the folder with huggingface_hub.")
        left_out = {"check_case", "name_or_path", "do_basic_tokenize", "chat_template", *self.other_settings}
        if self.model_input_names == type(self).model_input_names:
            left_out.add("model_input_names")
        config: dict[str, Any] = {name: value for name, value in self.init_kwargs.items() if name not in left_out}
        config |= {"tokenizer_class": "BertTokenizer", **self.special_tokens_map}
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
        if legacy_format is not False and isinstance(self._backend.model, WordPiece):
            contents["vocab.txt"] = format_vocabulary(self._backend.get_vocab(with_added_tokens=False))
            beyond = {token.content: index for index, token in added.items() if index >= self.vocab_size}
            if beyond:
                contents["added_tokens.json"] = format_json(beyond)
        if legacy_format is not True:
            with rust_errors("The tokenizer cannot be written"):
                contents["tokenizer.json"] = self._backend.to_str(pretty=True)
        written = _write(save_directory, contents, filename_prefix)
        if others:
            folder = f"{filename_prefix}-{OTHERS_FOLDER}" if filename_prefix else OTHERS_FOLDER
            written += _write(Path(save_directory) / folder, others, None)
        return tuple(path for path in written if self.is_fast or not path.endswith("tokenizer.json"))

    def save_vocabulary(self, save_directory: str | Path, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write vocab.txt alone, without the added tokens; the path written."""
        vocab = format_vocabulary(self._backend.get_vocab(with_added_tokens=False))
        return _write(save_directory, {"vocab.txt": vocab}, filename_prefix)


def _write(folder: str | Path, contents: dict[str, str], prefix: str | None) -> tuple[str, ...]:
    named = {f"{prefix}-{name}" if prefix else name: text for name, text in contents.items()}
    return tuple(map(str, write_files(folder, named)))
