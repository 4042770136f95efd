"""`make docs`: the site, as plain files.

    python docs/site/build.py [FOLDER]         # build/site unless given

The pages of the repository and those made here (Python reference, commands, HTTP) are written into a folder beside it,
a project for each language; Sphinx makes HTML of them, and every warning is an error.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from commands import command_pages
from http_api import http_page
from pages import LANGUAGES, ROOT, Page, Site, course_contents, repository_pages, sidebar
from reference import reference_pages
from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).parent
COURSE = {"en": "The course", "zh": "课程"}


def assemble(folder: Path) -> Site:
    """Writes the pages of both languages into folder/en and folder/zh."""
    site = Site(repository_pages(), folder)
    made = [*reference_pages(), *command_pages(), http_page()]
    for name, text in made:
        site.write(Page("en", name), text)
    contents = [name for name, _ in made if name.count("/") == 1]
    for path, page in site.pages.items():
        if page.name == "index":
            site.write_page(path, sidebar(site, page.language, contents if page.language == "en" else []))
        elif page.name == "course/index":
            site.write_page(path, course_contents(site, page.language))
        else:
            site.write_page(path)
    for language in LANGUAGES:
        names = {page.name for page in site.pages.values() if page.language == language}
        if "course/index" not in names and any(name.startswith("course/") for name in names):
            site.write(Page(language, "course/index"), f"# {COURSE[language]}\n{course_contents(site, language)}")
    site.write_shown_files()
    there = {}
    for language in LANGUAGES:
        place = folder / language
        there[language] = sorted(str(file.relative_to(place).with_suffix("")) for file in place.rglob("*.md"))
    (folder / "pages.json").write_text(json.dumps(there), encoding="utf-8")
    return site


def build(output: Path) -> int:
    work = output.with_name(f"{output.name}-pages")
    for folder in (output, work):
        shutil.rmtree(folder, ignore_errors=True)
    assemble(work)
    for language, tag, place in (("en", "en", output), ("zh", "zh_CN", output / "zh")):
        doctrees = str(work / "doctrees" / language)
        options = ["-q", "-W", "--keep-going", "-b", "html", "-D", f"language={tag}", "-c", str(HERE), "-d", doctrees]
        failed = sphinx([*options, str(work / language), str(place)])
        if failed:
            return failed
    print(f"{output / 'index.html'} and {output / 'zh' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "site"))
