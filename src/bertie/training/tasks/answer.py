"""Where an answer starts and ends: `BertForQuestionAnswering`, judged by the spans `bertie.answer` would find."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertie.data.squad_scoring import best_threshold, score_squad
from bertie.errors import InputError
from bertie.model import BertForQuestionAnswering
from bertie.running.stream import run_groups
from bertie.tasks.answer import Floats, SpanRules, find_spans
from bertie.text import BertTokenizer, Window, WindowedDocument, split_document
from bertie.training.contract import Batch, Examples
from bertie.training.tasks.answer_examples import AnswerExample, AnswerExamples
from bertie.training.token_rows import TokenRow, evaluating, pack, run_model


class Answering:
    """The mean of two cross-entropies, over the places where an answer may start and end. Units are windows."""

    name = "answer"
    greater_is_better = True  # of every figure it has

    def __init__(
        self,
        model: BertForQuestionAnswering,
        tokenizer: BertTokenizer,
        *,
        max_answer_tokens: int = 30,
        best_metric: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_answer_tokens = max_answer_tokens
        self.best_metric = best_metric or "f1"

    def collate(self, examples: Sequence[AnswerExample]) -> Batch:
        tensors = pack([example.row for example in examples])
        ends = tensors["cu_seqlens"].long()
        lengths = ends.diff()
        tensors["text_ids"] = torch.repeat_interleave(torch.arange(len(examples)), lengths)  # [T]
        # Positions among all packed tokens, so that a gold logit is one index away.
        tensors["starts"] = ends[:-1] + torch.tensor([example.start for example in examples])
        tensors["ends"] = ends[:-1] + torch.tensor([example.end for example in examples])
        return Batch(tensors, float(len(examples)), len(tensors["input_ids"]), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        output, tensors = run_model(model, batch), batch.tensors
        losses = [
            segment_cross_entropy(logits.float(), tensors["text_ids"], tensors[name])
            for logits, name in ((output.start_logits, "starts"), (output.end_logits, "ends"))
        ]
        return (losses[0] + losses[1]) / 2, {}

    def metric_names(self, dev: Examples) -> tuple[str, ...]:
        """What `evaluate` gives, but for the threshold, by which nothing is judged."""
        unanswerable = isinstance(dev, AnswerExamples) and any(not question.answers for question in dev.questions)
        return ("f1", "exact", *(("best_f1", "has_answer_f1", "no_answer_exact") if unanswerable else ()))

    def evaluate(
        self, model: nn.Module, examples: Examples, *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        """SQuAD's figures in percent: with "no answer" as a possible verdict where the data has such questions."""
        if not isinstance(examples, AnswerExamples):
            raise InputError(f"Answering is evaluated on AnswerExamples, not on {type(examples).__name__}.")
        questions = examples.questions
        unanswerable = any(not question.answers for question in questions)
        rules = SpanRules(n_best=1, max_tokens=self.max_answer_tokens)
        predictions: dict[str, str] = {}
        differences: dict[str, float] = {}

        def documents() -> Iterator[tuple[tuple[str, WindowedDocument], Sequence[Window]]]:
            for question in questions:
                document = split_document(
                    self.tokenizer,
                    question.context,
                    question=question.question,
                    max_length=examples.max_length,
                    stride=examples.stride,
                )
                yield (question.id, document), document.windows

        def run(windows: list[Window]) -> list[tuple[Floats, Floats]]:
            rows = [TokenRow(np.asarray(w.input_ids), w.token_type_ids.count(0)) for w in windows]
            batch = Batch(pack(rows), 0.0, sum(map(len, windows)), len(windows)).to(device)
            output = run_model(model, batch)
            both = torch.stack((output.start_logits, output.end_logits), dim=-1).float().cpu()  # [tokens, 2]
            parts = torch.split(both, [len(window) for window in windows])
            return [(part[:, 0].numpy(), part[:, 1].numpy()) for part in parts]

        with evaluating(model):
            for (identity, document), logits in run_groups(documents(), run, budget=token_budget):
                decoded = find_spans(document, logits, rules, null=unanswerable)
                best_span = decoded.spans[0] if decoded.spans else None
                predictions[identity] = document.quote(best_span.first, best_span.last) if best_span else ""
                differences[identity] = decoded.null_logit - best_span.logit if best_span else math.inf
        score = score_squad(questions, predictions, null_differences=differences if unanswerable else None)
        figures = {"exact": score.exact, "f1": score.f1}
        if unanswerable:
            best = best_threshold(questions, predictions, differences)
            figures |= {"best_f1": best.score, "best_f1_threshold": best.threshold}
            figures |= {"no_answer_exact": score.no_answer_exact or 0.0, "has_answer_f1": score.has_answer_f1 or 0.0}
        return {name: float(np.nan_to_num(value, posinf=1e30, neginf=-1e30)) for name, value in figures.items()}

    def save_extras(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def segment_cross_entropy(logits: Tensor, segments: Tensor, targets: Tensor) -> Tensor:
    """The sum of cross-entropies of packed `[T]` logits, each text over its own tokens; `targets` are places in `[T]`.

    >>> logits = torch.tensor([0.0, 0.0, 5.0])
    >>> float(segment_cross_entropy(logits, torch.tensor([0, 0, 1]), torch.tensor([0, 2])).exp())
    2.0
    """
    num_texts = len(targets)
    highest = logits.new_full((num_texts,), -torch.inf).scatter_reduce(0, segments, logits.detach(), "amax")
    masses = logits.new_zeros(num_texts).index_add(0, segments, (logits - highest[segments]).exp())
    return (masses.log() + highest - logits[targets]).sum()
