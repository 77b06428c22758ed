"""The conditions in a job's status, as the Training Operator keeps them. Source: docs/facts/job-kinds.md 1.2

A condition is written when its status or its reason changes. Running and Restarting replace one another. After a
failure no condition changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnout.controllers.model import ControlledKind, JobPhase, Object, Reason
from turnout.kube.times import rfc3339

Conditions = Sequence[Object]
# The condition that each of these replaces.
_EXCLUDES = {"Running": "Restarting", "Restarting": "Running"}
_ENDS = (Reason.SUCCEEDED, Reason.FAILED)


# Phases of conditions, the decisive ones first.
_PHASES = {
    Reason.FAILED: JobPhase.FAILED,
    Reason.SUCCEEDED: JobPhase.SUCCEEDED,
    Reason.SUSPENDED: JobPhase.SUSPENDED,
    Reason.RESTARTING: JobPhase.RESTARTING,
    Reason.RUNNING: JobPhase.RUNNING,
}


def job_phase(kind: ControlledKind, status: Object) -> JobPhase:
    """Return the phase of a job by its status, in the kind's own terms.

    PENDING for a new job, and if no condition that decides a phase is true.
    """
    if kind.status.phase is not None:
        return kind.status.phase(status)
    stored_conditions = valid_conditions(kind.status.translation.read(status))
    return next((phase for type_, phase in _PHASES.items() if is_true(stored_conditions, type_)), JobPhase.PENDING)


def is_true(conditions: Conditions, type_: Reason) -> bool:
    """Return True if a job has this condition with status "True"."""
    return any(each.get("type") == type_.value and each.get("status") == "True" for each in conditions)


def has_ended(conditions: Conditions) -> bool:
    """Return True if a job has succeeded or failed by its conditions."""
    return any(is_true(conditions, each) for each in _ENDS)


def with_condition(
    conditions: Conditions,
    type_: Reason,
    kind: str,
    text: str,
    now_s: float,
    *,
    reason: Reason | None = None,
    status: bool = True,
) -> list[Object]:
    """Return the conditions with one condition added, or updated if its status or reason changes.

    A new text alone changes nothing. The new condition is the last one. Running and Restarting replace one another, and
    Succeeded or Failed makes Running false. A failed job keeps its conditions unchanged. type_: of the condition. kind:
    of the job. text: the message. reason: the part of the condition's reason after the kind, such as Failed in
    PyTorchJobFailed; None for the type. status: of the condition. now_s: seconds since 1970.
    """
    if is_true(conditions, Reason.FAILED):
        return list(conditions)
    reason_text, status_text = f"{kind}{(reason or type_).value}", "True" if status else "False"
    before: Object = next((each for each in conditions if each.get("type") == type_.value), {})
    if (before.get("status"), before.get("reason")) == (status_text, reason_text):
        return list(conditions)
    now = rfc3339(now_s)
    changed_at = before.get("lastTransitionTime", now) if before.get("status") == status_text else now
    fields = {"type": type_.value, "status": status_text, "reason": reason_text, "message": text}
    condition = {**fields, "lastUpdateTime": now, "lastTransitionTime": changed_at}
    dropped = {type_.value, _EXCLUDES.get(type_.value)}
    others = [_after_end(each, type_) for each in conditions if each.get("type") not in dropped]
    return [*others, condition]


def _after_end(condition: Object, type_: Reason) -> Object:
    """Return a condition as it is after one of type `type_` was added: the end of a job makes Running false."""
    if type_ in _ENDS and condition.get("type") == Reason.RUNNING.value:
        return {**condition, "status": "False"}
    return condition


def valid_conditions(status: Mapping[str, Any]) -> list[Object]:
    """Return the conditions of a status; entries that are no objects are left out."""
    stored = status.get("conditions")
    return [each for each in stored if isinstance(each, dict)] if isinstance(stored, list) else []
