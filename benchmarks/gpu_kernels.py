"""One layer of BERT-base on the GPU, kernel by kernel, against what its arithmetic and its bytes must cost.

    PYTHONPATH=src python -m benchmarks.gpu_kernels [--tokens 32768] [--save]

Each row is one launch at the given number of tokens, with lengths as in real paragraphs (mean about 60): median time,
the floor (the larger of operations over the measured matrix rate and bytes over the measured copy rate), and the part
of the floor that is reached. Rows named "try:" are other forms of the same step.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import save_result
from bertie.engine.gpu.attention import attention, attention_kernel
from bertie.engine.gpu.attention_schedule import schedule
from bertie.engine.gpu.embed_norm_gelu import add_norm, embed, gelu
from bertie.engine.gpu.fp8_up_product import fp8_linear_gelu

D, WIDE, HEADS = 768, 3072, 12
# Other forms of the attention kernel: rows, keys, warps, registers, stages.
TRIED = ((64, 64, 4, None, 1), (64, 64, 4, 80, 1), (64, 64, 4, None, 2), (128, 64, 8, None, 1), (128, 128, 8, None, 1))
FP8 = torch.float8_e4m3fn


def timed(call: Callable[[], Any], *, repeats: int = 9, inner: int = 8) -> float:
    """Median microseconds of one call out of `inner` in a recorded graph: no launch of the host's is in it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            call()
    graph.replay()
    found = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / inner)
    return statistics.median(found)


