"""The tokens a tokenizer knows: their ids and back to text, special ones by their roles, and new ones.

A role is read and set as an attribute, as on the hub: `tokenizer.cls_token`, `tokenizer.cls_token_id`. Setting one
renames the role and nothing else: the token should be in the vocabulary (`add_special_tokens` puts it there). For the
two tokens that frame a text the frame follows. `add_tokens` works on a copy of the Rust tokenizer and swaps it in:
calls already under way finish with the old one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import ClassVar, Protocol, Self, TypeAlias, TypeGuard, cast, overload

from tokenizers import AddedToken, decoders

from bertie.errors import TokenizerError, TokenizerTypeError
from bertie.text.building import TokenizerParts, add_to_vocabulary, set_template
from bertie.text.rust import Encoders, copy_backend, encode_all, joins_words, rust_errors, set_prefix_space, word_start
from bertie.text.settings import (
    ADDITIONAL,
    NO_LIMIT,
    SPECIAL_ROLES,
    ChatTemplate,
    SpecialToken,
    as_added,
    check_side,
)
from bertie.text.truncation import Side

MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]
_LOGGER = logging.getLogger(__name__)


class Array(Protocol):
    """Of numpy's and torch's arrays, what ids are read by."""

    def tolist(self) -> list[int] | int: ...


Ids: TypeAlias = Iterable[int] | Array

# The hub's clean-up, applied in this order on top of the Rust decoder's own.
_CLEAN_UP = (
    *((f" {end}", end) for end in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
_MANY_IDS = 128


class WrongSpecialToken(TokenizerError, AssertionError):
    """Not a role, or not a token. `transformers` asserts these, so it is an AssertionError as well."""


class Role:
    """The token of a role as text, or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.role = name

    @overload
    def __get__(self, table: None, owner: type) -> Self: ...
    @overload
    def __get__(self, table: TokenTable, owner: type) -> str | None: ...
    def __get__(self, table: TokenTable | None, owner: type) -> Self | str | None:
        if table is None:  # asked of the class
            return self
        token = table._roles[self.role]
        return None if token is None else str(token)

    def __set__(self, table: TokenTable, token: SpecialToken | None) -> None:
        if token is not None and not is_token(token):
            raise TokenizerTypeError(
                f"{{{self.role}:is}} it must be a token: a string, or an AddedToken.",
                f"Set {self.role}_id to name it by its id.",
                **{self.role: token},
            )
        table._roles[self.role] = token
        table._frame_anew([self.role])


class RoleId:
    """The id of a role's token, or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.role = name.removesuffix("_id")

    @overload
    def __get__(self, table: None, owner: type) -> Self: ...
    @overload
    def __get__(self, table: TokenTable, owner: type) -> int | None: ...
    def __get__(self, table: TokenTable | None, owner: type) -> Self | int | None:
        if table is None:
            return self
        token = table._roles[self.role]
        index: int | None = None if token is None else table._backend.token_to_id(str(token))
        return index

    def __set__(self, table: TokenTable, index: int | None) -> None:
        setattr(table, self.role, None if index is None else table.convert_ids_to_tokens(index))


class SideSetting(str):
    """`padding_side` and `truncation_side`: "left" or "right", checked when set. Of the class it is the default."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, table: TokenTable, side: Side) -> None:
        table.__dict__[self.name] = check_side(side, self.name)


