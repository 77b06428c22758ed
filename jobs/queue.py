"""Queues in their own dialects, read into one noun. Volcano's Queue, and a namespace with a ResourceQuota.

Limits are worked out from what all queues say together: real capacity = min(capability, total - guarantees of all +
one's own). Source: facts/autoscaling.md 6. What is used is counted from pods, never read from a status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube.errors import KubeError
from kube.shape import amount

Object = Mapping[str, Any]
NAMESPACE = "namespace/"  # what the queue of a plain namespace is called by
_HARD = "requests."


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as its owner wrote it. Amounts by resource, as kube.shape counts them; absent: nothing is said.

    faults: what could not be read; such an amount counts as absent.
    """

    name: str
    capability: Mapping[str, int] = field(default_factory=dict)
    guarantee: Mapping[str, int] = field(default_factory=dict)
    deserved: Mapping[str, int] = field(default_factory=dict)
    parent: str = ""
    open: bool = True
    faults: tuple[str, ...] = ()


def read_volcano(raw: Object) -> QueueSpec:
    """A Queue of scheduling.volcano.sh/v1beta1."""
    spec, faults = raw.get("spec") or {}, list[str]()
    return QueueSpec(
        raw["metadata"]["name"],
        capability=_amounts(spec.get("capability"), "spec.capability", faults),
        guarantee=_amounts((spec.get("guarantee") or {}).get("resource"), "spec.guarantee.resource", faults),
        deserved=_amounts(spec.get("deserved"), "spec.deserved", faults),
        parent=spec.get("parent") or "",
        open=((raw.get("status") or {}).get("state") or "Open") == "Open",
        faults=tuple(faults),
    )


def read_resource_quota(raw: Object) -> QueueSpec:
    """A ResourceQuota of a namespace, whose jobs name no queue: its `requests.X`, else `X`, is the limit."""
    hard, faults = (raw.get("spec") or {}).get("hard") or {}, list[str]()
    asked = {name.removeprefix(_HARD): value for name, value in hard.items() if not name.startswith("limits.")}
    return QueueSpec(
        NAMESPACE + raw["metadata"]["namespace"], _amounts(asked, "spec.hard", faults), faults=tuple(faults)
    )


def limits(queues: Iterable[QueueSpec], total: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What each queue's pods may ask for together, by resource; a parent's limit holds for its children, too.

    total: of all nodes. A resource of which neither a capability nor anybody's guarantee speaks has no limit.
    """
    known = {queue.name: queue for queue in queues}
    promised: Counter[str] = Counter()
    for queue in known.values():
        promised.update(queue.guarantee)
    own = {name: _own(queue, total, promised) for name, queue in known.items()}
    return {name: _with_parents(name, known, own) for name in known}


def _own(queue: QueueSpec, total: Mapping[str, int], promised: Mapping[str, int]) -> dict[str, int]:
    found = dict(queue.capability)
    for what, amount_ in promised.items():
        rest = total.get(what, 0) - amount_ + queue.guarantee.get(what, 0)
        found[what] = min(found.get(what, rest), rest)
    return found


def _with_parents(name: str, known: Mapping[str, QueueSpec], own: Mapping[str, dict[str, int]]) -> dict[str, int]:
    found, seen = dict(own[name]), {name}
    parent = known[name].parent
    while parent in own and parent not in seen:
        for what, most in own[parent].items():
            found[what] = min(found.get(what, most), most)
        seen.add(parent)
        parent = known[parent].parent
    return found


def _amounts(told: Any, where: str, faults: list[str]) -> dict[str, int]:
    found = {}
    for what, text in (told or {}).items():
        try:
            found[what] = amount(what, text)
        except KubeError as error:
            faults.append(f"{where}.{what}: {error}")
    return found
