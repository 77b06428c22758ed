"""Orders jobs: a PriorityClass and age count among all, priorities and deadlines among jobs of one namespace.

Admission and quotas bound who may use a PriorityClass. Every owner may write a priority or a deadline. So these words
only move jobs back: a job goes no earlier than those of its namespace that it says are more urgent, and never before a
job of another namespace that its age would not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnout.autoscaler.model import JobState
from turnout.jobs.model import JobKey

Common = tuple[bool, float, JobKey]
Turn = tuple[object, ...]


def in_turn(jobs: Sequence[JobState]) -> list[JobState]:
    """Return the jobs in the order in which they start and grow. jobs: sorted by ORDER, as an observation has them."""
    turns = turns_of(jobs)
    return sorted(jobs, key=lambda each: turns[each.token]) if turns else list(jobs)


def turns_of(jobs: Sequence[JobState], rich: Callable[[JobState], bool] | None = None) -> dict[object, Turn]:
    """Return what sorts these jobs, by token. jobs: sorted by ORDER.

    rich: True for a job whose being so counts before its age: of two alike the rich one comes later. Without it, and
    where no owner has said anything, nothing is returned: the jobs are in turn already.
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
