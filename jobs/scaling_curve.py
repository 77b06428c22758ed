"""The speed of a job by its number of workers: a scaling curve.

A curve is pairs of workers and speed, ascending by workers, in any unit; an empty curve stands for the default.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

Curve = tuple[tuple[int, float], ...]
_MAX_POWER = 20.0  # of the workers: with any curve of an owner, the speed stays finite and above 0
DEFAULT_POWER = 0.9  # of the workers: the speed of a job without a curve. Source: docs/facts/autoscaling.md 7.1


class Gain(NamedTuple):
    """The worth of growing from one size to another."""

    share: float  # the relative gain in speed; 0.1 is 10 % faster
    per_worker: float  # the gain of each added worker, relative to a worker at the min; 1.0 is perfect scaling


@lru_cache(maxsize=65_536)
def speed(curve: Curve, workers: int) -> float:
    """Return the speed at a number of workers: interpolated between points and extrapolated beyond them, as powers.

    Beyond the last point the speed never grows faster than the default curve. A single point continues as the default
    curve.
    """
    workers = max(1, workers)
    if not curve:
        return float(workers**DEFAULT_POWER)
    for (low, slow), (high, fast) in pairwise(curve):
        if low <= workers <= high:
            return slow * float((workers / low) ** _power(low, slow, high, fast))
    known = len(curve) > 1
    if workers < curve[0][0]:
        base_workers, base_speed = curve[0]
        power = _power(*curve[0], *curve[1]) if known else DEFAULT_POWER
    else:
        base_workers, base_speed = curve[-1]
        power = min(DEFAULT_POWER, _power(*curve[-2], *curve[-1])) if known else DEFAULT_POWER
    return base_speed * float((workers / base_workers) ** power)


def capped(curve: Curve, power: float) -> Curve:
    """Return the curve with limited growth: from one point to the next, the speed may grow at most by the ratio of
    their workers to this power.

    Each step starts from the point before it, as limited. A power of 1.0 is perfect scaling.
    """
    found: list[tuple[int, float]] = []
    for workers, fast in curve:
        if found:
            last_workers, last_speed = found[-1]
            fast = min(fast, last_speed * float((workers / last_workers) ** power))
        found.append((workers, fast))
    return tuple(found)


def _power(low: int, slow: float, high: int, fast: float) -> float:
    return max(-_MAX_POWER, min(math.log(fast / slow) / math.log(high / low), _MAX_POWER))


@lru_cache(maxsize=65_536)
def gain(curve: Curve, least: int, size: int, larger: int) -> Gain:
    """Return the worth of growing from `size` to `larger` for a job with a min of `least`."""
    each, now, then = speed(curve, least) / least, speed(curve, size), speed(curve, larger)
    return Gain(then / now - 1, (then - now) / (larger - size) / each if larger > size else 0.0)
