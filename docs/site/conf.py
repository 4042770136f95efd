"""Sphinx's settings, for both languages (build.py sets `language`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # search_zh.py

from pages import Page
from search_zh import SearchChinesePairs

import bertie

project = "Bertie"
version = release = bertie.__version__
html_title = f"Bertie {version}"
extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_block"]
myst_heading_anchors = 4  # GitHub's own names for headings, so that links to them work in both places
highlight_language = "text"
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": ["edit"]}  # the place where templates/ has the language switch
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False


def switch_language(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """The other language's address of this page, or of its first page where it has no such page."""
    own = "zh" if app.config.language.startswith("zh") else "en"
    other = "en" if own == "zh" else "zh"
    there = json.loads((Path(app.srcdir).parent / "pages.json").read_text(encoding="utf-8"))[other]
    target = Page(other, pagename if pagename in there else "index").html
    up = "../" * (pagename.count("/") + (own == "zh"))
    context["other_language"] = {"url": f"{up}{target}", "name": {"en": "English", "zh": "中文"}[other], "tag": other}


def setup(app: Any) -> None:
    app.add_search_language(SearchChinesePairs)
    app.connect("html-page-context", switch_language)
