"""Build the objects that a job owns, compare them with those that exist, and find their paths on the API server.

Children are created in order and deleted with the highest index first. reconcile.py, or a kind with a lifecycle of its
own, decides which children a job needs. One reconciliation creates a bounded number of children, so that no job holds
the loop or the memory; the next ones create the rest. The bytes of all children together are bounded when a job is read
(kinds/job_reader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from turnout.controllers.metrics_port import with_metrics_port
from turnout.controllers.model import (
    ChildKey,
    ChildState,
    ControlledJob,
    ControlledKind,
    Create,
    Delete,
    GangDialect,
    GangSettings,
    LazyChild,
    NeededChild,
    Object,
    OwnedObjects,
    PodState,
    Replica,
    Role,
    Update,
    Write,
)
from turnout.jobs.gang import wants_gate
from turnout.jobs.kinds.job_kind import Restart
from turnout.kube.errors import BadQuantity
from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import amount, nano

POD_GROUPS = {
    GangDialect.VOLCANO: "scheduling.volcano.sh/v1beta1",
    GangDialect.SCHEDULER_PLUGINS: "scheduling.x-k8s.io/v1alpha1",
}
SCHEDULERS = {GangDialect.VOLCANO: "volcano", GangDialect.SCHEDULER_PLUGINS: "scheduler-plugins-scheduler"}
# By which a pod names its PodGroup: a label in one dialect, annotations in the other.
_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
_GROUP_ANNOTATION, _TASK_ANNOTATION = "scheduling.k8s.io/group-name", "volcano.sh/task-spec"
# Fields with a quantity, which the API server stores in its own notation, by the kind of the child.
_QUANTITY_FIELDS = {"HorizontalPodAutoscaler": ("value", "averageValue")}  # of its metrics
_IMMUTABLE_KINDS = ("Service", "Secret")  # never updated, since their addresses and keys are in use
_RESTART = {Restart.EXIT_CODE: Restart.NEVER.value}  # the kubelet knows no exit codes


def owner_reference(job: ControlledJob) -> dict[str, Any]:
    """Return the reference by which a job owns a child, so that the API server deletes the child after the job."""
    identity = {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.uid}
    return {**identity, "controller": True, "blockOwnerDeletion": True}


def pod_body(
    kind: ControlledKind,
    job: ControlledJob,
    role: Role,
    replica: Replica,
    owned: OwnedObjects,
    gang_settings: GangSettings,
) -> Object:
    """Return the body of one replica's pod, with labels, gang and, if the settings ask for it, our scheduling gate.

    owned: what the job owns now.
    """
    template = role.template.get("metadata") or {}
    labels = {**(template.get("labels") or {}), **kind.children.labels(job, role, replica)}
    annotations = {**(template.get("annotations") or {}), **kind.children.pod_annotations(job, role, replica)}
    policy = _RESTART.get(role.restart, role.restart.value)
    spec = {**with_metrics_port(kind.children.pod_spec(job, role, replica, owned)), "restartPolicy": policy}
    dialect = GangDialect.NONE if role.outside_gang else gang_settings.dialect
    if dialect is not GangDialect.NONE:
        spec.setdefault("schedulerName", gang_settings.scheduler or SCHEDULERS[dialect])
    if dialect is GangDialect.VOLCANO:
        annotations |= {_GROUP_ANNOTATION: job.gang.name or job.name, _TASK_ANNOTATION: role.label}
    elif dialect is GangDialect.SCHEDULER_PLUGINS:
        labels[_GROUP_LABEL] = job.name
    meta = meta_of(job, kind.children.name(job, role, replica), labels)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "annotations": annotations} if annotations else meta,
        "spec": spec,
    }
    return _with_placement_gate(body) if gang_settings.gate_pods else body


def _with_placement_gate(body: Object) -> Object:
    """Return the body with our scheduling gate if the pod wants it; an unreadable pod is returned unchanged."""
    try:
        if not wants_gate(msgspec.convert(body, Pod)):
            return body
    except msgspec.ValidationError:  # the API server reports the fault
        return body
    gates = body["spec"].get("schedulingGates") or []
    return {**body, "spec": {**body["spec"], "schedulingGates": [*gates, {"name": PLACEMENT_GATE}]}}


def services(kind: ControlledKind, job: ControlledJob, role: Role) -> Iterator[LazyChild]:
    """Yield the headless Service of each replica of a role, so that its name resolves wherever its pod runs.

    Their bodies are built only if they are missing.
    """
    for index in range(role.replicas):
        replica = Replica(index, index)
        yield LazyChild(
            ChildKey("Service", kind.children.name(job, role, replica)), partial(_service, kind, job, role, replica)
        )


def _service(kind: ControlledKind, job: ControlledJob, role: Role, replica: Replica) -> Object:
    """Return the headless Service of one replica, with the ports of the container that the kind calls its training
    container.
    """
    labels = kind.children.labels(job, role, replica)
    labels.pop("training.kubeflow.org/job-role", None)
    ports = [
        {"name": each.get("name", ""), "port": each["containerPort"]}
        for container in role.template["spec"]["containers"]
        if container.get("name") == kind.container
        for each in container.get("ports") or ()
    ]
    spec = {"clusterIP": "None", "selector": labels, "ports": ports}
    meta = meta_of(job, kind.children.name(job, role, replica), labels)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def pod_group(job: ControlledJob, gang_settings: GangSettings) -> Object | None:
    """Return the job's PodGroup in the dialect of the scheduler; None without a dialect."""
    if gang_settings.dialect is GangDialect.NONE:
        return None
    gang = job.gang
    spec: dict[str, Any] = {"minMember": gang.min_member, "minResources": gang.min_resources or min_resources_of(job)}
    if gang_settings.dialect is GangDialect.VOLCANO:
        spec["queue"] = gang.queue or "default"
        if gang.priority_class:
            spec["priorityClassName"] = gang.priority_class
        spec |= gang.extra_fields
    elif gang.timeout_s is not None:
        spec["scheduleTimeoutSeconds"] = gang.timeout_s
    meta = meta_of(job, job.name, {})
    if gang_settings.dialect is GangDialect.VOLCANO:
        meta = meta_of(job, gang.name or job.name, gang.labels)
        meta |= {"annotations": dict(gang.annotations)} if gang.annotations else {}
    return {"apiVersion": POD_GROUPS[gang_settings.dialect], "kind": "PodGroup", "metadata": meta, "spec": spec}


