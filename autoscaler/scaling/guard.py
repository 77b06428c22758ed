"""First phase: decide the jobs that room cannot help; the order of jobs, and the decision that all phases extend.

Observations that cannot be trusted change nothing. Jobs that no scheduler can bind, jobs of unreadable queues and
workers without a node are settled before any room is shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from turnout.autoscaler.model import (
    ORDER,
    AdminOverride,
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
    """Return the decision with the steps that hold whatever room there is. now_s: seconds since 1970."""
    if (why := _hold_for_all(observation, policy)) is not None:
        return _same_for_all(observation, lambda each: each.hold(*why))
    if observation.admin_override is AdminOverride.RELEASE:
        return _same_for_all(observation, _release_step)
    steps: dict[object, Step] = {}
    waiting, running, going = list[JobState](), list[JobState](), list[JobState]()
    unread = {name: queue.faults[0] for name, queue in observation.queues.items() if queue.faults}
    for each in in_queue_order(observation):
        if each.promised and _may_leave(each, policy, now_s):
            going.append(each)
        if unread and each.job.queue in unread:
            steps[each.token] = each.hold(Reason.STALE, unread[each.job.queue])
        elif each.is_waiting and each.unbindable:
            steps[each.token] = each.hold(Reason.UNSCHEDULABLE, each.unbindable)
        elif each.is_waiting:
            waiting.append(each)
        elif each.steady:
            if each.hold_step is None:
                running.append(each)
        elif (shrink := _room_taken_step(each, policy, now_s)) is not None:
            steps[each.token] = shrink
        elif each.hold_step is None:
            running.append(each)
    free = FreeRoom(observation.room.copied(), Quota(observation.queues))
    expected = _with_promised(free, going, observation.leaving) if going or observation.leaving else free
    return Decision(steps, waiting, running, free, expected)


def in_queue_order(observation: Observation) -> Iterable[JobState]:
    """Return the jobs in their order."""
    return observation.jobs if observation.is_sorted else sorted(observation.jobs, key=ORDER)


def _same_for_all(observation: Observation, step_of: Callable[[JobState], Step]) -> Decision:
    """Decide all jobs by one rule, so that no job is left for the next phases."""
    free = FreeRoom(observation.room, Quota(observation.queues))
    return Decision({each.token: step_of(each) for each in observation.jobs}, (), (), free, free)


def _hold_for_all(observation: Observation, policy: Policy) -> tuple[Reason, str] | None:
    """Return why no job is changed; None if the observation can be acted on."""
    if not observation.complete:
        return Reason.STALE, "a list failed"
    if observation.age_s > policy.stale_s:
        return Reason.STALE, f"the oldest list is {observation.age_s:.0f} s old"
    if observation.jumped_s:
        return Reason.CLOCK_JUMPED, f"a clock has jumped by {observation.jumped_s:.0f} s"
    if observation.unready > policy.most_unready:
        return Reason.NODES_UNREADY, f"{observation.unready:.0%} of the nodes are not ready"
    return (
        (Reason.ALL_PAUSED, "an admin has stopped all changes")
        if observation.admin_override is AdminOverride.PAUSE
        else None
    )


def _release_step(state: JobState) -> Step:
    """Make the step that brings a job back to its min. An owner's pause does not stop it: lending itself ends."""
    job = state.job
    if not job.elastic or job.replicas <= job.bounds.least:
        return state.hold(Reason.ALL_PAUSED, "an admin takes back everything that is lent")
    return Step(job.key, job.bounds.least, job.replicas, Reason.RELEASED, "an admin takes back everything that is lent")


def _may_leave(state: JobState, policy: Policy, now_s: float) -> bool:
    """Return True if the leaving workers of a job can be expected to go.

    A controller that has not followed a resize for long may never do so.
    """
    if state.overdue:
        return False
    resized_s = state.job.resize_budget.resized_s
    late = resized_s and state.job.wish is None and now_s - resized_s > policy.promise_s
    return not late or any(worker.leaving for worker in state.workers)


