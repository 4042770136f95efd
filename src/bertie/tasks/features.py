"""A vector for every token from chosen layers: what Google's `extract_features.py` writes.

    for token in features("A text.").tokens:
        print(token.token, token.vector(-1).shape)

    json.dumps(features(line, model="bert-base-uncased").to_google_json())       a line of its jsonl, key for key

The model is bertie-mini, which is small and came with this package, unless another is named.

Source: google-research/bert `extract_features.py`. As there, layers are counted without the embeddings (0 is the first
encoder layer, −1 the last), "a ||| b" is a pair, a pair that is too long loses tokens from the end of its longer text
(of the second when they are equal), and numbers are rounded to 6 places. `max_length` is 128 there, here the model's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from bertie.answers import Features, TokenFeatures
from bertie.arguments import is_whole, one_of
from bertie.defaults import default_language_model
from bertie.errors import InputError
from bertie.model import BertModel
from bertie.running.open import ModelLike
from bertie.running.rows import DEFAULT_STRIDE, LONG, Cuts, Long, Row, TextOrPair, both, split_text_or_pair
from bertie.running.task import PairTask, RowTask, RunSettings, function_of

GOOGLE_LAYERS = (-1, -2, -3, -4)
Floats = NDArray[np.float32]


class Tokens(NamedTuple):
    """The tokens of an item, and where each is read: in which row, at which place."""

    names: list[str]
    places: list[tuple[int, int]]
    is_cut: bool


class FeatureExtractor(RowTask[TextOrPair, Tokens, Floats, Features], PairTask[Features]):
    """`Features` of a text, or of a pair (a tuple, or "a ||| b"); a list for a list, an iterator for an iterator.

    `layers` are the last four by default, last first, as in Google's script; fewer where the model has fewer. Texts
    longer than `max_length` are cut as Google's script does, with a warning, read in windows that overlap by `stride`
    tokens (`long="windows"`: every token's vector is from the window where it has most context), or refused
    (`long="error"`).
    """

    name: ClassVar[str] = "features"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        layers: Sequence[int] | None = None,
        max_length: int | None = None,
        long: Long = "truncate",
        stride: int = DEFAULT_STRIDE,
        **settings: Unpack[RunSettings],
    ) -> None:
        one_of("long", long, LONG)
        # Hidden states need no pooler, and checkpoints of masked-word models have none.
        self.open(model, BertModel, settings, default=default_language_model, add_pooling_layer=False)
        self.max_length = self.loaded.checked_length(max_length)
        self.layers = read_layers(layers, self.loaded.config.num_hidden_layers)
        self.long, self.stride = long, stride

    def checked(self, item: object, where: str) -> TextOrPair:
        first, second = both(super().checked(item, where))
        return split_at_bars(first) if second is None else (first, second)

    def stream(self, items: Iterable[TextOrPair]) -> Iterator[Features]:
        for index, found in enumerate(super().stream(items)):
            yield replace(found, index=index)

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.max_length)

    def tokenized(self, items: list[TextOrPair], cuts: Cuts) -> Iterator[tuple[Tokens, list[Row]]]:
        for item in items:
            tokens, rows = self._windows(item) if self.long == "windows" else self._truncated(item)
            if tokens.is_cut:
                cuts.refuse(item)
            cuts.count(int(tokens.is_cut), 1)
            yield tokens, rows

    def _windows(self, item: TextOrPair) -> tuple[Tokens, list[Row]]:
        windows = split_text_or_pair(self.loaded.tokenizer, item, max_length=self.max_length, stride=self.stride)
        best = windows.best_places()
        names = [windows.whole.tokens[token] for token, _, _ in best]
        return Tokens(names, [(window, place) for _, window, place in best], False), windows.rows

    def _truncated(self, item: TextOrPair) -> tuple[Tokens, list[Row]]:
        tokenizer = self.loaded.tokenizer
        first, second = both(item)
        a: list[int] = tokenizer.encode(first, add_special_tokens=False)
        b: list[int] | None = None if second is None else tokenizer.encode(second, add_special_tokens=False)
        room = self.max_length - tokenizer.num_special_tokens_to_add(pair=b is not None)
        if room < 0:
            raise InputError(
                "{max_length:is} the special tokens alone do not fit.",
                "Allow for more tokens.",
                max_length=self.max_length,
            )
        num_a, num_b = google_pair_sizes(len(a), 0 if b is None else len(b), room)
        is_cut = num_a < len(a) or (b is not None and num_b < len(b))
        a, b = a[:num_a], None if b is None else b[:num_b]
        row = Row(
            tokenizer.build_inputs_with_special_tokens(a, b),
            None if b is None else tokenizer.create_token_type_ids_from_sequences(a, b),
        )
        names = tokenizer.convert_ids_to_tokens(row.ids)
        return Tokens(names, [(0, place) for place in range(len(row))], is_cut), [row]

    def start(self, rows: list[Row]) -> Callable[[], list[Floats]]:
        """`[layers, length, hidden]` for each row, copied at once: states are too large to wait on a GPU."""
        states = self.loaded.run(rows, output_hidden_states=True).hidden_states[1:]  # without the embeddings
        chosen = torch.stack([states[layer] for layer in self.layers], dim=1).float().cpu()  # [tokens, layers, hidden]
        # Copies, so that one text kept does not keep its whole batch.
        return lambda: [part.transpose(0, 1).contiguous().numpy() for part in self.loaded.split(chosen, rows)]

    def decode(self, context: Tokens, judged: list[Floats]) -> Features:
        vectors = [judged[window][:, place] for window, place in context.places]  # each [layers, hidden]
        found = (
            TokenFeatures(name, tuple(zip(self.layers, of_token, strict=True)))
            for name, of_token in zip(context.names, vectors, strict=True)
        )
        return Features(0, tuple(found), context.is_cut)


features = function_of(FeatureExtractor, "features")


def read_layers(layers: int | Iterable[int] | None, num_layers: int) -> tuple[int, ...]:
    """Layer numbers as they were given, each checked: from −n to n−1 for a model of n layers."""
    if layers is None:
        return GOOGLE_LAYERS[:num_layers]
    found = (layers,) if isinstance(layers, int) else tuple(layers)
    if not found:
        raise InputError("layers is empty.", "Name at least one; -1 is the last.")
    for layer in found:
        if not is_whole(layer, -num_layers, num_layers - 1):
            raise InputError(
                f"Layer {layer!r} does not exist: the model has {num_layers}.",
                f"Use {-num_layers} to {num_layers - 1}; 0 is the first layer and -1 the last.",
            )
    return found


def split_at_bars(text: str) -> TextOrPair:
    """A pair from "a ||| b", by Google's rule; any other text as it is.

    >>> split_at_bars("who? ||| she")
    ('who?', 'she')
    """
    match = re.match(r"^(.*) \|\|\| (.*)$", text.strip())
    return text if match is None else (match[1], match[2])


def google_pair_sizes(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """How many tokens of A and B stay when tokens are taken, one at a time, from the longer, from B if they are equal.

    >>> google_pair_sizes(10, 4, 9), google_pair_sizes(10, 12, 9)
    ((5, 4), (5, 4))
    """
    if num_a + num_b <= room:
        return num_a, num_b
    shorter = min(num_a, num_b)
    if shorter <= room // 2:
        return (room - num_b, num_b) if num_a > num_b else (num_a, room - num_a)
    return (room + 1) // 2, room // 2
