"""Second phase: serves the jobs that wait, in their order; elastic workers leave where that lets one of them start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from turnout.autoscaler.model import JobState, Observation, Policy, Reason, Step
from turnout.autoscaler.scaling.cost_model import exhausted, rich
from turnout.autoscaler.scaling.decision import Decision
from turnout.autoscaler.scaling.guard import in_queue_order
from turnout.autoscaler.scaling.quota import least_of, total_of
from turnout.autoscaler.scaling.reservations import CapacityRequest, Reservations
from turnout.autoscaler.scaling.turns import in_turn
from turnout.autoscaler.scaling.victims import Preemptor, may_give
from turnout.kube.pod_shape import amount_text


def preempt(before: Decision, observation: Observation, policy: Policy, now_s: float) -> Decision:
    """Return the decision with a step for each waiting job, and for each job that makes room.

    In a strict queue a job that nobody can help blocks all behind it: room made for them would be in vain.
    """
    if not before.waiting:
        return before
    # What is charged to who waits is not free, also where nobody leaves yet.
    free, expected = before.free, before.free.copied() if before.expected is before.free else before.expected
    wealthy, poor = partial(rich, policy=policy, now_s=now_s), partial(exhausted, policy=policy, now_s=now_s)
    able = [each for each in in_queue_order(observation) if each.can_shrink and each.token not in before.steps]
    preemptor = Preemptor(able, expected, wealthy, poor, partial(may_give, now_s=now_s))
    steps: dict[object, Step] = {}
    blocked: dict[str, JobState] = {}  # by strict queue, who blocks it
    for waiter in in_turn(before.waiting):
        queue = waiter.job.queue
        if (head := blocked.get(queue)) is not None:
            detail = f"its queue is strict, and {head.job.key} comes first"
            steps[waiter.token] = waiter.hold(Reason.OTHERS_WAIT, detail)
            continue
        for each, step in _serve(waiter, preemptor, expected, free):
            steps[each.token] = _with_others(step, steps.get(each.token))
        if (
            queue in observation.queues
            and observation.queues[queue].strict
            and steps[waiter.token].reason is Reason.NEEDS_MORE
        ):
            blocked[queue] = waiter
    alike = before.expected is before.free and not any(step.changes for step in steps.values())
    running = [each for each in before.running if each.token not in steps]
    return replace(before.with_steps(steps), running=running, free=expected if alike else free, expected=expected)


def request_of(state: JobState) -> CapacityRequest:
    """Return the request of a waiting job: the pods that it lacks to its min, under the switch that it requires."""
    near_rows = tuple(worker.row for worker in state.living if worker.row is not None)
    return CapacityRequest(state.job.queue, least_of(state), state.job.spread.tier, near_rows, state.job.key.namespace)


def _serve(
    waiter: JobState, preemptor: Preemptor, expected: Reservations, free: Reservations
) -> Iterator[tuple[JobState, Step]]:
    """Give the steps that a waiting job brings about: its own, and those of the jobs that make room."""
    job, request = waiter.job, request_of(waiter)
    needs = total_of(request.pods)
    if not expected.quota.is_open(job.queue):
        yield waiter, waiter.hold(Reason.QUEUE_CLOSED, f"queue {job.queue} is closed")
    elif not expected.quota.fits_empty(job.queue, needs):
        yield waiter, waiter.hold(Reason.OVER_QUOTA, f"its min asks for {_amounts_text(needs)}")
    elif expected.reserve(request):
        preemptor.note_served(request)
        if free.reserve(request):
            yield waiter, waiter.hold(Reason.SCHEDULERS_TURN, "there is room for its min")
        else:
            yield waiter, waiter.hold(Reason.WAITS_FOR_ROOM, "workers are on their way out")
    elif (victims := preemptor.select_victims(request)) is None:
        where = "" if request.tier is None else f" under one switch of tier {request.tier}"
        yield waiter, waiter.hold(Reason.NEEDS_MORE, f"its min asks for {_amounts_text(needs)}{where}")
    else:
        for each, size in victims.values():
            current = each.job.replicas
            detail = f"{_leave(current - size)} for {job.key}"
            yield each, Step(each.job.key, size, current, Reason.MAKES_ROOM, detail, job.key)
        who = "1 job makes" if len(victims) == 1 else f"{len(victims)} jobs make"
        yield waiter, waiter.hold(Reason.WAITS_FOR_ROOM, f"{who} room")


def _with_others(step: Step, before: Step | None) -> Step:
    """Return the step of a job that gives to several jobs, with the first of them as beneficiary."""
    if before is None or before.beneficiary is None:
        return step
    detail = f"{_leave(step.current - step.target)} for {before.beneficiary} and others"
    return step._replace(detail=detail, beneficiary=before.beneficiary)


def _leave(workers: int) -> str:
    return "1 worker leaves" if workers == 1 else f"{workers} workers leave"


def _amounts_text(needs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(amount_text(what, amount) for what, amount in needs) or "nothing"
