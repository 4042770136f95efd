"""The GPU engine's kernels against the reference: on a GPU, or on a CPU through Triton's interpreter.

    TRITON_INTERPRET=1 python -m pytest tests/unit/engine/test_gpu_kernels.py

The interpreter has float32 and float16 (its bfloat16 products and its fp8 are not to be trusted); bfloat16, fp8 and
graphs are checked on a GPU by tests/scripts/gpu_engine.py.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests import family_models
from tests.tiny_models import tiny
from torch import Tensor

from bertie.engine.runner import Options
from bertie.ops.packing import Packing
from bertie.running.pooling import Pieces, divide, means, pool

pytest.importorskip("triton", reason="the GPU engine's kernels are written in Triton")
HAS_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's own
    pytest.mark.skipif(not (HAS_GPU or INTERPRETED), reason="needs a GPU, or TRITON_INTERPRET=1"),
    pytest.mark.skipif(
        INTERPRETED and np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="Triton's interpreter needs numpy < 2.4"
    ),
]
DEVICE = torch.device("cuda" if HAS_GPU and not INTERPRETED else "cpu")
# A GPU's fp32 products are tf32 here.
TOLERANCE = {torch.float32: 2e-3 if HAS_GPU and not INTERPRETED else 1e-5, torch.float16: 1e-2}
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 130]


@pytest.fixture(params=[torch.float32, torch.float16], ids=["float32", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("head", [8, 16, 48])
@pytest.mark.parametrize("tile", [16, 64])
def test_attention_keeps_every_text_to_itself(head: int, tile: int, dtype: torch.dtype) -> None:
    from bertie.engine.gpu.attention import attention
    from bertie.engine.gpu.attention_schedule import schedule

    lengths = [length for length in LENGTHS if length <= 5 * tile]
    qkv = random(sum(lengths), 3 * 2 * head, dtype=dtype)
    got = attention(qkv, 2, schedule(lengths, DEVICE, tile))
    wanted = []
    for text in qkv.float().split(lengths):
        q, k, v = (part.view(-1, 2, head).transpose(0, 1) for part in text.chunk(3, dim=1))
        wanted.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    assert float((got.float() - torch.cat(wanted)).abs().max()) <= TOLERANCE[dtype]


def test_attention_is_finite_on_scores_beyond_the_range_of_half_precision() -> None:
    from bertie.engine.gpu.attention import attention
    from bertie.engine.gpu.attention_schedule import schedule

    qkv = 60.0 * random(40, 96, dtype=torch.float16)
    assert torch.isfinite(attention(qkv, 2, schedule([1, 39], DEVICE, 64))).all()


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_add_norm_is_layernorm_of_the_sum(parts: int, dtype: torch.dtype) -> None:
    from bertie.engine.gpu.embed_norm_gelu import add_norm

    residual, gamma, beta, bias = (
        random(*s, dtype=dtype, seed=i) for i, s in enumerate([(7, 40), (40,), (40,), (40,)])
    )
    if parts:
        x = random(parts, 7, 40, dtype=torch.float32, seed=5)
        total = x.sum(0) + bias.float()
    else:
        x = random(7, 40, dtype=dtype, seed=5)
        total = x.float()
    got, rounded = add_norm(x, residual, gamma, beta, 1e-12, bias=bias if parts else None)
    wanted = F.layer_norm(total + residual.float(), (40,), gamma.float(), beta.float(), 1e-12)
    assert rounded is None
    assert float((got.float() - wanted).abs().max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize("given", ["nothing", "types", "positions"])
def test_embed_adds_three_tables(given: str, dtype: torch.dtype) -> None:
    from bertie.engine.gpu.attention_schedule import schedule
    from bertie.engine.gpu.embed_norm_gelu import embed

    words, places, types, gamma, beta = (
        random(*s, dtype=dtype, seed=i) for i, s in enumerate([(50, 24), (20, 24), (2, 24), (24,), (24,)])
    )
    ids = torch.arange(11, device=DEVICE)
    segments = ids % 2 if given == "types" else None
    own = torch.tensor([0, 1, 2, 3, *range(7)], device=DEVICE)
    positions = own + 3 if given == "positions" else None
    starts = schedule([4, 7], DEVICE).starts
    got, _ = embed(ids, segments, positions, starts, (words, places, types), gamma, beta, 1e-12)
    total = words[ids].float() + places[own if positions is None else positions].float()
    total += types[torch.zeros_like(ids) if segments is None else segments].float()
    wanted = F.layer_norm(total, (24,), gamma.float(), beta.float(), 1e-12)
    assert float((got.float() - wanted).abs().max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize("exact", [True, False], ids=["erf", "tanh"])
def test_gelu_is_gelu(exact: bool) -> None:
    from bertie.engine.gpu.embed_norm_gelu import gelu

    x = torch.linspace(-6, 6, 1001, device=DEVICE)
    wanted = F.gelu(x, approximate="none" if exact else "tanh")
    assert float((gelu(x, exact=exact) - wanted).abs().max()) <= (2e-3 if HAS_GPU and not exact else 1e-5)


@pytest.mark.parametrize("tokens", [1, 16, 33, 64])
@pytest.mark.parametrize("shape", [(32, 48), (300, 24), (1024, 16)], ids=str)
def test_small_batch_linear_is_the_product(tokens: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    from bertie.engine.gpu.small_batch_product import small_batch_linear

    depth, width = shape
    x, bias = random(tokens, depth, dtype=dtype), random(width, dtype=dtype, seed=2)
    weight = random(width, depth, dtype=dtype, seed=1) / depth**0.5
    wanted = F.linear(x.float(), weight.float(), bias.float())
    tolerance = 4 * TOLERANCE[dtype]
    assert float((small_batch_linear(x, weight, bias).float() - wanted).abs().max()) <= tolerance
    bent = small_batch_linear(x, weight, bias, gelu="erf")
    assert float((bent.float() - F.gelu(wanted)).abs().max()) <= tolerance
    parts = small_batch_linear(x, weight, bias, in_parts=True)
    assert parts.dtype == torch.float32
    assert float((parts.sum(0) + bias.float() - wanted).abs().max()) <= tolerance


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "tanh GELU": {"hidden_act": "gelu_new"},
    "ReLU": {"hidden_act": "relu"},
    "pruned": {"pruned_heads": {0: [1], 2: [0, 3]}},
    "sizes by layer": {"pruned_heads": {0: [0, 1, 2, 3], 2: [1]}, "intermediate_sizes": [32, 0, 16]},
    "no power of two": {"hidden_size": 80, "num_attention_heads": 5, "intermediate_size": 144},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lengths", [[1], [3, 20], [40, 2, 30]], ids=str)
def test_the_runner_gives_the_reference_states(case: str, lengths: list[int], dtype: torch.dtype) -> None:
    from bertie.engine.gpu.runner import GpuRunner

    model = tiny("BertModel", **CASES[case]).to(DEVICE)
    packing = Packing.of(lengths, device=DEVICE)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (sum(lengths),), generator=generator).to(DEVICE)
    with torch.no_grad():
        wanted = model(ids, cu_seqlens=packing.cu_seqlens, output_hidden_states=True).hidden_states
    runner = GpuRunner.of(copy.deepcopy(model).to(dtype), Options("float16", DEVICE))
    # The fused GELU is one of the two, whichever a checkpoint names.
    tolerance = max(10 * TOLERANCE[dtype], 2e-3 if case == "tanh GELU" else 0.0)
    got = runner(ids, None, None, packing, all_states=True)
    assert len(got) == len(wanted) == 4
    for one, state in zip(wanted, got, strict=True):
        assert float((state.float() - one).abs().max()) <= tolerance
    last = runner(ids, torch.zeros_like(ids), packing.position_ids, packing, all_states=False)
    assert len(last) == 1
    assert float((last[0].float() - wanted[-1]).abs().max()) <= tolerance


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_len_tokens", "cls", "lasttoken"])
@pytest.mark.parametrize("unit", [True, False], ids=["unit", "as they are"])
def test_vectors_are_those_of_pooling_the_last_state(mode: str, unit: bool, dtype: torch.dtype) -> None:
    from bertie.engine.gpu.runner import GpuRunner

    model = tiny("BertModel", hidden_size=80, num_attention_heads=5).to(DEVICE, dtype)
    lengths = np.array([1, 40, 2, 37, 9])
    ids = np.arange(int(lengths.sum())) % 90 + 5
    pieces = Pieces(ids, lengths, *np.array([[0, 4, 2, 0, 0], [1, 36, 0, 37, 9], [0, 4, 0, 0, 0]]), *[lengths > 0] * 2)
    wanted_means = means(pieces, mode, unit=unit)
    assert wanted_means is not None
    for graphs in (True, False):
        runner = GpuRunner(GpuRunner.of(model, Options("float16", DEVICE)).encoder, device=DEVICE, graphs=graphs)
        states = runner.last_state(torch.from_numpy(ids), lengths.tolist())
        wanted = divide(pool(states.cpu(), pieces, (mode,)), pieces, (mode,))
        got = runner.vectors(ids, wanted_means)()
        assert got.dtype == torch.float32
        assert torch.allclose(got, F.normalize(wanted) if unit else wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["max", "weightedmean"])
def test_what_is_no_mean_is_not_asked_of_a_runner(mode: str) -> None:
    assert means(Pieces.of_texts(np.arange(5), np.array([5])), mode, unit=False) is None


def test_rounding_one_input_after_the_other_beats_rounding_each_to_its_nearest() -> None:
    from bertie.engine.gpu.fp8 import round_weights

    x = random(400, 96, dtype=torch.float32) @ random(96, 96, dtype=torch.float32, seed=1)
    weights = random(2, 32, 96, dtype=torch.float32, seed=2)
    scales = weights.abs().amax((1, 2)) / 448.0
    moments = (x.t() @ x / len(x))[None].repeat(2, 1, 1)
    units = scales[:, None, None]
    found = round_weights(weights, scales, moments).float() * units
    nearest = (weights / units).to(torch.float8_e4m3fn).float() * units
    off, plain = (((weights - rounded) @ x.t()).norm() for rounded in (found, nearest))
    assert float(off) <= 0.8 * float(plain)
    assert float((found - weights).abs().max()) <= 0.5 * float(weights.abs().max())


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_positions_are_counted_without_padding(padding: int) -> None:
    from bertie.engine.gpu.embed_norm_gelu import count_positions

    lengths = [1, 70, 3, 64, 200]
    ids = torch.randint(0, 9, (sum(lengths),), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    packing = Packing.of(lengths, device=DEVICE)
    starts = torch.repeat_interleave(torch.tensor(packing.starts), torch.tensor(lengths)).int().to(DEVICE)
    assert torch.equal(count_positions(ids, starts, padding).long(), packing.positions(ids, padding))


@pytest.mark.parametrize("tile", [16, 64])
def test_a_bias_by_distance_is_added_to_the_scores(tile: int, dtype: torch.dtype) -> None:
    from bertie.engine.gpu.attention import attention, bias_tiles
    from bertie.engine.gpu.attention_schedule import schedule

    lengths, head, far = [1, 5, 17, 64, 200], 8, 20
    qkv, bias = random(sum(lengths), 3 * 2 * head, dtype=dtype), random(2, 2 * far + 1, dtype=torch.float32, seed=1)
    got = attention(qkv, 2, schedule(lengths, DEVICE, tile), bias=bias_tiles(bias, dtype))
    wanted = []
    for text in qkv.float().split(lengths):
        q, k, v = (part.view(-1, 2, head).transpose(0, 1) for part in text.chunk(3, dim=1))
        place = torch.arange(len(text), device=DEVICE)
        added = bias[:, (place[None] - place[:, None]).clamp(-far, far) + far] / head**0.5
        wanted.append(F.scaled_dot_product_attention(q, k, v, attn_mask=added).transpose(0, 1).flatten(1))
    assert float((got.float() - torch.cat(wanted)).abs().max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("RobertaModel", {}),
        ("DistilBertModel", {}),
        ("ElectraModel", {}),
        ("ElectraModel", {"embedding_size": 12}),
        ("ElectraModel", {"embedding_size": 48}),
        ("MPNetModel", {"max_position_embeddings": 152}),
        ("MPNetModel", {"max_position_embeddings": 152, "pruned_heads": {0: [1, 2], 1: [0]}}),
    ],
)
def test_relatives_run_as_their_reference(name: str, config: dict[str, Any]) -> None:
    from bertie.engine.gpu.runner import GpuRunner

    model = family_models.tiny(name, vocab_size=60, **config).to(DEVICE)
    packing = Packing.of([1, 7, 16, 30, min(150, model.config.max_input_length)], device=DEVICE)
    ids = torch.randint(3, 60, (packing.num_tokens,), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ids[12] = 1  # padding inside a text
    with torch.no_grad():
        wanted = model(ids, cu_seqlens=packing.cu_seqlens, output_hidden_states=True).hidden_states
    runner = GpuRunner.of(copy.deepcopy(model), Options("float16", DEVICE))
    for got, state in zip(runner(ids, None, None, packing, all_states=True), wanted, strict=True):
        assert float((got - state).abs().max()) <= 5 * TOLERANCE[torch.float32]
    assert torch.equal(runner.last_state(ids.cpu(), packing.lengths), runner.last_state(ids, packing.lengths))
