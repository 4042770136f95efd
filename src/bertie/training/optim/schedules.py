"""Learning rates over a run: a warm-up from 0, then linear, polynomial, cosine or constant.

A schedule is a function of the step's number and nothing else, so there is no state to save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertie.errors import ConfigError
from bertie.training.settings import ScheduleName, Settings


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
        if self.name == "constant":
            return self.peak
        left = (self.num_steps - step) / max(1, self.num_steps - self.num_warmup)
        left = min(1.0, max(0.0, left))
        if self.name == "cosine":
            return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * (1 - left)))
        power = self.power if self.name == "polynomial" else 1.0
        return float(self.final + (self.peak - self.final) * left**power)


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
