"""Teach a BERT to find names in sentences, then use it, and say how to serve it.

    python examples/train_ner.py my-ner --model bert-base-cased --epochs 3 --train train.conll --dev dev.conll

Files are in CoNLL's columns: a word and its tag on each line, a blank line between sentences. Without --train, a few
sentences below are used, which is enough to see how it works and far too little to learn from.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import bertie
from bertie.answers import Entity
from bertie.training import finetune

SENTENCES = """\
Ada B-PER
Lovelace I-PER
lived O
in O
London B-LOC

Marie B-PER
Curie I-PER
worked O
in O
Paris B-LOC

It O
rained O
in O
Hamburg B-LOC
"""


def main(output: str, model: str, epochs: float, train: str | None, dev: str | None) -> list[Entity]:
    with tempfile.TemporaryDirectory() as folder:
        if train is None:
            train = dev = str(Path(folder) / "names.conll")
            Path(train).write_text(SENTENCES, encoding="utf-8")
        result = finetune("tag", model=model, train=train, dev=dev, output=output, epochs=epochs)
    print(f"entities found, F1 on the dev file: {result.metrics['f1']:.3f}")
    found = bertie.tag("Ada Lovelace never saw Paris.", model=output)
    for entity in found:
        print(f"  {entity.text}: {entity.label} ({entity.score:.2f})")
    print(f"To serve it: bertie serve -m {output}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--model", default="bert-base-cased")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--train")
    parser.add_argument("--dev")
    main(**vars(parser.parse_args()))
