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
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.errors import CheckpointNotFound, TokenizerError
from bertie.text.arguments import (
    NO_LIMIT,
    Inputs,
    PaddingArgument,
    TruncationArgument,
    gather_inputs,
    plan_padding,
    plan_truncation,
)
from bertie.text.backend import encode_all
from bertie.text.encoding import BatchEncoding, Padding, RustEncoding, Trace
from bertie.text.folder import SPECIAL_ROLES, read_tokenizer_files
from bertie.text.loading import Overrides, TokenizerParts, parts_from_files, parts_from_vocabulary
from bertie.text.rows import Rows, fill_columns, pad_columns
from bertie.text.tokens import TokenTable
from bertie.text.truncation import Side, Truncation
from bertie.text.vocabulary import as_vocabulary, read_vocabulary
from bertie.text.wordpiece import WORD_LIMIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from bertie.text.native import NativeTokenizer

Resolver = Callable[[str], str | Path]


def _resolve_name(name: str) -> str | Path:
    """The one place where a name becomes a local folder; shipped models and the hub live in the checkpoint room."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise CheckpointNotFound(f"There is no tokenizer at {name}.", "Check the path.")
    from bertie.checkpoint import hub
    from bertie.checkpoint.locate import find_shipped

    return find_shipped(name, wanted=hub.TOKENIZER) or hub.fetch_tokenizer(name)


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


class BertTokenizer(TokenTable):
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
        super().__init__(parts_from_vocabulary(tokens, settings, check_case=check_case, name=name, source=source))

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
        """From a checkpoint's folder, a `tokenizer.json`, a `vocab.txt`, or by name; `folder.py` lists what is read.

        What is given here goes before the files. When nothing says whether to lower-case, the vocabulary does
        (**ours**: the hub lower-cases then, cased vocabulary or not). A setting that contradicts the vocabulary is
        refused.
        """
        unknown = sorted(set(special_tokens) - set(SPECIAL_ROLES))
        if unknown:
            raise TokenizerError(f"from_pretrained() has no setting {', '.join(unknown)}.")
        local = Path(path)
        if not os.path.exists(local):  # Path.exists raises for a name longer than a path can be
            local = Path((resolver or _resolve_name)(str(path)))
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
        """From parts that are ready; `__init__`, which makes them, is left out."""
        tokenizer = cls.__new__(cls)
        TokenTable.__init__(tokenizer, parts)
        return tokenizer

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
        native = None if is_split_into_words else self._native.of(self._backend, inputs.rows)
        settings = {"framed": add_special_tokens, "is_split_into_words": is_split_into_words}
        encode = partial(_whole_rows, inputs, self._backend, native, **settings)
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
                rows.type_ids() if inputs.paired or self._types_single_texts else [[0] * len(row) for row in ids]
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

    def encode_whole(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Sequence[RustEncoding]:
        """Rows with special tokens, offsets and words, nothing cut off or filled up: what windows are made from."""
        inputs = gather_inputs(list(texts), None if pairs is None else list(pairs), is_split_into_words=False)
        native = self._native.of(self._backend, inputs.rows)
        return _whole_rows(inputs, self._backend, native, framed=True, is_split_into_words=False, offsets=True)

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
        native = self._native.of(self._backend, texts)
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
