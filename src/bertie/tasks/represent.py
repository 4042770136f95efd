"""All that a retrieval model says of a text in one pass: a dense vector, weighted words, and a vector for each token.

    found = represent("A text.", model="bge-m3", vectors=("dense", "sparse", "multi"))
    found.dense, found.sparse, found.multi

What a checkpoint can give is told by its files:

    dense     every encoder: what `embed` gives, by the folder's own pooling and normalising
    sparse    BGE-M3 (`sparse_linear.pt`: a weight for each token of the text), or SPLADE, which is a masked-word model:
              the words that its head would put anywhere in the text, max over the tokens of log(1 + relu(logit))
    multi     BGE-M3 (`colbert_linear.pt`) and ColBERT (`linear.weight`): each token's state, projected, of length 1;
              ColBERT reads queries otherwise than documents (running/colbert.py), and has no dense form

Sources: Chen et al. 2024 (BGE-M3, https://arxiv.org/abs/2402.03216), Formal et al. 2021 (SPLADE v2,
https://arxiv.org/abs/2109.10086), Khattab & Zaharia 2020 (ColBERT, https://arxiv.org/abs/2004.12832).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.answers import Representation
from bertie.arguments import one_of, one_or_several
from bertie.checkpoint.open_checkpoint import Checkpoint, open_checkpoint
from bertie.checkpoint.torch_bin import BinFile
from bertie.errors import CheckpointError, InputError, WeightsMismatch
from bertie.family import kind_of
from bertie.loading import model_class
from bertie.model import BertForMaskedLM, BertForPreTraining
from bertie.running.colbert import METADATA, Colbert, read_colbert
from bertie.running.open import open_model
from bertie.running.pooling import Pieces, pool
from bertie.running.rows import Cuts, Row, truncated_rows
from bertie.running.task import RowTask, TextTask, function_of
from bertie.tasks.embed import Embedder

KINDS = ("dense", "sparse", "multi")
SPARSE, MULTI, COLBERT = "sparse_linear.pt", "colbert_linear.pt", "linear.weight"
_TOKENS_AT_ONCE = 256  # of a SPLADE's logits, each as long as the vocabulary


@dataclass(frozen=True)
class Projection:
    """A linear layer beside a checkpoint, over every token's state."""

    weight: Tensor  # [out, hidden]
    bias: Tensor | None

    def __call__(self, states: Tensor) -> Tensor:
        return F.linear(states.float(), self.weight, self.bias)

    def to(self, device: torch.device) -> Projection:
        return Projection(self.weight.to(device), None if self.bias is None else self.bias.to(device))


