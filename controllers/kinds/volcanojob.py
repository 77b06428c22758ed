"""Volcano Jobs, for clusters without Volcano's controller. Source: docs/facts/job-kinds.md 1.5; VE-16, VE-17, VE-26.

All pods of all tasks are created, and the gang needs minAvailable of them: the scheduler decides which of the others
run. Under the autoscaler a task's replicas are its current size. The plugins svc and env add to the pods as Volcano's
do, and svc creates a Service and the host lists. volcanojob_life.py decides the phases of a job.
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
    ChildRules,
    ControlledJob,
    ControlledKind,
    Counts,
    GangDialect,
    GangSpec,
    Object,
    OwnedObjects,
    PodDerivedCondition,
    Replica,
    Role,
    RunPolicy,
    StatusRules,
    StatusTranslation,
    replica_name,
)
from turnout.jobs.fields import ObjectPart, read_enum
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
DEFAULT_RETRIES = 3  # restarts of a job without maxRetry
_MAX_NAME = 63  # characters of a pod's name, which is also a label and a host name
_TASK = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_COPIED_ANNOTATIONS = ("volcano.sh/preemptable", "volcano.sh/cooldown-time", "volcano.sh/revocable-zone")
_COPIED_LABELS = _COPIED_ANNOTATIONS[:2]
LABELS = ChildLabels("volcano.sh/job-name", "volcano.sh/task-spec", "volcano.sh/task-index")
NAMESPACE = "volcano.sh/job-namespace"
HOSTS = "/etc/volcano"
_MAX_INLINE = 4_096  # bytes of a host list that each pod gets as a copy; a longer list is read from the ConfigMap
_VARIABLE_BYTES = 24  # of JSON around a variable's name and value
_OPTIONS: Mapping[str, Mapping[str, str]] = {  # switches of each plugin, with their defaults
    "env": {},
    "svc": {"publish-not-ready-addresses": "false", "disable-network-policy": "false", "inject-hosts-env": "true"},
}

Plugins = Mapping[str, Mapping[str, str]]  # options by plugin


def _read(raw: Object) -> ControlledJob:
    """Return the job of an object, with the fields that only this kind reads as `spec`. Raises BadJob."""
    meta, spec = raw["metadata"], volcanojob.read_spec(ObjectPart(raw).part("spec"))
    job_reader.check_name(meta)
    _check_supported(spec)
    roles = tuple(_read_tasks(meta["name"], spec))
    min_by_task = {
        role.label: _gang_pods(number, task) for number, (task, role) in enumerate(zip(spec.tasks, roles, strict=True))
    }
    total = sum(role.replicas for role in roles)
    min_available = spec.min_available or sum(min_by_task.values())
    if min_available > total:
        raise BadJob(f"spec.minAvailable is {min_available}: the tasks have {total} replicas together")
    own_fields = _own_fields(raw, spec, roles, min_by_task)
    roles = tuple(_with_added_bytes(own_fields, roles))
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=roles,
        policy=RunPolicy(_suspended(meta), ttl_s=spec.ttl_seconds_after_finished),
        gang=_gang(meta, spec, roles, min_by_task, min_available),
        spec=own_fields,
        elastic=min_available < total,
    )


def _check_supported(spec: VolcanoJobSpec) -> None:
    """Raise BadJob for a field that is not supported: volumes, minSuccess, dependsOn or partitionPolicy.

    Such a field would be ignored, and the job would not do what its owner wants.
    """
    used = {"spec.volumes": spec.volumes, "spec.minSuccess": spec.min_success}
    for number, task in enumerate(spec.tasks):
        used[f"spec.tasks[{number}].dependsOn"] = task.depends_on
        used[f"spec.tasks[{number}].partitionPolicy"] = task.partition_policy
    for path, value in used.items():
        if value:
            raise BadJob(f"{path} is not supported by the job controllers of Turnout")


def _suspended(meta: Object) -> bool:
    """Return True if the annotation suspends the job. Raises BadJob for a value other than true and false."""
    text = ObjectPart(meta, "metadata").text_map("annotations").get(SUSPENDED, "false")
    if text not in ("true", "false"):
        raise BadJob(f"annotation {SUSPENDED} is {text!r:.40}: it must be true or false")
    return text == "true"


def _own_fields(
    raw: Object, spec: VolcanoJobSpec, roles: Sequence[Role], min_by_task: Mapping[str, int]
) -> dict[str, Any]:
    """Return the fields that only this kind reads. Raises BadJob.

    raw: the job's object. min_by_task: pods of each task that the gang needs.
    """
    meta, plugins = ObjectPart(raw["metadata"], "metadata"), _read_plugins(spec)
    labels, annotations = meta.text_map("labels"), meta.text_map("annotations")
    task_policies = {
        role.label: life.read_policies(task.policies, f"spec.tasks[{number}].policies")
        for number, (role, task) in enumerate(zip(roles, spec.tasks, strict=True))
    }
    return {
        "queue": spec.queue or DEFAULT_QUEUE,
        "scheduler": spec.scheduler_name,
        "priority": spec.priority_class_name,
        "plugins": plugins,
        "hosts": host_lists(meta.text("name"), roles) if "svc" in plugins else {},
        "policies": life.Policies(life.read_policies(spec.policies, "spec.policies"), task_policies),
        "min_by_task": min_by_task,
        "max_retry": spec.max_retry or DEFAULT_RETRIES,
        "labels": {name: labels[name] for name in _COPIED_LABELS if name in labels},
        "annotations": {name: annotations[name] for name in _COPIED_ANNOTATIONS if name in annotations},
        "version": _count_in_status(raw, "version"),
        "retry_count": _count_in_status(raw, "retryCount"),
    }


def _count_in_status(raw: Object, key: str) -> int:
    """Return a count of the job's status, 0 for a missing or invalid one. raw: the job's object. key: of the field."""
    status = raw.get("status")
    value = status.get(key) if isinstance(status, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 - 1 else 0


def _read_tasks(job_name: str, spec: VolcanoJobSpec) -> Iterator[Role]:
    """Yield the role of each task.

    Raises BadJob for an invalid or repeated name, an invalid template, or more than MAX_REPLICAS replicas in all.
    """
    names, total = set[str](), 0
    for number, task in enumerate(spec.tasks):
        name, where = task_name(task, number), f"spec.tasks[{number}]"
        if not _TASK.fullmatch(name) or len(f"{job_name}-{name}-{task.replicas}") > _MAX_NAME:
            why = f"a DNS label is needed, and {_MAX_NAME} characters at most for a pod's name"
            raise BadJob(f"{where}.name is {name!r:.70}: {why}")
        if name in names:
            raise BadJob(f"{where}.name is {name}, which another task has")
        names.add(name)
        total += task.replicas
        if total > MAX_REPLICAS:
            raise BadJob(f"spec.tasks have {total} replicas: at most {MAX_REPLICAS} are made")
        template = template_of(task, number)
        _check_template(template)
        yield Role(name, task.replicas, template.value, _restart_policy(template))


def _check_template(template: ObjectPart) -> None:
    """Raise BadJob for a pod template without containers, or with a field of a wrong type."""
    job_reader.check_template(template)
    spec = template.part("spec")
    if not spec.parts("containers"):
        raise BadJob(f"{spec.at('containers')} is missing")
    for key in ("hostname", "subdomain", "schedulerName", "priorityClassName"):
        spec.text(key)


def _restart_policy(template: ObjectPart) -> Restart:
    """Return the restart policy of a task's pods, OnFailure by default. Raises BadJob for ExitCode."""
    spec = template.part("spec")
    policy = read_enum(spec, "restartPolicy", Restart, Restart.ON_FAILURE)
    if policy is Restart.EXIT_CODE:
        raise BadJob(f"{spec.at('restartPolicy')} is ExitCode: a policy of the task has an exitCode instead")
    return policy


