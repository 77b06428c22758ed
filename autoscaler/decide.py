"""Decide at one moment, as a pure function of an observation, the policy and the time. docs/design.md 4.

Four phases lead from one `Decision` to the next. `guard` settles the jobs that no room can help, and finds the waiting
and the growing jobs. `preempt` serves the waiting jobs: just enough elastic workers leave so that a job fits; a job
that would not fit even then disturbs nobody. `scale_up` gives the room that is left, in whole workers, to the job that
gains most, then to the next one. `hold` gives every other job the step that changes nothing.

Every job gets exactly one step with one reason. As long as nothing else changes, the next plan does not take back what
this one did. A fault of one job stops decisions on that job only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from turnout.autoscaler.model import JobState, Observation, Policy, Reason, Step
from turnout.autoscaler.scaling.guard import Decision, guard
from turnout.autoscaler.scaling.preempt import preempt
from turnout.autoscaler.scaling.scale_up import scale_up
from turnout.jobs.model import JobKey


def decide(observation: Observation, policy: Policy, now_s: float) -> list[Step]:
    """Return one step for each job, in the order of `observation.jobs`. now_s: seconds since 1970. Change no
    argument.
    """
    decision = guard(observation, policy, now_s)
    decision = preempt(decision, observation, policy, now_s)
    decision = scale_up(decision, observation, policy, now_s)
    return hold(decision, observation)


def hold(decided: Decision, observation: Observation) -> list[Step]:
    """Return the step of each job, in the order of the jobs: its step in `decided`, else its `hold_step`.

    This is the last phase. A `hold_step` keeps the size of its job. A job that has neither is left out; after all other
    phases there is none.
    """
    steps = decided.steps
    return [step for each in observation.jobs if (step := steps.get(each.identity) or each.hold_step) is not None]


Jobs = tuple[JobState, ...]
Decide = Callable[[Observation, Policy, float], list[Step]]


def decide_safely(
    decide: Decide, observation: Observation, policy: Policy, now_s: float
) -> tuple[list[Step], dict[JobKey, Exception]]:
    """Return one step for each job, and the error of each job on which nothing can be decided.

    Steps are in the order of the jobs. A job with an error keeps its size, with the reason AdapterRefused. Raises the
    exception of `decide` if leaving out the jobs that fail on their own does not help. now_s: seconds since 1970.
    """
    try:
        return decide(observation, policy, now_s), {}
    except Exception as error:
        faulty = dict(
            _faulty_jobs(lambda jobs: decide(replace(observation, jobs=jobs), policy, now_s), observation.jobs, error)
        )
    # An exception that no single job causes is raised again here.
    sound = tuple(each for each in observation.jobs if each.job.key not in faulty)
    steps = {step.key: step for step in decide(replace(observation, jobs=sound), policy, now_s)}
    for each in observation.jobs:
        if (fault := faulty.get(each.job.key)) is not None:
            steps[each.job.key] = each.hold(Reason.REFUSED, f"nothing can be decided on it: {fault!r}")
    return [steps[each.job.key] for each in observation.jobs], faulty


def _faulty_jobs(
    decide_on: Callable[[Jobs], object], jobs: Jobs, error: Exception
) -> Iterator[tuple[JobKey, Exception]]:
    """Yield (job, error) of the jobs that cause an error on their own, found by halving; nothing if no half fails.

    decide_on: decides on some of the jobs. error: the exception when it decided on all of `jobs`.
    """
    if len(jobs) < 2:
        yield from ((each.job.key, error) for each in jobs)
        return
    middle = len(jobs) // 2
    for half in (jobs[:middle], jobs[middle:]):
        try:
            decide_on(half)
        except Exception as fault:
            yield from _faulty_jobs(decide_on, half, fault)
