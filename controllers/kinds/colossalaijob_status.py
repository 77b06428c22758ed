"""The status of a ColossalAIJob in the terms of the T9k operator: a phase, six conditions, tasks and an aggregate.

`colossalaijob.py` decides on the pods. Source: docs/facts/job-kinds.md 1.3; CA-43 to CA-59, SD-10, SD-11
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.model import (
    ControlledJob,
    Object,
    OwnedObjects,
    PodPhase,
    PodState,
    Reason,
    StatusContext,
    StatusTranslation,
)
from turnout.jobs.kinds.colossalaijob import LAUNCHER, WORKER
from turnout.kube.times import rfc3339

NORMAL, NO_REASON = "All pods are running normally.", "-"
_TYPES = (LAUNCHER, WORKER)
# Type of a condition of T9k -> type in the core status.
_CORE_TYPES = {
    "Initialized": Reason.CREATED,
    "Running": Reason.RUNNING,
    "Completed": Reason.SUCCEEDED,
    "Failed": Reason.FAILED,
    "Paused": Reason.SUSPENDED,
}
_ORDER = ("Initialized", "Running", "ReplicaFailure", "Completed", "Failed", "Paused")
_MAX_NAMES = 8  # of pods in a text
_FAILED = "The job exited with an error code."


def _to_core_status(status: Object) -> Object:
    """Return the core status: the conditions that `reconcile` reads, and the times.

    Conditions of an unknown type are left out, and so are Succeeded and Failed whose status is not True. status: as
    stored, of the T9k operator.
    """
    core_conditions = []
    for each in conditions.valid_conditions(status):
        type_ = each.get("type")
        if (core_type := _CORE_TYPES.get(type_) if isinstance(type_, str) else None) is None:
            continue
        if core_type in (Reason.SUCCEEDED, Reason.FAILED) and each.get("status") != "True":
            continue
        time = each.get("lastTransitionTime")
        time = time if isinstance(time, str) else rfc3339(0.0)
        status_word = each.get("status") if core_type is not Reason.CREATED else "True"
        core_conditions.append(
            {
                "type": core_type.value,
                "status": status_word,
                "reason": _core_reason(core_type, status_word),
                "message": each.get("message"),
                "lastTransitionTime": time,
            }
        )
    return {
        **{name: status[name] for name in ("startTime", "completionTime") if name in status},
        "conditions": core_conditions,
    }


def _core_reason(word: Reason, status: Any) -> str:
    """Return the reason of a condition in the core status. word: its type. status: of the condition, "True" or
    other.
    """
    if word is Reason.SUSPENDED and status != "True":
        return f"ColossalAIJob{Reason.RESUMED.value}"
    return f"ColossalAIJob{word.value}"


def _to_t9k_status(status: Object, job: ControlledJob | None, owned: OwnedObjects, moment: StatusContext) -> Object:
    """Return the status in the terms of the T9k operator.

    status: the core status. job: None for a refused object. moment: the stored status, and the time.
    """
    core_conditions: Sequence[Object] = status["conditions"]
    before = {str(each.get("type")): each for each in conditions.valid_conditions(moment.before)}
    converted = [
        _condition(type_, *values, before.get(type_), moment.now_s)
        for type_, values in _conditions(core_conditions, job, owned, before)
    ]
    converted.sort(key=lambda each: _ORDER.index(each["type"]))
    times = {name: status[name] for name in ("startTime", "completionTime") if name in status}
    return {
        **times,
        "phase": _phase(core_conditions, job, owned),
        "conditions": converted,
        "tasks": [_role_status(type_, owned.pods) for type_ in _TYPES],
        "aggregate": _aggregate(job, owned.pods),
    }


def _conditions(
    core_conditions: Sequence[Object], job: ControlledJob | None, owned: OwnedObjects, before: Mapping[Any, Object]
) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Yield (type, (is it true, reason, message)) of each condition, in the terms of T9k.

    core_conditions: of the core status. job: None for a refused object. before: the stored conditions by type.
    """
    is_complete = job is not None and len(owned.pods) >= job.gang.min_member
    if is_complete or (before.get("Initialized") or {}).get("status") == "True":
        yield "Initialized", (True, NO_REASON, "The job has been initialized successfully.")
    else:
        yield "Initialized", (False, NO_REASON, "The job's pods are being made.")
    yield from _running_conditions(core_conditions)
    failed_pods = (pod for pod in owned.pods if pod.phase is PodPhase.FAILED)
    failed = [pod.name for pod in sorted(failed_pods, key=lambda pod: (pod.role, pod.index, pod.name))]
    further = f" and {len(failed) - _MAX_NAMES} others" if len(failed) > _MAX_NAMES else ""
    message = f"{', '.join(failed[:_MAX_NAMES])}{further} failed." if failed else NORMAL
    yield "ReplicaFailure", (bool(failed), "Failed" if failed else NO_REASON, message)
    yield from _end_conditions(core_conditions)


