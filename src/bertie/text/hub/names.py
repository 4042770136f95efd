"""The tokenizer under transformers 4's two names for it: `BertTokenizerFast`, and what `use_fast=False` asks for there.

In transformers 4 two programs, in Rust and in Python, differ in what scripts can see: `is_fast`, what
`return_overflowing_tokens` gives, the files that saving lists. (transformers 5 has the first only, and calls it
`BertTokenizer`, as here.) `BertTokenizerSlow` is as fast as the others; it answers as the one in Python does.
"""

from __future__ import annotations

from typing import Any

from bertie.text.encoding import BatchEncoding
from bertie.text.tokenizer import BertTokenizer


class BertTokenizerFast(BertTokenizer):
    """WordPiece for BERT, as transformers' class of this name; see `BertTokenizer`."""

    def pad(self, *args: Any, **settings: Any) -> BatchEncoding:
        self._say_once(
            "Asking-to-pad-a-fast-tokenizer",
            "You're using a BertTokenizerFast tokenizer. Please note that with a fast tokenizer, using the `__call__` "
            "method is faster than using a method to encode the text followed by a call to the `pad` method to get a "
            "padded encoding.",
        )
        return super().pad(*args, **settings)


class BertTokenizerSlow(BertTokenizer):
    """WordPiece for BERT, answering as transformers 4's `BertTokenizer`: a text that is cut gives one row and the rest
    of its ids, where the others give several rows."""

    is_fast = False

    def encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **settings: Any) -> BatchEncoding:
        """One text or pair; either may be tokens or ids already."""
        if not isinstance(text, (list, tuple)) or settings.get("is_split_into_words"):
            return super().encode_plus(text, text_pair, *args, **settings)
        pair = None if text_pair is None else self._ids(text_pair)
        settings["prepend_batch_axis"] = settings.get("return_tensors") is not None
        return self.prepare_for_model(self._ids(text), pair, *args, **settings)

    def _ids(self, one: Any) -> list[int]:
        if isinstance(one, str):
            found: list[int] = self(one, add_special_tokens=False, verbose=False)["input_ids"]
            return found
        return [self.convert_tokens_to_ids(item) if isinstance(item, str) else int(item) for item in one]
