"""`bertie.compress` from end to end on a tiny model, with times that are computed and not measured."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import SENTENCES, saved, tokenizer

import bertie
from bertie.cli.commands.training.compress import command
from bertie.cli.main import main
from bertie.compression import cost, run, work
from bertie.compression.layers import Sizes, keep
from bertie.compression.learning import Lesson, distilled
from bertie.compression.targets import Target, open_target
from bertie.compression.vocabulary import trim
from bertie.engine.cpu import calibrate
from bertie.errors import BertieError, CheckpointError, InputError
from bertie.model.pretrained import BertPreTrainedModel
from bertie.training.task import TaskOptions

WORDS = sorted({word.strip(".,;!?") for text in SENTENCES[:4] for word in text.split()})


class Computed:
    """A runner whose time follows from its sizes: 2 for what is always there, 1 for a head, 1/12 for a neuron."""

    device = torch.device("cpu")

    def __init__(self, model: BertPreTrainedModel) -> None:
        sizes = Sizes.of(model)
        self.seconds = 2 + sum(sizes.heads) + sum(sizes.neurons) / 12

    def describe(self) -> str:
        return "computed"


@pytest.fixture
def _computed_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "cache"))

    def timed(runners: Sequence[Computed], *batch: object, **named: object) -> list[list[float]]:
        return [[runner.seconds for runner in runners]]

    for module in (cost, work):
        monkeypatch.setattr(module, "runner_of", lambda model, on: Computed(model))
    monkeypatch.setattr(cost, "timed", timed)
    monkeypatch.setattr(work, "FRONTIER", ())  # what else a report shows


def texts(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, str]]]:
    """A model, and rows with the labels that it gives them itself."""
    folder = saved(
        tmp_path_factory.mktemp("models") / "classifier", "BertForSequenceClassification", id2label={0: "no", 1: "yes"}
    )
    given = texts(160)
    found = bertie.classify(given, model=folder)
    return folder, [{"text": text, "label": one.label} for text, one in zip(given, found, strict=True)]


@pytest.fixture
def arguments(classifier: tuple[str, list[dict[str, str]]], _computed_times: None, tmp_path: Path) -> dict[str, Any]:
    folder, rows = classifier
    return {"model": folder, "task": "classify", "data": rows, "output": tmp_path / "small"}


def test_the_speed_that_was_asked_for_is_met_and_the_answers_stay(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "FRONTIER", (1.25, 3.0))
    result = bertie.compress(**arguments, speedup=1.5)
    assert result.point.speedup == pytest.approx(1.5, rel=0.05)
    assert result.frontier[0].score == 1.0
    assert result.point.score >= 0.85
    assert [round(point.asked, 2) for point in result.frontier] == [1, 1.25, 3, 1.5]
    config = json.loads((result.output / "config.json").read_text())
    assert tuple(config["intermediate_sizes"]) == result.point.sizes.neurons
    loaded = bertie.load(result.output)
    assert Sizes.of(loaded) == result.point.sizes
    rows = arguments["data"][1::2]
    found = bertie.classify([row["text"] for row in rows], model=result.output)
    right = sum(one.label == row["label"] for one, row in zip(found, rows, strict=True)) / len(rows)
    assert right == pytest.approx(result.point.score)


def test_the_page_says_what_was_cut_and_how_to_go_on(arguments: dict[str, Any]) -> None:
    said: list[str] = []
    result = bertie.compress(**arguments, speedup=2, say=said.append)
    page = (result.output / "compress.md").read_text()
    assert f"**{result.point.speedup:.2f} times** as fast" in page
    assert "| 0 | " in page
    assert "**written**" in page
    assert f"bertie serve -m {result.output}" in page
    assert page == result.report
    kept = json.loads((result.output / "compress.json").read_text())
    assert kept["points"][kept["chosen"]]["asked"] == 2
    assert any("looking at" in line for line in said)


def test_what_is_left_is_fitted_to_the_original(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = bertie.compress(**arguments, speedup=2)
    monkeypatch.setattr(work, "refit", lambda *given: None)
    plain = bertie.compress(**arguments | {"output": fitted.output.with_name("plain")}, speedup=2)
    assert plain.point.sizes == fitted.point.sizes

    def off(folder: Path) -> float:
        found = [bertie.load(place) for place in (folder, Path(arguments["model"]))]
        ids = torch.tensor(tokenizer()([row["text"] for row in arguments["data"][1::2]], padding=True)["input_ids"])
        mask = (ids != 0).long()
        with torch.no_grad():
            ours, theirs = (model.eval()(ids, mask).logits for model in found)
        return float((ours - theirs).square().mean())

    assert off(fitted.output) < 0.5 * off(plain.output)


def test_a_speed_that_was_missed_is_said(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([5.0])  # of an empty model, and then whatever is cut
    monkeypatch.setattr(work, "speedup", lambda *given: next(found, 1.3))
    page = bertie.compress(**arguments, speedup=2).report
    assert "**1.30 times** as fast" in page
    assert "**That is less than the 2 times asked for**" in page


def test_what_the_engine_does_not_gain_is_not_promised(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "speedup", lambda *given: 1.3)  # a GPU that waits for its host, whatever is cut
    with pytest.raises(InputError, match=r"without any heads and neurons, this model is 1\.3 times as fast"):
        bertie.compress(**arguments, speedup=2)


def test_a_share_of_the_parameters(arguments: dict[str, Any]) -> None:
    result = bertie.compress(**arguments, size=0.8)
    model, original = bertie.load(result.output), bertie.load(arguments["model"])
    share = model.num_parameters() / original.num_parameters()
    assert 0.75 <= share <= 0.8


def test_the_fastest_that_keeps_a_share_of_the_score(arguments: dict[str, Any]) -> None:
    result = bertie.compress(**arguments, keep=0.8)
    assert result.point.score >= 0.8
    assert result.point.speedup >= 1.2
    slower = [point for point in result.frontier if point.score >= 0.8]
    assert result.point.speedup == max(point.speedup for point in slower)


def test_a_budget_of_everything_takes_nothing_out(arguments: dict[str, Any]) -> None:
    result = bertie.compress(**arguments, speedup=1)
    before, after = (bertie.load(folder).state_dict() for folder in (arguments["model"], result.output))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert result.point.speedup == 1


def test_a_compressed_model_goes_on_from_where_it_is(arguments: dict[str, Any], tmp_path: Path) -> None:
    once = bertie.compress(**arguments, speedup=1.5)
    twice = bertie.compress(**arguments | {"model": once.output, "output": tmp_path / "twice"}, speedup=1.5)
    assert twice.frontier[0].sizes == once.point.sizes
    assert twice.point.parameters < once.point.parameters
    whole = bertie.load(arguments["model"])
    assert Computed(whole).seconds / Computed(bertie.load(twice.output)).seconds == pytest.approx(2.25, rel=0.1)


def test_a_dense_folder_has_plain_sizes_and_the_same_answers(arguments: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small = bertie.compress(**arguments, speedup=2)
    whole = bertie.compress(**arguments | {"output": tmp_path / "dense"}, speedup=2, dense=True)
    theirs = transformers.BertForSequenceClassification.from_pretrained(whole.output).eval()
    ids = torch.tensor([tokenizer()("the dog and the fox")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, bertie.load(small.output).eval()(ids).logits, atol=1e-5, rtol=0)


def test_the_frontier_is_a_folder_of_models(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FRONTIER", (1.25, 1.5))
    result = bertie.compress(**arguments, speedup=1.5, frontier=True)
    folders = sorted(path for path in result.output.iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == ["1.25x", "1.5x"]
    assert (result.output / "compress.md").is_file()
    for folder in folders:
        assert bertie.classify("the dog", model=folder).label in ("no", "yes")


def test_a_frontier_of_sizes_has_folders_named_by_them(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "SIZES", (0.9, 0.2))  # the second cannot be
    result = bertie.compress(**arguments, size=0.8, frontier=True)
    assert sorted(path.name for path in result.output.iterdir() if path.is_dir()) == ["size-0.8", "size-0.9"]
    assert f"bertie serve -m {result.output / 'size-0.8'}" in result.report


def test_a_compressed_model_is_made_dense_later(arguments: dict[str, Any], tmp_path: Path) -> None:
    small = bertie.compress(**arguments, speedup=2)
    plain = bertie.compress(small.output, dense=True, output=tmp_path / "plain")
    found, wanted = bertie.load(plain.output), bertie.load(arguments["model"])
    assert Sizes.of(found) == Sizes.of(wanted)
    assert found.num_parameters() == plain.point.parameters == wanted.num_parameters()
    ids = torch.tensor([tokenizer()("the dog and the fox")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(
            found.eval()(ids).logits, bertie.load(small.output).eval()(ids).logits, atol=1e-5, rtol=0
        )


def test_a_dense_folder_says_that_it_is_not_faster(arguments: dict[str, Any]) -> None:
    page = bertie.compress(**arguments, speedup=2, dense=True).report
    assert "as fast and as large as the original" in page


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_stored_as_the_original_stores_them(dtype: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    bertie.load(arguments["model"]).save_pretrained(tmp_path / "half", dtype=dtype)
    tokenizer().save_pretrained(tmp_path / "half")
    arguments["model"] = str(tmp_path / "half")
    result = bertie.compress(**arguments, speedup=1.5)
    trimmed = bertie.compress(tmp_path / "half", vocab_from=SENTENCES[:2], output=tmp_path / "trimmed")
    before = (tmp_path / "half" / "model.safetensors").stat().st_size
    for folder in (result.output, trimmed.output):
        assert bertie.load(folder, dtype="auto").dtype == getattr(torch, dtype)
        assert (folder / "model.safetensors").stat().st_size < before
    rows = arguments["data"][1::2]
    found = bertie.classify([row["text"] for row in rows], model=result.output)
    right = sum(one.label == row["label"] for one, row in zip(found, rows, strict=True)) / len(rows)
    assert right == pytest.approx(result.point.score)  # what was judged is what is loaded


def test_sizes_are_shares_of_the_model_that_was_given(arguments: dict[str, Any]) -> None:
    original = bertie.load(arguments["model"]).num_parameters()
    result = bertie.compress(**arguments, size=0.6, vocab_from=texts(160))
    assert result.frontier[0].parameters == original
    assert 0.5 * original <= bertie.load(result.output).num_parameters() <= 0.6 * original


def test_it_learns_from_the_original(arguments: dict[str, Any]) -> None:
    said: list[str] = []
    result = bertie.compress(**arguments, speedup=3, train=arguments["data"], epochs=1, say=said.append)
    (judged,) = [line for line in said if "after learning" in line]
    after, before = map(float, re.findall(r"\d\.\d+", judged))
    assert result.point.trained == (1 if after >= before else 0)  # the better one is kept
    assert abs(result.point.score) == pytest.approx(max(after, before), abs=1e-4)
    assert Sizes.of(bertie.load(result.output)) == result.point.sizes
    assert ("after 1 epoch of learning" in (result.output / "compress.md").read_text()) == bool(result.point.trained)


def test_the_int8_fit_is_in_the_folder(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = bertie.compress(**arguments, speedup=1.5, on="cpu-int8")
    assert len(list((result.output / calibrate.FIT_FOLDER).iterdir())) == 1
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(calibrate, "_fit", lambda *given: pytest.fail("fitted again"))
    assert bertie.classify("the dog", model=result.output, dtype="int8").label in ("no", "yes")


@pytest.mark.usefixtures("_computed_times")
@pytest.mark.parametrize(("task", "name"), [("embed", "BertModel"), ("fill", "BertForMaskedLM")])
def test_plain_texts_do_for_vectors_and_masked_words(task: str, name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", name)
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(texts(80)))
    result = bertie.compress(folder, task=task, data=corpus, speedup=1.25, output=tmp_path / "small")
    assert result.point.speedup == pytest.approx(1.25, rel=0.05)
    if task == "embed":
        assert result.frontier[0].score == pytest.approx(1.0)
        assert 0.8 <= result.point.score < 1
        assert bertie.embed("the dog", model=result.output).shape == (32,)
    else:
        assert 0 <= result.point.score <= 1
        assert bertie.fill("the [MASK]", model=result.output)


@pytest.mark.usefixtures("_computed_times")
@pytest.mark.parametrize(("task", "name"), [("embed", "BertModel"), ("fill", "BertForMaskedLM")])
def test_plain_texts_teach_the_answers_of_the_original(task: str, name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", name)
    target = open_target(task, folder, texts(60), texts(400, seed=1), tokenizer(), None)
    cut = keep(target.model, [[0], [1], [2]], [torch.arange(4)] * 3)
    lesson = Lesson(task, folder, None, None, epochs=8)
    learned = distilled(target, cut, lesson, str(tmp_path), lambda line: None)

    def off(model: BertPreTrainedModel) -> float:
        with torch.no_grad():
            pairs = [(target.answers(model, b), target.answers(target.model, b)) for b in target.fit]
        return sum(float((ours - theirs).square().sum()) for ours, theirs in pairs)

    assert Sizes.of(learned) == Sizes.of(cut)
    assert learned.config.hidden_dropout_prob == target.model.config.hidden_dropout_prob
    assert off(learned) < 0.8 * off(cut)


@pytest.mark.usefixtures("_computed_times")
def test_vectors_are_learned_by_the_command_too(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "BertModel")
    result = bertie.compress(
        folder, task="embed", data=texts(40), train=texts(200, seed=1), epochs=4, speedup=3, output=tmp_path / "small"
    )
    untrained = bertie.compress(
        folder, task="embed", data=texts(40), train=texts(200, seed=1), epochs=0, speedup=3, output=tmp_path / "plain"
    )
    assert result.point.score >= untrained.point.score
    assert (result.point.trained == 4) == (result.point.score > untrained.point.score)
    assert bertie.embed("the dog", model=result.output).shape == (32,)


def test_a_model_that_learns_nothing_good_is_not_kept(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(target: Target, student: BertPreTrainedModel, *given: object) -> BertPreTrainedModel:
        worse = copy.deepcopy(student)
        worse.classifier.weight.data.neg_()
        return worse

    monkeypatch.setattr(run, "distilled", spoiled)
    result = bertie.compress(**arguments, speedup=1.5, train=arguments["data"], epochs=1)
    assert result.point.trained == 0
    assert result.point.score > 0.6


def test_a_trimmed_vocabulary_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "BertModel")
    result = bertie.compress(folder, vocab_from=SENTENCES[:2], positions=32, output=tmp_path / "small")
    model = bertie.load(result.output)
    assert model.config.max_position_embeddings == 32
    assert model.config.vocab_size < len(tokenizer())
    before, after = (bertie.embed(SENTENCES[0], model=place) for place in (folder, result.output))
    assert (before == after).all()
    page = (result.output / "compress.md").read_text()
    assert f"{model.config.vocab_size} of {len(tokenizer())} tokens and 32 of 48 positions" in page
    assert f"bertie inspect {result.output}" in page


@pytest.mark.usefixtures("_computed_times")
def test_texts_may_lie_in_several_files_and_in_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = saved(tmp_path / "model", "BertModel")
    rows = texts(60)
    Path("a.txt").write_text("\n".join(rows[:20]))
    Path("b.txt").write_text("\n".join(rows[20:40]))
    Path("c.csv").write_text("number,body\n" + "".join(f"{i},{text}\n" for i, text in enumerate(rows[40:])), "latin-1")

    def kept(output: str, *given: str) -> int:
        assert main(["compress", "-m", folder, "-o", output, *given]) == 0
        size: int = bertie.load(output).config.vocab_size
        return size

    assert kept("lines", "--vocab-from", "a.txt", "--vocab-from", "b.txt") == len(trim(tokenizer(), rows[:40]).kept)
    assert kept("column", "--vocab-from", "c.csv", "--column", "body") == len(trim(tokenizer(), rows[40:]).kept)
    embed = ["--task", "embed", "--speedup", "1.25"]
    target = open_target("embed", folder, [Path("a.txt"), Path("b.txt")], None, tokenizer(), None)
    assert len(target.lengths) == 20  # half of forty lines
    assert main(["compress", "-m", folder, *embed, "--data", "c.csv", "--column", "body", "-o", "vectors"]) == 0
    assert json.loads(Path("vectors", "compress.json").read_text())["metric"] == "cosine"


def test_trimming_and_cutting_together(arguments: dict[str, Any]) -> None:
    result = bertie.compress(**arguments, speedup=1.5, vocab_from=texts(160))
    assert bertie.load(result.output).config.vocab_size < len(tokenizer())
    assert bertie.classify(arguments["data"][0]["text"], model=result.output).label in ("no", "yes")


def test_the_command_writes_the_model_and_says_the_page(
    arguments: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dev.tsv").write_text("text\tlabel\n" + "".join(f"{r['text']}\t{r['label']}\n" for r in arguments["data"]))
    Path("corpus.txt").write_text("\n".join(texts(20)))
    Path("mine").symlink_to(arguments["model"])
    (example, trimming) = (line.strip() for line in (command.epilog or "").splitlines() if "bertie compress" in line)
    assert main(shlex.split(example)[1:]) == 0
    captured = capsys.readouterr()
    assert "times** as fast" in captured.out
    assert "fitting" in captured.err
    assert bertie.load("fast").config.intermediate_sizes
    assert main(shlex.split(trimming)[1:]) == 0
    assert bertie.load("trimmed").config.vocab_size < len(tokenizer())
    capsys.readouterr()
    assert main(shlex.split(example.replace("--speedup 2 -o fast", "--speedup 0.5 -o slow"))[1:]) == 2
    assert "--speedup 0.5: it must be at least 1" in capsys.readouterr().err


def _bad(**given: Any) -> dict[str, Any]:
    return given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (_bad(speedup=0.5), "speedup is 0.5; it must be at least 1"),
        (_bad(speedup=float("nan")), "it must be at least 1"),
        (_bad(size=0), "size is 0; it must be above 0 and at most 1"),
        (_bad(keep=1.5), "keep is 1.5; it must be above 0 and at most 1"),
        (_bad(speedup=50), r"without any heads and neurons, this model is 13.0 times as fast \(computed\)"),
        (_bad(size=0.1), "without any heads and neurons, this model still has 0.35 of its parameters"),
        (_bad(speedup=2, size=0.5), "Both speedup=2 and size=0.5 were given"),
        (_bad(), "Nothing was asked for"),
        (_bad(speedup=2, task=None), "speedup=2 needs task"),
        (_bad(speedup=2, data=None), "speedup=2 needs data"),
        (_bad(speedup=2, on="tpu"), "on='tpu' is not known"),
        (_bad(speedup=2, task="sing"), "task='sing' is not known"),
        (_bad(speedup=2, epochs=2), "epochs is 2; there is nothing to learn from"),
        (_bad(positions=1), "positions is 1; it must be a whole number of at least 4"),
        (_bad(positions=900), "positions is 900; the model has 48"),
        (_bad(speedup=2, data=[{"text": "the dog"}, {"text": "a fox"}]), "label"),
        (_bad(speedup=2, data=[{"text": "the dog", "label": "perhaps"}] * 4), "all rows have the label 'perhaps'"),
        (_bad(speedup=2, on="cuda"), "PyTorch finds no GPU"),
        (_bad(vocab_from=[]), "vocab_from holds no text"),
        (_bad(positions=32, frontier=True), "frontier=True needs a target"),
        (_bad(positions=32, train=["the dog"]), "train needs a target"),
        (
            _bad(speedup=2, task="fill", options=TaskOptions(best_metric="f1")),
            "best_metric is 'f1'; fill with plain texts is judged by accuracy",
        ),
    ],
)
def test_what_cannot_be_is_said(
    given: dict[str, Any], said: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if given.get("on") == "cuda":
        monkeypatch.undo()  # the real engines
    with pytest.raises(BertieError, match=said):
        bertie.compress(**arguments | given)
    assert not arguments["output"].exists()


def test_a_score_that_cannot_be_kept_says_the_best(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "refit", lambda original, smaller, *given: smaller.classifier.bias.data.add_(-50))
    scores = iter([0.9] + [0.3] * 20)
    monkeypatch.setattr("bertie.compression.targets.TaskTarget.score", lambda self, model: next(scores))
    with pytest.raises(InputError, match=r"the best found keeps 0.333 of the accuracy, at 1.2. times the speed"):
        bertie.compress(**arguments, keep=0.99)


def test_an_engine_that_gains_nothing_is_said(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "speedup", lambda *given: 1.1)
    with pytest.raises(InputError, match=r"this model is only 1\.10 times as fast \(computed\): there is nothing"):
        bertie.compress(**arguments, keep=0.9)


def test_a_score_that_only_a_small_cut_keeps(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([1.0, 0.5, 0.95])  # the original's, at 1.25, and half way
    monkeypatch.setattr("bertie.compression.targets.TaskTarget.score", lambda self, model: next(scores))
    result = bertie.compress(**arguments, keep=0.9)
    assert result.point.asked == 1.125


def test_a_model_without_the_head_is_refused(arguments: dict[str, Any], tmp_path: Path) -> None:
    arguments["model"] = saved(tmp_path / "headless", "BertModel")
    with pytest.raises(InputError, match=r"has no weights for classifier\.bias"):
        bertie.compress(**arguments, speedup=2)


def test_a_folder_with_something_in_it_is_refused(arguments: dict[str, Any]) -> None:
    arguments["output"].mkdir()
    (arguments["output"] / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not an empty folder"):
        bertie.compress(**arguments, speedup=2)


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(arguments: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    arguments["output"] = tmp_path / "file" / "small"
    said: list[str] = []
    with pytest.raises(CheckpointError, match="is no folder that you may write to"):
        bertie.compress(**arguments, speedup=2, say=said.append)
    assert not said


def test_a_model_that_is_not_there_is_said(arguments: dict[str, Any]) -> None:
    with pytest.raises(BertieError, match="'nosuch' is neither a folder here nor"):
        bertie.compress(**arguments | {"model": "nosuch"}, speedup=2)


KILLED = """
import os, signal, sys
import bertie
from bertie.compression import run

