"""The house itself: what may import what, what `import bertie` costs, and the rules no file may break."""

from __future__ import annotations

import ast
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bertie

SOURCE = Path(bertie.__file__).parent

# A room may import itself and these. Rooms that are not listed do not exist.
LOWEST = {"errors", "arguments", "answers", "files", "json_values"}
FILES = LOWEST | {"config", "checkpoint"}
MODELS = FILES | {"ops", "model", "family", "loading"}
RUNNING = MODELS | {"defaults", "text", "data", "engine"}
TASKS = RUNNING | {"running"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "arguments": {"errors"},
    "display": set(),
    "answers": {"errors", "display"},
    "files": {"errors"},
    "json_values": set(),
    "library": set(),
    "config": LOWEST | {"checkpoint"},  # checkpoint inside from_pretrained only
    "text": FILES | {"library"},
    "data": LOWEST,
    "defaults": {"errors", "checkpoint"},
    "ops": LOWEST,
    "checkpoint": LOWEST | {"config"},
    "model": FILES | {"ops"},
    "family": FILES | {"ops", "model"},
    "loading": FILES | {"model", "family"},
    "certificate": FILES | {"model", "family", "loading"},
    "convert": FILES | {"model", "family", "loading"},
    "compat": FILES | {"model", "family", "text"},
    "engine": LOWEST | {"config", "library", "ops", "model", "text"},
    "running": RUNNING,
    "tasks": TASKS,
    "search": TASKS | {"tasks"},
    "adapters": TASKS | {"tasks"},
    "training": TASKS | {"tasks"},
    "bulk": TASKS | {"tasks"},
    "compression": TASKS | {"tasks", "training"},
    "client": LOWEST | {"data"},
    "explore": TASKS | {"tasks", "training"},
    "serve": TASKS | {"tasks", "explore"},
    "cli": TASKS
    | {"tasks", "search", "training", "explore", "compression", "serve", "bulk", "client", "certificate", "convert"},
    "__main__": {"cli"},
}
NO_TORCH = {*LOWEST, "library", "config", "text", "data", "defaults", "client", "cli"}


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [f for f in sorted(SOURCE.rglob("*.py")) if f != SOURCE / "__init__.py"]