def ceilings() -> dict[str, float]:
    """TFLOP/s of large products in bf16 and fp8, and TB/s of a large copy (bytes read and written).

    "held" is over a second of them: the GPU reaches its power limit within a few milliseconds, and the clock falls.
    """
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    one = torch.ones(1, device="cuda")
    a8, b8 = a.to(FP8), b.to(FP8).t()
    calls: dict[str, Callable[[], Any]] = {
        "bf16": lambda: a @ b,
        "fp8": lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
    }
    found = {}
    for name, call in calls.items():
        time.sleep(0.5)
        found[f"{name}_tflops"] = 2 * size**3 / timed(call, repeats=10, inner=2) / 1e6
        found[f"{name}_tflops_held"] = 2 * size**3 / timed(call, repeats=5, inner=100) / 1e6
    source = torch.randint(0, 99, (1 << 31,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    # Launched, not recorded: inside a graph a copy goes to a slower engine.
    target.copy_(source)
    taken = []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        taken.append(1e3 * start.elapsed_time(end))
    found["copy_tbytes"] = 2 * source.numel() / statistics.median(taken) / 1e6
    return found


def paragraph_lengths(tokens: int, seed: int = 0, *, near: int | None = None) -> list[int]:
    """Lengths that look like paragraphs (log-normal, at most 256), or all near one length; they sum to `tokens`."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = []
    while sum(found) < tokens:
        if near is None:
            length = int(torch.exp(torch.randn((), generator=generator) * 1.0 + 3.62).clamp(3, 256))
        else:
            length = near
        found.append(min(length, tokens - sum(found)))
    return found


def attention_tried(qkv: Tensor, plan: Any, keys: int, warps: int, registers: int | None, stages: int) -> Tensor:
    out = torch.empty(qkv.shape[0], D, device="cuda", dtype=qkv.dtype)
    attention_kernel[(HEADS, len(plan.programs))](
        qkv, out, plan.programs, plan.starts, None, D, math.log2(math.e) / 8,
        HEAD=64, LANES=64, ROWS=plan.tile, KEYS=keys, TO_FP8=False, HARDWARE=True,
        num_warps=warps, num_stages=stages, maxnreg=registers,
    )  # fmt: skip
    return out


def layer_rows(tokens: int, rates: dict[str, float]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    device = torch.device("cuda")

    def of(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, device=device) * scale).to(torch.bfloat16)

    def row(name: str, call: Callable[[], Any], *, flops: float = 0, moved: float = 0, rate: str = "bf16") -> None:
        try:
            found = timed(call)
        except Exception as error:
            rows.append({"step": name, "failed": f"{type(error).__name__}: {str(error)[:200]}"})
            print(rows[-1], flush=True)
            return
        floor = max(flops / rates[f"{rate}_tflops"], moved / rates["copy_tbytes"]) / 1e6
        made = {"step": name, "us": round(found, 1), "floor_us": round(floor, 1)}
        if flops:
            made["tflops"] = round(flops / found / 1e6)
        if moved:
            made["tbytes"] = round(moved / found / 1e6, 2)
        rows.append(made)
        print(made, flush=True)

    x, residual, wide = of(tokens, D), of(tokens, D), of(tokens, WIDE)
    gamma, beta = of(D), of(D)
    products: dict[str, tuple[int, int]] = {"qkv": (D, 3 * D), "out": (D, D), "up": (D, WIDE), "down": (WIDE, D)}
    weights = {name: of(o, i, scale=0.04) for name, (i, o) in products.items()}
    biases = {name: of(o) for name, (_, o) in products.items()}
    one = torch.full((1,), 0.02, device=device)
    for name, (i, o) in products.items():
        given = wide if i == WIDE else x
        cost = {"flops": 2.0 * tokens * i * o, "moved": 2.0 * tokens * (i + o)}
        w, b = weights[name], biases[name]
        row(name, lambda given=given, w=w, b=b: torch.addmm(b, given, w.t()), **cost)
        if name == "up":
            row("up + gelu", lambda w=w, b=b: torch._addmm_activation(b, x, w.t(), use_gelu=True), **cost)
        if o == D:
            row(f"try: {name} + residual", lambda given=given, w=w: torch.addmm(residual, given, w.t()), **cost)
        g8, w8 = (given * 20).to(FP8), (w * 2000).to(FP8).t()
        row(
            f"{name} fp8",
            lambda g8=g8, w8=w8, b=b: torch._scaled_mm(
                g8, w8, one, one, bias=b, out_dtype=torch.bfloat16, use_fast_accum=True
            ),
            flops=cost["flops"],
            moved=tokens * (i + 2.0 * o),
            rate="fp8",
        )
    x8, up8 = (x * 20).to(FP8), (weights["up"] * 2000).to(FP8)
    row(
        "up fp8 + gelu to fp8",
        lambda: fp8_linear_gelu(x8, up8, biases["up"], one, one, one),
        flops=2.0 * tokens * D * WIDE,
        moved=1.0 * tokens * (D + WIDE),
        rate="fp8",
    )
    row("gelu to fp8", lambda: gelu(wide, fp8_scale=one), moved=3.0 * tokens * WIDE)
    row("try: gelu to fp8, exact", lambda: gelu(wide, fp8_scale=one, exact=True), moved=3.0 * tokens * WIDE)
    row("add + norm", lambda: add_norm(x, residual, gamma, beta, 1e-12), moved=6.0 * tokens * D)
    row("add + norm, and fp8", lambda: add_norm(x, residual, gamma, beta, 1e-12, fp8_scale=one), moved=7.0 * tokens * D)
    ids = torch.randint(0, 30522, (tokens,), device=device)
    tables = (of(30522, D), of(512, D), of(2, D))
    for what, near in (("paragraphs", None), ("all 20", 20), ("all 60", 60), ("all 100", 100), ("all 250", 250)):
        lengths = paragraph_lengths(tokens, near=near)
        cost = {"flops": 4.0 * D * sum(n * n for n in lengths), "moved": 8.0 * tokens * D}
        qkv = of(tokens, 3 * D)
        plan = schedule(lengths, device)
        row(f"attention, {what}", lambda qkv=qkv, plan=plan: attention(qkv, HEADS, plan), **cost)
        if near is None:
            row("embed", lambda plan=plan: embed(ids, None, None, plan.starts, tables, gamma, beta, 1e-12),
                moved=4.0 * tokens * D)  # fmt: skip
            row("attention to fp8", lambda qkv=qkv, plan=plan: attention(qkv, HEADS, plan, fp8_scale=one),
                flops=cost["flops"], moved=7.0 * tokens * D)  # fmt: skip
        if near in (None, 60, 100):
            for tile, keys, warps, registers, stages in TRIED:
                other = schedule(lengths, device, tile)
                row(
                    f"try: attention, {what}, {tile}x{keys}, {warps} warps, {registers} registers, {stages} stages",
                    lambda qkv=qkv, o=other, k=keys, w=warps, r=registers, s=stages: attention_tried(
                        qkv, o, k, w, r, s
                    ),
                    **cost,
                )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32768])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    given = parser.parse_args(arguments)
    rates = ceilings()
    print({name: round(value, 2) for name, value in rates.items()}, flush=True)
    rows = [{"tokens": tokens} | row for tokens in given.tokens for row in layer_rows(tokens, rates)]
    if given.save:
        save_result("gpu_kernels", "python -m benchmarks.gpu_kernels", rows, ceilings=rates)


if __name__ == "__main__":
    main()
