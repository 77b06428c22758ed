"""What is decided at one moment: a pure function of what was seen, the policy and the time. DESIGN §4.

Evict first: a waiting job that fits once elastic workers leave makes just enough of them leave; one that would not
fit even then disturbs nobody. Create late: what is left after every min, in whole workers, goes unit by unit to the
job that gains most by it. Every job gets exactly one step with one reason, and applying a plan and deciding again
changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from autoscaler.evict import Ledger, make_room
from autoscaler.model import Observation, Policy, Reason, Seen, Step
from autoscaler.quota import Quota, least_of, needs_of, total_of
from jobs.model import JobKey, Life, Pause


def decide(seen: Observation, policy: Policy, now_s: float) -> list[Step]:
    """One step a job, by key. now_s: seconds since 1970."""
    if not seen.whole or seen.age_s > policy.stale_s:
        why = "a list failed" if not seen.whole else f"the oldest list is {seen.age_s:.0f} s old"
        return sorted((_hold(each, Reason.STALE, why) for each in seen.jobs), key=lambda step: step.key)
    steps: dict[JobKey, Step] = {}
    live = [each for each in seen.jobs if each.job.life is Life.LIVE]
    steps.update({e.job.key: _hold(e, Reason.SUSPENDED) for e in seen.jobs if e.job.life is Life.SUSPENDED})
    real = Ledger(seen.room.copied(), Quota(seen.queues), {each.job.key: each.job.replicas for each in live})
    ledger = real.copied()
    for each in seen.jobs:  # room that is on its way counts for who waits, so that nobody leaves for it twice
        ledger.release(each, each.promised)
    for each in live:
        if (stuck := _room_taken(each, policy, now_s)) is not None:
            steps[each.job.key] = stuck
            ledger.sizes[each.job.key] = stuck.workers
    waiters = sorted((each for each in live if each.waits), key=_turn)
    for waiter in waiters:
        steps.update(_serve(waiter, live, (ledger, real), steps))
    runners = [each for each in live if not each.waits and each.job.key not in steps]
    growing = (ledger, real, ledger.with_headroom(policy.headroom))
    steps.update({step.key: step for step in _grow(runners, growing, policy, now_s, bool(waiters))})
    return [steps[key] for key in sorted(steps)]


def _turn(seen: Seen) -> tuple[int, str, JobKey]:
    """Who comes first: priority, then age."""
    return -seen.job.priority, seen.job.created, seen.job.key


def _room_taken(seen: Seen, policy: Policy, now_s: float) -> Step | None:
    """A job whose workers above its min have been without a node for too long gives them up."""
    job = seen.job
    if not job.elastic or seen.waits or job.pause in (Pause.SHRINK, Pause.BOTH):
        return None
    late = [worker for worker in seen.living if worker.row is None and now_s - worker.since_s > policy.pending_s]
    size = _in_units(max(job.bounds.least, seen.placed), job.bounds.least, job.unit)
    if not late or size >= job.replicas:
        return None
    detail = f"{len(late)} workers without a node for more than {policy.pending_s:g} s"
    return Step(job.key, size, job.replicas, Reason.ROOM_TAKEN, detail)


def _serve(
    waiter: Seen, live: list[Seen], ledgers: tuple[Ledger, Ledger], steps: dict[JobKey, Step]
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
    victims = [each for each in live if each.job.key not in steps and each is not waiter]
    plan = make_room(waiter, lacking, victims, ledger)
    if plan is None:
        yield job.key, _hold(waiter, Reason.NEEDS_MORE, f"its min asks for {_told(needs)}")
        return
    for key, (was, size) in plan.items():
        yield key, Step(key, size, was, Reason.MAKES_ROOM, f"{was - size} workers leave for {job.key}", job.key)
    yield job.key, _hold(waiter, Reason.WAITS_FOR_ROOM, f"{len(plan)} jobs make room")


def _grow(
    runners: list[Seen], ledgers: tuple[Ledger, ...], policy: Policy, now_s: float, others_wait: bool
) -> Iterator[Step]:
    """Unit by unit to whoever gains most, while whole workers fit by every ledger; the last one keeps the headroom."""
    ledger = ledgers[0]
    sizes, ends = {}, {}
    heap: list[tuple[float, tuple[int, str, JobKey], Seen]] = []
    for each in runners:
        if (why := _cannot_grow(each, ledger, policy, now_s)) is not None:
            yield _hold(each, *why)
            continue
        sizes[each.job.key] = each.job.replicas
        heap.append((-_gain(each, each.job.replicas, policy), _turn(each), each))
    heapq.heapify(heap)
    while heap:
        minus_gain, turn, each = heapq.heappop(heap)
        job, size = each.job, sizes[each.job.key]
        if -minus_gain < policy.least_gain:
            ends[job.key] = (Reason.MARGINAL_GAIN, f"{-minus_gain:.1%} by the next {job.unit}")
        elif not all(held.copied().reserve(job.queue, [(job.shape, job.unit)]) for held in ledgers):
            ends[job.key] = _why_no_room(each, ledgers, others_wait)
        else:
            for held in ledgers:
                held.reserve(job.queue, [(job.shape, job.unit)])
            sizes[job.key] = size + job.unit
            if size + 2 * job.unit <= job.most:
                heapq.heappush(heap, (-_gain(each, size + job.unit, policy), turn, each))
    for each in runners:
        key = each.job.key
        if key not in sizes:
            continue
        if sizes[key] > each.job.replicas:
            yield Step(key, sizes[key], each.job.replicas, Reason.IDLE_ROOM, f"room in queue {each.job.queue}")
        else:
            yield _hold(each, *ends.get(key, (Reason.AT_MAX, "")))


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


def _why_no_room(seen: Seen, ledgers: tuple[Ledger, ...], others_wait: bool) -> tuple[Reason, str]:
    job, (ledger, real, _) = seen.job, ledgers
    unit = [(job.shape, job.unit)]
    if ledger.copied().reserve(job.queue, unit):
        if real.copied().reserve(job.queue, unit):
            return Reason.HEADROOM_KEPT, "the room left is kept free"
        return Reason.NO_FREE_ROOM, "what will be free is not free yet"
    if others_wait:
        return Reason.OTHERS_WAIT, "what is free is promised to jobs that wait"
    if not ledger.quota.holds(job.queue, needs_of(job.shape, job.unit)):
        return Reason.NO_FREE_ROOM, f"queue {job.queue} is full"
    return Reason.NO_FREE_ROOM, "no whole worker fits on the nodes"


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
