"""Masked words, with or without next sentences: `BertForMaskedLM` and `BertForPreTraining`, both with a sparse head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model import BertForMaskedLM, BertForPreTraining
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples, TextObjective, batches_of, evaluating, run_model
from bertie.training.pretraining.masking import MaskRules, mask_tokens
from bertie.training.pretraining.pairs import PretrainingExample
from bertie.training.task import check_vocabulary_fits
from bertie.training.token_rows import pack


class Pretraining(TextObjective[PretrainingExample]):
    """Units are masked words. The vocabulary is scored at those only.

    A `BertForPreTraining` learns next sentences as well. Its loss is the mean over masked words plus the mean over
    pairs, as Google's; so that sums over batches stay sums, a pair weighs `words_per_pair`, the number of masked words
    that a pair has on average, whatever the batch.
    """

    name = "pretrain"
    evaluates_like_training = True

    def __init__(
        self,
        model: BertForMaskedLM | BertForPreTraining,
        tokenizer: BertTokenizer,
        *,
        rules: MaskRules | None = None,
        words_per_pair: float | None = None,
    ) -> None:
        super().__init__(model, tokenizer, best_metric="loss")
        self.rules = rules or MaskRules.of(tokenizer)
        self.pairs = isinstance(model, BertForPreTraining)
        if self.pairs and words_per_pair is None:
            raise InputError("BertForPreTraining was given without words_per_pair.", "Use average_predictions().")
        self.words_per_pair = words_per_pair or 0.0
        check_vocabulary_fits(self.rules.vocab_size, model)

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        tensors = pack([example.row for example in examples])
        lengths = tensors["cu_seqlens"].diff().long().numpy()
        keys = np.fromiter((example.key for example in examples), dtype=np.uint64, count=len(examples))
        masked = mask_tokens(tensors["input_ids"].numpy(), lengths, keys, self.rules)
        tensors["input_ids"] = torch.from_numpy(masked.ids)
        tensors["masked_positions"] = torch.from_numpy(masked.positions)
        tensors["labels"] = torch.from_numpy(masked.labels)
        if self.pairs:
            if any(example.is_random is None for example in examples):
                raise InputError("BertForPreTraining learns from pairs; these examples are none.", "Use make_pairs().")
            tensors["next_labels"] = torch.tensor([example.is_random for example in examples])
        return Batch(tensors, float(len(masked.labels)), len(masked.ids), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        words, relationships = self._logits(model, batch)
        total = word_loss(words, batch.tensors["labels"])
        if relationships is not None:
            pairs = F.cross_entropy(relationships, batch.tensors["next_labels"], reduction="sum")
            total = total + self.words_per_pair * pairs
        return total, {}

    def _logits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """`[masked, vocabulary]`, and `[pairs, 2]` or None."""
        output = run_model(model, batch, masked_positions=batch.tensors["masked_positions"])
        if not self.pairs:
            return output["logits"], None
        return output["prediction_logits"], output["seq_relationship_logits"].float()

    def evaluate(
        self, model: nn.Module, examples: Examples[PretrainingExample], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        """Masks are those of epoch 0, so evaluations can be compared with each other."""
        sums: dict[str, float] = dict.fromkeys(("loss", "right", "words", "next_loss", "next_right", "pairs"), 0.0)
        with evaluating(model):
            for _, batch in batches_of(self, examples, token_budget=token_budget, device=device):
                words, relationships = self._logits(model, batch)
                words, labels = words.float(), batch.tensors["labels"]
                sums["loss"] += float(F.cross_entropy(words, labels, reduction="sum"))
                sums["right"] += float((words.argmax(dim=-1) == labels).sum())
                sums["words"] += len(labels)
                if relationships is not None:
                    follows = batch.tensors["next_labels"]
                    sums["next_loss"] += float(F.cross_entropy(relationships, follows, reduction="sum"))
                    sums["next_right"] += float((relationships.argmax(dim=-1) == follows).sum())
                    sums["pairs"] += len(follows)
        words_seen, pairs_seen = max(1.0, sums["words"]), max(1.0, sums["pairs"])
        figures = {
            "loss": sums["loss"] / words_seen + sums["next_loss"] / pairs_seen,
            "mlm_loss": sums["loss"] / words_seen,
            "mlm_accuracy": sums["right"] / words_seen,
            "perplexity": metrics.perplexity(sums["loss"], sums["words"]),
        }
        if self.pairs:
            figures |= {
                "nsp_loss": sums["next_loss"] / pairs_seen,
                "nsp_accuracy": sums["next_right"] / pairs_seen,
            }
        return figures


def word_loss(words: Tensor, labels: Tensor) -> Tensor:
    """The sum of cross-entropies over masked words; of bfloat16 scores on a GPU by our own kernel."""
    if words.is_cuda and words.dtype == torch.bfloat16:
        from bertie.engine.gpu.training.vocabulary_loss import cross_entropy_sum

        return cross_entropy_sum(words, labels)
    return F.cross_entropy(words.float(), labels, reduction="sum")


def average_predictions(lengths: metrics.Array, rules: MaskRules) -> float:
    """Masked words per example, on average: what a pair weighs beside them."""
    return float(rules.num_predictions(np.asarray(lengths, dtype=np.int64)).mean())
