"""The checkpoints of a run: everything that is needed to go on as if nothing had happened.

    RUN/checkpoints/step-00000120/
      manifest.json            every file's size and sha256; written last
      state.json               step, place in the data, settings, best result, optimizer's counts
      rng.json                 random number generators (Python, NumPy, torch, CUDA) of every process
      model.safetensors        parameters by name, whole, however many processes there were
      optimizer.safetensors    exp_avg and exp_avg_sq of each
      ema.safetensors          averaged weights, where they are kept

A checkpoint is written beside and renamed into being, so a folder called step-… is whole unless something damaged it
later; that is what the hashes are for, and then the one before it is used. No file holds code.

One run folder has one writer: `RunFolder` holds a lock on it that ends with the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import shutil
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

from bertie.checkpoint.safetensors import SafeFile, write_safetensors
from bertie.errors import CheckpointError, CheckpointNotFound, ConfigError, CorruptCheckpoint
from bertie.files import Busy, Lock, new_files, sha256

logger = logging.getLogger("bertie.training")

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
Tensors = Mapping[str, torch.Tensor]


class Best(TypedDict):
    """The best evaluation so far; no step without one."""

    step: int | None
    metrics: dict[str, float]


class RunState(TypedDict):
    """state.json. Older checkpoints have no `deciding` and no `options`."""

    step: int
    num_steps: int
    data: dict[str, int]
    objective: str
    fingerprint: str
    settings: Mapping[str, object]
    deciding: NotRequired[Mapping[str, object]]
    options: NotRequired[Mapping[str, object]]
    optimizer_steps: dict[str, float]
    best: Best
    without_better: int
    skipped: int
    skipped_in_row: int
    halvings: int
    pieces: int | None
    processes: int
    seconds: float
    tokens: int
    flops: float


class RngState(TypedDict):
    """The generators of one process, as JSON has them; torch's and CUDA's bytes in hexadecimal."""

    python: list[Any]
    numpy: list[Any]
    torch: str
    cuda: NotRequired[str]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and found whole."""

    folder: Path
    state: RunState
    rng: list[RngState]

    @classmethod
    def at(cls, folder: Path) -> Saved:
        return cls(folder, _json(folder / "state.json"), _json(folder / "rng.json"))

    def tensors(self, kind: str) -> dict[str, torch.Tensor]:
        """`model`, `optimizer` or `ema`, as views of the file; empty where there is none."""
        path = self.folder / f"{kind}.safetensors"
        if not path.exists():
            return {}
        file = SafeFile(path)
        return {name: file.tensor(name) for name in file.entries}


class RunFolder(contextlib.AbstractContextManager["RunFolder"]):
    """A run's folder, held by this process alone while it is open."""

    def __init__(self, path: str | os.PathLike[str], *, keep: int = 2) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.keep = keep
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path)
        except CheckpointError:
            raise
        except OSError as error:
            raise _cannot_write(self.path, error.strerror or str(error)) from error
        for path in self.checkpoints.glob(".*"):  # what killed saves left: the lock says that nobody is saving now
            shutil.rmtree(path, ignore_errors=True)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._lock.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def save(self, step: int, files: Mapping[str, Tensors], state: RunState, rng: list[RngState]) -> Path:
        """Write a checkpoint and then delete the oldest. When it fails, those before it are as they were."""
        target = self.checkpoints / f"step-{step:08d}"
        if target.exists():
            if _damage(target) is None:
                return target
            _remove(target)
        try:
            with new_files(target, obsolete=lambda name: True) as place:
                _write(place, files, state, rng)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint of step {step} could not be saved in {self.path}: {error.strerror or error}.",
                how_to_go_on(self.path),
                resume=True,
            ) from error
        for folder in self.found()[self.keep :]:
            _remove(folder)
        return target

    # -- reading -----------------------------------------------------------------------------------------------------

    def found(self) -> list[Path]:
        """The checkpoints there are, newest first; not looked into."""
        folders = [path for path in self.checkpoints.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)

    def best_steps(self) -> set[int]:
        """The steps whose models these checkpoints call the best. A checkpoint that cannot be read has none."""
        steps = set()
        for folder in self.found():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                steps.add(_json(folder / "state.json")["best"]["step"])
        return steps - {None}

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole; one that is damaged is skipped with a warning. None: there is none.

        All of them damaged is an error: starting again silently would be worse.
        """
        damaged: list[str] = []
        for folder in self.found():
            damage = _damage(folder)
            if damage is None:
                return Saved.at(folder)
            logger.warning("%s is damaged (%s); using the one before it", folder, damage)
            damaged.append(f"{folder.name}: {damage}")
        if damaged:
            raise CorruptCheckpoint(
                f"No checkpoint of the run {self.path} is whole ({'; '.join(damaged)}).",
                "Start again in another folder, or bring the files back from a copy.",
            )
        return None


def _write(place: Path, files: Mapping[str, Tensors], state: RunState, rng: list[RngState]) -> None:
    def one(kind: str) -> tuple[str, dict[str, object]]:
        path = place / f"{kind}.safetensors"
        write_safetensors(path, files[kind])
        return path.name, _seal(path)

    # Files are written and hashed beside each other; both let other threads run.
    with ThreadPoolExecutor(max_workers=4) as pool:
        seals = dict(pool.map(one, [kind for kind in files if files[kind]]))
    for name, value in (("state.json", state), ("rng.json", rng)):
        (place / name).write_text(json.dumps(value, allow_nan=True) + "\n", encoding="utf-8")
        seals[name] = _seal(place / name)
    text = json.dumps({"format": FORMAT, "files": seals}, indent=1, sort_keys=True)
    (place / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _seal(path: Path) -> dict[str, object]:
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def _damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None when every file is as it was written."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files = manifest["files"]
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this version reads {FORMAT}"
        if not {"state.json", "rng.json", "model.safetensors"} <= set(files):
            return "its manifest names too few files"
        for name, seal in files.items():
            if not re.fullmatch(r"[\w.]+", name):
                return f"its manifest names {name!r}"
            if _seal(folder / name) != seal:
                return f"{name} is not as it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename or '').name or 'a file'} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"
    return None


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _remove(folder: Path) -> None:
    """Out of sight in one step, then away: a kill in between leaves no half checkpoint under its name."""
    aside = folder.with_name(f".old-{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _lock(folder: Path) -> Lock:
    """A lock on the run that ends with this process."""
    try:
        return Lock(folder, ".lock")
    except Busy as busy:
        raise CheckpointError(
            f"Another process ({busy.holder or 'unknown'}) is training in {folder}.",
            "Wait for it, stop it, or choose another folder.",
        ) from None


def newest_step(path: str | os.PathLike[str]) -> int | None:
    """The step of a run's newest checkpoint, not looked into."""
    folder = Path(path) / "checkpoints"
    names = folder.iterdir() if folder.is_dir() else ()
    steps = [int(found[1]) for entry in names if (found := _NAME.fullmatch(entry.name))]
    return max(steps, default=None)


