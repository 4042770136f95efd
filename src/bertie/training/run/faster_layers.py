"""Faster layers for a run on a GPU.

Our kernels (engine/gpu/training/fuse.py) are the default where they have a form for the model. For torch.compile: a
whole model would be traced around reading lengths and checking shapes; what is worth compiling is a layer: its
dropouts, additions, LayerNorms and GELU become a few kernels, around attention over packed texts. All layers share
one compiled function, for any number of tokens.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from torch import nn

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
