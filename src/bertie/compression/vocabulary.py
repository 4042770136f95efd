"""Tokens that a corpus never uses, taken out of a model and its tokenizer: exactly, without any loss on what stays.

WordPiece cuts a word by taking the longest piece it knows, again and again. A piece that some word of the corpus uses
was the longest there, and stays so when others go. So every word whose pieces are all kept is cut as before, its pieces
keep their vectors, and its answers keep their bits. What is kept:

- every piece that the corpus uses, and the special and added tokens;
- the pieces of one character, at the start of a word and inside it, of the scripts that the corpus is written in: a
  word that the corpus does not have is then spelled out, and is not lost as [UNK]. Of Han and Hangul only characters
  that occur: there are thousands of them.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from torch import nn

from bertie.errors import InputError
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer

Model = TypeVar("Model", bound=BertPreTrainedModel)

_AT_ONCE = 4096  # texts
_LARGE_SCRIPTS = {"CJK", "HANGUL"}


@dataclass(frozen=True)
class Trimmed:
    """A tokenizer with fewer tokens, and the old id of each of them."""

    tokenizer: BertTokenizer
    kept: tuple[int, ...]


def trim(tokenizer: BertTokenizer, corpus: Iterable[str]) -> Trimmed:
    """The tokenizer without what the texts of `corpus` do not need; ids stay in their order."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if state["model"]["type"] != "WordPiece":
        raise InputError(
            f"The tokenizer is a {state['model']['type']}; a vocabulary is trimmed for WordPiece alone.",
            "Leave {vocab_from} out.",
            vocab_from=...,
        )
    used = _used(tokenizer, corpus)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    kept = used | {token["id"] for token in state["added_tokens"]} | special
    words = used - special
    written = {character for piece, i in vocabulary.items() if i in words for character in piece}
    scripts = set(map(_script, written)) - _LARGE_SCRIPTS
    kept |= {i for piece, i in vocabulary.items() if (one := _character(piece)) and _script(one) in scripts}
    order = sorted(kept)
    new = {old: number for number, old in enumerate(order)}
    state["model"]["vocab"] = {piece: new[i] for piece, i in state["model"]["vocab"].items() if i in new}
    for token in state["added_tokens"]:
        token["id"] = new[token["id"]]
    _renumber(state["post_processor"], new)
    # Padding and truncation belong to calls, and not to the vocabulary.
    made = Tokenizer.from_str(json.dumps(state | {"padding": None, "truncation": None}))
    settings = {name: value for name, value in tokenizer.init_kwargs.items() if value is not None}
    settings.pop("do_basic_tokenize", None)
    settings |= {"tokenizer_object": made, "check_case": False}
    smaller = type(tokenizer)(**settings)  # type: ignore[arg-type]  # what init_kwargs gives
    return Trimmed(smaller, tuple(order))


def _used(tokenizer: BertTokenizer, corpus: Iterable[str]) -> set[int]:
    used: set[int] = set()
    rest = iter(corpus)
    while texts := list(islice(rest, _AT_ONCE)):
        used.update(*tokenizer.encode_ids(texts))
    if not used - set(tokenizer.all_special_ids):
        raise InputError(
            "{vocab_from} holds no text.", "Give texts of the kind the model is going to read.", vocab_from=...
        )
    return used


def _character(piece: str) -> str:
    """The one character of a piece that is no more than that, or nothing."""
    bare = piece.removeprefix("##")
    return bare if len(bare) == 1 else ""


@cache
def _script(character: str) -> str:
    """The first word of a character's name in Unicode, which is its script: LATIN, CYRILLIC, CJK, DIGIT …"""
    return unicodedata.name(character, "?").partition(" ")[0]


def _renumber(processor: object, new: dict[int, int]) -> None:
    """The ids of special tokens in a template, wherever it has them."""
    match processor:  # JSON
        case dict():
            for name, value in processor.items():
                match name, value:
                    case "ids", list():
                        processor[name] = [new[i] for i in value]
                    case "sep" | "cls", [token, i]:
                        processor[name] = [token, new[i]]
                    case _:
                        _renumber(value, new)
        case list():
            for value in processor:
                _renumber(value, new)


def with_tokens(model: Model, kept: Sequence[int]) -> Model:
    """A copy with the rows of these tokens alone, in this order: word embeddings, and a head's matrix and bias."""
    smaller = copy.deepcopy(model)
    config, old = smaller.config, smaller.get_input_embeddings()
    rows = torch.tensor([i for i in kept if i < old.num_embeddings], device=old.weight.device)
    decoder = smaller.get_output_embeddings()
    pad = config.pad_token_id
    new_pad = None if pad is None or pad not in kept else list(kept).index(pad)
    table = nn.Embedding(len(rows), old.embedding_dim, padding_idx=new_pad, device="meta")
    table.weight = nn.Parameter(old.weight.detach()[rows].clone())
    bias = None if decoder is None or decoder.bias is None else nn.Parameter(decoder.bias.detach()[rows].clone())
    if decoder is not None:
        weight = table.weight if config.tie_word_embeddings else nn.Parameter(decoder.weight.detach()[rows].clone())
        made = nn.Linear(old.embedding_dim, len(rows), bias=bias is not None, device="meta")
        made.weight = weight
        made.register_parameter("bias", bias)
    for name in ("bos_token_id", "eos_token_id", "decoder_start_token_id"):
        token = getattr(config, name)
        setattr(config, name, list(kept).index(token) if token in kept else None)
    config.pad_token_id, config.vocab_size = new_pad, len(rows)
    smaller.set_input_embeddings(table)
    if decoder is not None:
        smaller.set_output_embeddings(made)
    smaller.tie_weights()
    return smaller
