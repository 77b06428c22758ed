"""From when on a time is slow, beside those of the others and beside an absolute floor. Source: the guide, DL-31

Suspicion is cheap, a verdict is not: what is suspected is measured again beside nodes that are proven, and only then
held to the rule. Suspicion looks at the lower quartile: where a third of the nodes is slow, two thirds of the pairs
are, and mean and median would call that ordinary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import fsum, inf

from turnout.launcher.health.model import Limits, Rule

_NORMAL = 1.4826  # a median deviation of a normal distribution, in standard deviations


class Sample:
    """Times of all. One is judged by the others: its own, and those of whom it shares a group with, are left out."""

    def __init__(self, times_s: Iterable[float], limits: Limits) -> None:
        self._sorted, self._limits = sorted(times_s), limits
        self._never = dict[int, float]()

    def slow(self, time_s: float, own: Sequence[float], floor_s: float | None) -> bool:
        """Whether the rule says so. own: times of the sample that are left out."""
        if floor_s is not None and time_s > floor_s:
            return True
        return not self._ordinary(time_s, len(own)) and time_s > _limit_s(self._others(own), self._limits)

    def suspects(self, time_s: float, own: Sequence[float], floor_s: float | None) -> bool:
        """Whether to look again. All that is slow is suspected."""
        if floor_s is not None and time_s > floor_s:
            return True
        return not self._ordinary(time_s, len(own)) and time_s > _suspicious_s(self._others(own), self._limits)

    def _ordinary(self, time_s: float, left_out: int) -> bool:
        """Neither slow nor suspected, whoever is left out: the lowest limit is that of the fastest others."""
        if left_out not in self._never:
            self._never[left_out] = _suspicious_s(self._sorted[: max(len(self._sorted) - left_out, 0)], self._limits, 0)
        return time_s <= self._never[left_out]

    def _others(self, own: Iterable[float]) -> list[float]:
        left = self._sorted.copy()
        for time_s in own:
            del left[bisect_left(left, time_s)]
        return left


def _limit_s(others: list[float], limits: Limits, spreads: float | None = None) -> float:
    """Above this a time is slow, by the rule; nobody else: never. others: sorted."""
    if not others:
        return inf
    match limits.rule:
        case Rule.MEAN:
            return limits.factor * fsum(others) / len(others)
        case Rule.MEDIAN:
            return limits.factor * _median(others)
        case Rule.SPREAD:
            middle = _median(others)
            spread = _NORMAL * _median(sorted(abs(each - middle) for each in others))
            return max(limits.least_factor * middle, middle + (limits.spreads if spreads is None else spreads) * spread)


def _suspicious_s(others: list[float], limits: Limits, spreads: float | None = None) -> float:
    if not others:
        return inf
    factor = limits.least_factor if limits.rule is Rule.SPREAD else limits.factor
    return min(_limit_s(others, limits, spreads), factor * others[(len(others) - 1) // 4])


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
