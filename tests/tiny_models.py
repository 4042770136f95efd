"""Small random models with a real tokenizer, as objects or as folders: what the tests of the tasks run on."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

import bertie
from bertie.text import BertTokenizer, train_vocabulary

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Paris is the capital of France; Berlin is the capital of Germany.",
    "She opened the door, looked into the room and found nothing at all.",
    "Nobody expected the film to be good, but it was unbelievably good.",
    "Grüße aus Köln! Das Wetter ist schön, 漢字 and 😀 are here too.",
    "Stocks fell on Monday as investors worried about rising prices.",
    "What is the answer to the question about life and everything else?",
]
# Short, empty, one token, accents, CJK, emoji, and more than the model takes.
TEXTS = [*SENTENCES, "", "dog", "   ", "漢字 😀", "the dog and the fox " * 30, SENTENCES[1] * 6]
MAX_LENGTH = 48


@cache
def tokenizer() -> BertTokenizer:
    return train_vocabulary(SENTENCES * 3, vocab_size=300, min_frequency=1, model_max_length=MAX_LENGTH)


def tiny(name: str, *, seed: int = 0, **config: Any) -> Any:
    """A model of the class called `name`, every weight of it random and large enough to matter."""
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": MAX_LENGTH,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    model = getattr(bertie, name)(bertie.BertConfig.from_dict(values | config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def saved(folder: Path, name: str, *, seed: int = 0, **config: Any) -> str:
    """A folder with a tiny model and its tokenizer, as anyone's checkpoint is."""
    tiny(name, seed=seed, **config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def random_batches(items: list[Any], *, count: int, seed: int = 0) -> list[list[int]]:
    """Lists of indices: random selections in random order."""
    chance = random.Random(seed)
    return [[chance.randrange(len(items)) for _ in range(chance.randint(1, 12))] for _ in range(count)]
