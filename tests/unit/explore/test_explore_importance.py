"""Importance over data: gradients row by row, leaving out is evaluating without, files with faults are named."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.errors import DataError, InputError
from bertie.explore import Switches, importance, switched
from bertie.training.registry import load_task
from explore_sessions import VARIANTS, model_of
from tiny_models import SENTENCES, tokenizer

LABELLED = [{"text": text, "label": number % 3} for number, text in enumerate(SENTENCES)]
DATA: dict[str, Any] = {
    "fill": SENTENCES,
    "next": [{"text_a": a, "text_b": b, "label": 0} for a, b in pairwise(SENTENCES)],
    "classify": LABELLED,
    "tag": [
        {"tokens": ["Paris", "is", "good"], "tags": ["B-X", "O", "I-X"]},
        {"tokens": ["the", "dog", "sleeps"], "tags": ["O", "B-Y", "I-Y"]},
    ],
    "answer": [
        {
            "id": "1",
            "question": "What is it?",
            "context": SENTENCES[1],
            "answers": {"text": ["Paris"], "answer_start": [0]},
        }
    ],
    "choice": [
        {"question": "She opened the", "choices": ["door", "dog"], "answer": 0},
        {"question": "The fox jumps over the", "choices": ["film", "dog"], "answer": 1},
    ],
    "embed": [
        {"sentence1": SENTENCES[0], "sentence2": SENTENCES[1], "score": 0.2},
        {"sentence1": SENTENCES[2], "sentence2": SENTENCES[3], "score": 0.9},
    ],
}
LABELS = {0: "O", 1: "B-X", 2: "I-X", 3: "B-Y", 4: "I-Y"}


def model_for(task: str, **config: Any) -> Any:
    if task == "tag":
        config["id2label"] = LABELS
    return model_of(task, **config)


def run(task: str, model: Any, data: Any = None, **settings: Any) -> Any:
    return importance(DATA[task] if data is None else data, model=model, task=task, tokenizer=tokenizer(), **settings)


@pytest.mark.parametrize("task", DATA)
def test_every_task_ranks_every_part_by_gradient(task: str) -> None:
    model = model_for(task)
    labels, problem = dict(model.config.id2label), model.config.problem_type
    for of, shape in (("heads", (3, 4)), ("neurons", (3, 48)), ("feed_forward", (3,)), ("layers", (3,))):
        found = run(task, model, of=of)
        assert found.values.shape == shape
        assert np.isfinite(found.values).all()
        assert (found.values >= 0).all()
        assert found.values.max() > 0
        assert found.baseline > 0
        assert len(found.ranked()) == found.values.size
    assert (model.config.id2label, model.config.problem_type) == (labels, problem)  # as they were
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("task", DATA)
def test_leaving_out_is_evaluating_without(task: str) -> None:
    model = model_for(task)
    found = run(task, model, method="leave_one_out", layers=[1])
    assert np.isnan(found.values[[0, 2]]).all()
    mask = Switches(heads={(1, 2)})
    with switched(model, mask):
        without = run(task, model, method="leave_one_out", layers=[]).baseline
    whole = run(task, model, method="leave_one_out", layers=[]).baseline
    assert found.baseline == whole
    assert found.values[1, 2] == pytest.approx(without - whole, abs=1e-6)


def test_leaving_out_a_head_is_the_tasks_evaluation_with_the_head_mask() -> None:
    """Against the model's own head_mask argument, through the objective that training evaluates with."""
    model = model_for("classify", problem_type="single_label_classification")
    loaded = load_task("classify", model=model, train=LABELLED, tokenizer=tokenizer())

    class Masked(torch.nn.Module):
        def __init__(self, mask: torch.Tensor) -> None:
            super().__init__()
            self.mask = mask

        def forward(self, *given: Any, **named: Any) -> Any:
            return model(*given, **named, head_mask=self.mask)

    def figures(mask: torch.Tensor) -> dict[str, float]:
        return loaded.objective.evaluate(Masked(mask), loaded.train, token_budget=2048, device="cpu")

    whole = figures(torch.ones(3, 4))
    for metric in ("loss", "accuracy"):
        found = run("classify", model, method="leave_one_out", metric=metric)
        assert found.baseline == pytest.approx(whole[metric], abs=1e-6)
        for layer, head in ((0, 1), (2, 3)):
            mask = torch.ones(3, 4)
            mask[layer, head] = 0
            change = figures(mask)[metric] - whole[metric]
            expected = change if metric == "loss" else -change
            assert found.values[layer, head] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_the_head_mask_example_by_example(variant: str) -> None:
    """Michel et al.: the mean over examples of |dL/dmask|, here with the head_mask argument and one backward each."""
    model = model_for("classify", **VARIANTS[variant])
    sums = np.zeros((3, 4))
    for item in LABELLED:
        mask = torch.ones(3, 4, requires_grad=True)
        ids = torch.tensor([tokenizer().encode(item["text"])])
        model(ids, head_mask=mask, labels=torch.tensor([item["label"]])).loss.backward()
        assert mask.grad is not None
        sums += mask.grad.abs().numpy()
    model.zero_grad()
    found = run("classify", model)
    kept = ~np.isnan(found.values)
    np.testing.assert_allclose(found.values[kept], (sums / len(LABELLED))[kept], atol=1e-5)
    assert kept.sum() == (7 if variant == "pruned" else 12)
    assert found.num_examples == len(LABELLED)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_layers_and_neurons_are_first_order_leaving_out() -> None:
    model = model_for("classify")
    step = 1e-2
    exact = run("classify", model, method="gradient", of="neurons", limit=1)
    item = LABELLED[0]
    ids, label = torch.tensor([tokenizer().encode(item["text"])]), torch.tensor([item["label"]])
    with torch.no_grad():
        part = model.bert.encoder.layer[1].output.dense.weight
        losses = []
        for change in (step, -step):
            part[:, 5] *= 1 + change
            losses.append(float(model(ids, labels=label).loss))
            part[:, 5] /= 1 + change
    assert exact.values[1, 5] == pytest.approx(abs(losses[0] - losses[1]) / (2 * step), abs=1e-3)


