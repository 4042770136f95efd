"""One process or many: the same loop under `torchrun --nproc-per-node N`, gloo on CPUs and NCCL on GPUs.

*Data parallel* (the default): every process holds the whole model and works on its share of the global batch; then the
sums of gradients are added up over all, in buckets. That happens after the last micro-batch and not inside backward:
a process may then run its share in more, smaller pieces than another one (after running out of memory), and heads that
a loss does not use are no trouble.

*Sharded* (`shard=True`, FSDP2's `fully_shard`): every process holds its part of each parameter, gradient and optimizer
state, and layers are put together when they are needed. Checkpoints hold whole tensors either way, so a run can be
resumed with another number of processes, sharded or not.

A process that dies is named by the others: every one says "I am here" to torchrun's store every few seconds, and looks
for the others.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # compiled, and missing in its types

from bertie.errors import BertieError, InputError
from bertie.model.pretrained import BertPreTrainedModel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Said = TypeVar("Said")
Handler = Callable[[int, FrameType | None], object] | int | None  # what `signal.getsignal` gives

_BUCKET = 2**25  # numbers in one all-reduce: 128 MB of float32
_BEAT = 2.0  # seconds between two signs of life
_SILENT = 30.0  # seconds without one after which a process counts as dead
_GRACE = 15.0  # seconds a process has to end by itself after another one died


class ProcessLost(BertieError):
    """Another process of the run died or stopped answering."""


@dataclass(frozen=True)
class World:
    """Which process this is, of how many, and on which device it computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shard: bool = False

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # -- sums over processes -----------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_of_shards(self, tensor: Tensor) -> Tensor:
        """Sums over the parts of sharded tensors → over whole ones. Unsharded tensors are whole already."""
        return self.sum(tensor) if self.shard else tensor

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add the gradients up over all processes; FSDP has done it already (see `parallel`)."""
        if self.size == 1 or self.shard:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        bucket: list[Tensor] = []
        filled = 0
        for grad in grads:
            if bucket and filled + grad.numel() > _BUCKET:
                _sum_bucket(bucket)
                bucket, filled = [], 0
            bucket.append(grad)
            filled += grad.numel()
        if bucket:
            _sum_bucket(bucket)

    def share_parameters(self, model: nn.Module) -> None:
        """Give every process the main one's parameters: a fresh head must be the same everywhere."""
        if self.size > 1:
            for parameter in model.parameters():
                dist.broadcast(parameter.detach(), src=0)

    def main_says(self, value: Said) -> Said:
        """What the main process has (a number, a string, a list, a dict of those), on all of them."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_main else b""
        length = self.sum(torch.tensor([len(text)], device=self.device))
        data = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        if self.is_main:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, src=0)
        said: Said = json.loads(bytes(data.cpu().numpy()))
        return said

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The same-sized tensors of all processes, on the CPU."""
        if self.size == 1:
            return [tensor.cpu()]
        here = tensor.to(self.device)
        parts = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(parts, here)
        return [part.cpu() for part in parts]

    def wait_for_all(self) -> None:
        if self.size > 1:
            self.sum(torch.zeros(1, device=self.device))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    # -- whole tensors and this process's part of them ---------------------------------------------------------------

    def whole(self, tensor: Tensor, like: Tensor) -> Tensor:
        """A sharded tensor put together (every process must ask). `like` is the parameter it belongs to."""
        if not self.shard:
            return tensor
        from torch.distributed.tensor import DTensor

        sharded = cast(DTensor, like)
        mesh, placements = sharded.device_mesh, sharded.placements
        part = DTensor.from_local(
            local(tensor), mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return part.full_tensor()

    def fill(self, part: Tensor, whole: Tensor, like: Tensor) -> None:
        """Copy a whole tensor, or this process's part of it, into `part`; `like` is the parameter it belongs to."""
        if self.shard:
            from torch.distributed.tensor import DTensor, distribute_tensor

            sharded, source = cast(DTensor, like), whole.to(like.device, like.dtype)
            whole = distribute_tensor(source, sharded.device_mesh, sharded.placements, src_data_rank=None).to_local()
        local(part).copy_(whole)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor: the tensor itself unless it is sharded."""
    part: Tensor | None = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def _sum_bucket(bucket: list[Tensor]) -> None:
    flat = torch.cat([grad.reshape(-1) for grad in bucket])
    dist.all_reduce(flat)
    parts = torch.split(flat, [grad.numel() for grad in bucket])
    torch._foreach_copy_(bucket, [part.view_as(grad) for part, grad in zip(parts, bucket, strict=True)])


def parallel(model: BertPreTrainedModel, world: World) -> None:
    """Split the model over the processes where that was asked for, in place."""
    if not world.shard:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    modules: list[nn.Module] = [*model.base_model.encoder.layer, model]
    for module in modules:
        fully_shard(module, mesh=mesh)
    for module in modules:  # sums, not means: the loop divides by the units of all processes
        block = cast("FSDPModule", module)  # that is what sharding made of it
        block.set_gradient_divide_factor(1.0)
        if world.device.type == "cpu" and hasattr(block, "set_force_sum_reduction_for_comms"):
            block.set_force_sum_reduction_for_comms(True)


def sync_gradients(model: nn.Module, world: World, on: bool) -> None:
    """With FSDP: whether the next backward adds gradients up over the processes (only the last of a step does)."""
    if world.shard:
        cast("FSDPModule", model).set_requires_gradient_sync(on)


def reshard(model: nn.Module, world: World) -> None:
    """With FSDP: free whole parameters that a forward pass has left together (those of the model itself)."""
    if world.shard:
        cast("FSDPModule", model).reshard()


# -- rows of all processes -------------------------------------------------------------------------------------------


def several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def counts_of_all(number: int, device: torch.device) -> list[int]:
    """How many rows each process has."""
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    counts[dist.get_rank()] = number
    dist.all_reduce(counts)
    return [int(count) for count in counts]


def rows_of_all(rows: Tensor, counts: list[int]) -> Tensor:
    """`[n, …]` of this process → `[Σ n, …]` of all, in the order of the processes, with gradients. All must call it.

    For losses that compare the examples of a whole batch: every process computes its own part of the loss from
    everybody's rows, and the parts are added up. So the gradient of a row is the sum of what all processes say about
    it, which is what `backward` gathers: the same gradient as one process on the whole batch.
    """
    gathered: Tensor = _Gathered.apply(rows, counts)  # type: ignore[no-untyped-call]  # torch has no types for it
    return gathered


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        rank = dist.get_rank()
        ctx.place = sum(counts[:rank]), counts[rank]
        # Each puts its rows where they belong, among zeros; the sum has them all, whatever their numbers are.
        whole = rows.new_zeros(sum(counts), *rows.shape[1:])
        whole[ctx.place[0] : sum(ctx.place)] = rows
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        whole = grads[0].contiguous().clone()
        dist.all_reduce(whole)
        return whole[ctx.place[0] : sum(ctx.place)], None


# -- starting and ending ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def world(*, device: str | None = None, shard: bool = False, timeout: float = 600.0) -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if size > 1 and kind == "cuda":
        kind = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    place = torch.device(kind)
    if "RANK" not in os.environ and not shard:
        yield World(device=place)
        return
    if "RANK" not in os.environ:
        raise InputError(
            "{shard} splits a model over several processes, and this is one alone.",
            "Start it with torchrun: torchrun --nproc-per-node 2 -m bertie …",
            shard=True,
        )
    if place.type == "cuda":
        torch.cuda.set_device(place)
    backend = "nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    watch = Watch(rank, size) if size > 1 else None
    well = False
    if watch is not None and threading.current_thread() is threading.main_thread():
        # torchrun ends everyone when one died: outside of steps (the loop has a handler of its own) say who, and go.
        # When nobody did, it was told to stop, and so are we.
        others = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, frame: watch.terminated(number, frame, others))
    try:
        yield World(rank, size, place, shard)
        well = True
    except RuntimeError as error:
        # A broken collective says which connection broke, not whose process is gone.
        if watch is not None and (gone := watch.who_is_gone(wait=10.0)):
            raise watch.lost(gone) from error
        raise
    finally:
        if watch is not None:
            watch.close(well=well)
        if well:  # after a failure the others may be gone, and ending together would mean waiting for them
            dist.destroy_process_group()


class Watch:
    """Signs of life in torchrun's store: every process gives them, and looks for those of the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._names: dict[int, tuple[str, int]] = {}
        self._seen: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=60),
        )
        self._store = PrefixStore(f"bertie-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self._store.set(f"name-{rank}", f"{platform.node()} {os.getpid()}")
        for other in range(size):
            host, pid = self._store.get(f"name-{other}").decode().split()
            self._names[other] = (host, int(pid))
        self._thread = threading.Thread(target=self._run, name="bertie-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(_BEAT / 2):
            number += 1
            try:
                self._store.set(f"beat-{self.rank}", str(number))
            except (RuntimeError, OSError):
                return  # the store is gone: torchrun is ending everything
            gone = self.who_is_gone()
            if gone and not self._ended.wait(_GRACE):
                # A GPU collective waits minutes for a process that died. The checkpoint of the last save is whole.
                self.leave()

    def who_is_gone(self, *, wait: float = 0.0) -> list[int]:
        """The processes that ended without saying so, or have been silent too long."""
        until = time.monotonic() + wait
        while True:
            gone = [rank for rank in range(self.size) if rank != self.rank and self._is_gone(rank)]
            if gone or time.monotonic() >= until:
                return gone
            time.sleep(0.2)

    def _is_gone(self, rank: int) -> bool:
        host, pid = self._names[rank]
        try:
            if self._store.check([f"bye-{rank}"]):
                return False
            if host == platform.node():
                return not _is_alive(pid)
            beat = self._store.get(f"beat-{rank}").decode() if self._store.check([f"beat-{rank}"]) else ""
        except (RuntimeError, OSError):
            return host == platform.node() and not _is_alive(pid)
        now = time.monotonic()
        if self._seen.get(rank, ("", 0.0))[0] != beat or rank not in self._seen:
            self._seen[rank] = (beat, now)
        return now - self._seen[rank][1] > _SILENT

    def terminated(self, number: int, frame: FrameType | None, otherwise: Handler) -> None:
        """What SIGTERM does: leave when another process died, else whatever it did before."""
        if self.who_is_gone() or not callable(otherwise):
            self.leave()
        otherwise(number, frame)

    def leave(self) -> NoReturn:
        """End this process at once, naming the one that died, if one did."""
        gone = self.who_is_gone()
        if gone:
            print(f"error: {self.lost(gone)}", file=sys.stderr, flush=True)
        os._exit(1)

    def lost(self, gone: list[int]) -> ProcessLost:
        names = ", ".join(f"rank {rank} (process {self._names[rank][1]} on {self._names[rank][0]})" for rank in gone)
        return ProcessLost(
            f"{names} ended before the run did; rank {self.rank} stops too.",
            "Nothing saved is lost: start the same command again with {resume}.",
            resume=True,
        )

    def close(self, *, well: bool) -> None:
        self._ended.set()
        if well:
            with contextlib.suppress(RuntimeError, OSError):
                self._store.set(f"bye-{self.rank}", "1")
        self._thread.join(timeout=5)


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and waits to be buried does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
