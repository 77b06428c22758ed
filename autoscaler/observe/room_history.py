"""Follow room over time: room that is idle, room that is promised by leaving workers, and room that stays unused.

Idle: a restart for room that another job takes at once is useless, and nobody knows whether room stays idle. Waiting
one restart time before growing costs at most twice the optimum (ski rental). The default waits 0.75 of it.

Promised: a finalizer or a long grace may keep a terminating pod, and a controller may not follow a resize. Room that is
still taken after `promise_s` no longer counts as free, so other jobs make room.

Unused: room is kept for a waiting job for `bind_s` seconds. If the job has not taken it by then, or was deleted without
having taken it, the workers that others gave go back to them, and the job waits out a back-off that doubles each time.
If several jobs of a namespace did so, the whole namespace waits, so that new names do not help. The next leader learns
which jobs wait and for how long (memory.py), but not whose workers were given up without use.

All times are in seconds of a clock that never jumps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from turnout.autoscaler.memory import Owner, Strike
from turnout.autoscaler.model import NODES, JobState, Observation, Reason, Step
from turnout.jobs.model import JobKey, JobLifecycle

_FOREVER_S = float("inf")


@dataclass(slots=True)
class _FreeRoom:
    """The free amount of one resource in one place over a span of time."""

    since_s: float  # first observation
    # Candidates for the minimum of the span: (amount, last time it was the free amount), both ascending.
    candidates: deque[tuple[int, float]] = field(default_factory=deque)

    def update(self, free: int, now_s: float, span_s: float) -> int:
        """Store the amount that is free now. Return the minimum over the last `span_s` seconds.

        0 if the room is observed for less than that. now_s: by the monotonic clock, never earlier than in the last
        call.
        """
        candidates = self.candidates
        if candidates:
            candidates[-1] = candidates[-1][0], now_s
        while candidates and candidates[0][1] <= now_s - span_s:
            candidates.popleft()
        while candidates and candidates[-1][0] >= free:
            candidates.pop()
        candidates.append((free, _FOREVER_S))
        return candidates[0][0] if now_s - self.since_s >= span_s else 0

    def due_s(self, span_s: float) -> float:
        """Return when the minimum over the span may rise next, if nothing changes, by the clock of `update`.

        Before `span_s` seconds of observation that is their end. It may lie in the past if nothing will rise.
        """
        return max(self.since_s, self.candidates[0][1] if len(self.candidates) > 1 else self.since_s) + span_s


class IdleRoom:
    """The free room of each place and resource over time. A place is NODES, all nodes together, or the name of a queue.

    span_s: how long room has to be free to count as idle, in seconds.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._rooms: dict[tuple[str, str], _FreeRoom] = {}  # by place (NODES or queue) and resource

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Store the free room of an observation. Return a copy of the observation with `idle_room` set.

        A place or resource that is missing now is forgotten. now_s: by the monotonic clock.
        """
        before, self._rooms = self._rooms, {}
        idle_room: dict[str, dict[str, int]] = {}
        for place, resource, free in _free_devices(observation):
            room = self._rooms[place, resource] = before.get((place, resource)) or _FreeRoom(now_s)
            idle_room.setdefault(place, {})[resource] = room.update(free, now_s, self._span_s)
        return replace(observation, idle_room=idle_room)

    def due_s(self, now_s: float) -> float:
        """Return when more room may count as idle next if nothing changes; infinity for never.

        now_s and the result: by the monotonic clock.
        """
        dues = (room.due_s(self._span_s) for room in self._rooms.values())
        return min((due_s for due_s in dues if due_s > now_s), default=_FOREVER_S)


def _free_devices(observation: Observation) -> Iterator[tuple[str, str, int]]:
    """Yield (place, resource, free amount >= 0) for each device resource, such as nvidia.com/gpu.

    place: NODES for the sum over all nodes that admit some shape of pods; or the name of a queue, for each resource
    that it limits. Resources without a "/" in their name, such as cpu, are left out.
    """
    room = observation.room
    usable = (
        np.logical_or.reduce([*room.admitting_nodes.values()])
        if room.admitting_nodes
        else np.zeros(len(room.free), dtype=np.bool_)
    )
    for column, resource in enumerate(room.names):
        if "/" in resource:  # a device: no job restarts for CPUs
            yield NODES, resource, int(np.maximum(room.free[usable, column], 0).sum())
    for name, queue in observation.queues.items():
        for resource, limit in queue.limit.items():
            if "/" in resource:
                yield name, resource, max(0, limit - queue.used.get(resource, 0))


class Promises:
    """The promised room of each job over time. promise_s: for how long promised room counts as free, in seconds."""

    def __init__(self, promise_s: float) -> None:
        self._promise_s = promise_s
        self._since: dict[JobKey, tuple[int, float]] = {}  # promised workers, and since when they are no fewer

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Store since when leaving workers of each job hold room. Return the observation with `overdue` set for each
        job whose room stays promised for longer than `promise_s`.

        `observation` itself if there is no such job. now_s: by the monotonic clock.
        """
        before, self._since = self._since, {}
        overdue_jobs: set[JobKey] = set()
        for each in observation.jobs:
            if each.promised:
                self._since[each.job.key] = self._promise_of(each, before.get(each.job.key), now_s)
                if now_s - self._since[each.job.key][1] > self._promise_s:
                    overdue_jobs.add(each.job.key)
        if not overdue_jobs:
            return observation
        return replace(
            observation,
            jobs=tuple(
                replace(each, overdue=True) if each.job.key in overdue_jobs else each for each in observation.jobs
            ),
        )

    @staticmethod
    def _promise_of(each: JobState, before: tuple[int, float] | None, now_s: float) -> tuple[int, float]:
        """Return (number of promised workers of a job, since when they are no fewer).

        before: the last result, None for none. The time begins again when fewer workers are promised, since some have
        left. now_s: by the monotonic clock.
        """
        count = len(each.promised)
        if before is None or count < before[0]:
            return count, now_s
        return count, before[1]


