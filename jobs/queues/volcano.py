"""Volcano's Queue: real capacity = min(capability, total - guarantees of all + its own), and so for each parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.queues.model import Amounts, Dialect, Object, QueueSpec, amounts


def read(raw: Object) -> QueueSpec:
    """A Queue of scheduling.volcano.sh/v1beta1."""
    spec, faults = raw.get("spec") or {}, list[str]()
    return QueueSpec(
        raw["metadata"]["name"],
        Dialect.VOLCANO,
        capability=amounts(spec.get("capability"), "spec.capability", faults),
        guarantee=amounts((spec.get("guarantee") or {}).get("resource"), "spec.guarantee.resource", faults),
        deserved=amounts(spec.get("deserved"), "spec.deserved", faults),
        parent=spec.get("parent") or "",
        open=((raw.get("status") or {}).get("state") or "Open") == "Open",
        faults=tuple(faults),
    )


def limits(queues: Sequence[QueueSpec], total: Amounts) -> dict[str, dict[str, int]]:
    """What each queue's pods may ask for together. A resource of which nobody speaks has no limit."""
    known = {queue.name: queue for queue in queues}
    promised: Counter[str] = Counter()
    for queue in queues:
        promised.update(queue.guarantee)
    own = {name: _own(queue, total, promised) for name, queue in known.items()}
    return {name: _with_parents(name, known, own) for name in known}


def _own(queue: QueueSpec, total: Amounts, promised: Amounts) -> dict[str, int]:
    found = dict(queue.capability)
    for what, amount in promised.items():
        rest = total.get(what, 0) - amount + queue.guarantee.get(what, 0)
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
