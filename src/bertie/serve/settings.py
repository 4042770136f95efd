"""What a server is told when it starts: where it listens, who may ask, and how much of everything."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertie.errors import InputError

Truncation = Literal["request", "error", "right", "left"]
TRUNCATIONS: tuple[Truncation, ...] = ("request", "error", "right", "left")
KEYS_VARIABLE, ADMIN_VARIABLE = "BERTIE_API_KEYS", "BERTIE_ADMIN_KEYS"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SHORTEST_KEY = 8
_FEW_CORES, _MOST_FRONTS = 4, 12


@dataclass(frozen=True)
class Limits:
    """What one request, one client and the whole queue may ask for."""

    body_bytes: int = 8 << 20
    batch: int = 1024  # texts of one request
    text_tokens: int = 16384  # of one text that is read in windows; a shorter model's own length where it is cut
    characters_per_token: int = 32  # a text of more characters than text_tokens × this is not even tokenized
    request_characters: int = 16 << 20  # of all texts of a request together
    request_tokens: int = 1 << 20  # that go through the model for one request, or are decoded
    answer_bytes: int = 32 << 20
    queue_requests: int = 512
    queue_tokens: int = 0  # 0: sixteen batches
    rate: float = 0.0  # requests per second and key (client address, where there are no keys); 0: no limit
    connections: int = 2048  # one more, and the client that has been silent longest is disconnected
    header_seconds: float = 10.0  # a sender that takes longer for its header, or its body, gets 408
    body_seconds: float = 20.0
    idle_seconds: float = 75.0  # between two requests of a connection
    write_seconds: float = 20.0  # for an answer to be read, and a second more for each 64 KiB of it
    received_bytes: int = 512 << 20  # of all bodies together, until their requests are answered
    made_bytes: int = 512 << 20  # of all answers together that are being made
    unsent_bytes: int = 256 << 20  # of all answers together that nobody has read yet
    request_seconds: float = 60.0  # in the queue, without any of the request being worked on


@dataclass(frozen=True)
class ModelChoice:
    """A model to serve: what it is called, where it is, and the tasks (none named: all that its head can do)."""

    name: str
    source: str
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """All of it. Keys are kept as digests only, so that none can be printed."""

    models: tuple[ModelChoice, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int = 0  # 0: what suits the device
    threads: int = 0  # of a CPU engine; 0: torch's own choice
    truncation: Truncation = "request"
    limits: Limits = field(default_factory=Limits)
    keys: frozenset[bytes] = frozenset()
    admin_keys: frozenset[bytes] = frozenset()
    allowed_hosts: tuple[str, ...] = ()
    drain_seconds: float = 25.0
    hung_seconds: float = 60.0  # without a sign of life, before a process of several is replaced; 0: never
    prune_folder: str | None = None  # where the page may write pruned checkpoints; None: nowhere
    log_level: str = "info"
    log_sample: float = 1.0  # the part of the answered requests that are logged; all others always are


def chosen_devices(given: str | None) -> list[str]:
    """The devices that engines run on, one each: those named, or all GPUs, or the CPU."""
    if given is not None and given != "cuda":
        named = [name.strip() for name in given.split(",") if name.strip()]
        if not named:
            raise InputError(f"--device {given!r} names no device.", "Write cpu, cuda, cuda:1 or several, with commas.")
        return named
    if not os.path.exists("/dev/nvidiactl"):  # torch is slow to import, and it is needed only here
        return ["cpu" if given is None else given]
    # So that the GPU is not used in this process, which is about to fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    found = torch.cuda.device_count()
    return [f"cuda:{number}" for number in range(found)] or ["cpu" if given is None else given]


def default_fronts(devices: list[str]) -> int:
    """Processes that speak HTTP: a GPU leaves the cores to them, a CPU's engine needs most of them itself."""
    cores = len(available_cores())
    if cores < _FEW_CORES or sys.platform != "linux":
        return 1
    return min(_MOST_FRONTS, cores - 3 if devices[0] != "cpu" else max(2, cores // 4))


def core_shares(count: int) -> list[list[int]]:
    """The cores of this machine in so many parts, as equal as can be; where there are too few, each has one."""
    cores = available_cores()
    if count >= len(cores):
        return [[cores[index % len(cores)]] for index in range(count)]
    return [
        [core for place, core in enumerate(cores) if place * count // len(cores) == index] for index in range(count)
    ]


def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_keys(variable: str, file: str | None) -> frozenset[bytes]:
    """Digests of the keys in an environment variable (with commas) and in a file (one per line, # for remarks)."""
    found = [key.strip() for key in os.environ.get(variable, "").split(",")]
    if file is not None:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"The key file {file} cannot be read: {reason}.", "Check its path and rights.") from None
        listed = [line.strip() for line in lines if not line.lstrip().startswith("#")]
        if not any(listed):
            raise InputError(f"The key file {file} holds no key.", "Write one key per line, or leave the option out.")
        found += listed
    keys = [key for key in found if key]
    short = sum(len(key) < _SHORTEST_KEY for key in keys)
    if short:
        raise InputError(
            f"{short} of the {len(keys)} keys for {variable} are shorter than {_SHORTEST_KEY} characters.",
            "Use long random ones: python -c 'import secrets; print(secrets.token_urlsafe(32))'.",
        )
    return frozenset(digest(key.encode("utf-8", "surrogateescape")) for key in keys)


def read_model_choice(given: str, tasks: tuple[str, ...] = ()) -> ModelChoice:
    """`name=path`, or a path or hub name whose last part is the name.

    >>> read_model_choice("mine=./folder").name, read_model_choice("./models/tiny/").name
    ('mine', 'tiny')
    """
    name, equals, source = given.partition("=")
    if not equals:
        name, source = Path(given).name or given, given
    if not name or not source or any(sign in name for sign in "/?#%\n"):
        raise InputError(f"--model {given!r} does not name a model.", "Write --model PATH, or --model NAME=PATH.")
    return ModelChoice(name, source, tasks)
