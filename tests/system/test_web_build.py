"""The page that is committed, and so shipped, is what its sources build."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import check_web


@pytest.mark.skipif(not check_web.has_node(), reason="there is no node on this machine, so the page cannot be built")
def test_the_committed_page_is_what_its_sources_build() -> None:
    assert check_web.differences() == []


def test_the_page_is_small_and_names_the_terms_of_what_it_holds() -> None:
    sizes = {file.name: file.stat().st_size for file in check_web.STATIC.iterdir()}
    assert set(sizes) == {"icon.svg", "index.html", "licenses.txt", "page.css", "page.js"}
    assert sizes["page.js"] < 250_000
    terms = (check_web.STATIC / "licenses.txt").read_text(encoding="utf-8")
    assert "d3-scale" in terms
    assert "Permission to use, copy, modify" in terms
