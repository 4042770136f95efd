"""Scripts written for transformers do the same after one line is changed: where the `Auto…` names come from.

scripts/ holds five, after transformers' run_{glue,ner,mlm,swag,qa}_no_trainer.py. Each is run as it is, and with
`from transformers import Auto…` changed into `from bertie import Auto…`; losses and metrics must be the same, and each
library must load what the other saved.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
import tiny_models
from compat.hub_cases import FIVE, forget_accelerate

pytest.importorskip("accelerate", reason="the scripts are written with accelerate")
datasets = pytest.importorskip("datasets", reason="the scripts read their data with datasets")

# datasets leaves the files that it has read to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
SCRIPTS = Path(__file__).parent / "scripts"
MODELS = {
    "glue": "BertForSequenceClassification",
    "ner": "BertForTokenClassification",
    "mlm": "BertForMaskedLM",
    "swag": "BertForMultipleChoice",
    "qa": "BertForQuestionAnswering",
}
TAGS = ["B-LOC", "B-PER", "I-PER", "O"]
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
Rows = list[dict[str, Any]]


# -- data -------------------------------------------------------------------------------------------------------------


def sentence(number: int) -> str:
    return tiny_models.SENTENCES[number % len(tiny_models.SENTENCES)]


def glue(count: int) -> Rows:
    return [{"sentence1": sentence(i), "sentence2": sentence(i * 3 + 1), "label": "abc"[i % 3]} for i in range(count)]


def scored(count: int) -> Rows:
    return [{"sentence": sentence(i), "label": i / 4} for i in range(count)]


def ner(count: int) -> Rows:
    rows = [sentence(i).split() for i in range(count)]
    return [{"tokens": words, "ner_tags": [TAGS[len(word) % 4] for word in words]} for words in rows]


def swag(count: int) -> Rows:
    endings = [{f"ending{k}": sentence(i + k)[: 10 + 3 * k] for k in range(4)} for i in range(count)]
    return [{"sent1": sentence(i), "sent2": "She", **ends, "label": i % 4} for i, ends in enumerate(endings)]


def qa(count: int) -> Rows:
    rows: Rows = []
    for i in range(count):
        context = " ".join(sentence(i + k) for k in range(3))
        answer = context.split()[7 + i]
        found = (
            {"text": [answer], "answer_start": [context.index(answer)]} if i % 4 else {"text": [], "answer_start": []}
        )
        rows.append({"id": str(i), "context": context, "question": "  What is the answer?", "answers": found})
    return rows


def mlm(count: int) -> Rows:
    return [{"text": sentence(i) if i % 5 else ""} for i in range(3 * count)]


DATA: dict[str, Callable[[int], Rows]] = {"glue": glue, "ner": ner, "swag": swag, "qa": qa, "mlm": mlm}


def write(rows: Rows, task: str, stem: Path) -> str:
    """In the form that users of each script have: csv, json lines, json with a field, plain text."""
    if task == "glue":
        file = stem.with_suffix(".csv")
        import csv

        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif task == "mlm":
        file = stem.with_suffix(".txt")
        file.write_text("".join(row["text"] + "\n" for row in rows), encoding="utf-8")
    else:
        file = stem.with_suffix(".json")
        text = json.dumps({"data": rows}) if task == "qa" else "".join(json.dumps(row) + "\n" for row in rows)
        file.write_text(text, encoding="utf-8")
    return str(file)


# -- running ----------------------------------------------------------------------------------------------------------


class Runner:
    """The scripts in two folders: as they are, and with one line of each changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folders = {name: place / name for name in ("transformers", "bertie")}
        for folder in self.folders.values():
            shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        for task in MODELS:
            script = self.folders["bertie"] / f"run_{task}.py"
            before = script.read_text(encoding="utf-8").splitlines()
            after = [line.replace("from transformers import Auto", "from bertie import Auto") for line in before]
            assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
            script.write_text("\n".join(after) + "\n", encoding="utf-8")

    def arguments(self, task: str, model: str | None, output: Path, rows: Callable[[int], Rows] | None) -> list[str]:
        rows = rows or DATA[task]
        files = {"train_file": rows(10), "validation_file": rows(5)}
        given = {name: write(data, task, self.place / f"{rows.__name__}_{name}") for name, data in files.items()}
        given |= {"output_dir": str(output)} | ({"model_name_or_path": model} if model else {})
        return [word for name, value in given.items() for word in (f"--{name}", value)]

    def __call__(
        self, library: str, task: str, model: str | None, *more: str, rows: Callable[[int], Rows] | None = None
    ) -> tuple[dict[str, Any], Path]:
        forget_accelerate()
        output = self.place / f"{library}_{task}_{len(list(self.place.iterdir()))}"
        script = self.folders[library] / f"run_{task}.py"
        main = runpy.run_path(str(script))["main"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory.*")
            results = main([*self.arguments(task, model, output, rows), *more])
        return results, output

    def both(self, task: str, model: str | None, *more: str, rows: Callable[[int], Rows] | None = None) -> list[Path]:
        """Run both, compare the runs, and let each library load what the other saved. Gives the output folders."""
        runs = [self(library, task, model, *more, rows=rows) for library in ("transformers", "bertie")]
        (theirs, _), (ours, _) = runs
        assert len(theirs["losses"]) == len(ours["losses"]) >= 3
        assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-4)
        assert ours["metrics"] == pytest.approx(theirs["metrics"], abs=1e-4)
        assert theirs["losses"][0] != pytest.approx(theirs["losses"][-1], abs=1e-4)
        check_exchange(task, [folder for _, folder in runs])
        return [folder for _, folder in runs]


