"""`BertTokenizer`: text to ids and back, with the call signature people know from the hub, on the Rust library.

    tokenizer = BertTokenizer.from_pretrained("path/to/checkpoint")
    batch = tokenizer(["A text.", "Another one."], padding=True, truncation=True, return_tensors="pt")

A call encodes whole rows, then truncates and pads here, so a tokenizer holds no state that a call changes and may be
shared between threads. Much text is encoded in C++ (native.py). `add_tokens` works on a copy and swaps it in: calls
already under way finish with the old one. The algorithm itself, to be read, is in `wordpiece.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from tokenizers import AddedToken

from bertie.errors import CheckpointNotFound, TokenizerTypeError
from bertie.text.arguments import (
    NO_LIMIT,
    Inputs,
    PaddingArgument,
    TruncationArgument,
    check_lengths,
    check_others,
    gather_inputs,
    plan_padding,
    plan_truncation,
)
from bertie.text.backend import copy_backend, encode_all
from bertie.text.columns import Rows, fill_columns, pad_columns
from bertie.text.encoding import BatchEncoding, Padding, RustEncoding, Trace
from bertie.text.folder import SPECIAL_ROLES, read_tokenizer_files
from bertie.text.hub.interface import HubInterface
from bertie.text.parts import Overrides, TokenizerParts, parts_from_files, parts_from_rust, parts_from_vocabulary
from bertie.text.tokens import TokenTable
from bertie.text.truncation import Side, Truncation, check_side
from bertie.text.wordpiece.reference import WORD_LIMIT
from bertie.text.wordpiece.vocabulary import as_vocabulary, read_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from bertie.text.wordpiece.native import NativeTokenizer

Resolver = Callable[[str], str | Path]
SpecialToken: TypeAlias = "str | AddedToken | None"


def _resolve_name(name: str, *, subfolder: str = "", **fetching: Any) -> str | Path:
    """The one place where a name becomes a local folder; shipped models and the hub live in the checkpoint room."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise CheckpointNotFound(f"There is no tokenizer at {name}.", "Check the path.")
    from bertie.checkpoint import hub
    from bertie.checkpoint.locate import find_shipped

    if (shipped := find_shipped(name, wanted=hub.TOKENIZER, **fetching)) is not None:
        return shipped / subfolder
    return hub.fetch_tokenizer(name, subfolder=subfolder, **fetching)


def _whole_rows(
    inputs: Inputs,
    backend: Tokenizer,
    native: NativeTokenizer | None,
    *,
    framed: bool,
    is_split_into_words: bool,
    offsets: bool,
) -> list[RustEncoding]:
    """Every input's whole row: in C++ where there is such a form and it can, else in Rust."""
    rust = partial(
        encode_all, backend, add_special_tokens=framed, is_split_into_words=is_split_into_words, offsets=offsets
    )
    rows: list[RustEncoding] | None = None
    if native is not None:
        rows = native.encode_rows(inputs.rows, paired=inputs.paired, framed=framed, offsets=offsets, others=rust)
    return rust(inputs.rows) if rows is None else rows


