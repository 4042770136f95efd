"""How many rooms a reader walks through: the files of ours that one call really enters, and the hops between them.

    python tests/scripts/walk.py            a table of five walks
    python tests/scripts/walk.py --files    with the files of each, in the order in which they are first entered

Calls are traced while they run (`sys.setprofile` in every thread), warm: each is made once before. Only functions with
a name count: comprehensions, and what a class body or an import runs, are no steps of a reader's. Standard error is no
terminal here, where a progress bar would be one file more.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import FrameType

import bertie

SOURCE = Path(bertie.__file__).parent
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "film", "bad", "dull"]
GOALS = {
    "ids to logits": 8,
    "bertie.classify": 14,
    "bertie embed (command)": 22,
    "one POST /v1/embeddings": 18,
    "one training step": 16,
}


@dataclass
class Walk:
    """What is entered between `start` and `stop`, by all threads."""

    steps: list[str] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)) and not code.co_name.startswith("<"):
            self.steps.append(f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_name}")

    def start(self) -> None:
        self.steps.clear()
        gc.collect()
        gc.disable()  # what earlier calls left behind is no part of this one
        threading.setprofile_all_threads(self) if sys.version_info >= (3, 12) else threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile_all_threads(None) if sys.version_info >= (3, 12) else threading.setprofile(None)
        gc.enable()

    def files(self) -> list[str]:
        return list(dict.fromkeys(step.partition(":")[0] for step in self.steps))

    def hops(self) -> int:
        rooms = [step.partition(":")[0] for step in self.steps]
        return sum(one != two for one, two in pairwise(rooms))


def traced(call: Callable[[], object]) -> Walk:
    """The second of two calls."""
    with redirect_stderr(StringIO()):
        call()
        walk = Walk()
        walk.start()
        try:
            call()
        finally:
            walk.stop()
    return walk


def model_walk(folder: Path) -> Walk:
    import torch

    model = bertie.BertForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 3, 0]])
    return traced(lambda: model(ids, attention_mask=(ids != 0).long()))


def command_walk(folder: Path) -> Walk:
    from bertie.cli.main import main

    def call() -> None:
        with redirect_stdout(StringIO()):
            main(["embed", "a fine film", "-m", str(folder), "-o", str(folder.parent / "vectors.jsonl")])

    return traced(call)


def post_walk(folder: Path) -> Walk:
    from bertie.serve.run import Running
    from bertie.serve.settings import ModelChoice, Settings

    walk = Walk()
    # Threads of a server live as long as it does, and are traced from their first step.
    threading.setprofile(walk)
    with Running(Settings(models=(ModelChoice("tiny", str(folder)),), port=0, log_level="error")) as server:
        body = json.dumps({"model": "tiny", "input": "a fine film"}).encode()
        request = urllib.request.Request(
            f"{server.url}/v1/embeddings", body, {"Content-Type": "application/json"}, method="POST"
        )
        for _ in range(2):
            walk.steps.clear()
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
        # The log has a thread of its own, which looks for something to write twenty times a second.
        steps = [step for step in walk.steps if not step.startswith("serve/logs.py")]
    threading.setprofile(None)
    return Walk(steps)


def training_walk(folder: Path) -> Walk:
    """From one call of the loop's step to the next: feeding, forward, backward, update, and what is noted down."""
    from bertie.training import Settings, finetune

    train = folder.parent / "train.tsv"
    train.write_text("text\tlabel\n" + "a fine film\tgood\na dull film\tbad\n" * 16)
    walk = Walk()
    with redirect_stdout(StringIO()):
        walk.start()
        try:
            finetune(
                "classify",
                model=folder,
                train=train,
                output=folder.parent / "run",
                settings=Settings(max_steps=4, batch_size=4, log_every=1),
            )
        finally:
            walk.stop()
    starts = [at for at, step in enumerate(walk.steps) if step.endswith("loop.py:_attempt")]
    return Walk(walk.steps[starts[1] : starts[2]])


def make_model(kind: type[bertie.BertPreTrainedModel], folder: Path) -> Path:
    kind(bertie.BertConfig(vocab_size=len(WORDS), num_labels=2, **SIZES)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        classifier = make_model(bertie.BertForSequenceClassification, Path(place) / "classifier")
        encoder = make_model(bertie.BertModel, Path(place) / "encoder")
        walks = {
            "ids to logits": model_walk(classifier),
            "bertie.classify": traced(lambda: bertie.classify("a fine film", model=classifier)),
            "bertie embed (command)": command_walk(encoder),
            "one POST /v1/embeddings": post_walk(encoder),
            "one training step": training_walk(classifier),
        }
    print(f"{'walk':26} {'files':>6} {'goal':>6} {'hops':>6} {'calls':>6}")
    for name, walk in walks.items():
        print(f"{name:26} {len(walk.files()):6} {GOALS[name]:6} {walk.hops():6} {len(walk.steps):6}")
        if "--files" in sys.argv:
            print("\n".join(f"    {file}" for file in walk.files()))


if __name__ == "__main__":
    main()
