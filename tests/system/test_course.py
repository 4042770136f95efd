"""The course: its code runs and prints what is shown, its sources are ours, and its two languages are equal."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
AGAIN = "run make course"


def _course() -> ModuleType:
    """tests/scripts/course.py, which is a program and no package."""
    found = importlib.util.spec_from_file_location("course", ROOT / "tests" / "scripts" / "course.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["course"] = module  # its dataclass looks itself up
    found.loader.exec_module(module)
    return module


course = _course()
LESSONS = course.lessons()
INDEXES = [folder / "index.md" for folder in (course.ENGLISH, course.CHINESE)]
PAGES = [*LESSONS, *course.lessons(course.CHINESE), *INDEXES]
GUIDES = sorted((ROOT / "docs" / "zh").glob("*.md"))
CHINESE_PAGES = [*course.lessons(course.CHINESE), INDEXES[1], *GUIDES, ROOT / "README.zh.md"]
LARGEST_PICTURE = 60_000  # bytes
MOST_WORDS = 1800  # of prose: a quarter of an hour at 120 words a minute, a pace for reading code between them

CHINESE_CHARACTER = "[\u4e00-\u9fff]"

markdown = MarkdownIt("commonmark").enable("table")


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def _kinds(path: Path) -> list[tuple[str, str, str]]:
    """Every block of a page: paragraphs, headings, items of lists, rows of tables, code."""
    return [(token.type, token.tag, token.info) for token in markdown.parse(path.read_text(encoding="utf-8"))]


def _prose(path: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_there_are_twelve_lessons_in_both_languages() -> None:
    assert [path.name[:2] for path in LESSONS] == [f"{number:02}" for number in range(1, 13)]
    assert [path.name for path in LESSONS] == [path.name for path in course.lessons(course.CHINESE)]


@pytest.mark.parametrize("path", LESSONS, ids=_name)
def test_code_of_a_lesson_runs_and_prints_what_is_shown(path: Path) -> None:
    found = course.blocks(path.read_text(encoding="utf-8"))
    for block, printed, names in course.run(path):
        if block.kind == "picture":
            assert hasattr(names[block.body], "figure"), f"line {block.line}: {block.body} is no picture"
            continue
        shown = course.output_after(block, found)
        same = course.same_output(shown.body if shown else "", printed)
        assert same, f"line {block.line} prints\n{printed}\n{AGAIN}, if that is right"


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_embedded_source_is_what_the_files_say(path: Path) -> None:
    for block in course.blocks(path.read_text(encoding="utf-8")):
        if block.kind == "source":
            assert block.body == course.source_of(block), f"line {block.line}: {AGAIN}"


@pytest.mark.parametrize("path", [*LESSONS, INDEXES[0]], ids=_name)
def test_languages_are_equal_block_by_block(path: Path) -> None:
    translated = course.CHINESE / path.name
    assert _kinds(path) == _kinds(translated)
    code, other = (course.blocks(page.read_text(encoding="utf-8")) for page in (path, translated))
    assert [(block.kind, block.body) for block in code] == [(block.kind, block.body) for block in other], AGAIN
    pictures = [[block.found["target"] for block in page if block.kind == "picture"] for page in (code, other)]
    assert pictures[0] == pictures[1]
    for pattern in (r"\]\(([^)]+)\)", r"`([^`\n]+)`"):
        mentioned, other_mentioned = (
            set(re.findall(pattern, _prose(page).replace("../en/", "../").replace("../zh/", "../")))
            for page in (path, translated)
        )
        assert mentioned == other_mentioned


@pytest.mark.parametrize("path", CHINESE_PAGES, ids=_name)
def test_chinese_prose_is_chinese_with_chinese_punctuation(path: Path) -> None:
    for token in markdown.parse(path.read_text(encoding="utf-8")):
        for part in token.children or ():
            if part.type == "text":
                assert not re.search(rf"{CHINESE_CHARACTER}[,.;:?!()]|[,.;:?!()]{CHINESE_CHARACTER}", part.content)
                words = re.findall(r"[A-Za-z]{3,}", part.content)
                assert len(words) <= 6 or re.search(CHINESE_CHARACTER, part.content), part.content


@pytest.mark.parametrize("path", LESSONS, ids=_name)
def test_a_lesson_has_source_picture_and_three_answers_that_are_checked(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    kinds = {block.kind for block in course.blocks(page)}
    assert {"source", "code", "picture"} <= kinds
    answers = re.findall(r"^<details>\n<summary>.*?</summary>\n\n(.*?)^</details>$", page, re.MULTILINE | re.DOTALL)
    assert len(answers) == page.count("<details>") == 3
    for answer in answers:
        assert any("assert " in block.body for block in course.blocks(answer) if block.kind == "code")


@pytest.mark.parametrize("path", LESSONS, ids=_name)
def test_a_lesson_is_read_in_a_quarter_of_an_hour(path: Path) -> None:
    assert len(_prose(path).split()) <= MOST_WORDS


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_pictures_are_small_and_all_of_them_shown() -> None:
    shown = {
        (path.parent / block.found["target"]).resolve()
        for path in LESSONS
        for block in course.blocks(path.read_text(encoding="utf-8"))
        if block.kind == "picture"
    }
    assert shown == {path.resolve() for path in (course.COURSE / "pictures").iterdir()}
    for path in shown:
        assert path.stat().st_size <= LARGEST_PICTURE, path.name


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("ship 0.205\n", "ship 0.205\n", True),
        ("ship 0.205\n", "ship 0.206\n", True),
        ("ship 0.205\n", "ship 0.207\n", False),
        ("ship 0.205\n", "boat 0.205\n", False),
        ("[1, 12]\n", "[1, 13]\n", False),
        ("-0.50\n", "0.50\n", False),
        ("", "ship\n", False),
    ],
)
def test_output_may_differ_in_the_last_place_only(shown: str, printed: str, same: bool) -> None:
    assert course.same_output(shown, printed) is same
