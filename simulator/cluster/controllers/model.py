"""The input and the writes of controllers, and the functions that all controllers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnout.kube.pod_shape import milli
from turnout.kube.times import unix_s

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CreateWrite:
    """Create an object."""

    resource: str  # `pods`, or for example `podgroups.scheduling.volcano.sh`
    obj: Object


@dataclass(frozen=True, slots=True)
class DeleteWrite:
    """Delete this object, but no other object of its name."""

    resource: str  # as of CreateWrite
    obj: Object  # as it was read: with name, namespace and uid


@dataclass(frozen=True, slots=True)
class PatchWrite:
    """Change an object by a merge patch."""

    resource: str  # as of CreateWrite
    obj: Object  # as it was read
    change: Object  # the merge patch
    part: str = "status"  # the subresource; "" for the object itself


Write = CreateWrite | DeleteWrite | PatchWrite


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """The result of one reconciliation of an object."""

    writes: Sequence[Write] = field(default=())  # in the order in which they are carried out
    requeue_at_s: float | None = None  # when to reconcile again even if nothing changes, since 1970; None: no time


def owner_references(owner: Object, api_version: str, kind: str) -> list[Object]:
    """Return the ownerReferences of objects that `owner` creates: one entry, with `owner` as the controller.

    api_version, kind: of the owner.
    """
    meta = owner["metadata"]
    reference = {"apiVersion": api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def phase(pod: Object) -> str:
    """Return a pod's phase; "Pending" without one."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminating(pod: Object) -> bool:
    """Return True if the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def has_ended(pod: Object) -> bool:
    """Return True if the pod has ended."""
    return phase(pod) in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    """Return True if the pod has the condition Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def ended_s(pod: Object) -> float:
    """Return when the last container of a pod ended, in seconds since 1970; 0 if no container status has a time."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    times = [((each.get("state") or {}).get("terminated") or {}).get("finishedAt") for each in statuses]
    return max((unix_s(each) or 0.0 for each in times), default=0.0)


def from_template(template: Object, name: Object, namespace: str, labels: Object, annotations: Object) -> Object:
    """Return a new pod from a pod template.

    name: {"name": ...} or {"generateName": ...}. labels, annotations: added to the template's, and replace those of
    the same key. The spec is a new dict, but shares its nested values with the template.
    """
    meta = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **name,
            "namespace": namespace,
            "labels": {**(meta.get("labels") or {}), **labels},
            "annotations": {**(meta.get("annotations") or {}), **annotations},
        },
        "spec": {**template["spec"]},
    }


def with_env(spec: Object, env: Iterable[Object]) -> Object:
    """Return a copy of a pod's spec in which every container, init containers too, has these environment variables.

    A variable that a container sets itself stays. The new ones come last. env: variables as in a container's spec.
    """
    added = list(env)

    def one(container: Object) -> Object:
        own = container.get("env") or []
        set_ = {each["name"] for each in own}
        return {**container, "env": [*own, *(each for each in added if each["name"] not in set_)]}

    changed = {key: [one(each) for each in spec[key]] for key in ("initContainers", "containers") if spec.get(key)}
    return {**spec, **changed}


def amounts_of(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Return resource -> quantity in thousandths. Raises BadQuantity for a quantity that cannot be read."""
    return {resource: milli(quantity) for resource, quantity in quantities.items()}
