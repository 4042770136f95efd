"""Running one small program on both libraries and comparing what it returns, whatever that is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import bertie

_LINE = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat on mat ##s ##ing ##ed run jump over lazy quick brown fox good "
    "bad movie was is not very great i love this who what paris london capital of france it . , ! ? ##er ##e"
)
WORDS = _LINE.split()
TEXTS = ["The cat sat on the mat.", "I love this movie, it was great!", "a quick brown fox", "bad", "Paris is not it?"]
LABELS = torch.tensor([0, 1, 1, 0, 1])
Case = Callable[[Any, str, Path], Any]  # the library, a checkpoint, an empty folder


def checkpoint(folder: Path) -> str:
    """A small random BertForPreTraining of transformers, with its tokenizer."""
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=36,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    )  # fmt: skip
    transformers.BertForPreTraining(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=40).save_pretrained(folder)
    return str(folder)


def batch(lib: Any, source: str) -> Any:
    return lib.BertTokenizerFast.from_pretrained(source)(TEXTS, padding=True, return_tensors="pt")


def model(lib: Any, source: str, name: str = "BertModel", **options: Any) -> Any:
    torch.manual_seed(3)
    return getattr(lib, name).from_pretrained(source, **options).eval()


def assert_same(case: Case, source: str, folder: Path) -> None:
    found = []
    for lib in (transformers, bertie):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        (place := folder / lib.__name__).mkdir()
        try:
            found.append(case(lib, source, place))
        except Exception as error:
            found.append(error)
    wanted, ours = found
    if isinstance(wanted, Exception):  # ours has that type or is a kind of it
        assert isinstance(ours, type(wanted)), (wanted, ours)
        return
    if isinstance(ours, Exception):
        raise ours
    _compare(wanted, ours, "result")


def _compare(wanted: Any, ours: Any, where: str) -> None:
    if isinstance(wanted, torch.Tensor | np.ndarray):
        assert type(wanted) is type(ours), where
        assert (wanted.shape, wanted.dtype) == (ours.shape, ours.dtype), where
        a, b = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (wanted, ours))
        np.testing.assert_allclose(b, a, atol=5e-5, rtol=1e-4, err_msg=where)
    elif isinstance(wanted, Mapping):
        assert list(wanted) == list(ours), where
        for key in wanted:
            _compare(wanted[key], ours[key], f"{where}[{key!r}]")
    elif isinstance(wanted, list | tuple):
        assert len(wanted) == len(ours), f"{where}: {wanted} and {ours}"
        for number, (a, b) in enumerate(zip(wanted, ours, strict=True)):
            _compare(a, b, f"{where}[{number}]")
    elif isinstance(wanted, float):
        assert abs(wanted - ours) <= 1e-4 * max(1.0, abs(wanted)), f"{where}: {wanted} and {ours}"
    else:
        assert wanted == ours, f"{where}: {wanted!r} and {ours!r}"
