"""`bertie serve` as a process: it drains on SIGTERM and bears an overload. test_serve_processes.py has several.

The long forms are scripts: tests/scripts/serve_drain.py and serve_overload.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.serve_drain import run as run_drains
from scripts.serve_overload import measure
from system.serve_process import FORM_NAMES, FORMS


def check_drains(rounds: int) -> None:
    for one in run_drains(rounds, seed=1):
        assert one.good, one


def test_sigterm_under_load_loses_nothing() -> None:
    check_drains(1)


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing_twenty_times() -> None:
    check_drains(20)


def check_overload(seconds: float, p99: float, options: tuple[str, ...] = ()) -> None:
    found = measure(seconds, options)
    assert found.factor > 4, found
    assert found.others == 0, found
    assert found.refused > 0, found
    assert found.without_retry_after == 0, found
    assert found.refusal_p50 <= 0.1, found
    assert found.refusal_p99 <= p99, found
    assert found.memory_growth <= 0.05, found
    assert found.recovered_after <= 5, found


@pytest.mark.parametrize("options", FORMS, ids=FORM_NAMES)
def test_an_overload_is_refused_at_once_and_passes(options: tuple[str, ...]) -> None:
    check_overload(3, p99=0.5, options=options)  # other tests run beside this one


@pytest.mark.slow
@pytest.mark.parametrize("options", FORMS, ids=FORM_NAMES)
def test_a_long_overload_is_refused_at_once_and_passes(options: tuple[str, ...]) -> None:
    check_overload(20, p99=0.1, options=options)


def test_mistakes_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bertie.cli.main import main

    for given, said in [
        (["-m", "a=x", "-m", "a=y"], "Two models are called 'a'"),
        (["--api-key-file", str(tmp_path / "none")], "cannot be read"),
        (["-m", "=x"], "does not name a model"),
        (["--host", "203.0.113.77"], "cannot listen on 203.0.113.77"),
    ]:
        assert main(["serve", *given]) == 2
        written = capsys.readouterr().err
        assert said in written
        assert len(written.strip().splitlines()) == 2
