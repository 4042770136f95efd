"""On a CUDA machine: a compiled model follows its weights, and ids beyond its table are refused.

    PYTHONPATH=src python tests/scripts/gpu_source.py

Weights are changed in place, replaced, pruned and resized after compiling; each time the engine's answer must be the
reference's of the changed model. The last line is the number of changes and the lowest cosine.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import bertie
from bertie.errors import BertieError

LOWEST = 0.999


def scaled(model: Any) -> None:
    with torch.no_grad():
        model.encoder.layer[1].intermediate.dense.weight.mul_(3)


def stepped(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    with torch.enable_grad():
        model(torch.arange(5, 25, device="cuda")[None]).last_hidden_state.square().mean().backward()
    optimizer.step()


def loaded(model: Any) -> None:
    model.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()})


def replaced(model: Any) -> None:
    width = model.config.hidden_size
    model.encoder.layer[0].attention.output.dense = nn.Linear(width, width).cuda().to(model.dtype)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": scaled,
    "an optimizer's step": stepped,
    "load_state_dict": loaded,
    "another layer": replaced,
    "pruned heads": lambda model: model.prune_heads({0: [0], 1: [1, 2]}),
    "a larger vocabulary": lambda model: model.resize_token_embeddings(1500),
}


@torch.no_grad()
def main() -> int:
    lowest = 1.0
    for name, change in CHANGES.items():
        torch.manual_seed(0)
        config = bertie.BertConfig.preset("small", vocab_size=1000)
        model = bertie.BertModel(config, add_pooling_layer=False).cuda().bfloat16().eval()
        fast = bertie.compile(model)
        ids = torch.randint(0, 1000, (4, 40), device="cuda")
        fast(ids)
        change(model)
        model.eval()
        if name == "a larger vocabulary":
            ids = torch.randint(1000, 1500, (4, 40), device="cuda")
        wanted = copy.deepcopy(model).float()(ids).last_hidden_state
        cosine = F.cosine_similarity(fast(ids).last_hidden_state.float(), wanted, dim=-1).min().item()
        print(f"{name:22s} {cosine:.6f}", flush=True)
        lowest = min(lowest, cosine)
        try:
            fast(torch.full((1, 4), 5000, device="cuda"))
        except BertieError:  # refused, as it should be
            pass
        else:
            print("an id beyond the table was not refused")
            return 1
    print(f"{len(CHANGES)} changes, lowest cosine {lowest:.6f}")
    return 0 if lowest >= LOWEST else 1


if __name__ == "__main__":
    sys.exit(main())
