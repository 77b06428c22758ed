"""koordinator's ElasticQuota: a min of its own, a max, and a weighted share of what the other quotas leave.

koordinator's status is not read. Its `runtime` follows the requests, which include elastic workers, and is 0 for a
quota without requests; its `guaranteed` follows the allocation. Instead the share is computed from mins, down the tree,
as koordinator computes it from requests. The limit of a quota is what it would get if only this quota requested more.
Source: docs/facts/autoscaling.md 6; koordinator pkg/scheduler/plugins/elasticquota/core/runtime_quota_calculator.go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnout.jobs.fields import ObjectPart
from turnout.jobs.queues.accounting import CIRCLE, QueueClaim, share_by_weight, sum_subtrees, top_down
from turnout.jobs.queues.model import NOTHING, Amounts, Demand, Object, Queue, QueueDialect, QueueSpec, headroom

LABEL = "quota.scheduling.koordinator.sh/"
NAME = f"{LABEL}name"  # of the quota that pays for a pod
ROOT, SYSTEM, DEFAULT = "koordinator-root-quota", "koordinator-system-quota", "koordinator-default-quota"
_OUTSIDE_TREE = (SYSTEM, DEFAULT)  # the use of their pods reduces the total of the tree
_AmountsByQueue = dict[str, dict[str, int]]


def read(raw: Object) -> QueueSpec:
    """Return the queue of an ElasticQuota of scheduling.sigs.k8s.io/v1alpha1. Pods name it by its name."""
    root = ObjectPart.lenient(raw)
    meta, spec = root.part("metadata"), root.part("spec")
    labels_part, annotations = meta.part("labels"), meta.part("annotations")
    min_amounts, max_amounts, name = spec.amounts("min"), spec.amounts("max"), meta.text("name")
    parent = labels_part.text(f"{LABEL}parent", "" if name == ROOT else ROOT)
    weight_values = {"": annotations.json(f"{LABEL}shared-weight")}
    weights = ObjectPart.lenient(weight_values, f"shared-weight of {name}", root.faults).amounts("")
    is_root = labels_part.text(f"{LABEL}is-root") == "true" and name != ROOT
    namespaces = _namespaces(meta, annotations)
    return QueueSpec(
        name,
        QueueDialect.KOORDINATOR,
        capability=max_amounts,
        deserved=min_amounts,
        lends=labels_part.text(f"{LABEL}allow-lent-resource") != "false",
        parent="" if is_root else parent,
        weights=weights if any(weights.values()) else max_amounts,
        namespaces=namespaces,
        grants=tuple(dict.fromkeys((meta.text("namespace"), *namespaces))),
        headroom=headroom(meta, max_amounts, min_amounts),
        pool=_pool(annotations, max_amounts, root.faults) if is_root else None,
        faults=tuple(root.faults or ()),
    )


def by_namespace(queues: Iterable[QueueSpec]) -> dict[str, str]:
    """Return the quota of each namespace whose pods name none: its own quota, else one that lists it."""
    ours = sorted(
        (q for q in queues if q.dialect is QueueDialect.KOORDINATOR), key=lambda queue: queue.name, reverse=True
    )
    found = {namespace: queue.name for queue in ours for namespace in queue.namespaces}
    return found | {queue.name: queue.name for queue in ours if queue.name in queue.namespaces}


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, Queue]:
    """Return the share of each quota. Quotas of an unknown parent share the sum of their mins."""
    known = {queue.name: queue for queue in queues}
    parents = {name: queue.parent for name, queue in known.items() if name not in (ROOT, *_OUTSIDE_TREE)}
    order, circle = top_down(parents)
    limit = _limits(order, parents, known, demand)
    used = sum_subtrees(order, parents, demand.used)
    found = {name: _share(known[name], limit, used[name]) for name in order}
    for name in known.keys() & set(_OUTSIDE_TREE):
        other_quota, mine = known[name], demand.used.get(name, NOTHING)
        found[name] = Queue(
            other_quota.capability, other_quota.deserved, mine, headroom=other_quota.headroom, faults=other_quota.faults
        )
    return found | {name: Queue(open=False, faults=(*known[name].faults, CIRCLE)) for name in circle}


def _limits(
    order: Sequence[str], parents: Mapping[str, str], known: Mapping[str, QueueSpec], demand: Demand
) -> _AmountsByQueue:
    """Return the limit of each quota. A parent's own group is shared out before its children's."""
    request = _requests(order, parents, known, demand)
    groups: dict[str, list[QueueSpec]] = {}
    for name in order:
        groups.setdefault(parents[name], []).append(known[name])
    available = Counter(demand.total)
    for name in _OUTSIDE_TREE:
        available.subtract(demand.used.get(name, NOTHING))
    limit: _AmountsByQueue = {}
    for parent, group in groups.items():
        for what in sorted({what for queue in group for what in _named(queue)}):
            shared_amount = sum(queue.deserved.get(what, 0) for queue in group)
            if parent in limit:
                shared_amount = limit[parent].get(what, shared_amount)
            elif parent == ROOT:
                shared_amount = max(0, available[what])
            _share_out(group, what, shared_amount, request, limit)
        _bound(group, limit, limit.get(parent, NOTHING))
    return limit


def _named(queue: QueueSpec) -> tuple[str, ...]:
    return (*queue.capability, *queue.deserved, *(queue.pool or ()))


def _share(queue: QueueSpec, limit: _AmountsByQueue, used: Amounts) -> Queue:
    """Return the queue of an ElasticQuota with the limit that sharing has given it."""
    return Queue(
        limit.get(queue.name, NOTHING),
        queue.deserved,
        used,
        queue.parent,
        headroom=queue.headroom,
        faults=queue.faults,
    )


def _requests(
    order: Sequence[str], parents: Mapping[str, str], known: Mapping[str, QueueSpec], demand: Demand
) -> dict[str, Counter[str]]:
    """Return what each quota requests from its parent, by resource.

    That is its own need plus the requests of its children, at most its max; at least its min if it does not lend.
    """
    found = {name: Counter(demand.need_of(name)) for name in order}
    for name in reversed(order):
        queue, mine = known[name], found[name]
        for what, most in queue.capability.items():
            mine[what] = min(mine[what], most)
        for what, own in queue.deserved.items():
            mine[what] = mine[what] if queue.lends else max(mine[what], own)
        if parents[name] in found:
            found[parents[name]].update(mine)
    return found


def _share_out(
    group: Sequence[QueueSpec], what: str, shared_amount: int, request: Mapping[str, Amounts], limit: _AmountsByQueue
) -> None:
    """Divide an amount among the quotas of one group. A tree of its own has its pool, or its min, instead."""
    sharing = [queue for queue in group if queue.pool is None]
    claims = [_claim(queue, what, request[queue.name].get(what, 0)) for queue in sharing]
    found = zip(sharing, share_by_weight(claims, shared_amount), strict=True)
    most = {queue.name: amount for queue, (_, amount) in found}
    for queue in group:
        if queue.pool is not None and (what in queue.pool or what in queue.capability):
            most[queue.name] = queue.pool.get(what, queue.deserved.get(what, 0))
    for queue in group:
        if queue.name in most and (what in queue.capability or what in queue.deserved or queue.pool is not None):
            bound = queue.capability.get(what, most[queue.name])
            limit.setdefault(queue.name, {})[what] = min(bound, most[queue.name])


def _claim(queue: QueueSpec, what: str, requested: int) -> QueueClaim:
    """Return what a quota claims of one resource: at least its min, and more by its weight.

    requested: amount that its jobs ask for.
    """
    min_amount, weight = queue.deserved.get(what, 0), queue.weights.get(what, 0)
    if requested <= min_amount:
        return QueueClaim(requested, weight, 0.0, 0.0, min_amount)
    return QueueClaim(min_amount, weight, 0.0, (requested - min_amount) / weight if weight else 0.0, min_amount)


def _bound(group: Sequence[QueueSpec], limit: _AmountsByQueue, above: Amounts) -> None:
    """Limit the children by their parent's limits, also for resources that they do not name."""
    for queue in group:
        mine = limit.setdefault(queue.name, {})
        for what, most in above.items():
            mine[what] = min(mine.get(what, most), most)


def _namespaces(meta: ObjectPart, notes: ObjectPart) -> tuple[str, ...]:
    """Return the namespaces whose pods the quota pays for: its own if it has the same name, and those that it lists."""
    name, listed_names = meta.text("name"), notes.json(f"{LABEL}namespaces")
    found = [name] if name and name == meta.text("namespace") else []
    if listed_names is not None:
        listed: list[Any] = listed_names if isinstance(listed_names, list) else [None]
        if all(isinstance(each, str) for each in listed):
            found += listed
        else:
            notes.fault(f"{LABEL}namespaces", listed_names, "it must be a list of names")
    return tuple(dict.fromkeys(found))


def _pool(notes: ObjectPart, most: Amounts, faults: list[str] | None) -> Amounts:
    """Return the total of a tree of its own: the annotated total, else its max."""
    total = notes.json(f"{LABEL}total-resource")
    return most if total is None else ObjectPart.lenient({"": total}, f"{LABEL}total-resource", faults).amounts("")
