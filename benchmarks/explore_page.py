"""How quick the explore page is in a real browser, beside bertviz's model_view: bert-base, random weights.

    python -m benchmarks.explore_page [--rounds 5] [--lengths 64,512] [--threads 2] [--only page|files] [--save]

A server runs in a process of its own, as `bertie explore` starts it; Chromium is driven by Playwright, and times are
taken inside the page, from the event to the frame after the picture is there:

* *usable*: from Enter in the text's field until every head's thumbnail is drawn and can be clicked, for a text that the
  server has not seen;
* *switched*: from a click on a head of the switchboard until the new answer is on the screen; of heads in the first, a
  middle and the last layer in turn, together and by layer: layers below the head are not computed again;
* *map*: from a click on a thumbnail until that head's map is drawn, every head a new one;
* memory: what the tab's process has to itself, and the server's over the size of the weights: private memory, which is
  what the bar is for, and resident memory, which also counts the pages of libraries that all processes share;
* one forward pass of the reference on the same text, timed beside each round: on a busy machine the ratio to it says
  more than the milliseconds;
* *server_cpu*: milliseconds that all of the server's threads were running meanwhile, looking for work included.

bertviz gets the same text and maps from the same model: the bytes of its HTML beside those of our page in one file, and
the time from opening either file in the same browser until every head is drawn. Its page asks cdnjs for d3, jquery and
requirejs; npm gets them, and they are handed to it from this machine. At 512 tokens its page would have 38 million
lines to draw: only its bytes are measured there, those of one layer times the number of layers.

Expected before measuring: usable within two forward passes; a head switched in one; a map in a few milliseconds;
bertviz's HTML tens of times larger, as it writes all maps as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from benchmarks.machine import save_result

SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--no-first-run", "--enable-precise-memory-info"]  # fmt: skip
BARS = {  # milliseconds, megabytes
    64: {"usable": 1000, "switched": 150, "html_mb": 2.0},
    512: {"usable": 2000, "map": 100, "tab_mb": 300, "server_private_mb": 300},
}
TEXT = "the man went to the market to buy a bottle of milk and some bread for his old mother who lived"
WORDS = TEXT.split(" ")
_PATIENCE = 150.0  # seconds for one page
MB = 2**20

# Runs START, waits until DONE holds, and for the frame in which it is painted: milliseconds. Nothing looks for frames
# before that: sixty a second would take the server's cores. The page's policy forbids code made of strings, so both are
# written into the function.
TIMED = """async () => {
  const begin = performance.now();
  const painted = () => new Promise((next) => requestAnimationFrame(next));
  await new Promise((done, fail) => {
    const look = () => {
      if (!(DONE)) return;
      watch.disconnect();
      done();
    };
    const watch = new MutationObserver(look);
    watch.observe(document, { subtree: true, childList: true, attributes: true });
    setTimeout(() => fail(new Error("it never came")), 120000);
    START;
    look();
  });
  await painted();
  await painted();
  return performance.now() - begin;
}"""


def timed(page: Any, start: str, done: str) -> float:
    took: float = page.evaluate(TIMED.replace("START", start).replace("DONE", done))
    return took


def base_model(folder: Path) -> Path:
    """bert-base with random weights; words of its vocabulary that texts are made of."""
    import torch

    import bertie

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS)), "."]
    filled = names + [f"word{number}" for number in range(30522 - len(names))]
    (folder / "vocab.txt").write_text("\n".join(filled) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    bertie.BertForMaskedLM(bertie.BertConfig.preset("base", vocab_size=30522)).save_pretrained(folder)
    bertie.BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    return folder


def text_of(tokens: int, turn: int) -> str:
    """A text of so many tokens, special ones included, another one each turn."""
    words = [WORDS[(place * 7 + turn * 5 + place // 11) % len(WORDS)] for place in range(tokens - 3)]
    return " ".join([*words, "[MASK]"])


@contextmanager
def server(model: Path, threads: int) -> Iterator[tuple[str, int]]:
    """`bertie explore` on a free port: its address and process."""
    command = [sys.executable, "-m", "bertie", "explore", "-m", str(model), "--no-browser"]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, env=environment)
        try:
            until = time.monotonic() + 300
            while time.monotonic() < until and process.poll() is None:
                out.seek(0)
                if found := re.search(rb"Ready: (http://[^/]+)/", out.read()):
                    yield found[1].decode(), process.pid
                    return
                time.sleep(0.1)
            raise RuntimeError("the server did not become ready")
        finally:
            process.terminate()
            process.wait(30)


def memory(pid: int) -> tuple[float, float]:
    """Megabytes of a process: what it has to itself (the weights are a file that is mapped), and what is resident."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        found = {
            line.split(":")[0]: int(line.split()[1]) / 1024 for line in file if line.startswith(("VmRSS", "RssAn"))
        }
    return found["RssAnon"], found["VmRSS"]


