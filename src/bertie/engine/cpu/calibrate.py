"""Fitting int8 to a model: which channels to shrink before rounding, and which products to leave in float32.

Eight bits hold 256 steps, and one large channel makes everybody's steps coarse. So each input channel j is divided by
a number s_j and its weights multiplied by it, which changes nothing before rounding and balances the two after it:
s_j = √(largest activation / largest weight) (Xiao et al. 2022, "SmoothQuant", https://arxiv.org/abs/2211.10438).
Activations are then rounded per token between their smallest and largest value, weights per output channel.

Then the result is measured: texts the fit has not seen, against float32. If the mean cosine is below what was asked
for, each product's own damage is measured and the worst return to float32, as few as will do. What was decided is kept
on disk, so that it is decided once per model.

A few channels are large for some kinds of text alone, so the fit looks at unusual ones too (calibration.py): scripts,
digits, code, ids from all over the vocabulary. They are judged by themselves, and may lose twice as much; what they do
lose is in the report, and said when it is a lot. While answering nothing is ever clipped: steps are as wide as each
token's own values need. But a token whose values are spread more widely than any the fit has seen, since channels were
balanced for others, has coarser steps. So the widest of the fit are kept, and texts beyond twice that are counted and
said (`CpuRunner.outside`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertie.engine.calibration import PRODUCTS, Key, Rows, inputs_watched, mean_vectors, packed, products_of
from bertie.engine.cpu.runner import CpuRunner
from bertie.files import cache_folder
from bertie.model import BertModel
from bertie.ops.packing import Packing

Cosines = tuple[float, float, float]

logger = logging.getLogger("bertie.engine")
_LARGE = 30_000_000  # parameters in the layers: fitting takes longer than two seconds, so it is said
FIT_FOLDER = "int8"  # beside a model's weights
_VERSION = 3  # of the fit: another rule makes old files worthless
_TOKENS = 1500  # looked at on either side
_LOW = 0.99  # a cosine below which a text's vector is another one for some purposes


@dataclass(frozen=True)
class Int8Report:
    """What int8 costs this model, on texts it was not fitted on."""

    cosine_mean: float  # of mean-pooled vectors with float32's
    cosine_min: float
    token_cosine_mean: float  # of single tokens' vectors
    texts: int
    unusual_mean: float  # the cosine of texts unlike the calibration (1 where there were none)
    unusual_min: float
    kept_float32: tuple[str, ...]  # "layer 3 down"
    seconds: float

    def __str__(self) -> str:
        kept = f"; in float32 stay {', '.join(self.kept_float32)}" if self.kept_float32 else ""
        return (
            f"cosine to float32: mean {self.cosine_mean:.5f}, min {self.cosine_min:.5f} over {self.texts} texts; on "
            f"unusual ones mean {self.unusual_mean:.5f}, min {self.unusual_min:.5f}{kept}"
        )


Fit = tuple[dict[Key, Tensor], Tensor, Int8Report]  # smoothing, the widest rows of each product, what it cost


def int8_runner(
    model: BertModel, rows: Rows, unusual: Rows = (), *, accuracy: float = 0.999, threads: int | None = None
) -> CpuRunner:
    """The model in int8, with `runner.report`."""
    CpuRunner.check(model)
    place = _cache_file(model, [rows, unusual], accuracy)
    # A folder may bring its fit, under the same name: the name says which weights and texts it is of.
    brought = Path(model.config.name_or_path or os.devnull) / FIT_FOLDER / place.name
    kept = _read_cache(place) or _read_cache(brought)
    if kept is None:
        kept = _fit(model, rows, unusual, accuracy, threads)
        _write_cache(place, *kept)
    smoothing, widest, report = kept
    runner = CpuRunner(model, smoothing, threads=threads)
    runner.report = report
    runner.set_calibrated(widest)
    logger.info("int8: %s", report)
    if report.unusual_min < _LOW:
        logger.warning(
            "int8 costs this model more on texts unlike English prose: the lowest cosine to float32 was %.3f. "
            "Give compile() texts of your own as calibration, or use float32.",
            report.unusual_min,
        )
    return runner


def save_fit(
    model: BertModel, rows: Rows, unusual: Rows, folder: Path, *, accuracy: float = 0.999, threads: int | None = None
) -> Int8Report:
    """Fit int8 to a model and keep the fit in the folder that the model is saved in: nobody fits it again."""
    runner = int8_runner(model, rows, unusual, accuracy=accuracy, threads=threads)
    assert runner.report is not None
    name = _cache_file(model, [rows, unusual], accuracy).name
    _write_cache(folder / FIT_FOLDER / name, runner.smoothing, runner.calibrated, runner.report)
    return runner.report


def _fit(model: BertModel, rows: Rows, unusual: Rows, accuracy: float, threads: int | None) -> Fit:
    started = time.perf_counter()
    if sum(p.numel() for p in model.encoder.parameters()) > _LARGE:
        logger.warning("Fitting int8 to this model takes some seconds; the result is kept for next time.")
    usual = _limited(rows[1::2] or rows)
    unseen = [*usual, *_limited(unusual[1::2])]
    fitted = [*_limited(rows[::2]), *_limited(unusual[::2])]
    smoothing = smooth_channels(model, fitted)
    wanted = _states(CpuRunner(model, threads=threads), unseen)

    def measure(smoothing: dict[Key, Tensor]) -> tuple[Cosines, Cosines]:
        return _compare_parts(_states(CpuRunner(model, smoothing, threads=threads), unseen), wanted, unseen, len(usual))

    def will_do(measured: tuple[Cosines, Cosines]) -> bool:
        return measured[0][0] >= accuracy and measured[1][0] >= 1 - 2 * (1 - accuracy)

    measured = measure(smoothing)
    kept: list[Key] = []
    if not will_do(measured):
        damage = _damage(model, smoothing, unseen, wanted, threads)
        order = sorted(damage, key=lambda key: -damage[key])
        # The fewest that will do: more in float32 is never worse, so halving finds it.
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            fewer = {key: s for key, s in smoothing.items() if key not in order[:middle]}
            if will_do(measure(fewer)):
                high = middle
            else:
                low = middle
        kept = order[:high]
        smoothing = {key: s for key, s in smoothing.items() if key not in kept}
        measured = measure(smoothing)
    runner = CpuRunner(model, smoothing, threads=threads)
    _states(runner, [*fitted, *unseen])
    return (
        smoothing,
        runner.widest,
        Int8Report(
            *measured[0],
            texts=len(usual),
            unusual_mean=measured[1][0],
            unusual_min=measured[1][1],
            kept_float32=tuple(f"layer {layer} {part}" for layer, part in sorted(kept)),
            seconds=round(time.perf_counter() - started, 3),
        ),
    )


def smooth_channels(model: BertModel, rows: Rows) -> dict[Key, Tensor]:
    """What each input channel of each product is divided by: √(largest activation / largest weight)."""
    smoothing = {}
    largest: dict[Key, Tensor] = {}

    def look(key: Key, x: Tensor) -> None:
        found = x.float().abs().flatten(0, -2).amax(0)
        largest[key] = torch.maximum(largest[key], found) if key in largest else found

    with inputs_watched(model, look), torch.inference_mode():
        ids, packing = packed(rows)
        model(ids, cu_seqlens=packing.cu_seqlens)
        for number, layer in enumerate(model.encoder.layer):
            for part, linears in products_of(layer).items():
                weight = torch.stack([linear.weight.float().abs().amax(0) for linear in linears]).amax(0)
                found = (largest[number, part].clamp(min=1e-5) / weight.clamp(min=1e-5)).sqrt()
                smoothing[number, part] = (found / found.mean()).clamp(min=1e-4)
    return smoothing


def _damage(
    model: BertModel, smoothing: dict[Key, Tensor], rows: Rows, wanted: Tensor, threads: int | None
) -> dict[Key, float]:
    """How far each product alone in int8 moves the answer."""
    some = rows[: max(4, len(rows) // 2)]
    reference = wanted[: sum(map(len, some))]
    runner = CpuRunner(model, threads=threads)
    damage = {}
    for key, smooth in smoothing.items():
        runner.set_product(model, key, smooth)
        damage[key] = 1 - _compare(_states(runner, some), reference, some)[0]
        runner.set_product(model, key, None)
    return damage


def _states(runner: CpuRunner, rows: Rows) -> Tensor:
    ids, packing = packed(rows)
    return runner(ids, None, None, packing, all_states=False)[0]


def _compare_parts(found: Tensor, wanted: Tensor, rows: Rows, num_usual: int) -> tuple[Cosines, Cosines]:
    """Of the usual texts, which come first, and of the unusual ones."""
    if len(rows) == num_usual:
        return _compare(found, wanted, rows), (1.0, 1.0, 1.0)
    tokens = sum(map(len, rows[:num_usual]))
    usual = _compare(found[:tokens], wanted[:tokens], rows[:num_usual])
    return usual, _compare(found[tokens:], wanted[tokens:], rows[num_usual:])


def _compare(found: Tensor, wanted: Tensor, rows: Rows) -> Cosines:
    """(mean, min) cosine of the texts' mean vectors, and the mean over tokens."""
    packing = Packing.of([len(row) for row in rows])
    cosines = F.cosine_similarity(mean_vectors(found, packing), mean_vectors(wanted, packing))
    tokens = F.cosine_similarity(found, wanted)
    return float(cosines.mean()), float(cosines.min()), float(tokens.mean())


