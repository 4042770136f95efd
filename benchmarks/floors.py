"""What the machine allows: the least time the arithmetic and the memory of a workload take, before anything is timed.

The arithmetic floor divides the multiplications and additions of a BERT by the rate of this machine's best matrix
products (`torch.mm` in float32 and bfloat16, `torch._int_mm` in int8, over the model's own shapes); beside int8,
attention's products count as float32's. The memory floor is the weights read once a batch and the states of a token
written and read once a layer, at the rate of a large copy; weights that stay in the last-level cache come faster than
that. Everything else (softmax, GELU, LayerNorm, rounding) is left out: it is what the gap is made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bertie import BertConfig
from bertie.engine.cpu.library import bfloat16_instructions


@dataclass(frozen=True)
class Rates:
    """Operations a second of the best product seen, in units of 10⁹, and bytes a second of a large copy."""

    fp32_gflops: float
    bf16_gflops: float  # float32's where the processor has no instructions for it
    int8_gops: float  # the same where PyTorch multiplies eight bits by plain loops
    copy_gbs: float


@dataclass(frozen=True)
class Floor:
    """Of one model on one set of rows, at a precision. Rates are tokens a second."""

    precision: str
    flops_per_token: float
    attention_share: float
    arithmetic_rate: float
    memory_rate: float
    arithmetic_latency_ms: float
    memory_latency_ms: float

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def measure_rates(config: BertConfig, *, tokens: int = 2048, seconds: float = 1.0, threads: int = 2) -> Rates:
    torch.set_num_threads(threads)
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = [(hidden, 3 * hidden), (hidden, inner), (inner, hidden), (1024, 4096)]
    fp32, bf16, int8 = 0.0, 0.0, 0.0
    for k, n in shapes:
        a, b = torch.randn(tokens, k), torch.randn(k, n)
        work = 2 * tokens * k * n / 1e9
        fp32 = max(fp32, work / _best(lambda a=a, b=b: torch.mm(a, b), seconds))  # type: ignore[misc]
        if bfloat16_instructions():
            ha, hb = a.bfloat16(), b.bfloat16()
            bf16 = max(bf16, work / _best(lambda a=ha, b=hb: torch.mm(a, b), seconds))  # type: ignore[misc]
        if 0 < int8 < fp32:
            continue  # plain loops: PyTorch has no better ones for this processor
        qa = torch.randint(-127, 128, (tokens, k), dtype=torch.int8)
        qb = torch.randint(-127, 128, (k, n), dtype=torch.int8)
        int8 = max(int8, work / _best(lambda a=qa, b=qb: torch._int_mm(a, b), seconds))  # type: ignore[misc]
    source = torch.ones(2**26)  # 256 MB: larger than any cache here
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / 1e9 / _best(lambda: target.copy_(source), seconds)
    return Rates(fp32, bf16 or fp32, max(int8, fp32), copy)


def _best(job: Callable[[], Any], seconds: float) -> float:
    """The shortest of the runs that fit into `seconds`: a floor is what the machine does undisturbed."""
    job()
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        job()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest


def floor_of(
    config: BertConfig, lengths: Sequence[int], rates: Rates, *, precision: str, batch_tokens: int = 2048
) -> Floor:
    layers, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    weights = layers * (4 * hidden * hidden + 2 * hidden * inner)
    dense = 2.0 * weights
    # A token attends to all tokens of its text: two products of length × hidden.
    context = sum(n * n for n in lengths) / sum(lengths)
    attention = layers * 4.0 * context * hidden
    by_precision = {"float32": rates.fp32_gflops, "bfloat16": rates.bf16_gflops, "int8": rates.int8_gops}
    dense_rate, attention_rate = by_precision[precision], by_precision["float32" if precision == "int8" else precision]
    seconds = dense / (dense_rate * 1e9) + attention / (attention_rate * 1e9)
    width = {"int8": 1, "bfloat16": 2, "float32": 4}[precision]
    copied = weights * width / batch_tokens + layers * 2 * hidden * 4
    short = 22  # tokens of the latency texts' middle
    return Floor(
        precision=precision,
        flops_per_token=dense + attention,
        attention_share=attention / (dense + attention),
        arithmetic_rate=1 / seconds,
        memory_rate=rates.copy_gbs * 1e9 / copied,
        arithmetic_latency_ms=1e3 * short * dense / (dense_rate * 1e9),
        memory_latency_ms=1e3 * weights * width / (rates.copy_gbs * 1e9),
    )
