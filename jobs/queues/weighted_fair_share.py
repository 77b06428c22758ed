"""Sharing a whole by weight, as water fills vessels: who asks for little is full early, and leaves the rest to others.

For each: its share with what it asks for, and the most that it could have if it alone asked for everything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import floor, inf, isclose
from typing import NamedTuple


class Claim(NamedTuple):
    """At water level L one has least + weight * (L - begins), from level `begins` up to level `ends`.

    own: what it has up to `begins` if it asks for everything: least, and what it now leaves to others.
    """

    least: int
    weight: int
    begins: float
    ends: float
    own: int

    def at(self, level: float) -> float:
        """Return the amount that the claim has at this level."""
        return self.least + self.weight * (min(max(level, self.begins), self.ends) - self.begins)


def fill(claims: Sequence[Claim], whole: int) -> list[tuple[int, int]]:
    """For each claim: (its share, the most that it could have). What is everybody's least is given even beyond."""
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
    level = _level(levels, slopes, sums, whole)
    return [(_down(each.at(level)), _down(_most(each, levels, slopes, sums, whole, level))) for each in claims]


def _level(levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], whole: int) -> float:
    """Find the level at which the whole is used up."""
    last = bisect_right(sums, whole) - 1
    if last < 0:
        return 0.0
    return levels[last] + (whole - sums[last]) / slopes[last] if slopes[last] > 0 else inf


def _most(
    claim: Claim, levels: Sequence[float], slopes: Sequence[int], sums: Sequence[float], whole: int, level: float
) -> float:
    """Return what a claim would have if it asked for everything, at most at the common level."""
    least, weight, begins, ends, own = claim
    if level <= ends and own == least:
        return claim.at(level)  # it asks for more than it can have as it is
    dry = own - weight * begins
    more = dry - least - weight * (ends - begins)  # beyond what it asked for, which it has in full from `ends` on
    first = low = bisect_left(levels, ends)
    high = len(levels)
    while low < high:
        middle = (low + high) // 2
        if sums[middle] + more + weight * levels[middle] <= whole:
            low = middle + 1
        else:
            high = middle
    last = low - 1
    if last < first or not weight:
        return own
    left = whole - (sums[last] + more + weight * levels[last])
    return dry + weight * (levels[last] + left / (slopes[last] + weight))


def _down(amount: float) -> int:
    """Round down, except for the last digits of a float. amount: 0 or more."""
    near = round(amount)
    return near if isclose(near, amount, rel_tol=1e-9, abs_tol=1e-9) else floor(amount)
