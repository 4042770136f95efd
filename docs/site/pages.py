"""Which file of the repository is which page of the site, and the links between them.

The site is two Sphinx projects: English at the root, Chinese under zh/. A page keeps its text; only its links change. A
link to another page leads to that page, a link to any other file of the repository to a page that shows the file, and a
link from one language to the other leads to the built HTML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from shutil import copyfile

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("en", "zh")

# The sidebar, section by section. A page of docs/ that is not listed here goes to the end of the guides.
LEARN = ["course/index", "tour", "examples"]
GUIDES = [
    "howto", "explore", "explore-page", "training", "results", "bertie-mini", "compress", "bulk", "serve", "deploy",
    "family",
]  # fmt: skip
COMING_FROM = ["migrate", "compatibility"]
PROJECT = {
    "ARCHITECTURE.md": "architecture",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "CODE_OF_CONDUCT.md": "conduct",
    "CHANGELOG.md": "changelog",
}
CAPTIONS = {
    "en": ("Learn", "Guides", "Coming from another library", "Reference", "Project"),
    "zh": ("学习", "指南", "从其他库迁移", "参考", "项目"),
}

FENCE = re.compile(r"^ *(?:> ?)*(`{3,}|~{3,})")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)((?:\s+\"[^\"]*\")?)\)")
HTML_SOURCE = re.compile(r"(<(?:img|source)\b[^>]*?\b(?:src|srcset)=\")([^\"]+)(\")")
HTML_LINK = re.compile(r"(<a\b[^>]*?\bhref=\")([^\"]+)(\")")
MERMAID = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """Where a page is: the language's project, and its name there without an ending."""

    language: str
    name: str

    @property
    def html(self) -> PurePosixPath:
        """Its file in the built site."""
        return PurePosixPath("zh" if self.language == "zh" else "", f"{self.name}.html")


@dataclass
class Site:
    """The pages of the repository's own Markdown files, by their paths there."""

    pages: dict[str, Page]
    folder: Path
    shown: set[str] = field(default_factory=set)  # other files that some page links to

    def write(self, page: Page, text: str) -> None:
        file = self.folder / page.language / f"{page.name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def write_page(self, path: str, more: str = "") -> None:
        text = MERMAID.sub("", (ROOT / path).read_text(encoding="utf-8"))  # GitHub draws these; the site has no script
        self.write(self.pages[path], rewritten(text, path, self) + more)

    def write_shown_files(self) -> None:
        """A page for each file that is not a page itself: the file, with line numbers; or what a folder holds."""
        for path in sorted(self.shown):
            place = ROOT / path
            if place.is_dir():
                names = sorted(each.name for each in place.iterdir() if not each.name.startswith((".", "__")))
                body = "".join(f"- `{name}`\n" for name in names)
            else:
                kind = {".py": "python", ".cpp": "cpp", ".yaml": "yaml", ".yml": "yaml", ".ts": "typescript"}
                language = kind.get(place.suffix, "text")
                code = place.read_text(encoding="utf-8")
                body = f"`````{{code-block}} {language}\n:linenos:\n\n{code.rstrip()}\n`````\n"
            self.write(shown_page(path), f"---\norphan: true\n---\n\n# {path}\n\n{body}")


def shown_page(path: str) -> Page:
    return Page("en", f"source/{path.rstrip('/')}")


def repository_pages() -> dict[str, Page]:
    """Every Markdown file that becomes a page."""
    found = {"README.md": Page("en", "index"), "README.zh.md": Page("zh", "index")}
    found["examples/README.md"] = Page("en", "examples")
    found |= {path: Page("en", f"project/{name}") for path, name in PROJECT.items()}
    for language, folder in (("en", "docs"), ("zh", "docs/zh")):
        found |= {f"{folder}/{file.name}": Page(language, file.stem) for file in sorted((ROOT / folder).glob("*.md"))}
    for language in LANGUAGES:
        for file in sorted((ROOT / "docs" / "course" / language).rglob("*.md")):
            name = "index" if file.stem.lower() == "readme" else file.stem
            found[str(file.relative_to(ROOT))] = Page(language, f"course/{name}")
    return {path: page for path, page in found.items() if (ROOT / path).exists()}


