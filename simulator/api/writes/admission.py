"""Decide whether a write is allowed: the kind and shape of the object, disruption budgets, and quotas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from turnout.kube.errors import KubeError
from turnout.kube.pod_shape import milli
from turnout.simulator.api.kinds.schema import fill_defaults, prune, validation_errors
from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, conflict, invalid, value_at

_FIRST = ("kind", "apiVersion")  # at the head of the JSON, from which a list takes them off
_OMITTED_IF_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences", "managedFields")
_SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_STALE = "the object has been modified; please apply your changes to the latest version and try again"


def as_kind(kind: ResourceKind, obj: Object) -> Object:
    """Return a copy of the object that begins with the kind and apiVersion of the request's path.

    Empty `data` and `binaryData` of built-in kinds are left out. Raises ApiRefusal (400) if the object states another
    kind or apiVersion, or none for a custom kind.
    """
    for key, ours in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if kind.custom and not obj.get(key):
            raise ApiRefusal("BadRequest", f"the object is not of type {kind.kind}: it says no {key}")
        if obj.get(key) not in (None, "", ours):
            raise ApiRefusal("BadRequest", f"the {key} of the object is {obj[key]!r}, the path is of {ours!r}")
    left_out = set(_FIRST) | ({key for key in ("data", "binaryData") if not obj.get(key)} if not kind.custom else set())
    return {"kind": kind.kind, "apiVersion": kind.api_version} | {key: obj[key] for key in obj if key not in left_out}


def with_status(kind: ResourceKind, old: Object, new: Object) -> Object:
    """Return the result of a write to the status subresource: the old object with the new status, {} if `new` has none.

    Of built-in kinds it also replaces labels, annotations and finalizers; those that `new` lacks are removed.
    """
    meta = dict(old["metadata"])
    if not kind.custom:
        for key in ("labels", "annotations", "finalizers"):
            meta[key] = (new.get("metadata") or {}).get(key)
    return {**old, "metadata": without_empty_fields(meta), "status": new.get("status", {})}


def without_empty_fields(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of metadata without empty labels, annotations, finalizers, ownerReferences and managedFields."""
    return {key: value for key, value in meta.items() if key not in _OMITTED_IF_EMPTY or value}


def normalize_object(kind: ResourceKind, obj: Object) -> Object:
    """Return the object as the API server stores it. Raises ApiRefusal (422) with every fault.

    For a custom kind its schema prunes, fills in and checks the object; for a pod, container statuses get the fields
    that Go always writes. Other objects are returned unchanged.
    """
    if kind.is_named("pods"):
        return _with_whole_statuses(obj)
    if kind.schema is None:
        return obj
    obj = fill_defaults(kind.schema, prune(kind.schema, obj))
    if validation_messages := list(validation_errors(kind.schema, obj)):
        message = validation_messages[0] if len(validation_messages) == 1 else f"[{', '.join(validation_messages)}]"
        raise invalid(f"{kind.kind}.{kind.group}", obj["metadata"].get("name", ""), message)
    return obj


def _with_whole_statuses(pod: Object) -> Object:
    """Return a copy of a pod whose container statuses have an empty `state` and `lastState` where these are absent, as
    the API server shows them.

    The pod itself if it has no container statuses.
    """
    status = pod.get("status") or {}
    lists = {key: status[key] for key in ("initContainerStatuses", "containerStatuses") if status.get(key)}
    if not lists:
        return pod
    completed = {key: [{"state": {}, "lastState": {}, **each} for each in statuses] for key, statuses in lists.items()}
    return {**pod, "status": {**status, **completed}}


