"""Measures how long room has been idle on the nodes and in each queue.

A restart for room that somebody else takes at once is useless, and nobody knows whether room stays idle. Waiting one
restart time before growing costs at most twice the optimum (ski rental).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from turnout.autoscaler.model import NODES, Observation

_FOREVER_S = float("inf")


@dataclass(slots=True)
class _FreeRoom:
    """Room of one resource that was free in one place. since_s: when it was first seen.

    held: amounts and until when each was seen, ascending in both: those that may still be the least of the span.
    """

    since_s: float
    minima: deque[tuple[int, float]] = field(default_factory=deque)

    def update(self, free: int, now_s: float, span_s: float) -> int:
        """Store what is free now. Return what was free for the whole span, 0 if that is not known yet."""
        minima = self.minima
        if minima:
            minima[-1] = minima[-1][0], now_s
        while minima and minima[0][1] <= now_s - span_s:
            minima.popleft()
        while minima and minima[-1][0] >= free:
            minima.pop()
        minima.append((free, _FOREVER_S))
        return minima[0][0] if now_s - self.since_s >= span_s else 0

    def due_s(self, span_s: float) -> float:
        """Return when more will have been free for the span, if nothing changes."""
        return max(self.since_s, self.minima[0][1] if len(self.minima) > 1 else self.since_s) + span_s


class IdleRoom:
    """The free room of each place and resource over time. span_s: how long room has to be idle."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._lines: dict[tuple[str, str], _FreeRoom] = {}

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Store the free room of an observation. Return the observation with the room that was idle for the span."""
        before, self._lines = self._lines, {}
        settled: dict[str, dict[str, int]] = {}
        for place, what, free in _free(observation):
            line = self._lines[place, what] = before.get((place, what)) or _FreeRoom(now_s)
            settled.setdefault(place, {})[what] = line.update(free, now_s, self._span_s)
        return replace(observation, settled=settled)

    def due_s(self, now_s: float) -> float:
        """Return when more room will have been idle for the span if nothing changes; infinity for never."""
        dues = (line.due_s(self._span_s) for line in self._lines.values())
        return min((due_s for due_s in dues if due_s > now_s), default=_FOREVER_S)


def _free(observation: Observation) -> Iterator[tuple[str, str, int]]:
    """Count what is free of the lent resource by place: nodes that let anybody in, and queues with a limit."""
    room = observation.room
    usable = np.logical_or.reduce([*room.admits.values()]) if room.admits else np.zeros(len(room.free), dtype=np.bool_)
    for column, what in enumerate(room.names):
        if "/" in what:  # a device: nobody restarts for CPUs
            yield NODES, what, int(np.maximum(room.free[usable, column], 0).sum())
    for name, queue in observation.queues.items():
        for what, most in queue.limit.items():
            if "/" in what:
                yield name, what, max(0, most - queue.used.get(what, 0))
