"""bertie.explore on a model of base size: what a page asks of it, and importance beside an evaluation with backward.

    python -m benchmarks.explore [--rounds 5] [--threads 2] [--examples 1000] [--save]

The weights are random: time does not depend on them. Each figure is a median and stands beside its bar and beside the
time of one plain forward pass of the same text, measured in turn with it, so that a busy machine can be read too.
Memory is what a process of its own has resident after the views of a 512-token text, less what it had with the model
loaded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.machine import describe, save_result

WORDS = ("the", "king", "walked", "to", "town", "and", "spoke", "with", "people", "about", "bread", "water")
# view: bar in ms at (64 tokens, 512 tokens); None: not asked for
BARS: dict[str, tuple[float | None, float | None]] = {
    "open and first states": (1000, 2000),
    "answer with a head off": (150, None),
    "map of a head": (100, 100),
    "all thumbnails": (1000, 2000),
    "statistics of all heads": (None, None),
    "lens at the mask": (None, None),
    "trace of a token": (None, None),
    "integrated gradients, 50 steps": (None, None),
}
MEMORY_BAR, COST_BAR = 300.0, 1.5


def tools() -> tuple[Any, Any]:
    """A model of base size, and a tokenizer that fits it."""
    import bertie
    from bertie.defaults import default_language_model

    tokenizer = bertie.BertTokenizer.from_pretrained(default_language_model(), model_max_length=512)
    torch.manual_seed(0)
    return bertie.BertForMaskedLM(bertie.BertConfig.preset("base")).eval(), tokenizer


def text_of(tokens: int, tokenizer: Any) -> str:
    words = [WORDS[number % len(WORDS)] for number in range(tokens)]
    while len(tokenizer.encode(" ".join(["[MASK]", *words]))) > tokens:
        words.pop()
    return " ".join(["[MASK]", *words])


def views(model: Any, tokenizer: Any, tokens: int) -> dict[str, Callable[[], object]]:
    from bertie.explore import Session, Switches, open_session

    text = text_of(tokens, tokenizer)
    session = open_session(text, model=model, tokenizer=tokenizer)
    ids = torch.tensor([session.rows[0].ids])
    turn = iter(range(10**6))

    def fresh() -> Session:
        return open_session(text, model=model, tokenizer=tokenizer)

    def head() -> tuple[int, int]:
        number = next(turn)
        return number % 12, number // 12 % 12

    @torch.no_grad()
    def plain() -> object:
        return model.bert(ids)

    return {
        "plain forward": plain,
        "open and first states": lambda: open_session(text, model=model, tokenizer=tokenizer).states(),
        "answer with a head off": lambda: session.switch(Switches(heads={head()})).answer(),
        "map of a head": lambda: session.map_bytes(*head()),
        "all thumbnails": lambda: fresh().thumbnails(),
        "statistics of all heads": lambda: fresh().head_statistics(),
        "lens at the mask": lambda: session.lens(places=[1]),
        "trace of a token": lambda: session.trace(place=1),
        "integrated gradients, 50 steps": lambda: session.attribute(steps=50),
    }


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def measure(model: Any, tokenizer: Any, tokens: int, rounds: int) -> list[dict[str, Any]]:
    calls = views(model, tokenizer, tokens)
    calls["plain forward"]()
    rows = []
    for name, bars in BARS.items():
        if name.startswith("integrated") and tokens > 64:
            continue  # minutes
        pairs = [(timed(calls["plain forward"]), timed(calls[name])) for _ in range(rounds)]
        plain, found = (statistics.median(values) for values in zip(*pairs, strict=True))
        bar = bars[0 if tokens == 64 else 1]
        rows.append({"view": name, "tokens": tokens, "ms": found, "forwards": found / plain, "bar_ms": bar})
        wanted = "" if bar is None else f"   wanted ≤ {bar:g} ms"
        print(
            f"{tokens:4d} tokens  {name:32s} {found:9.1f} ms   {found / plain:6.2f} forward passes{wanted}", flush=True
        )
    return rows


def importance_cost(examples: int, rounds: int) -> dict[str, Any]:
    """All 144 heads by gradient, beside an evaluation of the same examples with backward through all weights."""
    import bertie
    from bertie.defaults import default_language_model
    from bertie.explore import importance
    from bertie.running.batching import split_by_tokens
    from bertie.training.registry import load_task

    tokenizer = bertie.BertTokenizer.from_pretrained(default_language_model())
    torch.manual_seed(0)
    model = bertie.BertForSequenceClassification(bertie.BertConfig.preset("base")).eval()
    data = [{"text": text_of(8 + number % 24, tokenizer), "label": number % 2} for number in range(examples)]
    loaded = load_task("classify", model=model, train=data, tokenizer=tokenizer)

    def evaluation() -> None:
        for indices in split_by_tokens(loaded.train.lengths().tolist(), 2048):
            batch = loaded.objective.collate([loaded.train.get(index, 0) for index in indices])
            loaded.objective.loss(model, batch)[0].backward()
        model.zero_grad()

    def ranking() -> None:
        importance(data, model=model, tokenizer=tokenizer, progress=False)

    pairs = [(timed(evaluation), timed(ranking)) for _ in range(rounds)]
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"importance of 144 heads, {examples} examples: {ratio:.2f} × evaluation with backward   wanted ≤ {COST_BAR}")
    return {"view": "importance", "examples": examples, "ratio": ratio, "bar": COST_BAR}


def resident() -> float:
    """MB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def peak() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def memory() -> None:
    """In a process of its own: MB above the loaded model, after what a page of 512 tokens shows."""
    model, tokenizer = tools()
    calls = views(model, tokenizer, 512)
    for parameter in model.parameters():  # every page of the weights is there
        parameter.sum()
    before = resident()
    for name in (
        "open and first states",
        "all thumbnails",
        "statistics of all heads",
        "answer with a head off",
        "lens at the mask",
    ):
        calls[name]()
    for _ in range(30):
        calls["map of a head"]()
    print(json.dumps({"after": resident() - before, "peak": peak() - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        memory()
        return
    print(describe())
    model, tokenizer = tools()
    rows = [row for tokens in (64, 512) for row in measure(model, tokenizer, tokens, options.rounds)]
    command = [sys.executable, "-m", "benchmarks.explore", "--memory", "--threads", str(options.threads)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    print(f"memory above the weights at 512 tokens: {found['after']:.0f} MB, {found['peak']:.0f} MB at most", end="")
    print(f"   wanted ≤ {MEMORY_BAR:g} MB")
    rows.append({"view": "memory", "tokens": 512, **found, "bar": MEMORY_BAR})
    rows.append(importance_cost(options.examples, max(1, options.rounds // 2)))
    if options.save:
        print(
            save_result(
                "explore", " ".join(["python -m benchmarks.explore", *sys.argv[1:]]), rows, threads=options.threads
            )
        )


if __name__ == "__main__":
    main()
