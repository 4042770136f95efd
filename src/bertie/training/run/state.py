"""What of a run goes into its checkpoints, and how it comes back out.

Tensors are saved whole, by name, whether parameters are split over processes or not; every process helps to put them
together and the main one writes. Loading is the reverse: each process reads the file and keeps its part.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bertie.checkpoint.save import save_tensors
from bertie.errors import CheckpointError, ConfigError
from bertie.training.contract import Json
from bertie.training.run.checkpoint import (
    RngState,
    RunState,
    Saved,
    how_to_go_on,
    rng_state,
    seed_everything,
    set_rng_state,
)
from bertie.training.settings import refuse_changes

if TYPE_CHECKING:
    from bertie.training.run.loop import Training

MOST_SKIPPED = 10  # steps in a row without a finite gradient that end a run


def _collected(training: Training, tensors: Iterator[tuple[str, Tensor, Tensor]]) -> dict[str, Tensor]:
    """Whole tensors by name, on the main process; the others help to put them together and keep nothing."""
    found: dict[str, Tensor] = {}
    for name, tensor, like in tensors:
        whole = training.world.whole(tensor.detach(), like.detach())
        if training.world.is_main:
            found[name] = whole.cpu() if training.world.shard else whole
    return found


def _model_tensors(training: Training) -> dict[str, Tensor]:
    return _collected(training, ((name, p, p) for name, p in training.model.named_parameters()))


def _optimizer_tensors(training: Training) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, state, parameter it belongs to)."""
    for name, kind, tensor in training.optimizer.tensors():
        yield f"{name}.{kind}", tensor, training.parameters[name]


def save_run(training: Training) -> None:
    """A checkpoint of the run at this step, once."""
    if training.saved_step == training.step:
        return
    files = {
        "model": _model_tensors(training),
        "optimizer": _collected(training, _optimizer_tensors(training)),
    }
    if training.average is not None:
        averages = training.average.tensors.items()
        files["ema"] = _collected(training, ((name, tensor, training.parameters[name]) for name, tensor in averages))
    rng = _all_rng(training)
    place = training.order.place(min(training.step, training.order.num_steps - 1))
    state: RunState = {
        "step": training.step,
        "num_steps": training.order.num_steps,
        "data": {"seed": training.settings.seed, "epoch": place.epoch, "position": place.start},
        "objective": training.objective.name,
        "fingerprint": training.fingerprint,
        "settings": training.settings.deciding(),
        "deciding": dict(training.objective.deciding),
        "options": training.options,
        "optimizer_steps": training.optimizer.steps(),
        "best": training.best,
        "without_better": training.without_better,
        "skipped": int(training.num_bad),
        "skipped_in_row": int(training.in_row),
        "halvings": training.halvings,
        "pieces": training.batches.pieces,
        "processes": training.world.size,
        "seconds": training.seconds,
        "tokens": training.tokens,
        "flops": training.flops,
    }
    if training.folder is not None:
        training.folder.save(training.step, files, state, rng)
        remove_old_bests(training)
    training.saved_step = training.step