def min_resources_of(job: ControlledJob) -> Object:
    """Return resource -> amount that the first `min_member` pods request together, in the order of the roles.

    Roles outside the gang are left out. Volcano admits a PodGroup by these amounts.
    """
    remaining, members = job.gang.min_member, []
    for role in (each for each in job.roles if not each.outside_gang):
        count, remaining = min(role.replicas, remaining), max(0, remaining - role.replicas)
        members.append((role, count))
    return resources_of(members)


def resources_of(members: Iterable[tuple[Role, int]]) -> Object:
    """Return resource -> quantity that pods request together. members: (role, how many of its pods).

    A limit stands in for a missing or invalid request. Init containers are not counted. Invalid quantities count as 0,
    because the API server refuses such pods.
    """
    total: dict[str, int] = {}
    for role, count in members:
        for container in role.template["spec"]["containers"] if count else ():
            resources = container.get("resources")
            for name, quantity in _requests(resources).items() if isinstance(resources, Mapping) else ():
                total[name] = total.get(name, 0) + count * quantity
    return {name: _quantity(name, number) for name, number in total.items()}


def _requests(resources: Object) -> dict[str, int]:
    """Return resource -> amount that a container requests, in base units (cpu: milli-CPUs).

    A limit counts if no request is set. Invalid amounts are left out.
    """
    requests = {}
    for part in ("limits", "requests"):
        quantities = resources.get(part)
        for name, quantity in quantities.items() if isinstance(quantities, Mapping) else ():
            with suppress(BadQuantity, TypeError, AttributeError):
                requests[name] = amount(name, quantity)
    return requests


