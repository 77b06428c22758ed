"""Decide whether a write is allowed: the object must be of its path's kind and shape, and the one that is meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnout.simulator.api.errors import ApiRefusal, conflict, invalid
from turnout.simulator.api.kinds.schema import faults, fill, prune
from turnout.simulator.api.model import Object, ResourceKind

_FIRST = ("kind", "apiVersion")  # at the head of the JSON, from which a list takes them off
_LEFT_OUT = ("labels", "annotations", "finalizers", "ownerReferences", "managedFields")
_SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_STALE = "the object has been modified; please apply your changes to the latest version and try again"


def as_kind(kind: ResourceKind, obj: Object) -> Object:
    """Return the object with the kind and apiVersion of its path. Raises ApiRefusal (400) when it names others."""
    for key, ours in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if kind.custom and not obj.get(key):
            raise ApiRefusal("BadRequest", f"the object is not of type {kind.kind}: it says no {key}")
        if obj.get(key) not in (None, "", ours):
            raise ApiRefusal("BadRequest", f"the {key} of the object is {obj[key]!r}, the path is of {ours!r}")
    left_out = set(_FIRST) | ({key for key in ("data", "binaryData") if not obj.get(key)} if not kind.custom else set())
    return {"kind": kind.kind, "apiVersion": kind.api_version} | {key: obj[key] for key in obj if key not in left_out}


def with_status(kind: ResourceKind, old: Object, new: Object) -> Object:
    """Return the result of a write to the status subresource.

    Of built-in kinds it may also change labels and annotations.
    """
    meta = dict(old["metadata"])
    if not kind.custom:
        for key in ("labels", "annotations", "finalizers"):
            meta[key] = (new.get("metadata") or {}).get(key)
    return {**old, "metadata": tidied(meta), "status": new.get("status", {})}


def tidied(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata without empty lists and maps."""
    return {key: value for key, value in meta.items() if key not in _LEFT_OUT or value}


def shaped(kind: ResourceKind, obj: Object) -> Object:
    """Return the object in the form of its type. Raises ApiRefusal (422) with every fault.

    The form is its CRD's schema; for a pod, container statuses get the fields that Go always writes.
    """
    if kind.is_named("pods"):
        return _with_whole_statuses(obj)
    if kind.schema is None:
        return obj
    obj = fill(kind.schema, prune(kind.schema, obj))
    if found := list(faults(kind.schema, obj)):
        message = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        raise invalid(f"{kind.kind}.{kind.group}", obj["metadata"].get("name", ""), message)
    return obj


def _with_whole_statuses(pod: Object) -> Object:
    """Give container statuses an empty `state` and `lastState` where they are absent, as the API server shows them."""
    status = pod.get("status") or {}
    lists = {key: status[key] for key in ("initContainerStatuses", "containerStatuses") if status.get(key)}
    if not lists:
        return pod
    completed = {key: [{"state": {}, "lastState": {}, **each} for each in statuses] for key, statuses in lists.items()}
    return {**pod, "status": {**status, **completed}}


def check_update(kind: ResourceKind, born: dict[str, Any], meta: dict[str, Any]) -> None:
    """Check the metadata of an update.

    born: the stored metadata. meta: the metadata of the update.

    Raises ApiRefusal: 400 for another name, 409 for another uid or a resourceVersion that is not
    the stored one, 422 for a missing version.
    """
    name = born["name"]
    if meta.get("name", name) != name:
        raise ApiRefusal("BadRequest", f"the name of the object ({meta['name']}) does not match the URL ({name})")
    if meta.get("uid") not in (None, "", born["uid"]):
        message = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {born['uid']}"
        raise conflict(kind.resource, name, message)
    version = meta.get("resourceVersion")
    if not version and not kind.unconditional:
        raise invalid(kind.kind, name, "metadata.resourceVersion: must be specified for an update")
    if version and version != born["resourceVersion"]:
        raise conflict(kind.resource, name, _STALE)


def with_priority(pod: Object, classes: Iterable[Object]) -> Object:
    """Return the pod with the priority of its class, or of the default one.

    Raises ApiRefusal (403) for an unknown class.
    """
    spec = dict(pod.get("spec") or {})
    name = spec.get("priorityClassName")
    chosen: Object | None = None
    for each in classes:
        default = not name and each.get("globalDefault")
        if each["metadata"]["name"] == name or (default and (not chosen or each["value"] < chosen["value"])):
            chosen = each
    if name and chosen is None:
        if name not in _SYSTEM:
            message = f'pods "{pod["metadata"]["name"]}" is forbidden: no PriorityClass with name {name} was found'
            raise ApiRefusal("Forbidden", message)
        spec["priority"] = _SYSTEM[name]
    elif chosen is not None:
        spec["priorityClassName"] = chosen["metadata"]["name"]
        spec["priority"] = chosen.get("value", 0)
        spec["preemptionPolicy"] = chosen.get("preemptionPolicy", "PreemptLowerPriority")
    return {**pod, "spec": spec}
