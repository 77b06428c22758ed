"""Third phase: gives the room left after every min, in whole units, to the job that gains most, then to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from turnout.autoscaler.model import NODES, JobState, Observation, Policy, Pool, Reason, Step
from turnout.autoscaler.scaling.free_room import FreeRoom
from turnout.autoscaler.scaling.guard import Decision, in_turn
from turnout.autoscaler.scaling.resize_cost import balance_s, is_starting, pays_off
from turnout.jobs.model import Pause
from turnout.jobs.scaling_curve import gain

Unit = tuple[Pool, int]  # so many more workers of one pool
_Why = tuple[Reason, str]
_OTHERS_FIRST: _Why = (Reason.NO_FREE_ROOM, "others came first")
_SETTLES: _Why = (Reason.ROOM_SETTLES, "what is free has been idle for less than a restart takes")


@dataclass(slots=True)
class RoomToGrow:
    """The room that growth is charged to: with leaving workers, without them, and after the headroom."""

    expected: FreeRoom
    free: FreeRoom
    after_headroom: FreeRoom
    others_wait: bool
    starting: set[str]
    full: dict[Unit, _Why | None] = field(default_factory=dict)
    settled: dict[str, dict[str, int]] | None = None
    unsettled: set[Unit] = field(default_factory=set)
    distinct: tuple[FreeRoom, ...] = ()  # of the three, each once

    def __post_init__(self) -> None:
        """Collect the different reservations. They are compared by identity: most often all three are one."""
        self.distinct = (
            self.expected,
            *(room for room in (self.free, self.after_headroom) if room is not self.expected),
        )

    def refusal(self, unit: Unit) -> _Why | None:
        """Return why there was no room for so many more workers before any growth; None if there was."""
        if unit not in self.full:
            self.full[unit] = None if self._has_room(*unit) else self._no_room_reason(*unit)
        return self.full[unit]

    def take(self, unit: Unit, at_start: bool = False) -> bool:
        """Charge additional workers to all rooms.

        Return False, with nothing charged, if there is no room. at_start: the job starts, so it may also use room that
        was freed a moment ago.
        """
        if unit not in self.full and self.refusal(unit) is not None:
            return False
        if not at_start and not self._is_settled(unit):
            self.unsettled.add(unit)
            return False
        pool, pods = unit
        if len(self.distinct) == 1:
            done = self.expected.take(pool, pods)
        elif done := all(room.has_room_for(pool, pods) for room in self.distinct):
            for room in self.distinct:
                room.take(pool, pods)
        if not done:
            self.full[unit] = self._no_room_reason(pool, pods)
        elif not at_start:
            for amounts in self._settled_amounts(pool.queue):
                for what, amount in pool.needs:
                    if what in amounts:
                        amounts[what] -= amount * pods
        return done

    def _is_settled(self, unit: Unit) -> bool:
        """Return True if enough room for so many more workers has been idle for long enough."""
        pool, pods = unit
        for amounts in self._settled_amounts(pool.queue):
            for what, amount in pool.needs:
                if amounts.get(what, amount * pods) < amount * pods:
                    return False
        return True

    def _settled_amounts(self, queue: str) -> Iterator[dict[str, int]]:
        """Give the room idle for long enough on the nodes, in a queue and above it, where that is bounded."""
        if self.settled is not None:
            for place in (NODES, *self.expected.quota.chain(queue)):
                if (amounts := self.settled.get(place)) is not None:
                    yield amounts

    def copied(self) -> RoomToGrow:
        """Copy everything, so that the copy can be charged. A unit that was full stays full."""
        expected = self.expected.copied()
        free = expected if self.free is self.expected else self.free.copied()
        after_headroom = expected if self.after_headroom is self.expected else self.after_headroom.copied()
        settled = None if self.settled is None else {name: dict(each) for name, each in self.settled.items()}
        return RoomToGrow(
            expected,
            free,
            after_headroom,
            self.others_wait,
            self.starting,
            dict(self.full),
            settled,
            set(self.unsettled),
        )

    def _has_room(self, pool: Pool, pods: int) -> bool:
        if pool.queue in self.starting or not self.expected.quota.is_open(pool.queue):
            return False
        return all(room.has_room_for(pool, pods) for room in self.distinct)

    def _no_room_reason(self, pool: Pool, pods: int) -> _Why:
        """Return why workers of this queue and shape may not be added: the queue is closed, others wait, headroom, no
        room.
        """
        if not self.expected.quota.is_open(pool.queue):
            return Reason.QUEUE_CLOSED, f"queue {pool.queue} is closed"
        if pool.queue in self.starting:
            return Reason.OTHERS_WAIT, f"a job of queue {pool.queue} is about to start"
        if self.expected.has_room_for(pool, pods):
            if self.free.has_room_for(pool, pods):
                return Reason.HEADROOM_KEPT, "the room left is kept free"
            return Reason.NO_FREE_ROOM, "what will be free is not free yet"
        if self.others_wait:
            return Reason.OTHERS_WAIT, "what is free is promised to jobs that wait"
        if not self.expected.quota.holds(pool.queue, pool.needs, pods):
            return Reason.NO_FREE_ROOM, f"queue {pool.queue} is full"
        return Reason.NO_FREE_ROOM, "no whole worker fits on the nodes"


def scale_up(before: Decision, observation: Observation, policy: Policy, now_s: float) -> Decision:
    """Return the decision with a step for each running job: larger, or left alone with the reason.

    Jobs that gave in vain come first, then those that start: growth costs them nothing.
    """
    if not before.running:
        return before
    growing = _room_to_grow(before, observation, policy)
    steps: dict[object, Step] = {}
    for each in before.running:
        if each.size_before > each.job.replicas and (back := _return_step(each, growing, now_s)) is not None:
            steps[each.token] = back
    starting, able = list[JobState](), list[JobState]()
    full = growing.full
    any_poor, enough = False, 2 * policy.restart_s / max(policy.payback_s, 1e-9)
    for each in before.running:
        if each.token in steps:
            continue
        job = each.job
        why = None if each.steady else _hold_reason(each, now_s)
        if why is None and job.resize_budget.resized_s:
            why = _delay_reason(each, policy, now_s)
        if why is None:  # thousands of equal jobs request the same unit
            why = full[each.unit] if each.unit in full else growing.refusal(each.unit)
        if why is None:
            if each.next_gain.per_worker < policy.least_gain:
                why = Reason.MARGINAL_GAIN, f"{each.next_gain.share:.1%} faster by the next worker"
            elif not any_poor and (each.next_gain.share < enough or job.resize_budget.restart_s is not None):
                any_poor = not pays_off(job, each.next_size, policy)  # perhaps it does by growing further
        if why is None:
            (starting if is_starting(each, policy, now_s) else able).append(each)
        else:
            steps[each.token] = each.hold(*why)
    if starting:
        growing, grown = _grow(starting, growing, policy, any_poor, at_start=True)
        steps.update(grown)
    _, grown = _grow(able, growing, policy, any_poor)
    steps.update(grown)
    return before.with_steps(steps)


def _room_to_grow(before: Decision, observation: Observation, policy: Policy) -> RoomToGrow:
    """Return the room that growth is charged to at first."""
    expected = before.expected
    after_headroom = (
        expected.with_headroom(policy.headroom) if policy.headroom or expected.quota.keeps_room() else expected
    )
    served = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
    starting = {each.job.queue for each in before.waiting if before.steps[each.token].reason in served}
    settled = None if observation.settled is None else {name: dict(each) for name, each in observation.settled.items()}
    return RoomToGrow(expected, before.free, after_headroom, bool(before.waiting), starting, settled=settled)


def _return_step(each: JobState, growing: RoomToGrow, now_s: float) -> Step | None:
    """Return a job's step by which it gets back workers whose room was left unused, as far as there is room; else None.

    Neither a cooldown, nor its balance, nor the idle time of the room delays it, because it had these workers before.
    """
    job, size, larger = each.job, each.job.replicas, each.next_size
    if not each.steady and _hold_reason(each, now_s) is not None:
        return None
    while larger <= min(job.most, each.size_before) and growing.take((each.pool, larger - size), at_start=True):
        size, larger = larger, job.sizes.larger(larger)
    if size == job.replicas:
        return None
    return Step(job.key, size, job.replicas, Reason.RETURNED, "it gave them to a job that left their room unused")


def _grow(
    able: list[JobState], growing: RoomToGrow, policy: Policy, any_poor: bool, at_start: bool = False
) -> tuple[RoomToGrow, dict[object, Step]]:
    """Decide on the jobs that may grow. A growth that would not pay is taken back, so that others get the room.

    Returns the room that is left, and the steps by token. at_start: these jobs start.
    """
    poor, restarts = set[object](), 1 if at_start else 2
    while True:
        attempt = growing.copied() if any_poor else growing
        some = [each for each in able if each.token not in poor]
        sizes = _share_out(some, attempt, policy, at_start)
        late = any_poor and {
            each.token
            for each in able
            if each.token in sizes and not pays_off(each.job, sizes[each.token], policy, restarts)
        }
        if not late:
            break
        poor |= late
    steps: dict[object, Step] = {}
    for each in able:
        job = each.job
        if (size := sizes.get(each.token)) is not None:
            room = f"room in queue {job.queue}{' as it starts' if at_start else ''}"
            steps[each.token] = Step(job.key, size, job.replicas, Reason.IDLE_ROOM, room, at_start=at_start)
        elif each.token in poor:
            why = f"{each.next_gain.share:.1%} faster by the next worker: no restart is worth it"
            steps[each.token] = each.hold(Reason.MARGINAL_GAIN, why)
        else:
            young = None if at_start or each.unit not in attempt.unsettled else _SETTLES
            steps[each.token] = each.hold(*(attempt.full.get(each.unit) or young or _OTHERS_FIRST))
    return attempt, steps


def _share_out(able: list[JobState], growing: RoomToGrow, policy: Policy, at_start: bool) -> dict[object, int]:
    """Return the sizes that jobs get, by token. The job that gains most gets all it can use, then the next.

    If two jobs shared the room, each would pay a restart. Jobs of equal gain come in order.
    """
    sizes: dict[object, int] = {}
    for each in sorted(in_turn(able), key=_gains_most):
        if growing.refusal(each.unit) is None:
            size = _largest_size(each, growing, policy, at_start)
            if size > each.job.replicas:
                sizes[each.token] = size
    return sizes


def _gains_most(each: JobState) -> float:
    """Return a sort key: the largest gain of a job's next size comes first."""
    return -each.next_gain.share


