"""What a run makes of its device: faster layers on a GPU, and how much of its peak was used.

Our kernels (engine/gpu/training/fuse.py) are the default where they have a form for the model. For torch.compile: a
whole model would be traced around reading lengths and checking shapes; what is worth compiling is a layer: its
dropouts, additions, LayerNorms and GELU become a few kernels, around attention over packed texts. All layers share
one compiled function, for any number of tokens.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model.pretrained import BertPreTrainedModel

if TYPE_CHECKING:
    from bertie.engine.gpu.training.fuse import Fusion

logger = logging.getLogger("bertie")


def fuse_layers(model: BertPreTrainedModel, *, alone: bool) -> Fusion | None:
    """Let the model's layers run in our kernels, until what comes back is undone.

    What stands in the way is said in the log, and leaves the model as it is. A process that is `alone` has no gradients
    to exchange, and can record its passes.
    """
    try:
        from bertie.engine.gpu.training.fuse import fuse, why_not
    except ImportError as error:  # no Triton
        reason: str | None = str(error)
    else:
        reason = why_not(model)
    if reason is None:
        return fuse(model, record=alone)
    logger.info("training runs the reference's layers, without kernels of our own: %s", reason)
    return None


def compile_layers(model: BertPreTrainedModel, *, backend: str = "inductor") -> None:
    """Compile every layer of a model in place; parameters keep their names."""
    encoder = model.base_model.encoder
    if backend == "inductor" and model.device.type == "cpu":
        raise InputError(
            "{compile_layers} was asked for on a CPU.", "It is for GPUs; leave it out.", compile_layers=True
        )
    # The tables of ops/attention.py are cached functions; tracing looks through the caching, and says so.
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    encoder.register_forward_pre_hook(_touch_packing, with_kwargs=True)
    for layer in encoder.layer:
        layer.compile(dynamic=True, backend=backend)  # in place: names and hooks stay


def _touch_packing(module: nn.Module, arguments: tuple[object, ...], named: dict[str, object]) -> None:
    """Make what attention asks of a packing before the traced code does: it is built from Python numbers."""
    plan = named.get("plan", arguments[1] if len(arguments) > 1 else None)
    packing = getattr(plan, "packing", None)
    if packing is not None:
        _ = packing.cu_seqlens, packing.max_length


# Dense bfloat16 peaks of data sheets, in TFLOP/s, by a part of the device's name; the longest part that fits counts.
PEAKS = {
    "H200": 989.0, "H100": 989.0, "H100 PCIe": 756.0, "H800": 989.0, "A100": 312.0, "A800": 312.0, "A10G": 70.0,
    "A10": 125.0, "A30": 165.0, "A40": 150.0, "L4": 121.0, "L40": 181.0, "L40S": 362.0, "B200": 2250.0, "B100": 1750.0,
    "GB200": 2500.0, "RTX 4090": 165.0, "RTX 3090": 71.0, "RTX 5090": 210.0,
}  # fmt: skip


def step_flops(config: BertConfig, *, tokens: float, squares: float, predicted: float = 0.0) -> float:
    """Useful operations of forward and backward: two for each weight a token meets, three times.

    `squares` is Σ length² over the texts (attention), `predicted` the number of tokens that the vocabulary is scored
    for. Nothing is counted twice for recomputing, and nothing for padding.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    heads = layers - sum(map(len, config.pruned_heads.values())) / config.num_attention_heads  # in layers' worth
    neurons = layers * config.intermediate_size if config.intermediate_sizes is None else sum(config.intermediate_sizes)
    dense = heads * 4 * width**2 + 2 * width * neurons
    attention = heads * 2 * width  # q·kᵀ and probabilities·v, per pair of tokens
    head = width**2 + width * config.vocab_size
    return 6.0 * (tokens * dense + squares * attention + predicted * head)


def peak_flops(device: torch.device) -> float | None:
    """The bfloat16 peak of this device, in FLOP/s; None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    fitting = [part for part in PEAKS if part in name]
    return PEAKS[max(fitting, key=len)] * 1e12 if fitting else None
