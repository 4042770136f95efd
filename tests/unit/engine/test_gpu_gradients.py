"""The GPU engine's training kernels against PyTorch's autograd: on a GPU, or through Triton's interpreter.

    TRITON_INTERPRET=1 python -m pytest tests/unit/engine/test_gpu_gradients.py

Whole models in bfloat16 are compared on a GPU by tests/scripts/gpu_training.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tests import family_models
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


def a_seed(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.int32, device=DEVICE)


def near(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape
    got, wanted = got.detach(), wanted.detach()
    assert float((got - wanted).abs().max()) <= CLOSE * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("tokens", "width"), [(1, 24), (37, 64), (70, 48), (5, 1100)])
def test_norm_and_its_gradients(tokens: int, width: int) -> None:
    from bertie.engine.gpu.training.gradients import RowSums, drop_add_norm, drop_add_norm_backward

    x, residual, grad = (random(tokens, width, seed=seed) for seed in range(3))
    gamma, beta = random(width, seed=3), random(width, seed=4)
    given = [t.clone().requires_grad_() for t in (x, residual, gamma, beta)]
    wanted = F.layer_norm(given[0] + given[1], (width,), given[2], given[3], 1e-12)
    wanted.backward(grad)
    out, kept = drop_add_norm(x, residual, gamma, beta, 1e-12, dropout=0.0, seed=None, keep=True)
    sums = RowSums(tokens, [8, 3 * width], DEVICE)
    of_residual, of_x = drop_add_norm_backward(grad, kept, gamma, dropout=0.0, seed=None, sums=sums.part(1))
    small = sums.total()[1].view(3, width)
    near(out, wanted.detach())
    near(kept.normal, F.layer_norm(x + residual, (width,), eps=1e-12))
    for got, leaf in ((of_x, given[0]), (of_residual, given[1]), (small[0], given[2]), (small[1], given[3])):
        assert leaf.grad is not None
        near(got, leaf.grad)
    near(small[2], of_x.sum(0))
    half, rest = 0.25 * grad, 0.75 * grad  # a gradient that comes in two parts
    again, _ = drop_add_norm_backward(half, kept, gamma, dropout=0.0, seed=None, sums=sums.part(1), more=rest)
    near(again, of_residual)


def test_dropout_drops_its_share_and_the_same_both_ways() -> None:
    from bertie.engine.gpu.training.gradients import Kept, RowSums, drop_add_norm, drop_add_norm_backward

    tokens, width = 64, 256
    tens, residual = torch.full((tokens, width), 10.0, device=DEVICE), 0.5 * random(tokens, width, seed=2)
    gamma, beta = random(width, seed=3), random(width, seed=4)

    def run(seed: int) -> tuple[Tensor, Kept]:
        """What was kept, times what it was multiplied with; and what the way back reads."""
        out, kept = drop_add_norm(tens, residual, gamma, beta, 1e-5, dropout=0.25, seed=a_seed(seed), keep=True)
        mask = (kept.normal > 0).float() / 0.75  # of 10 / 0.75 and 0, with a little added, the ones above the mean
        near(out, F.layer_norm(10.0 * mask + residual, (width,), gamma, beta, 1e-5))
        return mask, kept

    def dropped(seed: int) -> Tensor:
        return run(seed)[0]

    kept, for_back = run(7)
    assert 0.72 < float((kept > 0).float().mean()) < 0.78
    assert torch.equal(kept, dropped(7))
    assert not torch.equal(kept, dropped(8))
    # No pattern: neighbours, rows and seeds agree as often as chance has it, 0.75² + 0.25².
    for one, other in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1]), (kept, dropped(8)), (kept, dropped(9))):
        assert 0.6 < float((one == other).float().mean()) < 0.65
    assert float((kept > 0).float().mean(0).min()) > 0.5, "a column that is always dropped"
    sums = RowSums(tokens, [3 * width], DEVICE)
    of_residual, of_x = drop_add_norm_backward(
        random(tokens, width), for_back, gamma, dropout=0.25, seed=a_seed(7), sums=sums.part(0)
    )
    near(of_x, of_residual * kept)
    near(sums.total()[0].view(3, width)[2], of_x.sum(0))


@pytest.mark.parametrize("exact", [True, False])
def test_gelu_backward(exact: bool) -> None:
    from bertie.engine.gpu.training.gradients import RowSums, gelu_backward

    x, grad = 3 * random(45, 600), random(45, 600, seed=1)
    leaf = x.clone().requires_grad_()
    F.gelu(leaf, approximate="none" if exact else "tanh").backward(grad)
    sums = RowSums(45, [600], DEVICE)
    got = gelu_backward(x, grad, exact=exact, sums=sums.part(0))
    assert leaf.grad is not None
    near(got, leaf.grad)
    near(sums.total()[0], leaf.grad.sum(0))


def test_column_sums_of_rows_that_lie_apart() -> None:
    from bertie.engine.gpu.training.gradients import RowSums, column_sums

    x = random(100, 70)
    sums = RowSums(100, [70, 65], DEVICE)
    column_sums(x, sums=sums.part(0))
    column_sums(x[:, :65], sums=sums.part(1))
    near(sums.total()[0], x.sum(0))
    near(sums.total()[1], x[:, :65].sum(0))


@pytest.mark.parametrize("shapes", [[(1, 5)], [(64, 32), (1, 33)], [(200, 70), (65, 8), (3, 40)]])
def test_totals(shapes: list[tuple[int, int]]) -> None:
    from bertie.engine.gpu.training.gradients import totals

    parts = [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    near(totals(parts), torch.cat([part.sum(0) for part in parts]))


def attention_by_pytorch(qkv: Tensor, grad: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """The context of two heads, and the gradient of qkv."""
    leaf = qkv.clone().requires_grad_()
    contexts = []
    for text in leaf.split(lengths):
        q, k, v = (part.view(len(text), 2, -1).transpose(0, 1) for part in text.chunk(3, dim=1))
        contexts.append(F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1))
    torch.cat(contexts).backward(grad)
    assert leaf.grad is not None
    return torch.cat(contexts).detach(), leaf.grad


@pytest.mark.parametrize("head", [8, 16, 24])
@pytest.mark.parametrize(("tile", "lengths"), [(16, [3, 16, 1, 5, 9]), (128, [70, 128, 1, 2, 57, 100])])
def test_attention_backward(head: int, tile: int, lengths: list[int]) -> None:
    from bertie.engine.gpu.attention_schedule import schedule
    from bertie.engine.gpu.training.gradients import attention_backward

    qkv, grad = random(sum(lengths), 3 * 2 * head), random(sum(lengths), 2 * head, seed=1)
    _, wanted = attention_by_pytorch(qkv, grad, lengths)
    plan, got = schedule(lengths, DEVICE, tile), torch.empty_like(qkv)
    sums = torch.empty(len(plan.programs), qkv.shape[1], device=DEVICE)
    attention_backward(qkv, grad, 2, plan, out=got, column_sums=sums)
    near(got, wanted)
    near(sums.sum(0), wanted.sum(0))


@pytest.mark.parametrize("head", [16, 24])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize(
    "lengths", [[70, 3, 60, 128, 1, 40], [300], [129, 5, 200, 1, 256, 64, 100], [130] * 3], ids=str
)
def test_attention_over_texts_of_all_lengths(lengths: list[int], filled: bool, head: int) -> None:
    from bertie.engine.gpu.training.batch import Passage, TrainingBatch, rows_for
    from bertie.ops.packing import Packing

    tokens = sum(lengths)
    rows = rows_for(tokens, 10**6) if filled else None
    batch = TrainingBatch(Packing.of(lengths), 1, dropout=0.0, seeds=None, rows=rows)
    passage = Passage(batch.form, batch.to(DEVICE))
    assert (batch.form.long > 0) == (max(lengths) > 128)
    qkv, grad = random(batch.form.rows, 6 * head), random(batch.form.rows, 2 * head, seed=1)
    grad[tokens:] = 0.0
    wanted, wanted_grad = attention_by_pytorch(qkv[:tokens], grad[:tokens], lengths)
    context, kept = passage.attention(qkv, 2, 0)
    near(context[:tokens], wanted)
    got, sums = passage.attention_backward(grad, qkv, context, kept, 2, 0)
    near(got[:tokens], wanted_grad)
    assert not bool(got[tokens:].any()), "what fills up has no gradient"
    near(sums.sum(0), wanted_grad.sum(0))


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")  # in rows that are none
def test_attention_over_a_long_text_whose_scores_are_all_far_below_zero() -> None:
    from bertie.engine.gpu.training.batch import Passage, TrainingBatch
    from bertie.ops.packing import Packing

    lengths = [150]  # 42 keys of the last block are none
    batch = TrainingBatch(Packing.of(lengths), 1, dropout=0.0, seeds=None)
    passage = Passage(batch.form, batch.to(DEVICE))
    qkv, grad = random(150, 96), random(150, 32, seed=1)
    qkv[:, :32], qkv[:, 32:64] = 6 + 0.1 * qkv[:, :32], -6 + 0.1 * qkv[:, 32:64]
    wanted, wanted_grad = attention_by_pytorch(qkv, grad, lengths)
    context, kept = passage.attention(qkv, 2, 0)
    near(context, wanted)
    near(passage.attention_backward(grad, qkv, context, kept, 2, 0)[0], wanted_grad)


def kept_places(seed: int, head: int, places: NDArray[np.int64], dropout: float) -> NDArray[np.bool_]:
    """What the kernels keep, by the same arithmetic in NumPy."""
    own = np.uint64((seed + head * 0x61C88647) % 2**32)
    number = ((places.astype(np.uint64) >> np.uint64(1)) * (own | np.uint64(1)) + own) % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        number = ((number ^ (number >> np.uint64(shift))) * np.uint64(factor)) % 2**32
    number ^= number >> np.uint64(16)
    half = np.where(places % 2 == 0, number & np.uint64(0xFFFF), number >> np.uint64(16))
    return half.astype(np.int64) >= round(dropout * 2**16)


@pytest.mark.parametrize("lengths", [[70, 3, 60, 128, 1, 40], [20, 64, 7], [150, 20, 290]])
def test_attention_that_drops_and_its_gradient(lengths: list[int]) -> None:
    from bertie.engine.gpu.training.batch import Passage, TrainingBatch
    from bertie.ops.packing import Packing

    tokens, heads, head, dropout = sum(lengths), 2, 16, 0.25
    seeds = [11, 12, 13, 14, 15, 16]
    batch = TrainingBatch(Packing.of(lengths), 2, dropout=dropout, seeds=seeds)
    passage = Passage(batch.form, batch.to(DEVICE))
    qkv, grad = random(tokens, 3 * heads * head), random(tokens, heads * head, seed=1)
    context, kept = passage.attention(qkv, heads, 1)
    got, sums = passage.attention_backward(grad, qkv, context, kept, heads, 1)

    first_keys = np.zeros(tokens, dtype=np.int64)  # keys are counted from where a program's begin
    for plan in (passage._small, passage._long):
        for first, end, first_key, _ in plan.programs.tolist():
            first_keys[first:end] = first_key
    leaf = qkv.clone().requires_grad_()
    contexts, dropped, start = [], 0, 0
    for text in leaf.split(lengths):
        rows = np.arange(start, start + len(text))
        places = rows[:, None] * 32768 + rows[None, :] - first_keys[rows][:, None]
        q, k, v = (part.view(-1, heads, head).transpose(0, 1) for part in text.chunk(3, dim=1))
        weights = (q @ k.transpose(1, 2) / head**0.5).softmax(-1)
        masks = [torch.from_numpy(kept_places(seeds[3], number, places, dropout)) for number in range(heads)]
        mask = torch.stack(masks).to(DEVICE)
        dropped += int((~mask).sum())
        contexts.append(((weights * mask / (1 - dropout)) @ v).transpose(0, 1).flatten(1))
        start += len(text)
    torch.cat(contexts).backward(grad)
    assert leaf.grad is not None
    near(context, torch.cat(contexts))
    near(got, leaf.grad)
    wanted = leaf.grad.sum(0)
    wanted[heads * head : 2 * heads * head] = 0.0
    near(sums.sum(0), wanted)
    assert 0.2 < dropped / (heads * sum(n * n for n in lengths)) < 0.3


@pytest.mark.parametrize("width", [10, 2048, 5000])
def test_cross_entropy(width: int) -> None:
    from bertie.engine.gpu.training.vocabulary_loss import cross_entropy_sum

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


class Again:
    """Stands in for a CUDA graph where there is none: a replay does the work again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.replays = work, 0

    def replay(self) -> None:
        self.replays += 1
        self.work()