FIRST_BACKOFF_S, MAX_BACKOFF_S = 60.0, 3600.0
FREE_STRIKES = 3  # strikes of a namespace without a back-off
FORGET_S = 3600.0  # time after which a giver is forgotten; an owner is forgotten MAX_BACKOFF_S later
MAX_REMEMBERED = 10_000  # owners, and givers, that are remembered


@dataclass(slots=True)
class _KeptRoom:
    """Room that is kept for a waiting job until its pods have nodes."""

    since_s: float  # last time when more of its pods had a node, else the begin
    bound_pods: int  # its pods with a node at that time, >= 0


@dataclass(slots=True)
class _StrikeRecord:
    """A job or a namespace that has left room unused."""

    times: int = 0  # how often in a row
    at_s: float = 0.0  # last time
    until_s: float = 0.0  # end of its back-off

    def add_strike(self, now_s: float, free_strikes: int) -> None:
        """Count one more unused room, and begin a back-off that doubles, up to MAX_BACKOFF_S. The first `free_strikes`
        strikes have none.

        now_s: by the monotonic clock. The count begins again after FORGET_S + MAX_BACKOFF_S without strikes.
        """
        self.times = 1 if now_s - self.at_s > FORGET_S + MAX_BACKOFF_S else self.times + 1
        self.at_s = now_s
        if (counted := self.times - free_strikes) > 0:
            self.until_s = now_s + min(FIRST_BACKOFF_S * 2.0 ** min(counted - 1, 16), MAX_BACKOFF_S)


@dataclass(slots=True)
class _Giver:
    """A job that gave workers."""

    size: int  # its size before, in workers
    at_s: float  # when it gave workers last
    beneficiaries: set[JobKey] = field(default_factory=set)  # waiting jobs that have not taken the room yet
    left_unused: bool = False  # some beneficiary left the room unused