def _limited(rows: Rows) -> Rows:
    chosen: list[Sequence[int]] = []
    total = 0
    for row in rows:
        if len(row) and (total + len(row) <= _TOKENS or not chosen):
            chosen.append(row)
            total += len(row)
    return chosen


# -- what was decided, kept --------------------------------------------------------------------------------------------


def _cache_file(model: BertModel, looked_at: Sequence[Rows], accuracy: float) -> Path:
    digest = hashlib.sha256()
    ids = [[list(map(int, row)) for row in rows] for rows in looked_at]
    digest.update(json.dumps([_VERSION, accuracy, ids]).encode())
    for name, parameter in chain(model.embeddings.named_parameters(), model.encoder.named_parameters()):
        digest.update(f"{name}{list(parameter.shape)}".encode())
        digest.update(parameter.detach().float().contiguous().numpy().data)
    return cache_folder("int8") / f"{digest.hexdigest()[:40]}.safetensors"


def _read_cache(place: Path) -> Fit | None:
    try:
        with safe_open(place, "pt") as file:
            report = json.loads(file.metadata()["report"])
            report["kept_float32"] = tuple(report["kept_float32"])
            smoothing = {}
            for name in file.keys():  # noqa: SIM118  # not a dict
                number, _, part = name.partition(".")
                if part in PRODUCTS:
                    smoothing[int(number), part] = file.get_tensor(name)
            return smoothing, file.get_tensor("widest"), Int8Report(**report)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def _write_cache(place: Path, smoothing: dict[Key, Tensor], widest: Tensor, report: Int8Report) -> None:
    tensors = {f"{number}.{part}": tensor.contiguous() for (number, part), tensor in smoothing.items()}
    tensors["widest"] = widest
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(f".{os.getpid()}")
        save_file(tensors, unfinished, {"report": json.dumps(asdict(report))})
        os.replace(unfinished, place)
    except OSError as error:
        logger.debug("the int8 fit could not be kept at %s: %s", place, error)