def half(tables, place, *, whole):
    (place / "model.safetensors").write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3] == "model":
    run.copy_folder = half
else:
    run.write_report = lambda report, folder: os.kill(os.getpid(), signal.SIGKILL)
bertie.compress(sys.argv[1], vocab_from=["the dog and the fox"], output=sys.argv[2])
"""


@pytest.mark.parametrize("during", ["model", "report"])
def test_killed_while_it_writes_it_leaves_no_folder(during: str, classifier: tuple[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "small"
    done = subprocess.run([sys.executable, "-c", KILLED, classifier[0], str(output), during], env=os.environ.copy())
    assert done.returncode == -signal.SIGKILL
    assert not output.exists()
    bertie.compress(classifier[0], vocab_from=["the dog and the fox"], output=output)
    assert bertie.load(output).config.vocab_size < len(tokenizer())
    assert [path.name for path in tmp_path.iterdir() if path.name != "small"] == []


@pytest.mark.usefixtures("_computed_times")
def test_the_cost_table_is_measured_once() -> None:
    config, said = bertie.BertConfig(hidden_size=32, num_attention_heads=4, intermediate_size=48), list[str]()
    first = cost.cost_table(config, [7, 9], "cpu", say=said.append)
    again = cost.cost_table(config, [7, 9], "cpu", say=said.append)
    assert first == again
    assert "measuring" in said[0]
    assert "known from before" in said[1]
    assert first.price("attention", 3) == pytest.approx(3)
    assert first.price("feed-forward", 24) == pytest.approx(2)
