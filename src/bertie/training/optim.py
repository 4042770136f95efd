"""How weights change: AdamW, Google's AdamWeightDecay and LAMB over named tensors, the learning rate of each step, and
averages of the weights.

All state is plain tensors by name: `exp_avg`, `exp_avg_sq` for every parameter and one count of steps. So it is saved
as safetensors and loads anywhere. The update is one kernel for a whole group: ours on a GPU, PyTorch's elsewhere.

A gradient arrives as a *sum*; `grad_scale` divides it inside the kernel (by the number of units, and by what clipping
asks for), and `found_inf` = 1 makes the step do nothing. Both are tensors on the device: nobody waits for them.

A schedule is a function of the step's number and nothing else, so there is no state to save.

Sources: Loshchilov & Hutter 2017 (AdamW, https://arxiv.org/abs/1711.05101); google-research/bert, optimization.py, for
AdamWeightDecay (Adam without bias correction, epsilon 1e-6); You et al. 2019 (LAMB, https://arxiv.org/abs/1904.00962).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bertie.errors import ConfigError, CorruptCheckpoint
from bertie.training.run.distributed import local as local_part
from bertie.training.settings import ScheduleName, Settings

if TYPE_CHECKING:
    from bertie.engine.gpu.training.adamw import AdamW

# AdamWeightDecay is AdamW whose step count is so large that 1 − β^step is exactly 1: no bias correction.
_PAST_CORRECTION = 2.0**30
_LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")

# A parameter's data and its gradient as tensors of this process: with FSDP, its shard of them.
Local = Callable[[Tensor], Tensor]


@dataclass
class Group:
    """Parameters that share a learning rate and a decay."""

    names: list[str]
    decay: float
    rate: float  # times the schedule's learning rate
    step: Tensor  # [] float32
    params: list[Tensor] = field(default_factory=list)
    exp_avg: list[Tensor] = field(default_factory=list)
    exp_avg_sq: list[Tensor] = field(default_factory=list)

    def some(self, rows: list[int]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """`params`, `exp_avg` and `exp_avg_sq` of some of them."""
        params, exp_avg, exp_avg_sq = (
            [values[row] for row in rows] for values in (self.params, self.exp_avg, self.exp_avg_sq)
        )
        return params, exp_avg, exp_avg_sq


def has_decay(name: str) -> bool:
    """Biases and LayerNorm are not decayed."""
    return not (name.endswith("bias") or "LayerNorm" in name)


def depth_of(name: str, num_layers: int) -> int:
    """0 for embeddings, 1 … for the layers, and one more for what stands on top."""
    found = _LAYER.search(name)
    if found is not None:
        return int(found[1]) + 1
    return 0 if re.search(r"(?:^|\.)embeddings\.", name) else num_layers + 1


class Optimizer:
    """The three optimizers. `parameters` are by name; `local` gives this process's part of a tensor."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        settings: Settings,
        *,
        num_layers: int,
        local: Local = lambda tensor: tensor,
        total: Callable[[Tensor], Tensor] = lambda sums: sums,
        rounded: Mapping[int, Tensor] | None = None,
    ) -> None:
        """`rounded` has copies of some parameters in bfloat16, by their id: a step can write them too."""
        self.settings = settings
        self._eps = settings.eps
        self._rounded = rounded or {}
        self._own = _own_kernel(next(iter(parameters.values())).device) if parameters else None
        self._local = local
        self._total = total  # sums over shards → sums over whole tensors
        self._owners: list[list[Tensor]] = []
        by_kind: dict[tuple[float, float], list[str]] = {}
        for name in parameters:
            decay = settings.weight_decay if has_decay(name) else 0.0
            rate = settings.layer_decay ** (num_layers + 1 - depth_of(name, num_layers))
            by_kind.setdefault((decay, rate), []).append(name)
        self.groups: list[Group] = []
        first_step = _PAST_CORRECTION if settings.optimizer == "adam-weight-decay" else 0.0
        for (decay, rate), names in by_kind.items():
            params = [local(parameters[name].detach()) for name in names]
            step = torch.full((), first_step, dtype=torch.float32, device=params[0].device)
            zeros = ([torch.zeros_like(p, memory_format=torch.preserve_format) for p in params] for _ in range(2))
            self.groups.append(Group(names, decay, rate, step, params, *zeros))
            self._owners.append([parameters[name] for name in names])

    def grads(self) -> list[Tensor]:
        """The gradients there are, in a fixed order."""
        return [grad for owners in self._owners for grad in self._grads(owners)]

    def _grads(self, owners: list[Tensor]) -> list[Tensor]:
        return [self._local(owner.grad) for owner in owners if owner.grad is not None]

    def step(self, *, learning_rate: float, grad_scale: Tensor, found_inf: Tensor) -> bool:
        """One update with `gradient / grad_scale`, or none at all where `found_inf` is 1.

        True if the copies in bfloat16 are those of the updated parameters.
        """
        if self.settings.optimizer == "lamb":
            if not bool(found_inf):  # trust ratios need norms of everything anyway; one wait more is nothing
                self._lamb(learning_rate, grad_scale)
            return False
        wrote = True
        for group, owners in zip(self.groups, self._owners, strict=True):
            rows = [row for row, owner in enumerate(owners) if owner.grad is not None and group.params[row].numel()]
            if not rows:
                continue
            group.step.add_(1 - found_inf)
            params, exp_avg, exp_avg_sq = group.some(rows)
            grads = self._grads([owners[row] for row in rows])
            if self._own is not None and self._own.step(
                list(zip(params, grads, exp_avg, exp_avg_sq, strict=True)),
                [self._rounded.get(id(owners[row])) for row in rows],
                group.step,
                rate=learning_rate * group.rate,
                betas=(self.settings.beta1, self.settings.beta2),
                decay=group.decay,
                eps=self._eps,
                scale=grad_scale,
                skip=found_inf,
            ):
                continue
            wrote = False
            torch._fused_adamw_(
                params,
                grads,
                exp_avg,
                exp_avg_sq,
                [],
                [group.step] * len(rows),
                amsgrad=False,
                lr=learning_rate * group.rate,
                beta1=self.settings.beta1,
                beta2=self.settings.beta2,
                weight_decay=group.decay,
                eps=self._eps,
                maximize=False,
                grad_scale=grad_scale,
                found_inf=found_inf,
            )
        return wrote and bool(self._rounded)

    def _lamb(self, learning_rate: float, grad_scale: Tensor) -> None:
        """Adam's direction, its length made that of the weights, tensor by tensor (biases and LayerNorm too)."""
        settings = self.settings
        for group, owners in zip(self.groups, self._owners, strict=True):
            rows = [row for row, owner in enumerate(owners) if owner.grad is not None]
            if not rows:
                continue
            params, exp_avg, exp_avg_sq = group.some(rows)
            grads = torch._foreach_div(self._grads([owners[row] for row in rows]), grad_scale)
            group.step.add_(1)
            torch._foreach_lerp_(exp_avg, grads, 1 - settings.beta1)
            torch._foreach_mul_(exp_avg_sq, settings.beta2)
            torch._foreach_addcmul_(exp_avg_sq, grads, grads, 1 - settings.beta2)
            number = float(group.step)
            denominator = torch._foreach_sqrt(exp_avg_sq)
            torch._foreach_div_(denominator, (1 - settings.beta2**number) ** 0.5)
            torch._foreach_add_(denominator, self._eps)
            torch._foreach_mul_(denominator, 1 - settings.beta1**number)
            update = torch._foreach_div(exp_avg, denominator)
            if group.decay:
                torch._foreach_add_(update, params, alpha=group.decay)
            squares = torch.stack([x.pow(2).sum() for x in (*params, *update)])
            norms = self._total(squares).sqrt().view(2, -1)
            trust = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], torch.ones_like(norms[0]))
            torch._foreach_mul_(update, list(trust.unbind()))
            torch._foreach_add_(params, update, alpha=-learning_rate * group.rate)

    # -- state -------------------------------------------------------------------------------------------------------

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter's name, kind of state, tensor) of everything that makes up the state but the step counts."""
        for group in self.groups:
            for row, name in enumerate(group.names):
                yield name, "exp_avg", group.exp_avg[row]
                yield name, "exp_avg_sq", group.exp_avg_sq[row]

    def steps(self) -> dict[str, float]:
        """The count of steps of every group, under the name of its first parameter."""
        return {group.names[0]: float(group.step) for group in self.groups}

    def load_steps(self, steps: Mapping[str, float]) -> None:
        for group in self.groups:
            if group.names[0] not in steps:
                raise CorruptCheckpoint(f"The checkpoint has no step count for the group of {group.names[0]}.")
            group.step.fill_(steps[group.names[0]])


