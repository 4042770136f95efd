"""Other ways to prune the same model, at a speed that is asked for: what `benchmarks/compress.py` compares ours with.

    magnitude       the same share of heads and of neurons in every layer, those with the largest weights
    top layers      layers cut from the top, to the depth whose speed is nearest
    TextPruner      `pip install textpruner`: first-order importance on labelled rows, heads and neurons ranked over all
                    layers, in four rounds. It chooses; what it keeps is cut out as ours is, so that it runs as fast
    torch-pruning   `pip install torch-pruning`: Taylor importance of groups from its dependency graph, heads and
                    neurons ranked over all layers; likewise

Neither package knows of time: each is asked for the share that our table of times says is fast enough, and then once
more with the share moved by as much as the measured speed was off.
"""

from __future__ import annotations

import copy
import io
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from math import log

import torch
from torch import Tensor, nn

from bertie.compression.layers import Sizes, keep, keep_layers
from bertie.compression.work import Work
from bertie.model.pretrained import BertPreTrainedModel

Batches = Sequence[dict[str, Tensor]]
Make = Callable[[float], BertPreTrainedModel]


def at_speed(work: Work, make: Make, speed: float) -> tuple[BertPreTrainedModel, float]:
    """The model of the share that is as fast as asked, and its measured speed."""
    wanted, found = speed, []
    for _ in range(2):
        low, high = 0.0, 1.0
        for _ in range(7):
            middle = (low + high) / 2
            low, high = (middle, high) if work.expected(_even(work.full, middle)) >= wanted else (low, middle)
        model = make(low)
        measured = work.speed(model)
        found.append((abs(log(measured / speed)), model, measured))
        if found[-1][0] < 0.03:
            break
        wanted *= speed / measured
    _, model, measured = min(found, key=lambda one: one[0])
    return model, measured


def _even(full: Sizes, share: float) -> Sizes:
    return Sizes(tuple(max(1, round(share * n)) for n in full.heads),
                 tuple(max(16, 16 * round(share * n / 16)) for n in full.neurons))  # fmt: skip


def by_magnitude(model: BertPreTrainedModel, share: float) -> BertPreTrainedModel:
    heads, neurons = [], []
    sizes = _even(Sizes.of(model), share)
    for number, layer in enumerate(model.base_model.encoder.layer):
        inside, width = layer.attention.self, layer.attention.self.attention_head_size
        norms = layer.attention.output.dense.weight.detach().square().sum(0).view(-1, width).sum(1)
        chosen = norms.argsort(descending=True)[: sizes.heads[number]]
        heads.append([inside.heads[int(slot)] for slot in chosen])
        size = layer.intermediate.dense.weight.detach().norm(dim=1) * layer.output.dense.weight.detach().norm(dim=0)
        neurons.append(size.argsort(descending=True)[: sizes.neurons[number]].sort().values)
    return keep(model, heads, neurons)


def top_layers(work: Work, model: BertPreTrainedModel, speed: float) -> tuple[BertPreTrainedModel, float]:
    found = []
    for depth in range(1, len(work.full)):
        sizes = Sizes(work.full.heads[:depth], work.full.neurons[:depth])
        found.append((abs(log(work.expected(sizes) / speed)), depth))
    fewer = keep_layers(model, range(min(found)[1]))
    return fewer, work.speed(fewer)


def labelled(rows: Sequence[tuple[Tensor, Tensor, Tensor, int]]) -> Batches:
    """Padded batches of 32 (ids, mask, segments, label): what both packages feed a model with."""
    made = []
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        ids, mask, types = (nn.utils.rnn.pad_sequence([row[i] for row in part], batch_first=True) for i in range(3))
        labels = torch.tensor([row[3] for row in part])
        made.append({"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "labels": labels})
    return made


def text_pruner(model: BertPreTrainedModel, batches: Batches, share: float) -> BertPreTrainedModel:
    from textpruner import GeneralConfig, TransformerPruner, TransformerPruningConfig

    sizes = _even(Sizes.of(model), share)
    logging.getLogger("textpruner").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        config = TransformerPruningConfig(
            target_ffn_size=sizes.neurons[0], target_num_of_heads=sizes.heads[0], pruning_method="iterative",
            n_iters=4, head_even_masking=False, ffn_even_masking=False, multiple_of=16,
        )  # fmt: skip
        general = GeneralConfig(use_device=_device(), output_dir=folder)
        pruner = TransformerPruner(copy.deepcopy(model).requires_grad_(True), config, general)
        pruner.prune(batches, save_model=False, keep_shape=True)
    heads = [torch.nonzero(row)[:, 0].tolist() for row in pruner.head_mask]
    return keep(model, heads, [torch.nonzero(row)[:, 0] for row in pruner.ffn_mask])


def torch_pruning(model: BertPreTrainedModel, batches: Batches, share: float) -> BertPreTrainedModel:
    import torch_pruning as tp

    traced = copy.deepcopy(model).requires_grad_(True).to(_device())
    batches = [{name: tensor.to(_device()) for name, tensor in batch.items()} for batch in batches]
    for batch in batches:
        traced(**batch).loss.backward()
    layers = traced.base_model.encoder.layer
    heads = {getattr(layer.attention.self, name): len(layer.attention.self.heads)
             for layer in layers for name in ("query", "key", "value")}  # fmt: skip
    wide = [layer.intermediate.dense for layer in layers]
    others = [m for m in traced.modules() if isinstance(m, nn.Linear | nn.LayerNorm | nn.Embedding)]
    ignored = [m for m in others if m not in heads and not any(m is one for one in wide)]
    # Which units go is read from marks in the biases: the package gives back weights, and not numbers.
    for layer in layers:
        for marked in (layer.attention.self.query, layer.intermediate.dense):
            marked.bias.data = torch.arange(float(marked.out_features), device=marked.bias.device)
    pruner = tp.pruner.BasePruner(
        traced, batches[0], importance=tp.importance.GroupTaylorImportance(), global_pruning=True,
        pruning_ratio=1 - share, num_heads=heads, prune_num_heads=True, head_pruning_ratio=1 - share,
        prune_head_dims=False, ignored_layers=ignored, output_transform=lambda output: output.logits.sum(),
    )  # fmt: skip
    pruner.step()
    width = layers[0].attention.self.attention_head_size
    kept = [sorted({int(x) // width for x in layer.attention.self.query.bias.tolist()}) for layer in layers]
    return keep(model, kept, [layer.intermediate.dense.bias.detach().long().cpu() for layer in layers])


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


PACKAGES: dict[str, tuple[str, Callable[[BertPreTrainedModel, Batches, float], BertPreTrainedModel]]] = {
    "TextPruner": ("textpruner", text_pruner),
    "torch-pruning": ("torch_pruning", torch_pruning),
}


def installed() -> list[str]:
    return [name for name, (package, _) in PACKAGES.items() if find_spec(package) is not None]
