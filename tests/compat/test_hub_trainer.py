"""transformers' Trainer trains, evaluates, predicts, saves and resumes our models as it does its own."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertie
from compat.hub_cases import HEADS, inputs, labels, settings
from parity.oracle import TINY, difference, pair

pytest.importorskip("accelerate", reason="Trainer needs accelerate")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

# The batches of one run: 16 rows of 6 tokens, 4 at a time.
ROWS, LENGTH = 16, 6
# Trainer hands save_pretrained the weights and the format.
SAVES = "state_dict" in inspect.signature(bertie.BertModel.save_pretrained).parameters


def rows(name: str) -> list[dict[str, Any]]:
    columns = inputs(name, ROWS, LENGTH) | labels(name, ROWS, LENGTH)
    # A column the model has no argument for: Trainer drops it by looking at the signature.
    return [{key: value[number] for key, value in columns.items()} | {"idx": number} for number in range(ROWS)]


def trainer(model: Any, name: str, folder: Path, **changes: Any) -> transformers.Trainer:
    values: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    arguments = transformers.TrainingArguments(output_dir=str(folder), **values | changes)
    return transformers.Trainer(model, arguments, train_dataset=rows(name), eval_dataset=rows(name))


def history(of: transformers.Trainer) -> list[float]:
    return [entry[key] for entry in of.state.log_history for key in ("loss", "grad_norm", "eval_loss") if key in entry]


def check_same_run(name: str, folder: Path, **changes: Any) -> Any:
    """Train, evaluate and predict with both; gives our model as it came out."""
    theirs, ours = pair(name, attention="sdpa", **settings(name))
    found = []
    for model, where in ((theirs, "theirs"), (ours, "ours")):
        run = trainer(model, name, folder / where, **changes)
        run.train()
        losses = history(run)
        evaluated = run.evaluate()
        predictions = run.predict(rows(name)).predictions
        first = predictions[0] if isinstance(predictions, tuple) else predictions
        found.append(([*losses, evaluated["eval_loss"]], torch.from_numpy(first)))
    (their_losses, their_first), (our_losses, our_first) = found
    assert len(their_losses) >= 9
    assert our_losses == pytest.approx(their_losses, abs=1e-5)
    assert difference(their_first, our_first) <= 1e-5
    for (parameter, wanted), got in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert difference(wanted, got) <= 1e-5, parameter
    return ours


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForQuestionAnswering", "BertLMHeadModel"])
def test_a_run_is_the_hubs_run(name: str, tmp_path: Path) -> None:
    check_same_run(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_heads_run_is_the_hubs_run(name: str, tmp_path: Path) -> None:
    # With steps in several parts the hub's next-sentence head adds their losses up instead of averaging.
    parts = 1 if name == "BertForNextSentencePrediction" else 2
    check_same_run(name, tmp_path, gradient_accumulation_steps=parts, lr_scheduler_type="cosine", warmup_steps=1)


def test_next_sentence_steps_in_several_parts_are_averaged(tmp_path: Path) -> None:
    """The hub says that its head divides by `num_items_in_batch`, and does not: losses come out once for each part."""
    theirs, ours = pair("BertForNextSentencePrediction", attention="sdpa")
    first = []
    for model, parts in ((theirs, 1), (theirs, 2), (ours, 1), (ours, 2)):
        changes = {"per_device_train_batch_size": 4 // parts, "gradient_accumulation_steps": parts, "max_steps": 1}
        run = trainer(copy.deepcopy(model), "BertForNextSentencePrediction", tmp_path, **changes)
        run.train()
        first.append(history(run)[0])
    assert first[1] == pytest.approx(2 * first[0], abs=1e-3)
    assert first[2] == pytest.approx(first[0], abs=1e-5)
    assert first[3] == pytest.approx(first[0], abs=1e-5)


@pytest.mark.skipif(not SAVES, reason="save_pretrained does not take the hub's keywords yet")
@pytest.mark.parametrize("name", ["BertForMaskedLM"])
def test_checkpoints_hold_the_configuration_and_runs_resume(name: str, tmp_path: Path) -> None:
    trained = check_same_run(name, tmp_path, save_strategy="steps", save_steps=2)
    saved = [sorted(f.name for f in (tmp_path / who / "checkpoint-2").iterdir()) for who in ("theirs", "ours")]
    assert saved[0] == saved[1]
    assert "config.json" in saved[1]
    _, fresh = pair(name, **settings(name))
    again = trainer(fresh, name, tmp_path / "again", save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-2"))
    for wanted, got in zip(trained.parameters(), fresh.parameters(), strict=True):
        assert difference(wanted, got) <= 1e-5
    loaded = getattr(bertie, name).from_pretrained(tmp_path / "ours" / "checkpoint-4").eval()
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "ours" / "checkpoint-4").eval()
    batch = inputs(name, 2, LENGTH)
    assert difference(theirs(**batch).logits, loaded(**batch).logits) <= 1e-5


def test_dropped_labels_give_no_loss(tmp_path: Path) -> None:
    """What Trainer does for a data set without labels: predictions, and no `eval_loss`."""
    model = bertie.BertForSequenceClassification(bertie.BertConfig(**TINY))
    run = trainer(model, "BertForSequenceClassification", tmp_path)
    unlabelled = [{key: value for key, value in row.items() if key != "labels"} for row in run.eval_dataset]
    assert "eval_loss" not in run.evaluate(unlabelled)
    assert "eval_loss" in run.evaluate()
