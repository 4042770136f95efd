"""`bertie.compile(model, dtype=…, device=…)`: the same model, fast.

    >>> fast = bertie.compile(model, dtype="int8")      # doctest: +SKIP

The answer is a model of the same class, so heads, tasks and callers notice nothing; its encoder is a `FastBert`.

| device | dtype | runner |
|---|---|---|
| cpu | float32, bfloat16, int8 | cpu/: our C++ kernels (AMX, AVX-512, AVX2, NEON or portable) |
| cuda | bfloat16, float16, fp8 | gpu/: Triton kernels, CUDA graphs |
| any other | | none: the model as it is |

What a runner cannot do is said by name: `Refused` carries it, and with `strict=False` (what tasks use) the model comes
back as it was. So it does, with `strict=False`, on a processor where the reference is faster (cpu/timing.py).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from bertie.engine.calibration import Rows, calibration_rows, unusual_rows
from bertie.engine.cpu.bfloat16 import exact_parameters
from bertie.engine.cpu.runner import CpuRunner
from bertie.engine.cpu.timing import is_ahead
from bertie.engine.fast import FastBert
from bertie.engine.gpu.runner import GpuRunner
from bertie.engine.runner import AS_IT_IS, Options, Refused, Runner
from bertie.errors import InputError
from bertie.model import BertModel, BertPreTrainedModel
from bertie.model.bert import (
    BertAttention,
    BertEmbeddings,
    BertEncoder,
    BertIntermediate,
    BertLayer,
    BertOutput,
    BertSelfAttention,
    BertSelfOutput,
)
from bertie.text import BertTokenizer

M = TypeVar("M", bound=BertPreTrainedModel)
logger = logging.getLogger("bertie.engine")
_LARGEST = 1e4  # a hundred times what BERTs have; from 1e8 on answers differ from the reference's, NaN in one of them

# Names people write → the dtype of the tensors around the runner (int8 and fp8 are inside it).
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
    "fp8": torch.bfloat16,
}
_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "float8": "fp8", "half": "float16"}


def compile(  # noqa: A001  # it is what people call it
    model: M,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: BertTokenizer | None = None,
    calibration: Sequence[str] | Rows | None = None,
    accuracy: float = 0.999,
    threads: int | None = None,
    strict: bool = True,
) -> M:
    """A model of the same class that answers faster.

    - `model`: any of Bertie's models, with any head.
    - `dtype`: "float32", "int8" (CPU), "bfloat16", "float16" or "fp8" (GPU); by default the model's own.
    - `device`: by default the model's own.
    - `tokenizer`, `calibration`: texts, with the tokenizer, or rows of token ids, that int8 and fp8 are calibrated on.
    - `accuracy`: the mean cosine to float32 that int8 and fp8 must keep.
    - `threads`: of the CPU kernels; by default all cores.
    - `strict`: if the engine cannot run the model, True raises an error and False returns the reference model.

    int8 and fp8 look at `calibration` (texts, with the `tokenizer`, or rows of token ids; a page of prose by default)
    to keep the mean cosine to float32 at `accuracy` or above: layers that cost too much stay in a wider type. By
    default int8 is also fitted to other scripts, digits, code and odd words, which may lose twice as much.

    The two models share their weights where the dtype and the device stay the same, and both are put into eval mode.
    When the weights change afterwards, the next answer waits until they are compiled again.
    """
    base = model.base_model
    if isinstance(base, FastBert):
        raise InputError("This model is compiled already.", "Compile the model it was made from.")
    name = dtype_name(dtype if dtype is not None else model.dtype)
    where = torch.device(device) if device is not None else model.device
    _check_fp8(name, where)
    exact: dict[str, Tensor] = {}
    if where.type == "cpu" and name == "bfloat16" and model.dtype == torch.float32:
        exact = exact_parameters(base)
    if where != model.device or DTYPES[name] != model.dtype:
        model = copy.deepcopy(model).to(device=where, dtype=DTYPES[name])
        base = model.base_model
    where = model.device  # "cuda" is "cuda:0"
    if not strict and where.type == "cpu" and name in ("float32", "bfloat16") and not is_ahead(name):
        return model.eval()
    rows: Rows | None = None
    unusual: Rows = ()
    if name in ("int8", "fp8"):
        rows = calibration_rows(base, tokenizer, calibration)
        if name == "int8" and calibration is None and tokenizer is not None:
            unusual = unusual_rows(base, tokenizer)
    try:
        options = Options(name, where, threads, accuracy, rows, unusual, exact)
        return with_runner(model, partial(make_runner, options=options))
    except Refused as refusal:
        if strict:
            raise
        logger.info("%s", refusal.cause)
        return model.eval()


def make_runner(base: BertModel, options: Options) -> Runner:
    """The runner for this model, or `Refused` with what stands in the way."""
    if base.config.is_decoder:
        raise Refused("The engine runs encoders; this model is a decoder.", AS_IT_IS)
    _check_parts(base)
    _check_weights(base)
    options = _following(base, options)
    if options.device.type == "cpu" and options.dtype in ("float32", "bfloat16", "int8"):
        return CpuRunner.of(base, options)
    if options.device.type == "cuda" and options.dtype in ("bfloat16", "float16", "fp8"):
        return GpuRunner.of(base, options)
    raise Refused(
        f"The engine has no runner for {options.dtype} on {options.device.type}.",
        "It has float32, bfloat16 and int8 on a CPU, and bfloat16, float16 and fp8 on a GPU.",
    )


def with_runner(model: M, make: Callable[[BertModel], Runner]) -> M:
    """A model that shares all weights with `model` and answers through the runner that `make` makes of its base."""
    base = model.eval().base_model
    fast = FastBert(base, make)
    if base is model:
        return cast(M, fast)  # a BertModel was given: FastBert is one
    copied = copy.copy(model)
    copied._modules = {**model._modules, model.base_model_prefix: fast}
    return copied


def _following(base: BertModel, options: Options) -> Options:
    """A compiled model may have been moved or converted: then its dtype and device are those it has now."""
    if base.device == options.device and base.dtype == DTYPES[options.dtype]:
        return options
    name = str(base.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Refused(f"The engine has no runner for {name}.", f"It has {', '.join(DTYPES)}.")
    return replace(options, dtype=name, device=base.device)


# What runners know. Anything else in their place (an adapter, a parametrization, a subclass) computes something else.
_PARTS = {
    nn.Embedding, nn.Linear, nn.LayerNorm, nn.Dropout, nn.ModuleList, BertEmbeddings, BertEncoder, BertLayer,
    BertAttention, BertSelfAttention, BertSelfOutput, BertIntermediate, BertOutput,
}  # fmt: skip


def _check_parts(base: BertModel) -> None:
    """`Refused` for modules that do not compute what BERT's do."""
    if type(base).forward is not BertModel.forward:
        raise Refused(f"{type(base).__name__} has a forward of its own, which the engine would not call.", AS_IT_IS)
    for prefix in ("embeddings", "encoder"):
        for name, module in getattr(base, prefix).named_modules(prefix=prefix):
            if name.rpartition(".")[2] == "intermediate_act_fn":  # runners look at that themselves
                continue
            if type(module) not in _PARTS or "forward" in vars(module):
                kind = type(module)
                own = " with a forward of its own" if kind in _PARTS else ""
                raise Refused(
                    f"{name} is a {kind.__module__}.{kind.__qualname__}{own}, which the engine does not know."
                )