class BertTokenizer(HubInterface):
    """WordPiece for BERT. `BertTokenizerFast` is the same under another name (hub_names.py).

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
        bos_token: SpecialToken = None,
        eos_token: SpecialToken = None,
        unk_token: SpecialToken = "[UNK]",
        sep_token: SpecialToken = "[SEP]",
        pad_token: SpecialToken = "[PAD]",
        cls_token: SpecialToken = "[CLS]",
        mask_token: SpecialToken = "[MASK]",
        additional_special_tokens: Sequence[str | AddedToken] | None = None,
        model_max_length: int | None = NO_LIMIT,
        padding_side: Side | None = "right",
        truncation_side: Side | None = "right",
        clean_up_tokenization_spaces: bool | None = None,
        split_special_tokens: bool = False,
        model_input_names: Sequence[str] | None = None,
        max_input_chars_per_word: int | None = WORD_LIMIT,
        check_case: bool = True,
        **others: Any,
    ) -> None:
        """From a `vocab.txt`, a token-to-id mapping or a list of tokens, or else a `tokenizer.json` or Rust tokenizer.

        `do_lower_case=None` asks the vocabulary; a `tokenizer.json` or Rust tokenizer keeps its own settings, and only
        what is given and is not the default is laid over it. Words in `never_split` (they must be in the vocabulary)
        are kept whole and in their case wherever no letter or digit touches them. `max_input_chars_per_word=200` is
        Google's first release. None means the default.
        """
        given = {name: value for name, value in locals().items() if name in _SETTINGS}
        chat_template = others.pop("chat_template", None)
        others = check_others(type(self), others | {"do_basic_tokenize": do_basic_tokenize}, _SETTINGS)
        if not isinstance(do_lower_case, bool) and do_lower_case is not None:
            raise TokenizerTypeError(
                f"do_lower_case is {do_lower_case!r}; wanted True, False or None.", "Name tokenizer_file= if it is one."
            )
        source = vocab_file if vocab is None else vocab
        if source is not None:
            name, where = "", "this vocabulary"
            if isinstance(source, (str, Path)):
                where, name, tokens = str(source), Path(source).parent.name, read_vocabulary(source)
            else:
                tokens = as_vocabulary(source)
            parts = parts_from_vocabulary(tokens, given, check_case=check_case, name=name, source=where)
        else:
            changed = {name: value for name, value in given.items() if value != _SETTINGS[name]}
            parts = parts_from_rust(tokenizer_file, tokenizer_object, changed, check_case=check_case)
        self._fill(parts, others, chat_template)

    def _fill(self, parts: TokenizerParts, others: dict[str, Any], chat_template: Any) -> None:
        TokenTable.__init__(self, parts)
        self.chat_template = chat_template
        self.name_or_path = others.pop("name_or_path", self.name_or_path)
        self.verbose = others.pop("verbose", self.verbose)
        self.add_prefix_space = others.get("add_prefix_space", False)
        self.other_settings = others

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        do_lower_case: bool | None = None,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool | None = None,
        never_split: Sequence[str] | None = None,
        model_max_length: int | None = None,
        max_input_chars_per_word: int | None = None,
        padding_side: Side | None = None,
        truncation_side: Side | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        split_special_tokens: bool | None = None,
        model_input_names: Sequence[str] | None = None,
        additional_special_tokens: Sequence[str | AddedToken] | None = None,
        check_case: bool = True,
        resolver: Resolver | None = None,
        vocab_file: str | Path | None = None,
        tokenizer_file: str | Path | None = None,
        subfolder: str = "",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        force_download: bool = False,
        proxies: Mapping[str, str] | None = None,
        use_auth_token: str | bool | None = None,
        chat_template: str | dict[str, str] | None = None,
        **others: Any,
    ) -> Self:
        """From a checkpoint's folder, a `tokenizer.json`, a `vocab.txt`, or by name; `folder.py` lists what is read.

        What is given here goes before the files. When nothing says whether to lower-case, the vocabulary does
        (**ours**: the hub lower-cases then, cased vocabulary or not). A setting that contradicts the vocabulary is
        refused. `others` are special tokens by their roles, and the hub's settings that have no meaning here.
        """
        overrides = Overrides(
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
            never_split=never_split,
            model_max_length=model_max_length,
            max_input_chars_per_word=max_input_chars_per_word,
            padding_side=None if padding_side is None else check_side(padding_side, "padding_side"),
            truncation_side=None if truncation_side is None else check_side(truncation_side, "truncation_side"),
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            split_special_tokens=split_special_tokens,
            model_input_names=model_input_names,
            additional_special_tokens=additional_special_tokens,
            special={role: others.pop(role) for role in SPECIAL_ROLES if role in others},
        )
        others = check_others(cls, others, _SETTINGS)
        local = Path(pretrained_model_name_or_path) / subfolder
        if not os.path.exists(local):  # Path.exists raises for a name longer than a path can be
            fetching: dict[str, Any] = {"revision": revision, "force_download": force_download, "proxies": proxies}
            fetching |= {"cache_dir": cache_dir, "local_files_only": local_files_only, "subfolder": subfolder}
            fetching["token"] = use_auth_token if token is None else token
            find: Resolver = resolver or partial(_resolve_name, **fetching)
            local = Path(find(str(pretrained_model_name_or_path)))
        files = read_tokenizer_files(local)
        if tokenizer_file is not None or vocab_file is not None:
            named = read_tokenizer_files(Path(tokenizer_file or vocab_file or ""))
            files = replace(files, tokenizer_json=named.tokenizer_json, vocab_file=named.vocab_file)
        parts = parts_from_files(files, overrides, check_case=check_case)
        tokenizer = cls.__new__(cls)
        template = files.chat_template if chat_template is None else chat_template
        tokenizer._fill(replace(parts, name=str(pretrained_model_name_or_path)), others, template)
        return tokenizer

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        add_special_tokens: bool = True,
        padding: PaddingArgument = False,
        truncation: TruncationArgument | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        split_special_tokens: bool | None = None,
    ) -> BatchEncoding:
        """Encode a text, a pair of texts, or a list of either; every argument means what it means on the hub.

        `text_target` is encoded with the same settings; beside `text` its ids become `labels`.
        """
        if text_target is not None:
            settings = {name: value for name, value in locals().items() if name in _CALL_SETTINGS}
            labels = self(text_target, text_pair_target, **settings)
            if text is None:
                return labels
            encoding = self(text, text_pair, **settings)
            encoding["labels"] = labels["input_ids"]
            return encoding
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
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
            stride=stride or 0,
            side=self.truncation_side,
            model_max_length=self.model_max_length,
        )
        check_lengths(padding_plan, truncation_plan)
        inputs = gather_inputs(text, text_pair, is_split_into_words=is_split_into_words)
        if return_overflowing_tokens and not self.is_fast:
            given = locals()
            return self._with_overflowing_tokens(inputs, {name: given[name] for name in _CALL_SETTINGS})
        backend, native = self._encoders(inputs.rows, split_special_tokens)
        native = None if is_split_into_words else native
        encode = partial(
            _whole_rows, inputs, backend, native, framed=add_special_tokens, is_split_into_words=is_split_into_words
        )
        rows = Rows(encode(offsets=return_offsets_mapping), truncation_plan, overflow=return_overflowing_tokens)
        ids = rows.ids()
        if truncation_plan is None:
            self._warn_if_too_long(ids, max_length, verbose)
        pad: Padding | None = None
        if padding_plan is not None:
            length = padding_plan.length(max(map(len, ids), default=0))
            side = self.padding_side if padding_side is None else check_side(padding_side, "padding_side")
            pad = Padding(length, side, self._required_pad_id(), self.pad_token_type_id, self.pad_token or "")
        columns: dict[str, list[Any]] = {"input_ids": ids}
        if self._wanted(return_token_type_ids, "token_type_ids"):
            columns["token_type_ids"] = (
                rows.type_ids() if inputs.paired or self._types_single_texts else [[0] * len(row) for row in ids]
            )
        if self._wanted(return_attention_mask, "attention_mask"):
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
        return BatchEncoding(data, tensor_type=return_tensors, n_sequences=1 + inputs.paired, trace=trace)

    def _encoders(
        self, inputs: Sequence[Any], split_special_tokens: bool = False
    ) -> tuple[Tokenizer, NativeTokenizer | None]:
        """The Rust tokenizer, and its C++ form where that is to have these texts."""
        backend = self._backend
        if split_special_tokens:
            # The hub sets this on the tokenizer that all threads share; here it has a copy.
            if self._splitting is None or self._splitting[0] is not backend:
                copied = copy_backend(backend)
                copied.encode_special_tokens = True
                self._splitting = backend, copied
            return self._splitting[1], None
        if not self._backend_is_known:
            return backend, self._native.of(backend, inputs)
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        return backend, None

    def encode_whole(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Sequence[RustEncoding]:
        """Rows with special tokens, offsets and words, nothing cut off or filled up: what windows are made from."""
        inputs = gather_inputs(list(texts), None if pairs is None else list(pairs), is_split_into_words=False)
        backend, native = self._encoders(inputs.rows)
        return _whole_rows(inputs, backend, native, framed=True, is_split_into_words=False, offsets=True)

    def encode_ids(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> list[list[int]]:
        """Ids with special tokens, truncated longest-first to `max_length`, and nothing else: what an engine needs."""
        texts = list(texts)
        found = None if pairs is not None else self._encode_native(texts, max_length)
        if found is None:
            return self._encode_rust(texts, pairs, max_length=max_length)
        ids, lengths = found[0].tolist(), found[1].tolist()
        ends = list(accumulate(lengths, initial=0))
        return [ids[start:end] for start, end in pairwise(ends)]

    def encode_flat(
        self, texts: Sequence[str], *, max_length: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `encode_ids`, for many texts: the ids of all of them end to end, and how many are each text's."""
        import numpy as np

        texts = list(texts)
        found = self._encode_native(texts, max_length)
        if found is not None:
            return found
        rows = self._encode_rust(texts, max_length=max_length)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())), lengths

    def _encode_native(
        self, texts: list[str], max_length: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """By the C++ library (native.py); None where that is not to be had."""
        if max_length is not None and self.truncation_side != "right":
            return None
        native = self._encoders(texts)[1]
        if native is None:
            return None
        return native.encode_flat(
            texts, max_length=max_length, others=partial(self._encode_rust, max_length=max_length)
        )

    def _encode_rust(
        self, texts: list[str], pairs: Sequence[str] | None = None, *, max_length: int | None
    ) -> list[list[int]]:
        inputs = gather_inputs(texts, pairs, is_split_into_words=False)
        truncation = None if max_length is None else Truncation(max_length, side=self.truncation_side)
        whole = encode_all(
            self._backend, inputs.rows, add_special_tokens=True, is_split_into_words=False, offsets=False
        )
        return Rows(whole, truncation, overflow=False).ids()

    def encode(self, text: Any, text_pair: Any = None, *args: Any, **settings: Any) -> list[int]:
        """The ids of one text or pair; settings as for calling the tokenizer."""
        if args:
            settings = dict(zip(_ENCODE_ARGUMENTS, args, strict=False)) | settings
        ids: list[int] = self(text, text_pair, **settings)["input_ids"]
        return ids

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **settings: Any
    ) -> list[str]:
        """The word pieces of a text."""
        settings.setdefault("verbose", False)
        return self(text, pair, add_special_tokens=add_special_tokens, return_offsets_mapping=True, **settings).tokens()

    def pad(
        self,
        encoded_inputs: Any,
        padding: PaddingArgument = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad rows that were encoded before: a dict of columns, or a list of dicts, one to a row.

        Columns of tensors or arrays come back as such.
        """
        plan = plan_padding(
            padding,
            max_length=max_length,
            model_max_length=self.model_max_length,
            pad_to_multiple_of=pad_to_multiple_of,
        )
        return pad_columns(
            encoded_inputs,
            plan,
            side=self.padding_side if padding_side is None else check_side(padding_side, "padding_side"),
            pad_id=0 if plan is None else self._required_pad_id(),
            pad_type_id=self.pad_token_type_id,
            attention_mask=self._wanted(return_attention_mask, "attention_mask"),
            ids_name=self.model_input_names[0],
            tensor_type=return_tensors,
        )


_CALL_SETTINGS = set(signature(BertTokenizer.__call__).parameters) - {
    "self", "text", "text_pair", "text_target", "text_pair_target",
}  # fmt: skip
_ENCODE_ARGUMENTS = (
    "add_special_tokens",
    "padding",
    "truncation",
    "max_length",
    "stride",
    "padding_side",
    "return_tensors",
)
# What a vocabulary is read with, and the default of each.
_SETTINGS = {
    name: parameter.default
    for name, parameter in signature(BertTokenizer.__init__).parameters.items()
    if name in {*Overrides.__dataclass_fields__, *SPECIAL_ROLES} - {"special"}
}
