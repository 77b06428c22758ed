"""Follows room over time: room that is idle, room that is promised by leaving workers, and room that stays unused.

Idle: a restart for room that somebody else takes at once is useless, and nobody knows whether room stays idle. Waiting
one restart time before growing costs at most twice the optimum (ski rental).

Promised: a finalizer or a long grace may keep a terminating pod, and a controller may not obey. Room that is still
taken after `promise_s` no longer counts as free, so other jobs make room.

Unused: room is kept for a waiting job for `bind_s` seconds. If the job has not taken it by then, or was deleted without
having taken it, the workers that others gave go back to them, and the job waits out a back-off that doubles each time.
If several jobs of a namespace did so, the whole namespace waits, so that new names do not help. The next leader learns
which jobs wait and for how long (memory.py), but not which jobs gave workers for nothing.

All times are of a clock that never jumps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from turnout.autoscaler.memory import Owner, Strike
from turnout.autoscaler.model import NODES, JobState, Observation, Reason, Step
from turnout.jobs.model import JobKey, Life

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
    """Yield the free room of devices by place: nodes that admit any shape, and queues with a limit."""
    room = observation.room
    usable = np.logical_or.reduce([*room.admits.values()]) if room.admits else np.zeros(len(room.free), dtype=np.bool_)
    for column, what in enumerate(room.names):
        if "/" in what:  # a device: no job restarts for CPUs
            yield NODES, what, int(np.maximum(room.free[usable, column], 0).sum())
    for name, queue in observation.queues.items():
        for what, most in queue.limit.items():
            if "/" in what:
                yield name, what, max(0, most - queue.used.get(what, 0))


class Promises:
    """The promised room that one leader has seen. promise_s: for how long such room counts, in seconds."""

    def __init__(self, promise_s: float) -> None:
        self._promise_s = promise_s
        self._since: dict[JobKey, tuple[int, float]] = {}  # how much room was promised, and since when no more of it

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Note since when leaving workers of each job hold room. Return the observation with `overdue` set where that
        lasts longer than `promise_s`.
        """
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


FIRST_S, MOST_S = 60.0, 3600.0  # of a back-off
FREE = 3  # jobs of a namespace that may do so within FORGET_S before the namespace waits
FORGET_S = 3600.0
MOST_KEPT = 10_000  # owners and givers that are remembered


@dataclass(slots=True)
class _KeptRoom:
    """Room that is kept for a job."""

    since_s: float  # the last progress of the job
    bound_pods: int  # its pods with a node then


@dataclass(slots=True)
class _Owner:
    """A job or a namespace that has left room unused, `times` times in a row, last at `at_s`."""

    times: int = 0
    at_s: float = 0.0
    until_s: float = 0.0

    def add_strike(self, now_s: float, free: int) -> None:
        """Count one more unused room. The first `free` times have no back-off."""
        self.times = 1 if now_s - self.at_s > FORGET_S + MOST_S else self.times + 1
        self.at_s = now_s
        if (over := self.times - free) > 0:
            self.until_s = now_s + min(FIRST_S * 2.0 ** min(over - 1, 16), MOST_S)


@dataclass(slots=True)
class _Giver:
    """A job that gave workers."""

    size: int  # before it gave
    at_s: float
    beneficiaries: set[JobKey] = field(default_factory=set)
    left_unused: bool = False  # the room was left unused


