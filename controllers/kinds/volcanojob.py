"""Volcano Jobs, for clusters without Volcano's controller. Source: docs/facts/job-kinds.md 1.5; VE-16, VE-17, VE-26.

All pods of all tasks are made, the gang needs minAvailable of them: the scheduler decides who runs beyond that. Under
the autoscaler a task's replicas are its current size. What becomes of a job is told in volcanojob_life.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers import lifecycle_policies as policies
from turnout.controllers.children import SCHEDULERS, resources_of
from turnout.controllers.kinds import fields
from turnout.controllers.kinds import volcanojob_plugins as plugins
from turnout.controllers.kinds.volcanojob_life import FIELDS, in_our_words, in_volcanos_words, lifecycle
from turnout.controllers.kinds.volcanojob_plugins import LABELS, NAMESPACE
from turnout.controllers.model import (
    Counts,
    GangDialect,
    GangSpec,
    JobView,
    Kind,
    KnownChildren,
    Object,
    PodVerdict,
    Replica,
    Restart,
    Role,
    RunPolicy,
    StatusVocabulary,
)
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part
from turnout.kube.labels import SUSPENDED

KIND, TITLE, API = "Job", "VolcanoJob", "batch.volcano.sh/v1alpha1"
RETRIES = 3
_MOST_NAME = 63  # characters of a pod's name: it is a label and a host, too
_TASK = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NOTED = ("volcano.sh/preemptable", "volcano.sh/cooldown-time", "volcano.sh/revocable-zone")
_LABELLED = _NOTED[:2]
# Refused fields of Volcano: without their effect the job would not do what its owner wants.
_UNSUPPORTED = ("volumes", "minSuccess")
_UNSUPPORTED_IN_TASK = ("dependsOn", "partitionPolicy")


def _read(raw: Object) -> JobView:
    meta, spec = raw["metadata"], Part(raw).part("spec")
    fields.check_name(meta)
    tasks = spec.parts("tasks")
    _check_supported(spec, _UNSUPPORTED)
    for part in tasks:
        _check_supported(part, _UNSUPPORTED_IN_TASK)
    roles = tuple(_tasks(meta["name"], spec, tasks))
    least = {role.label: _least(part, role) for role, part in zip(roles, tasks, strict=True)}
    total = sum(role.replicas for role in roles)
    most = spec.count("minAvailable", 0) or sum(least.values())
    if most > total:
        raise BadJob(f"spec.minAvailable is {most}: the tasks have {total} replicas together")
    words = _words(raw, spec, roles, least)
    roles = tuple(plugins.with_added_bytes(words, roles))
    return JobView(
        api_version=raw["apiVersion"],
        kind=KIND,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        roles=roles,
        policy=RunPolicy(_suspended(meta), ttl_s=fields.whole_number(spec, "ttlSecondsAfterFinished")),
        gang=_gang(meta, spec, roles, least, most),
        spec=words,
        elastic=most < total,
    )


def _check_supported(part: Part, unsupported: Sequence[str]) -> None:
    """Raise BadJob if one of these fields is set."""
    for name in unsupported:
        if part.value.get(name):
            raise BadJob(f"{part.at(name)} is not supported by the job controllers of Turnout")


def _suspended(meta: Object) -> bool:
    text = Part(meta, "metadata").words("annotations").get(SUSPENDED, "false")
    if text not in ("true", "false"):
        raise BadJob(f"annotation {SUSPENDED} is {text!r:.40}: it must be true or false")
    return text == "true"


def _words(raw: Object, spec: Part, roles: Sequence[Role], least: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields that only this kind reads."""
    meta, found = Part(raw["metadata"], "metadata"), plugins.read(spec)
    labels, notes = meta.words("labels"), meta.words("annotations")
    by_role = list(zip((role.label for role in roles), spec.parts("tasks"), strict=True))
    of_pods = policies.Policies(policies.read(spec), {name: policies.read(part) for name, part in by_role})
    return {
        "queue": spec.text("queue") or "default",
        "scheduler": spec.text("schedulerName"),
        "priority": spec.text("priorityClassName"),
        "plugins": found,
        "hosts": plugins.host_file(meta.text("name"), roles) if "svc" in found else {},
        "policies": of_pods,
        "least": least,
        "retries": spec.count("maxRetry", 0) or RETRIES,
        "labels": {name: labels[name] for name in _LABELLED if name in labels},
        "notes": {name: notes[name] for name in _NOTED if name in notes},
        "version": _noted(raw, "version"),
        "retried": _noted(raw, "retryCount"),
    }


