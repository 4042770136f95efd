"""The course in docs/course: what its pages embed, for tests/system/test_course.py, and written anew by `--write`.

    python tests/scripts/course.py --write               # all lessons
    python tests/scripts/course.py --write 03 07         # some, by number

A lesson is written in English (`en/NN-name.md`) and in Chinese (`zh/NN-name.md`), block by block. On its pages

- a Python block right after `<!-- source: FILE NAME -->` is that function, method or class as it stands in FILE; with
  two quoted texts after the name it is the lines from the first one with the first text to the next one with the
  second. A comment above them names both. It is not run.
- every other Python block is run, from top to bottom in one namespace. What it prints is the `text` block right after
  it; numbers with decimals may differ by one in the last place.
- a picture right after `<!-- picture: NAME -->` is what the matplotlib axes NAME of that namespace show by then.

Writing takes the sources, runs the English lesson, puts in what it prints, draws its picture, and copies all code and
output into the Chinese page, so that only prose is written twice.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
ENGLISH, CHINESE = COURSE / "en", COURSE / "zh"

_SOURCE = r"<!-- source: (?P<file>\S+) (?P<name>[\w.]+)(?: \"(?P<first>[^\"]+)\" … \"(?P<last>[^\"]+)\")? -->\n"
_BLOCK = re.compile(
    rf"^(?:{_SOURCE})?```(?P<language>\w*)\n(?P<code>.*?)^```\n"
    r"|^<!-- picture: (?P<picture>\w+) -->\n!\[(?P<alt>[^\]]*)\]\((?P<target>[^)]+)\)\n",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block or a picture of a page, and where it stands."""

    kind: str  # "source", "code", "output" (a `text` block), "picture"; any other fence by its language
    body: str  # between the fences; of a picture the name of its axes
    start: int  # of `body` in the page
    line: int  # the number of its first line
    found: re.Match[str] = field(compare=False)

    @property
    def end(self) -> int:
        return self.start + len(self.body)


def lessons(folder: Path = ENGLISH) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9]-*.md"))


def blocks(page: str) -> list[Block]:
    """In order."""
    kinds = {"python": "code", "text": "output"}
    all_blocks = []
    for found in _BLOCK.finditer(page):
        place = "picture" if found["picture"] else "code"
        kind = "picture" if found["picture"] else "source" if found["file"] else found["language"]
        line = page.count("\n", 0, found.start(place)) + 1
        all_blocks.append(Block(kinds.get(kind, kind), found[place], found.start(place), line, found))
    return all_blocks


def source_of(block: Block) -> str:
    """What a source block must show today."""
    lines = (ROOT / block.found["file"]).read_text(encoding="utf-8").splitlines()
    node: Any = ast.parse("\n".join(lines))
    for name in block.found["name"].split("."):
        node = next(part for part in node.body if getattr(part, "name", None) == name)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    chosen = lines[first - 1 : node.end_lineno]
    if block.found["first"]:
        begin = next(n for n, line in enumerate(chosen) if block.found["first"] in line)
        stop = next(n for n, line in enumerate(chosen) if n >= begin and block.found["last"] in line)
        chosen = chosen[begin : stop + 1]
    shown = textwrap.dedent("\n".join(chosen))
    return f"# {block.found['file']}: {block.found['name']}\n{shown}\n"


def run(path: Path) -> Iterator[tuple[Block, str, dict[str, Any]]]:
    """Each block of code and each picture of a page in turn: what it printed, and the names there are by then."""
    names: dict[str, Any] = {"__name__": "lesson"}
    for block in blocks(path.read_text(encoding="utf-8")):
        printed = io.StringIO()
        if block.kind == "code":
            code = compile("\n" * (block.line - 1) + block.body, str(path), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)  # the page's own code, checked in with it
        if block.kind in ("code", "picture"):
            yield block, printed.getvalue(), names


def output_after(block: Block, page: list[Block]) -> Block | None:
    """What is shown as its output: the `text` block that comes next."""
    following = page[page.index(block) + 1 :]
    return following[0] if following and following[0].kind == "output" else None


def same_output(shown: str, printed: str) -> bool:
    """Whether texts are equal and numbers agree to the last place shown, give or take one. `…` stands for whatever is
    there: on a line of its own for any number of lines, otherwise for a part of a line."""
    numbers: list[str] = []

    def pattern(found: re.Match[str]) -> str:
        if found[0] == "…\n":
            return "(?:.*\n)*?"
        if found[0] == "…":
            return ".*?"
        if not found["number"]:
            return re.escape(found[0])
        numbers.append(found[0])
        return f"({_NUMBER.pattern})"

    wanted = re.sub(rf"(?m:^…\n)|…|(?P<number>{_NUMBER.pattern})|[^\d…-]+|.", pattern, shown)
    found = re.fullmatch(wanted, printed)
    if found is None:
        return False
    for a, b in zip(numbers, found.groups(), strict=True):
        if a != b and ("." not in a or abs(float(a) - float(b)) > 1.01 * 10.0 ** -len(a.partition(".")[2])):
            return False
    return True


# -- writing -----------------------------------------------------------------------------------------------------------


def write(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    for block in reversed(blocks(page)):
        if block.kind == "source":
            page = page[: block.start] + source_of(block) + page[block.end :]
    path.write_text(page, encoding="utf-8")
    found = blocks(page)
    ran = list(run(path))
    for block, printed, names in reversed(ran):
        if block.kind == "picture":
            draw(names[block.body], path.parent / block.found["target"])
            continue
        shown = output_after(block, found)
        if shown and not same_output(shown.body, printed):
            page = page[: shown.start] + printed + page[shown.end :]
        elif printed and not shown:
            page = f"{page[: block.end]}```\n\n```text\n{printed}{page[block.end :]}"
    path.write_text(page, encoding="utf-8")
    translated = CHINESE / path.name
    if translated.exists():
        translated.write_text(with_code_of(page, translated.read_text(encoding="utf-8")), encoding="utf-8")


def with_code_of(page: str, translated: str) -> str:
    """The translated page with all fenced blocks of the page."""
    code = [block for block in blocks(page) if block.kind != "picture"]
    places = [block for block in blocks(translated) if block.kind != "picture"]
    if [block.kind for block in code] != [block.kind for block in places]:
        raise SystemExit(f"the languages differ in their blocks: {[b.kind for b in code]}, {[b.kind for b in places]}")
    for block, place in reversed(list(zip(code, places, strict=True))):
        translated = translated[: place.found.start()] + block.found[0] + translated[place.found.end() :]
    return translated


def draw(axes: Any, target: Path) -> None:
    """As an SVG that is the same every time."""
    import matplotlib

    axes.figure.set_size_inches(6.4, 4.0)
    target.parent.mkdir(exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": target.stem, "svg.fonttype": "none"}):  # letters, not their outlines
        axes.figure.savefig(target, metadata={"Date": None, "Creator": "bertie.explore"})
    # matplotlib ends some lines with spaces, which tools that tidy text files would remove.
    target.write_text(re.sub(r" +$", "", target.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("lesson", nargs="*", help="a lesson's number, 03 say")
    chosen = parser.parse_args().lesson
    for path in lessons():
        if not chosen or path.name[:2] in chosen:
            print(path.relative_to(ROOT))
            write(path)


if __name__ == "__main__":
    main()
