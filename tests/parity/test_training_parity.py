"""Fifty steps of training beside transformers 4.57.6 and plain PyTorch: the same loss at every step, to 1e-4.

Same start, same order of the data, no dropout. Theirs are padded batches, torch.optim.AdamW, its gradient clipping and
transformers' linear schedule; ours are packed batches cut into micro-batches, sums of losses and the fused optimizer.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertie.training import train
from bertie.training.contract import Batch, Examples
from bertie.training.optim import Schedule
from bertie.training.pretraining.corpus import tokenize_corpus
from bertie.training.pretraining.objective import Pretraining
from bertie.training.pretraining.pairs import SequenceExamples
from bertie.training.registry import load_task
from bertie.training.run.distributed import World
from bertie.training.run.journal import read_metrics
from bertie.training.settings import Settings
from tiny_models import SENTENCES, tiny, tokenizer

STEPS = 50
TOLERANCE = 1e-4
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SETTINGS = Settings(
    max_steps=STEPS, batch_size=8, micro_batch_tokens=60, learning_rate=5e-4, weight_decay=0.05, log_every=1
)


def masked_lm(folder: Path) -> tuple[Any, Examples]:
    text = folder / "corpus.txt"
    chance = random.Random(0)
    lines = [" ".join(chance.sample(SENTENCES, 2)) for _ in range(60)]
    text.write_text("\n\n".join(lines), encoding="utf-8")
    corpus = tokenize_corpus([text], tokenizer(), folder / "ids")
    model = tiny("BertForMaskedLM", **NO_DROPOUT)
    return Pretraining(model, tokenizer()), SequenceExamples.of(corpus, tokenizer(), max_length=40)


def classification(folder: Path) -> tuple[Any, Examples]:
    rows = [{"text": SENTENCES[n % 7][: 10 + n], "label": ("no", "yes", "maybe")[n % 3]} for n in range(40)]
    model = tiny("BertForSequenceClassification", num_labels=3, **NO_DROPOUT)
    made = load_task("classify", model=model, train=rows, tokenizer=tokenizer())
    return made.objective, made.train


def answering(folder: Path) -> tuple[Any, Examples]:
    rows = []
    for number in range(40):
        context = SENTENCES[number % 5]
        word = context.split()[number % 4]
        answers = {"text": [word], "answer_start": [context.index(word)]}
        rows.append({"id": str(number), "question": "Which word is it?", "context": context, "answers": answers})
    model = tiny("BertForQuestionAnswering", **NO_DROPOUT)
    made = load_task("answer", model=model, train=rows, tokenizer=tokenizer())
    return made.objective, made.train


def padded(values: Tensor, batch: Batch, fill: int = 0) -> Tensor:
    lengths = batch.tensors["cu_seqlens"].diff().tolist()
    return pad_sequence(list(torch.split(values, lengths)), batch_first=True, padding_value=fill)


def their_inputs(batch: Batch, task: str) -> dict[str, Tensor]:
    """A packed batch as transformers takes it."""
    tensors = batch.tensors
    given = {
        "input_ids": padded(tensors["input_ids"], batch),
        "token_type_ids": padded(tensors["token_type_ids"], batch),
        "attention_mask": padded(torch.ones_like(tensors["input_ids"]), batch),
    }
    starts = tensors["cu_seqlens"][:-1].long()
    if task == "mlm":
        labels = torch.full_like(tensors["input_ids"], -100)
        labels[tensors["masked_positions"]] = tensors["labels"]
        return given | {"labels": padded(labels, batch, fill=-100)}
    if task == "answer":
        return given | {"start_positions": tensors["starts"] - starts, "end_positions": tensors["ends"] - starts}
    return given | {"labels": tensors["labels"]}


def their_parts(batch: Batch, task: str) -> list[tuple[dict[str, Tensor], float]]:
    """What to give to transformers, with the units of each. Its answers compete with padding, so they come singly."""
    inputs = their_inputs(batch, task)
    if task != "answer":
        return [(inputs, batch.units)]
    lengths = batch.tensors["cu_seqlens"].diff().tolist()
    parts = []
    for row, length in enumerate(lengths):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        parts.append(({name: v[:, :length] if v.dim() == 2 else v for name, v in alone.items()}, 1.0))
    return parts


TASKS = {
    "mlm": (masked_lm, "BertForMaskedLM"),
    "classify": (classification, "BertForSequenceClassification"),
    "answer": (answering, "BertForQuestionAnswering"),
}


@pytest.mark.parametrize("task", TASKS)
def test_fifty_steps_lose_as_transformers_does(tmp_path: Path, task: str) -> None:
    make, name = TASKS[task]
    objective, examples = make(tmp_path)
    config = transformers.BertConfig(**objective.model.config.to_dict())
    config._attn_implementation = "eager"
    theirs = getattr(transformers, name)(config)
    theirs.load_state_dict(objective.model.state_dict())
    batches: list[Batch] = []
    original = objective.loss

    def record(model: Any, batch: Batch) -> Any:
        batches.append(batch)
        return original(model, batch)

    objective.loss = record
    train(objective, examples, None, SETTINGS, tmp_path / "run", world=World(), show=False)
    ours = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert len(ours) == STEPS
    assert len(batches) > STEPS, "steps should be cut into micro-batches"

    decayed = [p for n, p in theirs.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    others = [p for n, p in theirs.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}], lr=5e-4
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 5, STEPS)
    theirs.train()
    feed = iter(batches)
    worst = 0.0
    for step in range(STEPS):
        parts = [next(feed)]
        while sum(batch.num_examples for batch in parts) < _size(step, len(examples)):
            parts.append(next(feed))
        units = sum(batch.units for batch in parts)
        total = 0.0
        for batch in parts:
            for inputs, share in their_parts(batch, task):
                # Theirs is a mean over this part; the mean over the step weighs it by what it is a mean over.
                loss = theirs(**inputs).loss * (share / units)
                loss.backward()
                total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        worst = max(worst, abs(total - ours[step]))
    print(f"{task}: loss {ours[0]:.3f} → {ours[-1]:.3f}, largest difference in {STEPS} steps {worst:.1e}")
    assert ours[-1] < ours[0]
    assert worst <= TOLERANCE


def _size(step: int, num_examples: int) -> int:
    """Examples of a step: eight, or what is left at the end of an epoch."""
    per_epoch = -(-num_examples // 8)
    return min(8, num_examples - 8 * (step % per_epoch))


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "polynomial"])
def test_schedules_are_transformers_own(name: Any) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    theirs = {
        "linear": lambda: transformers.get_linear_schedule_with_warmup(optimizer, 10, 100),
        "cosine": lambda: transformers.get_cosine_schedule_with_warmup(optimizer, 10, 100),
        "constant": lambda: transformers.get_constant_schedule_with_warmup(optimizer, 10),
        "polynomial": lambda: transformers.get_polynomial_decay_schedule_with_warmup(optimizer, 10, 100, 1e-5, 2.0),
    }[name]()
    final = 1e-5 if name == "polynomial" else 0.0
    ours = Schedule(name, peak=1e-3, num_steps=100, num_warmup=10, final=final, power=2.0)
    for step in range(100):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9, abs=1e-15)
        optimizer.step()
        theirs.step()
