"""QUALITY 6: what a small file may cost."""

from __future__ import annotations

from pathlib import Path

from hostile.bombs import BOMBS
from hostile.isolation import Tally, run_isolated


def test_every_bomb_is_an_error_within_a_second_and_200_megabytes(tmp_path: Path) -> None:
    tally = Tally.of(run_isolated("hostile.bombs:trial", BOMBS, tmp_path), seconds=1, megabytes=200)
    print(f"bombs: {tally}")
    assert not tally.bad, "\n".join(f"{one.case}: {one.verdict}: {one.detail}" for one in tally.bad)
