"""What else code written for `transformers` asks of a tokenizer: the older calls, ids instead of texts, odd properties.

Everything here is a few lines over `BertTokenizer`; start there. `isinstance(tokenizer, PreTrainedTokenizerBase)` holds
where `transformers` has been imported by somebody else (`hub_class`): its Trainer, collators, datasets and
sentence-transformers choose by it. It is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, NoReturn, Unpack, cast, get_args

from tokenizers import Tokenizer
from tokenizers.decoders import Decoder

from bertie.errors import TokenizerError, TokenizerTypeError
from bertie.text.encoding import BatchEncoding
from bertie.text.hub.chat import ChatTemplates
from bertie.text.rust import rust_errors
from bertie.text.text_to_ids import CallSettings, PaddingArgument, Texts, TruncationArgument, named_settings
from bertie.text.truncation import Side, Strategy
from bertie.text.wordpiece.basic import BasicTokenizer, WordpieceTokenizer

# From the most particular: whoever has imported transformers' own BertTokenizerFast may ask for that.
_HUB_CLASSES = {
    True: (
        ("transformers.models.bert.tokenization_bert_fast", "BertTokenizerFast"),
        ("transformers.tokenization_utils_fast", "PreTrainedTokenizerFast"),
        ("transformers.tokenization_utils_tokenizers", "PreTrainedTokenizerFast"),
        ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
    ),
    False: (
        ("transformers.models.bert.tokenization_bert", "BertTokenizer"),
        ("transformers.tokenization_utils", "PreTrainedTokenizer"),
        ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
    ),
}


def hub_class(is_fast: bool) -> type | None:
    """The class of `transformers` that a tokenizer stands in for, if somebody has imported it."""
    for module, name in _HUB_CLASSES[is_fast]:
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            return found
    return None


@cache
def both(ours: type, theirs: type) -> type:
    """A class that says it is both. It is asked for its bases and its name only; calling it makes our tokenizer."""
    names = {name: getattr(ours, name) for name in ("from_pretrained", "__module__", "__doc__")}
    names["__new__"] = lambda cls, *args, **settings: ours(*args, **settings)
    return type(ours.__name__, (ours, theirs), names)


def blank(cls: type[HubInterface]) -> HubInterface:
    """For unpickling: a tokenizer that has nothing yet."""
    return cls.__new__(cls)


class HubInterface(ChatTemplates):
    """The rest of the hub's tokenizer. `BertTokenizer` is built on it."""

    can_save_slow_tokenizer = True
    add_prefix_space = False
    do_basic_tokenize = True
    vocab_files_names: ClassVar = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}

    @property  # type: ignore[misc]  # `isinstance` asks for it; that it may be computed is Python's rule, not mypy's
    def __class__(self) -> type:
        ours: type = type(self)
        theirs = hub_class(self.is_fast)
        return ours if theirs is None else both(ours, theirs)

    def __reduce__(self) -> tuple[object, ...]:
        # What was said already stays behind: datasets finds its cache by these bytes, and a log line should not matter.
        return blank, (type(self),), self.__dict__ | {"deprecation_warnings": {}}

    # -- texts --

    def encode_plus(
        self, text: Texts, text_pair: Texts | None = None, *args: object, **settings: Unpack[CallSettings]
    ) -> BatchEncoding:
        """One text or pair; settings as for calling the tokenizer, which does the same."""
        settings = named_settings(args, settings)
        match text, bool(settings.get("is_split_into_words")):
            case (str(), _) | ([*_], True):
                return self(text, text_pair, **settings)
        raise TokenizerTypeError(
            f"encode_plus() takes one text, not {type(text).__name__}.",
            "Several go to batch_encode_plus(), words to {is_split_into_words}.",
            is_split_into_words=True,
        )

    def batch_encode_plus(
        self, batch_text_or_text_pairs: Texts, *args: object, **settings: Unpack[CallSettings]
    ) -> BatchEncoding:
        """A list of texts or of pairs; settings as for calling the tokenizer, which does the same."""
        settings = named_settings(args, settings)
        if not isinstance(batch_text_or_text_pairs, (list, tuple)):
            raise TokenizerTypeError(
                f"batch_encode_plus() takes a list, not {type(batch_text_or_text_pairs).__name__}.",
                "One text goes to encode_plus().",
            )
        if not batch_text_or_text_pairs:  # no text is no list of words
            settings["is_split_into_words"] = False
        return self(batch_text_or_text_pairs, **settings)

    def prepare_seq2seq_batch(
        self,
        src_texts: list[str],
        tgt_texts: list[str] | None = None,
        max_length: int | None = None,
        max_target_length: int | None = None,
        padding: PaddingArgument = "longest",
        return_tensors: str | None = None,
        truncation: TruncationArgument = True,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **settings: object,
    ) -> BatchEncoding:
        """Source texts, and target texts as `labels`; the two may have different lengths. BERT knows no languages."""
        settings |= {"padding": padding, "truncation": truncation, "return_tensors": return_tensors}
        chosen = cast(CallSettings, settings)
        inputs = self(src_texts, **chosen | {"max_length": max_length})
        if tgt_texts is not None:
            targets = self(tgt_texts, **chosen | {"max_length": max_target_length or max_length})
            inputs["labels"] = targets["input_ids"]
        return inputs

    @contextmanager
    def as_target_tokenizer(self) -> Iterator[None]:
        """Texts inside are target texts, which BERT tokenizes like any other."""
        yield

    # -- ids --

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens a text, or a pair, gets."""
        count: int = self._backend.num_special_tokens_to_add(pair)
        return count

    @property
    def max_len_single_sentence(self) -> int:
        """How many tokens one text may have."""
        return self.model_max_length - self.num_special_tokens_to_add(False)

    @property
    def max_len_sentences_pair(self) -> int:
        """How many tokens two texts may have together."""
        return self.model_max_length - self.num_special_tokens_to_add(True)

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

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """1 for every special token: of a row that has them already, or of the row that the ids would become."""
        if not already_has_special_tokens:
            second = [] if token_ids_1 is None else [*[0] * len(token_ids_1), 1]
            return [1, *[0] * len(token_ids_0), 1, *second]
        if token_ids_1 is not None:
            raise TokenizerError(
                "A row that already has special tokens is one list.", "Pass it as token_ids_0, without token_ids_1."
            )
        special = set(self.all_special_ids)
        return [int(index in special) for index in token_ids_0]

    def truncate_sequences(
        self,
        ids: list[int],
        pair_ids: list[int] | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: str = "longest_first",
        stride: int = 0,
    ) -> tuple[list[int], list[int] | None, list[int]]:
        """Ids without special tokens, shortened; the third list holds what was removed, `stride` tokens before it.

        Of a pair under "longest_first" nothing is given back.
        """
        side, excess = self.truncation_side, num_tokens_to_remove
        if excess <= 0 or truncation_strategy == "do_not_truncate":
            return ids, pair_ids, []
        if truncation_strategy not in get_args(Strategy):
            raise TokenizerError(
                "{truncation_strategy} is not known.",
                f"Use one of {get_args(Strategy)}.",
                accepted=get_args(Strategy),
                truncation_strategy=truncation_strategy,
            )
        if truncation_strategy == "longest_first" and pair_ids is not None:
            # An odd id goes the other way round than in rows that Rust makes: that is the hub's difference too.
            from_longer = min(abs(len(ids) - len(pair_ids)), excess)
            from_a, from_b = (excess - from_longer) // 2, (excess - from_longer + 1) // 2
            if len(ids) > len(pair_ids):
                from_a += from_longer
            else:
                from_b += from_longer
            return _shortened(ids, from_a, side), _shortened(pair_ids, from_b, side), []
        target = pair_ids if truncation_strategy == "only_second" else ids
        if target is None or len(target) <= excess:
            raise TokenizerError(
                f"{{truncation}} cannot remove {excess} tokens: the sequence has {len(target or ())}.",
                "Raise max_length, or use truncation='longest_first'.",
                truncation=truncation_strategy,
            )
        window = min(len(target), stride + excess)
        removed = target[:window] if side == "left" else target[-window:]
        kept = _shortened(target, excess, side)
        return (ids, kept, removed) if truncation_strategy == "only_second" else (kept, pair_ids, removed)

    def prepare_for_model(
        self,
        ids: list[int],
        pair_ids: list[int] | None = None,
        add_special_tokens: bool = True,
        padding: PaddingArgument = False,
        truncation: TruncationArgument | None = None,
        max_length: int | None = None,
        stride: int = 0,
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
        prepend_batch_axis: bool = False,
    ) -> BatchEncoding:
        """A row from ids that were made before: special tokens, truncation and padding as for texts."""
        if return_offsets_mapping:
            raise TokenizerError("Ids have no offsets: the text is not known.", "Call the tokenizer with the text.")
        plan = self._plan_truncation(truncation, padding, max_length, stride)
        num_special = self.num_special_tokens_to_add(pair_ids is not None) if add_special_tokens else 0
        length = len(ids) + len(pair_ids or ()) + num_special
        overflow: list[int] = []
        if return_overflowing_tokens and pair_ids is not None and plan is not None and plan.strategy == "longest_first":
            raise TokenizerError(
                "Not possible to return overflowing tokens for pair of sequences with the `longest_first`. Please "
                "select another truncation strategy than `longest_first`, for instance `only_second` or `only_first`.",
            )
        if plan is not None and length > plan.max_length:
            excess = length - plan.max_length
            ids, pair_ids, overflow = self.truncate_sequences(ids, pair_ids, excess, plan.strategy, stride)
        columns: dict[str, Any] = {}
        if return_overflowing_tokens:
            limit = max_length if plan is None else plan.max_length
            columns |= {"overflowing_tokens": overflow, "num_truncated_tokens": length - (limit or length)}
        if add_special_tokens:
            columns["input_ids"] = self.build_inputs_with_special_tokens(ids, pair_ids)
            types = self.create_token_type_ids_from_sequences(ids, pair_ids)
            mask = self.get_special_tokens_mask(ids, pair_ids)
        else:
            columns["input_ids"] = [*ids, *(pair_ids or ())]
            types = mask = [0] * len(columns["input_ids"])
        if self._wanted(return_token_type_ids, "token_type_ids"):
            columns["token_type_ids"] = types
        if return_special_tokens_mask:
            columns["special_tokens_mask"] = mask
        self._warn_if_too_long([columns["input_ids"]], max_length, verbose)
        padded = self.pad(
            columns,
            padding=padding,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        if return_length:
            padded["length"] = len(padded["input_ids"])
        return padded.convert_to_tensors(return_tensors, prepend_batch_axis)

    # -- what the hub's tokenizers have --

    @property
    def vocab(self) -> dict[str, int]:
        """Ids by token."""
        return self.get_vocab()

    @property
    def ids_to_tokens(self) -> dict[int, str]:
        """Tokens by id."""
        return {index: token for token, index in self.get_vocab().items()}

    def _convert_id_to_token(self, index: int) -> str:  # transformers' whole-word collator asks for this one
        return self.convert_ids_to_tokens(int(index))

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """Ids of added tokens, by token."""
        return self.get_added_vocab()

    @property
    def basic_tokenizer(self) -> BasicTokenizer:
        """The first half in Python, with this tokenizer's settings; see basic.py for what it is good for."""
        normalizer = self._backend.normalizer
        return BasicTokenizer(
            do_lower_case=self.do_lower_case,
            never_split=self.never_split,
            tokenize_chinese_chars=getattr(normalizer, "handle_chinese_chars", True),
            strip_accents=getattr(normalizer, "strip_accents", None),
        )

    @property
    def wordpiece_tokenizer(self) -> WordpieceTokenizer:
        """The word-piece step alone, as transformers' slow tokenizer has it."""
        vocab = self._backend.get_vocab(with_added_tokens=False)
        limit = self._backend.model.max_input_chars_per_word
        return WordpieceTokenizer(vocab, self.unk_token or "[UNK]", limit)

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The Rust tokenizer itself, to look at and to change.

        From then on texts go through it even where the C++ form would be faster: that one would not know of changes.
        """
        self._backend_is_known = True
        return self._backend

    _tokenizer = backend_tokenizer

    @property
    def decoder(self) -> Decoder | None:
        """The decoder of the Rust tokenizer."""
        decoder: Decoder | None = self._backend.decoder
        return decoder

    def set_truncation_and_padding(
        self,
        padding_strategy: object,  # names, or the hub's enumeration of them
        truncation_strategy: object,
        max_length: int | None,
        stride: int,
        pad_to_multiple_of: int | None,
        padding_side: Side | None = None,
    ) -> None:
        """Set what `backend_tokenizer.encode` does; calls of this tokenizer bring their own settings and undo it."""
        backend = self.backend_tokenizer
        with rust_errors("Truncation and padding cannot be set"):
            backend.no_truncation()
            backend.no_padding()
            if truncation_strategy != "do_not_truncate":
                backend.enable_truncation(
                    max_length,
                    stride=stride,
                    strategy=str(getattr(truncation_strategy, "value", truncation_strategy)),
                    direction=self.truncation_side,
                )
            if padding_strategy != "do_not_pad":
                backend.enable_padding(
                    direction=padding_side or self.padding_side,
                    pad_id=self._required_pad_id(),
                    pad_type_id=self.pad_token_type_id,
                    pad_token=self.pad_token,
                    length=max_length if padding_strategy == "max_length" else None,
                    pad_to_multiple_of=pad_to_multiple_of,
                )

    # -- not supported: rejected with an error that says so --

    def push_to_hub(self, *args: object, **settings: object) -> NoReturn:
        """Not supported: an error says how to upload a saved folder."""
        raise TokenizerError("push_to_hub is not supported.", "Save, then upload the folder with huggingface_hub.")

    @classmethod
    def register_for_auto_class(cls, auto_class: object = "AutoTokenizer") -> NoReturn:
        """Not supported: an error says so."""
        raise TokenizerError("register_for_auto_class is for code that is uploaded; Bertie's is installed.")


def _shortened(ids: list[int], count: int, side: Side) -> list[int]:
    return ids[count:] if side == "left" else ids[: len(ids) - count]
