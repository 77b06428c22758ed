"""Decides when a time is slow, compared with other nodes and with an absolute limit. Source: the guide, DL-31

A suspect time is only measured again, beside proven nodes, and then judged by the rule. Suspicion compares with the
lower quartile: if a third of the nodes is slow, two thirds of the pairs are, so mean and median would miss it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import fsum, inf

from turnout.launcher.health.model import SlowRule, StragglerLimits

_NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation


class Sample:
    """The times of all groups or nodes.

    A time is compared with the others, without its own and those of shared groups.
    """

    def __init__(self, times_s: Iterable[float], limits: StragglerLimits) -> None:
        self._sorted, self._limits = sorted(times_s), limits
        self._never = dict[int, float]()

    def slow(self, time_s: float, own: Sequence[float], floor_s: float | None) -> bool:
        """True if the time is slow by the rule. own: times of the sample that are left out."""
        if floor_s is not None and time_s > floor_s:
            return True
        return not self._ordinary(time_s, len(own)) and time_s > _limit_s(self._others(own), self._limits)

    def suspects(self, time_s: float, own: Sequence[float], floor_s: float | None) -> bool:
        """True if the time should be measured again. Every slow time is suspect."""
        if floor_s is not None and time_s > floor_s:
            return True
        return not self._ordinary(time_s, len(own)) and time_s > _suspicious_s(self._others(own), self._limits)

    def _ordinary(self, time_s: float, left_out: int) -> bool:
        """True if the time is not suspect, whichever times are left out: it is compared with the fastest others."""
        if left_out not in self._never:
            self._never[left_out] = _suspicious_s(self._sorted[: max(len(self._sorted) - left_out, 0)], self._limits, 0)
        return time_s <= self._never[left_out]

    def _others(self, own: Iterable[float]) -> list[float]:
        left = self._sorted.copy()
        for time_s in own:
            del left[bisect_left(left, time_s)]
        return left


def _limit_s(others: list[float], limits: StragglerLimits, spreads: float | None = None) -> float:
    """Return the limit of the rule in seconds, infinite without others. others: sorted."""
    if not others:
        return inf
    match limits.rule:
        case SlowRule.MEAN:
            return limits.factor * fsum(others) / len(others)
        case SlowRule.MEDIAN:
            return limits.factor * _median(others)
        case SlowRule.SPREAD:
            middle = _median(others)
            spread = _NORMAL * _median(sorted(abs(each - middle) for each in others))
            return max(limits.least_factor * middle, middle + (limits.spreads if spreads is None else spreads) * spread)


def _suspicious_s(others: list[float], limits: StragglerLimits, spreads: float | None = None) -> float:
    if not others:
        return inf
    factor = limits.least_factor if limits.rule is SlowRule.SPREAD else limits.factor
    return min(_limit_s(others, limits, spreads), factor * others[(len(others) - 1) // 4])


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
