"""Decides at one moment, as a pure function of an observation, the policy and the time. docs/design.md 4.

Preempt first: a waiting job that fits once elastic workers leave makes just enough of them leave. A job that would not
fit even then disturbs nobody.

Scale up last: the room left after every min goes, in whole workers, to the job that gains most by it. That job gets as
much as it can use, then the next one.

Every job gets exactly one step with one reason. While nothing else happens, the next plan does not take back what this
one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from turnout.autoscaler.model import (
    ORDER,
    AdminOverride,
    JobState,
    Observation,
    Policy,
    Queue,
    Reason,
    Step,
    TerminatingPod,
    pool_of,
)
from turnout.autoscaler.scaling.cost_model import in_debt, rich
from turnout.autoscaler.scaling.preempt import Preemptor, may_give
from turnout.autoscaler.scaling.quota import Quota, least_of, total_of
from turnout.autoscaler.scaling.reservations import CapacityRequest, Reservations
from turnout.autoscaler.scaling.scale_up import Growing, grow


def decide(seen: Observation, policy: Policy, now_s: float) -> list[Step]:
    """Return one step for each job, in the order of the jobs. now_s: seconds since 1970."""
    if (why := _nothing_at_all(seen, policy)) is not None:
        return [each.hold(*why) for each in seen.jobs]
    if seen.standing is AdminOverride.RELEASE:
        return [_released(each) for each in seen.jobs]
    steps: dict[object, Step] = {}  # by the token of a JobState
    waiters, runners, going = list[JobState](), list[JobState](), list[JobState]()
    unread = {name: queue.faults[0] for name, queue in seen.queues.items() if queue.faults}
    ordered = seen.jobs if seen.in_turn else sorted(seen.jobs, key=ORDER)
    for each in ordered:
        if each.promised and _goes(each, policy, now_s):
            going.append(each)
        if unread and each.job.queue in unread:
            steps[each.token] = each.hold(Reason.STALE, unread[each.job.queue])
        elif each.waits and each.unbindable:
            steps[each.token] = each.hold(Reason.UNSCHEDULABLE, each.unbindable)
        elif each.waits:
            waiters.append(each)
        elif each.steady:
            if each.hold_step is None:
                runners.append(each)
        elif (stuck := _room_taken(each, policy, now_s)) is not None:
            steps[each.token] = stuck
        elif each.hold_step is None:
            runners.append(each)
    real, same = Reservations(seen.room.copied(), Quota(seen.queues)), not going and not seen.leaving
    ledger = _with_promised(real, going, seen.leaving) if waiters or not same else real
    if waiters:
        wealthy, poor = partial(rich, policy=policy, now_s=now_s), partial(in_debt, policy=policy, now_s=now_s)
        able = [each for each in ordered if each.gives and each.token not in steps]
        givers = Preemptor(able, ledger, wealthy, poor, partial(may_give, now_s=now_s))
        same &= not _serve_all(waiters, givers, (ledger, real), seen.queues, steps)
        runners = [each for each in runners if each.token not in steps]
    kept = ledger.with_headroom(policy.headroom) if policy.headroom or ledger.quota.keeps() else ledger
    growing = _growing(ledger, ledger if same else real, kept, waiters, steps)
    growing.settled = None if seen.settled is None else {name: dict(each) for name, each in seen.settled.items()}
    grow(runners, growing, policy, now_s, steps)
    return [step for each in seen.jobs if (step := steps.get(each.token) or each.hold_step) is not None]


def _with_others(step: Step, before: Step | None) -> Step:
    """A job that has already given to somebody else is told with whom it gave first to."""
    if before is None or before.beneficiary is None:
        return step
    detail = f"{_leave(step.current - step.target)} for {before.beneficiary} and others"
    return step._replace(detail=detail, beneficiary=before.beneficiary)


def _serve_all(
    waiters: list[JobState],
    givers: Preemptor,
    ledgers: tuple[Reservations, Reservations],
    queues: Mapping[str, Queue],
    steps: dict[object, Step],
) -> bool:
    """Put the steps that waiting jobs bring about, in their turn, into `steps`; return True if anybody has to leave.

    In a strict queue a job that nobody can help blocks all behind it: room made for them would be in vain.
    """
    blocked: dict[str, JobState] = {}
    shrinks = False
    for waiter in waiters:
        queue = waiter.job.queue
        if (head := blocked.get(queue)) is not None:
            steps[waiter.token] = waiter.hold(
                Reason.OTHERS_WAIT, f"its queue is strict, and {head.job.key} comes first"
            )
            continue
        for each, step in _serve(waiter, givers, *ledgers):
            steps[each.token] = _with_others(step, steps.get(each.token))
            shrinks = shrinks or step.changes
        if queue in queues and queues[queue].strict and steps[waiter.token].reason is Reason.NEEDS_MORE:
            blocked[queue] = waiter
    return shrinks


def _goes(seen: JobState, policy: Policy, now_s: float) -> bool:
    """True if its workers can be expected to go.

    A controller that has not followed a resize for long may never do so.
    """
    if seen.overdue:
        return False
    resized_s = seen.job.bank.resized_s
    late = resized_s and seen.job.wish is None and now_s - resized_s > policy.promise_s
    return not late or any(worker.leaving for worker in seen.workers)


def _with_promised(real: Reservations, going: Iterable[JobState], leaving: Iterable[TerminatingPod]) -> Reservations:
    """Copy what is left, with the room that leaving workers will free, so that nobody leaves for it twice."""
    ledger = real.copied()
    for each in going:
        ledger.release(each.pool, each.promised)
    for pod in leaving:
        ledger.release(pool_of(pod.queue, pod.shape), (pod.row,))
    return ledger


def _nothing_at_all(seen: Observation, policy: Policy) -> tuple[Reason, str] | None:
    """Say why nobody is changed, whatever there is to do: observations that cannot be trusted are not acted on."""
    if not seen.whole:
        return Reason.STALE, "a list failed"
    if seen.age_s > policy.stale_s:
        return Reason.STALE, f"the oldest list is {seen.age_s:.0f} s old"
    if seen.jumped_s:
        return Reason.CLOCK_JUMPED, f"a clock has jumped by {seen.jumped_s:.0f} s"
    if seen.unready > policy.most_unready:
        return Reason.NODES_UNREADY, f"{seen.unready:.0%} of the nodes are not ready"
    return (Reason.ALL_PAUSED, "an admin has stopped all changes") if seen.standing is AdminOverride.PAUSE else None


def _released(seen: JobState) -> Step:
    """Make the step that brings a job back to its min. An owner's pause does not stop it: lending itself ends."""
    job = seen.job
    if not job.elastic or job.replicas <= job.bounds.least:
        return seen.hold(Reason.ALL_PAUSED, "an admin takes back everything that is lent")
    return Step(job.key, job.bounds.least, job.replicas, Reason.RELEASED, "an admin takes back everything that is lent")


