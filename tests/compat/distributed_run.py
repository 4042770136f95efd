"""One process of a group, or a group of its own: trains both libraries' models wrapped in DDP, FSDP 1 or FSDP 2.

    python -m torch.distributed.run --standalone --nproc_per_node=2 tests/compat/distributed_run.py

Prints one line of JSON, {way: largest difference of losses, gradients and weights between the two}, in process 0.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from compat.hub_cases import inputs, labels
from parity.oracle import difference, pair

NAME = "BertForSequenceClassification"


def ddp(model: Any) -> Any:
    return DistributedDataParallel(model)


def fsdp(model: Any) -> Any:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def fsdp2(model: Any) -> Any:
    for layer in model.bert.encoder.layer:
        fully_shard(layer)
    return fully_shard(model)


def run(wrap: Any, model: Any) -> list[Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    wrapped = wrap(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    batch = {key: value[rank::world] for key, value in (inputs(NAME, 4, 7) | labels(NAME, 4, 7)).items()}
    losses = []
    for _ in range(3):
        loss = wrapped(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [torch.stack(losses), *whole_weights(wrapped)]


def whole_weights(wrapped: Any) -> list[torch.Tensor]:
    if isinstance(wrapped, FullyShardedDataParallel):  # its full state_dict ends the process on CPUs (PyTorch 2.13)
        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            return [tensor.detach().clone() for tensor in wrapped.parameters()]
    whole = get_model_state_dict(wrapped, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return [tensor.clone() for _, tensor in sorted(whole.items())]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        else:  # a group of one; a file needs no port
            dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'meeting'}", rank=0, world_size=1)
        torch.manual_seed(0)
        found = {}
        for wrap in (ddp, fsdp, fsdp2):
            theirs, ours = (run(wrap, copy.deepcopy(model)) for model in pair(NAME, attention="sdpa"))
            assert len(ours) == len(theirs) > (30 if dist.get_rank() == 0 else 0)
            found[wrap.__name__] = difference(theirs, ours)
        if dist.get_rank() == 0:
            print(json.dumps(found))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
