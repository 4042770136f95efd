"""Tokens with a role: `tokenizer.cls_token`, `tokenizer.cls_token_id`, and all of them together.

A role is read and set as an attribute, as on the hub. Setting one renames the role and nothing else: the token should
be in the vocabulary (`add_special_tokens` puts it there). For the two tokens that frame a text the frame follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tokenizers import AddedToken

from bertie.errors import TokenizerError, TokenizerTypeError
from bertie.text.backend import copy_backend, set_template
from bertie.text.folder import SPECIAL_ROLES
from bertie.text.parts import as_special

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ADDITIONAL = "additional_special_tokens"


class WrongSpecialToken(TokenizerError, AssertionError):
    """Not a role, or not a token. `transformers` asserts these, so it is an AssertionError as well."""


class Role:
    """The token of a role as text, or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.role = name

    def __get__(self, table: SpecialTokens, owner: type | None = None) -> str | None:
        if table is None:  # asked of the class
            return self
        token = table._special_tokens_map[self.role]
        return None if token is None else str(token)

    def __set__(self, table: SpecialTokens, token: str | AddedToken | None) -> None:
        if token is not None and not isinstance(token, (str, AddedToken)):
            raise TokenizerTypeError(
                f"{self.role} is {token!r}; wanted a token: a string, or an AddedToken.",
                f"Set {self.role}_id to name it by its id.",
            )
        table._set_role(self.role, token)


class RoleId:
    """The id of a role's token, or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.role = name.removesuffix("_id")

    def __get__(self, table: SpecialTokens, owner: type | None = None) -> int | None:
        if table is None:
            return self
        token = table._special_tokens_map[self.role]
        index: int | None = None if token is None else table._backend.token_to_id(str(token))
        return index

    def __set__(self, table: SpecialTokens, index: int | None) -> None:
        setattr(table, self.role, None if index is None else table.convert_ids_to_tokens(index))


class SpecialTokens:
    """The roles of a tokenizer's tokens. The half of `TokenTable` that knows the vocabulary has the rest."""

    SPECIAL_TOKENS_ATTRIBUTES: ClassVar = [*SPECIAL_ROLES, ADDITIONAL]

    _backend: Tokenizer
    _special_tokens_map: dict[str, Any]  # each a string, an AddedToken or None; of ADDITIONAL a list

    bos_token, bos_token_id = Role(), RoleId()
    eos_token, eos_token_id = Role(), RoleId()
    unk_token, unk_token_id = Role(), RoleId()
    sep_token, sep_token_id = Role(), RoleId()
    pad_token, pad_token_id = Role(), RoleId()
    cls_token, cls_token_id = Role(), RoleId()
    mask_token, mask_token_id = Role(), RoleId()

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        raise NotImplementedError

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        raise NotImplementedError

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        raise NotImplementedError

    def _set_role(self, role: str, token: str | AddedToken | None) -> None:
        self._special_tokens_map[role] = token
        if role in ("cls_token", "sep_token"):
            self._frame_anew()

    def _frame_anew(self) -> None:
        """[CLS] A [SEP] with the tokens that have those roles now; as it was while one of them has no id."""
        cls, sep = self.cls_token, self.sep_token
        if cls is None or sep is None or self.cls_token_id is None or self.sep_token_id is None:
            return
        backend = copy_backend(self._backend)
        set_template(backend, cls_token=cls, sep_token=sep)
        self._backend = backend

    @property
    def additional_special_tokens(self) -> Any:
        """Special tokens without a role, as a new list of strings; None if they were set to None."""
        tokens = self._special_tokens_map[ADDITIONAL]
        return None if tokens is None else [str(token) for token in tokens]

    @additional_special_tokens.setter
    def additional_special_tokens(self, tokens: Any) -> None:
        self._special_tokens_map[ADDITIONAL] = None if tokens is None else list(check_tokens(tokens))

    @property
    def additional_special_tokens_ids(self) -> Any:
        tokens = self.additional_special_tokens
        return None if tokens is None else self.convert_tokens_to_ids(tokens)

    @additional_special_tokens_ids.setter
    def additional_special_tokens_ids(self, ids: Any) -> None:
        self.additional_special_tokens = None if ids is None else self.convert_ids_to_tokens(ids)

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        """Role to token, as strings; roles without a token are left out."""
        return {role: token for role in self.SPECIAL_TOKENS_ATTRIBUTES if (token := getattr(self, role))}

    @property
    def special_tokens_map_extended(self) -> dict[str, Any]:
        """As `special_tokens_map`, with the `AddedToken`s that were given."""
        return {role: token for role in self.SPECIAL_TOKENS_ATTRIBUTES if (token := self._special_tokens_map[role])}

    @property
    def all_special_tokens_extended(self) -> list[str | AddedToken]:
        by_text: dict[str, str | AddedToken] = {}
        for role, found in self.special_tokens_map_extended.items():
            for token in found if role == ADDITIONAL else (found,):
                by_text.setdefault(str(token), token)
        return list(by_text.values())

    @property
    def all_special_tokens(self) -> list[str]:
        return [str(token) for token in self.all_special_tokens_extended]

    @property
    def all_special_ids(self) -> list[int]:
        ids: list[int] = self.convert_tokens_to_ids(self.all_special_tokens)
        return ids

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_additional_special_tokens: bool = True
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
        extra = [as_special(token) for token in check_tokens(special_tokens_dict.get(ADDITIONAL, ()))]
        present = self._special_tokens_map[ADDITIONAL] or []
        if not replace_additional_special_tokens:
            texts = {str(token) for token in present}
            extra = [token for token in extra if str(token) not in texts]
        count = self.add_tokens([*roles.values(), *extra], special_tokens=True)
        if extra:
            self._special_tokens_map[ADDITIONAL] = extra if replace_additional_special_tokens else [*present, *extra]
        self._special_tokens_map.update(roles)
        if "cls_token" in roles or "sep_token" in roles:
            self._frame_anew()
        return count


def checked(token: Any, role: str) -> AddedToken:
    if not isinstance(token, (str, AddedToken)):
        raise TokenizerTypeError(f"The token for {role} is {token!r}; wanted a string or an AddedToken.")
    return as_special(token)


def check_tokens(tokens: Any) -> list[Any]:
    if not isinstance(tokens, (list, tuple)) or not all(isinstance(token, (str, AddedToken)) for token in tokens):
        raise WrongSpecialToken(f"{ADDITIONAL} is {tokens!r}; wanted a list of strings or AddedTokens.")
    return list(tokens)
