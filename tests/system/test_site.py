"""The built site: no warnings; search, dark mode and languages work in a browser; nothing comes from another host."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from system.explore_browser import CHROMIUM, SWITCHES

pytest.importorskip("sphinx", reason="sphinx is not installed")
pytestmark = pytest.mark.slow  # a minute, most of it Sphinx
ROOT = Path(__file__).parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, str(ROOT / "docs" / "site" / "build.py"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    """A page whose every request to another host fails the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    host = urlsplit(address).netloc
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=SWITCHES)
        opened = browser.new_page()
        opened.set_default_timeout(30_000)
        asked, failed = [], []
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("pageerror", lambda error: failed.append(str(error)))
        yield opened
        browser.close()
    assert asked
    assert not [url for url in asked if urlsplit(url).netloc not in (host, "")]
    assert not failed


def test_search_dark_mode_and_the_language_switch_work(page: Any, address: str) -> None:
    page.goto(f"{address}/index.html")
    assert page.locator("h1").first.inner_text().startswith("Bertie")
    page.get_by_role("link", name="中文").first.click()
    assert urlsplit(page.url).path == "/zh/index.html"
    assert page.locator("html").get_attribute("lang") in ("zh-CN", "zh")
    page.get_by_role("link", name="English").first.click()
    assert urlsplit(page.url).path == "/index.html"

    colours = set()
    for _ in range(3):  # light, dark, as the system has it
        page.locator("button.theme-toggle:visible").first.click()
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2

    page.locator("input[name=q]").fill("relative positions")
    page.locator("input[name=q]").press("Enter")
    page.locator("#search-results li a").first.wait_for()
    assert page.locator("#search-results li").count() >= 2


def test_chinese_is_found_by_any_part_of_a_sentence(page: Any, address: str) -> None:
    page.goto(f"{address}/zh/search.html?q=注意力")
    page.locator("#search-results li a").first.wait_for()


def test_every_page_of_the_site_opens_without_asking_elsewhere(page: Any, address: str, site: Path) -> None:
    files = sorted(site.rglob("*.html"))
    assert len(files) > 40
    for file in files:
        if file.relative_to(site).parts[0] in ("_static", "source"):
            continue
        answer = page.goto(f"{address}/{file.relative_to(site).as_posix()}", wait_until="domcontentloaded")
        assert answer.ok
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        page.wait_for_load_state("load")
        assert page.evaluate(broken) == [], file


@pytest.mark.parametrize("width", [390, 1440])
def test_pages_fit_the_screen(page: Any, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for name in ("index", "training", "compatibility", "http/index", "reference/index", "zh/index"):
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
