"""Work out what a change of size is worth to a job, and which annotations record it for the next leader.

A job's balance gains a second for each second that lent workers have saved it, and pays for each restart. The balance
may fall to minus one restart. A shrink that would take it lower takes all elastic workers at once, so that no other
shrink follows. So lending costs a job at most two restarts, and `restart_budget_share` of the time it has run. A job
that only starts pays nothing. Source: docs/facts/autoscaling.md 0.4, M5.
"""

from __future__ import annotations

import json
import re
from typing import Any

from turnout.autoscaler.model import JobState, Policy, Step
from turnout.jobs.model import Curve, Job, gain
from turnout.kube import labels
from turnout.kube.times import rfc3339, unix_s


def is_starting(state: JobState, policy: Policy, now_s: float) -> bool:
    """Return True if a job was never resized and its first worker began at most `start_s` ago: a change costs it
    nothing yet.

    False for a job without workers. now_s: seconds since 1970.
    """
    return not state.job.resize_budget.resized_s and abs(now_s - state.began_s) <= policy.start_s


def pays_off(job: Job, larger: int, policy: Policy, restarts: int = 2) -> bool:
    """Return True if growing to `larger` workers wins back the cost of `restarts` restarts within `payback_s`.

    larger: a size, in workers. restarts: 2 for the growth and a later shrink, 1 if the growth itself is free.
    """
    share = gain(job.curve, job.bounds.minimum, job.replicas, larger).share
    return share * policy.payback_s >= restarts * restart_s(job, policy)


def restart_s(job: Job, policy: Policy) -> float:
    """Return what a change of size costs a job, in seconds: as its owner states, else as the policy does."""
    return policy.restart_s if job.resize_budget.restart_s is None else job.resize_budget.restart_s


def balance_s(job: Job, policy: Policy, now_s: float) -> float:
    """Return the seconds that lending has won a job, minus its restarts; 0 for a job that was never resized.

    now_s: seconds since 1970.
    """
    return _balance_s(job, policy, now_s, job.curve, restart_s(job, policy))


def _balance_s(job: Job, policy: Policy, now_s: float, curve: Curve, cost_s: float) -> float:
    """Return the balance as `balance_s` does, but by the given curve and restart cost, not the job's own.

    It is the seconds that lending has won a job, minus its restarts; 0 for a job that was never resized. cost_s: of one
    restart, in seconds. now_s: seconds since 1970.
    """
    past, minimum = job.resize_budget, job.bounds.minimum
    if not past.resized_s:
        return 0.0
    since_s = max(0.0, now_s - past.resized_s)
    speed_up_share = gain(curve, minimum, minimum, max(minimum, job.replicas)).share
    pause_s = 0.0 if past.at_start else cost_s
    return past.gained_s + max(0.0, since_s - pause_s) * speed_up_share + since_s * policy.restart_budget_share


def after_change_s(job: Job, policy: Policy, now_s: float, at_start: bool = False) -> float:
    """Return the balance after a change of size now, in seconds. now_s: seconds since 1970.

    at_start: True if the job starts, so that the change is free.
    """
    return balance_s(job, policy, now_s) - (0.0 if at_start else restart_s(job, policy))


def has_surplus(job: Job, policy: Policy, now_s: float) -> bool:
    """Return True if the resize budget of a job covers one more restart, so that a shrink now costs it nothing.

    False for a job that was never resized. Jobs without surplus give last, and an owner could hide a surplus by a low
    curve or a high restart cost. So an unmeasured curve is ignored, and the lower cost counts. now_s: seconds since
    1970.
    """
    if not job.resize_budget.resized_s:
        return False
    cost_s = min(restart_s(job, policy), policy.restart_s)
    return _balance_s(job, policy, now_s, job.curve if job.curve_measured else (), cost_s) - cost_s >= 0


def is_exhausted(job: Job, policy: Policy, now_s: float) -> bool:
    """Return True if the balance of a job is below 0, so that a shrink now costs more than the restart that it may owe.

    Such a job gives all its elastic workers, so that this shrink is its last. The balance counts the higher of its own
    restart cost and that of the policy. False for a job that was never resized. now_s: seconds since 1970.
    """
    cost_s = max(restart_s(job, policy), policy.restart_s)
    return _balance_s(job, policy, now_s, job.curve, cost_s) < 0


# Age of an annotation up to which a later term in it counts. A Lease that was deleted begins at term 0 again.
NEWER_S = 120.0
_TERM = re.compile(r"[0-9]{1,10}")  # of a Lease: 32 bits


def resize_annotations(job: Job, step: Step, policy: Policy, now_s: float) -> dict[str, str]:
    """Return annotation -> value that a resize writes on a job: its time, balance, conditions and, if measured, its
    curve.

    step: the resize. now_s: seconds since 1970.
    """
    annotations = {
        labels.RESIZED_AT: rfc3339(now_s),
        labels.GAINED: f"{after_change_s(job, policy, now_s, step.at_start):.1f}",
        labels.SIZED_AT_START: "true" if step.at_start else "false",
        labels.CONDITIONS: json.dumps(conditions(job, step, now_s), separators=(",", ":")),
    }
    if job.curve_measured and job.curve:
        annotations[labels.MEASURED] = ",".join(f"{workers}:{1 / fast:.6f}" for workers, fast in job.curve)
    return annotations


def conditions(job: Job, step: Step, now_s: float) -> list[dict[str, Any]]:
    """Return the conditions AbleToScale, ScalingActive and ScalingLimited of a resized job, as of a
    HorizontalPodAutoscaler.

    step: the resize. now_s: seconds since 1970, the transition time of all three.
    """
    limit = {job.maximum: "AtMax", job.bounds.minimum: "AtMin"}.get(step.target, "")
    rows = (
        ("AbleToScale", True, step.reason.value, step.detail),
        ("ScalingActive", True, "ValidMetricFound", f"queue {job.queue}"),
        ("ScalingLimited", bool(limit), limit or "WithinBounds", f"{job.bounds.minimum} to {job.maximum} workers"),
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
    """Return True if a leader of a later term has written these annotations in the last NEWER_S seconds, or seems to
    have.

    Then this replica may no longer lead. A time up to NEWER_S ahead counts, too. annotations: of a job, which its
    owner may forge. term: of this replica. now_s: seconds since 1970.
    """
    term_text, at_s = annotations.get(labels.TERM, ""), unix_s(annotations.get(labels.RESIZED_AT)) or 0.0
    return _TERM.fullmatch(term_text) is not None and int(term_text) > term and abs(now_s - at_s) < NEWER_S