def _noted(raw: Object, key: str) -> int:
    """Return a count of the job's status, 0 for an invalid one."""
    status = raw.get("status")
    value = status.get(key) if isinstance(status, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 - 1 else 0


def _tasks(job: str, spec: Part, parts: Sequence[Part]) -> Iterator[Role]:
    """Yield the role of each task. Raises BadJob for a bad or repeated name, or too many replicas."""
    if not parts:
        raise BadJob("spec.tasks is empty: a job has one task at least")
    names, total = set[str](), 0
    for number, part in enumerate(parts):
        name, replicas = part.text("name") or f"default{number}", part.count("replicas", 1)
        if not _TASK.fullmatch(name) or len(f"{job}-{name}-{replicas}") > _MOST_NAME:
            why = f"a DNS label is needed, and {_MOST_NAME} characters at most for a pod's name"
            raise BadJob(f"{part.at('name')} is {name!r:.70}: {why}")
        if name in names:
            raise BadJob(f"{part.at('name')} is {name}, which another task has")
        names.add(name)
        total += replicas
        if total > fields.MOST_REPLICAS:
            raise BadJob(f"{spec.at('tasks')} have {total} replicas: at most {fields.MOST_REPLICAS} are made")
        yield Role(name, replicas, _template(part), _restart(part))


def _template(part: Part) -> Object:
    template = part.part("template")
    fields.check_template(template)
    spec = template.part("spec")
    if not spec.parts("containers"):
        raise BadJob(f"{spec.at('containers')} is missing")
    for key in ("hostname", "subdomain", "schedulerName", "priorityClassName"):
        spec.text(key)
    return template.value


def _restart(part: Part) -> Restart:
    spec = part.part("template").part("spec")
    if spec.text("restartPolicy") == Restart.EXIT_CODE.value:
        raise BadJob(f"{spec.at('restartPolicy')} is ExitCode: a policy of the task has an exitCode instead")
    found: Restart = fields.word(spec, "restartPolicy", Restart, Restart.ON_FAILURE)
    return found


def _least(part: Part, role: Role) -> int:
    """Return how many pods of a task its gang needs: all unless the task says a number."""
    least = part.count("minAvailable", role.replicas)
    if least > role.replicas:
        raise BadJob(f"{part.at('minAvailable')} is {least}, above {part.at('replicas')}, {role.replicas}")
    return least


def _gang(
    meta: Object,
    spec: Part,
    roles: Sequence[Role],
    least: Mapping[str, int],
    most: int,
) -> GangSpec:
    """Return the words of the PodGroup. Source: VE-16, VE-26"""
    notes = Part(meta, "metadata").words("annotations")
    more: dict[str, Any] = {"minTaskMember": dict(least)}
    if spec.part("networkTopology").value:
        more["networkTopology"] = spec.part("networkTopology").value
    return GangSpec(
        most,
        spec.text("queue"),
        spec.text("priorityClassName"),
        resources_of(_least_members(roles, least, most)),
        name=f"{meta['name']}-{meta['uid']}",
        labels=Part(meta, "metadata").words("labels"),
        notes={name: text for name, text in notes.items() if not name.startswith("kubectl.kubernetes.io/")},
        more=more,
    )


def _least_members(roles: Sequence[Role], least: Mapping[str, int], most: int) -> list[tuple[Role, int]]:
    """Return how many pods of each task count for the least of the job: its own least first, then more in order."""
    if most < sum(least.values()):
        counts = {role.label: 0 for role in roles}
    else:
        counts = dict(least)
    left = most - sum(counts.values())
    for role in roles:
        more = min(left, role.replicas - counts[role.label])
        counts[role.label] += more
        left -= more
    return [(role, counts[role.label]) for role in roles]


def labels(view: JobView, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one pod."""
    own = {**selector(view, role), LABELS.index: str(replica.index), "volcano.sh/queue-name": view.spec["queue"]}
    return {**view.spec["labels"], **own}


def selector(view: JobView, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a task have."""
    return {LABELS.job: view.name, NAMESPACE: view.namespace, LABELS.role: role.label}


def notes(view: JobView, role: Role, replica: Replica) -> dict[str, str]:
    """Return the annotations of one pod."""
    return {
        **view.spec["notes"],
        LABELS.job: view.name,
        LABELS.role: role.label,
        LABELS.index: str(replica.index),
        "volcano.sh/queue-name": view.spec["queue"],
        "volcano.sh/job-version": str(view.spec["version"]),
        "volcano.sh/job-retry-count": str(view.spec["retried"]),
        "volcano.sh/template-uid": f"{view.name}-{role.label}",
    }


def pod_spec(view: JobView, role: Role, replica: Replica, _known: KnownChildren) -> dict[str, Any]:
    """Return the pod's spec with the job's scheduler, priority and plugins.

    The scheduler `volcano` means the one of gangs, whichever this cluster has: none is named for it here.
    """
    spec = {key: each for key, each in role.template["spec"].items() if each is not None}
    for key, named in (("schedulerName", view.spec["scheduler"]), ("priorityClassName", view.spec["priority"])):
        if named and not spec.get(key):
            spec[key] = named
    if spec.get("schedulerName") in ("", SCHEDULERS[GangDialect.VOLCANO]):
        del spec["schedulerName"]
    return plugins.in_pod(view, role, replica, spec)


def _judged_by_its_life(_view: JobView, _counts: Mapping[str, Counts], _known: KnownChildren) -> Sequence[PodVerdict]:
    return ()


VOLCANOJOB = Kind(
    KIND,
    (API,),
    "jobs",
    "",
    fields.refusing(_read),
    labels,
    selector,
    pod_spec,
    plugins.extras,
    _judged_by_its_life,
    child_labels=LABELS,
    owns=("Pod", "Service", "ConfigMap"),
    vocabulary=StatusVocabulary(FIELDS, in_our_words, in_volcanos_words),
    notes=notes,
    title=TITLE,
    lifecycle=lifecycle,
)
