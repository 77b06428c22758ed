"""Control batch/v1 Jobs: pods by index, replaced when they fail; the highest index goes first.

Sources: Kubernetes' Job controller (KEP-2214 Indexed, KEP-3715 elastic: completions and parallelism changed together),
docs/facts/autoscaling.md 5. Not supported, and left alone: podFailurePolicy, successPolicy, backoffLimitPerIndex.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

from turnout.kube.times import rfc3339, unix_s
from turnout.simulator.cluster.controllers.model import (
    ControllerResult,
    CreateWrite,
    DeleteWrite,
    Object,
    PatchWrite,
    Write,
    ended_s,
    from_template,
    has_ended,
    is_ready,
    is_terminating,
    owner_references,
    phase,
    with_env,
)

JOBS = "jobs.batch"
INDEX = "batch.kubernetes.io/job-completion-index"
RETRY_S = (10.0, 600.0)  # the first pause after a failure and the longest, as the Job controller has them
_FIELD = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}


@dataclass(frozen=True, slots=True)
class _PodStates:
    """A job's pods by their state."""

    active: Sequence[Object]  # that have not ended and are not being deleted
    terminating: int  # that have not ended and are being deleted
    done: frozenset[int]  # the indexes that have succeeded
    succeeded: int  # so far, deleted pods included
    failed: int  # so far, deleted pods included
    last_failure_s: float  # end of the last failed pod, since 1970; 0 without one


def reconcile_job(
    job: Object, pods: Sequence[Object], now_s: float, retry_s: tuple[float, float] = RETRY_S
) -> ControllerResult:
    """Return the writes that a Job needs now, and when to look again.

    pods: those that it owns. now_s: seconds since 1970. retry_s: (first, longest) pause after a failure of a pod, in
    seconds. Raises ValueError if the status has malformed completedIndexes.
    """
    spec, status = job["spec"], job.get("status") or {}
    if ended := _true_condition(status, "Complete") or _true_condition(status, "Failed"):
        return _clean_up_ended(job, pods, (unix_s(ended.get("lastTransitionTime")) or 0.0), now_s)
    states = _pod_states(job, pods)
    if why := _failure(job, states, now_s):
        return _end_job(job, states, now_s, ("FailureTarget", "Failed"), *why)
    if _has_succeeded(spec, states):
        why = ("CompletionsReached", "Reached expected number of succeeded pods")
        return _end_job(job, states, now_s, ("SuccessCriteriaMet", "Complete"), *why)
    if spec.get("suspend"):
        writes: list[Write] = [DeleteWrite("pods", pod) for pod in states.active]
        return ControllerResult(
            [*writes, *_status_writes(job, states, now_s, {}, [("Suspended", "True", "JobSuspended")])]
        )
    return _reconcile_running(job, states, now_s, retry_s)


def _reconcile_running(job: Object, states: _PodStates, now_s: float, retry_s: tuple[float, float]) -> ControllerResult:
    """Return the writes of a Job that has not ended and is not suspended, and when to look again.

    now_s: seconds since 1970. retry_s: (first, longest) pause after a failure, in seconds.
    """
    spec, status = job["spec"], job.get("status") or {}
    changes, requeue_at_s = _pod_writes(job, states, now_s, retry_s)
    resumed = [("Suspended", "False", "JobResumed")] if _true_condition(status, "Suspended") else []
    began = {} if status.get("startTime") and not resumed else {"startTime": rfc3339(now_s)}
    deadline_s = spec.get("activeDeadlineSeconds")
    if deadline_s and status.get("startTime"):
        due_s = (unix_s(status["startTime"]) or 0.0) + deadline_s
        requeue_at_s = min(due_s, requeue_at_s or due_s)
    return ControllerResult([*changes, *_status_writes(job, states, now_s, began, resumed)], requeue_at_s)


def is_indexed(job: Object) -> bool:
    """Return True if each pod of the job has an index: its completionMode is Indexed."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: Object) -> int:
    """Return a pod's index; -1 if its annotation is missing or no number."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdecimal() else -1


def parse_indexes(text: str) -> frozenset[int]:
    """Return the indexes in a text such as "0,2-4", as a Job's status has them; empty for "". Raises ValueError for
    another text.
    """
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return frozenset(indexes)