def _gang_pods(number: int, task: VolcanoTask) -> int:
    """Return how many pods of a task its gang needs: its minAvailable, else all.

    number: index of the task. Raises BadJob if there are more than the task has.
    """
    min_pods = task.replicas if task.min_available is None else task.min_available
    if min_pods > task.replicas:
        where = f"spec.tasks[{number}]"
        raise BadJob(f"{where}.minAvailable is {min_pods}, above {where}.replicas, {task.replicas}")
    return min_pods


def _gang(
    meta: Object, spec: VolcanoJobSpec, roles: Sequence[Role], min_by_task: Mapping[str, int], min_available: int
) -> GangSpec:
    """Return the fields of the job's PodGroup. Source: VE-16, VE-26

    meta: metadata of the job. min_by_task: pods of each task that the gang needs. min_available: pods that start
    together.
    """
    annotations = ObjectPart(meta, "metadata").text_map("annotations")
    extra_fields: dict[str, Any] = {"minTaskMember": dict(min_by_task)}
    if spec.network_topology:
        extra_fields["networkTopology"] = spec.network_topology
    return GangSpec(
        min_available,
        spec.queue,
        spec.priority_class_name,
        resources_of(_pods_for_min_available(roles, min_by_task, min_available)),
        name=f"{meta['name']}-{meta['uid']}",
        labels=ObjectPart(meta, "metadata").text_map("labels"),
        annotations={name: text for name, text in annotations.items() if not name.startswith("kubectl.kubernetes.io/")},
        extra_fields=extra_fields,
    )


