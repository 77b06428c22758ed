"""Adapts the learning rate, and optionally the batch, when the number of workers changes.

With ElasticBatch (batch.py) nothing has to change: the global batch and the rate stay. These rules are for scripts
whose batch grows with the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from turnout.launcher.errors import LauncherError


class BadRate(LauncherError):
    """The rate, size or number of steps is invalid. Correct the call."""


class Rule(StrEnum):
    """Says how a rate follows the size for which it was tuned, a global batch or a world."""

    SAME = "same"
    LINEAR = "linear"  # Goyal et al., Accurate, Large Minibatch SGD
    SQRT = "sqrt"  # Krizhevsky, One weird trick; usual with Adam


def scaled(rate: float, *, base: int, now: int, rule: Rule = Rule.SAME) -> float:
    """Return the rate at size `now` for a rate tuned at size `base`. Both are batches, or both are worlds.

    Raises BadRate if one of the sizes is below 1.
    """
    if base < 1 or now < 1:
        raise BadRate(f"sizes of {base} and {now}: 1 or more is needed")
    factor = {Rule.SAME: 1.0, Rule.LINEAR: now / base, Rule.SQRT: sqrt(now / base)}
    return rate * factor[rule]


def warmed(rate: float, *, step: int, steps: int, start: float = 0.0) -> float:
    """Return the rate of warmup step `step`, counted from 0, on a straight line that ends at `rate` after `steps`
    steps.

    start: the rate at which the line begins: 0, or the rate before a resize. After the warmup, or with steps = 0, the
    result is `rate`. Raises BadRate if `step` or `steps` is below 0.
    """
    if step < 0 or steps < 0:
        raise BadRate(f"step {step} of {steps}: 0 or more is needed")
    return rate if step >= steps else start + (rate - start) * (step + 1) / steps


@dataclass(frozen=True, slots=True)
class Sizes:
    """The global batch and the learning rate of a world."""

    global_batch: int
    rate: float


def following(world: int, *, batch: int, rate: float, base_world: int = 1, rule: Rule = Rule.LINEAR) -> Sizes:
    """Return a global batch and a rate that follow the number of processes.

    world: their number. batch: of one process, the same in every world. rate: tuned in a world of base_world processes.
    Raises BadRate if `world`, `batch` or `base_world` is below 1. Source: Volcano's guide, VE-20
    """
    if batch < 1:
        raise BadRate(f"a batch of {batch}: 1 or more is needed")
    return Sizes(batch * world, scaled(rate, base=base_world, now=world, rule=rule))


def world_of(environment: Mapping[str, str]) -> int:
    """Return the number of processes that train together: WORLD_SIZE, or 1 without a launcher.

    Raises BadRate if WORLD_SIZE is no number from 1 up.
    """
    text = environment.get("WORLD_SIZE", "1")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadRate(f"WORLD_SIZE is {text!r}: a whole number from 1 up is needed")
    return int(text)
