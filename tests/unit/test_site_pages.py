"""The pages of the site before it is built: every link leads somewhere, nothing is loaded from outside, both languages
have the same code and figures, and the code that cuts Chinese for the search is right."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import pages as site_pages  # noqa: E402
from pages import Page, Site, in_repository, is_outside, links, outside_code, repository_pages, sidebar  # noqa: E402

PAGES = repository_pages()
BLOCK = re.compile(r"^(```+)(\w*)\n(.*?)^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
FIGURE = re.compile(r"\d[\d.,]*\d|\d")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """GitHub's names for the headings of a text."""
    prose = "".join(line for line, is_prose in outside_code(text) if is_prose)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in HEADING.findall(prose)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in words}


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path: str) -> None:
    for target in links(read(path)):
        if is_outside(target):
            continue
        aim, _, fragment = target.partition("#")
        place = in_repository(aim, path) if aim else path
        assert (ROOT / place).exists(), target
        if fragment and place in PAGES:
            assert fragment in anchors(read(place)), target


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_nothing_from_outside(path: str) -> None:
    prose = "".join(line for line, is_prose in outside_code(read(path)) if is_prose)
    loaded = [found[3] for found in site_pages.LINK.finditer(prose) if found[1]]
    loaded += [found[2] for found in site_pages.HTML_SOURCE.finditer(prose)]
    assert not [target for target in loaded if is_outside(target)]
    assert not re.search(r"<(script|iframe|link|object|embed)\b", prose)


def both_languages() -> list[tuple[str, str]]:
    by_place = {(page.language, page.name): path for path, page in PAGES.items()}
    return [
        (path, by_place["zh", name])
        for (language, name), path in by_place.items()
        if language == "en" and ("zh", name) in by_place
    ]


@pytest.mark.parametrize(("english", "chinese"), both_languages())
def test_both_languages_have_the_same_code(english: str, chinese: str) -> None:
    ours, theirs = ([found[2:] for found in BLOCK.findall(read(path))] for path in (english, chinese))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        pairs = zip(one[0].splitlines(), other[0].splitlines(), strict=True)
        assert [pair for pair in pairs if pair[0] != pair[1] and not translated(*pair)] == []


@pytest.mark.parametrize(("english", "chinese"), both_languages())
def test_both_languages_have_the_same_blocks_in_the_same_order(english: str, chinese: str) -> None:
    assert shape(english) == shape(chinese)


@pytest.mark.parametrize(("english", "chinese"), both_languages())
def test_both_languages_name_the_same_things_in_prose(english: str, chinese: str) -> None:
    """What is in backticks, and the figures of tables, row by row."""
    ours, theirs = (BLOCK.sub("", read(path)) for path in (english, chinese))
    assert set(CODE.findall(ours)) == set(CODE.findall(theirs))
    for one, other in zip(rows(ours), rows(theirs), strict=True):
        assert FIGURE.findall(one) == FIGURE.findall(other)


def translated(english: str, chinese: str) -> bool:
    """Whether two lines of code differ in a comment alone, which is Chinese in one of them."""
    comment = re.compile(r"(^|\s+)(#|//) .*")
    return comment.sub("", english) == comment.sub("", chinese) and bool(re.search("[\u4e00-\u9fff]", chinese))


def rows(text: str) -> list[str]:
    """The rows of all tables, without the names in backticks and the targets of links."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [re.sub(r"\]\([^)]*\)", "", CODE.sub("", line)) for line in lines]


def shape(path: str) -> list[str]:
    """What a page is made of: headings by depth, code, tables by their rows, pictures, paragraphs and lists."""
    found: list[str] = []
    text = read(path)
    for block in re.split(r"\n{2,}", re.sub(r"^```.*?^```", "CODE\n", text, flags=re.MULTILINE | re.DOTALL)):
        first = block.strip().splitlines()[0] if block.strip() else ""
        if first.startswith("#"):
            found.append(first.split()[0])
        elif first.startswith("|"):
            found.append(f"table of {len(block.strip().splitlines())} rows")
        elif first.startswith("!["):
            found.append(f"picture {in_repository(first.rpartition('(')[2].rstrip(')'), path)}")
        elif first.startswith(("- ", "* ")):
            found.append(f"list of {len(re.findall(r'^[-*] ', block, re.MULTILINE))}")
        elif first:
            found.append("code" if first == "CODE" else "paragraph")
    return found


def test_every_page_is_in_the_sidebar(tmp_path: Path) -> None:
    for language in site_pages.LANGUAGES:
        written = sidebar(Site(PAGES, tmp_path), language, [])
        for page in PAGES.values():
            if page.language == language and page.name != "index" and not page.name.startswith("course/"):
                assert f"\n{page.name}\n" in written


def test_links_are_rewritten_for_the_site(tmp_path: Path) -> None:
    there = {
        "README.md": Page("en", "index"),
        "docs/serve.md": Page("en", "serve"),
        "README.zh.md": Page("zh", "index"),
    }
    site = Site(there, tmp_path)

    def rewritten(text: str, path: str) -> str:
        return site_pages.rewritten(text, path, site)

    assert rewritten("[a](docs/serve.md#keys)", "README.md") == "[a](serve.md#keys)"
    assert rewritten("[a](docs/serve.md)", "README.zh.md") == '<a href="../serve.html">a</a>'
    assert rewritten("[中文](README.zh.md)", "README.md") == '<a href="zh/index.html">中文</a>'
    assert rewritten("[`f`](../setup.py)", "docs/serve.md") == "[`f`](source/setup.py.md)"
    assert rewritten("[a](https://a.b/c)", "README.md") == "[a](https://a.b/c)"
    assert rewritten("```\n[a](docs/serve.md)\n```\n", "README.md") == "```\n[a](docs/serve.md)\n```\n"
    assert site.shown == {"setup.py"}


def test_chinese_is_cut_into_pairs_for_the_search() -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    from search_zh import SearchChinesePairs

    search = SearchChinesePairs({})
    assert search.split("注意力 BERT的头, a_b") == ["注意", "意力", "BERT", "的头", "a_b"]