def _running_conditions(core_conditions: Sequence[Object]) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Yield (type, (is it true, reason, message)) of Running if the job ever ran, and of Paused if it was ever
    paused.
    """
    is_paused = conditions.is_true(core_conditions, Reason.SUSPENDED)
    if running_conditions := [each for each in core_conditions if each.get("type") == Reason.RUNNING.value]:
        is_running = not is_paused and (
            conditions.has_ended(core_conditions) or running_conditions[0].get("status") == "True"
        )
        yield "Running", (is_running, NO_REASON, NORMAL if is_running else "The job is paused.")
    if is_paused or any(each.get("type") == Reason.SUSPENDED.value for each in core_conditions):
        yield (
            "Paused",
            (is_paused, NO_REASON, "All replicas are deleted." if is_paused else "The job has been resumed."),
        )


def _end_conditions(core_conditions: Sequence[Object]) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Yield (type, (is it true, reason, message)) of Completed and Failed."""
    if conditions.is_true(core_conditions, Reason.FAILED):
        text = next(
            (str(each.get("message")) for each in core_conditions if each.get("type") == Reason.FAILED.value), _FAILED
        )
        yield "Completed", (False, "Failed", text)
        yield "Failed", (True, "Failed", text)
        return
    is_completed = conditions.is_true(core_conditions, Reason.SUCCEEDED)
    yield "Completed", (is_completed, NO_REASON, "The job has succeeded." if is_completed else "The job has not ended.")
    yield "Failed", (False, NO_REASON, "The job has not failed.")


def _condition(
    type_: str, is_true: bool, reason: str, text: str, before: Object | None, now_s: float
) -> dict[str, Any]:
    """Return a condition as an object. Its time changes only with its status.

    before: the stored condition, None for none. now_s: seconds since 1970.
    """
    status = "True" if is_true else "False"
    time_before = before.get("lastTransitionTime") if before is not None and before.get("status") == status else None
    time = time_before if isinstance(time_before, str) else rfc3339(now_s)
    return {"type": type_, "status": status, "reason": reason, "message": text, "lastTransitionTime": time}


_DECIDED_PHASES = {Reason.FAILED: "Failed", Reason.SUCCEEDED: "Succeeded", Reason.SUSPENDED: "Paused"}


def _phase(core_conditions: Sequence[Object], job: ControlledJob | None, owned: OwnedObjects) -> str:
    """Return the phase of a job in the words of T9k.

    An ended or paused job has the phase of that condition. Any other job is Unknown if a pod is unknown or pods cannot
    be read. core_conditions: of the core status. job: None for a refused object.
    """
    for condition, phase in _DECIDED_PHASES.items():
        if conditions.is_true(core_conditions, condition):
            return phase
    if owned.pods_unreadable or any(pod.phase is PodPhase.UNKNOWN for pod in owned.pods):
        return "Unknown"
    if job is not None and _running_pods(owned) >= job.gang.min_member:
        return "Running"
    if any(each.get("type") == Reason.SUSPENDED.value for each in core_conditions):
        return "Resuming"
    return "Running" if conditions.is_true(core_conditions, Reason.RUNNING) else "Pending"


def _running_pods(owned: OwnedObjects) -> int:
    """Return the number of pods that run and do not terminate."""
    return sum(pod.phase is PodPhase.RUNNING and not pod.deleting for pod in owned.pods)


def _role_status(role_label: str, pods: Sequence[PodState]) -> Object:
    """Return the status of the pods of one role. role_label: as in PodState.role.

    The pods stand in it twice, as `status` and as `replicas`: the manuals use both names.
    """
    role_pods = sorted((pod for pod in pods if pod.role == role_label), key=lambda pod: pod.index)
    replicas = [_replica(pod) for pod in role_pods]
    return {
        "type": role_label,
        "restartCount": sum(pod.restarts for pod in role_pods),
        "status": replicas,
        "replicas": replicas,
    }


def _replica(pod: PodState) -> Object:
    """Return the status of one pod, with its scheduler's message while it has no node. Source: CA-14"""
    fields = {"phase": pod.phase.value, "name": pod.name, "uid": pod.uid, "containers": list(pod.containers)}
    return {**fields, "message": pod.scheduler_message} if pod.scheduler_message else fields


def _aggregate(job: ControlledJob | None, pods: Sequence[PodState]) -> Object:
    """Return the field `aggregate`: creating, pending, running, succeeded, failed, deleted, unknown -> number of pods,
    zeros included.

    A pending pod with a node counts as creating, a terminating pod as deleted. job: not used.
    """
    counts = dict.fromkeys(("creating", "pending", "running", "succeeded", "failed", "deleted", "unknown"), 0)
    for pod in pods:
        if pod.deleting:
            counts["deleted"] += 1
        elif pod.phase is PodPhase.PENDING:
            counts["creating" if pod.node else "pending"] += 1
        else:
            counts[pod.phase.value.lower()] += 1
    return counts


TRANSLATION = StatusTranslation(
    ("phase", "conditions", "tasks", "aggregate", "startTime", "completionTime"), _to_core_status, _to_t9k_status
)
