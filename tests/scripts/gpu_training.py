"""Fused training layers on a GPU against the reference: losses and gradients of whole models.

    python tests/scripts/gpu_training.py

Three runs of the same weights and packed batch, without dropout: the reference in float32, the reference under
bfloat16 autocast, and the fused layers. Gradients are compared with float32's. Autocast carries what is added between
blocks in fp32, the fused layers in bfloat16, so they are a little further off: at most 1.5 times as far, or this fails.
Then dropout: the same seed gives the same bits, another seed another loss, and the mean loss of many seeds is near the
reference's. The last line is the largest ratio of errors.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from bertie import BertConfig, BertForMaskedLM
from bertie.engine.gpu.training.fuse import fuse, why_not
from bertie.training.pretraining.objective import word_loss

DEVICE = torch.device("cuda")


def make(dropout: float = 0.0, attention_dropout: float = 0.0, **changes: int) -> BertForMaskedLM:
    torch.manual_seed(0)
    settings = {"num_hidden_layers": 6, "vocab_size": 30522} | changes
    config = BertConfig(**settings, hidden_dropout_prob=dropout, attention_probs_dropout_prob=attention_dropout)
    model = BertForMaskedLM(config).to(DEVICE).train()
    model.check_inputs = False
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that are not all 0 and 1
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch(lengths: list[int]) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 30000, (sum(lengths),), generator=chance)
    masked = torch.randperm(len(ids), generator=chance)[: max(1, len(ids) // 7)].sort().values
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    there = {"input_ids": ids, "masked_positions": masked, "labels": ids[masked]}
    return {name: tensor.to(DEVICE) for name, tensor in there.items()} | {"cu_seqlens": ends}


def run(model: BertForMaskedLM, given: dict[str, Tensor], *, half: bool) -> tuple[float, dict[str, Tensor]]:
    for parameter in model.parameters():
        parameter.grad = None
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        scores = model(
            given["input_ids"], cu_seqlens=given["cu_seqlens"], masked_positions=given["masked_positions"]
        ).logits
        loss = word_loss(scores, given["labels"])
    loss.backward()
    return float(loss.detach()), {n: p.grad.float().clone() for n, p in model.named_parameters() if p.grad is not None}


def error(got: dict[str, Tensor], wanted: dict[str, Tensor], names: list[str]) -> float:
    """‖got − wanted‖ / ‖wanted‖ over these parameters."""
    apart = sum(float((got[n] - wanted[n]).double().square().sum()) for n in names)
    return (apart / max(1e-30, sum(float(wanted[n].double().square().sum()) for n in names))) ** 0.5


def compare(title: str, lengths: list[int], **changes: int) -> float:
    given = batch(lengths)
    exact_loss, exact = run(make(**changes), given, half=False)
    auto_loss, auto = run(make(**changes), given, half=True)
    model = make(**changes)
    assert why_not(model) is None
    fusion = fuse(model)
    loss, fused = run(model, given, half=True)
    for _ in range(2):  # the first was launched, now the passes are recorded and replayed
        again_loss, again = run(model, given, half=True)
        assert loss == again_loss
        assert all(torch.equal(fused[n], again[n]) for n in fused)
    fusion.undo()
    back_loss, _ = run(model, given, half=False)
    assert back_loss == exact_loss, "undo() gives the reference back"
    assert fused.keys() == exact.keys()
    # Keys' biases shift all scores of a row alike: their gradient is 0 but for rounding.
    names = [n for n in exact if not n.endswith("key.bias")]
    whole = error(fused, exact, names) / error(auto, exact, names)
    worst_name = max(names, key=lambda n: error(fused, exact, [n]) / (error(auto, exact, [n]) + 1e-4))
    worst = error(fused, exact, [worst_name]) / (error(auto, exact, [worst_name]) + 1e-4)
    print(
        f"{title}: loss fp32 {exact_loss:.3f} autocast {auto_loss:.3f} fused {loss:.3f}; gradient error "
        f"autocast {error(auto, exact, names):.5f} fused {error(fused, exact, names):.5f} (ratio {whole:.3f}); "
        f"worst parameter {worst_name}: {worst:.2f}",
        flush=True,
    )
    return whole


def dropped(attention_dropout: float) -> None:
    given = batch([17, 100, 64, 128, 3, 90, 200] * 8)
    model = make(0.1, attention_dropout)
    reference = []
    for seed in range(20):
        torch.manual_seed(seed)
        reference.append(run(model, given, half=True)[0])
    fuse(model)
    losses = []
    for seed in range(20):
        torch.manual_seed(seed)
        loss, grads = run(model, given, half=True)
        losses.append(loss)
        assert all(bool(torch.isfinite(g).all()) for g in grads.values())
    torch.manual_seed(3)
    same, _ = run(model, given, half=True)
    assert same == losses[3]
    assert len(set(losses)) == len(losses)
    a, b = torch.tensor(reference), torch.tensor(losses)
    apart = float((a.mean() - b.mean()).abs() / ((a.var() + b.var()) / len(a)).sqrt())
    print(f"dropout 0.1, {attention_dropout} in attention: mean loss {a.mean():.2f} and {b.mean():.2f}, {apart:.1f} σ")
    assert apart < 4


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    short = [17, 100, 64, 128, 3, 90, 1, 77] * 20
    ratios = [
        compare("texts up to 128", short),
        compare("texts up to 60", [min(60, n) for n in short]),
        compare("texts up to 512", [512, 300, 17, 1, 129, 400] * 4),
        compare(
            "384 wide, heads of 32", [*short, 512, 200], hidden_size=384, num_attention_heads=12, intermediate_size=1536
        ),
        compare("1024 wide", short, hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
    ]
    dropped(0.0)
    dropped(0.1)
    print(f"fused error over autocast's, at most: {max(ratios):.3f}")
    return 0 if max(ratios) <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
