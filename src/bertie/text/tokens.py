"""The tokens a tokenizer knows: ids and texts of them, special and added ones, back to text, and to files.

`BertTokenizer` (text to ids) is built on this half (ids to text).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordPiece

from bertie.errors import TokenizerError
from bertie.text.backend import copy_backend, encode_all, rust_errors, set_template
from bertie.text.folder import SPECIAL_ROLES, describe_added_token, format_json, write_files
from bertie.text.loading import TokenizerParts, has_holes
from bertie.text.truncation import Side
from bertie.text.vocabulary import format_vocabulary

if TYPE_CHECKING:
    from bertie.text.native import NativeTokenizer

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
            from bertie.text.native import NativeTokenizer  # with numpy, which those who only ask for help do not need

            native = NativeTokenizer.of(backend)
            self._made = backend, native
        return native

    def __reduce__(self) -> tuple[type[NativeForm], tuple[()]]:
        return NativeForm, ()


class TokenTable:
    """A vocabulary with its special tokens. `add_tokens` works on a copy of the Rust tokenizer and swaps it in."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._native = NativeForm()
        self._special = dict(parts.special)
        self.additional_special_tokens = list(parts.additional_special_tokens)
        self.never_split = parts.never_split
        self.model_max_length = parts.model_max_length
        self.padding_side: Side = parts.padding_side
        self.truncation_side: Side = parts.truncation_side
        self.clean_up_tokenization_spaces = parts.clean_up_tokenization_spaces
        self.pad_token_type_id = 0
        # BERT types a single text 0 throughout, so the column need not be read; a foreign tokenizer.json may not.
        probe = encode_all(parts.backend, ["a"], add_special_tokens=True, is_split_into_words=False, offsets=False)
        self._types_single_texts = any(probe[0].type_ids)

    def decode(
        self, token_ids: Any, *, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str:
        """Text of ids, word pieces joined. The clean-up pulls punctuation back to its word ("end ." gives "end.").

        `clean_up_tokenization_spaces=False` leaves everything apart (**ours**: the hub's fast tokenizer cleans up even
        then); False in the tokenizer's own configuration leaves it to Rust, as on the hub.
        """
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        ids = [ids] if isinstance(ids, int) else list(ids)
        with rust_errors(f"Ids {ids[:8]} cannot be decoded"):
            if clean_up_tokenization_spaces is False:
                tokens = self.convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens)
                return self.convert_tokens_to_string(tokens)
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
        if wanted or self.clean_up_tokenization_spaces is not False:
            for before, after in _CLEAN_UP:
                text = text.replace(before, after)
        return text

    def batch_decode(self, sequences: Iterable[Any], **settings: Any) -> list[str]:
        """`decode` for each row."""
        return [self.decode(ids, **settings) for ids in sequences]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens joined to text, without clean-up."""
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
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tokens, do_lower_case={self.do_lower_case})"

    def add_tokens(self, new_tokens: Any, *, special_tokens: bool = False) -> int:
        """Add tokens (strings or `AddedToken`s) after the vocabulary; the number of new ids (the hub counts all).

        The model needs `resize_token_embeddings(len(tokenizer))` afterwards.
        """
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens)
        with rust_errors("The tokens cannot be added"):
            added = [
                AddedToken(token, normalized=not special_tokens, special=special_tokens)
                if isinstance(token, str)
                else token
                for token in tokens
            ]
            backend = copy_backend(self._backend)
            before = backend.get_vocab_size()
            if has_holes(backend) and any(backend.token_to_id(token.content) is None for token in added):
                raise TokenizerError(
                    "The vocabulary has unused ids (a token on two lines of vocab.txt), so tokens cannot be added.",
                    "Give every line of vocab.txt its own token first.",
                )
            (backend.add_special_tokens if special_tokens else backend.add_tokens)(added)
        self._backend = backend
        return int(backend.get_vocab_size()) - int(before)

    def add_special_tokens(self, special_tokens: Mapping[str, Any]) -> int:
        """Set special tokens by role ("cls_token" …, or "additional_special_tokens": a list); the number added."""
        unknown = set(special_tokens) - {*SPECIAL_ROLES, "additional_special_tokens"}
        if unknown:
            raise TokenizerError(
                f"{', '.join(sorted(unknown))} is no special token of BERT.",
                f"The roles are {', '.join(SPECIAL_ROLES)} and additional_special_tokens.",
            )
        extra = list(special_tokens.get("additional_special_tokens", ()))
        roles = {role: token for role, token in special_tokens.items() if role in SPECIAL_ROLES}
        count = self.add_tokens([*roles.values(), *extra], special_tokens=True)
        self._special.update({role: str(getattr(token, "content", token)) for role, token in roles.items()})
        if extra:
            self.additional_special_tokens = [str(getattr(token, "content", token)) for token in extra]
        if "cls_token" in roles or "sep_token" in roles:
            backend = copy_backend(self._backend)
            set_template(backend, cls_token=self.cls_token or "", sep_token=self.sep_token or "")
            self._backend = backend
        return count

    @property
    def do_lower_case(self) -> bool:
        return bool(getattr(self._backend.normalizer, "lowercase", False))

    @property
    def unk_token(self) -> str | None:
        return self._special["unk_token"]

    @property
    def unk_token_id(self) -> int | None:
        return self._special_id("unk_token")

    @property
    def sep_token(self) -> str | None:
        return self._special["sep_token"]

    @property
    def sep_token_id(self) -> int | None:
        return self._special_id("sep_token")

    @property
    def pad_token(self) -> str | None:
        return self._special["pad_token"]

    @property
    def pad_token_id(self) -> int | None:
        return self._special_id("pad_token")

    @property
    def cls_token(self) -> str | None:
        return self._special["cls_token"]

    @property
    def cls_token_id(self) -> int | None:
        return self._special_id("cls_token")

    @property
    def mask_token(self) -> str | None:
        return self._special["mask_token"]

    @property
    def mask_token_id(self) -> int | None:
        return self._special_id("mask_token")

    @property
    def all_special_tokens(self) -> list[str]:
        named = [token for token in self._special.values() if token is not None]
        return list(dict.fromkeys([*named, *self.additional_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        ids: list[int] = self.convert_tokens_to_ids(self.all_special_tokens)
        return ids

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        named: dict[str, Any] = {role: token for role, token in self._special.items() if token is not None}
        if self.additional_special_tokens:
            named["additional_special_tokens"] = list(self.additional_special_tokens)
        return named

    def _special_id(self, role: str) -> int | None:
        token = self._special[role]
        index: int | None = None if token is None else self._backend.token_to_id(token)
        return index

    def _required_pad_id(self) -> int:
        index = self._special_id("pad_token")
        if index is None:
            raise TokenizerError(
                "Padding needs a padding token, and this vocabulary has none.", "Name one: pad_token=."
            )
        return index

    def save_pretrained(self, folder: str | Path) -> list[Path]:
        """Write tokenizer.json, vocab.txt, tokenizer_config.json and special_tokens_map.json, as the hub reads them."""
        normalizer = self._backend.normalizer
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.do_lower_case,
            "strip_accents": getattr(normalizer, "strip_accents", None),
            "tokenize_chinese_chars": getattr(normalizer, "handle_chinese_chars", True),
            "never_split": list(self.never_split) or None,
            "model_max_length": self.model_max_length,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
            "clean_up_tokenization_spaces": self.clean_up_tokenization_spaces,
            "added_tokens_decoder": {
                str(index): describe_added_token(token) for index, token in self.added_tokens_decoder.items()
            },
            **self.special_tokens_map,
        }
        with rust_errors("The tokenizer cannot be written"):
            contents = {"tokenizer.json": self._backend.to_str(pretty=True)}
        if isinstance(self._backend.model, WordPiece):
            contents["vocab.txt"] = format_vocabulary(self._backend.get_vocab(with_added_tokens=False))
        contents["tokenizer_config.json"] = format_json(
            {key: value for key, value in config.items() if value is not None}
        )
        contents["special_tokens_map.json"] = format_json(self.special_tokens_map)
        return write_files(folder, contents)
