"""An open checkpoint: its configuration's values and its tensors by name.

Nothing large is read: safetensors and torch's files are mapped, and only a TensorFlow checkpoint, which has to be
turned round, is read when its tensors are first asked for. find_checkpoint.py finds the files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bertie.checkpoint.find_checkpoint import Located, read_config, read_located
from bertie.checkpoint.report import listed
from bertie.checkpoint.safetensors import SafeFile
from bertie.checkpoint.torch_bin import BinFile
from bertie.checkpoint.weight_files import WeightFiles, read_index
from bertie.errors import CorruptCheckpoint

_MIXED = "The files belong to different checkpoints: fetch all of them again."


@dataclass(frozen=True)
class TensorInfo:
    dtype: torch.dtype
    shape: tuple[int, ...]


class Tensors(ABC):
    """A checkpoint's tensors: what they are without reading them, and one by one."""

    info: Mapping[str, TensorInfo]
    ignored: list[str]

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """The tensor on the CPU. It may be a view of the file."""

    def release(self, name: str) -> None:  # noqa: B027  # most have nothing to let go
        """The tensor was copied; its own memory is not needed."""


class FileTensors(Tensors):
    """Tensors of one file or several, of a format whose files are mapped: safetensors or torch's."""

    def __init__(self, weights: WeightFiles) -> None:
        kind = SafeFile if weights.format == "safetensors" else BinFile
        self._where: dict[str, SafeFile | BinFile] = {}
        for file in [kind(path) for path in weights.files]:
            twice = self._where.keys() & file.entries.keys()
            if twice:
                names, other = sorted(map(repr, twice)), self._where[min(twice)]
                raise CorruptCheckpoint(f"{file.path} and {other.path} both hold {listed(names)}.", _MIXED)
            self._where.update(dict.fromkeys(file.entries, file))
        entries = {name: file.entries[name] for name, file in self._where.items()}
        self.info = {name: TensorInfo(getattr(torch, entry.dtype), entry.shape) for name, entry in entries.items()}
        self.ignored = []

    def read(self, name: str) -> torch.Tensor:
        return self._where[name].tensor(name).contiguous()

    def release(self, name: str) -> None:
        self._where[name].release(name)


class TensorFlowTensors(Tensors):
    def __init__(self, prefix: Path, config: Mapping[str, object]) -> None:
        from bertie.checkpoint.tensorflow import load_tf_checkpoint

        self._tensors, self.ignored = load_tf_checkpoint(prefix, config)
        self.info = {name: TensorInfo(t.dtype, tuple(t.shape)) for name, t in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach().contiguous()

    def release(self, name: str) -> None:
        self._tensors.pop(name, None)


class GivenTensors(Tensors):
    """A state dict from memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.info = {name: TensorInfo(t.dtype, tuple(t.shape)) for name, t in self._tensors.items()}
        self.ignored = []

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach().clone()  # two models never share their weights


@dataclass
class Checkpoint:
    """An open checkpoint. `config` holds the file's values as they are; empty when there is no configuration."""

    source: str
    folder: Path
    config: dict[str, Any]
    config_file: Path | None
    weights: WeightFiles
    head: str | None = field(default=None)  # the class that will be filled; names TensorFlow's nameless heads
    state_dict: Mapping[str, torch.Tensor] | None = field(default=None)  # the tensors, when they come from memory

    @property
    def format(self) -> str:
        return self.weights.format

    @cached_property
    def tensors(self) -> Tensors:
        if self.state_dict is not None:
            return GivenTensors(self.state_dict)
        if self.format == "tensorflow":
            config = self.config if self.head is None else self.config | {"architectures": [self.head]}
            return TensorFlowTensors(self.weights.files[0], config)
        tensors = FileTensors(self.weights)
        if self.weights.index is not None:
            _check_against_index(self.weights.index, tensors)
        return tensors


def open_checkpoint(source: str | os.PathLike[str], **options: Any) -> Checkpoint:
    """Find and open what `source` names; the options are those of `find_checkpoint.read_located`."""

    def opened(found: Located) -> Checkpoint:
        checkpoint = Checkpoint(os.fspath(source), found.folder, found.config, found.config_file, found.weights)
        if checkpoint.format != "tensorflow":  # that is read whole, which can wait: nobody saves there
            _ = checkpoint.tensors
        return checkpoint

    return read_located(source, opened, **options)


def given_checkpoint(
    source: str | os.PathLike[str] | None, state_dict: Mapping[str, torch.Tensor], **options: Any
) -> Checkpoint:
    """A state dict from memory as a checkpoint; `source` names the configuration, if that is not given too."""
    config = {} if source is None else read_config(source, **options)
    name = "state_dict" if source is None else os.fspath(source)
    return Checkpoint(name, Path(), config, None, WeightFiles("state_dict", ()), state_dict=state_dict)


def _check_against_index(index: Path, tensors: Tensors) -> None:
    named = {name for names in read_index(index).values() for name in names}
    absent = sorted(named - tensors.info.keys())
    if absent:
        raise CorruptCheckpoint(
            f"{index} names {len(absent)} tensors that its files do not hold: {listed(absent)}.",
            _MIXED,
        )
