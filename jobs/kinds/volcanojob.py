"""Volcano Jobs: minAvailable is the least, a task's replicas the most. Source: facts/autoscaling.md 5; VE-14, VE-15."""

from __future__ import annotations

from typing import Any

from jobs.kinds import common
from jobs.model import BadJob, Change, Job, JobKind, Life, Object

KIND, PATH = "VolcanoJob", "/apis/batch.volcano.sh/v1alpha1"
_ENDS = ("Completed", "Failed", "Aborted", "Terminated")
_EVICTION = ("PodEvicted", "*")


def read(raw: Object) -> Job:
    """Read one. Raises BadJob."""
    said, spec = common.said(raw, KIND), raw.get("spec") or {}
    tasks = spec.get("tasks") or []
    if not tasks:
        raise BadJob("spec.tasks is empty")
    at = _elastic_task(tasks)
    task = tasks[at]
    replicas = common.count(task.get("replicas", 1), f"spec.tasks[{at}].replicas", 1)
    others = sum(common.count(each.get("replicas", 1), "spec.tasks[].replicas") for each in tasks) - replicas
    least = common.count(spec.get("minAvailable", replicas + others), "spec.minAvailable") - others
    least = min(replicas, max(1, least))
    bounds = common.bounds(said.notes, least, replicas)
    phase = ((raw.get("status") or {}).get("state") or {}).get("phase")
    return Job(
        said.key,
        said.uid,
        said.version,
        queue=spec.get("queue") or "default",
        replicas=replicas,
        bounds=bounds,
        shape=common.worker_shape(task.get("template"), f"spec.tasks[{at}].template"),
        priority=common.priority(said.notes),
        created=said.created,
        role=task.get("name") or f"default{at}",
        wish=common.wish(said.notes, replicas),
        beside=tuple(
            (common.worker_shape(each.get("template"), "spec.tasks[].template"), each.get("replicas", 1))
            for number, each in enumerate(tasks)
            if number != at
        ),
        life=Life.DONE if phase in _ENDS else Life.LIVE,
        pause=common.pause(said.notes),
        cooldown_s=common.cooldown_s(said.notes),
        refused=_refused(spec, task),
    )


def resize(raw: Object, workers: int) -> Change:
    """Give the elastic task so many replicas; its min stays, and its most is written down."""
    job = read(raw)
    tasks: list[dict[str, Any]] = [dict(task) for task in raw["spec"]["tasks"]]
    at = _elastic_task(tasks)
    tasks[at] = {**tasks[at], "replicas": workers, "minAvailable": min(workers, _own_least(tasks[at], job))}
    body = common.patch_of(raw, workers, job.wish, {"tasks": tasks}, most=job.bounds.most)
    return Change("PATCH", f"{PATH}/namespaces/{job.key.namespace}/jobs/{job.key.name}", body)


def _own_least(task: Any, job: Job) -> int:
    """An unset minAvailable of a task means all its replicas, which would make it rigid."""
    said = task.get("minAvailable")
    return int(said) if said is not None and said < task.get("replicas", 1) else job.bounds.least


def _elastic_task(tasks: list[Any]) -> int:
    """The task that grows and shrinks: the one called worker, else the last of those with most replicas."""
    named = [number for number, task in enumerate(tasks) if task.get("name") in ("worker", "workers")]
    if named:
        return named[0]
    return max(range(len(tasks)), key=lambda number: (tasks[number].get("replicas", 1), number))


def _refused(spec: Any, task: Any) -> str:
    """Why a change of size would do more than change the size."""
    for where, policies in (("spec", spec.get("policies")), ("the task", task.get("policies"))):
        for policy in policies or ():
            events = [policy.get("event"), *(policy.get("events") or ())]
            if any(event in _EVICTION for event in events) and str(policy.get("action", "")).startswith("Restart"):
                return f"{where} restarts on PodEvicted: each shrink would restart the whole job"
    if task.get("partitionPolicy"):
        return "its task has a partitionPolicy, which fixes the number of replicas"
    return ""


VOLCANO_JOB = JobKind(KIND, f"{PATH}/jobs", read, resize)
