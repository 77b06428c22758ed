"""What a change of size is worth to a job: how much faster it gets, and what restarts have cost it so far.

The bank: a job gains a second for each second that lent workers have saved it, pays for each restart, and may have one
restart and its undoing on credit. A job that is asked for more than that gives all it has at once. So whatever happens
to it, lending costs a job at most two restarts, and `budget` of the time it has run. One that only starts pays nothing.
Source: docs/facts/autoscaling.md 0.4, M5.
"""

from __future__ import annotations

from turnout.autoscaler.model import JobState, Policy
from turnout.jobs.model import Job
from turnout.jobs.scaling_curve import gain


def starts(seen: JobState, policy: Policy, now_s: float) -> bool:
    """Is it a job that has just got its min, and was never resized? It has nothing to lose by a change yet."""
    return not seen.job.bank.resized_s and abs(now_s - seen.began_s) <= policy.start_s


def pays(job: Job, larger: int, policy: Policy, restarts: int = 2) -> bool:
    """Does growing so far win back its restarts, the one that undoes it included, within the policy's horizon?"""
    share = gain(job.curve, job.bounds.least, job.replicas, larger).share
    return share * policy.payback_s >= restarts * restart_s(job, policy)


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
    idle_s = 0.0 if bank.at_start else restart_s(job, policy)
    return bank.gained_s + max(0.0, since_s - idle_s) * faster + since_s * policy.budget


def after_change_s(job: Job, policy: Policy, now_s: float, at_start: bool = False) -> float:
    """Give the notes for a size that changes now. at_start: while the job starts, which costs nothing."""
    return balance_s(job, policy, now_s) - (0.0 if at_start else restart_s(job, policy))


def rich(job: Job, policy: Policy, now_s: float) -> bool:
    """Has lending won it one more restart already? Then being shrunk now costs it nothing of its own."""
    return bool(job.bank.resized_s) and after_change_s(job, policy, now_s) >= 0


def in_debt(job: Job, policy: Policy, now_s: float) -> bool:
    """Does being shrunk now cost it more than the one restart that it may owe? Then it had better be the last time."""
    return after_change_s(job, policy, now_s) < -restart_s(job, policy)
