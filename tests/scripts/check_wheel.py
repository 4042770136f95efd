"""An installed wheel in one minute: both compiled libraries load, and engine and reference give the same answers.

    python tests/scripts/check_wheel.py

Needs the installed package alone (no default model, no test packages); exits 1 with what is wrong.
"""

from __future__ import annotations

import sys

import torch

import bertie
from bertie.engine.cpu.library import instruction_set
from bertie.text.wordpiece.native import load_library

TEXTS = ["She opened the door and walked into the room.", "It was a dark night."]


def main() -> int:
    missing = [name for name, there in (("kernels", instruction_set()), ("tokenizer", load_library())) if not there]
    if missing:
        print(f"not in this wheel: {', '.join(missing)}")
        return 1
    model = bertie.BertModel.from_pretrained("bertie-mini").eval()
    batch = bertie.BertTokenizer.from_pretrained("bertie-mini")(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        slow, fast = model(**batch).last_hidden_state, bertie.compile(model)(**batch).last_hidden_state
    worst = float((fast - slow)[batch["attention_mask"].bool()].abs().max())
    print(f"bertie {bertie.__version__}, kernels on {instruction_set()}, difference to the reference {worst:.1e}")
    return int(worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
