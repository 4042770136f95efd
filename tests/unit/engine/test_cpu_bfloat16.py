"""bfloat16 on a CPU: near float32, the same bits in any company, by instructions and by what stands in for them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import SENTENCES, saved, tiny, tokenizer
from tests.unit.engine.test_cpu_runner import SHAPES, batch

import bertie
from bertie.defaults import default_embedding_model
from bertie.engine import FastBert
from bertie.engine.calibration import inputs_watched, packed
from bertie.engine.cpu import bfloat16
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import bfloat16_instructions, instruction_set
from bertie.engine.cpu.runner import CpuRunner
from bertie.errors import BertieError
from bertie.ops.packing import Packing

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")
ROOT = Path(__file__).parents[3]


def least_cosine(fast: Any, model: Any, lengths: list[int]) -> float:
    ids, ends = batch(lengths)
    with torch.no_grad():
        found, wanted = (one(ids, cu_seqlens=ends).last_hidden_state for one in (fast, model))
    assert found.dtype == torch.bfloat16
    assert found.isfinite().all()
    return float(torch.cosine_similarity(found.float(), wanted).min())


@pytest.mark.parametrize("config", SHAPES, ids=lambda config: "-".join(map(str, config.values())) or "plain")
def test_every_shape_is_near_float32(config: dict[str, Any]) -> None:
    model = tiny("BertModel", **{"max_position_embeddings": 512, "initializer_range": 0.05, **config})
    fast = bertie.compile(model, dtype="bfloat16")
    assert isinstance(fast, FastBert)
    assert model.dtype == torch.float32
    assert least_cosine(fast, model, [3, 1, 17, 64, 65, 2, 100, 33, 512]) >= 0.999


def test_pruned_models_and_all_states() -> None:
    model = tiny(
        "BertModel", pruned_heads={0: [1], 1: [0, 1, 2, 3]}, intermediate_sizes=[48, 16, 0], initializer_range=0.05
    )
    fast = bertie.compile(model, dtype="bfloat16")
    assert least_cosine(fast, model, [7, 30]) >= 0.999
    ids, ends = batch([7, 30])
    states = fast(ids, cu_seqlens=ends, output_hidden_states=True).hidden_states
    wanted = model(ids, cu_seqlens=ends, output_hidden_states=True).hidden_states
    for a, b in zip(states, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        assert torch.cosine_similarity(a.float(), b).min() >= 0.999


def test_a_head_answers_in_bfloat16() -> None:
    model = tiny("BertForSequenceClassification", num_labels=3, initializer_range=0.05)
    fast = bertie.compile(model, dtype="bfloat16")
    ids = torch.arange(5, 25).view(2, 10)
    found = fast(ids).logits
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), model(ids).logits, atol=3e-2, rtol=0)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import torch, bertie
from tests.tiny_models import tiny
from tests.unit.engine.test_cpu_bfloat16 import least_cosine
from tests.unit.engine.test_cpu_runner import batch
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import instruction_set
cpu_runner.usable_cores = lambda: 3
for width, heads in ((20, 2), (64, 4), (144, 3), (128, 1)):
    model = tiny("BertModel", max_position_embeddings=256, hidden_size=width, num_attention_heads=heads,
                 initializer_range=0.05)
    fast = bertie.compile(model, dtype="bfloat16", threads=3)
    assert least_cosine(fast, model, [1, 40, 17, 130, 33, 32, 64]) >= 0.999, width
    lengths = [3, 16, 100, 31, 1, 47, 33]
    ids, ends = batch(lengths)
    together = fast(ids, cu_seqlens=ends)[0]
    fast.runner.threads = 1
    for a, b in zip(ends[:-1].tolist(), ends[1:].tolist()):
        alone = fast(ids[a:b], cu_seqlens=torch.tensor([0, b - a]))[0]
        assert torch.equal(alone, together[a:b]), (width, b - a)
print(instruction_set())
"""
SETS = ["portable", "tiles", "pairs", "avx2", "avx512-vnni", "avx512-bf16", "amx"]


@pytest.mark.parametrize("name", SETS)
def test_every_instruction_set_is_near_float32_with_the_same_bits_in_any_company(name: str) -> None:
    if SETS.index(name) > SETS.index(str(instruction_set())):
        pytest.skip(f"this machine has no {name}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(root=str(ROOT))],
        env=os.environ | {"BERTIE_CPU": name},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name]


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 16)
    fast: Any = bertie.compile(tiny("BertModel", max_position_embeddings=512, hidden_size=64), dtype="bfloat16")
    for lengths in ([3], [200], [512, 1, 77], [30] * 40):
        ids, ends = batch(lengths)
        fast.runner.threads = 1
        wanted = fast(ids, cu_seqlens=ends)[0]
        for threads in (2, 7, 16):
            fast.runner.threads = threads
            assert torch.equal(fast(ids, cu_seqlens=ends)[0], wanted), (lengths, threads)