def _quantity(name: str, number: int) -> str:
    """Return an amount as Kubernetes writes it. name: of the resource. number: in base units, for "cpu" milli-CPUs."""
    if name != "cpu":
        return str(number)
    return f"{number}m" if number % 1_000 else str(number // 1_000)


def child_body(child: NeededChild) -> Object:
    """Return the body of a needed child, which is built now if the child is lazy."""
    return child.build() if isinstance(child, LazyChild) else child


def child_key(child: NeededChild) -> ChildKey:
    """Return the kind and name of a needed child, without building it."""
    if isinstance(child, LazyChild):
        return child.key
    return ChildKey(child["kind"], child["metadata"]["name"])


def updated_field(body: Object) -> tuple[str, Object] | None:
    """Return the name and value of the field of a child that is kept up to date: `data` of a ConfigMap, else `spec`.

    None for a Service or Secret, which never changes.
    """
    if body["kind"] in _IMMUTABLE_KINDS:
        return None
    name = "data" if body["kind"] == "ConfigMap" else "spec"
    return name, body[name]


def has_expected_fields(expected: Any, actual: Any, quantity_fields: Sequence[str] = ()) -> bool:
    """Return True if `actual` has all fields of `expected` with equal values, whatever else the API server has filled
    in.

    Values are compared as JSON. Lists must have equal lengths. An expected None, but not an empty object, is equal to a
    missing field. quantity_fields: names of fields, at any depth, whose values are compared by amount.
    """
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            has_expected_fields(each, actual.get(name), quantity_fields)
            or (name in quantity_fields and _are_equal_quantities(each, actual.get(name)))
            for name, each in expected.items()
        )
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(expected) != len(actual):
            return False
        return all(has_expected_fields(*pair, quantity_fields) for pair in zip(expected, actual, strict=True))
    return bool(expected == actual)


def _are_equal_quantities(first: Any, second: Any) -> bool:
    """Return True if both values are quantities of the same amount."""
    if not all(isinstance(each, (str, int, float)) for each in (first, second)):
        return False
    with suppress(BadQuantity):
        return nano(first) == nano(second)
    return False


def meta_of(job: ControlledJob, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of a child of the job: its name, owner reference and labels."""
    meta = {"name": name, "namespace": job.namespace, "ownerReferences": [owner_reference(job)]}
    return {**meta, "labels": dict(labels)} if labels else meta


def with_missing_variables(own: Iterable[Object], added: Iterable[Object]) -> list[Object]:
    """Return a container's own variables, then those of `added` that it does not set itself."""
    variables = list(own)
    names = {each.get("name") for each in variables}
    return [*variables, *(each for each in added if each["name"] not in names)]


POD = "Pod"


def missing_indices(role: Role, pods: Iterable[PodState]) -> list[int]:
    """Return the indices below the role's size that no pod has, the lowest first. pods: of this role."""
    indices = {pod.index for pod in pods}
    return [index for index in range(role.replicas) if index not in indices]


def by_role(pods: Iterable[PodState]) -> dict[str, list[PodState]]:
    """Return the pods by the value of their role label, Role.label. A role without pods has no entry."""
    pods_of_role: dict[str, list[PodState]] = {}
    for pod in pods:
        pods_of_role.setdefault(pod.role, []).append(pod)
    return pods_of_role


def surplus_pods(role: Role, pods: Iterable[PodState]) -> list[PodState]:
    """Return the pods of a role whose index is unreadable or not below its size, the highest index first."""
    surplus = [pod for pod in pods if pod.index >= role.replicas or pod.index < 0]
    return sorted(surplus, key=lambda pod: pod.index, reverse=True)


def delete_pod(pod: PodState) -> Delete:
    """Return the deletion of a pod."""
    return Delete(ChildKey(POD, pod.name), pod.uid)


def other_writes(bodies: Iterable[NeededChild], owned: OwnedObjects, create_budget: CreateBudget) -> Iterator[Write]:
    """Yield the writes that create, update and delete the children that are not pods.

    bodies: the needed children; all others are deleted, the highest index first. An existing Service, Secret or lazy
    child is never updated. create_budget: what this reconciliation may still create; it is charged, and further
    children are left to the next reconciliation.
    """
    keys = set[ChildKey]()
    for body in bodies:
        key = child_key(body)
        keys.add(key)
        child = owned.others.get(key)
        if child is None:
            if not create_budget.leave_out_next():
                yield create_budget.create(partial(child_body, body))
        elif not isinstance(body, LazyChild) and (expected := updated_field(body)) is not None:
            name, wanted_fields = expected
            actual_fields, quantities = child.data if name == "data" else child.spec, _QUANTITY_FIELDS.get(key.kind, ())
            if not has_expected_fields(wanted_fields, actual_fields, quantities):
                yield Update(key, wanted_fields, name)
    surplus_children = [each for key, each in owned.others.items() if key not in keys]
    yield from (Delete(each.key, each.uid) for each in sorted(surplus_children, key=lambda each: -each.index))


def delete_pods(pods: Iterable[PodState]) -> Iterator[Write]:
    """Yield the deletions of these pods, except for pods that terminate already, by role, the highest index first."""
    living = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: (pod.role, -pod.index))
    return (delete_pod(pod) for pod in living)


