"""Decide whether a pod may be evicted, by PodDisruptionBudgets counted from the present pods.

The count is made here at once; in a cluster the disruption controller writes it into the budget's status. Source:
Kubernetes, registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from turnout.kube.errors import KubeError
from turnout.kube.quantity import milli
from turnout.simulator.api.errors import ApiRefusal, conflict
from turnout.simulator.api.kinds.printer_columns import at
from turnout.simulator.api.model import Object

_ENDED = ("Succeeded", "Failed")


def check_budgets(pod: Object, pods: Sequence[Object], budgets: Sequence[Object]) -> None:
    """Check an eviction against the budgets.

    Raises ApiRefusal: 429 when a budget is spent, 500 when two select the pod.

    pods: all pods of its namespace.
    """
    if at(pod, "status", "phase") in (*_ENDED, "Pending") or pod["metadata"].get("deletionTimestamp"):
        return
    mine = [budget for budget in budgets if selects(at(budget, "spec", "selector"), pod)]
    if len(mine) > 1:
        raise ApiRefusal("InternalError", "This pod has more than one PodDisruptionBudget, which is not supported")
    for budget in mine:
        counted = [p for p in pods if selects(at(budget, "spec", "selector"), p)]
        counted = [p for p in counted if at(p, "status", "phase") not in _ENDED]
        healthy = sum(ready(p) and not p["metadata"].get("deletionTimestamp") for p in counted)
        if ready(pod) and healthy <= _desired_healthy(budget, len(counted)):
            raise ApiRefusal("TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")


def with_disruption_condition(pod: Object, now: str) -> Object:
    """Return the pod with the condition that says why it will go."""
    status = pod.get("status") or {}
    condition: Object = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    condition |= {"message": "Eviction API: evicting", "lastProbeTime": None, "lastTransitionTime": now}
    others = [c for c in status.get("conditions") or () if c.get("type") != "DisruptionTarget"]
    return {**pod, "metadata": dict(pod["metadata"]), "status": {**status, "conditions": [*others, condition]}}


def ready(pod: Object) -> bool:
    """True if the pod has the condition Ready."""
    conditions = at(pod, "status", "conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def selects(selector: Any, obj: Object) -> bool:
    """True if a LabelSelector chooses the object. An empty selector chooses all, None chooses nothing."""
    if selector is None:
        return False
    labels = obj["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(rule, labels) for rule in selector.get("matchExpressions") or ())


def _holds(rule: dict[str, Any], labels: dict[str, str]) -> bool:
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
    least, most = at(budget, "spec", "minAvailable"), at(budget, "spec", "maxUnavailable")
    if most is not None:
        return max(0, expected - _count(most, expected))
    return _count(least or 0, expected)


def _count(value: Any, of: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * of / 100)
    return int(value)


def bound_to(pod: Object, node: str, now: str) -> Object:
    """Return the pod on its node. Raises ApiRefusal (409).

    now: RFC 3339.
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
    """Check a new pod against the quotas. Raises ApiRefusal (403).

    pods: those of the namespace; pods that have ended do not count.
    """
    living = [each for each in pods if (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    for quota in quotas:
        hard = {name: _amount(text) for name, text in ((quota.get("spec") or {}).get("hard") or {}).items()}
        requested, used = _requested_amounts(pod), Counter[str]()
        for each in living:
            used.update(_requested_amounts(each))
        over = sorted(name for name, most in hard.items() if requested[name] and used[name] + requested[name] > most)
        if over:
            raise ApiRefusal(
                "Forbidden", _sentence(pod, quota, {name: (requested[name], used[name], hard[name]) for name in over})
            )


def _sentence(pod: Object, quota: Object, over: dict[str, tuple[int, int, int]]) -> str:
    words = ("requested", "used", "limited")
    sums = ", ".join(
        f"{word}: " + ",".join(f"{name}={amounts[at] / 1000:g}" for name, amounts in over.items())
        for at, word in enumerate(words)
    )
    return f'pods "{pod["metadata"]["name"]}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {sums}'


def _requested_amounts(pod: Object) -> Counter[str]:
    """Return what a pod counts for, in thousandths, by the names that quotas use."""
    found = Counter(dict.fromkeys(_PODS, 1000))
    for container in (pod.get("spec") or {}).get("containers") or ():
        for part in _PARTS:
            for resource, text in ((container.get("resources") or {}).get(part) or {}).items():
                found[f"{part}.{resource}"] += _amount(text)
                if part == "requests" and resource in ("cpu", "memory"):
                    found[resource] += _amount(text)
    return found


def _amount(text: object) -> int:
    try:
        return milli(text if isinstance(text, str | int | float) else str(text))
    except KubeError:
        return 0