def test_embeddings_biases_and_norms_stay_as_they_were_until_they_are_changed(tmp_path: Path) -> None:
    model = tiny("BertModel", hidden_size=64, initializer_range=0.05)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.3)
    fast: Any = bertie.compile(model, dtype="bfloat16")
    ids, ends = batch([40, 3])
    (wanted,) = CpuRunner(model, bfloat16=True)(ids, None, None, Packing.of([40, 3]), all_states=False)
    found = fast(ids, cu_seqlens=ends)[0]
    assert torch.equal(found, wanted.bfloat16())
    rounded = bertie.compile(copy.deepcopy(model).to(torch.bfloat16))
    assert not torch.equal(rounded(ids, cu_seqlens=ends)[0], found)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    opened: Any = bertie.Embedder(tmp_path, dtype="bfloat16", device="cpu").loaded.model.base_model
    assert torch.equal(opened(ids, cu_seqlens=ends)[0], found)
    norm = fast.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.fill_(0.25)
    assert (fast(ids, cu_seqlens=ends)[0] == 0.25).all()


def with_large_channels() -> Any:
    """A model like trained ones: a few channels of every LayerNorm are far larger than the others."""
    model = tiny("BertModel", hidden_size=64, initializer_range=0.05)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter[[3, 17, 40]] *= 20
    return model


def test_moments_are_the_mean_squares_of_what_products_read() -> None:
    model = with_large_channels()
    rows = bfloat16.random_rows(model.config)
    found = CpuRunner(model).moments(rows)
    seen: dict[Any, torch.Tensor] = {}
    ids, packing = packed(rows)
    with inputs_watched(model, lambda key, x: seen.update({key: x.flatten(0, -2).square().mean(0)})), torch.no_grad():
        model(ids, cu_seqlens=packing.cu_seqlens)
    assert found.keys() == seen.keys()
    for key, wanted in seen.items():
        if key[1] != "out":  # whose inputs lie in padded heads
            torch.testing.assert_close(found[key][: len(wanted)], wanted, rtol=1e-4, atol=1e-6)
            assert (found[key][len(wanted) :] == 0).all()
        assert float(found[key].sum()) == pytest.approx(float(wanted.sum()), rel=1e-4)


def error_of(model: Any) -> float:
    """The mean square distance to float32, relative to the answer."""
    lengths = [40, 7, 48]
    ids, _ = batch(lengths)
    found, wanted = (
        CpuRunner(model, bfloat16=rounded)(ids, None, None, Packing.of(lengths), all_states=False)[0]
        for rounded in (True, False)
    )
    return float((found - wanted).square().mean() / wanted.square().mean())


def test_large_channels_are_two_numbers_each(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_large_channels()
    kept = error_of(model)
    monkeypatch.setattr(bfloat16, "_CHANNELS", 0)
    assert kept < 0.5 * error_of(model)


def test_columns_are_rounded_where_it_costs_least(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("BertModel", hidden_size=64, initializer_range=0.05)
    monkeypatch.setattr(bfloat16, "_CHANNELS", 0)
    chosen = error_of(model)
    monkeypatch.setattr(CpuRunner, "moments", lambda self, rows: {})
    assert chosen < 0.8 * error_of(model)


def test_copies_have_the_same_bits() -> None:
    fast: Any = bertie.compile(with_large_channels(), dtype="bfloat16")
    ids, ends = batch([40, 3])
    assert torch.equal(copy.deepcopy(fast)(ids, cu_seqlens=ends)[0], fast(ids, cu_seqlens=ends)[0])


def test_minilm_is_near_float32() -> None:
    """PyTorch's own bfloat16, which rounds sums, norms and what layers add up as well, has a mean of 0.99995."""
    try:
        path = default_embedding_model()
    except BertieError:
        pytest.skip("all-MiniLM-L6-v2 is not installed")
    texts = [*SENTENCES, *(ROOT / "examples" / "facts.jsonl").read_text(encoding="utf-8").splitlines()[:60]]
    found, wanted = (bertie.Embedder(path, dtype=dtype).embed(texts) for dtype in ("bfloat16", "float32"))
    cosines = (found * wanted).sum(1)
    assert cosines.mean() >= 0.99999
    assert cosines.min() >= 0.99997


def test_the_runner_says_how_it_multiplies(tmp_path: Path) -> None:
    embedder = bertie.Embedder(saved(tmp_path, "BertModel"), dtype="bfloat16")
    assert embedder.loaded.is_fast
    line = embedder.loaded.model.base_model.runner.describe()
    assert "bfloat16" in line
    assert (bfloat16_instructions() or "as float32") in line
