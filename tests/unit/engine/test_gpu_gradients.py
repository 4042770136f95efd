"""The GPU engine's training kernels against PyTorch's autograd: on a GPU, or through Triton's interpreter.

    TRITON_INTERPRET=1 python -m pytest tests/unit/engine/test_gpu_gradients.py

Whole models in bfloat16 are compared on a GPU by tests/scripts/gpu_training.py.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="the GPU engine's kernels are written in Triton")
HAS_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's own
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
    pytest.mark.skipif(not (HAS_GPU or INTERPRETED), reason="needs a GPU, or TRITON_INTERPRET=1"),
    pytest.mark.skipif(
        INTERPRETED and np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="Triton's interpreter needs numpy < 2.4"
    ),
]
DEVICE = torch.device("cuda" if HAS_GPU and not INTERPRETED else "cpu")
CLOSE = 5e-3 if HAS_GPU and not INTERPRETED else 2e-5  # a GPU's fp32 products are tf32 here


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def near(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape
    assert float((got - wanted).abs().max()) <= CLOSE * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("tokens", "width"), [(1, 24), (37, 64), (70, 48), (5, 1100)])
def test_norm_and_its_gradients(tokens: int, width: int) -> None:
    from bertie.engine.gpu.gradients import RowSums, drop_add_norm, drop_add_norm_backward

    x, residual, grad = (random(tokens, width, seed=seed) for seed in range(3))
    gamma, beta = random(width, seed=3), random(width, seed=4)
    given = [t.clone().requires_grad_() for t in (x, residual, gamma, beta)]
    wanted = F.layer_norm(given[0] + given[1], (width,), given[2], given[3], 1e-12)
    wanted.backward(grad)
    out, summed = drop_add_norm(x, residual, gamma, beta, 1e-12, dropout=0.0, seed=0, keep=True)
    sums = RowSums(tokens, [8, 3 * width], DEVICE)
    of_residual, of_x = drop_add_norm_backward(grad, summed, gamma, 1e-12, dropout=0.0, seed=0, sums=sums.part(1))
    small = sums.total()[1].view(3, width)
    near(out, wanted.detach())
    near(summed, x + residual)
    for got, leaf in ((of_x, given[0]), (of_residual, given[1]), (small[0], given[2]), (small[1], given[3])):
        assert leaf.grad is not None
        near(got, leaf.grad)
    near(small[2], of_x.sum(0))


def test_dropout_drops_its_share_and_the_same_both_ways() -> None:
    from bertie.engine.gpu.gradients import RowSums, drop_add_norm, drop_add_norm_backward

    tokens, width = 64, 256
    ones, nothing = torch.ones(tokens, width, device=DEVICE), torch.zeros(tokens, width, device=DEVICE)
    gamma, beta = random(width, seed=3), random(width, seed=4)

    def dropped(seed: int) -> Tensor:
        return drop_add_norm(ones, nothing, gamma, beta, 1e-5, dropout=0.25, seed=seed, keep=True)[1]

    kept = dropped(7)
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.72 < float((kept > 0).float().mean()) < 0.78
    assert torch.equal(kept, dropped(7))
    assert not torch.equal(kept, dropped(8))
    # No pattern: neighbours, rows and seeds agree as often as chance has it, 0.75² + 0.25².
    for one, other in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1]), (kept, dropped(8)), (kept, dropped(9))):
        assert 0.6 < float((one == other).float().mean()) < 0.65
    assert float((kept > 0).float().mean(0).min()) > 0.5, "a column that is always dropped"
    sums = RowSums(tokens, [3 * width], DEVICE)
    of_residual, of_x = drop_add_norm_backward(
        random(tokens, width), kept, gamma, 1e-5, dropout=0.25, seed=7, sums=sums.part(0)
    )
    near(of_x, of_residual * kept)
    near(sums.total()[0].view(3, width)[2], of_x.sum(0))


@pytest.mark.parametrize("exact", [True, False])
def test_gelu_backward(exact: bool) -> None:
    from bertie.engine.gpu.gradients import RowSums, gelu_backward

    x, grad = 3 * random(45, 600), random(45, 600, seed=1)
    leaf = x.clone().requires_grad_()
    F.gelu(leaf, approximate="none" if exact else "tanh").backward(grad)
    sums = RowSums(45, [600], DEVICE)
    got = gelu_backward(x, grad, exact=exact, sums=sums.part(0))
    assert leaf.grad is not None
    near(got, leaf.grad)
    near(sums.total()[0], leaf.grad.sum(0))


def test_column_sums_of_rows_that_lie_apart() -> None:
    from bertie.engine.gpu.gradients import RowSums, column_sums

    x = random(100, 70)
    sums = RowSums(100, [70, 65], DEVICE)
    column_sums(x, sums=sums.part(0))
    column_sums(x[:, :65], sums=sums.part(1))
    near(sums.total()[0], x.sum(0))
    near(sums.total()[1], x[:, :65].sum(0))


@pytest.mark.parametrize("head", [8, 16, 24])
@pytest.mark.parametrize(("tile", "lengths"), [(16, [3, 16, 1, 5, 9]), (128, [70, 128, 1, 2, 57, 100])])
def test_attention_backward(head: int, tile: int, lengths: list[int]) -> None:
    from bertie.engine.gpu.gradients import attention_backward
    from bertie.engine.gpu.schedule import schedule

    qkv, grad = random(sum(lengths), 3 * 2 * head), random(sum(lengths), 2 * head, seed=1)
    leaf = qkv.clone().requires_grad_()
    contexts = []
    for text in leaf.split(lengths):
        q, k, v = (part.view(-1, 2, head).transpose(0, 1) for part in text.chunk(3, dim=1))
        contexts.append(F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1))
    torch.cat(contexts).backward(grad)
    assert leaf.grad is not None
    near(attention_backward(qkv, grad, 2, schedule(lengths, DEVICE, tile)), leaf.grad)


@pytest.mark.parametrize("width", [10, 2048, 5000])
def test_cross_entropy(width: int) -> None:
    from bertie.engine.gpu.words import cross_entropy_sum

    room = random(7, width + 6)
    labels = torch.tensor([0, width - 1, 3, -100, 5, 9, 1], device=DEVICE)
    ours, theirs = room.clone().requires_grad_(), room.clone().requires_grad_()
    got = 2.0 * cross_entropy_sum(ours[:, :width], labels)
    wanted = 2.0 * F.cross_entropy(theirs[:, :width], labels, reduction="sum")
    got.backward()
    wanted.backward()
    near(got.detach(), wanted.detach())
    assert ours.grad is not None
    assert theirs.grad is not None
    near(ours.grad, theirs.grad)


@pytest.mark.parametrize("longest", [50, 120])
def test_a_whole_model_in_float32(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertie import BertConfig, BertForMaskedLM
    from bertie.engine.gpu import training

    monkeypatch.setattr(training, "HALF", torch.float32)
    monkeypatch.setattr(training, "in_half", lambda: True)
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=90,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForMaskedLM(config).to(DEVICE).train()
    lengths = [3, longest, 20, 64, 1]
    ids = torch.randint(5, 90, (sum(lengths),), device=DEVICE)
    ends = torch.tensor([0, *np.cumsum(lengths)])

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        states = model.bert(ids, cu_seqlens=ends).last_hidden_state
        (states * random(*states.shape)).sum().backward()
        return states.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    wanted, gradients = run()
    undo = training.fuse(model)
    model.get_output_embeddings().__dict__.pop("forward")  # the decoder's is bfloat16 alone
    states, found = run()
    assert not torch.equal(states, wanted), "the fused layers ran"
    near(states, wanted)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        near(found[name], gradient)
    model.get_output_embeddings().forward = None
    undo()
    assert torch.equal(run()[0], wanted)