def _pods_for_min_available(
    roles: Sequence[Role], min_by_task: Mapping[str, int], min_available: int
) -> list[tuple[Role, int]]:
    """Return (role, pods) for the pods that count for minAvailable: those that each task needs first, then others in
    order.

    min_by_task: pods of each task that the gang needs. If minAvailable is lower than their sum, only the order of the
    tasks counts.
    """
    if min_available < sum(min_by_task.values()):
        counts = {role.label: 0 for role in roles}
    else:
        counts = dict(min_by_task)
    remaining = min_available - sum(counts.values())
    for role in roles:
        added = min(remaining, role.replicas - counts[role.label])
        counts[role.label] += added
        remaining -= added
    return [(role, counts[role.label]) for role in roles]


def _read_plugins(spec: VolcanoJobSpec) -> Plugins:
    """Return plugin -> option -> value, with defaults. Options are written as Go's flags are: -x, --x or --x=false.

    Raises BadJob for an unknown plugin or option.
    """
    plugins = dict[str, Mapping[str, str]]()
    for name, flags in spec.plugins.items():
        if name not in _OPTIONS:
            raise BadJob(f"spec.plugins.{name:.40} is not supported: {', '.join(sorted(_OPTIONS))} are")
        options = dict(_OPTIONS[name])
        for flag in flags or ():
            option, has_value, value = flag.lstrip("-").partition("=")
            if option not in options or not flag.startswith("-"):
                raise BadJob(f"spec.plugins.{name} has {flag!r:.40}: {', '.join(options) or 'no option'} is known")
            options[option] = value if has_value else "true"
        plugins[name] = options
    return plugins


def _is_on(options: Mapping[str, str], name: str) -> bool:
    """Return True if a switch of a plugin is on."""
    return options[name].lower() in ("1", "t", "true")


