"""A smaller model learns from the original: what is left after a cut makes up for what is gone, by gradient descent.

Tasks that are fine-tuned are trained as `finetune` does it with a teacher (training/distillation.py): labels, the
original's logits and its states. Plain texts have no labels: there the original's vectors, or its words for [MASK], are
what is learned, beside its states. The model starts next to the original, so there is no dropout: it would only add
noise to states that are to be matched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.compression.layers import construction_of
from bertie.compression.targets import PlainTexts, Target
from bertie.model import BertModel
from bertie.model.pretrained import BertPreTrainedModel
from bertie.training.contract import Batch, Examples, RowExamples, TextObjective, run_model
from bertie.training.distillation import Weights, even_layers
from bertie.training.fine_tuning import finetune, set_dropout
from bertie.training.run.checkpoint import seed_everything
from bertie.training.run.distributed import world
from bertie.training.run.loop import train as train_loop
from bertie.training.settings import Settings
from bertie.training.task import TaskOptions
from bertie.training.token_rows import TokenRow, fingerprint

_WEIGHTS = Weights(task=0.5, logits=1.0, hidden=1.0)
_RATE = 1e-4


@dataclass(frozen=True)
class Lesson:
    """What the smaller model learns from: the original's folder, and the data in the form that `finetune` takes."""

    task: str
    teacher: str
    data: object
    train: object
    epochs: float
    options: TaskOptions | None = None
    seed: int = 42


def distilled(
    target: Target, student: BertPreTrainedModel, lesson: Lesson, scratch: str, say: Callable[[str], None]
) -> BertPreTrainedModel:
    """The student after it has learned, on a GPU where there is one."""
    before, after = Path(scratch, "student"), Path(scratch, "learned")
    config = student.config
    say(f"learning from the original for {lesson.epochs:g} epoch{'' if lesson.epochs == 1 else 's'} …")
    settings = Settings(epochs=lesson.epochs, learning_rate=_RATE, seed=lesson.seed)
    if isinstance(target, PlainTexts):
        learner = copy.deepcopy(student)
        set_dropout(learner, hidden=0.0, attention=0.0)
        objective = AnswersOfOriginal(target, learner)
        with world() as here:
            seed_everything(lesson.seed)
            train_loop(objective, TextRows(target.rows), None, settings, after, world=here, show=False)
    else:
        student.save_pretrained(before)
        target.save_extras(before)
        weights = replace(_WEIGHTS, logits=0.0) if isinstance(student, BertModel) else _WEIGHTS
        finetune(
            lesson.task, model=before, train=lesson.train, dev=lesson.data, output=after, settings=settings,
            options=lesson.options, teacher=lesson.teacher, distillation=weights, dropout=0.0, attention_dropout=0.0,
            show=False,
        )  # fmt: skip
    learned: BertPreTrainedModel = type(student).from_pretrained(after, **construction_of(student))
    set_dropout(learned, hidden=config.hidden_dropout_prob, attention=config.attention_probs_dropout_prob)
    return learned.eval()


class TextRows(RowExamples[TokenRow]):
    """Texts without labels."""

    def get(self, index: int, epoch: int) -> TokenRow:
        return self.rows[index]

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays())


class AnswersOfOriginal(TextObjective[TokenRow]):
    """The original's answers to plain texts, and its states, are what is learned."""

    def __init__(self, target: PlainTexts, student: BertPreTrainedModel) -> None:
        super().__init__(student, target.tokenizer, name="distill", best_metric=target.metric)
        self.target = target
        self.teacher = copy.deepcopy(target.model).requires_grad_(False).eval()
        self.layers = even_layers(student.config.num_hidden_layers, self.teacher.config.num_hidden_layers)

    def collate(self, examples: Sequence[TokenRow]) -> Batch:
        return self.target.batch(examples)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        device = batch.tensors["input_ids"].device
        if self.teacher.device != device:
            self.teacher.to(device)
        with torch.no_grad():
            wanted = run_model(self.teacher, batch, output_hidden_states=True)
        found = run_model(model, batch, output_hidden_states=True)
        states = [
            F.mse_loss(found["hidden_states"][place].float(), wanted["hidden_states"][layer].float())
            for place, layer in enumerate((0, *self.layers))
        ]
        off = self.target.difference(self.target.read(found, batch), self.target.read(wanted, batch))
        return batch.units * (off + torch.stack(states).mean()), {}

    def evaluate(
        self, model: nn.Module, examples: Examples[TokenRow], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        return {self.best_metric: self.target.score(self.model)}

    def save_extras(self, folder: Path) -> None:
        self.target.save_extras(folder)
