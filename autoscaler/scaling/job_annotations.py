"""Makes the annotations of a resized job, so that the next leader knows all that this one knew."""

from __future__ import annotations

import json
import re
from typing import Any

from turnout.autoscaler.model import Policy, Step
from turnout.autoscaler.scaling.cost_model import after_change_s
from turnout.jobs.model import Job
from turnout.kube import labels
from turnout.kube.times import rfc3339, unix_s

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


def overruled(annotations: dict[str, str], term: int, now_s: float) -> bool:
    """True if a leader of a later term has written these annotations a moment ago, so that this one no longer leads."""
    term_text, at_s = annotations.get(labels.TERM, ""), unix_s(annotations.get(labels.RESIZED_AT)) or 0.0
    return _TERM.fullmatch(term_text) is not None and int(term_text) > term and abs(now_s - at_s) < NEWER_S