def imports(tree: ast.AST, *, top_level: bool = False) -> set[str]:
    nodes = ast.iter_child_nodes(tree) if top_level else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_go_one_way(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    room = room_of(file)
    assert room in MAY_IMPORT, f"a new room '{room}': say in MAY_IMPORT what it may import"
    for name in imports(tree):
        if name.startswith("bertie."):
            other = name.split(".")[1]
            assert other == room or other in MAY_IMPORT[room], f"{room} may not import {other}"
        # bertie.register() is about transformers, so the user has it; nothing else may need it.
        allowed = room == "compat" and name.startswith("transformers")
        assert allowed or name.split(".")[0] not in ("transformers", "tensorflow"), f"{name} is for tests only"
    if room in NO_TORCH:
        assert not any(n.split(".")[0] == "torch" for n in imports(tree, top_level=True)), f"{room} imports torch"


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(SOURCE)))
def test_no_pickle_no_eval_no_import_by_name(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert not {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"} & imports(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in ("eval", "exec", "compile", "__import__"), f"{called} at line {node.lineno}"
        if called.endswith("import_module"):  # only for our own commands and tasks, when they are called
            allowed = ("cli/main.py", "tasks/__init__.py", "training/__init__.py")
            assert str(file.relative_to(SOURCE)) in allowed, f"{called} at line {node.lineno}"
        assert called != "torch.load", f"at line {node.lineno}: checkpoint/torch_bin.py reads torch's files"


# What may not grow without a reason. Each counts places in the syntax trees of all files.
CEILINGS = {"Any": 350, "isinstance": 300, "own imports in functions": 40, "type: ignore": 30, "private imports": 0}
MOST_FILES_IN_A_FOLDER = 20


def test_types_and_imports_stay_within_their_ceilings() -> None:
    counts = dict.fromkeys(CEILINGS, 0)
    for file in files():
        text = file.read_text()
        counts["type: ignore"] += text.count("type: ignore")
        inside: set[ast.AST] = set()
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Name("Any"):
                    counts["Any"] += 1
                case ast.Call(ast.Name("isinstance")):
                    counts["isinstance"] += 1
                case ast.ImportFrom(str(module), names) if module.startswith("bertie"):
                    private = [one.name for one in names if one.name.startswith("_") and one.name != "__version__"]
                    counts["private imports"] += len(private)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    inside.update(n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom))
        counts["own imports in functions"] += sum(
            any(name.startswith("bertie") for name in imports(node)) for node in inside
        )
    assert all(counts[what] for what in CEILINGS if CEILINGS[what]), "really counted"
    assert {what: count for what, count in counts.items() if count > CEILINGS[what]} == {}


def test_no_folder_has_too_many_files() -> None:
    folders = {file.parent for file in files()}
    crowded = {str(one): len(list(one.glob("*.py"))) for one in folders}
    assert {folder: count for folder, count in crowded.items() if count > MOST_FILES_IN_A_FOLDER} == {}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_bertie_is_quick_and_without_torch() -> None:
    code = "import time, sys; t = time.perf_counter(); import bertie; t = time.perf_counter() - t"
    code += "; print(t, 'torch' in sys.modules)"
    runs = [run(code).split() for _ in range(5)]
    assert all(torch == "False" for _, torch in runs)
    assert min(float(seconds) for seconds, _ in runs) <= 0.10


def test_import_bertmodel_is_quick_over_torch() -> None:
    code = "import time, torch; t = time.perf_counter(); from bertie import BertModel; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(3)) <= 0.3


def test_public_names_all_resolve_and_match_the_model_room() -> None:
    import bertie.model

    for name in bertie.__all__:
        assert getattr(bertie, name) is not None
    public = {name for name in bertie.model.__all__ if name[0].isupper() and name != "ACTIVATIONS"}
    assert public <= set(bertie.__all__)
    assert "BertModel" in dir(bertie)
    with pytest.raises(AttributeError, match="no attribute 'BertModle'"):
        _ = bertie.BertModle


# fmt: off
SPEC_CLASSES = [
    "BertEmbeddings", "BertSelfAttention", "BertSelfOutput", "BertAttention", "BertIntermediate", "BertOutput",
    "BertLayer", "BertEncoder", "BertPooler", "BertPredictionHeadTransform", "BertLMPredictionHead",
    "BertOnlyMLMHead", "BertOnlyNSPHead", "BertPreTrainingHeads", "BertPreTrainedModel", "BertModel",
    "BertForPreTraining", "BertLMHeadModel", "BertForMaskedLM", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification",
    "BertForQuestionAnswering", "BertEncoderDecoder",
]
# fmt: on


def test_every_class_of_the_family_is_public() -> None:
    assert set(SPEC_CLASSES) <= set(bertie.__all__)


def test_docstring_examples_run() -> None:
    code = """
import doctest, importlib, json, sys
names = sys.argv[1:]
print(json.dumps({n: list(doctest.testmod(importlib.import_module(n))) for n in names}))
"""
    names = [
        "bertie", "bertie.config.bert", "bertie.model.bert", "bertie.model.encoder_decoder", "bertie.ops.packing",
        "bertie.tasks.similarity", "bertie.text.windows",
    ]  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    outcome = json.loads(result.stdout.strip().splitlines()[-1])
    assert all(failed == 0 for failed, _ in outcome.values()), result.stdout
    assert sum(attempted for _, attempted in outcome.values()) >= 6


def test_errors_carry_cause_and_remedy() -> None:
    from bertie import errors

    error = errors.CheckpointNotFound("No file.", "Look again.")
    assert (error.cause, error.remedy, str(error)) == ("No file.", "Look again.", "No file.\nLook again.")
    assert isinstance(error, FileNotFoundError)
    assert isinstance(error, errors.BertieError)
    setting = errors.ConfigError(
        "{beta:is} it must be less than 1.", "Leave {beta} alone, or {resume}.", beta=2, resume=...
    )
    assert setting.cause == "beta is 2; it must be less than 1."
    assert setting.remedy == "Leave beta=2 alone, or resume."
    assert (setting.setting, setting.value) == ("beta", 2)
    spoken = setting.said(lambda name, value, judged: f"--{name}{':' if judged else ''}")
    assert spoken == ("--beta: it must be less than 1.", "Leave --beta alone, or --resume.")
    again = copy.copy(setting)
    assert (str(again), again.settings) == (str(setting), setting.settings)
    missing = errors.MissingExtra("pyarrow", "data", "Reading parquet")
    assert "pip install 'bertie[data]'" in str(missing)
    assert isinstance(missing, ImportError)
