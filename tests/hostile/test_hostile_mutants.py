"""QUALITY 1: damaged checkpoints are refused with a typed error or load as what their bytes say.

The default run tries the first 120 seeds of each kind; `tests/scripts/fuzz_checkpoints.py` (here `-m slow`) all 2,000.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hostile.corpus import KINDS, mutant
from hostile.isolation import TESTS, Tally, run_isolated
from hostile.mutants import trial

SECONDS, MEGABYTES = 2.0, 64.0


def check(kinds: tuple[str, ...], count: int, folder: Path) -> None:
    cases = (f"{kind}:{seed}" for kind in kinds for seed in range(count))
    tally = Tally.of(run_isolated("hostile.mutants:trial", cases, folder), seconds=SECONDS, megabytes=MEGABYTES)
    print(f"{', '.join(kinds)}, seeds 0 to {count - 1}: {tally}")
    assert not tally.bad, "\n".join(f"{one.case}: {one.verdict}: {one.detail}" for one in tally.bad[:10])
    assert tally.verdicts["loaded"] > 0
    assert tally.verdicts["refused"] > 0


def test_mutants_are_refused_or_load_faithfully(tmp_path: Path) -> None:
    check(KINDS, 120, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_thousand_mutants_are_refused_or_load_faithfully(tmp_path: Path, kind: str) -> None:
    check((kind,), 2000, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_was_sound(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusing everything would pass the tests above; here the damage is undone and each form must load."""
    import hostile.mutants

    for seed in range(20):
        one = mutant(kind, seed)
        whole = type(one)(one.kind, {**one.files, one.hit: one.sound}, one.hit, one.sound)
        monkeypatch.setattr(hostile.mutants, "mutant", lambda *_, whole=whole: whole)
        sound = trial(f"{kind}:{seed}", tmp_path)
        sound.check(sound.load())


FINGERPRINT = """
import hashlib
from hostile.corpus import KINDS, mutant
for kind in KINDS:
    contents = [repr(sorted(mutant(kind, seed).files.items())).encode() for seed in range(40)]
    assert len(set(contents)) > 30
    print(kind, hashlib.sha256(b"".join(contents)).hexdigest())
"""


def test_a_seed_is_the_same_mutant_in_every_process() -> None:
    """Else a failure's seed would be worth nothing. The two differ in hash seed and in where their memory lies."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env=os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == len(KINDS)
