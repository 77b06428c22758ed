"""The state that the phases of a decision hand on, and the order of jobs.

PriorityClass and age count among all jobs; priorities and deadlines count among jobs of one namespace. Admission and
quotas bound who may use a PriorityClass, but every owner may write a priority or a deadline. So these only move jobs
back: a job comes no earlier than the more urgent jobs of its namespace, and never before a job of another namespace
that is older.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from turnout.autoscaler.model import JobState, Step
from turnout.autoscaler.scaling.free_room import Reservations
from turnout.jobs.model import JobKey, Pause

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
    free: Reservations  # free now
    expected: Reservations  # `free` with the room of leaving workers; the same object if no worker leaves

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
    """Return what sorts these jobs, by token. jobs: sorted by ORDER.

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
    """True if a job may have to give workers to a job of its own namespace.

    A pause counts among the jobs of one namespace only. It keeps no borrowed room from others.
    """
    job = state.job
    return state.can_shrink and (job.pause is Pause.NONE or job.paused(now_s) not in (Pause.SHRINK, Pause.BOTH))