class UnusedRoom:
    """The kept room that one leader has seen. bind_s: for how long room is kept for a job that does not take it.

    started: True for a job that waits no more because it has taken its room.
    """

    def __init__(self, bind_s: float, started: Callable[[JobKey], bool]) -> None:
        self._bind_s, self._started = bind_s, started
        self._kept_rooms: dict[JobKey, _KeptRoom] = {}
        self._owners: dict[Owner, _Owner] = {}  # by job, and by namespace
        self._givers: dict[JobKey, _Giver] = {}

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Take over an observation. Return it with jobs marked that get no room, or get workers back.

        now_s: seconds of a clock that never jumps.
        """
        if not (self._kept_rooms or self._owners or self._givers):
            return observation
        jobs = {each.job.key: each for each in observation.jobs}
        for key in list(self._kept_rooms):
            self._check_kept_room(key, jobs.get(key), now_s)
        for key in list(self._givers):
            self._settle_giver(key, jobs, now_s)
        self._forget(now_s)
        return self._with_marks(observation, now_s)

    def _with_marks(self, observation: Observation, now_s: float) -> Observation:
        """Return the observation with the jobs marked that get no room, or get workers back."""
        waiting = (each for each in observation.jobs if each.is_waiting)
        marks = {each.job.key: why for each in waiting if (why := self._unused_reason(each, now_s))}
        backs = {key: giver.size for key, giver in self._givers.items() if giver.left_unused}
        if not marks and not backs:
            return observation
        changed = (_with_mark(each, marks, backs) for each in observation.jobs)
        return replace(observation, jobs=tuple(changed))

    def strikes(self, now_s: float) -> tuple[Strike, ...]:
        """Return who has left room unused, those who wait longest first, for the next leader."""
        strikes = [
            Strike(owner, each.times, now_s - each.at_s, max(0.0, each.until_s - now_s))
            for owner, each in self._owners.items()
        ]
        return tuple(sorted(strikes, key=lambda each: (-each.left_s, str(each.owner))))

    def restore_strikes(self, strikes: Iterable[Strike], now_s: float) -> None:
        """Take over who had left room unused under the previous leader, unless a longer back-off is known here."""
        for each in strikes:
            until_s = now_s + min(each.left_s, MOST_S)
            if (known := self._owners.get(each.owner)) is None or known.until_s < until_s:
                self._owners[each.owner] = _Owner(each.times, now_s - each.age_s, until_s)

    def record_decision(self, observation: Observation, steps: Iterable[Step], now_s: float) -> None:
        """Take over a decision: the jobs for which room is kept now, and the jobs that give workers."""
        served = {step.key for step in steps if step.reason is Reason.SCHEDULERS_TURN}
        self._kept_rooms = {key: room for key, room in self._kept_rooms.items() if key in served}
        for each in observation.jobs if served - self._kept_rooms.keys() else ():
            if (key := each.job.key) in served and key not in self._kept_rooms:
                self._kept_rooms[key] = _KeptRoom(now_s, _bound_pods(each))
        for step in steps:
            if step.reason is Reason.MAKES_ROOM and step.beneficiary is not None and len(self._givers) < MOST_KEPT:
                giver = self._givers.setdefault(step.key, _Giver(step.current, now_s))
                giver.at_s = now_s
                giver.beneficiaries.add(step.beneficiary)

    def _check_kept_room(self, key: JobKey, each: JobState | None, now_s: float) -> None:
        """Note whether a job has taken the room kept for it, or has left it unused."""
        room = self._kept_rooms[key]
        if each is None or not each.is_waiting:
            del self._kept_rooms[key]
            if self._has_left(key, each):
                self._add_strikes(key, now_s)
        elif (bound := _bound_pods(each)) > room.bound_pods:
            room.since_s, room.bound_pods = now_s, bound
        elif now_s - room.since_s > self._bind_s:
            del self._kept_rooms[key]
            self._add_strikes(key, now_s)

    def _has_left(self, key: JobKey, each: JobState | None) -> bool:
        """Return True if a job that is no longer waiting has ended without having taken its room."""
        return not self._started(key) if each is None else each.job.life is not Life.LIVE

    def _add_strikes(self, key: JobKey, now_s: float) -> None:
        """Add a strike to a job and its namespace, because it did not use freed room.

        The jobs that gave the room are marked.
        """
        for owner, free in ((key, 0), (key.namespace, FREE)):
            self._owners.setdefault(owner, _Owner()).add_strike(now_s, free)
        for giver in self._givers.values():
            giver.left_unused |= key in giver.beneficiaries

    def _settle_giver(self, key: JobKey, jobs: dict[JobKey, JobState], now_s: float) -> None:
        """Settle one giver: it gets its workers back if their room stayed unused, and is forgotten if it was taken."""
        giver, state = self._givers[key], jobs.get(key)
        for to in sorted(giver.beneficiaries):
            each = jobs.get(to)
            if each is None or not each.is_waiting:
                if self._has_left(to, each) and not giver.left_unused:
                    self._add_strikes(to, now_s)
                giver.beneficiaries.discard(to)
        used = not giver.beneficiaries and not giver.left_unused
        if state is None or state.job.replicas >= giver.size or used or now_s - giver.at_s > FORGET_S:
            del self._givers[key]

    def _unused_reason(self, each: JobState, now_s: float) -> str:
        """Say why no room is kept for a waiting job now, "" when there is no reason."""
        key = each.job.key
        for owner, owner_text in ((key, "it"), (key.namespace, f"namespace {key.namespace}")):
            found = self._owners.get(owner)
            if found is not None and now_s < found.until_s:
                return f"{owner_text} has left room unused, {found.times} times so far: no room is made for a while"
        return ""

    def _forget(self, now_s: float) -> None:
        self._owners = {key: each for key, each in self._owners.items() if now_s - each.at_s <= FORGET_S + MOST_S}
        while len(self._owners) > MOST_KEPT:
            del self._owners[next(iter(self._owners))]


def _with_mark(each: JobState, marks: dict[JobKey, str], backs: dict[JobKey, int]) -> JobState:
    """Return the job with the reason why its pods do not bind, and with its size before. marks, backs: by job."""
    why, back = marks.get(each.job.key, ""), backs.get(each.job.key, 0)
    if not why and not back:
        return each
    return replace(each, unbindable=each.unbindable or why, size_before=back)


def _bound_pods(each: JobState) -> int:
    """Count its pods that have a node."""
    return each.bound_workers + sum(each.other_pods)