class TokenTable:
    """A vocabulary with its special tokens: the half of `BertTokenizer` that turns ids into text."""

    SPECIAL_TOKENS_ATTRIBUTES: ClassVar = [*SPECIAL_ROLES, ADDITIONAL]

    bos_token, bos_token_id = Role(), RoleId()
    eos_token, eos_token_id = Role(), RoleId()
    unk_token, unk_token_id = Role(), RoleId()
    sep_token, sep_token_id = Role(), RoleId()
    pad_token, pad_token_id = Role(), RoleId()
    cls_token, cls_token_id = Role(), RoleId()
    mask_token, mask_token_id = Role(), RoleId()
    padding_side: Side = cast(Side, SideSetting("right"))
    truncation_side: Side = cast(Side, SideSetting("right"))
    model_input_names: list[str] = MODEL_INPUT_NAMES
    chat_template: ChatTemplate | None = None
    kind: ClassVar[str | None] = None  # the only kind of files that the class reads (kinds.py); None reads all
    is_fast = True  # which of transformers 4's two classes this answers as (hub/names.py); all are equally fast

    def __init__(self, parts: TokenizerParts, name: str = "") -> None:
        settings = parts.settings
        length = settings.get("model_max_length")
        self._backend = parts.backend
        self._encoders = Encoders()
        self._backend_is_known = False  # to the caller, who may change it
        self._roles = {role: cast("SpecialToken | None", settings.get(role)) for role in SPECIAL_ROLES}
        self._additional: list[SpecialToken] | None = list(settings.get(ADDITIONAL) or ())
        self.never_split = tuple(settings.get("never_split") or ())
        self.model_max_length = NO_LIMIT if length is None else length
        self.padding_side = settings.get("padding_side") or "right"
        self.truncation_side = settings.get("truncation_side") or "right"
        self.clean_up_tokenization_spaces = settings.get("clean_up_tokenization_spaces")
        self.split_special_tokens = bool(settings.get("split_special_tokens"))
        self.model_input_names = list(settings.get("model_input_names") or type(self).model_input_names)
        self.tokenizer_class = settings.get("tokenizer_class") or self.kind or "BertTokenizer"
        self.pad_token_type_id = 0
        self.verbose = True
        self.other_settings: dict[str, object] = {}  # names that mean nothing here; on the hub they are kept likewise
        self.name_or_path = name
        self.init_inputs: tuple[object, ...] = ()
        self.deprecation_warnings: dict[str, bool] = {}  # what was said already, by the hub's name for it
        # BERT types a single text 0 throughout, so the column need not be read; a foreign tokenizer.json may not.
        self._types_single_texts = any(encode_all(parts.backend, ["a"])[0].type_ids)

    @cached_property
    def word_start(self) -> str | None:
        """What pieces that begin a word start with (▁, Ġ); None where those that go on are marked, as BERT's ##."""
        return word_start(self._backend)

    @property
    def joins_words(self) -> bool:
        """Whether words given one by one would become one: see `for_words`."""
        return self.word_start == "Ġ" and joins_words(self._backend)

    def for_words(self) -> Self:
        """This tokenizer, or one like it that puts a space before a text: for words that are split already."""
        if not self.joins_words:
            return self
        made = copy.copy(self)
        made._backend, made._encoders = set_prefix_space(self._backend, True), Encoders()
        made.__dict__.pop("word_start", None)
        made.__dict__["add_prefix_space"] = True
        return made

    def continues_word(self, token: str) -> bool:
        """Whether a piece of the vocabulary goes on with the word before it."""
        start = self.word_start
        return token.startswith("##") if start is None else not token.startswith(start)

    def _say_once(self, what: str, message: str) -> None:
        if not self.deprecation_warnings.get(what):
            _LOGGER.warning(message)
            self.deprecation_warnings[what] = True

    def decode(
        self,
        token_ids: int | Ids,
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
        ids, _ = _listed(token_ids)
        with rust_errors(f"Ids {ids[:8]} cannot be decoded"):
            if clean_up_tokenization_spaces is False:
                tokens = self.convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens)
                return self._joined(tokens)
            text = self._decode_raw(ids, skip_special_tokens)
        return self._clean_up(text, clean_up_tokenization_spaces)

    @property
    def writes_words(self) -> bool:
        """Whether a token decodes to its word without the space before it, as WordPiece's do."""
        return isinstance(self._backend.decoder, decoders.WordPiece)

    def decode_variants(
        self, ids: list[int], place: int, variants: Iterable[list[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """`decode` of `ids` with each of `variants` in the place of `ids[place]`; what is around it is decoded once."""
        before, after = ids[:place], ids[place + 1 :]
        raw = partial(self._decode_raw, skip_special_tokens=skip_special_tokens)
        start = raw(before)
        # A WordPiece decoder looks at a token by itself, but for the first one, which gets no space before it.
        anchor = next(([one] for one in reversed(before) if raw([one])), None) if start else None
        if anchor is None or not self.writes_words:
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
        sequences: Iterable[int | Ids],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **settings: bool,
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

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str] | tuple[str, ...]) -> int | list[int]:
        """The id of a token, or the ids of a list of them; [UNK]'s for a token that is not in the vocabulary."""
        if isinstance(tokens, str):
            index = self._backend.token_to_id(tokens)
            return cast(int, self.unk_token_id if index is None else index)  # every BERT has an [UNK]
        return [self.convert_tokens_to_ids(token) for token in tokens]

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Ids, skip_special_tokens: bool = False) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: int | Ids, skip_special_tokens: bool = False) -> str | list[str]:
        """The token of an id, or the tokens of a list of them; [UNK] for an id that has none."""
        found, is_one = _listed(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens and not is_one else ()
        tokens: list[str] = []
        for index in found:
            if index not in skipped:
                with rust_errors(f"{index} is not a token id"):
                    tokens.append(self._backend.id_to_token(index) or cast(str, self.unk_token))
        return tokens[0] if is_one else tokens

    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included."""
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocab

    def get_added_vocab(self) -> dict[str, int]:
        """The added and the special tokens only."""
        return {token.content: index for index, token in sorted(self.added_tokens_decoder.items())}

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Added tokens, by id."""
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

    def add_tokens(self, new_tokens: SpecialToken | Sequence[SpecialToken] | None, special_tokens: bool = False) -> int:
        """Add tokens (strings or `AddedToken`s) after the vocabulary; the number of new ids (the hub counts all).

        The model needs `resize_token_embeddings(len(tokenizer))` afterwards.
        """
        tokens = [new_tokens] if is_token(new_tokens) else list(new_tokens or ())
        if not any(map(str, tokens)):
            return 0
        added = [as_added(token, special=special_tokens) for token in tokens]
        backend = copy_backend(self._backend)
        before = backend.get_vocab_size()
        add_to_vocabulary(backend, added, special=special_tokens)
        self._backend = backend
        return int(backend.get_vocab_size()) - int(before)

    @property
    def do_lower_case(self) -> bool:
        """Whether text becomes lower case."""
        return bool(getattr(self._backend.normalizer, "lowercase", False))

    def _required_pad_id(self) -> int:
        index = self.pad_token_id
        if index is None:
            raise TokenizerError(
                "Padding needs a padding token, and this vocabulary has none.", "Name one: pad_token=."
            )
        return index

    def _frame_anew(self, changed: Iterable[str]) -> None:
        """[CLS] A [SEP] with the tokens that have those roles now; as it was while one of them has no id."""
        cls, sep = self.cls_token, self.sep_token
        if not {"cls_token", "sep_token"} & set(changed):
            return
        if cls is None or sep is None or self.cls_token_id is None or self.sep_token_id is None:
            return
        backend = copy_backend(self._backend)
        set_template(backend, cls_token=cls, sep_token=sep)
        self._backend = backend

    @property
    def additional_special_tokens(self) -> list[str] | None:
        """Special tokens without a role, as a new list of strings; None if they were set to None."""
        return None if self._additional is None else [str(token) for token in self._additional]

    @additional_special_tokens.setter
    def additional_special_tokens(self, tokens: Sequence[SpecialToken] | None) -> None:
        self._additional = None if tokens is None else check_tokens(tokens)

    @property
    def additional_special_tokens_ids(self) -> list[int] | None:
        """Ids of the additional special tokens."""
        tokens = self.additional_special_tokens
        return None if tokens is None else self.convert_tokens_to_ids(tokens)

    @additional_special_tokens_ids.setter
    def additional_special_tokens_ids(self, ids: Ids | None) -> None:
        self.additional_special_tokens = None if ids is None else self.convert_ids_to_tokens(ids)

    @property
    def special_tokens_map(self) -> dict[str, str | list[str]]:
        """Role to token, as strings; roles without a token are left out."""
        return {role: token for role in self.SPECIAL_TOKENS_ATTRIBUTES if (token := getattr(self, role))}

    @property
    def special_tokens_map_extended(self) -> dict[str, SpecialToken | list[SpecialToken]]:
        """As `special_tokens_map`, with the `AddedToken`s that were given."""
        given = {role: token for role, token in self._roles.items() if token}
        return {**given, ADDITIONAL: self._additional} if self._additional else given

    @property
    def _special_tokens_map(self) -> Mapping[str, SpecialToken | list[SpecialToken] | None]:
        """All roles with the tokens that were given or None: what scripts read of the hub's tokenizers by this name."""
        return MappingProxyType({**self._roles, ADDITIONAL: self._additional})

    @property
    def all_special_tokens_extended(self) -> list[SpecialToken]:
        """All special tokens, as strings or `AddedToken`s."""
        by_text: dict[str, SpecialToken] = {}
        for token in (*self._roles.values(), *(self._additional or ())):
            if token:
                by_text.setdefault(str(token), token)
        return list(by_text.values())

    @property
    def all_special_tokens(self) -> list[str]:
        """All special tokens, as strings."""
        return [str(token) for token in self.all_special_tokens_extended]

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all special tokens."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def add_special_tokens(
        self,
        special_tokens_dict: Mapping[str, SpecialToken | Sequence[SpecialToken]],
        replace_additional_special_tokens: bool = True,
    ) -> int:
        """Set special tokens by role ("cls_token" …, or "additional_special_tokens": a list); the number added.

        With `replace_additional_special_tokens=False` the list is added to the one there is.
        """
        unknown = set(special_tokens_dict) - set(self.SPECIAL_TOKENS_ATTRIBUTES)
        if unknown:
            raise WrongSpecialToken(
                f"{', '.join(sorted(unknown))} is no special token of BERT.",
                f"The roles are {', '.join(SPECIAL_ROLES)} and {ADDITIONAL}.",
            )
        roles = {role: checked(token, role) for role, token in special_tokens_dict.items() if role != ADDITIONAL}
        extra = [as_added(token) for token in check_tokens(special_tokens_dict.get(ADDITIONAL, ()))]
        present = self._additional or []
        if not replace_additional_special_tokens:
            texts = {str(token) for token in present}
            extra = [token for token in extra if str(token) not in texts]
        count = self.add_tokens([*roles.values(), *extra], special_tokens=True)
        if extra:
            self._additional = extra if replace_additional_special_tokens else [*present, *extra]
        self._roles.update(roles)
        self._frame_anew(roles)
        return count


def is_token(token: object) -> TypeGuard[SpecialToken]:
    return isinstance(token, (str, AddedToken))


def checked(token: object, role: str) -> AddedToken:
    if not is_token(token):
        raise TokenizerTypeError(f"The token for {role} is {token!r}; it must be a string or an AddedToken.")
    return as_added(token)


def check_tokens(tokens: object) -> list[SpecialToken]:
    if not isinstance(tokens, (list, tuple)) or not all(map(is_token, tokens)):
        raise WrongSpecialToken(
            f"{{{ADDITIONAL}:is}} it must be a list of strings or AddedTokens.", **{ADDITIONAL: tokens}
        )
    return list(tokens)


def _listed(ids: int | Ids) -> tuple[list[int], bool]:
    """Ids out of lists, tensors and arrays, and whether it was one alone."""
    tolist = getattr(ids, "tolist", None)
    found = cast("int | Iterable[int]", ids if tolist is None else tolist())
    return ([found], True) if isinstance(found, int) else (list(found), False)
