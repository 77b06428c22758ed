"""Bounds the time for which room counts as free when workers were told to go and have not gone.

A finalizer or a long grace may keep a pod, and a controller may not obey. Room that is still taken after `promise_s` is
promised no longer: other jobs make room. Times are of a clock that never jumps.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.autoscaler.model import JobState, Observation
from turnout.jobs.model import JobKey


class Promises:
    """The promised room that one leader has seen. promise_s: for how long such room counts, in seconds."""

    def __init__(self, promise_s: float) -> None:
        self._promise_s = promise_s
        self._since: dict[JobKey, tuple[int, float]] = {}  # how much room was promised, and since when no more of it

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Take over an observation. Return it with jobs marked as `overdue` whose workers stay too long."""
        before, self._since = self._since, {}
        late: set[JobKey] = set()
        for each in observation.jobs:
            if each.promised:
                self._since[each.job.key] = self._promised(each, before.get(each.job.key), now_s)
                if now_s - self._since[each.job.key][1] > self._promise_s:
                    late.add(each.job.key)
        if not late:
            return observation
        return replace(
            observation,
            jobs=tuple(replace(each, overdue=True) if each.job.key in late else each for each in observation.jobs),
        )

    @staticmethod
    def _promised(each: JobState, before: tuple[int, float] | None, now_s: float) -> tuple[int, float]:
        """Return how much room is promised and since when; less or new promised room restarts the time."""
        count = len(each.promised)
        if before is None or count < before[0]:
            return count, now_s
        return count, before[1]
