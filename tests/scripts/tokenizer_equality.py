"""QUALITY 8: ids and offsets equal to the Rust tokenizer of transformers 4.57.6, and the pure-Python reference to both.

    python tests/scripts/tokenizer_equality.py --lines 1000000 --fuzz 100000

Compares what `encode_ids` gives (in C++, where it was built), and ids, type ids, masks, offsets, special-token masks,
overflow and word ids of `BertTokenizer` with `BertTokenizerFast`, over real lines (five languages, ../shared/data) and
fuzz strings, shared out over the settings
below; the reference is compared on every fuzz string and on one line in `--reference-every`. Exits 1 at the first
difference. The last line is the figure.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

from tokenizer_cases import VOCABS, fuzz_strings, real_lines
from transformers import BertTokenizerFast

from bertie.text import BertTokenizer, WordPieceTokenizer
from bertie.text.wordpiece.reference import replace_surrogates

BATCH = 2000
PROGRESS = 50_000  # lines between two reports
EVERYTHING = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_overflowing_tokens": True,
    "return_length": True,
}
STRIDED = {"truncation": True, "max_length": 48, "stride": 12, "padding": True}
# (name, vocabulary, lower-case, in pairs, call settings); lines and fuzz strings are dealt out to these in turn.
SETTINGS: list[tuple[str, str, bool, bool, dict[str, Any]]] = [
    ("uncased", "uncased", True, False, {}),
    ("cased", "cased", False, False, {}),
    ("chinese", "chinese", True, False, {}),
    ("multilingual cased", "multilingual-cased", False, False, {}),
    ("multilingual uncased", "multilingual-uncased", True, False, {}),
    ("pairs", "multilingual-cased", False, True, {}),
    ("strides", "uncased", True, False, STRIDED),
    ("pairs with strides", "multilingual-uncased", True, True, {**STRIDED, "truncation": "longest_first"}),
]


class Difference(Exception):
    """Names the setting, the column and the text."""


def compare(name: str, ours: BertTokenizer, hub: Any, texts: list[str], paired: bool, settings: dict[str, Any]) -> None:
    if paired and settings:
        # Cutting both texts of a pair gives every combination of their parts: rows by the square of the length.
        texts = [text[:700] for text in texts]
    first, second = (texts[: len(texts) // 2], texts[len(texts) // 2 :][: len(texts) // 2]) if paired else (texts, None)
    mine = ours(first, second, **EVERYTHING, **settings)
    theirs = hub(first, second, **EVERYTHING, **settings)
    if set(mine) != set(theirs.keys()):
        raise Difference(f"{name}: columns {set(mine)} and {set(theirs.keys())}")
    for column in theirs.keys():  # noqa: SIM118  a hub encoding is no plain dict
        if mine[column] != theirs[column]:
            row = next(i for i, (a, b) in enumerate(zip(mine[column], theirs[column], strict=False)) if a != b)
            raise Difference(f"{name}: {column}, row {row}: {mine[column][row]} and {theirs[column][row]}")
    lean = ours(first, second, **EVERYTHING | {"return_offsets_mapping": False}, **settings)
    for column in lean:
        if lean[column] != mine[column]:
            raise Difference(f"{name}: {column} without offsets differ from those with them")
    if not paired:
        for limit in (None, 48):
            wanted = theirs["input_ids"] if limit is None and not settings else None
            if wanted is None:
                wanted = hub(first, truncation=limit is not None, max_length=limit)["input_ids"]
            for text, a, b in zip(first, ours.encode_ids(first, max_length=limit), wanted, strict=True):
                if a != b:
                    raise Difference(f"{name}: encode_ids, at most {limit}, of {text!a}")
    for row in range(0, len(theirs.encodings), 7):
        if mine.word_ids(row) != theirs.word_ids(row) or mine.sequence_ids(row) != theirs.sequence_ids(row):
            raise Difference(f"{name}: word or sequence ids of row {row}")


def compare_reference(name: str, ours: BertTokenizer, reference: WordPieceTokenizer, texts: list[str]) -> None:
    batch = ours(texts, add_special_tokens=False, return_offsets_mapping=True)
    for index, text in enumerate(texts):
        tokens = reference.tokenize(text)
        ids, offsets = [token.id for token in tokens], [(token.start, token.end) for token in tokens]
        if ids != batch["input_ids"][index] or offsets != batch["offset_mapping"][index]:
            raise Difference(f"{name}: the reference on {text!a}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000, help="real lines, over all settings")
    parser.add_argument("--fuzz", type=int, default=20_000, help="fuzz strings for each setting")
    parser.add_argument("--reference-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    started = time.perf_counter()
    lines = real_lines()
    made: dict[str, tuple[BertTokenizer, Any, WordPieceTokenizer]] = {}
    for _, vocabulary, lower, _, _ in SETTINGS:
        path = VOCABS / f"bert-base-{vocabulary}" / "vocab.txt"
        ours = BertTokenizer(path, do_lower_case=lower)
        hub = BertTokenizerFast(vocab_file=str(path), do_lower_case=lower)
        made[vocabulary] = ours, hub, WordPieceTokenizer(ours.get_vocab(), do_lower_case=lower)

    num_lines = num_fuzz = num_reference = 0
    try:
        for turn in itertools.cycle(range(len(SETTINGS))):
            texts = list(itertools.islice(lines, min(BATCH, arguments.lines - num_lines)))
            if not texts:
                break
            name, vocabulary, _, paired, settings = SETTINGS[turn]
            ours, hub, reference = made[vocabulary]
            compare(name, ours, hub, texts, paired, settings)
            sample = texts[:: arguments.reference_every]
            compare_reference(name, ours, reference, sample)
            num_lines, num_reference = num_lines + len(texts), num_reference + len(sample)
            if num_lines % PROGRESS == 0:
                print(f"{num_lines:,} lines equal; {time.perf_counter() - started:.0f} s", flush=True)
        for turn, (name, vocabulary, _, paired, settings) in enumerate(SETTINGS):
            ours, hub, reference = made[vocabulary]
            for start in range(0, arguments.fuzz, BATCH):
                seed = arguments.seed + 1_000_003 * turn + start
                texts = fuzz_strings(min(BATCH, arguments.fuzz - start), seed=seed)
                compare(name, ours, hub, [replace_surrogates(text) for text in texts], paired, settings)
                compare_reference(name, ours, reference, texts)
                num_fuzz, num_reference = num_fuzz + len(texts), num_reference + len(texts)
            print(f"{num_fuzz:,} fuzz strings equal; {time.perf_counter() - started:.0f} s", flush=True)
    except Difference as difference:
        print(f"DIFFERENT after {num_lines} lines and {num_fuzz} fuzz strings: {difference}")
        return 1
    seconds = time.perf_counter() - started
    print(
        f"equal on {num_lines:,} lines and {num_fuzz:,} fuzz strings ({len(SETTINGS)} settings); "
        f"reference equal on {num_reference:,} of them; {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
