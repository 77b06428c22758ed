"""Kueue's ClusterQueues, found through LocalQueues, with cohorts one level deep.

available = max(0, local - usage) + min(what the cohort has, (nominal - local) - max(0, usage - local) + borrowing
limit), where local = nominal - lending limit if there is one, else 0. Source: facts/autoscaling.md 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.queues.model import Amounts, Dialect, Object, QueueSpec, amounts

_NO_BOUND = 1 << 50


def read(raw: Object) -> QueueSpec:
    """A ClusterQueue of kueue.x-k8s.io. Flavors of one resource are added up."""
    spec, faults = raw.get("spec") or {}, list[str]()
    nominal, lending, borrowing = Counter[str](), Counter[str](), Counter[str]()
    for resource in _resources(spec):
        name = resource.get("name", "")
        nominal.update(amounts({name: resource.get("nominalQuota", 0)}, "nominalQuota", faults))
        for key, total in (("lendingLimit", lending), ("borrowingLimit", borrowing)):
            if resource.get(key) is not None:
                total.update(amounts({name: resource[key]}, key, faults))
    return QueueSpec(
        raw["metadata"]["name"],
        Dialect.KUEUE,
        deserved=dict(nominal),
        lending=dict(lending),
        borrowing=dict(borrowing),
        parent=spec.get("cohortName") or spec.get("cohort") or "",
        open=(spec.get("stopPolicy") or "None") == "None",
        faults=tuple(faults),
    )


def local_queue(raw: Object) -> tuple[str, str]:
    """A LocalQueue: (namespace/name, its ClusterQueue)."""
    meta = raw["metadata"]
    return f"{meta['namespace']}/{meta['name']}", str((raw.get("spec") or {}).get("clusterQueue") or "")


def limits(queues: Sequence[QueueSpec], used: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
    """What each queue's pods may ask for together: what they use, and what is available to them."""
    return {
        queue.name: {
            what: used.get(queue.name, {}).get(what, 0) + _available(queue, queues, used, what)
            for what in queue.deserved
        }
        for queue in queues
    }


def _available(queue: QueueSpec, queues: Sequence[QueueSpec], used: Mapping[str, Amounts], what: str) -> int:
    usage, nominal = used.get(queue.name, {}).get(what, 0), queue.deserved.get(what, 0)
    if not queue.parent:
        return max(0, nominal - usage)
    local = _local(queue, what)
    members = [each for each in queues if each.parent == queue.parent]
    pool = sum(each.deserved.get(what, 0) - _local(each, what) for each in members)
    taken = sum(max(0, used.get(each.name, {}).get(what, 0) - _local(each, what)) for each in members)
    mine = (nominal - local) - max(0, usage - local) + queue.borrowing.get(what, _NO_BOUND)
    return max(0, local - usage) + max(0, min(pool - taken, mine))


def _local(queue: QueueSpec, what: str) -> int:
    """What of a queue's own nobody else may have."""
    if what not in queue.lending:
        return 0
    return max(0, queue.deserved.get(what, 0) - queue.lending[what])


def _resources(spec: Any) -> list[Any]:
    groups = spec.get("resourceGroups") or ()
    return [
        resource
        for group in groups
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    ]
