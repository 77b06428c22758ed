"""Do what Volcano's admission does to its Jobs: fill in defaults and find faults.

Source: docs/facts/job-kinds.md 1.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from turnout.simulator.api.model import value_at

_RETRIES = 3
_CHANGEABLE = ("minAvailable", "priorityClassName")
_PLUGINS = ("svc", "ssh", "env", "pytorch", "tensorflow", "mpi", "ray")


def job_defaults(obj: dict[str, Any]) -> None:
    """Fill in a new Volcano Job, in place: the default queue, names of tasks, and the sum of the tasks' mins as its
    min.

    A task without a min needs all its replicas, and a task without replicas has one.
    """
    spec = obj.setdefault("spec", {})
    for key, value in (("queue", "default"), ("schedulerName", "volcano"), ("maxRetry", _RETRIES)):
        spec.setdefault(key, value)
    tasks = [each for each in spec.get("tasks") or () if isinstance(each, dict)]
    for number, task in enumerate(tasks):
        task.setdefault("name", f"default{number}")
        task.setdefault("replicas", 1)
        task.setdefault("minAvailable", task["replicas"])
        template = task.setdefault("template", {}).setdefault("spec", {})
        template.setdefault("restartPolicy", "OnFailure")
    spec.setdefault("minAvailable", sum(task["minAvailable"] for task in tasks))
    plugins = spec.get("plugins") or {}
    if {"pytorch", "tensorflow", "mpi", "ray"} & plugins.keys():
        plugins.setdefault("svc", [])


def validation_errors(spec: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each fault in a Volcano Job's spec that its webhook reports; nothing for a valid one.

    A spec without tasks has no further faults. spec: with the defaults of job_defaults().
    """
    tasks = spec.get("tasks") or []
    if not tasks:
        yield "No task specified in job spec"
        return
    counts = Counter(task["name"] for task in tasks)
    yield from (f"duplicated task name {name}" for name in sorted(counts) if counts[name] > 1)
    for task in tasks:
        if not value_at(task, "template", "spec", "containers"):
            yield f"spec.task[{task['name']}].template.spec.containers: Required value"
        if task["minAvailable"] > task["replicas"]:
            yield f"'minAvailable' is greater than 'replicas' in task: {task['name']}"
    total = sum(task["replicas"] for task in tasks)
    if spec["minAvailable"] > total:
        yield "job 'minAvailable' should not be greater than total replicas in tasks"
    unknown = [plugin for plugin in spec.get("plugins") or {} if plugin not in _PLUGINS]
    yield from (f"unable to find job plugin: {plugin}" for plugin in unknown)


def is_forbidden_change(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return True if an update changes more than the size of a Volcano Job and its priority class: its webhook forbids
    that.

    old, new: the specs. The size is minAvailable, and the replicas and minAvailable of tasks.
    """
    return _immutable_part(old) != _immutable_part(new)


def _immutable_part(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a Volcano Job's spec that no update may change."""
    immutable = {key: value for key, value in spec.items() if key not in _CHANGEABLE}
    tasks = [
        {k: v for k, v in task.items() if k not in ("replicas", "minAvailable")} for task in spec.get("tasks") or ()
    ]
    return {**immutable, "tasks": tasks}
