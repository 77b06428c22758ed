"""Works out what a change of size is worth to a job, and writes it down for the next leader.

A job's balance gains a second for each second that lent workers have saved it, and pays for each restart. It may owe
one restart and the one that undoes it. A job that is asked for more than that gives all its elastic workers at once. So
lending costs a job at most two restarts, and `budget` of the time it has run. A job that only starts pays nothing.
Source: docs/facts/autoscaling.md 0.4, M5.
"""

from __future__ import annotations

import json
import re
from typing import Any

from turnout.autoscaler.model import JobState, Policy, Step
from turnout.jobs.model import Job
from turnout.jobs.scaling_curve import Curve, gain
from turnout.kube import labels
from turnout.kube.times import rfc3339, unix_s


def is_starting(state: JobState, policy: Policy, now_s: float) -> bool:
    """Return True if a job has just got its min and was never resized, so that a change costs it nothing yet."""
    return not state.job.resize_budget.resized_s and abs(now_s - state.began_s) <= policy.start_s


def pays_off(job: Job, larger: int, policy: Policy, restarts: int = 2) -> bool:
    """Return True if growing to `larger` wins back its restarts, and that of a later shrink, within the horizon."""
    share = gain(job.curve, job.bounds.least, job.replicas, larger).share
    return share * policy.payback_s >= restarts * restart_s(job, policy)


def restart_s(job: Job, policy: Policy) -> float:
    """Return what a change of size costs a job, in seconds."""
    return policy.restart_s if job.resize_budget.restart_s is None else job.resize_budget.restart_s


def balance_s(job: Job, policy: Policy, now_s: float) -> float:
    """Return the seconds that lending has won a job so far, restarts taken off; 0 for a job never resized."""
    return _balance_s(job, policy, now_s, job.curve, restart_s(job, policy))


def _balance_s(job: Job, policy: Policy, now_s: float, curve: Curve, cost_s: float) -> float:
    """Work out the balance from this curve and this cost of a restart, rather than from what the job says of them."""
    bank, least = job.resize_budget, job.bounds.least
    if not bank.resized_s:
        return 0.0
    since_s = max(0.0, now_s - bank.resized_s)
    faster = gain(curve, least, least, max(least, job.replicas)).share
    idle_s = 0.0 if bank.at_start else cost_s
    return bank.gained_s + max(0.0, since_s - idle_s) * faster + since_s * policy.budget


def after_change_s(job: Job, policy: Policy, now_s: float, at_start: bool = False) -> float:
    """Return the balance after a change of size now, in seconds. at_start: the job starts, so the change is free."""
    return balance_s(job, policy, now_s) - (0.0 if at_start else restart_s(job, policy))


def has_surplus(job: Job, policy: Policy, now_s: float) -> bool:
    """Return True if lending has already won the job one more restart, so that a shrink now costs it nothing.

    The poor give last. So what its owner says of its curve and its restarts makes it no poorer.
    """
    if not job.resize_budget.resized_s:
        return False
    cost_s = min(restart_s(job, policy), policy.restart_s)
    return _balance_s(job, policy, now_s, job.curve if job.curve_measured else (), cost_s) - cost_s >= 0


def is_exhausted(job: Job, policy: Policy, now_s: float) -> bool:
    """Return True if being shrunk now would cost the job more than the one restart that it may owe.

    Such a job gives all its elastic workers, so that this is the last time. An owner cannot avoid that by a low restart
    cost.
    """
    cost_s = max(restart_s(job, policy), policy.restart_s)
    return _balance_s(job, policy, now_s, job.curve, cost_s) - cost_s < -cost_s


NEWER_S = 120.0  # a term counts as newer than ours for so long: a Lease that was deleted counts from 0 again
_TERM = re.compile(r"[0-9]{1,10}")  # of a Lease: 32 bits


def notes_of(job: Job, step: Step, policy: Policy, now_s: float) -> dict[str, str]:
    """Return the annotations: time, seconds won by lending, measured curve and conditions."""
    notes = {
        labels.RESIZED_AT: rfc3339(now_s),
        labels.GAINED: f"{after_change_s(job, policy, now_s, step.at_start):.1f}",
        labels.SIZED_AT_START: "true" if step.at_start else "false",
        labels.CONDITIONS: json.dumps(conditions(job, step, now_s), separators=(",", ":")),
    }
    if job.curve_measured and job.curve:
        notes[labels.MEASURED] = ",".join(f"{workers}:{1 / fast:.6f}" for workers, fast in job.curve)
    return notes


def conditions(job: Job, step: Step, now_s: float) -> list[dict[str, Any]]:
    """List the conditions of a HorizontalPodAutoscaler: AbleToScale, ScalingActive, ScalingLimited."""
    limit = {job.most: "AtMax", job.bounds.least: "AtMin"}.get(step.target, "")
    rows = (
        ("AbleToScale", True, step.reason.value, step.detail),
        ("ScalingActive", True, "ValidMetricFound", f"queue {job.queue}"),
        ("ScalingLimited", bool(limit), limit or "WithinBounds", f"{job.bounds.least} to {job.most} workers"),
    )
    return [
        {
            "type": type_,
            "status": str(true),
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(now_s),
        }
        for type_, true, reason, message in rows
    ]


def is_overruled(annotations: dict[str, str], term: int, now_s: float) -> bool:
    """Return True if a leader of a later term has just written these annotations, so that this one no longer leads."""
    term_text, at_s = annotations.get(labels.TERM, ""), unix_s(annotations.get(labels.RESIZED_AT)) or 0.0
    return _TERM.fullmatch(term_text) is not None and int(term_text) > term and abs(now_s - at_s) < NEWER_S
