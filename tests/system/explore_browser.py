"""What the browser tests of the explore page share: tiny models of every head, a server, and a watched page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import torch

import bertie
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice, Settings
from bertie.text import train_vocabulary

CHROMIUM = shutil.which("chromium")
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
VIEWS = ("attention", "switchboard", "walk", "attribution", "lens", "patching", "importance")
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"

ENGLISH = "the quick brown fox jumps over the [MASK] dog"
SENTENCES = [
    "the quick brown fox jumps over the lazy dog and the dog sleeps on",
    "she opened the door and found an empty room",
    "我们 今天 去 公园 看 花",
    "שלום עולם איך אתה היום",
    "مرحبا بالعالم كيف حالك اليوم",
    "so happy 😀 👩‍👩‍👧 today 🎉",
]
# Texts of every kind that a page may be given: (text, second text).
INPUTS: dict[str, tuple[str, str | None]] = {
    "text": (ENGLISH, None),
    "pair": ("she opened the [MASK]", "the room was empty"),
    "chinese": ("我们今天去[MASK]看花", None),
    "right to left": ("שלום עולם [MASK] אתה مرحبا بالعالم", None),
    "emoji": ("so happy 😀 [MASK] 👩‍👩‍👧 today 🎉", None),
    "512 tokens": ("[MASK] " + "the quick brown fox " * 130, None),
}
HEADS: dict[str, tuple[str, dict[str, Any], tuple[str, str | None]]] = {
    "words": ("BertForPreTraining", {}, (ENGLISH, None)),
    "sentiment": ("BertForSequenceClassification", {"id2label": {0: "bad", 1: "good"}}, ("so happy today", None)),
    "tagger": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-PER", 2: "B-LOC"}}, (SENTENCES[0], None)),
    "quoter": ("BertForQuestionAnswering", {}, ("who sleeps", SENTENCES[0])),
    "chooser": ("BertForMultipleChoice", {}, ("she opened the door", "the room was empty")),
    "follower": ("BertForNextSentencePrediction", {}, ("she opened the door", "the room was empty")),
    "vectors": ("BertModel", {}, ("the quick fox", "a lazy dog")),
}
LENGTH = 512


def saved(folder: Path, architecture: str, **config: Any) -> str:
    tokenizer = train_vocabulary(SENTENCES * 3, vocab_size=400, min_frequency=1, model_max_length=LENGTH)
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": LENGTH, "initializer_range": 0.2,
    }  # fmt: skip
    model = getattr(bertie, architecture)(bertie.BertConfig.from_dict(values | config)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def settings(folder: Path, *names: str, **values: Any) -> Settings:
    """A server that explores models of these heads, and may write pruned ones into the folder."""
    choices = []
    for name in names or HEADS:
        architecture, config, _ = HEADS[name]
        choices.append(ModelChoice(name, saved(folder / name, architecture, **config), ("explore",)))
    return Settings(tuple(choices), port=0, threads=1, prune_folder=str(folder), **values)


@dataclass
class Watch:
    """What a page did that it should not."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pwned: list[Any] = field(default_factory=list)

    def assert_clean(self, url: str) -> None:
        assert self.errors == []
        assert self.pwned == []
        assert {urlsplit(one).netloc for one in self.requests} <= {urlsplit(url).netloc}


@contextmanager
def watched_page(
    browser: Any, *, width: int = 1280, theme: str = "light", **options: Any
) -> Iterator[tuple[Any, Watch]]:
    watch = Watch()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.on("request", lambda request: watch.requests.append(request.url))
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on("console", lambda message: watch.errors.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: (watch.pwned.append(dialog.message), dialog.dismiss()))
    try:
        yield page, watch
    finally:
        context.close()


def link(server: Running | str, **state: Any) -> str:
    base = server if isinstance(server, str) else f"{server.url}/"
    return (
        f"{base}#explore?{urlencode({name: value for name, value in state.items() if value is not None}, doseq=True)}"
    )


def show(page: Any, view: str) -> None:
    """Go to a view and wait until it is drawn."""
    page.click(f"#view-{view}")
    page.wait_for_selector(f"#view[data-ready='{view}']")
