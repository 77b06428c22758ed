"""Weighted fair sharing of an amount (water filling): a small claim is satisfied early and leaves the rest to others.

The result has for each claim its share, and the most that it could have if it alone requested everything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import floor, inf, isclose
from typing import NamedTuple


class QueueClaim(NamedTuple):
    """A claim on a shared amount: at level L it has least + weight * (L - begins), from `begins` to `ends`."""

    least: int  # granted at any level
    weight: int  # >= 0
    begins: float  # the level from which it grows
    ends: float  # the level at which its request is satisfied
    own: int  # the amount up to `begins` if it requests everything: least, and what it leaves to others now

    def at(self, level: float) -> float:
        """Return the amount that the claim has at this level."""
        return self.least + self.weight * (min(max(level, self.begins), self.ends) - self.begins)


def fill(claims: Sequence[QueueClaim], total: int) -> list[tuple[int, int]]:
    """Return for each claim its share, and its share if it alone requested everything.

    Each `least` is granted even if the total is smaller.
    """
    bends = sorted(
        [(0.0, 0)]
        + [(each.begins, each.weight if each.ends > each.begins else 0) for each in claims]
        + [(each.ends, -each.weight) for each in claims if each.ends > each.begins]
    )
    levels = [level for level, _ in bends]
    slopes = list(accumulate(change for _, change in bends))
    sums = [float(sum(each.least for each in claims))]
    for before, after, slope in zip(levels, levels[1:], slopes, strict=False):
        sums.append(sums[-1] + slope * (after - before))
    level = _level(levels, slopes, sums, total)
    return [(_down(each.at(level)), _down(_most(each, levels, slopes, sums, total, level))) for each in claims]


def _level(levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], total: int) -> float:
    """Return the level at which the total is used up."""
    last = bisect_right(sums, total) - 1
    if last < 0:
        return 0.0
    return levels[last] + (total - sums[last]) / slopes[last] if slopes[last] > 0 else inf


def _most(
    claim: QueueClaim, levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], total: int, level: float
) -> float:
    """Return what a claim would have if it requested everything."""
    least, weight, begins, ends, own = claim
    if level <= ends and own == least:
        return claim.at(level)  # it asks for more than it can have as it is
    dry = own - weight * begins
    more = dry - least - weight * (ends - begins)  # beyond what it asked for, which it has in full from `ends` on
    first = low = bisect_left(levels, ends)
    high = len(levels)
    while low < high:
        middle = (low + high) // 2
        if sums[middle] + more + weight * levels[middle] <= total:
            low = middle + 1
        else:
            high = middle
    last = low - 1
    if last < first or not weight:
        return own
    left = total - (sums[last] + more + weight * levels[last])
    return dry + weight * (levels[last] + left / (slopes[last] + weight))


def _down(amount: float) -> int:
    """Return the amount rounded down, but ignore floating-point errors. amount: >= 0."""
    nearest = round(amount)
    return nearest if isclose(nearest, amount, rel_tol=1e-9, abs_tol=1e-9) else floor(amount)
