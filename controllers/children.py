"""The objects that a job owns, as they are created: pods, headless Services and a PodGroup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from turnout.controllers.kind import Kind
from turnout.controllers.model import (
    ChildKey,
    Dialect,
    JobView,
    KnownChildren,
    Later,
    Object,
    Replica,
    Restart,
    Role,
    Setup,
    Wanted,
)
from turnout.jobs.gate import wants_gate
from turnout.kube.errors import BadQuantity
from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import amount

POD_GROUPS = {
    Dialect.VOLCANO: "scheduling.volcano.sh/v1beta1",
    Dialect.SCHEDULER_PLUGINS: "scheduling.x-k8s.io/v1alpha1",
}
SCHEDULERS = {Dialect.VOLCANO: "volcano", Dialect.SCHEDULER_PLUGINS: "scheduler-plugins-scheduler"}
_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
_GROUP_NOTE, _TASK_NOTE = "scheduling.k8s.io/group-name", "volcano.sh/task-spec"
_MADE_ONCE = ("Service", "Secret")  # their addresses and keys are in use
_RESTART = {Restart.EXIT_CODE: Restart.NEVER.value}  # the kubelet knows no exit codes


def owner(view: JobView) -> dict[str, Any]:
    """Return the reference by which the job owns a child, and the API server deletes it after the job."""
    head = {"apiVersion": view.api_version, "kind": view.kind, "name": view.name, "uid": view.uid}
    return {**head, "controller": True, "blockOwnerDeletion": True}


def pod(kind: Kind, view: JobView, role: Role, replica: Replica, known: KnownChildren, setup: Setup) -> Object:
    """Return one replica's pod."""
    template = role.template.get("metadata") or {}
    labels = {**(template.get("labels") or {}), **kind.labels(view, role, replica)}
    notes = {**(template.get("annotations") or {}), **kind.notes(view, role, replica)}
    policy = _RESTART.get(role.restart, role.restart.value)
    spec = {**kind.pod_spec(view, role, replica, known), "restartPolicy": policy}
    dialect = Dialect.NONE if role.outside_gang else setup.dialect
    if dialect is not Dialect.NONE:
        spec.setdefault("schedulerName", setup.scheduler or SCHEDULERS[dialect])
    if dialect is Dialect.VOLCANO:
        notes |= {_GROUP_NOTE: view.gang.name or view.name, _TASK_NOTE: role.label}
    elif dialect is Dialect.SCHEDULER_PLUGINS:
        labels[_GROUP_LABEL] = view.name
    meta = meta_of(view, kind.name(view, role, replica), labels)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "annotations": notes} if notes else meta,
        "spec": spec,
    }
    return _gated(body) if setup.gate_pods else body


def _gated(body: Object) -> Object:
    """Put our scheduling gate on a pod that wants it; leave any other, and one that cannot be read."""
    try:
        if not wants_gate(msgspec.convert(body, Pod)):
            return body
    except msgspec.ValidationError:  # the API server tells what is wrong with it
        return body
    gates = body["spec"].get("schedulingGates") or []
    return {**body, "spec": {**body["spec"], "schedulingGates": [*gates, {"name": PLACEMENT_GATE}]}}


def services(kind: Kind, view: JobView, role: Role) -> Iterator[Later]:
    """Give each replica's headless Service, so that its name resolves wherever its pod runs."""
    for index in range(role.replicas):
        replica = Replica(index, index)
        yield Later(ChildKey("Service", kind.name(view, role, replica)), partial(_service, kind, view, role, replica))