def _largest_size(each: JobState, growing: RoomToGrow, policy: Policy, at_start: bool) -> int:
    """Charge and return the size that a job gets: as large as there is room, while each step is worth it."""
    job, size, larger = each.job, each.job.replicas, each.next_size
    while larger <= job.most and gain(job.curve, job.bounds.least, size, larger).per_worker >= policy.least_gain:
        if not growing.take((each.pool, larger - size), at_start):
            break
        size, larger = larger, job.sizes.larger(larger)
    return size


def _hold_reason(state: JobState, now_s: float) -> _Why | None:
    """Return why a running job keeps its size whatever room there is: a pause, its max, or workers without a node."""
    job = state.job
    if job.pause is not Pause.NONE:
        if (paused := job.paused(now_s)) in (Pause.GROW, Pause.BOTH):
            return Reason.PAUSED, paused.value
        if state.next_size > job.most:
            return Reason.AT_MAX, f"{job.replicas} of {job.most}"
    if len(state.workers) != job.replicas or state.bound_workers != job.replicas:
        return Reason.NOT_READY, f"{state.bound_workers} of {job.replicas} workers have a node"
    return None


def _delay_reason(state: JobState, policy: Policy, now_s: float) -> _Why | None:
    """Return why a job that was resized before is not resized again yet; None if it may be."""
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