def check_update(kind: ResourceKind, stored_meta: dict[str, Any], new_meta: dict[str, Any]) -> None:
    """Check the metadata of an update against the stored metadata.

    Raises ApiRefusal: 400 for another name, 409 Conflict for another uid or for a stale resourceVersion (one that is
    not the stored one), 422 for a missing version of a kind that requires one. stored_meta, new_meta: the metadata of
    both; a name or uid that `new_meta` lacks is not checked.
    """
    name = stored_meta["name"]
    if new_meta.get("name", name) != name:
        raise ApiRefusal("BadRequest", f"the name of the object ({new_meta['name']}) does not match the URL ({name})")
    if new_meta.get("uid") not in (None, "", stored_meta["uid"]):
        message = (
            f"Precondition failed: UID in precondition: {new_meta['uid']}, UID in object meta: {stored_meta['uid']}"
        )
        raise conflict(kind.resource, name, message)
    version = new_meta.get("resourceVersion")
    if not version and not kind.allows_unversioned_update:
        raise invalid(kind.kind, name, "metadata.resourceVersion: must be specified for an update")
    if version and version != stored_meta["resourceVersion"]:
        raise conflict(kind.resource, name, _STALE)


def with_priority(pod: Object, classes: Iterable[Object]) -> Object:
    """Return a copy of the pod with the priority and preemption policy of its PriorityClass, or of the global default
    class.

    Of several default classes the lowest counts. The two system classes are known without an object and set the
    priority only. Both fields stay as they are if the pod names no class and there is no default. classes: all
    PriorityClasses. Raises ApiRefusal (403) for an unknown class.
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


_ENDED = ("Succeeded", "Failed")


def check_budgets(pod: Object, pods: Sequence[Object], budgets: Sequence[Object]) -> None:
    """Check an eviction against the PodDisruptionBudgets. pods: all pods of the namespace.

    budgets: all of the namespace. Nothing is checked for a pod that is pending, has ended or is being deleted. Raises
    ApiRefusal: 429 if a budget forbids the eviction, 500 if two budgets select the pod. Raises ValueError for a budget
    with a malformed number.
    """
    if value_at(pod, "status", "phase") in (*_ENDED, "Pending") or pod["metadata"].get("deletionTimestamp"):
        return
    mine = [budget for budget in budgets if selects(value_at(budget, "spec", "selector"), pod)]
    if len(mine) > 1:
        raise ApiRefusal("InternalError", "This pod has more than one PodDisruptionBudget, which is not supported")
    if any(not _allows_eviction(budget, pod, pods) for budget in mine):
        raise ApiRefusal("TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")


def _allows_eviction(budget: Object, pod: Object, pods: Sequence[Object]) -> bool:
    """Return True if a budget allows the eviction of its pod: more pods are healthy than it requires.

    For a pod that is not ready as many healthy pods as required suffice, if at least one is required; with
    unhealthyPodEvictionPolicy AlwaysAllow it may always leave. pods: all pods of the namespace; those that have ended
    do not count. A healthy pod is ready and is not being deleted. Source: EvictionREST.Create of Kubernetes
    """
    if not ready(pod) and value_at(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    counted = [each for each in pods if selects(value_at(budget, "spec", "selector"), each)]
    counted = [each for each in counted if value_at(each, "status", "phase") not in _ENDED]
    healthy = sum(ready(each) and not each["metadata"].get("deletionTimestamp") for each in counted)
    desired = _desired_healthy(budget, len(counted))
    return healthy > desired or (not ready(pod) and healthy == desired > 0)


def with_disruption_condition(pod: Object, now: str) -> Object:
    """Return a copy of the pod with the condition that says why it is deleted: DisruptionTarget. now: RFC 3339."""
    status = pod.get("status") or {}
    condition: Object = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    condition |= {"message": "Eviction API: evicting", "lastProbeTime": None, "lastTransitionTime": now}
    others = [c for c in status.get("conditions") or () if c.get("type") != "DisruptionTarget"]
    return {**pod, "metadata": dict(pod["metadata"]), "status": {**status, "conditions": [*others, condition]}}


def ready(pod: Object) -> bool:
    """Return True if the pod has the condition Ready."""
    conditions = value_at(pod, "status", "conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def selects(selector: Any, obj: Object) -> bool:
    """Return True if a LabelSelector selects the object.

    An empty selector selects all objects, None selects nothing.
    """
    if selector is None:
        return False
    labels = obj["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets_expression(rule, labels) for rule in selector.get("matchExpressions") or ())


def _meets_expression(rule: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return True if labels meet one matchExpression. An unknown operator counts as DoesNotExist."""
    value, values = labels.get(rule["key"]), rule.get("values") or ()
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _desired_healthy(budget: Object, expected: int) -> int:
    """Return the number of pods that a disruption budget requires to be healthy; 0 if it states no number.

    expected: number of pods that it covers.
    """
    minimum, maximum = value_at(budget, "spec", "minAvailable"), value_at(budget, "spec", "maxUnavailable")
    if maximum is not None:
        return max(0, expected - _count(maximum, expected))
    return _count(minimum or 0, expected)


