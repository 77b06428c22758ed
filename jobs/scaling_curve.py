"""The speed of a job by its number of workers: a scaling curve.

A curve is pairs of workers and speed, ascending by workers, in any unit; an empty curve stands for the default.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

Curve = tuple[tuple[int, float], ...]  # (workers >= 1, speed > 0), ascending by workers
_MAX_POWER = 20.0  # the largest exponent of the workers, so that the speed of any curve stays finite and above 0
DEFAULT_POWER = (
    0.9  # the exponent of the workers in the speed of a job without a curve. Source: docs/facts/autoscaling.md 7.1
)


class Gain(NamedTuple):
    """The worth of growing from one size to another."""

    share: float  # the relative gain in speed; 0.1 is 10 % faster
    per_worker: float  # the gain of each added worker, relative to a worker at the min; 1.0 is perfect scaling


@lru_cache(maxsize=65_536)
def speed(curve: Curve, workers: int) -> float:
    """Return the speed at a number of workers, in the unit of the curve; by the default curve if `curve` is empty.

    Between and beyond the points the speed is a power of the workers. Beyond the last point it never grows faster than
    the default curve. A single point continues as the default curve. workers: less than 1 counts as 1.
    """
    workers = max(1, workers)
    if not curve:
        return float(workers**DEFAULT_POWER)
    for (low, slow), (high, fast) in pairwise(curve):
        if low <= workers <= high:
            return slow * float((workers / low) ** _power(low, slow, high, fast))
    has_slope = len(curve) > 1
    if workers < curve[0][0]:
        base_workers, base_speed = curve[0]
        power = _power(*curve[0], *curve[1]) if has_slope else DEFAULT_POWER
    else:
        base_workers, base_speed = curve[-1]
        power = min(DEFAULT_POWER, _power(*curve[-2], *curve[-1])) if has_slope else DEFAULT_POWER
    return base_speed * float((workers / base_workers) ** power)


def capped(curve: Curve, power: float) -> Curve:
    """Return the curve with limited growth: between two points, speed grows at most by (ratio of workers) ** power.

    Each point is compared with the limited point before it, so the first is unchanged. power: 1.0 is perfect scaling.
    """
    limited: list[tuple[int, float]] = []
    for workers, fast in curve:
        if limited:
            last_workers, last_speed = limited[-1]
            fast = min(fast, last_speed * float((workers / last_workers) ** power))
        limited.append((workers, fast))
    return tuple(limited)


def _power(low: int, slow: float, high: int, fast: float) -> float:
    """Return the exponent with which the speed grows from `slow` at `low` workers to `fast` at `high` workers.

    It is limited to -_MAX_POWER to _MAX_POWER.
    """
    return max(-_MAX_POWER, min(math.log(fast / slow) / math.log(high / low), _MAX_POWER))


@lru_cache(maxsize=65_536)
def gain(curve: Curve, minimum: int, size: int, larger: int) -> Gain:
    """Return the worth of growing from `size` to `larger` workers.

    curve: of the job, () for the default curve. minimum: the min of the job, in workers, >= 1. size: >= 1. If `larger`
    is not above `size`, the gain of each worker is 0.
    """
    min_worker_speed, speed_now, larger_speed = (
        speed(curve, minimum) / minimum,
        speed(curve, size),
        speed(curve, larger),
    )
    per_worker = (larger_speed - speed_now) / (larger - size) / min_worker_speed if larger > size else 0.0
    return Gain(larger_speed / speed_now - 1, per_worker)
