"""What each part of a model costs in time, measured on the engine and with the batches of the user.

A layer's time is that of its attention, which depends on its heads, and of its feed-forward network, which depends on
its neurons, each a step function of the kernels' tiles. So models of two layers with other sizes are made and timed in
turn, over rows as long as the user's, and the differences are a table of seconds for each number of heads and of
neurons. It is kept on the disk, by the machine, the engine, the width and the lengths.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from bertie.config import BertConfig
from bertie.engine.calibration import products_of
from bertie.engine.compile import make_runner
from bertie.engine.cpu.runner import CpuRunner
from bertie.engine.runner import Options, ReferenceRunner, Refused, Runner
from bertie.errors import InputError
from bertie.family import related
from bertie.files import cache_folder, replace_file
from bertie.model import BertModel
from bertie.ops.packing import Packing

ENGINES = ("cpu", "cpu-int8", "cuda")
Rounds = list[list[float]]  # seconds of every runner, in every round
_ON_GPU, _IN_A_THREAD = 32768, 256  # tokens of a batch that is timed: many short rounds say more than a few long ones
_IN_FLIGHT = 8  # batches that a GPU gets before the host waits for it: as in a pipeline, their work overlaps
_VERSION = 3  # of the measurement
_LAYERS = 2
_GOLDEN = 0.6180339887498949
_ROUNDS, _SECONDS = 9, 2.5  # at least this many, and then until this time has passed
_SURE, _LONGEST = 0.01, 6.0  # how exactly a speed-up is measured, and the most seconds that are spent on it


def runner_of(model: BertModel, on: str) -> Runner:
    """What answers for a model there, as far as speed goes: int8 is not fitted, which changes nothing in its time."""
    if on == "cuda":
        if not torch.cuda.is_available():
            raise InputError("{on} was requested, but PyTorch finds no GPU.", "Use cpu, or cpu-int8.", on=on)
        device = torch.device("cuda", torch.cuda.current_device())
        return make_runner(model.to(device, torch.bfloat16), Options("bfloat16", device))
    try:
        if on == "cpu":
            return CpuRunner(model)
        ones = {
            (number, part): torch.ones(linears[0].in_features)
            for number, layer in enumerate(model.encoder.layer)
            for part, linears in products_of(layer).items()
        }
        return CpuRunner(model, ones)
    except Refused:
        if on == "cpu":
            return ReferenceRunner(model)
        raise


def rows_like(lengths: Sequence[int], on: str, vocab_size: int) -> tuple[Tensor, Packing]:
    """A batch of ids as long as the user's rows, that keeps a GPU, or every thread, busy."""
    threads = 1 if on == "cuda" else torch.get_num_threads()
    tokens = _ON_GPU if on == "cuda" else _IN_A_THREAD * threads
    ordered = sorted(lengths) or [1]
    chosen: list[int] = []
    while True:
        place = (len(chosen) + 0.5) * _GOLDEN % 1  # spread evenly, however many there are going to be
        length = ordered[int(place * len(ordered))]
        if len(chosen) >= threads and sum(chosen) + length > tokens:
            break
        chosen.append(length)
    ids = torch.arange(sum(chosen)) * 7919 % vocab_size
    return ids, Packing.of(chosen)


def timed(
    runners: Sequence[Runner],
    ids: Tensor,
    packing: Packing,
    *,
    seconds: float = _SECONDS,
    enough: Callable[[Rounds], bool] = lambda found: False,
) -> Rounds:
    """Seconds of every runner in every round; they take turns, so that whatever else runs disturbs all alike.

    Rounds go on until `seconds` have passed, or until `enough` is true of them.
    """
    device = runners[0].device
    ids, packing = ids.to(device), Packing.of(list(packing.lengths), device=device)
    batches = _IN_FLIGHT if device.type == "cuda" else 1

    def once(runner: Runner) -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for _ in range(batches):
                runner(ids, None, None, packing, all_states=False)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / batches

    for runner in runners:
        once(runner)
    found: Rounds = []
    began = time.perf_counter()
    while len(found) < _ROUNDS or (time.perf_counter() - began < seconds and len(found) < 200 and not enough(found)):
        found.append([once(runner) for runner in runners])
    return found


def speedup(original: Runner, smaller: Runner, ids: Tensor, packing: Packing) -> float:
    """How many times as fast: the median over rounds. In a round both run next to each other, disturbed alike."""
    return median(_ratios(timed([original, smaller], ids, packing, seconds=_LONGEST, enough=_is_known)))


