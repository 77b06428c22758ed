"""What a change of size is worth to a job: how much faster it gets, and what restarts have cost it so far.

The bank: a job gains a second for each second that lent workers have saved it, pays for each restart, and may have one
restart and its undoing on credit, which time pays back slowly. A job that is asked for more than that gives all it has
at once. So whatever happens to it, lending costs a job at most three restarts and `budget` of the time it has run.
Source: facts/autoscaling.md 0.4, M5.
"""

from __future__ import annotations

from autoscaler.model import Policy
from jobs.model import Job
from jobs.speed import gain


def pays(job: Job, larger: int, policy: Policy) -> bool:
    """Does growing so far win back its restart, and the one that undoes it, within the policy's horizon?"""
    share = gain(job.curve, job.bounds.least, job.replicas, larger).share
    return share * policy.payback_s >= 2 * restart_s(job, policy)


def restart_s(job: Job, policy: Policy) -> float:
    """What a change of size costs a job, in seconds."""
    return policy.restart_s if job.bank.restart_s is None else job.bank.restart_s


def balance_s(job: Job, policy: Policy, now_s: float) -> float:
    """What lending has won a job so far, in seconds, restarts taken off; 0 for one that was never changed."""
    bank, least = job.bank, job.bounds.least
    if not bank.resized_s:
        return 0.0
    since_s = max(0.0, now_s - bank.resized_s)
    faster = gain(job.curve, least, least, max(least, job.replicas)).share
    return bank.gained_s + max(0.0, since_s - restart_s(job, policy)) * faster + since_s * policy.budget


def after_change_s(job: Job, policy: Policy, now_s: float) -> float:
    """What is to be noted when a job's size is changed now."""
    return balance_s(job, policy, now_s) - restart_s(job, policy)


def in_debt(job: Job, policy: Policy, now_s: float) -> bool:
    """Does being shrunk now cost it more than the two restarts that it may owe? Then it had better be the last time."""
    return after_change_s(job, policy, now_s) < -2 * restart_s(job, policy)
