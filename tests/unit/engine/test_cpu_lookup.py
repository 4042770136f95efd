"""The CPU engine's first product, looked up by word: the product's answer, whatever was read before and by whom."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import tiny

from bertie.engine.calibration import PRODUCTS
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import instruction_set
from bertie.engine.cpu.runner import CpuRunner
from bertie.ops.packing import Packing

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")
ROOT = Path(__file__).parents[3]
LENGTHS = (3, 40, 1, 25, 60, 17)


def model_of(**config: Any) -> Any:
    usual = {"max_position_embeddings": 64, "type_vocab_size": 3, "initializer_range": 0.1}
    return tiny("BertModel", **usual | config)


def smoothing_of(model: Any) -> dict[tuple[int, str], torch.Tensor]:
    widths = dict.fromkeys(PRODUCTS, model.config.hidden_size) | {"down": model.config.intermediate_size}
    return {(layer, part): torch.ones(widths[part]) for layer in range(3) for part in PRODUCTS}


def runner_of(model: Any, dtype: str) -> CpuRunner:
    return CpuRunner(model, smoothing_of(model) if dtype == "int8" else None, bfloat16=dtype == "bfloat16")


def texts(model: Any) -> tuple[torch.Tensor, Packing]:
    ids = torch.randint(0, model.config.vocab_size, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    return ids, Packing.of(list(LENGTHS), device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("config", [{}, {"hidden_size": 36}, {"type_vocab_size": 1}, {"pruned_heads": {0: [1, 2]}}])
def test_it_is_as_near_to_float32_as_the_product(
    dtype: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions and segments are the caller's. In int8 no other product is rounded, so what this one costs is seen."""
    model = model_of(num_hidden_layers=1, **config)
    ids, packing = texts(model)
    types = torch.arange(len(ids)) % model.config.type_vocab_size
    places = torch.arange(len(ids)).flip(0) % 64
    wanted = CpuRunner(model)(ids, types, places, packing, all_states=False)[0]

    def off() -> float:
        if dtype == "bfloat16":
            found = runner_of(model, dtype)
        else:
            found = CpuRunner(model, {(0, "qkv"): torch.ones(model.config.hidden_size)})
        return float((found(ids, types, places, packing, all_states=False)[0].float() - wanted).square().mean().sqrt())

    looked_up = off()
    monkeypatch.setattr(cpu_runner, "_MOST_LOOKED_UP", 0)
    multiplied = off()
    assert 0 < looked_up < multiplied * (0.5 if dtype == "int8" else 1.05)
    assert multiplied < 0.05


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_bits_depend_neither_on_what_was_read_before_nor_on_who_reads_beside(dtype: str) -> None:
    model = model_of()
    ids, packing = texts(model)
    rows = ids.split(LENGTHS)

    def read(runner: CpuRunner, row: torch.Tensor) -> torch.Tensor:
        return runner.last_state(row, [len(row)])

    together = runner_of(model, dtype)(ids, None, None, packing, all_states=False)[0].split(LENGTHS)
    backwards = runner_of(model, dtype)
    for row, wanted in reversed([*zip(rows, together, strict=True)]):
        assert torch.equal(read(backwards, row), wanted)
    for _ in range(20):  # each time none of them is known
        fresh = runner_of(model, dtype)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda row, fresh=fresh: read(fresh, row), rows))  # type: ignore[misc]
        assert all(map(torch.equal, found, together))


def test_a_product_that_changes_its_kind_is_looked_up_no_longer() -> None:
    model = model_of()
    ids, packing = texts(model)
    smoothing = smoothing_of(model)

    def states(runner: CpuRunner) -> torch.Tensor:
        return runner(ids, None, None, packing, all_states=False)[0]

    runner = CpuRunner(model, smoothing)
    before = states(runner)
    runner.set_product(model, (0, "qkv"), None)
    without = CpuRunner(model, {key: smooth for key, smooth in smoothing.items() if key != (0, "qkv")})
    assert torch.equal(states(runner), states(without))
    runner.set_product(model, (0, "qkv"), smoothing[0, "qkv"])
    assert torch.equal(states(runner), before)
    assert not torch.equal(states(without), before)


def test_a_table_that_would_be_too_large_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    size = 2 * 3 * 4 * 16 * model.config.vocab_size  # heads are padded to 16
    ids, packing = texts(model)

    def states() -> torch.Tensor:
        return runner_of(model, "bfloat16")(ids, None, None, packing, all_states=False)[0]

    monkeypatch.setattr(cpu_runner, "_MOST_LOOKED_UP", size)
    looked_up = states()
    monkeypatch.setattr(cpu_runner, "_MOST_LOOKED_UP", size - 1)
    assert not torch.equal(states(), looked_up)


MEMORY = """
import os, sys
sys.path.insert(0, {root!r})
import torch
from tests.tiny_models import tiny
from bertie.engine.cpu.runner import CpuRunner
def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
model = tiny("BertModel", vocab_size=30000, hidden_size=384, num_attention_heads=12, num_hidden_layers=1)
runner = CpuRunner(model, bfloat16=True, threads=1)
runner.last_state(torch.arange(30), [30])
before = used()
runner.last_state(torch.arange(1000, 1060), [30, 30])
some = used()
for first in range(0, 30000, 30):
    runner.last_state(torch.arange(first, first + 30), [30])
print(round(some - before, 1), round(used() - before, 1))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_it_takes_memory_for_the_words_that_were_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.format(root=str(ROOT))], env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    some, all_words = map(float, done.stdout.split())
    assert some < 8, done.stdout  # 60 words are 0.1 MB
    assert 60 < all_words < 90, done.stdout  # 30,000 are 66
