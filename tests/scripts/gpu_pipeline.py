"""On a CUDA machine: text → vectors end to end, beside the model alone and beside sentence-transformers.

    PYTHONPATH=src python tests/scripts/gpu_pipeline.py --vocab vocab.txt --texts texts.json [--rounds 5]

BERT-base with random weights in bfloat16. First the answers: the pipeline's vectors are those of the reference, in
order, for lists, streams and windows. Then the rates: tokens a second from text (everything), with all texts tokenized
beforehand, and the tokenizer's own. The last line is end to end / pre-tokenized, and end to end / sentence-transformers
(its default road, batches of 256), where that is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertie
from bertie.running.pooling import Pieces
from bertie.running.rows import Cutting
from bertie.running.stream import text_chunks, tokenizing_beside
from bertie.tasks.embed import Embedder
from bertie.text import BertTokenizer


class Tokenized(Cutting):
    """Chunks of texts whose rows are known, in order: `pieces` gives the next."""

    known: Iterator[Pieces]

    def pieces(self, texts: Sequence[str]) -> Pieces:
        return next(self.known)


def median(job: Callable[[], Any], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        job()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def cosines(a: Any, b: Any) -> Any:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def check_answers(folder: str, texts: list[str]) -> float:
    fast, plain = Embedder(folder, dtype="bf16"), Embedder(folder, engine="reference")
    assert fast.loaded.is_fast
    assert fast.device.type == "cuda"
    print(fast.loaded.model.runner.describe(), "; budget", fast.loaded.budget)
    wanted = plain.embed(texts)
    lowest = 1.0
    found = fast.embed(texts)
    for other in (
        found,
        np.stack(list(fast.embed(iter(texts)))),
        np.stack([fast.embed(text) for text in texts[:50]]),
        fast.encode(texts),
    ):
        lowest = min(lowest, float(cosines(other, wanted[: len(other)]).min()))
    assert np.array_equal(found, fast.embed(texts)), "two runs, different bits"
    long = [*texts[:20], " ".join(texts[:60]), *texts[20:40]]
    for pooling in ("mean", "cls", "max"):
        windows = Embedder(fast.loaded, pooling=pooling).embed(long, long="windows")
        slow = Embedder(plain.loaded, pooling=pooling).embed(long, long="windows")
        lowest = min(lowest, float(cosines(windows, slow).min()))
    stream = fast.embed(iter(texts))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    return lowest


def their_seconds(folder: str, texts: list[str], rounds: int) -> float | None:
    try:
        from sentence_transformers import SentenceTransformer, models
    except ImportError as error:
        print("sentence-transformers:", error)
        return None
    word = models.Transformer(folder, max_seq_length=256, model_args={"torch_dtype": torch.bfloat16})
    theirs = SentenceTransformer(modules=[word, models.Pooling(768)], device="cuda")
    theirs.encode(texts[:2048], batch_size=256, show_progress_bar=False)
    return median(lambda: theirs.encode(texts, batch_size=256, show_progress_bar=False), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--texts", required=True, help="a JSON list of strings")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    texts: list[str] = json.loads(Path(given.texts).read_text(encoding="utf-8"))
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        tokenizer = BertTokenizer(given.vocab, model_max_length=512)
        config = bertie.BertConfig.preset("base", vocab_size=len(tokenizer))
        bertie.BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        print(f"lowest cosine to the float32 reference {check_answers(folder, texts[:600]):.5f}", flush=True)

        embedder = Embedder(folder, dtype="bf16", max_length=256)
        cutting = embedder.cutting()
        started = time.perf_counter()
        tokens = len(cutting.pieces(texts).ids)
        print(f"{len(texts)} texts, {tokens} tokens; tokenized at once in {time.perf_counter() - started:.2f} s")
        chunks = list(text_chunks(texts, tokenizing_beside(embedder.device).texts))
        seconds = median(lambda: [cutting.pieces(chunk) for chunk in chunks], 3)
        print(f"tokenizer alone, chunk by chunk      {tokens / seconds / 1e6:6.2f} M tokens/s", flush=True)

        known = Tokenized(embedder.loaded.tokenizer, 256)
        rows = [cutting.pieces(chunk) for chunk in chunks]
        road = embedder.vector_stream(cutting)
        ready = replace(road, cutting=known)
        embedder.embed(texts)
        end, pre = [], []
        for _ in range(given.rounds):
            object.__setattr__(known, "known", iter(rows))
            pre.append(median(lambda: list(ready.vectors(texts)), 1))
            end.append(median(lambda: embedder.embed(texts), 1))
        whole, tokenized = statistics.median(end), statistics.median(pre)
        print(f"text → vectors                       {tokens / whole / 1e6:6.2f} M tokens/s")
        print(f"tokenized beforehand                 {tokens / tokenized / 1e6:6.2f} M tokens/s", flush=True)
        stream = median(lambda: list(embedder.embed(iter(texts))), 3)
        print(f"as a stream                          {tokens / stream / 1e6:6.2f} M tokens/s", flush=True)
        short = median(lambda: embedder.embed("A short text to embed."), 200)
        print(f"one short text                       {short * 1e3:6.2f} ms", flush=True)
        theirs = their_seconds(folder, texts, 2)
        if theirs is not None:
            print(f"sentence-transformers                {tokens / theirs / 1e6:6.2f} M tokens/s")
        ratio = "" if theirs is None else f", {theirs / whole:.1f}x sentence-transformers"
        print(f"end to end {tokenized / whole:.2f} of pre-tokenized{ratio}")


if __name__ == "__main__":
    main()
