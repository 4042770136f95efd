"""Tokenizing speed: `BertTokenizer` beside `tokenizers.encode_batch` called directly, alternating, medians.

    python -m benchmarks.tokenizer [--kind wordpiece|bytes|pieces] [--vocab vocab.txt] [--text file.txt] [--rounds 15]

Expected before measuring: about 1.0. A call encodes without offsets unless they are asked for, which saves Rust some
work, and spends what it saved on building the Python lists of ids, type ids and masks that a caller of the bare library
still has to build. The bare call is timed without building any lists, and with only the ids. The last line is the
smallest ratio (bare seconds / ours; above 1 is faster) of `tokenizer(texts)` to the bare call that makes no lists.

`bytes` is RoBERTa's byte-level BPE and `pieces` is XLM-RoBERTa's Unigram, both learned from the text, of 8,000 pieces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.machine import save_result
from bertie.text import BertTokenizer, train_vocabulary

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def alternate(jobs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each job; every round runs all of them once, so slow moments hit all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            started = time.perf_counter()
            result = job()
            seconds[name].append(time.perf_counter() - started)
            del result  # freed outside the measurement, for all alike
    return {name: statistics.median(times) for name, times in seconds.items()}


def made(kind: str, vocab: Path, lines: list[str]) -> BertTokenizer:
    """A tokenizer of this kind: BERT's from its vocabulary, the others learned from the text."""
    if kind == "wordpiece":
        return BertTokenizer(vocab) if vocab.is_file() else train_vocabulary(lines, vocab_size=5000)
    settings = {"vocab_size": 8000, "special_tokens": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
    with tempfile.TemporaryDirectory() as folder:
        if kind == "bytes":
            learned = tokenizers.ByteLevelBPETokenizer()
            learned.train_from_iterator(lines, **settings, show_progress=False)
            learned.save_model(folder)
        else:
            backend = tokenizers.Tokenizer(tokenizers.models.Unigram())
            backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
            trainer = tokenizers.trainers.UnigramTrainer(**settings, unk_token="<unk>", show_progress=False)
            backend.train_from_iterator(lines, trainer)
            special = [("<s>", 0), ("</s>", 2)]
            backend.post_processor = tokenizers.processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=special
            )
            backend.save(f"{folder}/tokenizer.json")
        name = {"bytes": "RobertaTokenizer", "pieces": "XLMRobertaTokenizer"}[kind]
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        return BertTokenizer.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("wordpiece", "bytes", "pieces"), default="wordpiece")
    parser.add_argument("--vocab", type=Path, default=DATA / "vocabs" / "bert-base-uncased" / "vocab.txt")
    parser.add_argument("--text", type=Path, default=DATA / "text" / "wikitext-2" / "valid.txt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    if arguments.text.is_file():
        lines = [line for line in arguments.text.read_text(encoding="utf-8").split("\n") if line.strip()]
    else:
        lines = [
            f"Line {n} of a text that is made up, because the real one is not here; word{n % 97}." for n in range(3000)
        ]
    ours = made(arguments.kind, arguments.vocab, lines)
    bare = tokenizers.Tokenizer.from_str(ours._backend.to_str())
    print(f"tokenizers {tokenizers.__version__}; {len(lines)} lines, {sum(map(len, lines)):,} characters")

    ratios, rows = [], []
    for name, texts in {
        "lines": lines,
        "short lines": [line[:120] for line in lines],
        "pieces of 20 lines": ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)],
    }.items():
        jobs: dict[str, Callable[[], Any]] = {
            "bare": lambda texts=texts: bare.encode_batch(texts),
            "bare, ids": lambda texts=texts: [row.ids for row in bare.encode_batch(texts)],
            "bare, ids, offsets": lambda texts=texts: [(row.ids, row.offsets) for row in bare.encode_batch(texts)],
            "ours": lambda texts=texts: ours(texts),
            "ours, truncated": lambda texts=texts: ours(texts, truncation=True, max_length=512),
            "ours, offsets": lambda texts=texts: ours(texts, return_offsets_mapping=True),
            "ours, encode_ids": lambda texts=texts: ours.encode_ids(texts, max_length=512),
            "ours, encode_flat": lambda texts=texts: ours.encode_flat(texts, max_length=512),
        }
        medians = alternate(jobs, arguments.rounds)
        ratios.append(medians["bare"] / medians["ours"])
        for job, seconds in medians.items():
            rows.append({"texts": name, "job": job, "ms": round(seconds * 1e3, 1), "ratio": medians["bare"] / seconds})
            print(f"{name:20s} {job:18s} {seconds * 1e3:8.1f} ms   {medians['bare'] / seconds:5.2f}x bare")
    if arguments.save:
        save_result(f"tokenizer-{arguments.kind}", f"python -m benchmarks.tokenizer --kind {arguments.kind}", rows)
    print(f"{min(ratios):.2f}")


if __name__ == "__main__":
    main()
