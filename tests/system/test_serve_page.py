"""The try-it page in a real browser: every tab answers, nothing leaves this host, nothing that is typed in is run.

QUALITY 24: 30 injection strings, 0 executed; Content-Security-Policy self; 0 requests to other hosts.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from system.serve_process import Server, serving
from system.workshop import build
from tiny_models import saved

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
MODELS = ("my-bert", "my-sentiment", "my-nli", "my-cross-encoder", "my-ner", "my-squad")
TABS = [
    "embed",
    "similarity",
    "rerank",
    "classify",
    "zero-shot",
    "tag",
    "answer",
    "fill",
    "next",
    "features",
    "tokenize",
]
SHOTS = os.environ.get("BERTIE_SHOTS")  # a folder to put pictures of every tab into

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

# What a page that pastes texts into its markup would run. Each one, run, calls `pwned`.
INJECTIONS = [
    "<script>pwned(1)</script>",
    "<img src=x onerror=pwned(2)>",
    "<svg onload=pwned(3)>",
    "<svg><script>pwned(4)</script></svg>",
    '"><script>pwned(5)</script>',
    "'><img src=x onerror=pwned(6)>",
    "</textarea><script>pwned(7)</script>",
    "</pre><script>pwned(8)</script>",
    "</title><script>pwned(9)</script>",
    "<iframe srcdoc='<script>parent.pwned(10)</script>'></iframe>",
    '<iframe src="javascript:parent.pwned(11)"></iframe>',
    '<a href="javascript:pwned(12)">click</a>',
    "<body onload=pwned(13)>",
    "<details open ontoggle=pwned(14)>",
    "<input autofocus onfocus=pwned(15)>",
    "<video><source onerror=pwned(16)></video>",
    "<math><mtext><img src=x onerror=pwned(17)></mtext></math>",
    "<style>@import 'javascript:pwned(18)';</style>",
    "<link rel=stylesheet href='javascript:pwned(19)'>",
    "<object data='javascript:pwned(20)'></object>",
    "<embed src='javascript:pwned(21)'>",
    "<form action='javascript:pwned(22)'><button autofocus>",
    "<meta http-equiv=refresh content='0;url=javascript:pwned(23)'>",
    "<base href='https://example.invalid/'>",
    "<template><script>pwned(25)</script></template>",
    "${pwned(26)} {{pwned(26)}} <%= pwned(26) %>",
    "'; pwned(27); //",
    "\\u003cimg src=x onerror=pwned(28)\\u003e",
    "javascript:pwned(29)",
    "<scr\x00ipt>pwned(30)</scr\x00ipt><ScRiPt>pwned(30)</sCrIpT>",
    "&lt;img src=x onerror=pwned(31)&gt;",
    "😀<b onmouseover=pwned(32)>x</b>",
]


# A checkpoint's labels come from a file that a stranger may have written.
EVIL_LABELS = ["<img src=x onerror=pwned(40)>", "<script>pwned(41)</script>"]


@dataclass
class Watch:
    """What a page did that it should not."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pwned: list[Any] = field(default_factory=list)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("page")
    build(folder)
    saved(folder / "my-evil", "BertForSequenceClassification", id2label=dict(enumerate(EVIL_LABELS)))
    named = [part for name in (*MODELS, "my-evil") for part in ("--model", str(folder / name))]
    with serving(folder, *named) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=SWITCHES)
        yield opened
        opened.close()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def page(browser: Any, server: Server, watch: Watch) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 860}, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.on("request", lambda request: watch.requests.append(request.url))
    opened.on("pageerror", lambda error: watch.errors.append(str(error)))
    opened.on("console", lambda message: watch.errors.append(message.text) if message.type == "error" else None)
    opened.on("dialog", lambda dialog: (watch.pwned.append(dialog.message), dialog.dismiss()))
    opened.expose_function("pwned", lambda *given: watch.pwned.append(given))
    opened.goto(server.url)
    opened.wait_for_selector("#tabs button")
    yield opened
    context.close()


def go(page: Any, tab: str) -> None:
    page.click(f"#tab-{tab}")
    page.wait_for_selector(f"#tab-{tab}[aria-selected=true]")


def ask(page: Any) -> str:
    """Press the button; what stands in the answer, or in the error."""
    page.click("#send")
    page.wait_for_selector("#answer .took, #answer .error")
    found: str = page.inner_text("#answer")
    return found


