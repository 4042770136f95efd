"""From texts to ids: what a call of the tokenizer does, and the shorter roads of those who want ids and nothing else.

A call encodes whole rows, then truncates and pads here, so a tokenizer holds no state that a call changes and may be
shared between threads. The arguments are the hub's and mean what they mean there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack, cast, get_args

from bertie.errors import TokenizerError, TokenizerTypeError
from bertie.text.encoding import BatchEncoding, Padding, Trace, pad_columns
from bertie.text.rust import Input, Rows, WholeRow, encode_all, whole_rows
from bertie.text.settings import check_side
from bertie.text.token_table import TokenTable
from bertie.text.truncation import Side, Strategy, Truncation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from bertie.text.wordpiece.native import NativeTokenizer

    Flat = tuple[NDArray[np.int64], NDArray[np.int64]]  # ids of all texts end to end, and how many are each text's

Texts: TypeAlias = (
    str | Iterable[Input]
)  # one text, or several; with `is_split_into_words` the words of one, or of several
PaddingArgument = bool | Literal["longest", "max_length", "do_not_pad"]
TruncationArgument = bool | Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
PaddingTarget = Literal["longest", "max_length"]
_LONGEST_BELIEVED = int(1e20)


class CallSettings(TypedDict, total=False):
    """What a call is given beside texts, in the hub's order."""

    add_special_tokens: bool
    padding: PaddingArgument
    truncation: TruncationArgument | None
    max_length: int | None
    stride: int
    is_split_into_words: bool
    pad_to_multiple_of: int | None
    padding_side: Side | None
    return_tensors: str | None
    return_token_type_ids: bool | None
    return_attention_mask: bool | None
    return_overflowing_tokens: bool
    return_special_tokens_mask: bool
    return_offsets_mapping: bool
    return_length: bool
    verbose: bool
    split_special_tokens: bool | None


_ENCODE_ARGUMENTS = (
    *("add_special_tokens", "padding", "truncation", "max_length"),
    *("stride", "padding_side", "return_tensors"),
)


def named_settings(
    args: Sequence[object], settings: CallSettings, names: Iterable[str] = tuple(CallSettings.__annotations__)
) -> CallSettings:
    """Settings given by position and by name."""
    return cast(CallSettings, {**dict(zip(names, args, strict=False)), **settings}) if args else settings