def how_to_go_on(path: str | os.PathLike[str]) -> str:
    """What to do when something of a run could not be written."""
    step = newest_step(path)
    if step is None:
        return "Nothing was saved before it. Make room (or allow writing), then start the run again."
    kept = f"What was saved before it, at step {step}, is whole."
    return f"{kept} Make room (or allow writing), then continue with {{resume}}."


def check_output(path: str | os.PathLike[str], *, resume: bool) -> None:
    """Refuse a folder that a run cannot have, before anything is done for it."""
    if os.environ.get("RANK", "0") != "0":
        return  # the first process alone writes there, and another host may not see it
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            "{output:is} it is a file.", "Name a folder; it is made where there is none.", output=str(folder)
        )
    begun = newest_step(folder) is not None
    if resume and not (folder / ".lock").exists():  # it is there even if the run was killed before its first save
        raise CheckpointNotFound(
            f"There is no run in {folder} to resume.", "Leave {resume} out to start the run.", resume=True
        )
    if not resume and begun:
        raise ConfigError(
            f"There is a run in {folder} already.",
            "Continue it with {resume}, or choose another folder.",
            resume=True,
        )
    if not begun:
        there = next((name for name in _MODEL_FILES if (folder / name).exists()), None)
        if there is not None and resume:
            raise ConfigError(
                f"The run in {folder} is over, and its checkpoints are gone.",
                "Its model is there; choose another folder.",
            )
        if there is not None:
            raise ConfigError(
                f"There is a model in {folder} already: {there}.",
                "Choose another folder, so that it is not overwritten.",
            )
    place = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
    if not place.is_dir():
        raise _cannot_write(folder, f"{place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _cannot_write(folder, "Permission denied" if place == folder else f"{place}: permission denied")


# Of a model folder's files those that a run would put its own in the place of.
_MODEL_FILES = ("config.json", "model.safetensors", "pytorch_model.bin", "vocab.txt", "tokenizer.json", "report.md")


def _cannot_write(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"The run folder {folder} cannot be written to: {why}.",
        "Choose another folder, or give yourself the right to write there.",
    )


# -- random numbers --------------------------------------------------------------------------------------------------


def rng_state(device: torch.device) -> RngState:
    """The state of every random number generator a run can draw from, as JSON has it."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    state: RngState = {
        "python": [version, list(words), gauss],
        "numpy": [
            str(numpy["bit_generator"]),
            numpy["state"]["key"].tolist(),
            int(numpy["state"]["pos"]),
            int(numpy["has_gauss"]),
            float(numpy["gauss"]),
        ],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return state


def set_rng_state(state: RngState, device: torch.device) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_bytes(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_bytes(state["cuda"]), device)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA's too


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(bytes.fromhex(text)), dtype=torch.uint8)