def test_importance_by_gradient_costs_one_pass_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar of 1.5 evaluations with backward: every batch goes through the model once and back once."""
    model = model_for("classify")
    passes = {"forward": 0, "backward": 0, "tokens": 0}
    real = torch.autograd.grad

    def counted(*given: Any, **named: Any) -> Any:
        passes["backward"] += 1
        return real(*given, **named)

    def count(module: Any, given: Any, output: Any) -> None:
        passes["forward"] += 1
        passes["tokens"] += output.shape[0]

    monkeypatch.setattr(torch.autograd, "grad", counted)
    handle = model.bert.embeddings.register_forward_hook(count)
    data = [{"text": text, "label": number % 3} for number, text in enumerate(SENTENCES * 40)]
    seen: list[tuple[int, int]] = []
    run("classify", model, data, progress=lambda done, total: seen.append((done, total)))
    handle.remove()
    batches = seen[-1][1]
    assert batches > 1
    assert passes == {
        "forward": batches,
        "backward": batches,
        "tokens": sum(len(tokenizer().encode(item["text"])) for item in data),
    }
    assert seen == [(done, batches) for done in range(batches + 1)]


def test_normalized_layers_have_length_one() -> None:
    found = run("classify", model_for("classify"))
    np.testing.assert_allclose((found.normalized**2).sum(1), 1, atol=1e-5)
    by_layer = run("classify", model_for("classify"), of="layers")
    assert by_layer.normalized is by_layer.values
    assert sorted(by_layer.ranked()) == [0, 1, 2]


def test_files_are_read_and_their_faults_named(tmp_path: Path) -> None:
    model = model_for("classify")
    file = tmp_path / "data.jsonl"
    lines = [json.dumps(item) for item in LABELLED]
    file.write_text("\n".join([*lines[:3], '{"text": 3}', *lines[3:]]), encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.jsonl, line 4"):
        run("classify", model, file)
    found = run("classify", model, file, skip_bad=True)
    assert found.num_examples == len(LABELLED)
    assert any("1 bad row skipped" in note and "line 4" in note for note in found.notes)
    assert run("classify", model, str(file), skip_bad=True, limit=2).num_examples == 2
    with pytest.raises(DataError, match="no texts in the data"):
        run("fill", model_for("fill"), [])
    words = tmp_path / "words.txt"
    words.write_text("\n".join(SENTENCES), encoding="utf-8")
    from_file, from_list = run("fill", model_for("fill"), words), run("fill", model_for("fill"))
    np.testing.assert_array_equal(from_file.values, from_list.values)


def test_labels_that_are_not_the_models_are_refused() -> None:
    """Numbered anew, they would judge the model by a shuffled key."""
    named = model_for("classify", id2label={0: "good", 1: "bad", 2: "ugly"})
    words = [item | {"label": ["good", "bad", "ugly"][item["label"]]} for item in LABELLED]
    np.testing.assert_allclose(run("classify", named, words).values, run("classify", model_for("classify")).values)
    wrong = [item | {"label": ["gut", "schlecht", "übel"][item["label"]]} for item in LABELLED]
    for model in (named, model_for("classify")):
        with pytest.raises(DataError, match="The data has the labels gut, schlecht, übel; the model knows"):
            run("classify", model, wrong)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"of": "cores"}, "of='cores' is not known"),
        ({"method": "guess"}, "method='guess' is not known"),
        ({"metric": "accuracy"}, "metric='accuracy' has no gradient"),
        ({"metric": "luck", "method": "leave_one_out"}, "metric='luck' is not a metric of this task"),
        ({"layers": [9]}, "no layer 9"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_bad_settings_of_importance_are_refused(settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        run("classify", model_for("classify"), **settings)
    with pytest.raises(InputError, match="task='tag' needs a BertForTokenClassification"):
        importance(LABELLED, model=model_for("classify"), task="tag", tokenizer=tokenizer())