@dataclass(frozen=True, slots=True)
class PaddingPlan:
    """Pad to the longest row or to `max_length`, rounded up to `multiple_of`."""

    target: PaddingTarget
    max_length: int | None
    multiple_of: int | None

    def length(self, longest: int) -> int:
        length = longest if self.target == "longest" or self.max_length is None else self.max_length
        return -(-length // self.multiple_of) * self.multiple_of if self.multiple_of else length


@dataclass(frozen=True, slots=True)
class Inputs:
    """Texts as Rust takes them: strings, or pairs as tuples. A single text is a list of one and not `batched`."""

    rows: list[Input]
    batched: bool
    paired: bool

    @classmethod
    def of(cls, text: Texts | None, text_pair: Texts | None, *, is_split_into_words: bool) -> Inputs:
        """One text or many, with or without a second one each."""

        def is_one(item: object) -> bool:
            match item:
                case str():
                    return not is_split_into_words
                case [] | [str(), *_]:
                    return is_split_into_words
            return False

        if is_one(text):
            one = cast(str, text)  # or a list of words
            if text_pair is None:
                return cls([one], batched=False, paired=False)
            if not is_one(text_pair):
                raise TokenizerError(
                    f"text is a single text but text_pair is a {type(text_pair).__name__}.",
                    "Pass two texts, or two lists.",
                )
            return cls([(one, cast(str, text_pair))], batched=False, paired=True)
        if isinstance(text, (bytes, dict)) or not isinstance(text, Iterable):
            raise TokenizerTypeError(
                f"Cannot tokenize {type(text).__name__}.", "Pass a string, or a list of strings; decode bytes first."
            )
        texts = list(text)  # a copy: words are looked up later, when the caller's list may hold something else
        if text_pair is None:
            paired = bool(texts) and isinstance(texts[0], (tuple, list)) and not is_one(texts[0])
            return cls(texts, batched=True, paired=paired)
        single = isinstance(text_pair, str)
        pairs = [text_pair] if single else list(text_pair)
        if len(texts) != len(pairs) or single:
            raise TokenizerError(
                f"text has {len(texts)} entries and text_pair {len(pairs)}.", "Each text needs exactly one second text."
            )
        return cls(cast("list[Input]", list(zip(texts, pairs, strict=True))), batched=True, paired=True)


class CutRows(NamedTuple):
    """Rows of a model. Without `type_ids` all of them are 0."""

    ids: list[list[int]]
    type_ids: list[list[int]] | None
    is_cut: list[bool]


class TextToIds(TokenTable):
    """The half of `BertTokenizer` that turns texts into ids."""

    def __call__(
        self,
        text: Texts | None = None,
        text_pair: Texts | None = None,
        text_target: Texts | None = None,
        text_pair_target: Texts | None = None,
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
        given = locals()
        if text_target is not None:
            settings = cast(CallSettings, {name: given[name] for name in CallSettings.__annotations__})
            labels = self(text_target, text_pair_target, **settings)
            if text is None:
                return labels
            encoding = self(text, text_pair, **settings)
            encoding["labels"] = labels["input_ids"]
            return encoding
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        padding_plan = self._plan_padding(padding, max_length, pad_to_multiple_of)
        truncation_plan = self._plan_truncation(truncation, padding, max_length, stride or 0)
        if (
            padding_plan is not None
            and truncation_plan is not None
            and padding_plan.multiple_of
            and truncation_plan.max_length % padding_plan.multiple_of
        ):
            raise TokenizerError(
                f"Rows are cut to {truncation_plan.max_length} tokens and padded to a multiple of "
                f"{padding_plan.multiple_of}.",
                "Choose a max_length that is such a multiple.",
            )
        inputs = Inputs.of(text, text_pair, is_split_into_words=is_split_into_words)
        if is_split_into_words and self.joins_words:
            raise TokenizerError(
                "Words that are split already would be joined: this tokenizer marks a word by the space before it.",
                "Load it with add_prefix_space=True.",
            )
        if return_overflowing_tokens and not self.is_fast:
            return self._with_overflowing_tokens(inputs, {name: given[name] for name in CallSettings.__annotations__})
        backend, native = self._encoders_for(inputs.rows, split_special_tokens)
        encode = partial(
            whole_rows,
            inputs.rows,
            backend,
            None if is_split_into_words else native,
            paired=inputs.paired,
            framed=add_special_tokens,
            words=is_split_into_words,
        )
        rows = Rows(encode(offsets=return_offsets_mapping), truncation_plan, overflow=return_overflowing_tokens)
        ids = rows.ids()
        if truncation_plan is None:
            self._warn_if_too_long(ids, max_length, verbose)
        columns: dict[str, list[Any]] = {"input_ids": ids}
        if self._wanted(return_token_type_ids, "token_type_ids"):
            columns["token_type_ids"] = (
                rows.type_ids() if inputs.paired or self._types_single_texts else [[0] * len(row) for row in ids]
            )
        if self._wanted(return_attention_mask, "attention_mask"):
            columns["attention_mask"] = [[1] * len(row) for row in ids]
        if return_special_tokens_mask:
            columns["special_tokens_mask"] = rows.read(lambda row: row.special_tokens_mask)
        if return_offsets_mapping:
            columns["offset_mapping"] = rows.read(lambda row: row.offsets)
        pad: Padding | None = None
        if padding_plan is not None:
            pad = self._padding(padding_plan, max(map(len, ids), default=0), padding_side)
            columns = pad.fill_columns(columns)
        data: dict[str, Any] = dict(columns)
        if return_length:
            data["length"] = [len(row) for row in columns["input_ids"]]
        if return_overflowing_tokens:
            data["overflow_to_sample_mapping"] = list(rows.samples)
        elif not inputs.batched and return_tensors is None:
            data.update({name: column[0] for name, column in columns.items()})
        # Rows without offsets know no words or characters; whoever asks for those has the texts encoded again.
        whole = (lambda: rows.whole) if return_offsets_mapping else cache(partial(encode, offsets=True))
        trace = Trace(rows, whole, pad)
        return BatchEncoding(data, tensor_type=return_tensors, n_sequences=1 + inputs.paired, trace=trace)

    def _with_overflowing_tokens(self, inputs: Inputs, settings: dict[str, Any]) -> BatchEncoding:
        """For a class that is not `is_fast`: what was cut off, in transformers' other way (hub/names.py)."""
        raise NotImplementedError

    def _encoders_for(
        self, inputs: Sequence[Input], split_special_tokens: bool = False
    ) -> tuple[Tokenizer, NativeTokenizer | None]:
        """The Rust tokenizer, and its C++ form where that is to have these texts."""
        backend = self._backend
        if split_special_tokens:
            return self._encoders.splitting(backend), None
        if not self._backend_is_known:
            return backend, self._encoders.native(backend, inputs)
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        return backend, None

    def _plan_padding(
        self, padding: PaddingArgument, max_length: int | None, pad_to_multiple_of: int | None
    ) -> PaddingPlan | None:
        if padding is False or padding is None or padding == "do_not_pad":
            return None
        if padding is not True and padding not in get_args(PaddingTarget):
            raise TokenizerError(
                "{padding} is not known.",
                "Use True or 'longest', 'max_length', False or 'do_not_pad'.",
                padding=padding,
            )
        if pad_to_multiple_of is not None and pad_to_multiple_of < 1:
            raise TokenizerError(
                "{pad_to_multiple_of} should be a positive number, or None.", pad_to_multiple_of=pad_to_multiple_of
            )
        if padding == "max_length" and max_length is None:
            if self.model_max_length > _LONGEST_BELIEVED:
                raise TokenizerError(
                    "{padding} needs a length: none was given and this tokenizer has no model_max_length.",
                    "Pass max_length=, or padding=True to pad to the longest text.",
                    padding=padding,
                )
            max_length = self.model_max_length
        return PaddingPlan("longest" if padding is True else padding, max_length, pad_to_multiple_of)

    def _padding(self, plan: PaddingPlan, longest: int, side: Side | None) -> Padding:
        side = self.padding_side if side is None else check_side(side, "padding_side")
        length = plan.length(longest)
        return Padding(length, side, self._required_pad_id(), self.pad_token_type_id, self.pad_token or "")

    def _plan_truncation(
        self, truncation: TruncationArgument | None, padding: PaddingArgument, max_length: int | None, stride: int
    ) -> Truncation | None:
        """As on the hub: a `max_length` alone truncates; with no limit known `truncation=True` does nothing."""
        if truncation is None and max_length is not None and padding is False:
            truncation = True
        if truncation is None or truncation is False or truncation == "do_not_truncate":
            return None
        if truncation is not True and truncation not in get_args(Strategy):
            raise TokenizerError(
                "{truncation} is not known.",
                "Use True or 'longest_first', 'only_first', 'only_second', False or 'do_not_truncate'.",
                truncation=truncation,
            )
        if max_length is None:
            if self.model_max_length > _LONGEST_BELIEVED:
                return None
            max_length = self.model_max_length
        if max_length < 0 or stride < 0:
            raise TokenizerError(
                "{max_length} and {stride} should not be negative.", max_length=max_length, stride=stride
            )
        return Truncation(
            max_length, "longest_first" if truncation is True else truncation, stride, self.truncation_side
        )

    def _wanted(self, given: bool | None, name: str) -> bool:
        """None asks whether the model takes the column."""
        return name in self.model_input_names if given is None else given

    def _warn_if_too_long(self, rows: list[list[int]], max_length: int | None, verbose: bool) -> None:
        if max_length is None and verbose:
            longest = max(map(len, rows), default=0)
            if longest > self.model_max_length:
                self._say_once(
                    "sequence-length-is-longer-than-the-specified-maximum",
                    "Token indices sequence length is longer than the specified maximum sequence length for this model "
                    f"({longest} > {self.model_max_length}). The model cannot take this row: pass truncation=True.",
                )

    def encode_cut(
        self,
        items: Sequence[Input],
        *,
        paired: bool = False,
        max_length: int,
        strategy: Strategy = "longest_first",
    ) -> CutRows:
        """Rows of at most `max_length` tokens for texts, or for pairs: what a call gives, without its columns."""
        backend, native = self._encoders_for(items, self.split_special_tokens)
        whole = whole_rows(items, backend, native, paired=paired)
        rows = Rows(whole, Truncation(max_length, strategy, side=self.truncation_side))
        types = rows.type_ids() if paired or self._types_single_texts else None
        return CutRows(rows.ids(), types, [cut is not None for cut in rows.cuts])

    def encode_whole(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[WholeRow]:
        """Rows with special tokens, offsets and words, nothing cut off or filled up: what windows are made from."""
        inputs = Inputs.of(list(texts), None if pairs is None else list(pairs), is_split_into_words=False)
        return whole_rows(inputs.rows, *self._encoders_for(inputs.rows), paired=inputs.paired, offsets=True)

    def encode_ids(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> list[list[int]]:
        """Ids with special tokens, truncated longest-first to `max_length`, and nothing else: what an engine needs."""
        texts = list(texts)
        found = None if pairs is not None else self._encode_native(texts, max_length)
        if found is None:
            return self._encode_rust(texts, pairs, max_length=max_length)
        ids = found[0].tolist()
        return [ids[start:end] for start, end in pairwise(accumulate(found[1].tolist(), initial=0))]

    def encode_flat(self, texts: Sequence[str], *, max_length: int | None = None) -> Flat:
        """As `encode_ids`, for many texts: the ids of all of them end to end, and how many are each text's."""
        import numpy as np

        texts = list(texts)
        found = self._encode_native(texts, max_length)
        if found is not None:
            return found
        rows = self._encode_rust(texts, max_length=max_length)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())), lengths

    def _encode_native(self, texts: list[str], max_length: int | None) -> Flat | None:
        """By the C++ library (wordpiece/native.py); None where that is not to be had."""
        if max_length is not None and self.truncation_side != "right":
            return None
        native = self._encoders_for(texts)[1]
        if native is None:
            return None
        return native.encode_flat(
            texts, max_length=max_length, others=partial(self._encode_rust, max_length=max_length)
        )

    def _encode_rust(
        self, texts: list[str], pairs: Sequence[str] | None = None, *, max_length: int | None
    ) -> list[list[int]]:
        inputs = Inputs.of(texts, pairs, is_split_into_words=False)
        truncation = None if max_length is None else Truncation(max_length, side=self.truncation_side)
        return Rows(encode_all(self._backend, inputs.rows), truncation).ids()

    def encode(
        self, text: Texts, text_pair: Texts | None = None, *args: object, **settings: Unpack[CallSettings]
    ) -> list[int]:
        """The ids of one text or pair; settings as for calling the tokenizer."""
        ids: list[int] = self(text, text_pair, **named_settings(args, settings, _ENCODE_ARGUMENTS))["input_ids"]
        return ids

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **settings: object
    ) -> list[str]:
        """The word pieces of a text; settings as for calling the tokenizer."""
        chosen = {"verbose": False, **settings, "add_special_tokens": add_special_tokens}
        return self(text, pair, **cast(CallSettings, chosen | {"return_offsets_mapping": True})).tokens()

    def pad(
        self,
        encoded_inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        padding: PaddingArgument = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad rows that were encoded before: a dict of columns, or a list of dicts, one per row.

        Columns of tensors or arrays come back as such.
        """
        plan = self._plan_padding(padding, max_length, pad_to_multiple_of)
        return pad_columns(
            encoded_inputs,
            lambda longest: None if plan is None else self._padding(plan, longest, padding_side),
            attention_mask=self._wanted(return_attention_mask, "attention_mask"),
            ids_name=self.model_input_names[0],
            tensor_type=return_tensors,
        )
