"""What the road of a text costs besides the model: texts through `Embedder.embed` with a model that does nothing.

    python -m benchmarks.pipeline [--texts 8192] [--save]

The model's layers are replaced by a runner that gives zeros, so all that is left is reading, tokenizing, sorting,
packing, pooling (of vectors so narrow that it costs nothing) and answering. A second run has the texts tokenized
beforehand; what is left then is ours alone. A GPU that reads two million tokens a second leaves 27 µs for a text of 54
tokens, tokenizing (in threads beside) included. One short text is timed as well. Times are processor time.

Expected before measuring: about 10 µs a text without the tokenizer, under 0.2 ms for a single short text. The last line
is texts a second without the tokenizer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import describe, save_result
from benchmarks.texts import paragraphs
from bertie.config import BertConfig
from bertie.defaults import default_embedding_model
from bertie.engine.fast import FastBert
from bertie.engine.runner import Runner
from bertie.model import BertModel
from bertie.ops.packing import Packing
from bertie.running.open import OpenModel
from bertie.running.pooling import Pieces
from bertie.running.rows import Cutting
from bertie.running.stream import VectorStream
from bertie.tasks.embed import Embedder
from bertie.text import BertTokenizer


class NothingRunner(Runner):
    """A model that is infinitely fast: zeros for every token."""

    def __init__(self, hidden_size: int, device: torch.device) -> None:
        self.zeros = torch.zeros(1 << 17, hidden_size, device=device)
        self.device, self.dtype, self.token_budget = device, torch.float32, 1 << 14

    def __call__(
        self, ids: Tensor, type_ids: Tensor | None, positions: Tensor, packing: Packing, *, all_states: bool
    ) -> list[Tensor]:
        return [self.zeros[: len(ids)]]

    def last_state(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        return self.zeros[: len(ids)]

    def describe(self) -> str:
        return "nothing"


class Tokenized(Cutting):
    """Chunks of texts whose rows are known, in order: `pieces` gives the next."""

    known: Iterator[Pieces]

    def pieces(self, texts: Sequence[str]) -> Pieces:
        return next(self.known)


def median(job: Callable[[], Any], rounds: int) -> float:
    """Seconds of processor time, all threads together: other programs on the machine do not count."""
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        job()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="folder of an embedding model [default: all-MiniLM-L6-v2]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    given = parser.parse_args()

    torch.set_num_threads(1)  # what is timed is Python; threads that wait for each other would only blur it
    tokenizer = BertTokenizer.from_pretrained(given.model or default_embedding_model())
    config = BertConfig.preset("tiny", vocab_size=len(tokenizer))
    base = BertModel(config, add_pooling_layer=False).eval().to(given.device)
    fast = FastBert(base, lambda _: NothingRunner(config.hidden_size, base.device))
    embedder = Embedder(OpenModel(fast, tokenizer), max_length=256, normalize=True)
    chosen = paragraphs(given.texts)
    texts = chosen.texts
    cutting = embedder.cutting()
    pipeline = embedder.vector_stream(cutting)
    whole = cutting.pieces(texts)
    print(f"{describe()}; {given.device}\n{chosen.source}, mean length {len(whole.ids) / len(texts):.0f} tokens")

    rows = []

    def tell(name: str, seconds: float, count: int) -> None:
        rows.append({"what": name, "us_per_text": round(seconds / count * 1e6, 2)})
        print(f"{name:50s} {seconds / count * 1e6:10.2f} µs a text {count / seconds:12,.0f} texts/s")

    tell("tokenizing alone", median(lambda: cutting.pieces(texts), 1), len(texts))
    tell("text to vector, model free", median(lambda: embedder.embed(texts), given.rounds), len(texts))
    free = _without_tokenizer(pipeline, texts)
    without = median(free, given.rounds)
    tell("text to vector, model and tokenizer free", without, len(texts))

    short = "A short text to embed."
    embedder.embed(short)
    one = median(lambda: embedder.embed(short), 2000)
    tokenizing = median(lambda: embedder.loaded.tokenizer.encode_ids([short], max_length=256), 2000)
    tell("one short text, model free", one, 1)
    tell("one short text, its tokenizing", tokenizing, 1)
    tell("one short text, the rest", one - tokenizing, 1)
    if given.save:
        save_result("pipeline", "python -m benchmarks.pipeline", rows)
    print(f"{len(texts) / without:,.0f} texts/s without the tokenizer")


def _without_tokenizer(pipeline: VectorStream, texts: list[str]) -> Callable[[], None]:
    """The pipeline over the same chunks of texts, their rows looked up."""
    from bertie.running.stream import text_chunks, tokenizing_beside

    chunks = text_chunks(texts, tokenizing_beside(pipeline.loaded.model.device).texts)
    known = [pipeline.cutting.pieces(chunk) for chunk in chunks]
    cutting = Tokenized(pipeline.cutting.tokenizer, pipeline.cutting.max_length)
    looked_up = replace(pipeline, cutting=cutting)

    def run() -> None:
        object.__setattr__(cutting, "known", iter(known))
        for _ in looked_up.vectors(texts):
            pass

    return run


if __name__ == "__main__":
    main()
