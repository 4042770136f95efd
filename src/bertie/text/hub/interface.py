"""What else code written for `transformers` asks of a tokenizer: the older calls, ids instead of texts, odd properties.

Everything here is a few lines over `BertTokenizer`; start there. `isinstance(tokenizer, PreTrainedTokenizerBase)` holds
where `transformers` has been imported by somebody else (`hub_class`): its Trainer, collators, datasets and
sentence-transformers choose by it. It is never imported here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, NoReturn, Self

from tokenizers import AddedToken, Tokenizer
from tokenizers.trainers import WordPieceTrainer

from bertie.errors import TokenizerError, TokenizerTypeError
from bertie.text.arguments import Inputs, plan_truncation
from bertie.text.backend import rust_errors
from bertie.text.encoding import BatchEncoding
from bertie.text.folder import SPECIAL_ROLES
from bertie.text.hub.chat import ChatTemplates
from bertie.text.parts import parts_from_backend
from bertie.text.special_tokens import ADDITIONAL
from bertie.text.tokens import TokenTable
from bertie.text.truncation import shorten_ids
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
def both(ours: Any, theirs: Any) -> type:
    """A class that says it is both. It is asked for its bases and its name only; calling it makes one of ours."""
    names = {name: getattr(ours, name) for name in ("from_pretrained", "__module__", "__doc__")}
    names["__new__"] = lambda cls, *args, **settings: ours(*args, **settings)
    return type(ours.__name__, (ours, theirs), names)


def blank(cls: Any) -> Any:
    """For unpickling: a tokenizer that has nothing yet."""
    return cls.__new__(cls)


class HubInterface(ChatTemplates, TokenTable):
    """The rest of the hub's tokenizer. `BertTokenizer` is built on it."""

    can_save_slow_tokenizer = True
    add_prefix_space = False
    do_basic_tokenize = True
    vocab_files_names: ClassVar = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        ours: Any = type(self)
        theirs = hub_class(self.is_fast)
        return ours if theirs is None else both(ours, theirs)

    def __reduce__(self) -> tuple[Any, ...]:
        # What was said already stays behind: datasets finds its cache by these bytes, and a log line should not matter.
        return blank, (type(self),), self.__dict__ | {"deprecation_warnings": {}}

    # -- texts --

    def __call__(self, *args: Any, **settings: Any) -> BatchEncoding:
        raise NotImplementedError

    def encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **settings: Any) -> BatchEncoding:
        """One text or pair; settings as for calling the tokenizer, which does the same."""
        if args:
            settings = dict(zip(_ENCODE_ARGUMENTS, args, strict=False)) | settings
        is_words = settings.get("is_split_into_words") and isinstance(text, (list, tuple))
        if not isinstance(text, str) and not is_words:
            raise TokenizerTypeError(
                f"encode_plus() takes one text, not {type(text).__name__}.",
                "Several go to batch_encode_plus(), words to is_split_into_words=True.",
            )
        return self(text, text_pair, **settings)

    def batch_encode_plus(self, batch_text_or_text_pairs: Any, *args: Any, **settings: Any) -> BatchEncoding:
        """A list of texts or of pairs; settings as for calling the tokenizer, which does the same."""
        if args:
            settings = dict(zip(_ENCODE_ARGUMENTS, args, strict=False)) | settings
        if not isinstance(batch_text_or_text_pairs, (list, tuple)):
            raise TokenizerTypeError(
                f"batch_encode_plus() takes a list, not {type(batch_text_or_text_pairs).__name__}.",
                "One text goes to encode_plus().",
            )
        if settings.get("is_split_into_words") and not batch_text_or_text_pairs:
            return self([], **(settings | {"is_split_into_words": False}))
        return self(batch_text_or_text_pairs, **settings)

    def prepare_seq2seq_batch(
        self,
        src_texts: list[str],
        tgt_texts: list[str] | None = None,
        max_length: int | None = None,
        max_target_length: int | None = None,
        padding: Any = "longest",
        return_tensors: str | None = None,
        truncation: Any = True,
        **settings: Any,
    ) -> BatchEncoding:
        """Source texts, and target texts as `labels`; the two may have different lengths."""
        for language in ("src_lang", "tgt_lang"):
            settings.pop(language, None)
        settings |= {"padding": padding, "truncation": truncation, "return_tensors": return_tensors}
        inputs = self(src_texts, max_length=max_length, **settings)
        if tgt_texts is not None:
            inputs["labels"] = self(tgt_texts, max_length=max_target_length or max_length, **settings)["input_ids"]
        return inputs

    @contextmanager
    def as_target_tokenizer(self) -> Iterator[None]:
        """Texts inside are target texts, which BERT tokenizes like any other."""
        yield

    # -- ids --

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
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
        """Ids without special tokens, shortened; the third list holds what was removed, `stride` tokens before it."""
        return shorten_ids(
            ids, pair_ids, num_tokens_to_remove, truncation_strategy, stride=stride, side=self.truncation_side
        )

    def prepare_for_model(
        self,
        ids: list[int],
        pair_ids: list[int] | None = None,
        add_special_tokens: bool = True,
        padding: Any = False,
        truncation: Any = None,
        max_length: int | None = None,
        stride: int = 0,
        pad_to_multiple_of: int | None = None,
        padding_side: Any = None,
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
        plan = plan_truncation(
            truncation,
            padding=padding,
            max_length=max_length,
            stride=stride,
            side=self.truncation_side,
            model_max_length=self.model_max_length,
        )
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

    def pad(self, *args: Any, **settings: Any) -> BatchEncoding:
        raise NotImplementedError

    def _with_overflowing_tokens(self, inputs: Inputs, settings: Any) -> BatchEncoding:
        """A row to a text and the ids that were cut off, as transformers 4's tokenizer in Python has it.

        The others cut a text into several rows instead.
        """
        if settings.pop("return_offsets_mapping"):
            raise TokenizerError(
                "A slow tokenizer does not give return_offsets_mapping and return_overflowing_tokens together.",
                "Leave use_fast=False out, or take a BertTokenizerFast.",
            )
        by_text = {name: settings.pop(name) for name in ("is_split_into_words", "split_special_tokens")}
        padding = {name: settings.pop(name) for name in _PADDING}
        tensors = settings.pop("return_tensors")
        if settings["truncation"] is None and padding["padding"] is not False:  # a length to fill up to, not to cut to
            settings["truncation"] = False
        rows = []
        for one in inputs.rows:
            first, second = one if inputs.paired else (one, None)
            ids, pair_ids = (
                None if text is None else self(text, add_special_tokens=False, verbose=False, **by_text)["input_ids"]
                for text in (first, second)
            )
            rows.append(self.prepare_for_model(ids or [], pair_ids, **settings, return_attention_mask=False))
        columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {"input_ids": []}
        padded = self.pad(columns, max_length=settings["max_length"], **padding)
        if not inputs.batched and tensors is None:
            padded = BatchEncoding({name: column[0] for name, column in padded.items()})
        return padded.convert_to_tensors(tensors)

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

    # -- what the hub's tokenizers have --

    @property
    def vocab(self) -> dict[str, int]:
        return self.get_vocab()

    @property
    def ids_to_tokens(self) -> dict[int, str]:
        return {index: token for token, index in self.get_vocab().items()}

    def _convert_id_to_token(self, index: int) -> Any:  # transformers' whole-word collator asks for this one
        return self.convert_ids_to_tokens(int(index))

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
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
    def decoder(self) -> Any:
        return self._backend.decoder

    def set_truncation_and_padding(
        self,
        padding_strategy: Any,
        truncation_strategy: Any,
        max_length: int | None,
        stride: int,
        pad_to_multiple_of: int | None,
        padding_side: Any = None,
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

    def train_new_from_iterator(
        self,
        text_iterator: Iterable[Any],
        vocab_size: int,
        length: int | None = None,
        new_special_tokens: list[str | AddedToken] | None = None,
        special_tokens_map: dict[str, str] | None = None,
        **trainer: Any,
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
            if (token := settings[role]) is not None:
                settings[role] = renamed.get(str(token), str(token))
        settings[ADDITIONAL] = [renamed.get(t, t) for t in self.additional_special_tokens or ()] + new
        settings["never_split"] = [word for word in self.never_split if learner.token_to_id(word) is not None]
        trained = type(self).__new__(type(self))
        TokenTable.__init__(trained, parts_from_backend(learner, settings))
        trained.chat_template = self.chat_template
        return trained

    # -- refused by name --

    def push_to_hub(self, *args: Any, **settings: Any) -> NoReturn:
        raise TokenizerError("push_to_hub is not supported.", "Save, then upload the folder with huggingface_hub.")

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoTokenizer") -> NoReturn:
        raise TokenizerError("register_for_auto_class is for code that is uploaded; Bertie's is installed.")


_PADDING = ("padding", "pad_to_multiple_of", "padding_side", "return_attention_mask")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# encode_plus and batch_encode_plus after the texts, in the hub's order.
_ENCODE_ARGUMENTS = (
    "add_special_tokens",
    "padding",
    "truncation",
    "max_length",
    "stride",
    "is_split_into_words",
    "pad_to_multiple_of",
    "padding_side",
    "return_tensors",
    "return_token_type_ids",
    "return_attention_mask",
    "return_overflowing_tokens",
    "return_special_tokens_mask",
    "return_offsets_mapping",
    "return_length",
    "verbose",
)
