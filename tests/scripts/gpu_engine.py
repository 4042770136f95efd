"""On a CUDA machine: the engine's answers there equal the reference's in float32, in every dtype and at every length.

    PYTHONPATH=src python tests/scripts/gpu_engine.py [--quick]

Lengths at the edges of tiles, batches of one, mixes, pruned heads, widths that are no power of two, segments, given
positions, all states, graphs and plain launches. The last line is the largest relative error and the lowest cosine per
dtype, or the first failure.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bertie
import bertie.engine
from bertie.engine.gpu.runner import GpuRunner
from bertie.ops.packing import Packing

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 511, 512]
MIXES = [[1], [1] * 40, LENGTHS, [512, 1, 512], [65, 1] * 30, list(range(1, 200)), [60] * 300]
# Batches that fill a token budget, that do not, and that are cut in parts.
LARGE = [[64] * 1020, [100] * 120, [100] * 700]
# ‖got − wanted‖ / ‖wanted‖: rounding to 8, 11 and 4 bits, over a few layers.
TOLERANCE = {"bfloat16": 2e-2, "float16": 4e-3, "fp8": 1.2e-1}
LOWEST_COSINE = {"bfloat16": 0.9995, "float16": 0.99999, "fp8": 0.985}  # of any one token


def model_of(**config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 500, "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3}
    more = {"intermediate_size": 512, "initializer_range": 0.05}
    return bertie.BertModel(bertie.BertConfig.from_dict(sizes | more | config)).eval()


CASES: dict[str, dict[str, Any]] = {
    "4 heads of 64": {},
    "heads of 32, width 384": {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "heads of 80, width 240": {"hidden_size": 240, "num_attention_heads": 3, "intermediate_size": 496},
    "heads of 128": {"hidden_size": 512, "intermediate_size": 1024},
    "pruned": {"pruned_heads": {0: [1], 2: [0, 3]}},
    "tanh GELU": {"hidden_act": "gelu_new"},
    "ReLU": {"hidden_act": "relu"},
    "SiLU": {"hidden_act": "silu"},
    "width 1024": {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 2},
}


class Worst:
    def __init__(self) -> None:
        self.error: dict[str, float] = {}
        self.cosine: dict[str, float] = {}
        self.count = 0

    def compare(self, name: str, dtype: str, wanted: Tensor, got: Tensor) -> None:
        assert got.shape == wanted.shape, f"{name} {dtype}: {got.shape}"
        assert torch.isfinite(got).all(), f"{name} {dtype}: not finite"
        error = float((got.double() - wanted.double()).norm() / wanted.double().norm())
        cosine = float(F.cosine_similarity(got.double(), wanted.double(), dim=-1).min())
        self.count += 1
        assert error <= TOLERANCE[dtype], f"{name} {dtype}: relative error {error:.2e}"
        assert cosine >= LOWEST_COSINE[dtype], f"{name} {dtype}: cosine {cosine:.5f}"
        self.error[dtype] = max(error, self.error.get(dtype, 0.0))
        self.cosine[dtype] = min(cosine, self.cosine.get(dtype, 1.0))


@torch.no_grad()
def check_case(name: str, config: dict[str, Any], dtype: str, worst: Worst) -> None:
    reference = model_of(**config).cuda()
    rows = [torch.randint(0, 500, (n,)).tolist() for n in (5, 30, 60, 17, 128, 300)] * 4
    fast = bertie.engine.compile(reference, dtype=dtype, device="cuda", calibration=rows, accuracy=0.9)
    runner = fast.runner
    assert isinstance(runner, GpuRunner)
    if dtype == "fp8":
        print(f"  {name}: {runner.describe()}", flush=True)
    for lengths in MIXES + (LARGE if name == "4 heads of 64" else []):
        tokens = sum(lengths)
        ids = torch.randint(0, 500, (tokens,), device="cuda")
        types = torch.randint(0, 2, (tokens,), device="cuda")
        packing = Packing.of(lengths, device="cuda")
        what = f"{name}, {len(lengths)} texts, {tokens} tokens"
        wanted = reference(ids, cu_seqlens=packing.cu_seqlens, output_hidden_states=True)
        # Memory that later allocations come from is poisoned: what a kernel does not write is not finite.
        poison = torch.full((64 << 20,), float("nan"), device="cuda")
        del poison
        got = runner(ids, None, packing.position_ids, packing, all_states=False)[-1]
        worst.compare(what, dtype, wanted.last_hidden_state, got)
        plain = runner.states(ids, lengths)
        for one, state in zip(wanted.hidden_states, plain, strict=True):
            worst.compare(f"{what}, all states", dtype, one, state)
        from_host = runner.last_state(ids.cpu().pin_memory(), lengths)
        worst.compare(f"{what}, from the host", dtype, wanted.last_hidden_state, from_host)
        wanted = reference(ids, token_type_ids=types, cu_seqlens=packing.cu_seqlens).last_hidden_state
        got = runner(ids, types, packing.position_ids, packing, all_states=False)[-1]
        worst.compare(f"{what}, segments", dtype, wanted, got)
        again = runner(ids, None, None, packing, all_states=False)[-1]
        worst.compare(f"{what}, segments gone", dtype, plain[-1].float(), again)
    mask = torch.zeros(3, 40, dtype=torch.long, device="cuda")
    mask[0], mask[1, :7], mask[2, 5:] = 1, 1, 1
    padded = torch.randint(0, 500, (3, 40), device="cuda")
    wanted = reference(padded, attention_mask=mask).last_hidden_state[mask.bool()]
    got = fast(padded, attention_mask=mask).last_hidden_state[mask.bool()]
    worst.compare(f"{name}, padded", dtype, wanted, got)


def main() -> None:
    print(torch.__version__, torch.cuda.get_device_name())
    worst = Worst()
    quick = "--quick" in sys.argv  # kernels compile for every width: this is the part that compiles least
    for dtype in TOLERANCE:
        for name, config in CASES.items():
            if not quick or "hidden_size" not in config or (dtype, name) in (("bfloat16", "heads of 80, width 240"),):
                check_case(name, config, dtype, worst)
        print(f"{dtype}: relative error {worst.error[dtype]:.2e}, lowest cosine {worst.cosine[dtype]:.6f}", flush=True)
    figures = ", ".join(f"{d} {worst.error[d]:.1e} / {worst.cosine[d]:.6f}" for d in worst.error)
    print(f"{worst.count} comparisons; largest relative error / lowest cosine of a token: {figures}")


if __name__ == "__main__":
    main()