def labels(job: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica's pod."""
    own = {**selector(job, role), LABELS.index: str(replica.index), "volcano.sh/queue-name": job.spec["queue"]}
    return {**job.spec["labels"], **own}


def selector(job: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a task have."""
    return {LABELS.job: job.name, NAMESPACE: job.namespace, LABELS.role: role.label}


def pod_annotations(job: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the annotations of one replica's pod: those of Volcano, and of the job's those in _COPIED_ANNOTATIONS."""
    return {
        **job.spec["annotations"],
        LABELS.job: job.name,
        LABELS.role: role.label,
        LABELS.index: str(replica.index),
        "volcano.sh/queue-name": job.spec["queue"],
        "volcano.sh/job-version": str(job.spec["version"]),
        "volcano.sh/job-retry-count": str(job.spec["retry_count"]),
        "volcano.sh/template-uid": f"{job.name}-{role.label}",
    }


def pod_spec(job: ControlledJob, role: Role, replica: Replica, _owned: OwnedObjects) -> dict[str, Any]:
    """Return the spec of one replica's pod, with the job's plugins.

    The job's scheduler and priority class count where the template has none. The scheduler name `volcano` is removed:
    it stands for the scheduler of gangs in this cluster, which is set elsewhere.
    """
    spec = {key: each for key, each in role.template["spec"].items() if each is not None}
    for key, default in (("schedulerName", job.spec["scheduler"]), ("priorityClassName", job.spec["priority"])):
        if default and not spec.get(key):
            spec[key] = default
    if spec.get("schedulerName") in ("", SCHEDULERS[GangDialect.VOLCANO]):
        del spec["schedulerName"]
    return _with_plugins(job, role, replica, spec)


def _no_conditions(
    _job: ControlledJob, _counts: Mapping[str, Counts], _owned: OwnedObjects
) -> Sequence[PodDerivedCondition]:
    """Return no conditions, since volcanojob_life.py decides the phases of this kind."""
    return ()


def hosts(job_name: str, role: Role) -> list[str]:
    """Return the DNS names of the pods of a task, in order of their indices.

    A template with a hostname gives all its pods this one name, so that the list has one entry.
    """
    spec = role.template["spec"]
    domain = spec.get("subdomain") or job_name
    if spec.get("hostname"):
        return [f"{spec['hostname']}.{domain}"]
    return [f"{job_name}-{role.label}-{index}.{domain}" for index in range(role.replicas)]


def host_lists(job_name: str, roles: Sequence[Role]) -> dict[str, str]:
    """Return key -> text for the ConfigMap with the host lists, as in Volcano's svc plugin.

    Each task has three entries: `TASK.host` with one name on each line, `VC_TASK_HOSTS` with commas between the names,
    and `VC_TASK_NUM` with their number. In the keys, _ stands for each - of the task's name; the last two have it in
    capitals.
    """
    data = {}
    for role in roles:
        key, names = role.label.replace("-", "_"), hosts(job_name, role)
        data[f"{key}.host"] = "\n".join(names)
        data[f"VC_{key.upper()}_HOSTS"] = ",".join(names)
        data[f"VC_{key.upper()}_NUM"] = str(len(names))
    return data


def _with_added_bytes(own_fields: Object, roles: Sequence[Role]) -> Iterator[Role]:
    """Yield the roles with the JSON bytes that plugins add to each pod: host lists, as only these grow with the job.

    own_fields: of `_own_fields`.
    """
    plugins: Plugins = own_fields["plugins"]
    added = 0
    if "svc" in plugins and _is_on(plugins["svc"], "inject-hosts-env"):
        lists = [(key, text) for key, text in own_fields["hosts"].items() if key.startswith("VC_")]
        added = sum(len(key) + min(len(text), _MAX_INLINE) + _VARIABLE_BYTES for key, text in lists)
    for role in roles:
        spec = role.template["spec"]
        containers = len(spec.get("containers") or ()) + len(spec.get("initContainers") or ())
        yield replace(role, added_bytes=added * containers)


def _config_name(job: ControlledJob) -> str:
    """Return the name of the ConfigMap with the host lists."""
    return f"{job.name}-svc"


def other_children(job: ControlledJob, _owned: OwnedObjects) -> list[Object]:
    """Return the Service and the ConfigMap of host lists of the plugin svc; empty without the plugin."""
    plugins: Plugins = job.spec["plugins"]
    if "svc" not in plugins:
        return []
    selector_labels = {LABELS.job: job.name, NAMESPACE: job.namespace}
    publishes_early = _is_on(plugins["svc"], "publish-not-ready-addresses")
    spec = {"clusterIP": "None", "selector": selector_labels, "publishNotReadyAddresses": publishes_early}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(job, job.name, selector_labels), "spec": spec}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_of(job, _config_name(job), selector_labels)}
    return [service, {**config, "data": host_lists(job.name, job.roles)}]


