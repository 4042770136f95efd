"""Small random models with a real tokenizer, for the tasks that judge tokens, and texts that are hard to quote."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

import bertie
from bertie.running.open import OpenModel
from bertie.text import BertTokenizer, train_vocabulary

PROSE = (
    "Ännchen von Tharau ist's, die mir gefällt; sie ist mein Leben, mein Gut und mein Geld. "
    "Ada Lovelace wrote the first program for the analytical engine of Charles Babbage in London. "
    "Who wrote it? When, where and why? The café in New York is run by Mr. O'Brien. 漢字 漢 字 東京 😀 €5"
)

HARD_TEXTS = [
    "Ännchen von Tharau ist's",
    "Cafe\u0301 gefa\u0308llt mir, naïve Ada",
    "Ada\tLovelace\n\nLondon",
    "New  York   is  it",
    "漢字東京 Ada漢字London",
    "Ada 😀😀 London 👩‍👩‍👧 Charles",
    "  leading and trailing  ",
    "zero\u200bwidth and soft\u00adhyphen, nul\x00led",
    "€5 (five) -- [MASK] and [SEP] in the text",
    "lone \ud800 surrogate\udfff",
    "İstanbul ﬁve ß ΣΑΣ",
    "unaffable" * 12,
]

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@cache
def small_tokenizer(lowercase: bool = True) -> BertTokenizer:
    return train_vocabulary([PROSE, *HARD_TEXTS], vocab_size=260, min_frequency=1, lowercase=lowercase)


def small_model(name: str, *, seed: int = 0, positions: int = 64, **config: Any) -> Any:
    """A random model whose answers differ much from token to token."""
    torch.manual_seed(seed)
    values = {
        "vocab_size": len(small_tokenizer()),
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 36,
        "max_position_embeddings": positions,
        "initializer_range": 0.4,
        **config,
    }
    model = getattr(bertie, name)(bertie.BertConfig.from_dict(values)).eval()
    with torch.no_grad():  # words weigh more than what all tokens have in common, which would decide for all of them
        model.base_model.embeddings.word_embeddings.weight.mul_(5)
    return model


def loaded(name: str, **config: Any) -> OpenModel:
    return OpenModel(small_model(name, **config), small_tokenizer())


def answering(**config: Any) -> OpenModel:
    return loaded("BertForQuestionAnswering", **config)


def tagging(labels: tuple[str, ...] = LABELS, **config: Any) -> OpenModel:
    return loaded("BertForTokenClassification", id2label=dict(enumerate(labels)), **config)


def saved(folder: Path, model: Any, tokenizer: BertTokenizer | None = None) -> Path:
    model.save_pretrained(folder)
    (tokenizer or small_tokenizer()).save_pretrained(folder)
    return folder