def format_indexes(indexes: Iterable[int]) -> str:
    """Return indexes as the text of a Job's status, such as "0,1,3-5": a range has at least three. "" for none."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(
        "-".join(map(str, run)) if run[1] > run[0] + 1 else ",".join(map(str, sorted({*run}))) for run in runs
    )


def _pod_states(job: Object, pods: Sequence[Object]) -> _PodStates:
    """Return a Job's pods by state.

    The counts succeeded and failed are at least those of its status, because counted pods may be deleted since. After
    such a deletion a new failure is not counted until there are more failed pods than the status has; Kubernetes counts
    it. For an indexed Job succeeded is the number of indexes that have succeeded and are in range.
    """
    status = job.get("status") or {}
    succeeded, failed = ([pod for pod in pods if phase(pod) == word] for word in ("Succeeded", "Failed"))
    unfinished = [pod for pod in pods if not has_ended(pod)]
    done = _completed_indexes(job, succeeded)
    return _PodStates(
        active=[pod for pod in unfinished if not is_terminating(pod)],
        terminating=sum(map(is_terminating, unfinished)),
        done=done,
        succeeded=len(done) if is_indexed(job) else max(len(succeeded), status.get("succeeded") or 0),
        failed=max(len(failed), status.get("failed") or 0),
        last_failure_s=max(map(ended_s, failed), default=0.0),
    )


def _completed_indexes(job: Object, succeeded: Sequence[Object]) -> frozenset[int]:
    """Return the indexes that have succeeded, now or before; empty for a Job without indexes.

    succeeded: its succeeded pods.
    """
    if not is_indexed(job):
        return frozenset()
    status, completions = job.get("status") or {}, job["spec"].get("completions")
    done = parse_indexes(status.get("completedIndexes") or "") | {index_of(pod) for pod in succeeded}
    return frozenset(index for index in done if index >= 0 and (completions is None or index < completions))


def _pod_writes(
    job: Object, states: _PodStates, now_s: float, retry_s: tuple[float, float]
) -> tuple[list[Write], float | None]:
    """Return (writes that delete surplus pods and create missing ones, time at which more may be created).

    now_s: seconds since 1970. retry_s: (first, longest) pause after a failure, in seconds. The time is in seconds since
    1970, None if no pause delays a creation.
    """
    spec = job["spec"]
    total, parallelism = spec.get("completions"), spec.get("parallelism", 1)
    kept_pods, surplus = _split_surplus(job, states)
    writes: list[Write] = [DeleteWrite("pods", pod) for pod in surplus]
    left = parallelism if total is None else min(parallelism, total - states.succeeded)
    missing = max(0, left - len(kept_pods))
    if not missing:
        return writes, None
    pause_s = min(retry_s[0] * 2 ** min(states.failed - 1, 32), retry_s[1]) if states.failed else 0.0
    if states.last_failure_s and now_s < states.last_failure_s + pause_s:
        return writes, states.last_failure_s + pause_s
    indexes: Iterable[int | None] = repeat(None)
    if is_indexed(job):
        used_indexes = {index_of(pod) for pod in kept_pods} | states.done
        indexes = (index for index in range(total) if index not in used_indexes)
    return [*writes, *(CreateWrite("pods", _pod(job, index)) for index in islice(indexes, missing))], None


def _split_surplus(job: Object, states: _PodStates) -> tuple[list[Object], list[Object]]:
    """Return (active pods that stay, active pods to delete).

    Pods are deleted if their index is out of range, occurs twice or has succeeded, or if there are more than
    parallelism. The latter come first in the second list, the highest index first. Without indexes, bound pods stay
    first, then by name.
    """
    spec = job["spec"]
    if not is_indexed(job):
        parallelism = spec.get("parallelism", 1)
        by_age = sorted(states.active, key=lambda pod: (not pod["spec"].get("nodeName"), pod["metadata"]["name"]))
        return by_age[:parallelism], by_age[parallelism:]
    kept_pods: dict[int, Object] = {}
    surplus = []
    for pod in sorted(states.active, key=lambda pod: (index_of(pod), pod["metadata"].get("creationTimestamp", ""))):
        index = index_of(pod)
        if not 0 <= index < spec["completions"] or index in kept_pods or index in states.done:
            surplus.append(pod)
        else:
            kept_pods[index] = pod
    ordered = [kept_pods[index] for index in sorted(kept_pods)]
    parallelism = spec.get("parallelism", 1)
    return ordered[:parallelism], [*reversed(ordered[parallelism:]), *surplus]


def _pod(job: Object, index: int | None) -> Object:
    """Return a new pod of a Job, from its template. index: None for a Job without indexes."""
    meta, spec = job["metadata"], job["spec"]
    mark = {} if index is None else {INDEX: str(index)}
    name = {"generateName": f"{meta['name']}-" if index is None else f"{meta['name']}-{index}-"}
    pod = from_template(spec["template"], name, meta["namespace"], mark, mark)
    pod["metadata"]["ownerReferences"] = owner_references(job, "batch/v1", "Job")
    if index is not None:
        pod["spec"] = with_env(pod["spec"], [{"name": "JOB_COMPLETION_INDEX", "valueFrom": _FIELD}])
        pod["spec"].setdefault("hostname", f"{meta['name']}-{index}")
    return pod


def _failure(job: Object, states: _PodStates, now_s: float) -> tuple[str, str] | None:
    """Return (reason, message) of a Job that fails; None if it continues.

    It fails if its status has FailureTarget, if more pods have failed than its backoffLimit, or after its deadline,
    which does not count while it is suspended. now_s: seconds since 1970.
    """
    spec, began = job["spec"], (job.get("status") or {}).get("startTime")
    if failure_target := _true_condition(job.get("status") or {}, "FailureTarget"):
        return str(failure_target["reason"]), str(failure_target["message"])
    if states.failed > spec.get("backoffLimit", 6):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    limit_s = spec.get("activeDeadlineSeconds")
    if limit_s and began and now_s >= (unix_s(began) or 0.0) + limit_s and not spec.get("suspend"):
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    return None


def _has_succeeded(spec: Object, states: _PodStates) -> bool:
    """Return True if a Job has as many successful pods as it needs.

    Without `completions`, return True if at least one pod has succeeded and none is active. spec: of the Job.
    """
    total = spec.get("completions")
    if total is None:
        return states.succeeded > 0 and not states.active
    return bool(states.succeeded >= total)


def _end_job(
    job: Object, states: _PodStates, now_s: float, condition_types: tuple[str, str], why: str, message: str
) -> ControllerResult:
    """Return the writes that end a Job: first announce the end and delete active pods; report the end once no pod runs.

    now_s: seconds since 1970. condition_types: the types of (announcement, end), such as (FailureTarget, Failed). why,
    message: reason and text of the conditions. For a failed Job active pods count as failed.
    """
    writes: list[Write] = [DeleteWrite("pods", pod) for pod in states.active]
    at_rest = not states.active and not states.terminating
    conditions = [(word, "True", why, message) for word in (condition_types if at_rest else condition_types[:1])]
    done: Object = {"completionTime": rfc3339(now_s)} if at_rest and condition_types[1] == "Complete" else {}
    if condition_types[1] == "Failed":  # what is ended with it has failed, too
        done["failed"] = states.failed + len(states.active)
    return ControllerResult([*writes, *_status_writes(job, states, now_s, done, conditions)])


def _clean_up_ended(job: Object, pods: Sequence[Object], end_s: float, now_s: float) -> ControllerResult:
    """Return the writes of a Job that has ended: delete its running pods, and the Job itself after its time to live.

    With such a time, the result also says when to look again. end_s: when it ended. now_s, end_s: in seconds since
    1970.
    """
    ttl_s = job["spec"].get("ttlSecondsAfterFinished")
    writes: list[Write] = [DeleteWrite("pods", pod) for pod in pods if not has_ended(pod) and not is_terminating(pod)]
    if ttl_s is None:
        return ControllerResult(writes)
    if now_s >= end_s + ttl_s:
        return ControllerResult([*writes, DeleteWrite(JOBS, job)])
    return ControllerResult(writes, end_s + ttl_s)


def _true_condition(status: Object, kind: str) -> Object | None:
    """Return the condition of this type whose status is True; None without one."""
    matches = (each for each in status.get("conditions") or () if each["type"] == kind and each["status"] == "True")
    return next(matches, None)


def _status_writes(
    job: Object, states: _PodStates, now_s: float, extra_fields: Object, conditions: Iterable[tuple[str, ...]]
) -> list[Write]:
    """Return the write of the Job's status, with the changed fields only; [] if the status has not changed.

    now_s: seconds since 1970. extra_fields: of the status. conditions: (type, status, reason, message) of those to add
    or update, the message optional; one whose status has not changed stays as it is.
    """
    before: Object = job.get("status") or {}
    status: Object = {
        "active": len(states.active),
        "ready": sum(is_ready(pod) for pod in states.active),
        "terminating": states.terminating,
        "succeeded": states.succeeded,
        "failed": states.failed,
        "uncountedTerminatedPods": {},
        **({"completedIndexes": format_indexes(states.done)} if states.done else {}),
        **extra_fields,
    }
    conditions_by_type = {each["type"]: each for each in before.get("conditions") or ()}
    for kind, word, why, *message in conditions:
        if conditions_by_type.get(kind, {}).get("status") != word:
            at = {"lastProbeTime": rfc3339(now_s), "lastTransitionTime": rfc3339(now_s)}
            conditions_by_type[kind] = {"type": kind, "status": word, **at, "reason": why, "message": "".join(message)}
    if conditions_by_type:
        status["conditions"] = list(conditions_by_type.values())
    changed = {key: value for key, value in status.items() if before.get(key) != value}
    return [PatchWrite(JOBS, job, {"status": changed})] if changed else []
