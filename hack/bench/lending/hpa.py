"""The baseline: each job scaled alone by the formula of the HorizontalPodAutoscaler, on the free GPUs of the queue.

desired = ceil(current x free / target), within its bounds, every 60 s, with a tolerance of 10 % and 300 s before it
shrinks again. Source: docs/facts/autoscaling.md 7.1, the Volcano article's own example.
"""

from __future__ import annotations

import math

from turnout.autoscaler.model import JobState, Observation, Policy, Reason, Step
from turnout.simulator.replay.job_run import GPU

TARGET, TOLERANCE, SYNC_S, DOWN_S = 8, 0.1, 60.0, 300.0


def hpa(observed: Observation, policy: Policy, now_s: float) -> list[Step]:
    """Decide for each job as the HorizontalPodAutoscaler would. policy: its cooldown is the pause before a shrink.

    Each job sees the changes of the jobs before it. Real HPAs do not: they would all grow into the same room. observed:
    the jobs and the free capacity. now_s: seconds since 1970.
    """
    free, steps = int(observed.room.free[:, observed.room.names.index(GPU)].sum()), []
    for each in observed.jobs:
        step = _size_job(each, max(0, free) / TARGET, policy, now_s)
        free -= (step.target - step.current) * each.job.shape.gpus()
        steps.append(step)
    return steps


def _size_job(job_state: JobState, ratio: float, policy: Policy, now_s: float) -> Step:
    """Return the step of one job by the HPA's rule: size times ratio, within the job's bounds.

    The job keeps its size if it waits or if `ratio` is within TOLERANCE of 1. It does not shrink during the cooldown
    after a resize. ratio: its metric divided by the target. job_state: the job as observed. policy: has the cooldown.
    now_s: seconds since 1970.
    """
    job = job_state.job
    target = min(max(math.ceil(job.replicas * ratio), job.bounds.minimum), job.bounds.maximum)
    if job_state.is_waiting or abs(ratio - 1) <= TOLERANCE or target == job.replicas:
        return job_state.hold(Reason.AT_MAX)
    if target > job.replicas:
        return Step(job.key, target, job.replicas, Reason.IDLE_ROOM)
    if job.resize_budget.resized_s and now_s - job.resize_budget.resized_s < policy.cooldown_s:
        return job_state.hold(Reason.COOLDOWN)
    return Step(job.key, target, job.replicas, Reason.ROOM_TAKEN)