def test_there_is_a_tab_for_every_task_of_the_models(page: Any) -> None:
    names = page.eval_on_selector_all("#tabs button", "tabs => tabs.map(tab => tab.dataset.task)")
    assert names == TABS


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_answers_its_example(page: Any, watch: Watch, server: Server, tab: str) -> None:
    go(page, tab)
    shown = ask(page)
    assert page.query_selector("#answer .error") is None, shown
    assert "ms round trip" in shown
    curl = page.text_content("#curl")
    assert curl.startswith(f"curl -s {server.url}/")
    drawn = {
        "embed": ".matrix td", "similarity": ".ranking li", "rerank": ".ranking li", "classify": ".bars .track",
        "zero-shot": ".bars .track", "tag": ".text", "answer": ".text", "fill": ".bars .track", "next": ".verdict",
        "features": "canvas.thin", "tokenize": ".piece",
    }  # fmt: skip
    assert page.query_selector(f"#answer {drawn[tab]}") is not None
    assert not watch.errors
    assert {urlsplit(url).netloc for url in watch.requests} == {urlsplit(server.url).netloc}
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{tab}.png"), full_page=True)


def test_the_copied_curl_command_gives_the_answer_that_is_shown(page: Any, server: Server) -> None:
    """A text with quotes, backslashes and a line of shell in it survives the shell."""
    import json
    import subprocess

    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    go(page, "tokenize")
    text = 'it\'s "quoted" \\ $(touch /tmp/never) `x` ; é 漢'
    page.fill("#field-text", text)
    ask(page)
    command = page.text_content("#curl")
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert json.loads(done.stdout) == server.post("/tokenize", {"inputs": [text]}).json()


def test_errors_show_cause_and_remedy(page: Any) -> None:
    go(page, "fill")
    page.fill("#field-text", "There is no mask here.")
    shown = ask(page)
    assert "mask" in shown.lower()
    assert page.query_selector("#answer .error p") is not None
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / "error.png"), full_page=True)


def test_offsets_are_right_beyond_the_basic_plane(page: Any) -> None:
    go(page, "answer")
    context = "😀😀😀 Ada lived in London."
    page.fill("#field-context", context)
    ask(page)
    best = page.query_selector("#answer mark")
    if best is not None:
        assert best.inner_text().strip() == page.inner_text("#answer .verdict").strip()
    assert page.inner_text("#answer .text") == context


def test_tabs_and_form_work_from_the_keyboard(page: Any) -> None:
    page.focus("#tab-embed")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.task") == "similarity"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.task") == "tokenize"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.task") == "embed"
    page.focus("#field-texts")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#answer .took")


def test_explore_is_a_section_of_the_page(page: Any, watch: Watch, server: Server) -> None:
    page.click("#section-explore")
    page.wait_for_selector("#view[data-ready='attention']")
    assert page.is_hidden("#tasks")
    for model in ("my-ner", "my-squad"):
        page.evaluate("document.querySelector('#view').id = 'view-of-the-last-model'")
        page.select_option("#model", model)
        page.wait_for_selector("#explore:not(.busy) #view[data-ready='attention']")
        assert page.locator("#view-of-the-last-model").count() == 0
        assert page.locator(".thumb").count() > 0
    page.click("#section-tasks")
    page.wait_for_selector("#tab-embed[aria-selected=true]")
    assert page.is_hidden("#explore")
    assert not watch.errors
    assert {urlsplit(url).netloc for url in watch.requests} == {urlsplit(server.url).netloc}


def test_dark_and_small(browser: Any, server: Server) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{server.url}/#embed")
    page.wait_for_selector("#send")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#send")
    page.wait_for_selector("#answer .took")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / "dark-small.png"), full_page=True)
    page.set_viewport_size({"width": 1200, "height": 860})
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / "dark.png"), full_page=True)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    context.close()


def test_nothing_that_is_typed_in_is_run(page: Any, watch: Watch, server: Server) -> None:
    fields = {
        "tokenize": ["text"], "embed": ["texts"], "similarity": ["source", "others"], "rerank": ["query", "documents"],
        "classify": ["texts"], "zero-shot": ["texts", "labels"], "tag": ["text"], "answer": ["question", "context"],
        "next": ["first", "second"], "features": ["text"],
    }  # fmt: skip
    assert len(INJECTIONS) >= 30
    for tab, names in fields.items():
        go(page, tab)
        # The short tour has every string once in one tab, and all of them together in each of the others.
        rounds = INJECTIONS if tab == "tokenize" else ["\n".join(INJECTIONS)]
        for text in rounds:
            for name in names:
                page.fill(f"#field-{name}", text)
            ask(page)
    go(page, "fill")
    page.fill("#field-text", "[MASK] " + " ".join(INJECTIONS[:4]))
    page.fill("#field-targets", ", ".join(INJECTIONS[:8]))
    ask(page)
    page.goto(f"{server.url}/#<img src=x onerror=pwned(33)>")
    page.wait_for_selector("#tabs button")
    page.wait_for_timeout(200)
    assert watch.pwned == []
    assert {urlsplit(url).netloc for url in watch.requests} == {urlsplit(server.url).netloc}
    assert page.evaluate("document.querySelectorAll('iframe, object, embed, base').length") == 0
    print(f"{len(INJECTIONS)} injection strings in {len(fields) + 1} tabs: {len(watch.pwned)} executed")