class Whole:
    """A small model in float32, fused or not, and one batch of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lengths: list[int], record: bool) -> None:
        from bertie import BertConfig, BertForMaskedLM
        from bertie.engine.gpu.training import fuse as training
        from bertie.engine.gpu.training import layer as training_layer

        self.training, self.record = training, record
        self.recordings: list[Again] = []
        for module in (training, training_layer):
            monkeypatch.setattr(module, "HALF", torch.float32)
        monkeypatch.setattr(training, "in_half", lambda: True)
        monkeypatch.setattr(training, "Graphs", lambda: self.recorded)
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=90,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.model = BertForMaskedLM(config).to(DEVICE).train()
        self.ids = torch.randint(5, 90, (sum(lengths),), device=DEVICE)
        self.ends = torch.tensor([0, *np.cumsum(lengths)])

    def recorded(self, work: Callable[[], None]) -> Again:
        self.recordings.append(Again(work))
        return self.recordings[-1]

    def fuse(self) -> Callable[[], None]:
        fusion = self.training.fuse(self.model, record=self.record)
        self.model.get_output_embeddings().__dict__.pop("forward")  # the decoder's is bfloat16 alone

        def back() -> None:
            self.model.get_output_embeddings().forward = None
            fusion.undo()

        return back

    def states(self) -> Tensor:
        states: Tensor = self.model.bert(self.ids, cu_seqlens=self.ends).last_hidden_state
        return states

    def loss(self, seed: int = 0) -> Tensor:
        states = self.states()
        return (states * random(*states.shape, seed=seed)).sum()

    def gradients(self) -> dict[str, Tensor]:
        return {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}

    def run(self) -> tuple[Tensor, dict[str, Tensor]]:
        self.model.zero_grad()
        states = self.states()
        (states * random(*states.shape)).sum().backward()
        return states.detach(), self.gradients()


@pytest.mark.parametrize(
    ("name", "config"), [("Roberta", {}), ("DistilBert", {}), ("Electra", {"embedding_size": 12}), ("Electra", {})]
)
def test_relatives_have_their_gradients(name: str, config: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20, 1], record=False)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    whole.model = family_models.tiny(f"{name}ForMaskedLM", vocab_size=90, **no_dropout, **config).to(DEVICE).train()
    whole.ids[[0, 9, 30]] = 1  # padding, in some of them, of words and of positions
    wanted, gradients = whole.run()
    undo = whole.fuse()
    assert "forward" in vars(whole.model.bert.embeddings)
    states, found = whole.run()
    assert not torch.equal(states, wanted), "the fused layers ran"
    near(states, wanted)
    same(found, gradients)
    undo()


def test_a_bias_that_layers_share_is_left_to_the_reference_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertie.engine.gpu.training.fuse import why_not

    model = family_models.tiny("MPNetForMaskedLM", vocab_size=60)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert why_not(model) == "a position bias that all layers share"


def same(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        near(got[name], gradient)


@pytest.mark.parametrize("longest", [50, 120, 140])
@pytest.mark.parametrize("record", [False, True])
def test_a_whole_model_in_float32(longest: int, record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, longest, 20, 64, 1], record)
    wanted, gradients = whole.run()
    undo = whole.fuse()
    for _ in range(3):  # launched, recorded, replayed
        states, found = whole.run()
        assert not torch.equal(states, wanted), "the fused layers ran"
        near(states, wanted)
        same(found, gradients)
    undo()
    assert torch.equal(whole.run()[0], wanted)


def test_a_replayed_step_is_the_launched_one_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 70, 20, 64, 1], record=True)
    whole.fuse()
    launched, replayed = whole.run(), whole.run()
    assert [again.replays for again in whole.recordings] == [1, 1], "one recording forward, one back"
    assert torch.equal(launched[0], replayed[0])
    assert all(torch.equal(launched[1][name], gradient) for name, gradient in replayed[1].items())


def test_batches_of_nearly_one_size_share_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    smaller = Whole(monkeypatch, [3, 66, 19, 60, 2, 2], record=True)
    whole = Whole(monkeypatch, [3, 70, 20, 64, 1], record=True)
    wanted = smaller.run()
    whole.fuse()
    whole.run()
    whole.run()
    whole.ids, whole.ends = smaller.ids, smaller.ends  # the weights are the same: of one seed
    states, found = whole.run()
    assert [again.replays for again in whole.recordings] == [2, 2]
    near(states, wanted[0])
    same(found, wanted[1])


def test_gradients_add_up_over_replayed_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20, 64, 1], record=True)

    def added_up() -> dict[str, Tensor]:
        whole.model.zero_grad()
        for seed in range(3):
            whole.loss(seed).backward()
        return whole.gradients()

    wanted = added_up()
    whole.fuse()
    same(added_up(), wanted)
    same(added_up(), wanted)
    assert whole.recordings[0].replays == 5


def test_two_forward_passes_before_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20, 64, 1], record=True)

    def both() -> dict[str, Tensor]:
        whole.model.zero_grad()
        (whole.loss(0) + whole.loss(1)).backward()
        return whole.gradients()

    wanted = both()
    whole.fuse()
    for _ in range(3):
        same(both(), wanted)
    assert whole.recordings[0].replays > 0
    before = whole.recordings[0].replays
    whole.loss()  # never taken back: what it kept is free again with its loss
    whole.loss()
    assert whole.recordings[0].replays == before + 2


def test_what_wants_to_see_between_layers_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20], record=True)
    whole.fuse()
    for _ in range(3):
        output = whole.model.bert(whole.ids, cu_seqlens=whole.ends, output_hidden_states=True)
        output.last_hidden_state.sum().backward()
        assert len(output.hidden_states) == 3
        with torch.no_grad():
            whole.states()
        whole.model.eval()
        whole.states()
        whole.model.train()
    assert not whole.recordings
    first = whole.model.bert.encoder.layer[0]
    first.attention.self.query.weight.requires_grad_(False)
    for _ in range(3):
        whole.run()
    assert not whole.recordings
    assert first.attention.self.query.weight.grad is None


def test_a_recording_for_parameters_that_moved_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20], record=True)
    whole.fuse()
    whole.run()
    whole.run()
    norm = whole.model.bert.encoder.layer[0].output.LayerNorm
    norm.weight.data = norm.weight.data.clone()
    whole.run()
    assert [again.replays for again in whole.recordings] == [1, 1, 1, 1]


def test_a_second_backward_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20], record=True)
    whole.fuse()
    loss = whole.loss()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="asked for twice"):
        loss.backward()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("lengths", [[1], [64, 64], [3, 100, 7], [200, 5], [60] * 50])
def test_forms_of_batches(lengths: list[int], dropout: float) -> None:
    from bertie.engine.gpu.training.batch import Passage, TrainingBatch, rows_for
    from bertie.ops.packing import Packing

    packing = Packing.of(lengths)
    seeds = [5, 6, 7, 8, 9, 10]
    exact = TrainingBatch(packing, 2, dropout=dropout, seeds=seeds)
    filled = TrainingBatch(packing, 2, dropout=dropout, seeds=seeds, rows=rows_for(sum(lengths), 10**6))
    assert exact.form.rows == sum(lengths)
    assert sum(lengths) <= filled.form.rows < max(sum(lengths) + 64, 1.125 * sum(lengths))
    for batch in (exact, filled):
        assert len(batch.buffer) == sum(batch.form.sizes)
        passage = Passage(batch.form, torch.from_numpy(batch.buffer))
        assert [int(seed[0]) for layer in range(2) for seed in passage.seeds(layer)] == seeds
        seen = np.zeros((2, batch.form.rows), dtype=np.int64)  # by how many programs each row is taken: forward, back
        for plan, forward in ((passage._small, True), (passage._whole, False), (passage._long, True)):
            for first, end, first_key, end_key in plan.programs.tolist():
                assert first_key <= first <= end <= end_key
                seen[0, first:end] += forward
                seen[1, first:end] += end_key - first_key <= plan.tile or plan is passage._long
        assert (seen == 1).all()
        assert (
            passage._small.starts.tolist()[: sum(lengths)] == np.repeat(np.cumsum([0, *lengths[:-1]]), lengths).tolist()
        )


def test_what_cannot_be_recorded_is_launched(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    whole = Whole(monkeypatch, [3, 40, 20], record=True)
    wanted = whole.run()
    attempts = []

    def refused(work: Callable[[], None]) -> Again:
        attempts.append(work)
        if len(attempts) == 2:  # the way forward was recorded
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return Again(work)

    monkeypatch.setattr(whole, "recorded", refused)
    whole.fuse()
    with caplog.at_level("INFO", "bertie.engine"):
        for _ in range(4):
            states, found = whole.run()
            near(states, wanted[0])
            same(found, wanted[1])
    assert len(attempts) == 2, "once is enough"
    assert [record.message for record in caplog.records if "launched" in record.message] == [
        "training steps are launched kernel by kernel from here on: operation not permitted when stream is capturing"
    ]


def test_when_memory_runs_out_recordings_give_theirs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertie.engine.gpu.training.cuda_graphs import Stack

    whole = Whole(monkeypatch, [3, 40, 20], record=True)
    wanted = whole.run()
    whole.fuse()
    whole.run()
    whole.run()
    assert whole.recordings
    pending = whole.loss()  # replayed, and not yet taken back
    once = iter([torch.OutOfMemoryError("no room")])
    run_forward = Stack.run_forward

    def short_of_memory(stack: Stack, *given: object) -> object:
        for error in once:
            raise error
        return run_forward(stack, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Stack, "run_forward", short_of_memory)
    replays = whole.recordings[0].replays
    near(whole.states(), wanted[0])
    whole.model.zero_grad()
    pending.backward()
    same(whole.gradients(), wanted[1])
    for _ in range(2):
        same(whole.run()[1], wanted[1])
    assert whole.recordings[0].replays == replays
    assert len(whole.recordings) == 2


def test_rows_of_batches() -> None:
    from bertie.engine.gpu.training.batch import rows_for

    small, large = 10**6, 85 * 10**6
    for tokens in (1, 47, 48, 49, 64, 500, 1100, 5000, 17399, 17408, 32768, 65536):
        for weights, share in ((small, 8), (large, 8 if tokens <= 5000 else 128)):
            rows = rows_for(tokens, weights)
            assert rows % 32 == 16, "cuBLAS does not like multiples of 32"
            assert tokens <= rows <= max(tokens + 63, tokens * (1 + 1 / share))
    assert len({rows_for(tokens, large) for tokens in range(16900, 17900)}) <= 9
    assert len({rows_for(tokens, small) for tokens in range(1000, 4000)}) <= 18


def test_a_whole_run_with_recorded_passes_ends_where_one_without_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks.training import Case, MaskedWords, Texts

    from bertie import BertForMaskedLM
    from bertie.training.run.distributed import World
    from bertie.training.run.loop import Training
    from bertie.training.settings import Settings

    whole = Whole(monkeypatch, [5], record=True)  # for its small configuration, and what it exchanges
    steps, case = 6, Case("tiny", 4, 16, True, "cpu", vocab_size=90)
    settings = Settings(max_steps=steps, batch_size=4, micro_batch_tokens=24, learning_rate=1e-3, precision="float32")

    def trained(fused: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        texts = Texts(case, 2)  # two batches, three times: forms come again
        objective = MaskedWords(texts, BertForMaskedLM(whole.model.config))
        folder = tmp_path / str(fused)
        folder.mkdir()
        run = Training(
            objective, texts, None, settings, folder,
            world=World(device=torch.device("cpu")), run=None, resume=False, show=False,
        )  # fmt: skip
        if fused:
            run._fusion = whole.training.fuse(run.model)
            decoder = run.model.get_output_embeddings()
            decoder.__dict__.pop("forward")  # it is bfloat16 alone
            decoder.forward = decoder.forward  # what is undone in the end
        run._forward_and_backward = counted(run)  # type: ignore[method-assign]
        monkeypatch.setattr("bertie.training.run.loop.save_run", lambda training: None)
        monkeypatch.setattr(Training, "_finish", lambda self, early: None)
        run.run()
        return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}

    pieces: list[int] = []

    def counted(run: Training) -> Callable[..., None]:
        inner = run._forward_and_backward

        def call(share: Any, tally: Any) -> None:
            pieces.append(len(share.micro_batches))
            inner(share, tally)

        return call

    wanted = trained(False)
    assert max(pieces) > 1, "gradients are added up over several micro-batches"
    found = trained(True)
    assert sum(again.replays for again in whole.recordings) > steps
    for name, parameter in wanted.items():
        near(found[name], parameter)


def test_copies_of_weights_are_made_for_every_batch_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, [3, 40, 20], record=False)
    fusion = whole.training.fuse(whole.model, record=False)
    weight = whole.model.bert.encoder.layer[0].intermediate.dense.weight
    before = whole.states()
    with torch.no_grad():
        weight.mul_(2.0)
    assert not torch.equal(whole.states(), before)
    now = whole.states()
    fusion.rounded[id(weight)].mul_(0.5)
    fusion.copies_are_current(True)
    near(whole.states(), before)
    assert torch.equal(whole.states(), now), "it holds for one batch"
    fusion.copies_are_current(True)
    fusion.copies_are_current(False)
    assert torch.equal(whole.states(), now)


def test_adamw_is_pytorchs() -> None:
    from bertie.engine.gpu.training.adamw import AdamW

    shapes = [(3, 5), (2048,), (70, 100), (4096, 2), (1,)]
    ours = [
        [random(*shape, seed=seed), *(torch.zeros(*shape, device=DEVICE) for _ in range(2))]
        for seed, shape in enumerate(shapes)
    ]
    theirs = [[tensor.clone() for tensor in line] for line in ours]
    copies = [None, *(torch.zeros(*shape, device=DEVICE, dtype=torch.bfloat16) for shape in shapes[1:])]
    step, scale, optimizer = torch.zeros((), device=DEVICE), torch.tensor(3.0, device=DEVICE), AdamW()
    for number in range(5):
        grads = [random(*shape, seed=10 * number + seed) for seed, shape in enumerate(shapes)]
        skip = torch.tensor(float(number == 2), device=DEVICE)
        step += 1 - skip
        before = [line[0].clone() for line in ours]
        assert optimizer.step(
            [(weight, grad, mean, square) for (weight, mean, square), grad in zip(ours, grads, strict=True)],
            copies, step, rate=1e-2, betas=(0.9, 0.999), decay=0.01, eps=1e-6, scale=scale, skip=skip,
        )  # fmt: skip
        assert all(torch.equal(line[0], old) for line, old in zip(ours, before, strict=True)) == (number == 2)
        torch._fused_adamw_(
            *([line[part] for line in theirs] for part in (0,)), [grad.clone() for grad in grads],
            *([line[part] for line in theirs] for part in (1, 2)), [], [step] * len(shapes), amsgrad=False, lr=1e-2,
            beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-6, maximize=False, grad_scale=scale, found_inf=skip,
        )  # fmt: skip
        for mine, other in zip(ours, theirs, strict=True):
            for got, wanted in zip(mine, other, strict=True):
                assert float((got - wanted).abs().max()) <= 2e-6
        for line, copy in zip(ours, copies, strict=True):
            if copy is not None:
                assert float((copy.float() - line[0]).abs().max()) <= 2**-7 * float(line[0].abs().max())


def test_adamw_leaves_what_it_has_no_form_for() -> None:
    from bertie.engine.gpu.training.adamw import AdamW

    one, room = torch.ones((), device=DEVICE), torch.zeros(9, device=DEVICE)
    options = {"rate": 0.1, "betas": (0.9, 0.999), "decay": 0.0, "eps": 1e-6, "scale": one, "skip": one - 1}
    whole, odd = room[:8], room[1:]
    assert AdamW().step([(whole, whole, whole, whole)], [None], one, **options)
    assert not AdamW().step([(whole, odd, whole, whole)], [None], one, **options), (
        "an address that is no multiple of 16"
    )
    assert not AdamW().step([(whole, whole[::2], whole, whole)], [None], one, **options)
    assert not AdamW().step([(whole.double(),) * 4], [None], one, **options)


@pytest.mark.parametrize(
    ("width", "room", "fits"), [(64, 232448, True), (64, 101376, True), (64, 65536, False), (128, 101376, False),
                                (128, 166912, True), (256, 232448, False)],
)  # fmt: skip
def test_heads_that_a_gpu_has_no_room_for_are_not_fused(
    width: int, room: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertie import BertConfig, BertForMaskedLM
    from bertie.engine.gpu.training.fuse import why_not

    config = BertConfig(
        vocab_size=30, hidden_size=2 * width, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16
    )
    model = BertForMaskedLM(config)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(shared_memory_per_block_optin=room)
    )
    reason = why_not(model)
    assert (reason is None) == fits
    assert fits or (reason is not None and f"heads of {width}" in reason)
