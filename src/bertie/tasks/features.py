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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertie.answers import Features, TokenFeatures
from bertie.defaults import default_language_model
from bertie.errors import InputError
from bertie.model import BertModel
from bertie.running.batching import Row, run_groups
from bertie.running.inputs import PairTask, TextOrPair, checked_choice, checked_count
from bertie.running.long_texts import LONG, Cuts, Long
from bertie.running.open import ModelLike, open_model
from bertie.running.rows import DEFAULT_STRIDE, split_text_or_pair
from bertie.text import BertTokenizer

GOOGLE_LAYERS = (-1, -2, -3, -4)
Floats = NDArray[np.float32]
Places = list[tuple[int, int]]  # (window, place in it)


class FeatureExtractor(PairTask[Features]):
    """`features` with its model and settings fixed."""

    name: ClassVar[str] = "features"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        layers: Sequence[int] | None = None,
        max_length: int | None = None,
        long: Long = "truncate",
        stride: int = DEFAULT_STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_choice("long", long, LONG)
        checked_count("max_length", max_length, none_means="the model's")
        # Hidden states need no pooler, and checkpoints of masked-word models have none.
        self.loaded = open_model(
            model,
            BertModel,
            task=self.name,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            default=default_language_model() if model is None else None,
            add_pooling_layer=False,
        )
        limit = self.loaded.max_length
        if max_length is not None and max_length > limit:
            raise InputError(f"max_length is {max_length}; the model takes {limit} tokens.", "Ask for no more.")
        self.max_length = limit if max_length is None else max_length
        self.layers = read_layers(layers, self.loaded.model.config.num_hidden_layers)
        self.long, self.stride = long, stride

    def checked(self, item: Any, where: str) -> TextOrPair:
        checked = super().checked(item, where)
        return split_at_bars(checked) if isinstance(checked, str) else checked

    def stream(self, items: Iterable[TextOrPair]) -> Iterator[Features]:
        with Cuts(self.long, self.max_length).told() as cuts:

            def rows() -> Iterator[tuple[tuple[list[str], Places], list[Row]]]:
                for item in items:
                    found = self.rows(item)
                    if found[1][0].is_cut:
                        cuts.refuse(item)
                    cuts.note(found[1][0].is_cut)
                    yield found

            for index, (tokens, states) in enumerate(run_groups(rows(), self.run, budget=self.loaded.budget)):
                yield self.decode(tokens, states, index=index, truncated=cuts.next_is_cut())

    def decode(
        self, tokens: tuple[list[str], Places], states: Sequence[Floats], *, index: int = 0, truncated: bool = False
    ) -> Features:
        """The features of the text with that number, from what `run` gave for its rows."""
        names, places = tokens
        vectors = [states[window][:, place] for window, place in places]  # each [layers, hidden]
        return Features(
            index,
            tuple(
                TokenFeatures(name, tuple(zip(self.layers, of_token, strict=True)))
                for name, of_token in zip(names, vectors, strict=True)
            ),
            truncated,
        )

    def rows(self, item: TextOrPair) -> tuple[tuple[list[str], Places], list[Row]]:
        """The tokens and where each is read, and the rows."""
        tokenizer = self.loaded.tokenizer
        if self.long == "windows":
            windows = split_text_or_pair(tokenizer, item, max_length=self.max_length, stride=self.stride)
            best = windows.best_places()
            tokens = [windows.whole.tokens[token] for token, _, _ in best]
            return (tokens, [(window, place) for _, window, place in best]), windows.rows
        first, second = item if isinstance(item, tuple) else (item, None)
        a: list[int] = tokenizer.encode(first, add_special_tokens=False)
        b: list[int] | None = None if second is None else tokenizer.encode(second, add_special_tokens=False)
        room = self.max_length - tokenizer.num_special_tokens_to_add(pair=b is not None)
        if room < 0:
            raise InputError(
                f"max_length is {self.max_length}: the special tokens alone do not fit.", "Allow for more tokens."
            )
        num_a, num_b = google_pair_sizes(len(a), 0 if b is None else len(b), room)
        is_cut = num_a < len(a) or (b is not None and num_b < len(b))
        a, b = a[:num_a], None if b is None else b[:num_b]
        row = Row(
            tokenizer.build_inputs_with_special_tokens(a, b),
            None if b is None else tokenizer.create_token_type_ids_from_sequences(a, b),
            is_cut,
        )
        return (tokenizer.convert_ids_to_tokens(row.ids), [(0, place) for place in range(len(row))]), [row]

    def run(self, rows: list[Row]) -> list[Floats]:
        """`[layers, length, hidden]` for each row."""
        states = self.loaded.run(rows, output_hidden_states=True).hidden_states[1:]  # without the embeddings
        chosen = torch.stack([states[layer] for layer in self.layers], dim=1).float().cpu()  # [tokens, layers, hidden]
        # Copies, so that one text kept does not keep its whole batch.
        return [part.transpose(0, 1).contiguous().numpy() for part in self.loaded.split(chosen, rows)]


def features(
    texts: Any,
    *,
    model: ModelLike | None = None,
    layers: Sequence[int] | None = None,
    max_length: int | None = None,
    long: Long = "truncate",
    stride: int = DEFAULT_STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """`Features` of a text, or of a pair (a tuple, or "a ||| b"); a list for a list, an iterator for an iterator.

    `layers` are the last four by default, last first, as in Google's script; fewer where the model has fewer. Texts
    longer than `max_length` are cut as Google's script does, with a warning, read in windows that overlap by `stride`
    tokens (`long="windows"`: every token's vector is from the window where it has most context), or refused
    (`long="error"`).
    """
    task = FeatureExtractor(
        model,
        layers=layers,
        max_length=max_length,
        long=long,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(texts, progress=progress)


def read_layers(layers: Any, num_layers: int) -> tuple[int, ...]:
    """Layer numbers as they were given, each checked: from −n to n−1 for a model of n layers."""
    if layers is None:
        return GOOGLE_LAYERS[:num_layers]
    found = (layers,) if isinstance(layers, int) else tuple(layers)
    if not found:
        raise InputError("layers is empty.", "Name at least one; -1 is the last.")
    for layer in found:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -num_layers <= layer < num_layers:
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