def test_labels_of_a_strange_model_are_only_text(page: Any, watch: Watch) -> None:
    go(page, "classify")
    page.select_option("#model", "my-evil")
    assert all(label in ask(page) for label in EVIL_LABELS)
    page.wait_for_timeout(100)
    assert watch.pwned == []


def test_the_policy_forbids_everything_from_elsewhere(page: Any, server: Server) -> None:
    policy = server.get("/").headers["content-security-policy"]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert set(parts.values()) <= {"'self'", "'none'"}
    assert parts["default-src"] in ("'self'", "'none'")
    assert "unsafe" not in policy
    for path in ("/static/page.js", "/static/page.css", "/static/icon.svg"):
        response = server.get(path)
        assert response.status_code == 200
        assert response.headers["x-content-type-options"] == "nosniff"
    assert server.get("/static/../settings.py").status_code == 404
    assert server.get("/static/%2e%2e/settings.py").status_code == 404
    page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'pwned(99)'; document.body.append(s); }"
    )
    page.wait_for_timeout(100)
    assert page.evaluate("() => document.querySelectorAll('script').length") == 2  # it is there, and was not run


def test_no_file_of_the_page_names_another_host_or_writes_markup() -> None:
    import re

    import bertie

    folder = Path(bertie.__file__).parent / "explore" / "page" / "static"
    files = [file for file in folder.iterdir() if file.suffix in (".html", ".js", ".css", ".svg")]
    assert len(files) == 4
    for file in files:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), (
            file
        )
        assert not re.search(r"\son\w+=|style=|javascript:", text), file


def test_a_server_with_a_key_asks_for_it(browser: Any, tmp_path: Path) -> None:
    model = saved(tmp_path / "bert", "BertModel")
    with serving(tmp_path, "--model", model, environment={"BERTIE_API_KEYS": "a-long-enough-key"}) as locked:
        context = browser.new_context()
        page = context.new_page()
        page.goto(locked.url)
        page.wait_for_selector("#key-form:not([hidden])")
        page.fill("#key", "a-wrong-key-000")
        page.press("#key", "Enter")
        page.wait_for_timeout(300)
        assert page.is_visible("#key-form")
        page.fill("#key", "a-long-enough-key")
        page.press("#key", "Enter")
        page.wait_for_selector("#tabs button")
        page.click("#send")
        page.wait_for_selector("#answer .took")
        assert "a-long-enough-key" not in page.content()
        assert (
            page.evaluate("JSON.stringify([Object.values(localStorage), Object.values(sessionStorage)])") == "[[],[]]"
        )
        context.close()
    assert "a-long-enough-key" not in locked.log.read_text()


def test_the_whole_response_can_be_copied_and_kept(page: Any) -> None:
    """The response on the page is shortened for reading; what is downloaded is all of it."""
    go(page, "embed")
    ask(page)
    assert "more" in page.text_content("#json")
    page.click("#raw summary")
    with page.expect_download() as found:
        page.click("#keep")
    vectors = json.loads(Path(found.value.path()).read_text(encoding="utf-8"))
    assert [len(vector) for vector in vectors] == [len(vectors[0])] * 3
    assert len(vectors[0]) > 12


def test_the_python_snippet_is_the_request(page: Any, server: Server) -> None:
    go(page, "embed")
    ask(page)
    tree = ast.parse(page.text_content("#python"))
    (body,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and "body" in ast.dump(node.targets[0])]
    sent = ast.literal_eval(body)
    assert sent["truncate"] is True
    assert len(sent["inputs"]) == 3
    assert f'requests.post("{server.url}/embed"' in page.text_content("#python")


def test_pieces_that_go_on_with_a_word_have_their_marks(page: Any) -> None:
    go(page, "tokenize")
    shown = ask(page)
    pieces = page.eval_on_selector_all(".piece", "all => all.map(one => one.childNodes.length > 2)")
    assert any(pieces)
    assert "##" in shown
