"""QUALITY 5: no name leads a load or a save out of its folder."""

from __future__ import annotations

from pathlib import Path

from hostile.isolation import Tally, run_isolated
from hostile.paths import CASES


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    assert len(CASES) >= 60
    tally = Tally.of(run_isolated("hostile.paths:trial", CASES, tmp_path), seconds=2, megabytes=64)
    print(f"hostile paths: {tally}")
    assert not tally.bad, "\n".join(f"{one.case}: {one.verdict}: {one.detail}" for one in tally.bad)
