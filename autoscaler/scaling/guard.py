"""First phase: decide on the jobs that would not change even with free room.

This module also has the order of jobs, and the decision that all phases extend. An observation that cannot be trusted
changes nothing. Jobs that no scheduler can bind, jobs of unreadable queues and jobs with workers without a node get
their step before any room is shared out. Cooldowns, pauses of growth and spent budgets are in scale_up.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from turnout.autoscaler.model import (
    ORDER,
    AdminOverride,
    Identity,
    JobState,
    Observation,
    Policy,
    Reason,
    Step,
    TerminatingPod,
    pool_of,
)
from turnout.autoscaler.scaling.free_room import FreeRoom, Quota
from turnout.jobs.model import JobKey, Pause


def guard(observation: Observation, policy: Policy, now_s: float) -> Decision:
    """Return the first decision: steps for jobs that would not change even with free room, and the waiting and running
    jobs.

    now_s: seconds since 1970. If no job may change, or an admin takes all lent room back, every job gets its step.
    """
    if (why := _hold_for_all(observation, policy)) is not None:
        return _same_for_all(observation, lambda each: each.hold(*why))
    if observation.admin_override is AdminOverride.RELEASE:
        return _same_for_all(observation, _release_step)
    steps: dict[Identity, Step] = {}
    waiting, running, leaving_jobs = list[JobState](), list[JobState](), list[JobState]()
    queue_faults = {name: queue.faults[0] for name, queue in observation.queues.items() if queue.faults}
    for each in in_queue_order(observation):
        if each.promised and _will_leave(each, policy, now_s):
            leaving_jobs.append(each)
        if queue_faults and each.job.queue in queue_faults:
            steps[each.identity] = each.hold(Reason.STALE, queue_faults[each.job.queue])
        elif each.is_waiting and each.unbindable:
            steps[each.identity] = each.hold(Reason.UNSCHEDULABLE, each.unbindable)
        elif each.is_waiting:
            waiting.append(each)
        elif each.ready_to_grow:
            if each.hold_step is None:
                running.append(each)
        elif (shrink := _room_taken_step(each, policy, now_s)) is not None:
            steps[each.identity] = shrink
        elif each.hold_step is None:
            running.append(each)
    free = FreeRoom(observation.room.copy(), Quota(observation.queues))
    expected = (
        _with_promised(free, leaving_jobs, observation.terminating_pods)
        if leaving_jobs or observation.terminating_pods
        else free
    )
    return Decision(steps, waiting, running, free, expected)


def in_queue_order(observation: Observation) -> Iterable[JobState]:
    """Return the jobs of an observation, sorted by ORDER."""
    return observation.jobs if observation.is_sorted else sorted(observation.jobs, key=ORDER)


def _same_for_all(observation: Observation, step_of: Callable[[JobState], Step]) -> Decision:
    """Return a decision in which every job gets the step that `step_of` returns, so no job is left for the next phases.

    Its rooms are the observation's own: they must not be charged.
    """
    free = FreeRoom(observation.room, Quota(observation.queues))
    return Decision({each.identity: step_of(each) for each in observation.jobs}, (), (), free, free)


def _hold_for_all(observation: Observation, policy: Policy) -> tuple[Reason, str] | None:
    """Return (reason, detail) why no job may change: stale data, a clock jump, lost nodes or an admin's pause.

    None if jobs may change. The first of these reasons counts.
    """
    if not observation.complete:
        return Reason.STALE, "a list failed"
    if observation.age_s > policy.stale_s:
        return Reason.STALE, f"the oldest list is {observation.age_s:.0f} s old"
    if observation.jumped_s:
        return Reason.CLOCK_JUMPED, f"a clock has jumped by {observation.jumped_s:.0f} s"
    if observation.unready > policy.max_unready_share:
        return Reason.NODES_UNREADY, f"{observation.unready:.0%} of the nodes are not ready"
    return (
        (Reason.ALL_PAUSED, "an admin has stopped all changes")
        if observation.admin_override is AdminOverride.PAUSE
        else None
    )


def _release_step(state: JobState) -> Step:
    """Return the step of a job when an admin takes back all lent room: to its min, also if its owner has paused it.

    A job without workers above its min, and one that is not elastic, keeps its size.
    """
    job = state.job
    if not job.elastic or job.replicas <= job.bounds.minimum:
        return state.hold(Reason.ALL_PAUSED, "an admin takes back everything that is lent")
    return Step(
        job.key, job.bounds.minimum, job.replicas, Reason.RELEASED, "an admin takes back everything that is lent"
    )


def _will_leave(state: JobState, policy: Policy, now_s: float) -> bool:
    """Return True if the promised workers of a job can be expected to leave, so that their room counts as free soon.

    False if they have stayed for too long (`overdue`), or if our last resize is more than `promise_s` ago and none of
    them terminates: a controller that has not followed a resize by then may never do so. now_s: seconds since 1970.
    """
    if state.overdue:
        return False
    resized_s = state.job.resize_budget.resized_s
    is_late = resized_s and state.job.wanted_workers is None and now_s - resized_s > policy.promise_s
    return not is_late or any(worker.leaving for worker in state.workers)


def _with_promised(free: FreeRoom, leaving_jobs: Iterable[JobState], pods: Iterable[TerminatingPod]) -> FreeRoom:
    """Return a copy of the room to which the room of leaving workers is added, so that no second worker leaves for it.

    leaving_jobs: jobs whose promised workers will leave. pods: terminating pods of no living job.
    """
    expected = free.copy()
    for each in leaving_jobs:
        expected.release(each.pool, each.promised)
    for pod in pods:
        expected.release(pool_of(pod.queue, pod.shape), (pod.row,))
    return expected


def _room_taken_step(state: JobState, policy: Policy, now_s: float) -> Step | None:
    """Return the step that shrinks a job because some of its workers have no node; None if its size stays.

    It shrinks if a worker lacks a node for more than `pending_s`, unless its owner has paused shrinks: to the largest
    size for which enough workers have a node, not below its min. now_s: seconds since 1970.
    """
    job = state.job
    if len(state.living) == state.bound_workers or not may_give(state, now_s):
        return None
    overdue = [worker for worker in state.living if worker.row is None and now_s - worker.since_s > policy.pending_s]
    size = max(job.bounds.minimum, job.sizes.round_down(state.bound_workers))
    if not overdue or size >= job.replicas:
        return None
    detail = f"{len(overdue)} workers without a node for more than {policy.pending_s:g} s"
    return Step(job.key, size, job.replicas, Reason.ROOM_TAKEN, detail)


Steps = Mapping[Identity, Step]  # by the identity of a JobState


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision after a phase. Each phase returns a new one, but charges the two rooms in place."""

    steps: Steps  # of the jobs that are decided
    waiting: Sequence[JobState]  # jobs that lack pods to their min, sorted by ORDER
    running: Sequence[JobState]  # jobs without a step that may grow, sorted by ORDER
    free: FreeRoom  # free now
    expected: FreeRoom  # `free` with the room of leaving workers; the same object if no worker leaves

    def with_steps(self, steps: Steps) -> Decision:
        """Return the decision with these steps added; itself without any. A new step replaces one of the same job."""
        return replace(self, steps={**self.steps, **steps}) if steps else self


