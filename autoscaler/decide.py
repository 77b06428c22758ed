"""What is decided at one moment: a pure function of what was seen, the policy and the time. DESIGN §4.

Evict first: a waiting job that fits once elastic workers leave makes just enough of them leave; one that would not
fit even then disturbs nobody. Create late: what is left after every min, in whole workers, goes unit by unit to the
job that gains most by it. Every job gets exactly one step with one reason, and a plan that was carried out is not
taken back by the next one while nothing else happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from autoscaler.evict import Ledger, by_willingness, make_room
from autoscaler.model import Observation, Policy, Reason, Seen, Step
from autoscaler.quota import Quota, least_of, needs_of, total_of
from jobs.model import Job, JobKey, Life, Pause
from kube.shape import PodShape


def decide(seen: Observation, policy: Policy, now_s: float) -> list[Step]:
    """One step a job, by key. now_s: seconds since 1970."""
    if not seen.whole or seen.age_s > policy.stale_s:
        why = "a list failed" if not seen.whole else f"the oldest list is {seen.age_s:.0f} s old"
        return sorted((_hold(each, Reason.STALE, why) for each in seen.jobs), key=lambda step: step.key)
    steps: dict[JobKey, Step] = {}
    live = [each for each in seen.jobs if each.job.life is Life.LIVE]
    steps.update({e.job.key: _hold(e, Reason.SUSPENDED) for e in seen.jobs if e.job.life is Life.SUSPENDED})
    real = Ledger(seen.room.copied(), Quota(seen.queues))
    ledger = real.copied()
    for each in seen.jobs:
        if each.promised:  # room that is on its way counts for who waits, so that nobody leaves for it twice
            ledger.release(each, each.promised)
    for each in live:
        if (stuck := _room_taken(each, policy, now_s)) is not None:
            steps[each.job.key] = stuck
    waiters = sorted((each for each in live if each.waits), key=_turn)
    willing = by_willingness(live) if waiters else []
    for waiter in waiters:
        steps.update(_serve(waiter, willing, (ledger, real), steps))
    runners = [each for each in live if not each.waits and each.job.key not in steps]
    kept = ledger.with_headroom(policy.headroom) if policy.headroom else ledger
    same = not any(each.promised for each in seen.jobs) and not any(step.changes for step in steps.values())
    served = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
    starting = {each.job.queue for each in waiters if steps[each.job.key].reason in served}
    growing = _Growing(ledger, ledger if same else real, kept, bool(waiters), starting)
    steps.update({step.key: step for step in _grow(runners, growing, policy, now_s)})
    return [steps[key] for key in sorted(steps)]


@dataclass(slots=True)
class _Growing:
    """The ledgers that growth has to satisfy: with what is on its way out, without it, and with the headroom kept.

    starting: queues in which a job is about to get its min; nobody grows there before it has. full: groups of alike
    workers for which there is no room any more, and why; growth only takes, so that stays true.
    """

    ledger: Ledger
    real: Ledger
    kept: Ledger
    others_wait: bool
    starting: set[str]
    full: dict[tuple[str, PodShape, int], tuple[Reason, str]] = field(default_factory=dict)

    def refuses(self, job: Job) -> tuple[Reason, str] | None:
        """Why there is no room for one more unit of a job; None when there is."""
        if job.queue in self.starting:
            return Reason.OTHERS_WAIT, f"a job of queue {job.queue} is about to start"
        group = (job.queue, job.shape, job.unit)
        if group in self.full:
            return self.full[group]
        unit = job.queue, job.shape, job.unit
        if all(held.could(*unit) for held in self._each()):
            return None
        self.full[group] = self._why(job)
        return self.full[group]

    def take(self, job: Job) -> None:
        """Charge one more unit everywhere."""
        for held in self._each():
            held.reserve(job.queue, [(job.shape, job.unit)])

    def _each(self) -> list[Ledger]:
        return [self.ledger, *(held for held in (self.real, self.kept) if held is not self.ledger)]

    def _why(self, job: Job) -> tuple[Reason, str]:
        if self.ledger.could(job.queue, job.shape, job.unit):
            if self.real.could(job.queue, job.shape, job.unit):
                return Reason.HEADROOM_KEPT, "the room left is kept free"
            return Reason.NO_FREE_ROOM, "what will be free is not free yet"
        if self.others_wait:
            return Reason.OTHERS_WAIT, "what is free is promised to jobs that wait"
        if not self.ledger.quota.holds(job.queue, needs_of(job.shape, job.unit)):
            return Reason.NO_FREE_ROOM, f"queue {job.queue} is full"
        return Reason.NO_FREE_ROOM, "no whole worker fits on the nodes"


def _turn(seen: Seen) -> tuple[int, str, JobKey]:
    """Who comes first: priority, then age."""
    return -seen.job.priority, seen.job.created, seen.job.key


def _room_taken(seen: Seen, policy: Policy, now_s: float) -> Step | None:
    """A job whose workers above its min have been without a node for too long gives them up."""
    job = seen.job
    if len(seen.living) == seen.placed or seen.waits or not job.elastic or job.pause in (Pause.SHRINK, Pause.BOTH):
        return None
    late = [worker for worker in seen.living if worker.row is None and now_s - worker.since_s > policy.pending_s]
    size = _in_units(max(job.bounds.least, seen.placed), job.bounds.least, job.unit)
    if not late or size >= job.replicas:
        return None
    detail = f"{len(late)} workers without a node for more than {policy.pending_s:g} s"
    return Step(job.key, size, job.replicas, Reason.ROOM_TAKEN, detail)


def _serve(
    waiter: Seen, willing: list[Seen], ledgers: tuple[Ledger, Ledger], steps: dict[JobKey, Step]
) -> Iterator[tuple[JobKey, Step]]:
    """The steps that a waiting job brings about: its own, and those of the jobs that make room.

    ledgers: with what is on its way out, and without.
    """
    ledger, real = ledgers
    job, lacking = waiter.job, least_of(waiter)
    needs = total_of(lacking)
    if not ledger.quota.is_open(job.queue):
        yield job.key, _hold(waiter, Reason.QUEUE_CLOSED, f"queue {job.queue} is closed")
        return
    if not ledger.quota.ever(job.queue, needs):
        yield job.key, _hold(waiter, Reason.OVER_QUOTA, f"its min asks for {_told(needs)}")
        return
    if ledger.reserve(job.queue, lacking):
        if real.reserve(job.queue, lacking):
            yield job.key, _hold(waiter, Reason.SCHEDULERS_TURN, "there is room for its min")
        else:
            yield job.key, _hold(waiter, Reason.WAITS_FOR_ROOM, "workers are on their way out")
        return
    plan = make_room(waiter, lacking, (each for each in willing if each.job.key not in steps), ledger)
    if plan is None:
        yield job.key, _hold(waiter, Reason.NEEDS_MORE, f"its min asks for {_told(needs)}")
        return
    for key, (was, size) in plan.items():
        yield key, Step(key, size, was, Reason.MAKES_ROOM, f"{was - size} workers leave for {job.key}", job.key)
    yield job.key, _hold(waiter, Reason.WAITS_FOR_ROOM, f"{len(plan)} jobs make room")


def _grow(runners: list[Seen], growing: _Growing, policy: Policy, now_s: float) -> Iterator[Step]:
    """Unit by unit to whoever gains most, while whole workers fit by every ledger."""
    grown: dict[JobKey, tuple[Seen, int]] = {}
    heap: list[tuple[float, tuple[int, str, JobKey], Seen]] = []
    for each in runners:
        why = _cannot_grow(each, growing.ledger, policy, now_s) or growing.refuses(each.job)
        if why is not None:
            yield _hold(each, *why)
        elif (gain := _gain(each, each.job.replicas, policy)) < policy.least_gain:
            yield _hold(each, Reason.MARGINAL_GAIN, f"{gain:.1%} by the next {each.job.unit}")
        else:
            heap.append((-gain, _turn(each), each))
    heapq.heapify(heap)
    while heap:
        _, turn, each = heapq.heappop(heap)
        job = each.job
        if (why := growing.refuses(job)) is not None:
            if job.key not in grown:
                yield _hold(each, *why)
            continue
        growing.take(job)
        size = grown.get(job.key, (each, job.replicas))[1] + job.unit
        grown[job.key] = each, size
        gain = _gain(each, size, policy)
        if size + job.unit <= job.most and gain >= policy.least_gain:
            heapq.heappush(heap, (-gain, turn, each))
    for key, (each, size) in grown.items():
        yield Step(key, size, each.job.replicas, Reason.IDLE_ROOM, f"room in queue {each.job.queue}")


def _cannot_grow(seen: Seen, ledger: Ledger, policy: Policy, now_s: float) -> tuple[Reason, str] | None:
    """Why a running job is left alone whatever room there is."""
    job = seen.job
    if job.refused:
        return Reason.REFUSED, job.refused
    if job.bounds.least == job.bounds.most:
        return Reason.RIGID, ""
    if job.pause in (Pause.GROW, Pause.BOTH):
        return Reason.PAUSED, job.pause.value
    if job.replicas + job.unit > job.most:
        return Reason.AT_MAX, f"{job.replicas} of {job.most}"
    if len(seen.workers) != job.replicas or seen.placed != job.replicas:
        return Reason.NOT_READY, f"{seen.placed} of {job.replicas} workers have a node"
    if not ledger.quota.is_open(job.queue):
        return Reason.QUEUE_CLOSED, f"queue {job.queue} is closed"
    pause_s = policy.cooldown_s if job.cooldown_s is None else job.cooldown_s
    if seen.resized_s and now_s - seen.resized_s < pause_s:
        return Reason.COOLDOWN, f"{pause_s - (now_s - seen.resized_s):.0f} s are left of {pause_s:g}"
    return None


def _gain(seen: Seen, size: int, policy: Policy) -> float:
    """How much faster it becomes by its next unit, as a share."""
    return policy.speed(size + seen.job.unit) / policy.speed(size) - 1


def _in_units(size: int, least: int, unit: int) -> int:
    """The largest size that is not above `size` and a multiple of units above the least."""
    return least + (size - least) // unit * unit


def _hold(seen: Seen, reason: Reason, detail: str = "") -> Step:
    return Step(seen.job.key, seen.job.replicas, seen.job.replicas, reason, detail)


def _told(needs: dict[str, int]) -> str:
    return ", ".join(f"{amount} {what}" for what, amount in sorted(needs.items())) or "nothing"
