"""Third phase: give the room that is left after every min to the jobs that gain most by it.

Room is given in whole units: the workers from one size of a job to its next size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from turnout.autoscaler.model import NODES, Identity, JobState, Observation, Policy, Pool, Reason, Step
from turnout.autoscaler.scaling.free_room import FreeRoom
from turnout.autoscaler.scaling.guard import Decision, in_turn
from turnout.autoscaler.scaling.resize_cost import balance_s, is_starting, pays_off
from turnout.jobs.model import Pause, gain

Unit = tuple[Pool, int]  # a pool, and how many workers are added at once, >= 1
_HoldReason = tuple[Reason, str]  # why a job keeps its size: the reason, and a detail for a person
_ROOM_USED_UP: _HoldReason = (Reason.NO_FREE_ROOM, "other jobs have used the room")
_ROOM_SETTLES: _HoldReason = (Reason.ROOM_SETTLES, "the free room has been idle for less than a restart takes")


@dataclass(slots=True)
class RoomToGrow:
    """The room that growth is charged to. An added worker must fit in each of the three rooms."""

    expected: FreeRoom  # the free room together with the room that leaving workers will free
    free: FreeRoom  # the free room now; the same object as `expected` if no worker leaves
    after_headroom: FreeRoom  # `expected` without the headroom; the same object as `expected` without headroom
    any_job_waits: bool  # some job lacks pods to its min
    starting_queues: set[str]  # queues with a waiting job that has room, or for which workers leave; no job grows there
    refusals: dict[Unit, _HoldReason | None] = field(default_factory=dict)  # of each checked unit, None if it had room
    # Room that has been idle for long enough, by NODES or queue and by resource. Growth is charged to it. None if idle
    # time does not matter.
    idle_room: dict[str, dict[str, int]] | None = None
    settling_units: set[Unit] = field(default_factory=set)  # units refused because their room was not idle long enough
    distinct_rooms: tuple[FreeRoom, ...] = ()  # the different objects among the three rooms

    def __post_init__(self) -> None:
        """Collect the distinct rooms. They are compared by identity: most often all three are the same object."""
        self.distinct_rooms = (
            self.expected,
            *(room for room in (self.free, self.after_headroom) if room is not self.expected),
        )

    def refusal(self, unit: Unit) -> _HoldReason | None:
        """Return (reason, detail) why there is no room for a unit; None if there is.

        The first answer for a unit is stored. It ignores idle time and later charges: `take` finds the lack of room
        that they cause.
        """
        if unit not in self.refusals:
            self.refusals[unit] = None if self._has_room(*unit) else self._no_room_reason(*unit)
        return self.refusals[unit]

    def take(self, unit: Unit, at_start: bool = False) -> bool:
        """Charge the workers of a unit to all rooms. Return False, with nothing charged, if there is no room.

        A refused unit is noted in `refusals` or in `settling_units`. at_start: True if the job starts, so that it may
        also use room that has not been idle for long enough.
        """
        if unit not in self.refusals and self.refusal(unit) is not None:
            return False
        if not at_start and not self._is_idle_long_enough(unit):
            self.settling_units.add(unit)
            return False
        pool, pods = unit
        if len(self.distinct_rooms) == 1:
            charged = self.expected.take(pool, pods)
        elif charged := all(room.has_room_for(pool, pods) for room in self.distinct_rooms):
            for room in self.distinct_rooms:
                room.take(pool, pods)
        if not charged:
            self.refusals[unit] = self._no_room_reason(pool, pods)
        elif not at_start:
            for amounts in self._idle_amounts(pool.queue):
                for resource, amount in pool.needs:
                    if resource in amounts:
                        amounts[resource] -= amount * pods
        return charged

    def _is_idle_long_enough(self, unit: Unit) -> bool:
        """Return True if the room for a unit has been idle for long enough, on the nodes and in the queues with a
        limit.
        """
        pool, pods = unit
        for amounts in self._idle_amounts(pool.queue):
            for resource, amount in pool.needs:
                if amounts.get(resource, amount * pods) < amount * pods:
                    return False
        return True

    def _idle_amounts(self, queue: str) -> Iterator[dict[str, int]]:
        """Yield the idle room, by resource, of the nodes, of a queue and of the queues above it. `take` charges these
        dicts.

        A queue without a limit on devices yields none, and nothing is yielded if idle time does not matter.
        """
        if self.idle_room is not None:
            for place in (NODES, *self.expected.quota.chain(queue)):
                if (amounts := self.idle_room.get(place)) is not None:
                    yield amounts

    def copy(self) -> RoomToGrow:
        """Return a copy that can be charged on its own. Its refused units stay refused."""
        expected = self.expected.copy()
        free = expected if self.free is self.expected else self.free.copy()
        after_headroom = expected if self.after_headroom is self.expected else self.after_headroom.copy()
        idle_room = None if self.idle_room is None else {name: dict(each) for name, each in self.idle_room.items()}
        return RoomToGrow(
            expected,
            free,
            after_headroom,
            self.any_job_waits,
            self.starting_queues,
            dict(self.refusals),
            idle_room,
            set(self.settling_units),
        )

    def _has_room(self, pool: Pool, pods: int) -> bool:
        """Return True if workers of a pool fit in each room, its queue is open, and no job is about to start in the
        queue.

        pods: how many workers.
        """
        if pool.queue in self.starting_queues or not self.expected.quota.is_open(pool.queue):
            return False
        return all(room.has_room_for(pool, pods) for room in self.distinct_rooms)

    def _no_room_reason(self, pool: Pool, pods: int) -> _HoldReason:
        """Return (reason, detail) why no more workers of a pool fit. pods: how many workers are requested.

        Charges nothing.
        """
        if not self.expected.quota.is_open(pool.queue):
            return Reason.QUEUE_CLOSED, f"queue {pool.queue} is closed"
        if pool.queue in self.starting_queues:
            return Reason.OTHERS_WAIT, f"a job of queue {pool.queue} is about to start"
        if self.expected.has_room_for(pool, pods):
            if self.free.has_room_for(pool, pods):
                return Reason.HEADROOM_KEPT, "the room left is kept free"
            return Reason.NO_FREE_ROOM, "what will be free is not free yet"
        if self.any_job_waits:
            return Reason.OTHERS_WAIT, "what is free is promised to jobs that wait"
        if not self.expected.quota.holds(pool.queue, pool.needs, pods):
            return Reason.NO_FREE_ROOM, f"queue {pool.queue} is full"
        return Reason.NO_FREE_ROOM, "no whole worker fits on the nodes"


def scale_up(before: Decision, observation: Observation, policy: Policy, now_s: float) -> Decision:
    """Return the decision with a step for each job in `before.running`: it grows, or keeps its size for a reason.

    Jobs whose given room was left unused come first, then jobs that start, since growth costs these nothing. now_s:
    seconds since 1970.
    """
    if not before.running:
        return before
    room = _room_to_grow(before, observation, policy)
    steps: dict[Identity, Step] = {}
    for each in before.running:
        if each.size_before > each.job.replicas and (return_step := _return_step(each, room, now_s)) is not None:
            steps[each.identity] = return_step
    starting, others = list[JobState](), list[JobState]()
    refusals = room.refusals
    check_payback, min_share = False, 2 * policy.restart_s / max(policy.payback_s, 1e-9)
    for each in before.running:
        if each.identity in steps:
            continue
        job = each.job
        why = None if each.ready_to_grow else _not_ready_reason(each, now_s)
        if why is None and job.resize_budget.resized_s:
            why = _cooldown_or_budget_reason(each, policy, now_s)
        if why is None:  # thousands of equal jobs request the same unit
            why = refusals[each.next_growth] if each.next_growth in refusals else room.refusal(each.next_growth)
        if why is None:
            if each.next_gain.per_worker < policy.min_gain:
                why = Reason.MARGINAL_GAIN, f"{each.next_gain.share:.1%} faster by the next worker"
            elif not check_payback and (each.next_gain.share < min_share or job.resize_budget.restart_s is not None):
                check_payback = not pays_off(job, each.next_size, policy)  # growing further may pay
        if why is None:
            (starting if is_starting(each, policy, now_s) else others).append(each)
        else:
            steps[each.identity] = each.hold(*why)
    if starting:
        room, grown = _grow(starting, room, policy, check_payback, at_start=True)
        steps.update(grown)
    _, grown = _grow(others, room, policy, check_payback)
    steps.update(grown)
    return before.with_steps(steps)


def _room_to_grow(before: Decision, observation: Observation, policy: Policy) -> RoomToGrow:
    """Return the room before any growth. Its rooms are those of `before`, so that growth is charged to them.

    Only `after_headroom` is a copy, if there is headroom. The idle amounts are copied, too.
    """
    expected = before.expected
    after_headroom = (
        expected.with_headroom(policy.headroom) if policy.headroom or expected.quota.has_headroom() else expected
    )
    served_reasons = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
    served = [each for each in before.waiting if before.steps[each.identity].reason in served_reasons]
    starting_queues = {each.job.queue for each in served}
    before_growth = observation.idle_room
    idle_room = None if before_growth is None else {name: dict(each) for name, each in before_growth.items()}
    return RoomToGrow(expected, before.free, after_headroom, bool(before.waiting), starting_queues, idle_room=idle_room)


def _return_step(each: JobState, room: RoomToGrow, now_s: float) -> Step | None:
    """Return the step that gives workers back to a job whose given room was left unused; None if none fits or it may
    not grow.

    It gets at most `size_before` workers, which are charged to the room. No cooldown, balance or idle time delays them,
    because the job had these workers before. now_s: seconds since 1970.
    """
    job, size, larger = each.job, each.job.replicas, each.next_size
    if not each.ready_to_grow and _not_ready_reason(each, now_s) is not None:
        return None
    while larger <= min(job.maximum, each.size_before) and room.take((each.pool, larger - size), at_start=True):
        size, larger = larger, job.sizes.larger(larger)
    if size == job.replicas:
        return None
    return Step(job.key, size, job.replicas, Reason.RETURNED, "it gave them to a job that left their room unused")


def _grow(
    jobs: list[JobState], room: RoomToGrow, policy: Policy, check_payback: bool, at_start: bool = False
) -> tuple[RoomToGrow, dict[Identity, Step]]:
    """Decide on jobs that may grow. Return (the room after their growth, identity -> step of each job).

    check_payback: True if a growth may not pay for its restarts. Then such growths are undone, and the room is shared
    out again without those jobs, on a copy. at_start: these jobs start, so that a growth costs them one restart at
    most, and nothing now.
    """
    unprofitable, restarts = set[object](), 1 if at_start else 2
    while True:
        attempt = room.copy() if check_payback else room
        remaining = [each for each in jobs if each.identity not in unprofitable]
        sizes = _assign_growth(remaining, attempt, policy, at_start)
        new_unprofitable = check_payback and {
            each.identity
            for each in jobs
            if each.identity in sizes and not pays_off(each.job, sizes[each.identity], policy, restarts)
        }
        if not new_unprofitable:
            break
        unprofitable |= new_unprofitable
    steps: dict[Identity, Step] = {}
    for each in jobs:
        job = each.job
        if (size := sizes.get(each.identity)) is not None:
            detail = f"room in queue {job.queue}{' as it starts' if at_start else ''}"
            steps[each.identity] = Step(job.key, size, job.replicas, Reason.IDLE_ROOM, detail, at_start=at_start)
        elif each.identity in unprofitable:
            why = f"{each.next_gain.share:.1%} faster by the next worker: no restart is worth it"
            steps[each.identity] = each.hold(Reason.MARGINAL_GAIN, why)
        else:
            settles = None if at_start or each.next_growth not in attempt.settling_units else _ROOM_SETTLES
            steps[each.identity] = each.hold(*(attempt.refusals.get(each.next_growth) or settles or _ROOM_USED_UP))
    return attempt, steps


def _assign_growth(jobs: list[JobState], room: RoomToGrow, policy: Policy, at_start: bool) -> dict[Identity, int]:
    """Charge the growth of jobs to the room. Return identity -> new size; a job that does not grow has no entry.

    The job that gains most gets all it can use, then the next job: two jobs that shared the room would both pay a
    restart. Jobs of equal gain come in the order of their turns. jobs: sorted by ORDER. at_start: True if they start,
    so that idle time does not matter.
    """
    sizes: dict[Identity, int] = {}
    for each in sorted(in_turn(jobs), key=_gain_order):
        if room.refusal(each.next_growth) is None:
            size = _largest_size(each, room, policy, at_start)
            if size > each.job.replicas:
                sizes[each.identity] = size
    return sizes


def _gain_order(each: JobState) -> float:
    """Return a sort key by which the job with the largest gain of its next size comes first."""
    return -each.next_gain.share


def _largest_size(each: JobState, room: RoomToGrow, policy: Policy, at_start: bool) -> int:
    """Charge the growth of a job to the room, and return its new size: as large as fits, while each step gains enough.

    The present size, with nothing charged, if the job does not grow. at_start: True if the job starts.
    """
    job, size, larger = each.job, each.job.replicas, each.next_size
    while larger <= job.maximum and gain(job.curve, job.bounds.minimum, size, larger).per_worker >= policy.min_gain:
        if not room.take((each.pool, larger - size), at_start):
            break
        size, larger = larger, job.sizes.larger(larger)
    return size


def _not_ready_reason(state: JobState, now_s: float) -> _HoldReason | None:
    """Return (reason, detail) why a job that is not `ready_to_grow` keeps its size whatever room there is.

    The reason is a pause, its max, or a worker without a node. None if it may grow. now_s: seconds since 1970.
    """
    job = state.job
    if job.pause is not Pause.NONE:
        if (paused := job.paused(now_s)) in (Pause.GROW, Pause.BOTH):
            return Reason.PAUSED, paused.value
        if state.next_size > job.maximum:
            return Reason.AT_MAX, f"{job.replicas} of {job.maximum}"
    if len(state.workers) != job.replicas or state.bound_workers != job.replicas:
        return Reason.NOT_READY, f"{state.bound_workers} of {job.replicas} workers have a node"
    return None


def _cooldown_or_budget_reason(state: JobState, policy: Policy, now_s: float) -> _HoldReason | None:
    """Return (reason, detail) why a resized job must not grow yet: its cooldown, or a balance below 0. None if it may.

    now_s: seconds since 1970.
    """
    job = state.job
    pause_s, since_s = (
        policy.cooldown_s if job.cooldown_s is None else job.cooldown_s,
        now_s - job.resize_budget.resized_s,
    )
    if since_s < pause_s and not job.resize_budget.at_start:
        return Reason.COOLDOWN, f"{pause_s - since_s:.0f} s are left of {pause_s:g}"
    if (balance := balance_s(job, policy, now_s)) < 0:
        return Reason.BUDGET_SPENT, f"restarts have cost it {-balance:.0f} s more than lending has won it"
    return None