def _ratios(found: Rounds) -> list[float]:
    return sorted(slow / fast for slow, fast in found)


def _is_known(found: Rounds) -> bool:
    """Whether the median of the ratios is known: with a probability of 95 % it is between these two of them."""
    ratios, reach = _ratios(found), math.isqrt(len(found))
    low, high = ratios[max(0, (len(ratios) - 1) // 2 - reach)], ratios[min(len(ratios) - 1, len(ratios) // 2 + reach)]
    return high - low <= 2 * _SURE * median(ratios)


@dataclass(frozen=True)
class CostTable:
    """Seconds of a layer's block with so many units, and of the rest of the model."""

    heads: tuple[tuple[int, float], ...]
    neurons: tuple[tuple[int, float], ...]
    engine: str

    def price(self, block: str, number: int) -> float:
        table = self.heads if block == "attention" else self.neurons
        sizes, seconds = zip(*table, strict=True)
        return float(np.interp(number, sizes, seconds))


def cost_table(
    config: BertConfig, lengths: Sequence[int], on: str, *, say: Callable[[str], None] = lambda line: None
) -> CostTable:
    """The table for models of this width, from the disk where it was measured before."""
    place, key = _kept_at(config, lengths, on)
    if (kept := _read(place, key)) is not None:
        say(f"the times of parts are known from before ({place})")
        return kept
    say("measuring what heads and neurons cost on this engine …")
    heads = sorted({*range(0, config.num_attention_heads + 1, max(1, config.num_attention_heads // 6)),
                    1, config.num_attention_heads})  # fmt: skip
    neurons = sorted({16 * round(config.intermediate_size * i / 128) for i in range(9)} | {config.intermediate_size})
    shapes = [(0, 0), *((h, 0) for h in heads[1:]), *((0, n) for n in neurons[1:])]
    runners = [runner_of(_model(config, *shape), on) for shape in shapes]
    ids, packing = rows_like(lengths, on, 1000)
    best = np.asarray(timed(runners, ids, packing)).min(axis=0)  # the least disturbed
    seconds = dict(zip(shapes, (best - best[0]) / _LAYERS, strict=True))
    table = CostTable(
        _rising([(h, seconds[h, 0]) for h in heads]),
        _rising([(n, seconds[0, n]) for n in neurons]),
        runners[0].describe(),
    )
    _write(place, key, table)
    return table


def _model(config: BertConfig, heads: int, neurons: int) -> BertModel:
    made = config.replace(
        num_hidden_layers=_LAYERS,
        vocab_size=1000,
        pad_token_id=0,
        pruned_heads={layer: list(range(heads, config.num_attention_heads)) for layer in range(_LAYERS)},
        intermediate_sizes=[neurons] * _LAYERS,
    )
    kind = related(BertModel, config.model_type)
    return kind(made, add_pooling_layer=False).eval()  # type: ignore[return-value]  # what BertModel is to a relative


def _rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """More units never cost less: where they seem to, that was the measurement."""
    seconds = np.maximum.accumulate([max(0.0, value) for _, value in points])
    return tuple((size, float(value)) for (size, _), value in zip(points, seconds, strict=True))


def _kept_at(config: BertConfig, lengths: Sequence[int], on: str) -> tuple[Path, str]:
    quarters = [int(x) for x in np.quantile(lengths or [1], [0, 0.25, 0.5, 0.75, 1])]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = torch.cuda.get_device_name() if on == "cuda" and torch.cuda.is_available() else ""
    key = json.dumps([
        _VERSION, on, gpu, platform.node(), platform.machine(), cores, torch.get_num_threads(), torch.__version__,
        config.hidden_size, config.num_attention_heads, config.intermediate_size, str(config.hidden_act), quarters,
    ])  # fmt: skip
    return cache_folder("cost") / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json", key


def _read(place: Path, key: str) -> CostTable | None:
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        if values["key"] != key:
            return None
        heads, neurons = (
            tuple((int(size), float(seconds)) for size, seconds in values["table"][name])
            for name in ("heads", "neurons")
        )
        return CostTable(heads, neurons, str(values["table"]["engine"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(place: Path, key: str, table: CostTable) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, json.dumps({"key": key, "table": asdict(table)}, indent=1) + "\n")
    except OSError:
        return  # it is measured again next time
