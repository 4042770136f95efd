"""Embeddings: texts that belong together are brought together. A `BertModel` with pooling on top.

- contrastive: an anchor's positive against all other positives and hard negatives of the batch, by softmax over scaled
  cosines (Henderson et al. 2017; scale 20 is a temperature of 0.05). A text that is a positive of an
  equal anchor elsewhere in the batch, or the anchor itself, is not used as a negative.
- cosine: the squared difference of the cosine and a score (Reimers & Gurevych 2019).
- cosent: pairs in the order of their scores: log(1 + Σ exp(scale·(cos_j − cos_i))) over all i that score above j.

Contrastive and CoSENT compare the texts of a batch with each other, so their batches are not cut (`whole_batches`). Of
several processes each sees the vectors of all (gathering.py), and the gradient is that of one on the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model import BertModel
from bertie.running.batching import split_by_tokens
from bertie.running.sentence_folder import SentenceSettings
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples
from bertie.training.run.gathering import counts_of_all, rows_of_all, several_processes
from bertie.training.sentence_folder import write_sentence_folder
from bertie.training.tasks.embed_examples import EmbedExample, EmbedExamples
from bertie.training.token_rows import TokenRow, evaluating, pack, run_model

EmbedLoss = Literal["contrastive", "cosine", "cosent"]


class Embedding:
    """`settings` are a sentence-transformers folder's own pooling and stages; `folder` is where they came from."""

    name = "embed"
    greater_is_better = True  # of every figure it has

    def __init__(
        self,
        model: BertModel,
        tokenizer: BertTokenizer,
        *,
        loss: EmbedLoss,
        scale: float = 20.0,
        settings: SentenceSettings | None = None,
        folder: Path | None = None,
        max_length: int | None = None,
        best_metric: str | None = None,
    ) -> None:
        if loss not in get_args(EmbedLoss):
            raise InputError(f"loss is {loss!r}.", f"It takes one of: {', '.join(get_args(EmbedLoss))}.")
        if not scale > 0:
            raise InputError(f"scale is {scale}; it must be above 0.")
        self.model = model
        self.tokenizer = tokenizer
        self.kind = loss
        self.scale = scale
        self.settings = settings or SentenceSettings()
        self.folder = folder
        self.max_length = max_length
        self.whole_batches = loss != "cosine"
        self.best_metric = best_metric or ("mrr" if loss == "contrastive" else "spearman")

    def collate(self, examples: Sequence[EmbedExample]) -> Batch:
        columns = len(examples[0].rows)
        # Anchors first, then positives, then the first negatives …
        tensors = pack([example.rows[column] for column in range(columns) for example in examples])
        tensors["texts"] = torch.from_numpy(np.stack([example.texts for example in examples], axis=1))  # [columns, n]
        tensors["scores"] = torch.tensor([example.score for example in examples])
        return Batch(tensors, float(len(examples)), len(tensors["input_ids"]), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        vectors = F.normalize(self._vectors(model, batch), dim=-1)  # [columns · n, d]
        texts, scores = batch.tensors["texts"], batch.tensors["scores"]
        number = len(scores)
        if self.kind == "cosine":
            cosines = (vectors[:number] * vectors[number : 2 * number]).sum(dim=-1)
            return F.mse_loss(cosines, scores, reduction="sum"), {}
        first, own = 0, number
        if several_processes():
            # A share without examples holds one that does not count; it is nobody's negative.
            own = number if batch.num_examples else 0
            counts = counts_of_all(own, vectors.device)
            rows = vectors.view(len(texts), number, -1).transpose(0, 1)[:own]  # [n, columns, d]
            vectors = rows_of_all(rows, counts).transpose(0, 1).flatten(0, 1)
            texts, scores = rows_of_all(texts.T[:own], counts).T, rows_of_all(scores[:own], counts)
            first, number = sum(counts[: dist.get_rank()]), sum(counts)
        anchors, others = vectors[:number], vectors[number:]
        if self.kind == "contrastive":
            loss = contrastive_loss(anchors[first : first + own], others, texts, scale=self.scale, first=first)
        else:
            cosines = (anchors * others[:number]).sum(dim=-1)
            loss = cosent_loss(cosines, scores, scale=self.scale) * own
        return loss, {}

    def _vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        states: Tensor = run_model(model, batch).last_hidden_state.float()
        pooled = pool_packed(states, batch.tensors["cu_seqlens"], self.settings.pooling.modes)
        for stage in self.settings.stages:
            pooled = stage(pooled)
        return pooled

    def metric_names(self, dev: Examples) -> tuple[str, ...]:
        """What `evaluate` gives."""
        if isinstance(dev, EmbedExamples) and dev.scores is not None:
            return "spearman", "pearson"
        return "mrr", "recall@1", "recall@5", "recall@10"

    def evaluate(
        self, model: nn.Module, examples: Examples, *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        """Correlations of cosines with scores; or, for pairs without, how well anchors find their positives."""
        if not isinstance(examples, EmbedExamples):
            raise InputError(f"Embedding is evaluated on EmbedExamples, not on {type(examples).__name__}.")
        rows = examples.texts
        vectors = torch.empty(0)
        with evaluating(model):
            for indices in split_by_tokens([rows.length(i) for i in range(len(rows))], token_budget):
                texts: list[TokenRow] = [rows[index] for index in indices]
                tensors = pack(texts)
                batch = Batch(tensors, 0.0, len(tensors["input_ids"]), len(texts)).to(device)
                found = F.normalize(self._vectors(model, batch), dim=-1).cpu()
                if not len(vectors):
                    vectors = torch.empty(len(rows), found.shape[1])
                vectors[torch.tensor(indices)] = found
        anchors, positives = torch.from_numpy(examples.table[:, 0]), torch.from_numpy(examples.table[:, 1])
        if examples.scores is not None:
            cosines = (vectors[anchors] * vectors[positives]).sum(dim=-1).numpy()
            return {
                "spearman": metrics.spearman(cosines, examples.scores),
                "pearson": metrics.pearson(cosines, examples.scores),
            }
        return self._retrieval(vectors, examples.table)

    @staticmethod
    def _retrieval(vectors: Tensor, table: metrics.Array) -> dict[str, float]:
        candidates = np.unique(table[:, 1:])
        place = {int(text): number for number, text in enumerate(candidates)}
        right: dict[int, list[int]] = {}
        for anchor, positive in table[:, :2].tolist():
            right.setdefault(anchor, []).append(place[positive])
        anchors = list(right)
        block, sums, pool = 512, dict[str, float](), vectors[torch.from_numpy(candidates)].T
        for start in range(0, len(anchors), block):  # a block of queries at a time: scores are queries × candidates
            some = anchors[start : start + block]
            scores = (vectors[torch.tensor(some)] @ pool).numpy()
            for row, anchor in enumerate(some):  # a text does not look for itself
                if anchor in place and place[anchor] not in right[anchor]:
                    scores[row, place[anchor]] = -np.inf
            for name, value in metrics.retrieval(scores, [sorted(set(right[a])) for a in some]).items():
                sums[name] = sums.get(name, 0.0) + value * len(some) / len(anchors)
        return sums

    def save_extras(self, folder: Path) -> None:
        """The tokenizer, and the files that make the folder a sentence-transformers one."""
        self.tokenizer.save_pretrained(folder)
        write_sentence_folder(
            folder,
            hidden_size=self.model.config.hidden_size,
            pooling=self.settings.pooling,
            max_length=self.max_length,
            source=self.folder,
        )


def pool_packed(states: Tensor, cu_seqlens: Tensor, modes: Sequence[str]) -> Tensor:
    """`[T, hidden]` → `[texts, modes · hidden]`; the modes of running/pooling.py, with gradients."""
    ends = cu_seqlens.to(states.device).long()
    starts, lengths = ends[:-1], ends.diff()
    number = len(lengths)
    segments = torch.repeat_interleave(torch.arange(number, device=states.device), lengths, output_size=len(states))
    counts = lengths[:, None].to(states.dtype)

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(number, values.shape[1]).index_add(0, segments, values)

    pooled = []
    for mode in modes:
        if mode == "cls":
            pooled.append(states[starts])
        elif mode == "lasttoken":
            pooled.append(states[ends[1:] - 1])
        elif mode == "max":
            index = segments[:, None].expand_as(states)
            least = states.new_full((number, states.shape[1]), -torch.inf)
            pooled.append(least.scatter_reduce(0, index, states, "amax"))
        elif mode == "weightedmean":
            places = torch.arange(1, len(states) + 1, device=states.device) - starts[segments]
            weights = places[:, None].to(states.dtype)
            pooled.append(summed(states * weights) / summed(weights))
        else:
            pooled.append(summed(states) / (counts if mode == "mean" else counts.sqrt()))
    return torch.cat(pooled, dim=-1)


def contrastive_loss(anchors: Tensor, candidates: Tensor, texts: Tensor, *, scale: float, first: int = 0) -> Tensor:
    """The sum over anchors. `anchors [n, d]` and `candidates [m, d]` are of unit length; `texts [columns, N]` are the
    text numbers of anchors (first row), positives and negatives. These anchors are `first`, `first` + 1 … of the N, and
    candidate i is the positive of anchor i.
    """
    wanted = torch.arange(first, first + len(anchors), device=anchors.device)
    owners, positives, others = texts[0], texts[1], texts[1:].flatten()  # [N], [N], [m]
    ours = owners[wanted][:, None]  # [n, 1]
    same_anchor = (ours == owners[None, :]).float()  # [n, N]
    is_positive = (positives[:, None] == others[None, :]).float()  # [N, m]
    belongs = (same_anchor @ is_positive > 0) | (ours == others[None, :])
    hidden = belongs & (torch.arange(len(others), device=anchors.device)[None, :] != wanted[:, None])
    with torch.autocast(anchors.device.type, enabled=False):  # twenty cosines' worth of bfloat16 would be too coarse
        scores = (anchors @ candidates.T * scale).masked_fill(hidden, -torch.inf)
    return F.cross_entropy(scores, wanted, reduction="sum")


def cosent_loss(cosines: Tensor, scores: Tensor, *, scale: float) -> Tensor:
    """One number for a batch: log(1 + Σ exp(scale · (cos_j − cos_i))) over the pairs with score i above score j."""
    differences = scale * (cosines[None, :] - cosines[:, None])  # [i, j]
    differences = differences.masked_fill(scores[:, None] <= scores[None, :], -torch.inf)
    return torch.logsumexp(torch.cat([differences.flatten(), differences.new_zeros(1)]), dim=0)
