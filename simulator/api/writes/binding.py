"""Bind a pod to its node: once, and not while the pod is being deleted."""

from __future__ import annotations

from turnout.simulator.api.errors import conflict
from turnout.simulator.api.model import Object


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
