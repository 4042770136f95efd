"""Whether our kernels are ahead of the reference on this processor: known for some, timed once for the others.

`engine="auto"` is never slower than the reference. On the instruction sets of `KNOWN` both were measured
(benchmarks/results/cpu-notes.md); on any other, ARM's above all, a model of two small layers runs both ways for some
milliseconds when the first model is opened. What was found is kept on disk for this processor and this PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from functools import lru_cache
from pathlib import Path

import torch

from bertie.config import BertConfig
from bertie.engine.cpu.library import VERSION, instruction_set
from bertie.engine.cpu.runner import CpuRunner
from bertie.engine.runner import ReferenceRunner, Runner
from bertie.files import cache_folder, replace_file
from bertie.model import BertModel
from bertie.ops.packing import Packing

logger = logging.getLogger("bertie.engine")
KNOWN = {"float32": ("amx", "avx512-bf16", "avx512-vnni", "avx2"), "bfloat16": ("amx", "avx512-bf16")}
_LENGTHS = (7, 40, 64, 17)  # of the texts that are timed
_ROUNDS = 5


@lru_cache
def is_ahead(dtype: str) -> bool:
    """Whether "auto" takes our kernels for a model of this dtype. int8 is asked for by name: the reference has none."""
    kernels = instruction_set()
    if kernels is None or dtype == "int8" or kernels in KNOWN.get(dtype, ()):
        return True
    facts = [VERSION, kernels, dtype, torch.__version__, torch.get_num_threads(), _processor()]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    place = cache_folder("cpu") / f"{name}.json"
    times = _kept(place)
    if times is None:
        times = seconds(getattr(torch, dtype))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, json.dumps({"ours": times[0], "reference": times[1], "of": facts}))
        except OSError as error:
            logger.debug("the timing could not be kept at %s: %s", place, error)
    ours, reference = times
    logger.info("%s on %s: kernels %.2f ms, reference %.2f ms", dtype, kernels, 1e3 * ours, 1e3 * reference)
    return ours <= reference


def seconds(dtype: torch.dtype) -> tuple[float, float]:
    """For one small batch: our kernels' and the reference's shortest of some runs, in turn."""
    config = BertConfig(
        vocab_size=64, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
    )
    with torch.random.fork_rng(devices=[]):
        model = BertModel(config, add_pooling_layer=False).eval().to(dtype)
    ids, packing = torch.arange(sum(_LENGTHS)) % config.vocab_size, Packing(_LENGTHS)
    runners: list[Runner] = [CpuRunner(model), ReferenceRunner(model)]
    found: list[list[float]] = [[], []]
    with torch.inference_mode():
        for _ in range(_ROUNDS + 1):
            for runner, times in zip(runners, found, strict=True):
                start = time.perf_counter()
                runner(ids, None, None, packing, all_states=False)
                times.append(time.perf_counter() - start)
    return min(found[0][1:]), min(found[1][1:])  # the first round warms both up


def _kept(place: Path) -> tuple[float, float] | None:
    try:
        kept = json.loads(place.read_text(encoding="utf-8"))
        return float(kept["ours"]), float(kept["reference"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "CPU implementer", "CPU part", "CPU variant")
    return "; ".join(sorted({line for line in lines if line.startswith(wanted)}))