def _service(kind: Kind, view: JobView, role: Role, replica: Replica) -> Object:
    labels = kind.labels(view, role, replica)
    labels.pop("training.kubeflow.org/job-role", None)
    ports = [
        {"name": each.get("name", ""), "port": each["containerPort"]}
        for container in role.template["spec"]["containers"]
        if container.get("name") == kind.container
        for each in container.get("ports") or ()
    ]
    spec = {"clusterIP": "None", "selector": labels, "ports": ports}
    meta = meta_of(view, kind.name(view, role, replica), labels)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def pod_group(view: JobView, setup: Setup) -> Object | None:
    """Return the job's PodGroup in the scheduler's dialect; None without one."""
    if setup.dialect is Dialect.NONE:
        return None
    gang = view.gang
    spec: dict[str, Any] = {"minMember": gang.min_member, "minResources": gang.min_resources or least_resources(view)}
    if setup.dialect is Dialect.VOLCANO:
        spec["queue"] = gang.queue or "default"
        if gang.priority_class:
            spec["priorityClassName"] = gang.priority_class
        spec |= gang.more
    elif gang.timeout_s is not None:
        spec["scheduleTimeoutSeconds"] = gang.timeout_s
    meta = meta_of(view, view.name, {})
    if setup.dialect is Dialect.VOLCANO:
        meta = meta_of(view, gang.name or view.name, gang.labels)
        meta |= {"annotations": dict(gang.notes)} if gang.notes else {}
    return {"apiVersion": POD_GROUPS[setup.dialect], "kind": "PodGroup", "metadata": meta, "spec": spec}


def least_resources(view: JobView) -> Object:
    """Return what the first `min_member` members ask for together, the lead's first: Volcano admits the group by it."""
    left, members = view.gang.min_member, []
    for role in (each for each in view.roles if not each.outside_gang):
        count, left = min(role.replicas, left), max(0, left - role.replicas)
        members.append((role, count))
    return resources_of(members)


def resources_of(members: Iterable[tuple[Role, int]]) -> Object:
    """Return what so many pods of each role ask for together.

    A limit stands in for an absent request, as the API server has it. Quantities that are none count for nothing: their
    pods are refused.
    """
    total: dict[str, int] = {}
    for role, count in members:
        for container in role.template["spec"]["containers"] if count else ():
            resources = container.get("resources")
            for name, quantity in _requests(resources).items() if isinstance(resources, Mapping) else ():
                total[name] = total.get(name, 0) + count * quantity
    return {name: _quantity(name, number) for name, number in total.items()}


def _requests(resources: Object) -> dict[str, int]:
    found = {}
    for part in ("limits", "requests"):
        quantities = resources.get(part)
        for name, quantity in quantities.items() if isinstance(quantities, Mapping) else ():
            with suppress(BadQuantity, TypeError, AttributeError):
                found[name] = amount(name, quantity)
    return found


def _quantity(name: str, number: int) -> str:
    """Return an amount as Kubernetes writes it. number: of milli-CPU for "cpu"."""
    if name != "cpu":
        return str(number)
    return f"{number}m" if number % 1_000 else str(number // 1_000)


def build(child: Wanted) -> Object:
    """Return the body of a child."""
    return child.build() if isinstance(child, Later) else child


def key_of(body: Wanted) -> ChildKey:
    """Return the key of a child by its body."""
    if isinstance(body, Later):
        return body.key
    return ChildKey(body["kind"], body["metadata"]["name"])


def content(body: Object) -> tuple[str, Object] | None:
    """Return the field of a child that is kept as it is wanted, and what it is; None for one that is made once."""
    if body["kind"] in _MADE_ONCE:
        return None
    name = "data" if body["kind"] == "ConfigMap" else "spec"
    return name, body[name]


def same(expected: Any, actual: Any) -> bool:
    """True if an object has every field that is wanted, whatever else the API server has filled in."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(same(each, actual.get(name)) for name, each in expected.items())
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(expected) != len(actual):
            return False
        return all(same(*pair) for pair in zip(expected, actual, strict=True))
    return bool(expected == actual)


def meta_of(view: JobView, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of a child of the job."""
    meta = {"name": name, "namespace": view.namespace, "ownerReferences": [owner(view)]}
    return {**meta, "labels": dict(labels)} if labels else meta
