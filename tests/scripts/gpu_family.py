"""On a CUDA machine: BERT's relatives on the GPU engine answer, and are trained, as their references in float32 do.

    PYTHONPATH=src python tests/scripts/gpu_family.py

Every relative in bfloat16, float16 and fp8, over lengths at the edges of tiles and beyond the reach of MPNet's bias,
with padding ids inside texts, as graphs and launched; then the gradients of fused training layers beside those of the
reference under autocast. The last line says that all of it holds, or what does not.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bertie
from bertie.engine.gpu.training.fuse import fuse, why_not
from bertie.ops.packing import Packing

VOCAB = 500
MIXES = [[1], [1] * 40, [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 511, 512], [65, 1] * 30, [60] * 300]
# ‖got − wanted‖ / ‖wanted‖, and the lowest cosine of a token: rounding to 8, 11 and 4 bits, over three layers.
ALLOWED = {"bfloat16": (2e-2, 0.9995), "float16": (4e-3, 0.99999), "fp8": (1.2e-1, 0.985)}
CASES: dict[str, dict[str, Any]] = {
    "Bert": {},  # what the others are measured by
    "Roberta": {},
    "XLMRoberta": {},
    "Camembert": {},
    "DistilBert": {},
    "Electra": {"embedding_size": 64},
    "MPNet": {},
    "MPNet pruned": {"pruned_heads": {0: [1], 2: [0, 3]}},
}

BERTS: dict[str, tuple[float, float]] = {}  # by dtype: the worst error and the lowest cosine


def model_of(name: str, head: str, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind = getattr(bertie, name.partition(" ")[0] + head)
    values = {
        "vocab_size": VOCAB, "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3,
        "intermediate_size": 512, "initializer_range": 0.05, "max_position_embeddings": 514,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    made = kind(kind.config_class(**values | config)).eval().cuda()
    with torch.no_grad():
        for name_of, parameter in made.named_parameters():
            if parameter.dim() == 1 or "relative_attention_bias" in name_of:
                parameter.add_(torch.randn_like(parameter) * (0.05 if parameter.dim() == 1 else 1.0))
    return made


def ids_of(lengths: list[int]) -> tuple[Tensor, Packing]:
    packing = Packing.of(lengths, device="cuda")
    ids = torch.randint(3, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(len(lengths)))
    ids[:: max(7, len(ids) // 50)] = 1  # padding of most of them, as a word
    return ids.cuda(), packing


@torch.no_grad()
def check_answers(name: str, config: dict[str, Any], dtype: str) -> None:
    model = model_of(name, "Model", config)
    rows = [torch.randint(1, VOCAB, (n,)).tolist() for n in (1, 5, 30, 60, 17, 128, 300) for _ in range(4)]
    fast = bertie.compile(model, dtype=dtype, device="cuda", calibration=rows, accuracy=0.9)
    worst, lowest = 0.0, 1.0
    for lengths in MIXES:
        ids, packing = ids_of(lengths)
        wanted = model(ids, cu_seqlens=packing.cu_seqlens, output_hidden_states=True).hidden_states
        found = fast(ids, cu_seqlens=packing.cu_seqlens, output_hidden_states=True).hidden_states
        last = fast.runner.last_state(ids.cpu().pin_memory(), lengths)  # the recorded graph
        for ours, theirs in [*zip(found, wanted, strict=True), (last, wanted[-1])]:
            assert torch.isfinite(ours).all(), f"{name} {dtype}: not finite"
            assert ours.shape == theirs.shape, f"{name} {dtype}: {ours.shape}"
            worst = max(worst, float((ours.double() - theirs.double()).norm() / theirs.double().norm()))
            lowest = min(lowest, float(F.cosine_similarity(ours.double(), theirs.double(), dim=-1).min()))
    print(f"{name:14s} {dtype:9s} error {worst:.2e}, lowest cosine {lowest:.5f}; {fast.runner.describe()}", flush=True)
    error, cosine = ALLOWED[dtype]
    berts = BERTS.setdefault(dtype, (worst, lowest))  # fp8 has its own losses on texts of one or two tokens
    assert worst <= max(error, 1.3 * berts[0]), f"{name} {dtype}: relative error {worst:.2e}"
    assert lowest >= min(cosine, 1 - 1.7 * (1 - berts[1])), f"{name} {dtype}: cosine {lowest:.5f}"


def gradients_of(model: Any, *, half: bool) -> dict[str, Tensor]:
    ids, packing = ids_of([3, 60, 20, 64, 1, 140])
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        scores = model(ids, cu_seqlens=packing.cu_seqlens).logits
        loss = F.cross_entropy(scores.float(), ids)
    loss.backward()
    return {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert got.keys() == wanted.keys(), got.keys() ^ wanted.keys()
    apart = [(got[name] - wanted[name]).double().square().sum() for name in wanted]
    return float((sum(apart) / sum(wanted[name].double().square().sum() for name in wanted)) ** 0.5)


def check_gradients(name: str, config: dict[str, Any]) -> None:
    model = model_of(name, "ForMaskedLM", config).train()
    wanted, autocast = gradients_of(model, half=False), gradients_of(model, half=True)
    reason = why_not(model)
    if reason is not None:
        print(f"{name:14s} gradients by the reference: {reason}", flush=True)
        assert name.startswith("MPNet"), reason
        return
    fusion = fuse(model)
    for _ in range(3):  # launched, recorded, replayed
        found = gradients_of(model, half=True)
    fusion.undo()
    ours, theirs = distance(found, wanted), distance(autocast, wanted)
    print(f"{name:14s} gradients off float32's by {ours:.2e}; autocast by {theirs:.2e}", flush=True)
    assert ours <= 1.6 * theirs, f"{name}: gradients {ours:.2e}, autocast {theirs:.2e}"


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = []
    for name, config in CASES.items():
        for check in (*((check_answers, dtype) for dtype in ALLOWED), (check_gradients,)):
            try:
                check[0](name, config, *check[1:])
            except Exception as error:
                failed.append(f"{name} {' '.join(check[1:])}: {type(error).__name__}: {error!s:.300}")
                print("FAILED", failed[-1], flush=True)
    print("relatives on the GPU: all as their references" if not failed else f"{len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