def outside_code(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a Markdown text, and whether each is prose (not in a fenced block)."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = FENCE.match(line)
        if not fence and found:
            fence = found[1]
            yield line, False
        elif fence:
            if found and found[1].startswith(fence) and not line.strip(" >`~\n"):
                fence = ""
            yield line, False
        else:
            yield line, True


def links(text: str) -> list[str]:
    """The targets of all links and images in a Markdown text."""
    prose = "".join(line for line, is_prose in outside_code(text) if is_prose)
    return [
        *(found[3] for found in LINK.finditer(prose)),
        *(found[2] for pattern in (HTML_SOURCE, HTML_LINK) for found in pattern.finditer(prose)),
    ]


def is_outside(target: str) -> bool:
    return target.startswith(("http://", "https://", "mailto:", "//"))


def in_repository(target: str, path: str) -> str:
    """A link's target as a path from the repository's root."""
    return os.path.normpath(PurePosixPath(path).parent / target)


def rewritten(text: str, path: str, site: Site) -> str:
    """The text of a page, with links that are right on the site."""
    page = site.pages[path]

    def copied(target: str) -> str:
        """An image, beside the pages under its own path; what a page at this depth calls it."""
        image = in_repository(target, path)
        copy = site.folder / page.language / "images" / image
        copy.parent.mkdir(parents=True, exist_ok=True)
        copyfile(ROOT / image, copy)
        return os.path.relpath(f"images/{image}", PurePosixPath(page.name).parent)

    def html(target: str) -> str:
        """The address of a target's built page, from this one."""
        aim, mark, fragment = target.partition("#")
        return os.path.relpath(page_of(aim).html, page.html.parent) + mark + fragment

    def page_of(aim: str) -> Page:
        place = in_repository(aim, path)
        if place not in site.pages:
            site.shown.add(place)
        return site.pages.get(place) or shown_page(place)

    def link(found: re.Match[str]) -> str:
        image, words, target, title = found.groups()
        if is_outside(target) or target.startswith("#"):
            return found[0]
        if image:
            return f"![{words}]({copied(target)}{title})"
        aim, mark, fragment = target.partition("#")
        other = page_of(aim)
        if other.language != page.language:
            return f'<a href="{html(target)}">{words}</a>'
        name = os.path.relpath(f"{other.name}.md", PurePosixPath(page.name).parent)
        return f"[{words}]({name}{mark + fragment if in_repository(aim, path) in site.pages else ''}{title})"

    def html_source(found: re.Match[str]) -> str:
        return found[0] if is_outside(found[2]) else found[1] + copied(found[2]) + found[3]

    def html_link(found: re.Match[str]) -> str:
        return found[0] if is_outside(found[2]) or found[2][0] == "#" else found[1] + html(found[2]) + found[3]

    lines = []
    for line, is_prose in outside_code(text):
        if is_prose:
            line = HTML_LINK.sub(html_link, HTML_SOURCE.sub(html_source, line))
            line = LINK.sub(link, line)
        lines.append(line)
    return "".join(lines)


def sidebar(site: Site, language: str, reference: list[str]) -> str:
    """The hidden tables of contents that make the sidebar."""
    names = [page.name for page in site.pages.values() if page.language == language]
    lessons = [name for name in names if name.startswith("course/")]
    loose = [name for name in names if name != "index" and not name.startswith(("course/", "project/"))]
    placed = [*LEARN, *GUIDES, *COMING_FROM]
    sections = (
        [name for name in ["course/index" if lessons else "", *LEARN[1:]] if name in [*names, "course/index"]],
        [name for name in GUIDES if name in loose] + [name for name in loose if name not in placed],
        [name for name in COMING_FROM if name in loose],
        reference,
        [name for name in names if name.startswith("project/")],
    )
    written = ""
    for caption, section in zip(CAPTIONS[language], sections, strict=True):
        section = [name for name in section if name]
        if section:
            written += "\n```{toctree}\n:hidden:\n:caption: " + caption + "\n\n" + "\n".join(section) + "\n```\n"
    return written


def course_contents(site: Site, language: str) -> str:
    """What goes to the end of the course's first page: its lessons, in their order."""
    lessons = sorted(
        page.name.removeprefix("course/")
        for page in site.pages.values()
        if page.language == language and page.name.startswith("course/") and page.name != "course/index"
    )
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(lessons) + "\n```\n"