def _own_kernel(device: torch.device) -> AdamW | None:
    if device.type != "cuda":
        return None
    try:
        from bertie.engine.gpu.training.adamw import AdamW
    except ImportError:  # no Triton
        return None
    return AdamW()


def global_norm(grads: list[Tensor], total: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """The norm of all gradients together, `[]`, on the device."""
    grads = [grad for grad in grads if grad.numel()]
    if not grads:
        return total(torch.zeros((), device=device)).sqrt()
    norms = torch.stack(torch._foreach_norm(grads))
    return total(norms.float().square().sum()).sqrt()


# -- the learning rate -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step, counted from 0.

    Warm-up reaches the peak *at* step `num_warmup`, and the last step is the last with a rate above the final one, as
    Google's and the hub's schedules have it.
    """

    name: ScheduleName
    peak: float
    num_steps: int
    num_warmup: int
    final: float = 0.0
    power: float = 1.0

    def __call__(self, step: int) -> float:
        if step < self.num_warmup:
            return self.peak * step / self.num_warmup
        left = (self.num_steps - step) / max(1, self.num_steps - self.num_warmup)
        return SHAPES[self.name](self, min(1.0, max(0.0, left)))

    def above_final(self, share: float) -> float:
        """This share of the way from the final rate up to the peak."""
        return self.final + (self.peak - self.final) * share


# The rate where this share of the steps after the warm-up is left.
SHAPES: dict[ScheduleName, Callable[[Schedule, float], float]] = {
    "linear": Schedule.above_final,
    "polynomial": lambda schedule, left: schedule.above_final(left**schedule.power),
    "cosine": lambda schedule, left: schedule.above_final(0.5 * (1 + math.cos(math.pi * (1 - left)))),
    "constant": lambda schedule, left: schedule.peak,
}


def make_schedule(settings: Settings, num_steps: int) -> Schedule:
    """The schedule of a run of `num_steps` steps."""
    if num_steps < 1:
        raise ConfigError("There are no steps to train.", "Give more epochs or steps, or more data.")
    warmup = settings.warmup
    num_warmup = round(warmup * num_steps) if warmup < 1 else int(warmup)
    return Schedule(
        name=settings.schedule,
        peak=settings.learning_rate,
        num_steps=num_steps,
        num_warmup=min(num_warmup, num_steps),
        final=settings.final_learning_rate,
        power=settings.power,
    )


# -- averages of the weights -------------------------------------------------------------------------------------------


class Average:
    """A moving average of the weights (EMA), by name: average ← decay·average + (1 − decay)·weight after every step."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self._weights = [local_part(p.detach()) for p in parameters.values()]
        self.tensors = dict(zip(parameters, (w.clone() for w in self._weights), strict=True))

    @torch.no_grad()
    def update(self, *, keep: Tensor) -> None:
        """`keep` = 1 (a skipped step) leaves the average as it is; it is a tensor, so that nobody waits for it."""
        weight = (1 - self.decay) * (1 - keep)
        for average, value in zip(self.tensors.values(), self._weights, strict=True):
            average.lerp_(value, weight.to(average.dtype))

    @torch.no_grad()
    def swap(self) -> None:
        """Let the averages and the weights change places."""
        for average, weight in zip(self.tensors.values(), self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
