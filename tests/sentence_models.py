"""Small sentence-transformers folders, written file by file as that library writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.safetensors import write_safetensors
from tiny_models import saved

MODULE = "sentence_transformers.models."


def tiny_sentence_model(
    folder: Path,
    *,
    pooling: dict[str, Any] | None = None,
    dense: Sequence[int] = (),
    normalize: bool = True,
    layer_norm: bool = False,
    shared: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
    transformer: str = "",
    as_bin: bool = False,
    activation: str = "torch.nn.modules.activation.Tanh",
    seed: int = 0,
) -> str:
    """A transformer in the root or below, 1_Pooling, 2_Dense… (one to each width), LayerNorm, Normalize."""
    folder.mkdir(parents=True)
    saved(folder / transformer, "BertModel", seed=seed)
    modules = [{"path": transformer, "type": MODULE + "Transformer"}, {"path": "1_Pooling", "type": MODULE + "Pooling"}]
    pooling = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooling})
    width = 32 * max(1, sum(value is True for key, value in pooling.items() if key.startswith("pooling_mode_")))
    generator = torch.Generator().manual_seed(seed + 1)

    def put(place: Path, tensors: dict[str, torch.Tensor]) -> None:
        if as_bin:
            torch.save(tensors, place / "pytorch_model.bin")
        else:
            write_safetensors(place / "model.safetensors", tensors)

    for out in dense:
        place = folder / f"{len(modules)}_Dense"
        config = {"in_features": width, "out_features": out, "bias": True, "activation_function": activation}
        write_json(place / "config.json", config)
        weight = torch.randn(out, width, generator=generator) / width**0.5
        put(place, {"linear.weight": weight, "linear.bias": torch.randn(out, generator=generator) * 0.1})
        modules.append({"path": place.name, "type": MODULE + "Dense"})
        width = out
    if layer_norm:
        place = folder / f"{len(modules)}_LayerNorm"
        write_json(place / "config.json", {"dimension": width})
        weight, bias = torch.randn(width, generator=generator), torch.randn(width, generator=generator)
        put(place, {"norm.weight": weight, "norm.bias": bias})
        modules.append({"path": place.name, "type": MODULE + "LayerNorm"})
    if normalize:
        modules.append({"path": f"{len(modules)}_Normalize", "type": MODULE + "Normalize"})
    write_json(folder / "modules.json", [{"idx": i, "name": str(i), **m} for i, m in enumerate(modules)])
    own = {"max_seq_length": 40, "do_lower_case": False} if own is None else own
    write_json(folder / transformer / "sentence_bert_config.json", own)
    write_json(folder / "config_sentence_transformers.json", {"__version__": {}, **(shared or {})})
    return str(folder)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