class UnusedRoom:
    """The rooms that are kept for waiting jobs, and the jobs that have left such room unused.

    bind_s: for how long room is kept for a job that does not take it. has_started: returns True for a job that no
    longer waits because it has taken its room.
    """

    def __init__(self, bind_s: float, has_started: Callable[[JobKey], bool]) -> None:
        """Start without kept room. The class docstring explains the arguments."""
        self._bind_s, self._has_started = bind_s, has_started
        self._kept_rooms: dict[JobKey, _KeptRoom] = {}
        self._owners: dict[Owner, _StrikeRecord] = {}  # by job, and by namespace
        self._givers: dict[JobKey, _Giver] = {}

    def update(self, observation: Observation, now_s: float) -> Observation:
        """Follow kept room and givers. Return the observation with two marks; itself if there is nothing to mark.

        `unbindable`: on a waiting job that is in a back-off, for which no room is kept. `size_before`: on a job whose
        given room was left unused, so that it gets its workers back. now_s: by the monotonic clock.
        """
        if not (self._kept_rooms or self._owners or self._givers):
            return observation
        jobs = {each.job.key: each for each in observation.jobs}
        for key in list(self._kept_rooms):
            self._check_kept_room(key, jobs.get(key), now_s)
        for key in list(self._givers):
            self._settle_giver(key, jobs, now_s)
        self._forget_old_owners(now_s)
        return self._with_marks(observation, now_s)

    def _with_marks(self, observation: Observation, now_s: float) -> Observation:
        """Return the observation with `unbindable` on waiting jobs in a back-off, and `size_before` on jobs whose
        workers were given up without use.

        `observation` itself if there are none. now_s: by the monotonic clock.
        """
        waiting = (each for each in observation.jobs if each.is_waiting)
        reasons = {each.job.key: why for each in waiting if (why := self._unused_reason(each, now_s))}
        sizes_before = {key: giver.size for key, giver in self._givers.items() if giver.left_unused}
        if not reasons and not sizes_before:
            return observation
        marked = (_with_mark(each, reasons, sizes_before) for each in observation.jobs)
        return replace(observation, jobs=tuple(marked))

    def strikes(self, now_s: float) -> tuple[Strike, ...]:
        """Return the strikes of each job and namespace that has left room unused, the longest remaining back-off first.

        They are for the next leader. now_s: by the monotonic clock.
        """
        strikes = [
            Strike(owner, each.times, now_s - each.at_s, max(0.0, each.until_s - now_s))
            for owner, each in self._owners.items()
        ]
        return tuple(sorted(strikes, key=lambda each: (-each.left_s, str(each.owner))))

    def restore_strikes(self, strikes: Iterable[Strike], now_s: float) -> None:
        """Store the strikes of the previous leader.

        A back-off ends after MAX_BACKOFF_S at the latest. Strikes that are known here stay if their back-off ends
        later. now_s: by the monotonic clock.
        """
        for each in strikes:
            until_s = now_s + min(each.left_s, MAX_BACKOFF_S)
            if (known := self._owners.get(each.owner)) is None or known.until_s < until_s:
                self._owners[each.owner] = _StrikeRecord(each.times, now_s - each.age_s, until_s)

    def record_decision(self, observation: Observation, steps: Iterable[Step], now_s: float) -> None:
        """Store a decision: for which jobs room is kept (SCHEDULERS_TURN), and which jobs give workers, and to whom.

        Room that was kept for a job without this reason is forgotten, without a strike. observation, steps: of the
        decision. now_s: by the monotonic clock.
        """
        served = {step.key for step in steps if step.reason is Reason.SCHEDULERS_TURN}
        self._kept_rooms = {key: room for key, room in self._kept_rooms.items() if key in served}
        for each in observation.jobs if served - self._kept_rooms.keys() else ():
            if (key := each.job.key) in served and key not in self._kept_rooms:
                self._kept_rooms[key] = _KeptRoom(now_s, _bound_pods(each))
        for step in steps:
            if step.reason is Reason.MAKES_ROOM and step.beneficiary is not None and len(self._givers) < MAX_REMEMBERED:
                giver = self._givers.setdefault(step.key, _Giver(step.current, now_s))
                giver.at_s = now_s
                giver.beneficiaries.add(step.beneficiary)

    def _check_kept_room(self, key: JobKey, each: JobState | None, now_s: float) -> None:
        """Forget a kept room that was taken. Forget, with a strike, one that was left unused for `bind_s`, or whose job
        ended without it.

        each: the state of the job, None for a deleted one. A job that binds further pods gets `bind_s` again. now_s: by
        the monotonic clock.
        """
        room = self._kept_rooms[key]
        if each is None or not each.is_waiting:
            del self._kept_rooms[key]
            if self._ended_without_its_room(key, each):
                self._add_strikes(key, now_s)
        elif (bound := _bound_pods(each)) > room.bound_pods:
            room.since_s, room.bound_pods = now_s, bound
        elif now_s - room.since_s > self._bind_s:
            del self._kept_rooms[key]
            self._add_strikes(key, now_s)

    def _ended_without_its_room(self, key: JobKey, state: JobState | None) -> bool:
        """Return True if a job that no longer waits has ended without having taken its room.

        state: None for a deleted job.
        """
        return not self._has_started(key) if state is None else state.job.lifecycle is not JobLifecycle.LIVE

    def _add_strikes(self, key: JobKey, now_s: float) -> None:
        """Add a strike to a job and to its namespace, and set `left_unused` on the givers that shrank for the job.

        The first FREE_STRIKES of a namespace begin no back-off. key: of the job that left its room unused. now_s: by
        the monotonic clock.
        """
        for owner, free_strikes in ((key, 0), (key.namespace, FREE_STRIKES)):
            self._owners.setdefault(owner, _StrikeRecord()).add_strike(now_s, free_strikes)
        for giver in self._givers.values():
            giver.left_unused |= key in giver.beneficiaries

    def _settle_giver(self, key: JobKey, jobs: dict[JobKey, JobState], now_s: float) -> None:
        """Forget a giver that needs nothing any more, and add strikes for its beneficiaries that ended without taking
        the room.

        It needs nothing if no beneficiary waits and none has left its room unused, if it has its size again, if it was
        deleted, or if it gave more than FORGET_S ago. jobs: all jobs. now_s: by the monotonic clock.
        """
        giver, state = self._givers[key], jobs.get(key)
        for beneficiary in sorted(giver.beneficiaries):
            each = jobs.get(beneficiary)
            if each is None or not each.is_waiting:
                if self._ended_without_its_room(beneficiary, each) and not giver.left_unused:
                    self._add_strikes(beneficiary, now_s)
                giver.beneficiaries.discard(beneficiary)
        was_taken = not giver.beneficiaries and not giver.left_unused
        if state is None or state.job.replicas >= giver.size or was_taken or now_s - giver.at_s > FORGET_S:
            del self._givers[key]

    def _unused_reason(self, each: JobState, now_s: float) -> str:
        """Return why no room is kept for a waiting job now: its back-off, or that of its namespace; "" without a
        back-off.

        each: the state of the job. now_s: by the monotonic clock.
        """
        key = each.job.key
        for owner, owner_text in ((key, "it"), (key.namespace, f"namespace {key.namespace}")):
            record = self._owners.get(owner)
            if record is not None and now_s < record.until_s:
                times = "once" if record.times == 1 else f"{record.times} times"
                return f"{owner_text} has left room unused {times}; no room is made for it until its back-off ends"
        return ""

    def _forget_old_owners(self, now_s: float) -> None:
        """Forget owners whose last strike is more than FORGET_S + MAX_BACKOFF_S ago.

        Beyond MAX_REMEMBERED also the owners that were stored first. now_s: by the monotonic clock.
        """
        self._owners = {
            key: each for key, each in self._owners.items() if now_s - each.at_s <= FORGET_S + MAX_BACKOFF_S
        }
        while len(self._owners) > MAX_REMEMBERED:
            del self._owners[next(iter(self._owners))]


def _with_mark(each: JobState, reasons: dict[JobKey, str], sizes_before: dict[JobKey, int]) -> JobState:
    """Return the job with its entries of `reasons` as `unbindable` and of `sizes_before` as `size_before`.

    A reason that the job has already stays. The job itself is returned if it has no entry. each: the state of the job.
    """
    why, size_before = reasons.get(each.job.key, ""), sizes_before.get(each.job.key, 0)
    if not why and not size_before:
        return each
    return replace(each, unbindable=each.unbindable or why, size_before=size_before)


def _bound_pods(each: JobState) -> int:
    """Return how many pods of a job have a node, other roles included."""
    return each.bound_workers + sum(each.other_pods)
