"""QUALITY 9: text made to be slow, 1 to 10 MB of it. Time should grow with the length, at most 1 s for each MB.

    python tests/scripts/tokenizer_adversarial.py [--largest 10]

Each kind of text is encoded as one document at 1 MB and at `--largest` MB of UTF-8, ids only and with offsets.
"growth" is the time per MB at the largest size over the time per MB at 1 MB: 1 is linear. The last line is the worst
second per MB of the kinds QUALITY names, then the worst growth.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

from tokenizer_cases import VOCABS, small_tokenizer

from bertie.text import BertTokenizer

# Each unit is repeated until the text has the wanted number of bytes.
NAMED = {
    "one word": "a",
    "one word, accents": "é",
    "combining marks": "\u0301",
    "mixed combining marks": "\u0301\u0323\u0327\u0345",
    "CJK": "漢",
    "lone surrogates": "\ud800",
    "surrogates in words": "a\udfffb ",
}
FURTHER = {
    "punctuation": ".",
    "spaces": " ",
    "Hangul": "한",
    "emoji": "👨‍👩‍👧",
    "special tokens": "[MASK]",
    "words of 99 letters": "a" * 99 + " ",
}


def make(unit: str, megabytes: float) -> str:
    size = len(unit.encode("utf-8", "surrogatepass"))
    return unit * int(megabytes * 1e6 / size)


def seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=float, default=10)
    largest = parser.parse_args().largest
    path = VOCABS / "bert-base-uncased" / "vocab.txt"
    tokenizer = BertTokenizer(path) if path.is_file() else small_tokenizer()
    worst_time = worst_growth = 0.0
    for name, unit in {**NAMED, **FURTHER}.items():
        for offsets in (False, True):
            small, large = make(unit, 1), make(unit, largest)
            once = min(seconds(lambda t=small, o=offsets: tokenizer(t, return_offsets_mapping=o)) for _ in range(3))
            much = seconds(lambda t=large, o=offsets: tokenizer(t, return_offsets_mapping=o)) / largest
            growth = much / once
            asked = "offsets" if offsets else "ids"
            print(f"{name:24s} {asked:8s} {once:6.3f} s/MB  {much:6.3f} s/MB  growth {growth:.2f}")
            if name in NAMED:
                worst_time = max(worst_time, once, much)
            if once > 0.05:
                worst_growth = max(worst_growth, growth)
    print(f"{worst_time:.2f} s/MB, growth {worst_growth:.2f}")


if __name__ == "__main__":
    main()
