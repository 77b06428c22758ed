"""koordinator's ElasticQuota: a min of its own, a max, and a share by weight of what the others leave of their mins.

Potential room = max(0, min - used) + share of the others' unlent (min - used), capped by max - used. runtime, which
koordinator writes, follows requests and is 0 for a quota that asks for nothing: so it is worked out on what is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from jobs.queues.model import Amounts, Dialect, Object, QueueSpec, amounts
from kube import labels

LABEL = "quota.scheduling.koordinator.sh/"
NAME = f"{LABEL}name"  # of the quota that pays for a pod
_ROOTS = ("koordinator-root-quota", "koordinator-system-quota", "koordinator-default-quota")


def read(raw: Object) -> QueueSpec:
    """An ElasticQuota of scheduling.sigs.k8s.io/v1alpha1; known by namespace/name or, as pods name it, by its name."""
    meta, spec, faults = raw["metadata"], raw.get("spec") or {}, list[str]()
    marks = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    lends = marks.get(f"{LABEL}allow-lent-resource", "true") != "false"
    own = amounts(spec.get("min"), "spec.min", faults)
    return QueueSpec(
        meta["name"],
        Dialect.KOORDINATOR,
        capability=amounts(spec.get("max"), "spec.max", faults),
        deserved=own,
        lending=own if lends else dict.fromkeys(own, 0),
        parent=marks.get(f"{LABEL}parent", ""),
        weight=_weight(marks.get(f"{LABEL}shared-weight"), spec.get("max"), faults),
        faults=tuple(faults),
    )


def limits(queues: Sequence[QueueSpec], used: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
    """What each quota's pods may ask for together. Quotas share with those of the same parent."""
    return {queue.name: _limit(queue, queues, used) for queue in queues if queue.name not in _ROOTS}


def _limit(queue: QueueSpec, queues: Sequence[QueueSpec], used: Mapping[str, Amounts]) -> dict[str, int]:
    siblings = [each for each in queues if each.parent == queue.parent and each.name != queue.name]
    found = {}
    for what in {**queue.capability, **queue.deserved}:
        own = queue.deserved.get(what, 0)
        unlent = sum(min(each.lending.get(what, 0), _left(each, used, what)) for each in siblings)
        weights = queue.weight + sum(each.weight for each in siblings if not _left(each, used, what))
        limit = own + unlent * queue.weight // max(1, weights)
        found[what] = min(limit, queue.capability.get(what, limit))
    return found


def _left(queue: QueueSpec, used: Mapping[str, Amounts], what: str) -> int:
    """What a quota has of its own and does not use."""
    return max(0, queue.deserved.get(what, 0) - used.get(queue.name, {}).get(what, 0))


def _weight(text: str | None, otherwise: object, faults: list[str]) -> int:
    """shared-weight, a JSON object of quantities, else the max: of the accelerator that it names, else the largest."""
    try:
        told = json.loads(text) if text is not None else otherwise
        found = amounts(told if isinstance(told, dict) else {}, "shared-weight", faults)
    except ValueError as error:
        faults.append(f"shared-weight is {(text or '')[:40]!r}: {error}")
        return 1
    gpus = [found[what] for what in labels.GPU_RESOURCES if what in found]
    return int(max([1, *(gpus or found.values())]))