def _with_plugins(job: ControlledJob, role: Role, replica: Replica, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a pod's spec with what the job's plugins svc and env add.

    replica: its index becomes VC_TASK_INDEX and VK_TASK_INDEX. spec: not changed.
    """
    plugins: Plugins = job.spec["plugins"]
    changed = dict(spec)
    if "svc" in plugins:
        changed = _with_svc(job, role, replica, changed, plugins["svc"])
    if "env" in plugins:
        index = str(replica.index)
        changed = _with_missing_env(changed, {"VK_TASK_INDEX": index, "VC_TASK_INDEX": index})
    return changed


def _with_svc(
    job: ControlledJob, role: Role, replica: Replica, spec: dict[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    """Return a pod's spec with what the plugin svc adds. options: of the plugin.

    That is a host name and a subdomain, unless the spec has its own, and the host lists as a volume and, by an option,
    as variables.
    """
    changed = {"hostname": replica_name(job, role, replica), "subdomain": job.name, **spec}
    if _is_on(options, "inject-hosts-env"):
        data: Mapping[str, str] = job.spec["hosts"]
        env = {key: value for key, value in data.items() if key.startswith("VC_")}
        changed = _with_missing_env(changed, {key: _variable_value(job, key, value) for key, value in env.items()})
    return _with_mount(changed, _config_name(job), {"configMap": {"name": _config_name(job)}}, {"mountPath": HOSTS})


def _variable_value(job: ControlledJob, key: str, value: str) -> str | Object:
    """Return the value of a variable; a reference to the ConfigMap if it is longer than _MAX_INLINE."""
    return value if len(value) <= _MAX_INLINE else {"configMapKeyRef": {"name": _config_name(job), "key": key}}


def _with_missing_env(spec: dict[str, Any], env: Mapping[str, str | Object]) -> dict[str, Any]:
    """Return a copy of a pod's spec in which each container and init container has these variables.

    A variable that a container sets itself stays as it is. env: name -> value, or the source of the value.
    """
    added = [{"name": k, **({"value": v} if isinstance(v, str) else {"valueFrom": v})} for k, v in env.items()]

    def changed(container: Object) -> Object:
        return {**container, "env": with_missing_variables(container.get("env") or (), added)}

    return _map_containers(spec, changed)


def _with_mount(spec: dict[str, Any], name: str, volume: Object, mount: Object) -> dict[str, Any]:
    """Return a pod's spec with a volume that every container mounts.

    If the spec has a volume of this name, only the mounts are added. volume, mount: their fields without the name.
    """

    def mounted(container: Object) -> Object:
        return {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), {**mount, "name": name}]}

    volumes = list(spec.get("volumes") or ())
    has_volume = any(each.get("name") == name for each in volumes)
    return _map_containers(
        {**spec, "volumes": volumes if has_volume else [*volumes, {"name": name, **volume}]}, mounted
    )


def _map_containers(spec: dict[str, Any], change: Callable[[Object], Object]) -> dict[str, Any]:
    """Return a pod's spec with a change made to each of its containers and init containers."""
    keys = [key for key in ("initContainers", "containers") if spec.get(key)]
    return {**spec, **{key: [change(each) for each in spec[key]] for key in keys}}


VOLCANOJOB = ControlledKind(
    KIND,
    (VOLCANO_JOB.api_version,),
    VOLCANO_JOB.plural,
    "",
    job_reader.refusing(_read),
    ChildRules(
        labels,
        selector,
        pod_spec,
        other_children,
        label_keys=LABELS,
        owns=("Pod", "Service", "ConfigMap"),
        pod_annotations=pod_annotations,
    ),
    StatusRules(
        _no_conditions,
        translation=StatusTranslation(life.FIELDS, life.to_core_status, life.to_volcano_status),
        lifecycle=life.lifecycle,
        phase=life.job_phase,
    ),
    title=volcanojob.KIND,
)