def delete_others(owned: OwnedObjects) -> Iterator[Write]:
    """Yield the deletions of all children that are not pods, by kind, the highest index first."""
    return (Delete(each.key, each.uid) for each in sorted(owned.others.values(), key=_last_first))


def _last_first(child: ChildState) -> tuple[str, int]:
    """Return a sort key: the kind of a child, then the highest index first."""
    return child.key.kind, -child.index


def waits_for_admission(owned: OwnedObjects, gang_settings: GangSettings) -> bool:
    """Return True if pods must not be created yet: Volcano has not admitted the job's PodGroup, or it does not exist.

    Always False with another scheduler. Source: MS-46
    """
    groups = [each for each in owned.others.values() if each.key.kind == "PodGroup"]
    return gang_settings.dialect is GangDialect.VOLCANO and (
        not groups or any(each.phase in ("", "Pending") for each in groups)
    )


def merge_patch(before: Object, after: Object) -> Object:
    """Return the JSON merge patch that turns `before` into `after`: null for removed fields, lists as a whole.

    Fields of `after` that did not change are in the patch, too.
    """
    removed = {name: None for name in before if name not in after}
    changed = {
        name: merge_patch(before[name], each)
        if isinstance(each, Mapping) and isinstance(before.get(name), Mapping)
        else each
        for name, each in after.items()
    }
    return {**removed, **changed}


MAX_CREATED_BYTES = 2 << 20  # JSON bytes of the children that one reconciliation creates
MAX_CREATED_CHILDREN = 500  # children that one reconciliation creates


class CreateBudget:
    """How many children, and bytes of them, one reconciliation may still create.

    The last child may exceed the bytes, so a child larger than MAX_CREATED_BYTES is created, too.
    """

    def __init__(self) -> None:
        self._children, self._bytes = MAX_CREATED_CHILDREN, MAX_CREATED_BYTES
        self._left_out = False

    def leave_out_next(self) -> bool:
        """Return True, and note that a child is left out, if the budget is used up.

        Then requeue_s() returns (0.0,), and every further call returns True.
        """
        self._left_out |= self._children <= 0 or self._bytes <= 0
        return self._left_out

    def create(self, build: Callable[[], Object]) -> Create:
        """Build a child, charge it, and return its creation. Call it only after `leave_out_next` returned False."""
        body = build()
        self._children -= 1
        self._bytes -= len(msgspec.json.encode(body))
        return Create(body)

    def requeue_s(self) -> tuple[float, ...]:
        """Return (0.0,) if a child was left out, so that the job is reconciled again at once; else ()."""
        return (0.0,) if self._left_out else ()


PODS = "/api/v1"
# By kind: the path of its API group, and its plural.
_PREFIXES = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
}


def path_prefixes(gang_settings: GangSettings) -> Mapping[str, tuple[str, str]]:
    """Return kind of child -> (path of its API group, its plural). PodGroups are included if there is a dialect."""
    if gang_settings.dialect not in POD_GROUPS:
        return _PREFIXES
    return {**_PREFIXES, "PodGroup": (f"/apis/{POD_GROUPS[gang_settings.dialect]}", "podgroups")}


def collection_path(prefix: tuple[str, str], namespace: str) -> str:
    """Return the path of the children of one kind in a namespace; "" for all namespaces. prefix: of `path_prefixes`."""
    group, plural = prefix
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"
