"""`BertTokenizer`: text to ids and back, with the call signature people know from the hub, on the Rust library.

    tokenizer = BertTokenizer.from_pretrained("path/to/checkpoint")
    batch = tokenizer(["A text.", "Another one."], padding=True, truncation=True, return_tensors="pt")

A call encodes whole rows in Rust, then truncates and pads here, so a tokenizer holds no state that a call changes and
may be shared between threads. `add_tokens` works on a copy and swaps it in: calls already under way finish with the old
one. The algorithm itself, to be read, is in `wordpiece.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders
from tokenizers.models import WordPiece

from bertie.errors import CheckpointNotFound, TokenizerError
from bertie.text.arguments import (
    NO_LIMIT,
    PaddingArgument,
    TruncationArgument,
    gather_inputs,
    plan_padding,
    plan_truncation,
)
from bertie.text.backend import copy_backend, encode_all, rust_errors, set_template
from bertie.text.encoding import BatchEncoding, Padding, Trace
from bertie.text.folder import SPECIAL_ROLES, describe_added_token, format_json, read_tokenizer_files, write_files
from bertie.text.loading import Overrides, TokenizerParts, has_holes, parts_from_files, parts_from_vocabulary
from bertie.text.rows import Rows, fill_columns, pad_columns
from bertie.text.truncation import Side, Truncation
from bertie.text.vocabulary import as_vocabulary, format_vocabulary, read_vocabulary
from bertie.text.wordpiece import WORD_LIMIT

Resolver = Callable[[str], str | Path]


def _resolve_hub_name(name: str) -> str | Path:
    """The one place where a hub name becomes a local folder; access to the hub lives in the checkpoint room."""
    try:
        resolve = importlib.import_module("bertie.checkpoint.hub").resolve
    except (ImportError, AttributeError) as error:
        raise CheckpointNotFound(f"There is no tokenizer at {name}.", "Check the path.") from error
    folder: str | Path = resolve(name)
    return folder


class BertTokenizer:
    """WordPiece for BERT.

    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"])
    >>> tokenizer("Hello worlds")["input_ids"]
    [2, 5, 6, 7, 3]
    """

    model_input_names = ("input_ids", "token_type_ids", "attention_mask")
    is_fast = True

    def __init__(
        self,
        vocab: str | Path | Mapping[str, int] | Sequence[str],
        *,
        do_lower_case: bool | None = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        never_split: Sequence[str] | None = None,
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        cls_token: str = "[CLS]",
        mask_token: str = "[MASK]",
        model_max_length: int = NO_LIMIT,
        padding_side: Side = "right",
        truncation_side: Side = "right",
        max_input_chars_per_word: int = WORD_LIMIT,
        check_case: bool = True,
    ) -> None:
        """From a `vocab.txt`, a token-to-id mapping or a list of tokens. `do_lower_case=None` asks the vocabulary.

        Words in `never_split` (they must be in the vocabulary) are kept whole and in their case wherever no letter or
        digit touches them. `max_input_chars_per_word=200` is Google's first release.
        """
        if isinstance(vocab, (str, Path)):
            source, name, tokens = str(vocab), Path(vocab).parent.name, read_vocabulary(vocab)
        else:
            source, name, tokens = "this vocabulary", "", as_vocabulary(vocab)
        settings: dict[str, Any] = {
            "do_lower_case": do_lower_case,
            "strip_accents": strip_accents,
            "tokenize_chinese_chars": tokenize_chinese_chars,
            "never_split": never_split,
            "unk_token": unk_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "cls_token": cls_token,
            "mask_token": mask_token,
            "model_max_length": model_max_length,
            "padding_side": padding_side,
            "truncation_side": truncation_side,
            "max_input_chars_per_word": max_input_chars_per_word,
        }
        self._adopt(parts_from_vocabulary(tokens, settings, check_case=check_case, name=name, source=source))

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        do_lower_case: bool | None = None,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool | None = None,
        never_split: Sequence[str] | None = None,
        model_max_length: int | None = None,
        max_input_chars_per_word: int | None = None,
        padding_side: Side | None = None,
        truncation_side: Side | None = None,
        check_case: bool = True,
        resolver: Resolver | None = None,
        **special_tokens: str,
    ) -> BertTokenizer:
        """From a checkpoint's folder, a `tokenizer.json`, a `vocab.txt` or a hub name; `folder.py` lists what is read.

        What is given here goes before the files. When nothing says whether to lower-case, the vocabulary does
        (**ours**: the hub lower-cases then, cased vocabulary or not). A setting that contradicts the vocabulary is
        refused.
        """
        unknown = sorted(set(special_tokens) - set(SPECIAL_ROLES))
        if unknown:
            raise TokenizerError(f"from_pretrained() has no setting {', '.join(unknown)}.")
        local = Path(path)
        if not local.exists():
            local = Path((resolver or _resolve_hub_name)(str(path)))
        overrides = Overrides(
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
            never_split=never_split,
            model_max_length=model_max_length,
            max_input_chars_per_word=max_input_chars_per_word,
            padding_side=padding_side,
            truncation_side=truncation_side,
            special=special_tokens,
        )
        return cls.from_parts(parts_from_files(read_tokenizer_files(local), overrides, check_case=check_case))

    @classmethod
    def from_parts(cls, parts: TokenizerParts) -> BertTokenizer:
        tokenizer = cls.__new__(cls)
        tokenizer._adopt(parts)
        return tokenizer

    def _adopt(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._special = dict(parts.special)
        self.additional_special_tokens = list(parts.additional_special_tokens)
        self.never_split = parts.never_split
        self.model_max_length = parts.model_max_length
        self.padding_side: Side = parts.padding_side
        self.truncation_side: Side = parts.truncation_side
        self.clean_up_tokenization_spaces = parts.clean_up_tokenization_spaces
        self.pad_token_type_id = 0

    # ---- text to ids

    def __call__(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        add_special_tokens: bool = True,
        padding: PaddingArgument = False,
        truncation: TruncationArgument | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool = True,
        return_attention_mask: bool = True,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
    ) -> BatchEncoding:
        """Encode a text, a pair of texts, or a list of either; every argument means what it means on the hub."""
        padding_plan = plan_padding(
            padding,
            max_length=max_length,
            model_max_length=self.model_max_length,
            pad_to_multiple_of=pad_to_multiple_of,
        )
        truncation_plan = plan_truncation(
            truncation,
            padding=padding,
            max_length=max_length,
            stride=stride,
            side=self.truncation_side,
            model_max_length=self.model_max_length,
        )
        inputs = gather_inputs(text, text_pair, is_split_into_words=is_split_into_words)
        encode = partial(
            encode_all,
            self._backend,
            inputs.rows,
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
        )
        rows = Rows(encode(offsets=return_offsets_mapping), truncation_plan, overflow=return_overflowing_tokens)
        ids = rows.ids()
        pad: Padding | None = None
        if padding_plan is not None:
            length = padding_plan.length(max(map(len, ids), default=0))
            side = padding_side or self.padding_side
            pad = Padding(length, side, self._required_pad_id(), self.pad_token_type_id, self.pad_token or "")
        columns: dict[str, list[Any]] = {"input_ids": ids}
        if return_token_type_ids:
            columns["token_type_ids"] = (
                rows.type_ids() if self._has_type_ids(inputs.paired) else [[0] * len(row) for row in ids]
            )
        if return_attention_mask:
            columns["attention_mask"] = [[1] * len(row) for row in ids]
        if return_special_tokens_mask:
            columns["special_tokens_mask"] = rows.special_tokens_mask()
        if return_offsets_mapping:
            columns["offset_mapping"] = rows.offsets()
        if pad is not None:
            columns = fill_columns(columns, pad)
        data: dict[str, Any] = dict(columns)
        if return_length:
            data["length"] = [len(row) for row in columns["input_ids"]]
        if return_overflowing_tokens:
            data["overflow_to_sample_mapping"] = list(rows.samples)
        elif not inputs.batched and return_tensors is None:
            data.update({name: column[0] for name, column in columns.items()})
        # Rows without offsets know no words or characters; whoever asks for those has the texts encoded again.
        whole = (lambda: rows.encodings) if return_offsets_mapping else cache(partial(encode, offsets=True))
        trace = Trace(whole, samples=rows.samples, cuts=rows.cuts, padding=pad)
        return BatchEncoding(data, trace=trace).convert_to_tensors(return_tensors)

    def encode_ids(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> list[list[int]]:
        """Ids with special tokens, truncated longest-first to `max_length`, and nothing else: what an engine needs."""
        inputs = gather_inputs(list(texts), pairs, is_split_into_words=False)
        truncation = None if max_length is None else Truncation(max_length, side=self.truncation_side)
        whole = encode_all(
            self._backend, inputs.rows, add_special_tokens=True, is_split_into_words=False, offsets=False
        )
        return Rows(whole, truncation, overflow=False).ids()

    def encode(self, text: Any, text_pair: Any = None, **settings: Any) -> list[int]:
        """The ids of one text or pair; settings as for calling the tokenizer."""
        ids: list[int] = self(text, text_pair, **settings)["input_ids"]
        return ids

    def tokenize(self, text: str, pair: str | None = None, *, add_special_tokens: bool = False) -> list[str]:
        """The word pieces of a text."""
        return self(text, pair, add_special_tokens=add_special_tokens, return_offsets_mapping=True).tokens()

    def pad(
        self,
        encoded_inputs: Any,
        *,
        padding: PaddingArgument = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_attention_mask: bool = True,
        return_tensors: str | None = None,
    ) -> BatchEncoding:
        """Pad rows that were encoded before: a dict of columns, or a list of dicts, one to a row."""
        plan = plan_padding(
            padding,
            max_length=max_length,
            model_max_length=self.model_max_length,
            pad_to_multiple_of=pad_to_multiple_of,
        )
        return pad_columns(
            encoded_inputs,
            plan,
            side=padding_side or self.padding_side,
            pad_id=0 if plan is None else self._required_pad_id(),
            pad_type_id=self.pad_token_type_id,
            attention_mask=return_attention_mask,
        ).convert_to_tensors(return_tensors)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        count: int = self._backend.num_special_tokens_to_add(pair)
        return count

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """[CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
        cls, sep = self.convert_tokens_to_ids([self.cls_token or "", self.sep_token or ""])
        return [cls, *token_ids_0, sep] + ([] if token_ids_1 is None else [*token_ids_1, sep])

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """0 for [CLS] A [SEP], 1 for B [SEP]."""
        return [0] * (len(token_ids_0) + 2) + ([] if token_ids_1 is None else [1] * (len(token_ids_1) + 1))

    def _has_type_ids(self, paired: bool) -> bool:
        # BERT's template types a single text 0 throughout; only a foreign tokenizer.json may do otherwise.
        return paired or not isinstance(self._backend.model, WordPiece)

    # ---- ids to text

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
            text: str = self._backend.decode(ids, skip_special_tokens)
        if clean_up_tokenization_spaces or self.clean_up_tokenization_spaces is not False:
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

    # ---- the vocabulary

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
        return f"BertTokenizer({len(self)} tokens, do_lower_case={self.do_lower_case})"

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

    unk_token = property(lambda self: self._special["unk_token"])
    sep_token = property(lambda self: self._special["sep_token"])
    pad_token = property(lambda self: self._special["pad_token"])
    cls_token = property(lambda self: self._special["cls_token"])
    mask_token = property(lambda self: self._special["mask_token"])
    unk_token_id = property(lambda self: self._special_id("unk_token"))
    sep_token_id = property(lambda self: self._special_id("sep_token"))
    pad_token_id = property(lambda self: self._special_id("pad_token"))
    cls_token_id = property(lambda self: self._special_id("cls_token"))
    mask_token_id = property(lambda self: self._special_id("mask_token"))

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

    # ---- files

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