def _check_weights(base: BertModel) -> None:
    """`Refused` for weights with which float32 overflows, sooner in one order of adding up than in another."""
    for prefix in ("embeddings", "encoder"):
        for name, parameter in getattr(base, prefix).named_parameters(prefix=prefix):
            if not parameter.numel():
                continue
            low, high = (float(x) for x in parameter.detach().aminmax())
            if not (low >= -_LARGEST and high <= _LARGEST):  # also where they are no numbers
                wrong = high if not high <= _LARGEST else low
                raise Refused(f"{name} holds {wrong:g}; the engine takes weights up to {_LARGEST:g}.", AS_IT_IS)


def dtype_name(dtype: str | torch.dtype) -> str:
    """The engine's word for a dtype, or an error that lists them."""
    given = str(dtype).removeprefix("torch.")
    given = _ALIASES.get(given, given)
    if given.startswith("float8"):
        given = "fp8"
    if given not in DTYPES:
        known = tuple(DTYPES)
        raise InputError("{dtype} is not known.", f"Use one of {', '.join(known)}.", accepted=known, dtype=str(dtype))
    return given


def _check_fp8(name: str, device: torch.device) -> None:
    if name == "fp8" and device.type != "cuda":
        raise InputError("fp8 needs a GPU.", "On a CPU use int8.")
    if name == "int8" and device.type != "cpu":
        raise InputError("int8 is for the CPU.", "On a GPU use fp8 or bfloat16.")