def _count(value: Any, of: int) -> int:
    """Return a number of pods: as it is, or a percentage of `of`, rounded up.

    value: a number, or a text such as "50%". Raises ValueError for another text.
    """
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * of / 100)
    return int(value)


def bind_pod(pod: Object, node: str, now: str) -> Object:
    """Return a copy of the pod with its node and the condition PodScheduled, and without a nomination. now: RFC 3339.

    Raises ApiRefusal (409) if it has a node, or is being deleted.
    """
    name, spec, status = pod["metadata"]["name"], pod["spec"], dict(pod.get("status") or {})
    if spec.get("nodeName"):
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    status.pop("nominatedNodeName", None)
    others = [each for each in status.get("conditions", ()) if each.get("type") != "PodScheduled"]
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    status["conditions"] = [*others, condition]
    return {**pod, "metadata": dict(pod["metadata"]), "spec": {**spec, "nodeName": node}, "status": status}


_PODS = ("pods", "count/pods")
_PARTS = ("requests", "limits")


def check_quotas(pod: Object, pods: Iterable[Object], quotas: Iterable[Object]) -> None:
    """Check a new pod against the ResourceQuotas. Raises ApiRefusal (403) if one would be exceeded.

    pods: those of the namespace; pods that have ended do not count. quotas: all of the namespace; their scopes are
    ignored.
    """
    requested, used = _requested_amounts(pod), Counter[str]()
    for each in pods:
        if (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            used.update(_requested_amounts(each))
    for quota in quotas:
        hard = {name: _amount(text) for name, text in ((quota.get("spec") or {}).get("hard") or {}).items()}
        over = sorted(
            name for name, maximum in hard.items() if requested[name] and used[name] + requested[name] > maximum
        )
        if over:
            raise ApiRefusal(
                "Forbidden",
                _quota_message(pod, quota, {name: (requested[name], used[name], hard[name]) for name in over}),
            )


def _quota_message(pod: Object, quota: Object, over: dict[str, tuple[int, int, int]]) -> str:
    """Return the message of a refused pod. over: resource -> (requested, used, limit), in thousandths."""
    words = ("requested", "used", "limited")
    sums = ", ".join(
        f"{word}: " + ",".join(f"{name}={amounts[at] / 1000:g}" for name, amounts in over.items())
        for at, word in enumerate(words)
    )
    return f'pods "{pod["metadata"]["name"]}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {sums}'


def _requested_amounts(pod: Object) -> Counter[str]:
    """Return the amounts of a pod that quotas count, in thousandths, by the names that quotas use.

    Init containers are not counted.
    """
    amounts = Counter(dict.fromkeys(_PODS, 1000))
    for container in (pod.get("spec") or {}).get("containers") or ():
        for part in _PARTS:
            for resource, text in ((container.get("resources") or {}).get(part) or {}).items():
                amounts[f"{part}.{resource}"] += _amount(text)
                if part == "requests" and resource in ("cpu", "memory"):
                    amounts[resource] += _amount(text)
    return amounts


def _amount(text: object) -> int:
    """Return a quantity in thousandths; 0 if it is invalid."""
    try:
        return milli(text if isinstance(text, str | int | float) else str(text))
    except KubeError:
        return 0
