"""The tokenizer under transformers 4's two names for it: `BertTokenizerFast`, and what `use_fast=False` asks for there.

In transformers 4 two programs, in Rust and in Python, differ in what scripts can see: `is_fast`, what
`return_overflowing_tokens` gives, the files that saving lists. (transformers 5 has the first only, and calls it
`BertTokenizer`, as here.) `BertTokenizerSlow` is as fast as the others; it answers as the one in Python does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack, cast

from bertie.errors import TokenizerError
from bertie.text.encoding import BatchEncoding
from bertie.text.text_to_ids import CallSettings, Inputs, Texts, named_settings
from bertie.text.tokenizer import BertTokenizer

_OF_TEXTS = ("is_split_into_words", "split_special_tokens")
_PADDING = ("padding", "pad_to_multiple_of", "padding_side", "return_attention_mask")


class BertTokenizerFast(BertTokenizer):
    """WordPiece for BERT, as transformers' class of this name; see `BertTokenizer`."""

    def pad(
        self, encoded_inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]], *args: Any, **settings: Any
    ) -> BatchEncoding:
        self._say_once(
            "Asking-to-pad-a-fast-tokenizer",
            "You're using a BertTokenizerFast tokenizer. Please note that with a fast tokenizer, using the `__call__` "
            "method is faster than using a method to encode the text followed by a call to the `pad` method to get a "
            "padded encoding.",
        )
        return super().pad(encoded_inputs, *args, **settings)


class BertTokenizerSlow(BertTokenizer):
    """WordPiece for BERT, answering as transformers 4's `BertTokenizer`: a text that is cut gives one row and the rest
    of its ids, where the others give several rows."""

    is_fast = False

    def encode_plus(
        self,
        text: Texts | list[int],
        text_pair: Texts | list[int] | None = None,
        *args: object,
        **settings: Unpack[CallSettings],
    ) -> BatchEncoding:
        """One text or pair; either may be tokens or ids already."""
        settings = named_settings(args, settings)
        if not isinstance(text, (list, tuple)) or settings.get("is_split_into_words"):
            return super().encode_plus(cast(Texts, text), cast("Texts | None", text_pair), **settings)
        of_ids: dict[str, Any] = {name: value for name, value in settings.items() if name not in _OF_TEXTS}
        of_ids["prepend_batch_axis"] = settings.get("return_tensors") is not None
        return self.prepare_for_model(self._ids(text), None if text_pair is None else self._ids(text_pair), **of_ids)

    def _ids(self, one: Texts | list[int]) -> list[int]:
        if isinstance(one, str):
            return self.encode(one, add_special_tokens=False, verbose=False)
        return [self.convert_tokens_to_ids(item) if isinstance(item, str) else int(cast(int, item)) for item in one]

    def _with_overflowing_tokens(self, inputs: Inputs, settings: dict[str, Any]) -> BatchEncoding:
        """A row to a text and the ids that were cut off, as transformers 4's tokenizer in Python has it."""
        if settings.pop("return_offsets_mapping"):
            raise TokenizerError(
                "A slow tokenizer does not give return_offsets_mapping and return_overflowing_tokens together.",
                "Leave use_fast=False out, or take a BertTokenizerFast.",
            )
        by_text = {name: settings.pop(name) for name in _OF_TEXTS}
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
