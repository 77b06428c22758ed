"""The status of a ColossalAIJob in T9k's words: a phase, six conditions, tasks and an aggregate.

Source: docs/facts/job-kinds.md 1.3; contract CA-43 to CA-59, SD-10, SD-11
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.kinds.colossalaijob_pods import LAUNCHER, WORKER
from turnout.controllers.model import (
    JobPhase,
    JobView,
    KnownChildren,
    Object,
    PodState,
    Reason,
    StatusContext,
    StatusVocabulary,
)
from turnout.kube.times import rfc3339

NORMAL, NO_REASON = "All pods are running normally.", "-"
_TYPES = (LAUNCHER, WORKER)
_WORDS = {
    "Initialized": Reason.CREATED,
    "Running": Reason.RUNNING,
    "Completed": Reason.SUCCEEDED,
    "Failed": Reason.FAILED,
    "Paused": Reason.SUSPENDED,
}
_ORDER = ("Initialized", "Running", "ReplicaFailure", "Completed", "Failed", "Paused")
_FAILED = "The job exited with an error code."


def _in_our_words(status: Object) -> Object:
    """Return the conditions that the core remembers, and the times."""
    found = []
    for each in conditions.valid_conditions(status):
        type_ = each.get("type")
        if (word := _WORDS.get(type_) if isinstance(type_, str) else None) is None:
            continue
        if word in (Reason.SUCCEEDED, Reason.FAILED) and each.get("status") != "True":
            continue
        time = each.get("lastTransitionTime")
        time = time if isinstance(time, str) else rfc3339(0.0)
        status_word = each.get("status") if word is not Reason.CREATED else "True"
        found.append(
            {
                "type": word.value,
                "status": status_word,
                "reason": _core_reason(word, status_word),
                "message": each.get("message"),
                "lastTransitionTime": time,
            }
        )
    return {**{name: status[name] for name in ("startTime", "completionTime") if name in status}, "conditions": found}


def _core_reason(word: Reason, status: Any) -> str:
    if word is Reason.SUSPENDED and status != "True":
        return f"ColossalAIJob{Reason.RESUMED.value}"
    return f"ColossalAIJob{word.value}"


def _in_t9ks_words(status: Object, view: JobView | None, known: KnownChildren, moment: StatusContext) -> Object:
    ours: Sequence[Object] = status["conditions"]
    before = {str(each.get("type")): each for each in conditions.valid_conditions(moment.before)}
    converted = [
        _condition(type_, *values, before.get(type_), moment.now_s)
        for type_, values in _conditions(ours, view, known, before)
    ]
    converted.sort(key=lambda each: _ORDER.index(each["type"]))
    times = {name: status[name] for name in ("startTime", "completionTime") if name in status}
    return {
        **times,
        "phase": _phase(ours, view, known),
        "conditions": converted,
        "tasks": [_task(type_, known.pods) for type_ in _TYPES],
        "aggregate": _aggregate(view, known.pods),
    }


def _conditions(
    ours: Sequence[Object], view: JobView | None, known: KnownChildren, before: Mapping[Any, Object]
) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Give each condition's type, and whether it is true, its reason and its message."""
    complete = view is not None and len(known.pods) >= view.gang.min_member
    if complete or (before.get("Initialized") or {}).get("status") == "True":
        yield "Initialized", (True, NO_REASON, "The job has been initialized successfully.")
    else:
        yield "Initialized", (False, NO_REASON, "The job's pods are being made.")
    yield from _running_conditions(ours)
    broken = [pod.name for pod in known.pods if pod.phase is JobPhase.FAILED]
    words = f"{', '.join(broken)} failed." if broken else NORMAL
    yield "ReplicaFailure", (bool(broken), "Failed" if broken else NO_REASON, words)
    yield from _end_conditions(ours)


def _running_conditions(ours: Sequence[Object]) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Give the conditions Running and Paused, if the job ever ran or was paused, as `_conditions` does."""
    paused = conditions.is_true(ours, Reason.SUSPENDED)
    if ran := [each for each in ours if each.get("type") == Reason.RUNNING.value]:
        runs = not paused and (conditions.ended(ours) or ran[0].get("status") == "True")
        yield "Running", (runs, NO_REASON, NORMAL if runs else "The job is paused.")
    if paused or any(each.get("type") == Reason.SUSPENDED.value for each in ours):
        yield "Paused", (paused, NO_REASON, "All replicas are deleted." if paused else "The job has been resumed.")


def _end_conditions(ours: Sequence[Object]) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Give the conditions Completed and Failed, as `_conditions` does."""
    if conditions.is_true(ours, Reason.FAILED):
        text = next((str(each.get("message")) for each in ours if each.get("type") == Reason.FAILED.value), _FAILED)
        yield "Completed", (False, "Failed", text)
        yield "Failed", (True, "Failed", text)
        return
    done = conditions.is_true(ours, Reason.SUCCEEDED)
    yield "Completed", (done, NO_REASON, "The job has succeeded." if done else "The job has not ended.")
    yield "Failed", (False, NO_REASON, "The job has not failed.")


def _condition(type_: str, on: bool, reason: str, text: str, before: Object | None, now_s: float) -> dict[str, Any]:
    status = "True" if on else "False"
    time_before = before.get("lastTransitionTime") if before is not None and before.get("status") == status else None
    time = time_before if isinstance(time_before, str) else rfc3339(now_s)
    return {"type": type_, "status": status, "reason": reason, "message": text, "lastTransitionTime": time}


def _phase(ours: Sequence[Object], view: JobView | None, known: KnownChildren) -> str:
    for word in (Reason.FAILED, Reason.SUCCEEDED):
        if conditions.is_true(ours, word):
            return str(word.value)
    if conditions.is_true(ours, Reason.SUSPENDED):
        return "Paused"
    if known.unread or any(pod.phase is JobPhase.UNKNOWN for pod in known.pods):
        return "Unknown"
    run = sum(pod.phase is JobPhase.RUNNING and not pod.deleting for pod in known.pods)
    if view is not None and run >= view.gang.min_member:
        return "Running"
    resumed = any(each.get("type") == Reason.SUSPENDED.value for each in ours)
    if resumed:
        return "Resuming"
    return "Running" if conditions.is_true(ours, Reason.RUNNING) else "Pending"


def _task(type_: str, pods: Sequence[PodState]) -> Object:
    """Return the status of the replicas of one type, under both names that the manuals have for the list."""
    mine = sorted((pod for pod in pods if pod.role == type_), key=lambda pod: pod.index)
    each = [_replica(pod) for pod in mine]
    return {"type": type_, "restartCount": sum(pod.restarts for pod in mine), "status": each, "replicas": each}


def _replica(pod: PodState) -> Object:
    """Return the status of one pod, with its scheduler's message while it has no node. Source: CA-14"""
    fields = {"phase": pod.phase.value, "name": pod.name, "uid": pod.uid, "containers": list(pod.containers)}
    return {**fields, "message": pod.scheduler_message} if pod.scheduler_message else fields


def _aggregate(view: JobView | None, pods: Sequence[PodState]) -> Object:
    counts = dict.fromkeys(("creating", "pending", "running", "succeeded", "failed", "deleted", "unknown"), 0)
    for pod in pods:
        if pod.deleting:
            counts["deleted"] += 1
        elif pod.phase is JobPhase.PENDING:
            counts["creating" if pod.node else "pending"] += 1
        else:
            counts[pod.phase.value.lower()] += 1
    return counts


VOCABULARY = StatusVocabulary(
    ("phase", "conditions", "tasks", "aggregate", "startTime", "completionTime"), _in_our_words, _in_t9ks_words
)
