"""Volcano Jobs: minAvailable is the min, a task's replicas are the max. Source: docs/facts/autoscaling.md 5; VE-14,
VE-15.

Running pods keep the hosts and numbers that the env plugin set; the file of hosts follows the size.
"""

from __future__ import annotations

from typing import Any

from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Life, Object
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

KIND, PATH = "VolcanoJob", "/apis/batch.volcano.sh/v1alpha1/jobs"
_ENDS = ("Completed", "Failed", "Aborted", "Terminated")
_EVICTION = ("PodEvicted", "*")
_HARMLESS = ("", "SyncJob")
_FIXED_WORLDS = ("mpi", "pytorch", "tensorflow")  # plugins that set the world size when a pod is created


def read(raw: Object) -> Job:
    """Return the job. Raises BadJob."""
    head = common.head(raw, KIND)
    spec, tasks = head.spec, head.spec.parts("tasks")
    if not tasks:
        raise BadJob("spec.tasks is empty")
    at = _elastic_task(tasks)
    task = tasks[at]
    replicas = task.count("replicas", 1, 1)
    others = sum(each.count("replicas", 1) for each in tasks) - replicas
    least = min(replicas, max(1, spec.count("minAvailable", replicas + others) - others))
    return common.job(
        head,
        common.SizeFields(replicas, least, replicas, task.part("template")),
        queue=spec.text("queue") or "default",
        priority_class=spec.text("priorityClassName"),
        role=_name(task, at),
        other_roles=tuple(
            (common.worker_shape(each.part("template")), each.count("replicas", 1))
            for number, each in enumerate(tasks)
            if number != at
        ),
        life=Life.DONE if head.status.part("state").text("phase") in _ENDS else Life.LIVE,
        refused=_refused(spec, task, least + others),
    )


def resize(raw: Object, workers: int) -> Change:
    """Return the change to this number of replicas of the elastic task. Its min stays, and its max is recorded."""
    head, job = common.head(raw, KIND), read(raw)
    parts = head.spec.parts("tasks")
    at = _elastic_task(parts)
    tasks: list[Any] = [dict(task.value) for task in parts]
    tasks[at] |= {"replicas": workers, "minAvailable": min(workers, _own_least(parts[at], job))}
    return common.patch(job, head.notes, PATH, workers, {"tasks": tasks}, labels.MAX_WORKERS)


def _own_least(task: Part, job: Job) -> int:
    """Return the task's min. An unset minAvailable means all replicas, so the job's min replaces it."""
    min_available = task.count("minAvailable", job.bounds.least)
    return min_available if min_available < task.count("replicas", 1) else job.bounds.least


def _elastic_task(tasks: tuple[Part, ...]) -> int:
    """Return the index of the task that is resized: the one named worker, else the last of the largest tasks."""
    named = [number for number, task in enumerate(tasks) if task.text("name") in ("worker", "workers")]
    if named:
        return named[0]
    return max(range(len(tasks)), key=lambda number: (tasks[number].count("replicas", 1), number))


def _name(task: Part, at: int) -> str:
    return task.text("name") or f"default{at}"


def _refused(spec: Part, task: Part, least_pods: int) -> str:
    """Return why a change of size would have side effects, "" if it has none."""
    for where, policies in (("spec", spec.parts("policies")), ("the task", task.parts("policies"))):
        for policy in policies:
            events, action = (policy.text("event"), *policy.texts("events")), policy.text("action")
            if any(event in _EVICTION for event in events) and action not in _HARMLESS:
                return f"{where} does {action} on PodEvicted, which each shrink would set off"
    if task.part("partitionPolicy").value:
        return "its task has a partitionPolicy, which fixes the number of replicas"
    for plugin in _FIXED_WORLDS:
        if plugin in spec.part("plugins").value:
            return f"its plugin {plugin} tells each pod the size of the world once, when it is made"
    if spec.count("minSuccess", 0) > least_pods:
        return f"spec.minSuccess is more than its {least_pods} least pods: a shrunk job could not end"
    return ""


VOLCANO_JOB = JobKind(KIND, PATH, read, resize, object_kind="Job")
