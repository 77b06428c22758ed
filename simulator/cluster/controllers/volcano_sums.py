"""Sum what the min of a Volcano Job requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from turnout.kube.quantity import milli

Object = dict[str, Any]


def least_resources(spec: Object) -> dict[str, str]:
    """Return minResources of a job's PodGroup: the requests of the first minAvailable pods, task by task."""
    left, total = spec["minAvailable"], Counter[str]()
    for task in spec.get("tasks") or ():
        taken = min(left, task["replicas"])
        left -= taken
        for resource, amount in _asked(task["template"]["spec"]).items():
            total[resource] += amount * taken
    return {resource: as_text(amount) for resource, amount in sorted(total.items())}


def asked(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Return quantities in thousandths."""
    return {resource: milli(quantity) for resource, quantity in quantities.items()}


def as_text(amount: int) -> str:
    """Write thousandths as a quantity."""
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def _asked(spec: Object) -> Counter[str]:
    total = Counter[str]()
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        total.update(asked({**(resources.get("limits") or {}), **(resources.get("requests") or {})}))
    return total