@contextmanager
def browsing(driver: Any) -> Iterator[tuple[Any, set[int]]]:
    """Chromium, and the processes that there were before it."""
    before = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), headless=True, args=SWITCHES)
    try:
        yield browser, before
    finally:
        browser.close()


def cpu_ms(pid: int) -> float:
    """Milliseconds that all threads of a process have computed."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text().split()[0])
        except OSError:  # it has ended meanwhile
            continue
    return spent / 1e6


def measure_page(page: Any, url: str, pid: int, tokens: int, rounds: int, forward: Any) -> dict[str, Any]:
    page.goto(f"{url}/#explore?task=fill&text={quote(text_of(tokens, 99))}")
    page.wait_for_selector("#view[data-ready='attention']", timeout=120_000)
    found: dict[str, list[float]] = {"usable": [], "answered": [], "map": [], "switched": [], "forward": []}
    computed: dict[str, list[float]] = {"usable": [], "map": [], "switched": []}

    def act(name: str, start: str, done: str) -> None:
        before = cpu_ms(pid)
        found[name].append(timed(page, start, done))
        computed[name].append(cpu_ms(pid) - before)

    for turn in range(rounds):
        text = text_of(tokens, turn)
        found["forward"].append(forward(text))
        page.fill("#explore-text", text)
        page.evaluate("document.querySelector('#opened').replaceChildren()")
        begin = "document.querySelector('#explore-form').requestSubmit()"
        act("usable", begin, "document.querySelectorAll('.thumb').length === 144")
        shown = "document.querySelector('#explore-answer .verdict') !== null"
        found["answered"].append(found["usable"][-1] + timed(page, "0", shown))
        page.wait_for_selector("#view[data-ready='attention']")
        for head in range(4):
            name = f"{(turn * 5 + head * 3 + 1) % 12}.{(turn + head * 2 + 1) % 12}"
            click = f"document.querySelector(\"[data-head='{name}']\").click()"
            act("map", click, f"document.querySelector(\".large[data-head='{name}'] canvas\") !== null")
        page.click("#view-switchboard")
        page.wait_for_selector("#view[data-ready='switchboard']")
        for number, layer in enumerate((0, 5, 11), 1):
            click = f"document.querySelector(\"[data-switch='h{layer}.{turn % 12}']\").click()"
            act("switched", click, f"document.querySelector(\".answers[data-off='{number}']\") !== null")
            found.setdefault(f"switched_layer_{layer}", []).append(found["switched"][-1])
        page.click("#all-on")
        page.click("#view-attention")
        page.wait_for_selector("#view[data-ready='attention']")
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = page.evaluate("performance.memory.usedJSHeapSize") / MB
    summary: dict[str, Any] = {name: round(median(times), 1) for name, times in found.items()}
    summary |= {f"{name}_server_cpu": round(median(times), 1) for name, times in computed.items()}
    return summary | {"heap_mb": round(heap, 1)}


def renderers(pids_before: set[int]) -> float:
    """Megabytes that Chromium's page processes have to themselves (private memory), the largest of them."""
    largest = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in pids_before:
            continue
        try:
            if b"--type=renderer" not in (entry / "cmdline").read_bytes():
                continue
            lines = (entry / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        private = sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
        largest = max(largest, private / 1024)
    return round(largest, 1)


def measure_files(browser: Any, model: Path, tokens: int, *, with_bertviz: bool) -> dict[str, Any]:
    """The page in one file, and bertviz's model_view of the same text: bytes, and time until all heads are drawn."""
    import torch

    from bertie.explore import open_session
    from bertie.explore.page.saved import page_of

    session = open_session(text_of(tokens, 0), model=str(model), task="fill")
    begin = time.perf_counter()
    # Attribution of 512 tokens takes minutes, and its bytes are nothing beside the maps'.
    page = page_of(session, light=tokens > 64).encode()
    found: dict[str, Any] = {"html_mb": round(len(page) / 1e6, 3), "html_s": round(time.perf_counter() - begin, 2)}
    found["file_ms"] = time_file(browser, page, "document.querySelectorAll('.thumb').length === 144", {})
    if with_bertviz:
        from bertviz import model_view

        ids = torch.tensor([session.rows[0].ids])
        begin = time.perf_counter()
        with torch.no_grad():
            maps = session.bert(ids, output_attentions=True).attentions
        some = range(session.num_layers) if tokens <= 64 else range(1)
        shown = model_view(maps, list(session.rows[0].names), include_layers=list(some), html_action="return").data
        peer = f"<!doctype html><meta charset=utf-8><body>{shown}</body>".encode()
        size = len(peer) * session.num_layers // len(some)
        found |= {"bertviz_mb": round(size / 1e6, 3), "bertviz_s": round(time.perf_counter() - begin, 2)}
        found["bertviz_times_larger"] = round(size / len(page), 1)
        with tempfile.TemporaryDirectory() as folder:
            scripts = peer_scripts(Path(folder)) if tokens <= 64 else {}
            drawn = f"document.querySelectorAll('line').length >= {session.num_layers * session.num_heads}"
            found["bertviz_ms"] = time_file(browser, peer, drawn, scripts) if scripts else None
        if found["bertviz_ms"] is not None and found["file_ms"] is not None:
            found["bertviz_times_slower"] = round(found["bertviz_ms"] / found["file_ms"], 1)
    return found


def peer_scripts(folder: Path) -> dict[str, str]:
    """What bertviz's page asks cdnjs for, by a part of its address; nothing where npm cannot get it."""
    if shutil.which("npm") is None:
        return {}
    (folder / "package.json").write_text("{}")
    packages = ["d3@5.7.0", "jquery@2.2.4", "requirejs@2.3.6"]
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    if subprocess.run(command, cwd=folder, timeout=120, check=False).returncode:
        return {}
    files = {
        "/d3/": "d3/dist/d3.min.js",
        "/jquery/": "jquery/dist/jquery.min.js",
        "/require.js/": "requirejs/require.js",
    }
    return {part: (folder / "node_modules" / file).read_text(encoding="utf-8") for part, file in files.items()}


def time_file(browser: Any, html: bytes, drawn: str, scripts: dict[str, str]) -> float | None:
    """Milliseconds from opening a file until `drawn` holds and the page answers; None if it does not in time."""
    page = browser.new_page()
    page.set_default_timeout(120_000)

    def answer(route: Any) -> None:
        body = next((words for part, words in scripts.items() if part in route.request.url), "")
        route.fulfill(body=body, content_type="text/javascript")

    page.route(re.compile(r"^https?://"), answer)
    with tempfile.NamedTemporaryFile("wb", suffix=".html") as file:
        file.write(html)
        file.flush()
        begin = time.perf_counter()
        try:
            page.goto(f"file://{file.name}", wait_until="commit", timeout=120_000)
            while time.perf_counter() - begin < _PATIENCE:
                if page.evaluate(f"() => {drawn}"):  # answered when the page has nothing else to do
                    return round(1e3 * (time.perf_counter() - begin), 1)
                time.sleep(0.02)
            return None
        except Exception as error:  # playwright's own, for a page that never comes or dies
            print(f"  given up: {str(error).splitlines()[0]}", flush=True)
            return None
        finally:
            page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", default="64,512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-bertviz", action="store_true")
    parser.add_argument("--only", choices=("page", "files"), action="append", help="[default: both]")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    lengths = [int(length) for length in options.lengths.split(",")]
    parts = options.only or ["page", "files"]

    import torch
    from playwright.sync_api import sync_playwright

    from bertie.explore import open_session

    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        model = base_model(Path(name))
        weights = (model / "model.safetensors").stat().st_size / MB

        def forward(text: str) -> float:
            session = open_session(text, model=str(model), task="fill")
            begin = time.perf_counter()
            session.states()
            return 1e3 * (time.perf_counter() - begin)

        forward(text_of(64, 0))
        for tokens in lengths:
            found: dict[str, Any] = {}
            with sync_playwright() as driver:
                if "page" in parts:
                    with server(model, options.threads) as (url, pid), browsing(driver) as (browser, before):
                        page = browser.new_page(viewport={"width": 1400, "height": 1000})
                        page.set_default_timeout(120_000)
                        found = measure_page(page, url, pid, tokens, options.rounds, forward)
                        found["tab_mb"] = renderers(before)
                        own, whole = memory(pid)
                        found |= {"server_private_mb": round(own, 1), "server_resident_mb": round(whole - weights, 1)}
                        report(tokens, found)
                if "files" in parts:
                    with browsing(driver) as (browser, _):
                        files = measure_files(browser, model, tokens, with_bertviz=not options.no_bertviz)
                    report(tokens, files)
                    found |= files
            results[str(tokens)] = found
    print(json.dumps(results))
    if options.save:
        name = "explore_page" if len(parts) == 2 else f"explore_page_{parts[0]}"
        save_result(name, " ".join(["python -m benchmarks.explore_page", *sys.argv[1:]]), results)


def report(tokens: int, found: dict[str, Any]) -> None:
    print(f"\n{tokens} tokens, medians", flush=True)
    for name, value in found.items():
        bar = BARS.get(tokens, {}).get(name)
        passes = (
            f", {value / found['forward']:.2f} forward passes" if name in ("usable", "answered", "switched") else ""
        )
        wanted = "" if bar is None else f"   wanted ≤ {bar}: {'ok' if value <= bar else 'MISS'}"
        print(f"  {name:<24} {value}{passes}{wanted}")


if __name__ == "__main__":
    main()
