"""How fast a job is by its workers: as its owner knows, as its pods have reported, else as jobs are on average.

A curve is workers -> how fast, ascending by workers, in any unit; an empty one stands for the usual.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

Curve = tuple[tuple[int, float], ...]
_STEEPEST = 20.0  # power of the workers: whatever an owner writes, a speed stays a number above nought
USUAL = 0.9  # the power of the workers by which a job of no known curve gets faster: docs/facts/autoscaling.md 7.1


class Gain(NamedTuple):
    """The worth of growing from one size to another. share: how much faster the job gets.

    per_worker: what each added worker adds, as a share of what a worker of the min does; 1.0 is perfect scaling.
    """

    share: float
    per_worker: float


@lru_cache(maxsize=65_536)
def speed(curve: Curve, workers: int) -> float:
    """Return the speed at a number of workers: between two points as a power of the workers, beyond them continued.

    Beyond the last point the speed never grows faster than the usual curve. A single point is continued as the usual
    curve.
    """
    workers = max(1, workers)
    if not curve:
        return float(workers**USUAL)
    for (low, slow), (high, fast) in pairwise(curve):
        if low <= workers <= high:
            return slow * float((workers / low) ** _power(low, slow, high, fast))
    known = len(curve) > 1
    if workers < curve[0][0]:
        at, there = curve[0]
        power = _power(*curve[0], *curve[1]) if known else USUAL
    else:
        at, there = curve[-1]
        power = min(USUAL, _power(*curve[-2], *curve[-1])) if known else USUAL
    return there * float((workers / at) ** power)


def capped(curve: Curve, power: float) -> Curve:
    """Copy a curve, bounded from point to point to this power of the workers; 1.0 is perfect scaling."""
    found: list[tuple[int, float]] = []
    for workers, fast in curve:
        if found:
            last, there = found[-1]
            fast = min(fast, there * float((workers / last) ** power))
        found.append((workers, fast))
    return tuple(found)


def _power(low: int, slow: float, high: int, fast: float) -> float:
    return max(-_STEEPEST, min(math.log(fast / slow) / math.log(high / low), _STEEPEST))


@lru_cache(maxsize=65_536)
def gain(curve: Curve, least: int, size: int, larger: int) -> Gain:
    """Return what growing from `size` to `larger` is worth to a job with a min of `least`."""
    each, now, then = speed(curve, least) / least, speed(curve, size), speed(curve, larger)
    return Gain(then / now - 1, (then - now) / (larger - size) / each if larger > size else 0.0)
