"""The explore page in a real browser: every view on every kind of text, from the server and out of a file."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.explore import Switches, importance, open_session
from bertie.explore.page.saved import page_of, write_page
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice
from system.explore_browser import (
    AXE,
    CHROMIUM,
    ENGLISH,
    HEADS,
    INPUTS,
    SENTENCES,
    SWITCHES,
    VIEWS,
    link,
    saved,
    settings,
    show,
    watched_page,
)
from system.test_serve_page import EVIL_LABELS, INJECTIONS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script> [MASK]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explore")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with Running(settings(folder)) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=SWITCHES)
        yield opened
        opened.close()


def open_page(page: Any, server: Running | str, **state: Any) -> None:
    page.goto(link(server, **({"model": "words"} | state)))
    page.wait_for_selector("#view[data-ready]")


def answer(page: Any) -> str:
    page.wait_for_selector("#explore-answer .verdict")
    found: str = page.inner_text("#explore-answer .verdict")
    return found


def some(names: Iterable[str], *first: str) -> list[Any]:
    """The first ones in every run, the others in the long one."""
    return [name if name in first else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("kind", some(INPUTS, "text", "right to left"))
def test_every_view_is_drawn_for_every_kind_of_text(browser: Any, server: Running, kind: str) -> None:
    text, second = INPUTS[kind]
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=text, second=second, task="fill" if second is None else None)
        tokens = page.locator("#explore-tokens button").count()
        assert (tokens > 500) == (kind == "512 tokens")
        assert page.locator(".thumb").count() == 12
        for view in VIEWS:
            if kind == "512 tokens" and view == "attribution":
                page.evaluate("location.hash = location.hash + '&method=rollout'")  # the others take minutes there
                page.wait_for_selector("#view[data-ready]")
            show(page, view)
            assert page.locator("#view .error").count() == 0
        show(page, "attention")
        page.click(".chooser [data-value=arcs]")
        page.click("#explore-tokens button >> nth=2")
        assert page.locator("canvas.map").count() == 1
        watch.assert_clean(server.url)


@pytest.mark.parametrize("name", some(HEADS, "tagger", "vectors"))
def test_every_head_has_its_answer_and_says_which_views_there_are(browser: Any, server: Running, name: str) -> None:
    text, second = HEADS[name][2]
    choices = [second, "a dog sleeps"] if name == "chooser" else second
    with watched_page(browser) as (page, watch):
        open_page(page, server, model=name, text=text, second=choices)
        with_words = name in ("words",)
        assert answer(page)
        show(page, "switchboard")
        page.click("[data-switch='h1.2']")
        page.wait_for_selector(".answers[data-off='1']")
        show(page, "walk")
        assert page.locator(".path button").count() >= 8
        show(page, "attribution")
        assert page.locator(".word").count() > 3
        show(page, "lens")
        assert (page.locator(".chooser [data-value=words]").count() == 1) == with_words
        page.click("#view-importance")
        if name == "vectors":
            page.wait_for_selector("#view .error")
            assert "Attention" in page.inner_text("#view .error")
        watch.assert_clean(server.url)


def test_the_first_page_has_an_example_for_the_model(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, watch):
        page.goto(f"{server.url}/")
        page.wait_for_selector("#view[data-ready]")
        assert "[MASK]" in page.input_value("#explore-text")
        watch.assert_clean(server.url)


def test_a_head_that_is_switched_off_is_the_head_that_is_pruned(browser: Any, server: Running, folder: Path) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=ENGLISH, task="fill", view="switchboard")
        page.click("[data-switch='h0.1']")
        page.click("[aria-label='all heads of layer 2']")
        page.wait_for_selector(".answers[data-off='5']")
        shown = page.inner_text(".answers > div:nth-child(2) .bars").split("\n")
        page.fill("#prune-name", "words-pruned")
        page.click("#prune")
        page.wait_for_selector(".done")
        pruned = open_session(ENGLISH, model=str(folder / "words-pruned"), task="fill")
        assert shown[0] == pruned.answer().top[0][0]
        assert float(shown[1]) == pytest.approx(pruned.answer().top[0][1], abs=6e-4)
        assert pruned.heads == {0: (0, 2, 3), 1: (0, 1, 2, 3), 2: ()}
        page.click("#prune")
        page.wait_for_selector(".pruning .error")
        assert "there already" in page.inner_text(".pruning .error")
        page.click("#all-on")
        page.wait_for_selector(".answers[data-off='0']")
        assert [error for error in watch.errors if "409" not in error] == []


def test_a_server_that_is_not_for_it_writes_nothing(folder: Path) -> None:
    import httpx

    with Running(replace(settings(folder / "other", "words"), prune_folder=None)) as server:
        body = {"text": ENGLISH, "off": {"heads": [[0, 0]]}, "name": "pruned"}
        refused = httpx.post(f"{server.url}/explore/prune", json=body, timeout=30)
        assert refused.status_code == 403
        outside = {**body, "name": "../pruned"}
        assert httpx.post(f"{server.url}/explore/prune", json=outside, timeout=30).status_code in (403, 422)


def test_arrow_keys_walk_a_token_through_the_source(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=ENGLISH, task="fill", view="walk")
        page.click("#explore-tokens button:has-text('[MASK]')")
        titles = []
        page.wait_for_selector(".box p:has-text('“[MASK]”')")
        page.focus(".path [aria-current]")
        while True:
            titles.append(page.inner_text(".step-title"))
            assert page.locator(".source .marked").count() >= 1
            before = page.get_attribute(".box", "data-step")
            page.keyboard.press("ArrowRight")
            if page.get_attribute(".box", "data-step") == before:
                break
        assert titles[0] == "Word piece to id"
        assert titles[-1] == "A score for every word"
        assert len(titles) == 5 + 3 * 10 + 2
        best = open_session(ENGLISH, model=str(Path(server.service.settings.models[0].source)), task="fill").answer()
        assert page.inner_text(".box .bars bdi >> nth=0") == best.top[0][0]
        page.keyboard.press("Home")
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert "Layer 1" in page.inner_text(".box .tools")
        show(page, "walk")  # by mouse, after which arrow keys are not the tabs'
        step = int(page.get_attribute(".box", "data-step"))
        page.keyboard.press("ArrowLeft")
        assert int(page.get_attribute(".box", "data-step")) == step - 1
        page.keyboard.press("ArrowRight")
        assert page.inner_text(".step-title").startswith("Key")
        watch.assert_clean(server.url)


def test_a_link_keeps_the_whole_state(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, _):
        open_page(page, server, text=ENGLISH, task="fill")
        page.click("[data-head='2.1']")
        page.click("#explore-tokens button >> nth=4")
        page.click(".chooser [data-value=arcs]")
        page.check("#special")
        show(page, "switchboard")
        page.click("[data-switch='f1']")
        page.wait_for_selector(".answers[data-off='1']")
        page.wait_for_url(re.compile("off="))  # a moment after the change
        address = page.url
    with watched_page(browser) as (page, watch):
        page.goto(address)
        page.wait_for_selector("#view[data-ready='switchboard']")
        assert page.get_attribute("[data-switch='f1']", "aria-checked") == "false"
        show(page, "attention")
        assert page.get_attribute("[data-head='2.1']", "aria-pressed") == "true"
        assert page.get_attribute(".chooser [data-value=arcs]", "aria-pressed") == "true"
        assert page.is_checked("#special")
        assert page.get_attribute("#explore-tokens button >> nth=4", "aria-pressed") == "true"
        page.goto(
            f"{server.url}/#explore?text=a&layer=99&head=x&off=7.7+L9+zz&view=none&token=-3&row=8&second=b&model=gone"
        )
        page.reload()
        page.wait_for_selector("#view[data-ready]")  # a link that names what there is not still opens
        watch.assert_clean(server.url)


def test_patching_fills_in_and_ends_where_the_other_answer_is(browser: Any, server: Running) -> None:
    other = ENGLISH.replace("fox", "dog")
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=ENGLISH, task="fill", view="patching")
        page.fill("#other-text", other)
        page.click("#patch")
        page.wait_for_selector("#view [data-rows='4'] .heat")
        cells = page.locator("#view .heat tbody tr:last-child td").all_inner_texts()
        at = page.locator("#explore-tokens button").all_inner_texts().index("[MASK]")
        assert cells[at] in ("1.00", "–")  # all of the answer is at [MASK] after the last layer
        page.fill("#other-text", "another length")
        page.click("#patch")
        page.wait_for_selector("#view .error")
        assert [error for error in watch.errors if "422" not in error] == []


def test_importance_reads_the_users_file_and_names_bad_rows(browser: Any, server: Running, tmp_path: Path) -> None:
    rows = [{"text": SENTENCES[n % 2], "label": ["bad", "good"][n % 2]} for n in range(12)]
    good = tmp_path / "rows.jsonl"
    good.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    bad = tmp_path / "bad.jsonl"
    bad.write_text(good.read_text() + '{"text": "no label"}\nnot json\n', encoding="utf-8")
    with watched_page(browser) as (page, watch):
        open_page(page, server, model="sentiment", text="so happy", view="importance")
        page.click("#measure")
        page.wait_for_selector("#view .error")
        page.set_input_files("#file", str(good))
        page.click("#measure")
        page.wait_for_selector("#view [data-examples='12'] .heat")
        assert page.locator("#view .heat tbody td").count() == 12
        page.set_input_files("#file", str(bad))
        page.click("#measure")
        page.wait_for_selector("#view .error")
        said = page.inner_text("#view .error")
        assert "bad.jsonl" in said
        assert "13" in said or "14" in said
        assert "/tmp" not in said
        page.check("#skip-bad")
        page.click("#measure")
        page.wait_for_selector("#view [data-examples='12'] .heat")
        assert "2" in page.inner_text("#view [data-examples] .hint >> nth=0")
        page.set_input_files("#file", str(good))
        page.click("#measure")
        page.wait_for_selector("#least")
        page.click("#least")
        page.wait_for_selector(".answers[data-off='3']")
        assert [error for error in watch.errors if "422" not in error] == []


def test_names_of_other_scripts_are_the_right_way_round(browser: Any, server: Running) -> None:
    """Chinese names of columns are not turned, and an arrow between Hebrew words goes from the first to the second."""
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=INPUTS["chinese"][0], task="fill", view="lens")
        turned = "names => names.map(name => [name.textContent, getComputedStyle(name).transform !== 'none'])"
        found = dict(page.eval_on_selector_all("#view .heat thead bdi", turned))
        assert found["今"] is False
        assert found["[MASK]"] is True
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=INPUTS["right to left"][0], task="fill", token=1)
        page.wait_for_selector("canvas.map")
        lefts = (
            "links => links.map(link => [...link.querySelectorAll('bdi')].map(name => name.getBoundingClientRect().x))"
        )
        places = page.eval_on_selector_all(".large ~ div .piece", lefts)
        assert len(places) > 3
        assert all(start < end for start, end in places)
        watch.assert_clean(server.url)


def test_words_that_the_model_does_not_know_are_counted(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text="the ☃☃ [MASK] fox", task="fill")
        assert "[UNK]" in page.inner_text("#unknown")
        chosen = page.inner_text("#explore-tokens [aria-pressed=true]")
        assert chosen == "[MASK]"  # what is looked for is chosen first
        watch.assert_clean(server.url)


def test_a_text_that_is_too_long_is_cut_with_a_notice(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text="[MASK] " + "the quick brown fox " * 400, task="fill")
        assert "512" in page.inner_text("#cut")
        assert page.locator("#explore-tokens button").count() <= 512
        watch.assert_clean(server.url)


def test_a_page_whose_server_has_gone_says_so_and_goes_on_when_it_is_back(browser: Any, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = replace(settings(folder / "gone", "words"), port=port)
    with watched_page(browser) as (page, _):
        with Running(chosen) as first:
            open_page(page, first, text=ENGLISH, task="fill")
        page.fill("#explore-text", "the quick [MASK]")
        page.press("#explore-text", "Enter")
        page.wait_for_selector("#gone:not([hidden])")
        with Running(chosen):
            page.wait_for_selector("#gone[hidden]", state="attached")
            page.wait_for_selector("#view[data-ready]")
            page.locator("#explore-tokens button:has-text('[MASK]')").wait_for()
            assert page.locator("#explore-tokens button").count() < 8


def test_nothing_that_is_typed_in_is_run(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=EVIL, task="fill", otherText=EVIL)
        for view in VIEWS:
            show(page, view)
        assert page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
        watch.assert_clean(server.url)


@pytest.mark.slow
def test_thirty_injections_are_only_text(browser: Any, server: Running) -> None:
    """Each as the text, as the second text, as the other text of patching, and out of a link."""
    with watched_page(browser) as (page, watch):
        page.expose_function("pwned", lambda *given: watch.pwned.append(given))
        for view in ("attention", "switchboard", "walk", "lens", "patching"):
            for number, text in enumerate(INJECTIONS):
                if view == "attention" or number % 5 == 0:
                    page.goto(
                        link(server, model="words", task="fill", text=f"{text} [MASK]", otherText=text, view=view)
                    )
                    page.reload()
                    page.wait_for_selector(f"#view[data-ready='{view}']")
        for text in INJECTIONS[::5]:
            page.goto(link(server, model="vectors", text=text, second=text, view="attribution"))
            page.reload()
            page.wait_for_selector("#view[data-ready='attribution']")
        assert page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
        watch.errors = [error for error in watch.errors if "422" not in error]  # texts of another length
        watch.assert_clean(server.url)


@pytest.mark.parametrize(
    "strings", [INJECTIONS[::8], pytest.param(INJECTIONS, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_names_files_and_labels_are_only_text(browser: Any, folder: Path, strings: list[str]) -> None:
    """What else is typed in or chosen: a checkpoint's labels, the name of a pruned one, a file's name and its rows."""
    source = saved(folder / "evil", "BertForSequenceClassification", id2label=dict(enumerate(EVIL_LABELS)))
    served = replace(settings(folder / "strange", "words"), models=(ModelChoice("evil", source, ("explore",)),))
    with Running(served) as server, watched_page(browser) as (page, watch):
        page.expose_function("pwned", lambda *given: watch.pwned.append(given))
        open_page(page, server, model="evil", text="so happy", view="switchboard")
        assert answer(page) in EVIL_LABELS
        page.click("[data-switch='h0.1']")
        page.wait_for_selector(".answers[data-off='1']")
        for text in strings:
            page.fill("#prune-name", text)
            with page.expect_response(lambda reply: reply.url.endswith("/explore/prune")) as refused:
                page.click("#prune")
            assert refused.value.status == 422
        show(page, "importance")
        for text in strings:
            row = json.dumps({"text": text, "label": text})
            page.set_input_files(
                "#file", {"name": f"{text}.jsonl", "mimeType": "text/plain", "buffer": f"{row}\n".encode()}
            )
            with page.expect_response(lambda reply: reply.status != 200) as refused:
                page.click("#measure")
            assert refused.value.status == 422  # a label that the model does not know, or no name for a file
            page.wait_for_selector("#view .error")
        assert page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
        watch.errors = [error for error in watch.errors if "422" not in error]
        watch.assert_clean(server.url)


def test_the_views_speak_chinese_at_one_click(browser: Any, server: Running) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=ENGLISH, task="fill", view="walk")
        page.click("#language")
        page.wait_for_selector("#view[data-ready]")
        assert page.get_attribute("html", "lang") == "zh-Hans"
        assert page.inner_text("#view-walk") == "逐步跟踪"
        assert page.inner_text(".step-title") == "词元变成 id"
        for view in VIEWS:
            show(page, view)
        page.click("#language")
        assert page.inner_text("#view-attention") == "Attention"
        watch.assert_clean(server.url)


@pytest.mark.parametrize("kind", some(["svg", "png"], "svg"))
def test_views_are_saved_as_pictures(browser: Any, server: Running, tmp_path: Path, kind: str) -> None:
    with watched_page(browser) as (page, watch):
        open_page(page, server, text=ENGLISH, task="fill")
        page.wait_for_selector("canvas.map")
        for view in ("attention", "switchboard", "walk", "attribution", "lens"):
            show(page, view)
            with page.expect_download() as started:
                page.click(f"#save-{kind}")
            file = tmp_path / f"{view}.{kind}"
            started.value.save_as(file)
            start = file.read_bytes()[:8]
            assert start[:5] == b"<svg " if kind == "svg" else start == b"\x89PNG\r\n\x1a\n"
            assert file.stat().st_size > 500
        watch.assert_clean(server.url)


@pytest.mark.parametrize("theme", some(["light", "dark"], "dark"))
def test_nothing_sticks_out_at_any_width(browser: Any, server: Running, theme: str) -> None:
    for width in (390, 2560) if theme == "dark" else (390, 1280, 2560):
        with watched_page(browser, width=width, theme=theme) as (page, watch):
            open_page(page, server, text=ENGLISH, task="fill")
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            for view in VIEWS:
                show(page, view)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, width)
            watch.assert_clean(server.url)


@pytest.mark.parametrize("theme", some(["light", "dark"], "light"))
def test_axe_finds_no_serious_fault(browser: Any, server: Running, theme: str) -> None:
    if not AXE.exists():
        if shutil.which("npm") is None:
            pytest.skip("axe-core comes with npm, which is not on this machine")
        subprocess.run(["make", "web/node_modules/.package-lock.json"], cwd=AXE.parents[3], check=True, timeout=300)
    with watched_page(browser, theme=theme, bypass_csp=True) as (page, _):
        open_page(page, server, text=ENGLISH, task="fill", otherText=ENGLISH.replace("fox", "dog"))
        page.add_script_tag(path=str(AXE))
        for view in VIEWS:
            show(page, view)
            page.wait_for_selector("#explore-answer .verdict")
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            told = [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious]
            assert told == [], (view, told)


# -- in one file -------------------------------------------------------------------------------------------------------


def test_a_page_in_a_file_needs_nobody(browser: Any, folder: Path, tmp_path: Path) -> None:
    model = saved(folder / "saved", "BertForMaskedLM")
    file = tmp_path / "page.html"
    size = write_page(open_session(ENGLISH, model=model), file)
    assert size == file.stat().st_size < 1_000_000
    with watched_page(browser) as (page, watch):
        page.goto(f"file://{file}")
        page.wait_for_selector("#view[data-ready='attention']")
        page.click("[data-head='2.1']")
        page.wait_for_selector(".large[data-head='2.1']")
        for view in ("walk", "attribution", "lens", "attention"):
            show(page, view)
            assert page.locator("#view .error").count() == 0
        assert answer(page)
        for view, option in (("patching", "--patch"), ("importance", "--importance")):
            page.click(f"#view-{view}")
            page.wait_for_selector("#view .error")
            assert option in page.inner_text("#view .error")
            assert "bertie explore" in page.inner_text("#view .error")
        show(page, "switchboard")
        assert "one part off at a time" in page.inner_text("#view .notice")
        page.click("[data-switch='h2.1']")
        page.wait_for_selector(".answers[data-off='1']")
        shown = page.inner_text(".answers > div:nth-child(2) .bars").split("\n")
        without = open_session(ENGLISH, model=model).switch(Switches(heads={(2, 1)})).answer()
        assert shown[0] == without.top[0][0]
        assert float(shown[1]) == pytest.approx(without.top[0][1], abs=6e-4)
        page.click("[data-switch='f0']")
        page.wait_for_selector("#view .error")  # of two at once the file knows nothing
        assert watch.errors == []
        assert watch.requests == [f"file://{file}"]


def test_the_thumbnails_of_a_file_are_the_server_s(browser: Any, server: Running, folder: Path, tmp_path: Path) -> None:
    """The file has none: the page makes them of the maps, here of a length that their 32 cells do not divide."""
    text = f"{ENGLISH} and {' '.join(SENTENCES[:2])} {' '.join(SENTENCES[:2])}"
    file = tmp_path / "page.html"
    file.write_text(page_of(open_session(text, model=str(folder / "words"), task="fill"), light=True), encoding="utf-8")
    shown = []
    for address in (f"file://{file}", link(server, model="words", task="fill", text=text)):
        with watched_page(browser) as (page, watch):
            page.goto(address)
            page.wait_for_selector("#view[data-ready='attention']")
            assert page.locator("#explore-tokens button").count() % 32
            assert page.locator("#explore-tokens button").count() > 32
            every = "canvases => canvases.map(canvas => canvas.toDataURL())"
            shown.append(page.eval_on_selector_all(".thumb canvas", every))
            assert watch.errors == []
    assert len(set(shown[0])) == 12
    assert shown[0] == shown[1]


def test_a_page_in_a_file_keeps_what_was_computed_for_it(browser: Any, folder: Path, tmp_path: Path) -> None:
    session = open_session(ENGLISH, model=saved(folder / "kept", "BertForMaskedLM"))
    other = open_session(ENGLISH.replace("fox", "dog"), model=session.reading.loaded)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES[:2]), encoding="utf-8")
    found = importance(texts, model=session.reading.loaded, task="fill", progress=False)
    file = tmp_path / "page.html"
    write_page(session, file, other=other, importance=found)
    with watched_page(browser) as (page, watch):
        page.goto(f"file://{file}")
        page.wait_for_selector("#view[data-ready='attention']")
        show(page, "patching")
        assert page.locator("#view .heat tbody tr").count() == 4
        assert other.texts[0] in page.inner_text("#view")
        show(page, "importance")
        assert page.locator("#view .heat tbody td").count() == 12
        assert watch.errors == []


def test_a_notebook_shows_the_page_in_a_frame(browser: Any, folder: Path, tmp_path: Path) -> None:
    session = bertie.explore("so happy [MASK] today", model=saved(folder / "inline", "BertForMaskedLM"))
    shown = session._repr_html_()
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{shown}</body>", encoding="utf-8")
    with watched_page(browser) as (page, watch):
        page.goto(f"file://{file}")
        inside = page.frame_locator("iframe")
        inside.locator("#view[data-ready='attention']").wait_for()
        inside.locator("[data-head='1.1']").click()
        inside.locator(".large[data-head='1.1']").wait_for()
        assert [one for one in watch.requests if not one.startswith(("file:", "about:", "data:"))] == []
        assert watch.errors == []


def test_a_page_in_a_file_says_what_it_was_made_of(folder: Path) -> None:
    text = "</script><script>alert(1)</script> [MASK]"
    page = page_of(open_session(text, model=saved(folder / "evil", "BertForMaskedLM")), light=True)
    assert "alert(1)" not in page
    assert "sha256-" in page
    assert page.count("<script") == 2
