"""Models of BERT's relatives behind HTTP answer as they do offline, and the commands take them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import settings

import bertie
import family_models
import tiny_models
from bertie.cli.main import main
from bertie.serve.run import Running
from tiny_models import SENTENCES

HEADS = {
    "embed": ("XLMRobertaModel", {}),
    "classify": ("DistilBertForSequenceClassification", {"num_labels": 3}),
    "rerank": ("RobertaForSequenceClassification", {"num_labels": 1}),
    "tag": ("CamembertForTokenClassification", {"id2label": {0: "O", 1: "B-X", 2: "I-X"}}),
    "answer": ("MPNetForQuestionAnswering", {}),
    "fill": ("ElectraForMaskedLM", {}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("relatives")
    return {task: family_models.saved(place / task, name, **config) for task, (name, config) in HEADS.items()}


def test_answers_over_http_are_the_offline_ones(models: dict[str, str]) -> None:
    with Running(settings(models)) as server, bertie.Client(server.url) as asked:  # each task has one model here
        close = {"rtol": 0, "atol": 1e-4}
        np.testing.assert_allclose(asked.embed(SENTENCES), bertie.embed(SENTENCES, model=models["embed"]), **close)
        for found, wanted in zip(
            asked.classify(SENTENCES),
            bertie.classify(SENTENCES, model=models["classify"]),
            strict=True,
        ):
            assert found.label == wanted.label
            assert found.score == pytest.approx(wanted.score, abs=1e-4)
        found_order = [one.index for one in asked.rerank(SENTENCES[0], SENTENCES)]
        assert found_order == [one.index for one in bertie.rerank(SENTENCES[0], SENTENCES, model=models["rerank"])]
        entities = bertie.tag(SENTENCES[4], model=models["tag"])
        assert [(one.start, one.end) for one in asked.tag(SENTENCES[4])] == [(one.start, one.end) for one in entities]
        text = "Paris is the [MASK] of France."
        assert asked.fill(text).text == bertie.fill(text, model=models["fill"]).text
        question, context = "What is the capital of Germany?", SENTENCES[1]
        answered = asked.answer(question, context)
        wanted_answer = bertie.answer(question, context, model=models["answer"])
        assert [one.text for one in answered.candidates[:1]] == [one.text for one in wanted_answer.candidates[:1]]


def test_a_colbert_is_not_ranked_by_one_vector(tmp_path: Path) -> None:
    tiny_models.saved(tmp_path, "BertModel")
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors | {"linear.weight": torch.ones(8, 32)}, tmp_path / "model.safetensors")
    with (
        Running(settings({"embed": str(tmp_path)})) as server,
        bertie.Client(server.url) as asked,
        pytest.raises(bertie.BertieError, match="is a ColBERT"),
    ):
        asked.rerank(SENTENCES[0], SENTENCES)


def test_commands_take_them(models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["inspect", models["answer"]],
        ["verify", models["fill"]],
        ["convert", models["tag"], str(tmp_path / "again")],
        ["tokenize", "-m", models["rerank"], SENTENCES[4]],
        ["classify", "-m", models["classify"], SENTENCES[0]],
        ["features", "-m", models["embed"], "--format", "jsonl", SENTENCES[0]],
    ):
        assert main(line) == 0, (line, capsys.readouterr().err)
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)
