"""`bertie.compile(model, dtype=…, device=…)`: the same model, fast.

    >>> fast = bertie.compile(model, dtype="int8")      # doctest: +SKIP

The answer is a model of the same class, so heads, tasks and callers notice nothing; its encoder is a `FastBert`.

| device | dtype | runner |
|---|---|---|
| cpu | float32, int8 | cpu/: our C++ kernels (AVX-512, AVX2 or portable) |
| cuda | bfloat16, float16, fp8 | gpu/: Triton kernels, CUDA graphs |
| any other | | none: the model as it is |

What a runner cannot do is said by name: `Refused` carries it, and with `strict=False` (what tasks use) the model comes
back as it was.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from bertie.engine.fast import FastBert, Runner
from bertie.errors import InputError
from bertie.model import BertModel, BertPreTrainedModel
from bertie.text import BertTokenizer

M = TypeVar("M", bound=BertPreTrainedModel)
logger = logging.getLogger("bertie.engine")

# Names people write → the dtype of the tensors around the runner (int8 and fp8 are inside it).
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
    "fp8": torch.bfloat16,
}
_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "float8": "fp8", "half": "float16"}


class Refused(InputError):
    """The engine has no runner for this model here; the reference answers instead."""


@dataclass(frozen=True)
class Options:
    """How a runner is made. `calibration` is rows of token ids, which int8 and fp8 look at before they round."""

    dtype: str
    device: torch.device
    threads: int | None = None
    accuracy: float = 0.999
    calibration: Sequence[Sequence[int]] | None = None


def compile(  # noqa: A001  # it is what people call it
    model: M,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: BertTokenizer | None = None,
    calibration: Sequence[str] | Sequence[Sequence[int]] | None = None,
    accuracy: float = 0.999,
    threads: int | None = None,
    strict: bool = True,
) -> M:
    """A model of the same class that answers faster. `dtype` and `device` are the model's own by default.

    int8 and fp8 look at `calibration` (texts, with the `tokenizer`, or rows of token ids; a page of prose by default)
    to keep the mean cosine to float32 at `accuracy` or above: layers that cost too much stay in a wider type.
    """
    base = model.base_model
    if isinstance(base, FastBert):
        raise InputError("This model is compiled already.", "Compile the model it was made from.")
    name = dtype_name(dtype if dtype is not None else model.dtype)
    where = torch.device(device) if device is not None else model.device
    _check_fp8(name, where)
    if where != model.device or DTYPES[name] != model.dtype:
        model = copy.deepcopy(model).to(device=where, dtype=DTYPES[name])
        base = model.base_model
    rows = None
    if name in ("int8", "fp8"):
        rows = _calibration_rows(base, tokenizer, calibration)
    try:
        runner = make_runner(base, Options(name, where, threads, accuracy, rows))
    except Refused as refusal:
        if strict:
            raise
        logger.info("%s", refusal.cause)
        return model.eval()
    return with_runner(model, runner)


def make_runner(base: BertModel, options: Options) -> Runner:
    """The runner for this model, or `Refused` with what stands in the way."""
    if base.config.is_decoder:
        raise Refused("The engine runs encoders; this model is a decoder.", "Use the model as it is.")
    if options.device.type == "cpu" and options.dtype in ("float32", "int8"):
        from bertie.engine.cpu.runner import CpuRunner

        return CpuRunner.of(base, options)
    if options.device.type == "cuda" and options.dtype in ("bfloat16", "float16", "fp8"):
        from bertie.engine.gpu.runner import GpuRunner

        return GpuRunner.of(base, options)
    raise Refused(
        f"The engine has no runner for {options.dtype} on {options.device.type}.",
        "It has float32 and int8 on a CPU, and bfloat16, float16 and fp8 on a GPU.",
    )


def with_runner(model: M, runner: Runner) -> M:
    """A model that shares all weights with `model` and answers through `runner`."""
    base = model.base_model
    fast: Any = FastBert(base, runner)
    if base is model:
        return fast  # type: ignore[no-any-return]  # a BertModel was given: FastBert is one
    copied = copy.copy(model)
    copied._modules = {**model._modules, model.base_model_prefix: fast}
    copied.training = False
    for child in copied.children():
        child.eval()
    return copied


def dtype_name(dtype: str | torch.dtype) -> str:
    """The engine's word for a dtype, or an error that lists them."""
    given = str(dtype).removeprefix("torch.")
    given = _ALIASES.get(given, given)
    if given.startswith("float8"):
        given = "fp8"
    if given not in DTYPES:
        raise InputError(f"dtype={str(dtype)!r} is not known.", f"Use one of {', '.join(DTYPES)}.")
    return given


def _check_fp8(name: str, device: torch.device) -> None:
    if name == "fp8" and device.type != "cuda":
        raise InputError("fp8 needs a GPU.", "On a CPU use int8.")
    if name == "int8" and device.type != "cpu":
        raise InputError("int8 is for the CPU.", "On a GPU use fp8 or bfloat16.")


def _calibration_rows(
    base: BertModel,
    tokenizer: BertTokenizer | None,
    calibration: Sequence[str] | Sequence[Sequence[int]] | None,
) -> Sequence[Sequence[int]]:
    if calibration is None:
        from bertie.engine.prose import CALIBRATION

        calibration = CALIBRATION
    if not calibration:
        raise InputError("calibration is empty.", "Give some texts of the kind the model will read.")
    if not isinstance(calibration[0], str):
        return calibration  # type: ignore[return-value]
    if tokenizer is None:
        raise InputError(
            "Rounding to eight bits is fitted on text, and the model came without its tokenizer.",
            "Pass tokenizer=BertTokenizer.from_pretrained(…), or calibration=rows of token ids.",
        )
    limit = min(base.config.max_position_embeddings, 128)
    return tokenizer.encode_ids(list(calibration), max_length=limit)  # type: ignore[arg-type]
