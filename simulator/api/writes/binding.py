"""A pod gets its node: once, and not while it is on its way out."""

from __future__ import annotations

from turnout.simulator.api.errors import conflict
from turnout.simulator.api.model import Object


def bound_to(pod: Object, node: str, now: str) -> Object:
    """The pod on its node. now: as RFC 3339. Raises ApiRefusal (409)."""
    name, spec, status = pod["metadata"]["name"], pod["spec"], dict(pod.get("status") or {})
    if spec.get("nodeName"):
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    status.pop("nominatedNodeName", None)
    others = [each for each in status.get("conditions", ()) if each.get("type") != "PodScheduled"]
    told = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    status["conditions"] = [*others, told]
    return {**pod, "metadata": dict(pod["metadata"]), "spec": {**spec, "nodeName": node}, "status": status}