def _growing(
    ledger: Reservations, real: Reservations, kept: Reservations, waiters: list[JobState], steps: dict[object, Step]
) -> Growing:
    served = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
    starting = {each.job.queue for each in waiters if steps[each.token].reason in served}
    return Growing(ledger, real, kept, bool(waiters), starting)


def _room_taken(seen: JobState, policy: Policy, now_s: float) -> Step | None:
    """Make the step of a job that gives up workers above its min, which have been without a node for too long."""
    job = seen.job
    if len(seen.living) == seen.placed or not may_give(seen, now_s):
        return None
    late = [worker for worker in seen.living if worker.row is None and now_s - worker.since_s > policy.pending_s]
    size = max(job.bounds.least, job.sizes.at_most(seen.placed))
    if not late or size >= job.replicas:
        return None
    detail = f"{len(late)} workers without a node for more than {policy.pending_s:g} s"
    return Step(job.key, size, job.replicas, Reason.ROOM_TAKEN, detail)


def wish_of(seen: JobState) -> CapacityRequest:
    """Ask for the pods that a waiting job lacks to its min, as near to its other pods as its gang demands."""
    near = tuple(worker.row for worker in seen.living if worker.row is not None)
    return CapacityRequest(seen.job.queue, least_of(seen), seen.job.spread.tier, near, seen.job.key.namespace)


def _serve(
    waiter: JobState, givers: Preemptor, ledger: Reservations, real: Reservations
) -> Iterator[tuple[JobState, Step]]:
    """Give the steps that a waiting job brings about: its own, and those of the jobs that make room."""
    job, wish = waiter.job, wish_of(waiter)
    needs = total_of(wish.pods)
    if not ledger.quota.is_open(job.queue):
        yield waiter, waiter.hold(Reason.QUEUE_CLOSED, f"queue {job.queue} is closed")
    elif not ledger.quota.ever(job.queue, needs):
        yield waiter, waiter.hold(Reason.OVER_QUOTA, f"its min asks for {_told(needs)}")
    elif ledger.reserve(wish):
        givers.served(wish)
        if real.reserve(wish):
            yield waiter, waiter.hold(Reason.SCHEDULERS_TURN, "there is room for its min")
        else:
            yield waiter, waiter.hold(Reason.WAITS_FOR_ROOM, "workers are on their way out")
    elif (plan := givers.make_room(wish)) is None:
        where = "" if wish.tier is None else f" under one switch of tier {wish.tier}"
        yield waiter, waiter.hold(Reason.NEEDS_MORE, f"its min asks for {_told(needs)}{where}")
    else:
        for each, size in plan.values():
            was = each.job.replicas
            detail = f"{_leave(was - size)} for {job.key}"
            yield each, Step(each.job.key, size, was, Reason.MAKES_ROOM, detail, job.key)
        who = "1 job makes" if len(plan) == 1 else f"{len(plan)} jobs make"
        yield waiter, waiter.hold(Reason.WAITS_FOR_ROOM, f"{who} room")


def _leave(workers: int) -> str:
    return "1 worker leaves" if workers == 1 else f"{workers} workers leave"


def _told(needs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{amount} {what}" for what, amount in needs) or "nothing"
