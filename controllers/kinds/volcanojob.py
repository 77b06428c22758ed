"""Volcano Jobs, for clusters without Volcano's controller. Source: docs/facts/job-kinds.md 1.5; VE-16, VE-17, VE-26.

All pods of all tasks are made, the gang needs minAvailable of them: the scheduler decides who runs beyond that. Under
the autoscaler a task's replicas are its current size. The plugins svc and env add to the pods as Volcano's do, and svc
creates a Service and the host lists. volcanojob_life.py decides the phases of a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnout.controllers.children import SCHEDULERS, meta_of, resources_of, with_missing_variables
from turnout.controllers.kinds import job_reader
from turnout.controllers.kinds import volcanojob_life as life
from turnout.controllers.model import (
    ChildLabels,
    ControlledJob,
    ControlledKind,
    Counts,
    GangDialect,
    GangSpec,
    JobVerdict,
    Object,
    OwnedObjects,
    Replica,
    Role,
    RunPolicy,
    StatusVocabulary,
    replica_name,
)
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import volcanojob
from turnout.jobs.kinds.job_kind import MAX_REPLICAS, Restart
from turnout.jobs.kinds.volcanojob import (
    DEFAULT_QUEUE,
    VOLCANO_JOB,
    VolcanoJobSpec,
    VolcanoTask,
    task_name,
    template_of,
)
from turnout.jobs.model import BadJob
from turnout.kube.labels import SUSPENDED

KIND = VOLCANO_JOB.object_kind
RETRIES = 3
_MOST_NAME = 63  # characters of a pod's name: it is a label and a host, too
_TASK = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_COPIED_ANNOTATIONS = ("volcano.sh/preemptable", "volcano.sh/cooldown-time", "volcano.sh/revocable-zone")
_COPIED_LABELS = _COPIED_ANNOTATIONS[:2]
LABELS = ChildLabels("volcano.sh/job-name", "volcano.sh/task-spec", "volcano.sh/task-index")
NAMESPACE = "volcano.sh/job-namespace"
HOSTS = "/etc/volcano"
_LONG = 4_096  # bytes of a host list: every pod would hold a copy, so longer ones are read from the ConfigMap
_AROUND = 24  # bytes of JSON around a variable's name and value
_OPTIONS: Mapping[str, Mapping[str, str]] = {  # switches of each plugin, with their defaults
    "env": {},
    "svc": {"publish-not-ready-addresses": "false", "disable-network-policy": "false", "inject-hosts-env": "true"},
}

Plugins = Mapping[str, Mapping[str, str]]  # options by plugin


def _read(raw: Object) -> ControlledJob:
    """Return the job as the controllers see it. Raises BadJob."""
    meta, spec = raw["metadata"], volcanojob.read_spec(ObjectPart(raw).part("spec"))
    job_reader.check_name(meta)
    _check_supported(spec)
    roles = tuple(_read_tasks(meta["name"], spec))
    least = {
        role.label: _least(number, task) for number, (task, role) in enumerate(zip(spec.tasks, roles, strict=True))
    }
    total = sum(role.replicas for role in roles)
    min_available = spec.min_available or sum(least.values())
    if min_available > total:
        raise BadJob(f"spec.minAvailable is {min_available}: the tasks have {total} replicas together")
    own_fields = _own_fields(raw, spec, roles, least)
    roles = tuple(_with_added_bytes(own_fields, roles))
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=roles,
        policy=RunPolicy(_suspended(meta), ttl_s=spec.ttl_seconds_after_finished),
        gang=_gang(meta, spec, roles, least, min_available),
        spec=own_fields,
        elastic=min_available < total,
    )


def _check_supported(spec: VolcanoJobSpec) -> None:
    """Raise BadJob for a field without whose effect the job would not do what its owner wants."""
    used = {"spec.volumes": spec.volumes, "spec.minSuccess": spec.min_success}
    for number, task in enumerate(spec.tasks):
        used[f"spec.tasks[{number}].dependsOn"] = task.depends_on
        used[f"spec.tasks[{number}].partitionPolicy"] = task.partition_policy
    for path, value in used.items():
        if value:
            raise BadJob(f"{path} is not supported by the job controllers of Turnout")


def _suspended(meta: Object) -> bool:
    """Return True if the annotation suspends the job. Raises BadJob for a word other than true and false."""
    text = ObjectPart(meta, "metadata").words("annotations").get(SUSPENDED, "false")
    if text not in ("true", "false"):
        raise BadJob(f"annotation {SUSPENDED} is {text!r:.40}: it must be true or false")
    return text == "true"


def _own_fields(raw: Object, spec: VolcanoJobSpec, roles: Sequence[Role], least: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields that only this kind reads."""
    meta, plugins = ObjectPart(raw["metadata"], "metadata"), _read_plugins(spec)
    labels, notes = meta.words("labels"), meta.words("annotations")
    of_tasks = {
        role.label: life.read_policies(task.policies, f"spec.tasks[{number}].policies")
        for number, (role, task) in enumerate(zip(roles, spec.tasks, strict=True))
    }
    return {
        "queue": spec.queue or DEFAULT_QUEUE,
        "scheduler": spec.scheduler_name,
        "priority": spec.priority_class_name,
        "plugins": plugins,
        "hosts": host_file(meta.text("name"), roles) if "svc" in plugins else {},
        "policies": life.Policies(life.read_policies(spec.policies, "spec.policies"), of_tasks),
        "least": least,
        "retries": spec.max_retry or RETRIES,
        "labels": {name: labels[name] for name in _COPIED_LABELS if name in labels},
        "notes": {name: notes[name] for name in _COPIED_ANNOTATIONS if name in notes},
        "version": _count_in_status(raw, "version"),
        "retried": _count_in_status(raw, "retryCount"),
    }