class Representer(RowTask[str, bool, Representation, Representation], TextTask[Representation]):
    """Dense, sparse and multi-vector representations of texts.

    `vectors` selects them; by default all that the checkpoint has a head for. Requesting another one is an error that
    lists those it has. `query` says that the texts are queries, which ColBERT reads differently from documents. Texts
    longer than the model's limit are cut with a warning, or rejected (`long="error"`).
    """

    name: ClassVar[str] = "represent"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        vectors: str | Sequence[str] | None = None,
        query: bool = False,
        long: str = "truncate",
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        one_of("long", long, ("truncate", "error"))
        if model is None:
            raise InputError("represent needs a model.", "Name a folder with a retrieval checkpoint, or a hub name.")
        self.long = long
        checkpoint = open_checkpoint(model, also=(SPARSE, MULTI, METADATA), with_companions=True)
        sparse, multi = read_projections(checkpoint)
        self.words: Callable[[Tensor], Tensor] | None = None
        if sparse is None and kind_of(model_class(checkpoint)) in (BertForMaskedLM, BertForPreTraining):
            opened = open_model(model, BertForMaskedLM, task=self.name, device=device, dtype=dtype)
            self.words = cast("Callable[[Tensor], Tensor]", opened.model.cls)
        is_colbert = COLBERT in checkpoint.tensors.info
        has = [name for name, there in zip(KINDS, (not is_colbert, sparse or self.words, multi), strict=True) if there]
        self.vectors = tuple(has) if vectors is None else one_or_several(vectors)
        for name in self.vectors:
            one_of("vectors", name, KINDS)
        if missing := [name for name in self.vectors if name not in has]:
            raise InputError(
                f"{{vectors}}: {model} has no head for {' and '.join(missing)} ({SPARSE}, {MULTI} or {COLBERT}).",
                f"It has {', '.join(has)}.",
                accepted=tuple(has),
                vectors=",".join(self.vectors),
            )
        self.embedder = Embedder(model, device=device, dtype=dtype)
        self.loaded, self.max_length = self.embedder.loaded, self.embedder.max_length
        self.colbert: Colbert | None = None
        if is_colbert:
            tokens, longest = self.loaded.tokenizer, self.max_length
            self.colbert = read_colbert(checkpoint.folder, tokens, longest=longest, query=query)
            self.max_length = self.colbert.room
        self.sparse, self.multi = (x and x.to(self.loaded.device) for x in (sparse, multi))
        tokens = self.loaded.tokenizer
        roles = (tokens.cls_token_id, tokens.sep_token_id, tokens.pad_token_id, tokens.unk_token_id)
        self.unweighted = {index for index in (*roles, tokens.eos_token_id) if index is not None}

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.max_length)

    def tokenized(self, items: list[str], cuts: Cuts) -> Iterator[tuple[bool, list[Row]]]:
        texts = self.embedder.cutting().prepared(items)
        rows = truncated_rows(self.loaded.tokenizer, texts, max_length=self.max_length)
        for item, row in zip(items, rows, strict=True):
            if row.is_cut:
                cuts.refuse(item)
            cuts.count(int(row.is_cut), 1)
            yield row.is_cut, [row if self.colbert is None else self.colbert.marked(row)]

    @torch.inference_mode()
    def start(self, rows: list[Row]) -> Callable[[], list[Representation]]:
        if self.colbert is not None:
            assert self.multi is not None  # read_projections found it
            states_of = zip(rows, self.colbert.states(self.loaded, rows), strict=True)
            vectors = [F.normalize(self.multi(part[self.colbert.kept(row)]), dim=-1) for row, part in states_of]
            return lambda: [Representation(None, None, found.cpu().numpy()) for found in vectors]
        states: Tensor = self.loaded.run(rows).last_hidden_state
        dense: Sequence[np.ndarray | None] = [None] * len(rows)
        if "dense" in self.vectors:
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            pieces = Pieces.of_texts(np.concatenate([np.asarray(row.ids) for row in rows]), lengths)
            pooled = pool(states, pieces, self.embedder.pooling.modes)
            dense = list(self.embedder.finished(pooled, pieces).float().cpu().numpy())
        found = []
        for row, part, vector in zip(rows, self.loaded.split(states, rows), dense, strict=True):
            sparse = self._weights(row, part) if "sparse" in self.vectors else None
            multi = None
            if "multi" in self.vectors and self.multi is not None:
                multi = F.normalize(self.multi(part[1:]), dim=-1).cpu().numpy()  # that of [CLS] is the dense one
            found.append(Representation(vector, sparse, multi))
        return lambda: found

    def _weights(self, row: Row, states: Tensor) -> dict[int, float]:
        """Ids of the vocabulary → how much they weigh in the text; those above 0."""
        if self.sparse is not None:
            weights = F.relu(self.sparse(states))[:, 0].tolist()
            found: dict[int, float] = {}
            for index, weight in zip(row.ids, weights, strict=True):
                if weight > found.get(index, 0.0) and index not in self.unweighted:
                    found[index] = weight
            return found
        assert self.words is not None
        parts = torch.tensor_split(states, -(-len(states) // _TOKENS_AT_ONCE))
        most = torch.stack([self.words(part).amax(0) for part in parts]).amax(0)
        best = most.float().relu().log1p().cpu()  # both grow with the logit, so the largest may come first
        return {int(index): float(best[index]) for index in best.nonzero()[:, 0]}

    def decode(self, context: bool, judged: list[Representation]) -> Representation:
        (found,) = judged
        return replace(found, truncated=context)


represent = function_of(Representer, "represent")


def read_projections(checkpoint: Checkpoint) -> tuple[Projection | None, Projection | None]:
    """The layers over single tokens that lie beside a checkpoint: for weights of words, and for multi-vectors."""
    read = partial(_projection, checkpoint.folder)
    sparse, multi = read(SPARSE), read(MULTI)
    if multi is None and COLBERT in checkpoint.tensors.info:
        multi = Projection(checkpoint.tensors.read(COLBERT).float(), None)
    if sparse is not None and len(sparse.weight) != 1:
        raise WeightsMismatch(f"{checkpoint.folder / SPARSE} gives {len(sparse.weight)} numbers per token, not one.")
    hidden = checkpoint.config.get("hidden_size", checkpoint.config.get("dim"))
    for name, layer in ((SPARSE, sparse), (MULTI, multi)):
        if layer is not None and layer.weight.shape[1] != hidden:
            raise WeightsMismatch(
                f"{checkpoint.folder}: {name} takes states of {layer.weight.shape[1]}; the model's have {hidden}.",
                "The two belong to different models: fetch both again.",
            )
    return sparse, multi


def _projection(folder: Path, name: str) -> Projection | None:
    path = folder / name
    if not path.is_file():
        return None
    file = BinFile(path)
    if "weight" not in file.entries or len(file.entries["weight"].shape) != 2:
        raise CheckpointError(f"{path} holds no weight of a linear layer.", "Fetch the file again.")
    bias = file.tensor("bias").float() if "bias" in file.entries else None
    return Projection(file.tensor("weight").float(), bias)


def max_sim(query: np.ndarray, document: np.ndarray) -> float:
    """ColBERT's score: for each of the query's vectors the best of the document's, added up. `[q, d]` and `[n, d]`."""
    return float((query @ document.T).max(axis=1).sum()) if len(query) and len(document) else 0.0