def _all_rng(training: Training) -> list[RngState]:
    text = json.dumps(rng_state(training.device)).encode()
    room = torch.full((1 << 16,), 32, dtype=torch.uint8)  # spaces; JSON does not mind them
    room[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return [json.loads(bytes(part.numpy())) for part in training.world.gathered(room)]


def resume_run(training: Training) -> None:
    """Put a run where its newest whole checkpoint left it."""
    saved = None
    if training.folder is not None:
        saved = training.folder.latest()
    where = training.world.main_says(str(saved.folder) if saved is not None else "")
    if not where:  # it was killed before its first save
        return
    if saved is None:
        saved = Saved.at(Path(where))
    state = saved.state
    refuse_changes("settings", state["settings"], training.settings.deciding())
    if state["fingerprint"] != training.fingerprint or state["objective"] != training.objective.name:
        raise ConfigError(
            "The run was started with other data, or with other settings of it.",
            "Resume with the same files and settings, or start a new run in another folder.",
        )
    _refuse_another_teacher(state.get("deciding"), dict(training.objective.deciding))
    refuse_changes("options", state.get("options", {}), training.options)
    parameters = dict(training.model.named_parameters())
    _fill(training, parameters, saved.tensors("model"), parameters)
    states = list(_optimizer_tensors(training))
    owners = {name: parameter for name, _, parameter in states}
    _fill(training, {name: tensor for name, tensor, _ in states}, saved.tensors("optimizer"), owners)
    if training.average is not None:
        _fill(training, training.average.tensors, saved.tensors("ema"), training.parameters)
    training.optimizer.load_steps(state["optimizer_steps"])
    training.step, training.best, training.without_better = state["step"], state["best"], state["without_better"]
    training.skipped, training.halvings = state["skipped"], state["halvings"]
    training.batches.pieces = state["pieces"]
    training.num_bad.fill_(state["skipped"])
    training.in_row.fill_(0 if state["skipped_in_row"] >= MOST_SKIPPED else state["skipped_in_row"])
    training.seconds, training.tokens, training.flops = state["seconds"], state["tokens"], state["flops"]
    training.saved_step = training.step
    _refuse_without_best(training)
    remove_old_bests(training)
    if len(saved.rng) == training.world.size:
        set_rng_state(saved.rng[training.world.rank], training.device)
    else:  # another number of processes: no generator can continue
        seed_everything(training.settings.seed + 1000003 * training.world.rank + 7919 * training.step)


def best_folder(training: Training) -> Path:
    """Where the best model so far is, or without dev data the last one, until the run is over.

    It is named by its step: a run that was killed continues from its last checkpoint, whose best may be an older one.
    """
    step = training.step if training.best["step"] is None else training.best["step"]
    return training.output / "best" / f"step-{step:08d}"


def remove_old_bests(training: Training) -> None:
    """Remove the models that are neither the best now nor that of a checkpoint."""
    folder = training.output / "best"
    if training.folder is None or not folder.is_dir():
        return
    kept = {f"step-{step:08d}" for step in training.folder.best_steps()} | {best_folder(training).name}
    for path in folder.iterdir():
        if path.name not in kept:  # also what a killed save left
            shutil.rmtree(path, ignore_errors=True)


def _refuse_without_best(training: Training) -> None:
    """A run that is over has its best model in its own folder; any other has it in `best`."""
    folder = best_folder(training)
    is_there = training.best["step"] is None or folder.is_dir() or (training.output / "config.json").exists()
    if not training.world.main_says(is_there):
        raise CheckpointError(
            f"The run's best model so far, that of step {training.best['step']}, is missing: {folder}.",
            "Bring it back from a copy, or start a new run in another folder.",
        )


def _refuse_another_teacher(before: Json | None, now: Json) -> None:
    """`before` is None in checkpoints that do not know."""
    if before is None or before == now:
        return
    remedy = "Resume with the same teacher, weights and temperature, or start a new run in another folder."
    if not before or not now:
        with_, without = ("with", "without") if before else ("without", "with")
        raise ConfigError(f"The run was started {with_} a teacher; now it is {without} one.", remedy)
    if before.get("teacher") != now.get("teacher"):
        raise ConfigError("The run was started with another teacher: its configuration or weights differ.", remedy)
    name = next(name for name in (*before, *now) if before.get(name) != now.get(name))
    raise ConfigError(f"The run was started with {name} {before.get(name)}; now it is {now.get(name)}.", remedy)


def _fill(
    training: Training, parts: Mapping[str, Tensor], wholes: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    if set(parts) != set(wholes):
        odd = sorted(set(parts) ^ set(wholes))
        raise ConfigError(
            f"The checkpoint does not belong to this model: {', '.join(odd[:3])} is only in one of them.",
            "Resume with the model the run was started with.",
        )
    with torch.no_grad():
        for name, part in parts.items():
            if wholes[name].shape != like[name].shape:
                raise ConfigError(
                    f"The checkpoint does not belong to this model: its {name} is {list(wholes[name].shape)}, the "
                    f"model's is {list(like[name].shape)}.",
                    "Resume with the model the run was started with.",
                )
            training.world.fill(part, wholes[name], like[name])


def save_model(training: Training, folder: Path) -> None:
    """The model as anyone can load it, with its tokenizer."""
    tensors = _model_tensors(training)
    if not training.world.is_main:
        return
    remedy = how_to_go_on(training.output).replace("before it", "before")
    config = training.model.config.to_diff_dict() | {"architectures": [training.architecture]}
    try:
        save_tensors(tensors, folder, config | {"dtype": "float32", "torch_dtype": "float32"})
        training.objective.save_extras(folder)
    except CheckpointError as error:
        raise CheckpointError(error.cause, remedy, resume=True) from error
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror or error}.", remedy, resume=True) from error