def check_exchange(task: str, folders: list[Path]) -> None:
    """Both libraries give the same answer from each of the two folders, and the same configuration and ids."""
    import transformers

    name = MODELS[task]
    for folder in folders:
        models = [getattr(library, name).from_pretrained(folder).eval() for library in (transformers, bertie)]
        tokenizers = [library.BertTokenizerFast.from_pretrained(folder) for library in (transformers, bertie)]
        encoded = [
            dict(tokenizer(tiny_models.SENTENCES, return_tensors="pt", padding=True, truncation=True))
            for tokenizer in tokenizers
        ]
        assert all(torch.equal(encoded[0][column], encoded[1][column]) for column in encoded[0])
        inputs = {column: ids[None] if task == "swag" else ids for column, ids in encoded[0].items()}
        with torch.no_grad():
            theirs, ours = (model(**inputs)[0] for model in models)
        assert torch.allclose(ours, theirs, atol=1e-5)
    first, second = (json.loads((folder / "config.json").read_text()) for folder in folders)
    # transformers writes what kind of labels it saw, and 5 its defaults too; we write dtype under its older name too.
    assert FIVE or first.keys() ^ second.keys() <= {"problem_type", "torch_dtype", "transformers_version"}
    known = first.keys() & second.keys()
    assert {key: first[key] for key in known} == {key: second[key] for key in known}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.syspath_prepend(SCRIPTS)
    datasets.disable_progress_bars()
    return Runner(tmp_path)


def checkpoint(folder: Path, task: str, **config: Any) -> str:
    if task == "ner":
        # In an order of its own, which the script keeps.
        config = {"id2label": dict(enumerate(["O", "I-PER", "B-LOC", "B-PER"]))} | config
    if task == "glue":
        config = {"num_labels": 3} | config
    return tiny_models.saved(folder, MODELS[task], **STILL | config)


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", MODELS)
def test_a_script_trains_alike_after_one_line_is_changed(task: str, run: Runner, tmp_path: Path) -> None:
    run.both(task, checkpoint(tmp_path / "model", task))