Common = tuple[bool, float, JobKey]  # a sort key without priority and deadline: can_pay_restart, creation time, job
Turn = tuple[object, ...]  # a sort key: the smallest starts and grows first


def in_turn(jobs: Sequence[JobState]) -> list[JobState]:
    """Return the jobs in the order in which they start and grow, in a new list. jobs: sorted by ORDER."""
    turns = turns_of(jobs)
    return sorted(jobs, key=lambda each: turns[each.identity]) if turns else list(jobs)


def turns_of(
    jobs: Sequence[JobState], can_pay_restart: Callable[[JobState], bool] | None = None
) -> dict[Identity, Turn]:
    """Return identity -> sort key of each job. {} if `can_pay_restart` is None and no job has a priority or deadline:
    `jobs` are in order then.

    Priorities and deadlines that owners write reorder the jobs of one namespace only. jobs: sorted by ORDER.
    can_pay_restart: returns True for a job that can pay a restart; among equal jobs it comes after those that cannot;
    None to ignore this.
    """
    if not any(each.queue_order[1:3] != _NO_PRIORITY_OR_DEADLINE for each in jobs):
        if can_pay_restart is None:
            return {}
        return {each.identity: (each.queue_order[0], can_pay_restart(each), *each.queue_order[3:]) for each in jobs}
    own_turn: dict[Identity, Turn] = {}
    common: dict[Identity, Common] = {}
    for each in jobs:
        can_pay = can_pay_restart is not None and can_pay_restart(each)
        own_turn[each.identity] = (*each.queue_order[1:3], can_pay, *each.queue_order[3:])
        common[each.identity] = can_pay, *each.queue_order[3:]
    worst: dict[tuple[int, str], Common] = {}
    turns: dict[Identity, Turn] = {}
    for each in sorted(jobs, key=lambda one: own_turn[one.identity]) if can_pay_restart is not None else jobs:
        group, own_common = (each.queue_order[0], each.job.key.namespace), common[each.identity]
        latest = worst[group] = max(worst.get(group, own_common), own_common)
        turns[each.identity] = each.queue_order[0], latest, own_turn[each.identity]
    return turns


_NO_PRIORITY_OR_DEADLINE = (0, float("inf"))  # the part of a queue_order that owners write


def may_give(state: JobState, now_s: float) -> bool:
    """Return True if a job may have to give workers to a job of its own namespace. now_s: seconds since 1970.

    False if it cannot shrink, or its owner has paused shrinks; a pause protects a job only from jobs of its own
    namespace.
    """
    job = state.job
    return state.can_shrink and (job.pause is Pause.NONE or job.paused(now_s) not in (Pause.SHRINK, Pause.BOTH))
