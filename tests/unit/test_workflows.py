"""What the workflows and CONTRIBUTING.md say to run is there: targets of the Makefile, files, extras, hooks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def jobs(workflow: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"])


def commands(workflow: Path) -> list[str]:
    return [step["run"] for job in jobs(workflow).values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(workflow: Path) -> None:
    lines = commands(workflow)
    assert lines
    for line in lines:
        assert set(re.findall(r"\bmake ([\w-]+)", line)) <= TARGETS, line
        for path in re.findall(r"(?<![\w/])(?:tests|docs|examples|deploy|src|\.ci)/[\w./-]+", line):
            assert (ROOT / path).exists(), path
        for extras in re.findall(r"\[([a-z,]+)\]", line):
            assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"]), line


def test_every_python_from_the_oldest_on_is_tested() -> None:
    versions = jobs(ROOT / ".github" / "workflows" / "test.yml")["everywhere"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["project"]["requires-python"]
    assert versions == [f"3.{minor}" for minor in range(11, 15)]


def test_the_targets_that_people_are_told_of_exist() -> None:
    for name in ("CONTRIBUTING.md", "README.md", "docs/course/en/12-smaller-and-faster.md"):
        told = set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        assert told, name
        assert told <= TARGETS, name
    assert set(re.findall(r'@echo "make ([\w-]+)', MAKEFILE)) == TARGETS - {"help", "clean"}


def test_hooks_run_what_make_check_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"].removesuffix(" --fix") for hook in hooks] == [".venv/bin/ruff check", ".venv/bin/ruff format"]


def test_templates_are_forms_that_a_person_can_fill_in() -> None:
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form)
        assert all(part["attributes"]["label"] for part in form["body"])


def test_images_are_built_without_what_is_large() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".git", ".venv", "**/node_modules", "build", "dist"} <= set(ignored)
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "src", "README.md", "LICENSE"):
        assert name not in ignored