VARIANTS: list[tuple[str, tuple[str, ...], Callable[[int], Rows] | None, dict[str, Any]]] = [
    ("glue", ("--pad_to_max_length", "--lr_scheduler_type", "cosine", "--use_slow_tokenizer"), None, {}),
    ("glue", ("--trust_remote_code",), scored, {"num_labels": 1}),
    ("glue", ("--gradient_accumulation_steps", "2"), None, {"id2label": {0: "B", 1: "C", 2: "A"}}),
    ("ner", ("--label_all_tokens", "--pad_to_max_length", "--trust_remote_code"), None, {}),
    ("mlm", ("--line_by_line", "--low_cpu_mem_usage", "--mlm_probability", "0.4"), None, {}),
    ("mlm", ("--gradient_accumulation_steps", "2", "--num_train_epochs", "3"), None, {"tie_word_embeddings": False}),
    ("swag", ("--pad_to_max_length",), None, {}),
    ("qa", ("--pad_to_max_length", "--doc_stride", "3", "--max_length", "32"), None, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "more", "rows", "config"), VARIANTS)
def test_a_scripts_options_mean_the_same(
    task: str, more: tuple[str, ...], rows: Any, config: dict[str, Any], run: Runner, tmp_path: Path
) -> None:
    if FIVE and "tie_word_embeddings" in config:
        pytest.skip(
            "transformers 5 starts an untied head's bias anew: 4.57.6's files, and ours, hold it under one name"
        )
    run.both(task, checkpoint(tmp_path / "model", task, **config), *more, rows=rows)


@pytest.mark.parametrize("task", ["ner", "mlm"])
def test_a_vocabulary_that_grew_is_resized_alike(task: str, run: Runner, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", task)
    tokenizer = bertie.BertTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["investors", "unbelievably"])
    tokenizer.save_pretrained(folder)
    folders = run.both(task, folder, "--max_train_steps", "3")
    sizes = {json.loads((where / "config.json").read_text())["vocab_size"] for where in folders}
    assert sizes == {len(tokenizer)}


@pytest.mark.parametrize("task", ["glue", "mlm"])
def test_a_run_is_resumed_from_the_other_librarys_state(task: str, run: Runner, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", task)
    for saver in ("transformers", "bertie"):
        whole, states = run(saver, task, folder, "--checkpointing_steps", "2")
        state = str(states / "step_2")
        theirs, ours = (
            run(library, task, folder, "--resume_from_checkpoint", state)[0] for library in ("transformers", "bertie")
        )
        assert 0 < len(ours["losses"]) < len(whole["losses"])
        assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-4)
        assert ours["metrics"] == pytest.approx(theirs["metrics"], abs=1e-4)


@pytest.mark.filterwarnings("ignore::bertie.checkpoint.report.NewlyInitialized")
@pytest.mark.parametrize("task", ["glue", "ner", "swag", "qa"])
def test_a_new_head_starts_alike_from_the_same_seed(task: str, run: Runner, tmp_path: Path) -> None:
    folder = tiny_models.saved(tmp_path / "base", "BertModel", **STILL)
    run.both(task, folder)


@pytest.mark.slow
@pytest.mark.parametrize("task", MODELS)
def test_a_script_trains_alike_in_two_processes(task: str, run: Runner, tmp_path: Path) -> None:
    folder, outputs, results = checkpoint(tmp_path / "model", task), [], []
    for library, scripts in run.folders.items():
        output = tmp_path / f"two_{library}"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
        command += [str(scripts / f"run_{task}.py"), *run.arguments(task, folder, output, None)]
        places = {"HF_DATASETS_CACHE": str(tmp_path / "cache_two"), "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | places)
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads((output / "all_results.json").read_text()))
        outputs.append(output)
    assert results[1]["losses"] == pytest.approx(results[0]["losses"], abs=1e-4)
    assert results[1]["metrics"] == pytest.approx(results[0]["metrics"], abs=1e-4)
    check_exchange(task, outputs)
