"""Bulk jobs whose driver or worker is killed: every row exactly once, the same bits, little computed twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import bertie
from bertie.cli.main import main
from bulk_jobs import answers, jsonl_file, parquet_files, some_texts
from sentence_models import tiny_sentence_model
from system.bulk_kills import ForkedDriver, begun, parts, wait_for


def prepared(folder: Path, rows: int, piece_rows: int) -> dict[str, Any]:
    parquet_files(folder / "in", some_texts(rows))
    model = tiny_sentence_model(folder / "model")
    return {"input": str(folder / "in"), "output": str(folder / "out"), "model": model, "piece_rows": piece_rows}


def kill_driver(folder: Path, kills: int) -> None:
    pieces = 60 + 12 * kills  # so many that a fast machine is not done before the last kill
    asked = prepared(folder, 20 * pieces, 20)
    log, chance = folder / "log", random.Random(0)
    done = 0
    for number in range(kills):
        driver = ForkedDriver(asked, log)
        before = len(begun(log))
        # Sometimes while it starts, mostly at work.
        if number % 5:
            wait_for(lambda before=before: len(begun(log)) > before, "a piece", driver)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.02))
        driver.kill()
        assert parts(folder / "out") >= done
        done = parts(folder / "out")
        assert done < pieces, "the job was over before all kills were done"
    report = ForkedDriver(asked, log).finished()
    assert report["rows"] == 20 * pieces
    assert report["computed"] == pieces - done
    assert len(begun(log)) <= pieces + kills  # one worker, so one piece at most is lost to a kill
    bertie.bulk("embed", **asked | {"output": str(folder / "whole")})
    assert answers(folder / "out").equals(answers(folder / "whole"))
    assert not list((folder / "out").glob(".*"))
    print(f"{kills} kills, {len(begun(log)) - pieces} pieces of {pieces} begun twice, every row once")


def test_a_driver_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    kill_driver(tmp_path, 3)


@pytest.mark.slow
def test_a_driver_killed_a_hundred_times_loses_nothing(tmp_path: Path) -> None:
    kill_driver(tmp_path, 100)


TRAP = """
import json, os, signal, sys
import bertie
from bertie.bulk import work

actual = work.Worker._start


def start(self, number, tick):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return actual(self, number, tick)


work.Worker._start = start  # also in processes that are spawned, which import this file
if __name__ == "__main__":
    report = bertie.bulk("embed", **json.loads(sys.argv[1]))
    print(json.dumps([report.pieces_done, dict(report.set_aside)]))
"""


def test_a_piece_that_kills_its_process_three_times_is_set_aside(tmp_path: Path) -> None:
    """Two processes; whoever begins piece 2 is killed, as the system's memory killer would."""
    asked = prepared(tmp_path, 400, 100)
    (tmp_path / "trap.py").write_text(TRAP)
    line = [sys.executable, str(tmp_path / "trap.py"), json.dumps(asked | {"workers": 2})]
    found = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    done, aside = json.loads(found.stdout)
    assert done == 3
    ((piece, reason),) = aside.items()
    assert piece.startswith("piece 2: ")
    assert reason == f"it ended its process 3 times (signal {signal.SIGKILL.value})"
    assert bertie.bulk("embed", **asked).computed == 1  # here nothing is wrong with it
    bertie.bulk("embed", **asked | {"output": str(tmp_path / "whole")})
    assert answers(tmp_path / "out").equals(answers(tmp_path / "whole"))


@pytest.mark.slow
def test_a_script_that_every_process_would_run_again_is_told_so(tmp_path: Path) -> None:
    asked = prepared(tmp_path, 400, 100)
    (tmp_path / "script.py").write_text(f"import bertie\nbertie.bulk('embed', **{asked!r}, workers=2)\n")
    found = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=300)
    assert found.returncode == 1
    assert "ended before they could begin, 3 one after the other (exit code 1)" in found.stderr
    assert 'under `if __name__ == "__main__":`' in found.stderr
    assert bertie.bulk("embed", **asked).rows == 400


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command line has its own

    def command(*line: str) -> tuple[int, str, str]:
        code = main(["bulk", *line])
        return code, *capsys.readouterr()

    return command


def test_the_command_plans_runs_goes_on_and_says_how_it_ended(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    asked = prepared(tmp_path, 300, 100)
    line = ("embed", asked["input"], asked["output"], "-m", asked["model"], "--piece-rows", "100")
    code, out, _ = run(*line, "--plan")
    assert (code, "pieces      3 of 100 rows" in out) == (0, True)
    assert not Path(asked["output"]).exists()
    code, out, _ = run(*line, "--price", "3.6")
    assert code == 0
    assert out.startswith("300 rows in 3 files in ")
    assert "rows/s" in out
    assert "per million rows" in out
    code, _, said = run(*line)
    assert (code, "Nothing is left to do" in said) == (0, True)
    (tmp_path / "out" / "part-000001.parquet").unlink()
    assert "The job continues: 2 of 3 pieces are done." in run(*line)[2]
    code, _, said = run("embed", asked["input"])
    assert code == 2
    assert "is the only name: the input comes first, the output last" in said
    code, _, said = run(*line, "--truncate-dim", "8")
    assert code == 2
    assert "holds another job: truncate_dim was the default, and now it is 8" in said


def test_bad_rows_and_damaged_files_have_their_exit_codes(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    asked = prepared(tmp_path, 300, 100)
    rows = jsonl_file(tmp_path / "rows.jsonl", [{"text": "good"}, {"text": None}])
    code, _, said = run("embed", str(rows), str(tmp_path / "strict"), "-m", asked["model"], "--strict")
    assert code == 2
    assert "rows.jsonl, row 2: the column 'text' is empty" in said
    assert "run without --strict" in said
    code, out, _ = run("embed", str(rows), str(tmp_path / "strict"), "-m", asked["model"], "--json")
    assert (code, json.loads(out)["errors"]) == (0, 1)
    code, _, said = run("embed", str(rows), str(tmp_path / "noted"), "-m", asked["model"])
    assert "1 row could not be answered: see the column 'error'" in said
    damaged = tmp_path / "in" / "2.parquet"
    with pq.ParquetFile(damaged) as file:
        size = file.metadata.row_group(0).total_byte_size
    with damaged.open("r+b") as stream:  # the footer stays, the rows do not
        stream.seek(4)
        stream.write(bytes(size // 2))
    code, _, said = run("embed", asked["input"], asked["output"], "-m", asked["model"], "--piece-rows", "100")
    assert code == 3
    assert "2.parquet: cannot be read as parquet" in said
    assert "set aside" in said


def test_interrupted_the_command_leaves_a_job_to_go_on_with(tmp_path: Path) -> None:
    asked = prepared(tmp_path, 6000, 100)
    line = ["embed", asked["input"], asked["output"], "-m", asked["model"], "--piece-rows", "100"]
    # Tests may run where SIGINT is ignored, and children would inherit that.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"sys.argv = ['bertie', 'bulk', *{line!r}]; from bertie.cli.main import entry; entry()"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ)
    out = Path(asked["output"])
    wait_for(lambda: parts(out) > 0 or process.poll() is not None, "a part")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    # The signal may come after a part is published and before it is counted.
    told = re.search(r"(\d+) of 60 pieces are done\. Run the same command again to continue\.", said)
    assert told is not None, said
    assert parts(out) - int(told[1]) in (0, 1)
    assert 0 < parts(out) < 60
    assert bertie.bulk("embed", **asked).rows == 6000
    assert answers(out)["id"].to_pylist() == list(range(6000))
