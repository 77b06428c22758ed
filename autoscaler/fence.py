"""Keeps a fault of one job from stopping decisions on the others. A job that makes a decision fail is left alone.

No value that an owner may write should get this far. If one does, it is a defect of this program and reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from turnout.autoscaler.model import JobState, Observation, Policy, Reason, Step
from turnout.jobs.model import JobKey

Jobs = tuple[JobState, ...]
Decide = Callable[[Observation, Policy, float], list[Step]]


def decided(
    decide: Decide, observation: Observation, policy: Policy, now_s: float
) -> tuple[list[Step], dict[JobKey, Exception]]:
    """Return one step for each job, and the error of each job on which nothing can be decided.

    Steps are in the order of the jobs. A faulty job keeps its size, with the reason AdapterRefused. Raises what
    `decide` raises when no single job causes it.
    """
    try:
        return decide(observation, policy, now_s), {}
    except Exception as error:
        faulty = dict(
            _faulty(lambda jobs: decide(replace(observation, jobs=jobs), policy, now_s), observation.jobs, error)
        )
    # What no job alone brings about is raised here, once more.
    sound = tuple(each for each in observation.jobs if each.job.key not in faulty)
    steps = {step.key: step for step in decide(replace(observation, jobs=sound), policy, now_s)}
    for each in observation.jobs:
        if (fault := faulty.get(each.job.key)) is not None:
            steps[each.job.key] = each.hold(Reason.REFUSED, f"nothing can be decided on it: {fault!r}")
    return [steps[each.job.key] for each in observation.jobs], faulty


def _faulty(decide_on: Callable[[Jobs], object], jobs: Jobs, error: Exception) -> Iterator[tuple[JobKey, Exception]]:
    """Find the jobs that cause an error each on its own, by halves; none when no half has the error."""
    if len(jobs) < 2:
        yield from ((each.job.key, error) for each in jobs)
        return
    middle = len(jobs) // 2
    for half in (jobs[:middle], jobs[middle:]):
        try:
            decide_on(half)
        except Exception as fault:
            yield from _faulty(decide_on, half, fault)
