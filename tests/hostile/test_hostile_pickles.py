"""QUALITY 3: no `.bin` file runs anything."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import pytest

from hostile.isolation import Tally, run_isolated
from hostile.pickles import ATTACKS, CASES

# Those that a plain unpickler runs on this system, by which the canaries are known to work.
LIVE = [name for name in ATTACKS if name.startswith(("mkdir", "os.system", "posix", "builtins", "importlib", "operator",
        "subprocess", "INST", "STACK_GLOBAL", "REDUCE", "a value", "a key", "functools"))]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", LIVE)
def test_the_canary_runs_in_a_plain_unpickler(tmp_path: Path, attack: str) -> None:
    canary = tmp_path / "canary"
    with contextlib.suppress(TypeError, KeyError, AttributeError):  # what the call returned may be of no use
        pickle.loads(ATTACKS[attack](str(canary)))
    assert canary.exists()


def test_no_pickle_runs_and_all_are_refused(tmp_path: Path) -> None:
    assert len(ATTACKS) >= 40
    outcomes = list(run_isolated("hostile.pickles:trial", CASES, tmp_path))
    tally = Tally.of(outcomes, seconds=2, megabytes=64)
    print(f"hostile pickles: {tally}")
    assert not tally.bad, "\n".join(f"{one.case}: {one.verdict}: {one.detail}" for one in tally.bad)
    assert all(one.verdict == "refused" for one in outcomes)