def _with_promised(free: FreeRoom, going: Iterable[JobState], leaving: Iterable[TerminatingPod]) -> FreeRoom:
    """Copy what is left, with the room that leaving workers will free, so that nobody leaves for it twice."""
    expected = free.copied()
    for each in going:
        expected.release(each.pool, each.promised)
    for pod in leaving:
        expected.release(pool_of(pod.queue, pod.shape), (pod.row,))
    return expected


def _room_taken_step(state: JobState, policy: Policy, now_s: float) -> Step | None:
    """Make the step of a job that gives up workers above its min, which have been without a node for too long."""
    job = state.job
    if len(state.living) == state.bound_workers or not may_give(state, now_s):
        return None
    late = [worker for worker in state.living if worker.row is None and now_s - worker.since_s > policy.pending_s]
    size = max(job.bounds.least, job.sizes.round_down(state.bound_workers))
    if not late or size >= job.replicas:
        return None
    detail = f"{len(late)} workers without a node for more than {policy.pending_s:g} s"
    return Step(job.key, size, job.replicas, Reason.ROOM_TAKEN, detail)


Steps = Mapping[object, Step]  # by the token of a JobState


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision after a phase. A phase makes the next one; only the two reservations are charged in place.

    waiting and running are in the order of the queues. A job in `running` has no step of its own yet; one that
    preempt makes smaller is taken out.
    """

    steps: Steps  # of the jobs that are decided
    waiting: Sequence[JobState]  # jobs that lack pods to their min
    running: Sequence[JobState]  # jobs that may grow
    free: FreeRoom  # free now
    expected: FreeRoom  # `free` with the room of leaving workers; the same object if no worker leaves

    def with_steps(self, steps: Steps) -> Decision:
        """Return the decision with these steps added; a later phase has the last word on a job."""
        return replace(self, steps={**self.steps, **steps}) if steps else self


Common = tuple[bool, float, JobKey]
Turn = tuple[object, ...]


def in_turn(jobs: Sequence[JobState]) -> list[JobState]:
    """Return the jobs in the order in which they start and grow. jobs: sorted by ORDER, as an observation has them."""
    turns = turns_of(jobs)
    return sorted(jobs, key=lambda each: turns[each.token]) if turns else list(jobs)


def turns_of(jobs: Sequence[JobState], rich: Callable[[JobState], bool] | None = None) -> dict[object, Turn]:
    """Return the sort key of each job, by token. jobs: sorted by ORDER.

    rich: True for a job that counts as rich before its age: of two equal jobs the rich one comes later. Without it, and
    if no owner has written a priority or deadline, nothing is returned: the jobs are in order already.
    """
    if not any(each.queue_order[1:3] != _SILENT for each in jobs):
        if rich is None:
            return {}
        return {each.token: (each.queue_order[0], rich(each), *each.queue_order[3:]) for each in jobs}
    own: dict[object, Turn] = {}
    common: dict[object, Common] = {}
    for each in jobs:
        wealth = rich is not None and rich(each)
        own[each.token] = (*each.queue_order[1:3], wealth, *each.queue_order[3:])
        common[each.token] = wealth, *each.queue_order[3:]
    worst: dict[tuple[int, str], Common] = {}
    turns: dict[object, Turn] = {}
    for each in sorted(jobs, key=lambda one: own[one.token]) if rich is not None else jobs:
        group, mine = (each.queue_order[0], each.job.key.namespace), common[each.token]
        latest = worst[group] = max(worst.get(group, mine), mine)
        turns[each.token] = each.queue_order[0], latest, own[each.token]
    return turns


_SILENT = (0, float("inf"))


def may_give(state: JobState, now_s: float) -> bool:
    """Return True if a job may have to give workers to a job of its own namespace.

    A pause counts among the jobs of one namespace only. It keeps no borrowed room from others.
    """
    job = state.job
    return state.can_shrink and (job.pause is Pause.NONE or job.paused(now_s) not in (Pause.SHRINK, Pause.BOTH))