def _count_in_status(raw: Object, key: str) -> int:
    """Return a count of the job's status, 0 for an invalid one."""
    status = raw.get("status")
    value = status.get(key) if isinstance(status, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 - 1 else 0


def _read_tasks(job: str, spec: VolcanoJobSpec) -> Iterator[Role]:
    """Yield the role of each task. Raises BadJob for a bad or repeated name, or too many replicas."""
    names, total = set[str](), 0
    for number, task in enumerate(spec.tasks):
        name, where = task_name(task, number), f"spec.tasks[{number}]"
        if not _TASK.fullmatch(name) or len(f"{job}-{name}-{task.replicas}") > _MOST_NAME:
            why = f"a DNS label is needed, and {_MOST_NAME} characters at most for a pod's name"
            raise BadJob(f"{where}.name is {name!r:.70}: {why}")
        if name in names:
            raise BadJob(f"{where}.name is {name}, which another task has")
        names.add(name)
        total += task.replicas
        if total > MAX_REPLICAS:
            raise BadJob(f"spec.tasks have {total} replicas: at most {MAX_REPLICAS} are made")
        template = template_of(task, number)
        _check_template(template)
        yield Role(name, task.replicas, template.value, _restart(template))


def _check_template(template: ObjectPart) -> None:
    """Raise BadJob for a pod template without containers or with a field of a wrong type."""
    job_reader.check_template(template)
    spec = template.part("spec")
    if not spec.parts("containers"):
        raise BadJob(f"{spec.at('containers')} is missing")
    for key in ("hostname", "subdomain", "schedulerName", "priorityClassName"):
        spec.text(key)


def _restart(template: ObjectPart) -> Restart:
    """Return the restart policy of a task's pods, OnFailure by default. Raises BadJob for ExitCode."""
    spec = template.part("spec")
    found = spec.word("restartPolicy", Restart, Restart.ON_FAILURE)
    if found is Restart.EXIT_CODE:
        raise BadJob(f"{spec.at('restartPolicy')} is ExitCode: a policy of the task has an exitCode instead")
    return found


def _least(number: int, task: VolcanoTask) -> int:
    """Return how many pods of a task its gang needs: all unless the task has a number."""
    least = task.replicas if task.min_available is None else task.min_available
    if least > task.replicas:
        where = f"spec.tasks[{number}]"
        raise BadJob(f"{where}.minAvailable is {least}, above {where}.replicas, {task.replicas}")
    return least


def _gang(
    meta: Object, spec: VolcanoJobSpec, roles: Sequence[Role], least: Mapping[str, int], min_available: int
) -> GangSpec:
    """Return the words of the PodGroup. Source: VE-16, VE-26"""
    notes = ObjectPart(meta, "metadata").words("annotations")
    more: dict[str, Any] = {"minTaskMember": dict(least)}
    if spec.network_topology:
        more["networkTopology"] = spec.network_topology
    return GangSpec(
        min_available,
        spec.queue,
        spec.priority_class_name,
        resources_of(_least_members(roles, least, min_available)),
        name=f"{meta['name']}-{meta['uid']}",
        labels=ObjectPart(meta, "metadata").words("labels"),
        notes={name: text for name, text in notes.items() if not name.startswith("kubectl.kubernetes.io/")},
        more=more,
    )


def _least_members(roles: Sequence[Role], least: Mapping[str, int], min_available: int) -> list[tuple[Role, int]]:
    """Return how many pods of each task count for the least of the job: its own least first, then more in order."""
    if min_available < sum(least.values()):
        counts = {role.label: 0 for role in roles}
    else:
        counts = dict(least)
    left = min_available - sum(counts.values())
    for role in roles:
        more = min(left, role.replicas - counts[role.label])
        counts[role.label] += more
        left -= more
    return [(role, counts[role.label]) for role in roles]


def _read_plugins(spec: VolcanoJobSpec) -> Plugins:
    """Return the options of the plugins, as Go's flags are written: -x, --x or --x=false. Raises BadJob."""
    found = dict[str, Mapping[str, str]]()
    for name, words in spec.plugins.items():
        if name not in _OPTIONS:
            raise BadJob(f"spec.plugins.{name:.40} is not supported: {', '.join(sorted(_OPTIONS))} are")
        options = dict(_OPTIONS[name])
        for word in words or ():
            option, is_, value = word.lstrip("-").partition("=")
            if option not in options or not word.startswith("-"):
                raise BadJob(f"spec.plugins.{name} has {word!r:.40}: {', '.join(options) or 'no option'} is known")
            options[option] = value if is_ else "true"
        found[name] = options
    return found


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options[name].lower() in ("1", "t", "true")


def labels(view: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one pod."""
    own = {**selector(view, role), LABELS.index: str(replica.index), "volcano.sh/queue-name": view.spec["queue"]}
    return {**view.spec["labels"], **own}


def selector(view: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a task have."""
    return {LABELS.job: view.name, NAMESPACE: view.namespace, LABELS.role: role.label}


def notes(view: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
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


def pod_spec(view: ControlledJob, role: Role, replica: Replica, _known: OwnedObjects) -> dict[str, Any]:
    """Return the pod's spec with the job's scheduler, priority and plugins.

    The scheduler `volcano` means the one of gangs, whichever this cluster has: none is named for it here.
    """
    spec = {key: each for key, each in role.template["spec"].items() if each is not None}
    for key, named in (("schedulerName", view.spec["scheduler"]), ("priorityClassName", view.spec["priority"])):
        if named and not spec.get(key):
            spec[key] = named
    if spec.get("schedulerName") in ("", SCHEDULERS[GangDialect.VOLCANO]):
        del spec["schedulerName"]
    return _with_plugins(view, role, replica, spec)


def _judged_by_lifecycle(
    _view: ControlledJob, _counts: Mapping[str, Counts], _known: OwnedObjects
) -> Sequence[JobVerdict]:
    return ()


def hosts(job: str, role: Role) -> list[str]:
    """Return the names under which the pods of a task are reached. One that its template names is one alone."""
    spec = role.template["spec"]
    domain = spec.get("subdomain") or job
    if spec.get("hostname"):
        return [f"{spec['hostname']}.{domain}"]
    return [f"{job}-{role.label}-{index}.{domain}" for index in range(role.replicas)]


def host_file(job: str, roles: Sequence[Role]) -> dict[str, str]:
    """Return the content of the hosts ConfigMap."""
    found = {}
    for role in roles:
        word, listed = role.label.replace("-", "_"), hosts(job, role)
        found[f"{word}.host"] = "\n".join(listed)
        found[f"VC_{word.upper()}_HOSTS"] = ",".join(listed)
        found[f"VC_{word.upper()}_NUM"] = str(len(listed))
    return found


def _with_added_bytes(words: Object, roles: Sequence[Role]) -> Iterator[Role]:
    """Yield the tasks with the bytes that plugins add to each of their pods.

    Only host lists count, because they grow with the job. words: the fields that only this kind reads.
    """
    found: Plugins = words["plugins"]
    added = 0
    if "svc" in found and _is_on(found["svc"], "inject-hosts-env"):
        lists = [(key, text) for key, text in words["hosts"].items() if key.startswith("VC_")]
        added = sum(len(key) + min(len(text), _LONG) + _AROUND for key, text in lists)
    for role in roles:
        spec = role.template["spec"]
        containers = len(spec.get("containers") or ()) + len(spec.get("initContainers") or ())
        yield replace(role, added_bytes=added * containers)


def _config(view: ControlledJob) -> str:
    return f"{view.name}-svc"


def extras(view: ControlledJob, _known: OwnedObjects) -> list[Object]:
    """Return the Service and the host lists that the plugin svc makes."""
    plugins: Plugins = view.spec["plugins"]
    if "svc" not in plugins:
        return []
    chosen = {LABELS.job: view.name, NAMESPACE: view.namespace}
    early = _is_on(plugins["svc"], "publish-not-ready-addresses")
    spec = {"clusterIP": "None", "selector": chosen, "publishNotReadyAddresses": early}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(view, view.name, chosen), "spec": spec}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_of(view, _config(view), chosen)}
    return [service, {**config, "data": host_file(view.name, view.roles)}]


def _with_plugins(view: ControlledJob, role: Role, replica: Replica, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with what the plugins add."""
    plugins: Plugins = view.spec["plugins"]
    changed = dict(spec)
    if "svc" in plugins:
        changed = _svc(view, role, replica, changed, plugins["svc"])
    if "env" in plugins:
        index = str(replica.index)
        changed = _with_env(changed, {"VK_TASK_INDEX": index, "VC_TASK_INDEX": index})
    return changed


def _svc(
    view: ControlledJob, role: Role, replica: Replica, spec: dict[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    """Return a pod's spec with what the plugin svc adds: host name, subdomain, and the list of hosts as a volume."""
    changed = {"hostname": replica_name(view, role, replica), "subdomain": view.name, **spec}
    if _is_on(options, "inject-hosts-env"):
        data: Mapping[str, str] = view.spec["hosts"]
        env = {key: value for key, value in data.items() if key.startswith("VC_")}
        changed = _with_env(changed, {key: _value(view, key, value) for key, value in env.items()})
    return _with_mount(changed, _config(view), {"configMap": {"name": _config(view)}}, {"mountPath": HOSTS})


def _value(view: ControlledJob, key: str, value: str) -> str | Object:
    return value if len(value) <= _LONG else {"configMapKeyRef": {"name": _config(view), "key": key}}


def _with_env(spec: dict[str, Any], env: Mapping[str, str | Object]) -> dict[str, Any]:
    """Return a pod's spec with variables added to every container that does not set them itself."""
    added = [{"name": k, **({"value": v} if isinstance(v, str) else {"valueFrom": v})} for k, v in env.items()]

    def changed(container: Object) -> Object:
        return {**container, "env": with_missing_variables(container.get("env") or (), added)}

    return _each(spec, changed)


def _with_mount(spec: dict[str, Any], name: str, volume: Object, mount: Object) -> dict[str, Any]:
    """Return a pod's spec with a volume that every container mounts."""

    def mounted(container: Object) -> Object:
        return {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), {**mount, "name": name}]}

    own = list(spec.get("volumes") or ())
    has_volume = any(each.get("name") == name for each in own)
    return _each({**spec, "volumes": own if has_volume else [*own, {"name": name, **volume}]}, mounted)


def _each(spec: dict[str, Any], change: Callable[[Object], Object]) -> dict[str, Any]:
    keys = [key for key in ("initContainers", "containers") if spec.get(key)]
    return {**spec, **{key: [change(each) for each in spec[key]] for key in keys}}


VOLCANOJOB = ControlledKind(
    KIND,
    (VOLCANO_JOB.api_version,),
    VOLCANO_JOB.plural,
    "",
    job_reader.refusing(_read),
    labels,
    selector,
    pod_spec,
    extras,
    _judged_by_lifecycle,
    child_labels=LABELS,
    owns=("Pod", "Service", "ConfigMap"),
    vocabulary=StatusVocabulary(life.FIELDS, life.to_core_status, life.to_volcano_status),
    notes=notes,
    title=volcanojob.KIND,
    lifecycle=life.lifecycle,
    phase=life.job_phase,
)
