"""When a pod that fails again and again is made anew: at once the first times, then after a pause that doubles.

The numbers are the kubelet's for containers. What was counted stands in the role's part of the job's status, so another
controller goes on with it; an owner who writes there has only the pods of that job made sooner or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from turnout.controllers.model import Object, PodState

AT_ONCE = 3  # failures in a row after each of which a pod is made anew at once
FIRST_S, MOST_S = 10.0, 300.0
FORGOTTEN_S = 600.0  # a pod that ran for so long begins anew
_SKEW_S = 60.0  # so much may another controller's clock be ahead of ours
_MAX_FAILURES = 64  # failures in a row that are told apart
_MOST_TIME = 2**53


@dataclass(frozen=True, slots=True)
class BackOff:
    """The failures of one role by index. failures: in a row. last_s: since 1970, of those that make an index wait."""

    now_s: float
    failures: Mapping[int, int] = field(default_factory=dict)
    last_s: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, before: Object, now_s: float) -> Self:
        """Read it from the role's part of a status. Times that are still to come count for nothing."""
        failures = _numbers(before.get("quickFailures"), _MAX_FAILURES)
        last = _numbers(before.get("lastFailures"), _MOST_TIME)
        return cls(now_s, failures, {index: at for index, at in last.items() if at <= now_s + _SKEW_S})

    def failed(self, pods: Iterable[PodState]) -> BackOff:
        """Return it after these pods have failed, each of which is counted for the first time."""
        failures, last = dict(self.failures), dict(self.last_s)
        for pod in pods:
            before = 0 if _ran_s(pod, self.now_s) >= FORGOTTEN_S else failures.get(pod.index, 0)
            failures[pod.index] = min(before + 1, _MAX_FAILURES)
            last[pod.index] = self.now_s
        return BackOff(self.now_s, failures, last)

    def left_s(self, index: int, least_s: float = 0.0) -> float:
        """Return in how many seconds the index may have a pod, 0 for now. least_s: of one that has to wait at all."""
        at_s, pause = self.last_s.get(index), pause_s(self.failures.get(index, 0))
        if at_s is None or not pause:
            return 0.0
        return max(least_s, min(at_s, self.now_s) + pause - self.now_s)

    def waiting_s(self, size: int, least_s: float) -> dict[int, float]:
        """Return the seconds that each index in a back-off still waits. size: of the role. least_s: as for `left_s`."""
        left_s = {index: self.left_s(index, least_s) for index in self.last_s if index < size}
        return {index: wait_s for index, wait_s in left_s.items() if wait_s > 0}

    def status_fields(self, size: int) -> Object:
        """Return what the status has to remember. size: of the role: what is above it is forgotten."""
        known = [(index, count) for index, count in sorted(self.failures.items()) if 0 <= index < size]
        counts = {str(index): count for index, count in known}
        last = {index: self.last_s[index] for index, count in known if count > AT_ONCE and index in self.last_s}
        times = {str(index): int(at_s) for index, at_s in last.items()}
        return {name: each for name, each in (("quickFailures", counts), ("lastFailures", times)) if each}


def pause_s(failures: int) -> float:
    """Return the pause after so many failures in a row."""
    return 0.0 if failures <= AT_ONCE else min(FIRST_S * 2 ** min(failures - AT_ONCE - 1, 16), MOST_S)


def _ran_s(pod: PodState, now_s: float) -> float:
    """Return how long a pod has run. One of which the end is not known has ended now; without a start, 0."""
    return 0.0 if pod.began_s is None else (now_s if pod.ended_s is None else pod.ended_s) - pod.began_s


def _numbers(found: Any, most: int) -> dict[int, int]:
    return {
        int(index): number
        for index, number in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8
        if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= most
    }
