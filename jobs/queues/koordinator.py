"""koordinator's ElasticQuota: a min of its own, a max, and a weighted share of what the other quotas leave.

koordinator's status is not read. Its `runtime` follows the requests, which include elastic workers, and is 0 for a
quota without requests; its `guaranteed` follows the allocation. Instead the share is computed from mins, down the tree,
as koordinator computes it from requests. The limit of a quota is the amount it could get if the requests of all other
quotas stayed as they are. Source: docs/facts/autoscaling.md 6; koordinator
pkg/scheduler/plugins/elasticquota/core/runtime_quota_calculator.go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnout.jobs.fields import ObjectPart, lenient_part, read_amounts, read_json
from turnout.jobs.queues.accounting import CYCLE, QueueClaim, share_by_weight, sum_subtrees, top_down
from turnout.jobs.queues.model import (
    NOTHING,
    Amounts,
    Demand,
    Object,
    QueueAccess,
    QueueDialect,
    QueueShare,
    QueueSpec,
    Sharing,
    headroom,
)

LABEL = "quota.scheduling.koordinator.sh/"  # the prefix of labels and annotations
NAME = f"{LABEL}name"  # of the quota that pays for a pod
# Quotas that koordinator itself makes.
ROOT, SYSTEM, DEFAULT = "koordinator-root-quota", "koordinator-system-quota", "koordinator-default-quota"
_OUTSIDE_TREE = (SYSTEM, DEFAULT)  # no quota is their parent; the use of their pods reduces the total of the tree
_AmountsByQueue = dict[str, dict[str, int]]  # by queue, by resource


def read(raw: Object) -> QueueSpec:
    """Return the queue of an ElasticQuota of scheduling.sigs.k8s.io/v1alpha1. Pods use its name as the queue's name.

    A field that cannot be read is reported in `faults` of the result.
    """
    root = lenient_part(raw)
    meta, spec = root.part("metadata"), root.part("spec")
    labels_part, annotations = meta.part("labels"), meta.part("annotations")
    min_amounts, max_amounts, name = read_amounts(spec, "min"), read_amounts(spec, "max"), meta.text("name")
    parent = labels_part.text(f"{LABEL}parent", "" if name == ROOT else ROOT)
    weight_values = {"": read_json(annotations, f"{LABEL}shared-weight")}
    weights = read_amounts(lenient_part(weight_values, f"shared-weight of {name}", root.faults), "")
    is_root = labels_part.text(f"{LABEL}is-root") == "true" and name != ROOT
    namespaces = _namespaces(meta, annotations)
    return QueueSpec(
        name,
        QueueDialect.KOORDINATOR,
        capability=max_amounts,
        deserved=min_amounts,
        parent="" if is_root else parent,
        sharing=Sharing(
            weights=weights if any(weights.values()) else max_amounts,
            lends=labels_part.text(f"{LABEL}allow-lent-resource") != "false",
        ),
        access=QueueAccess(namespaces, tuple(dict.fromkeys((meta.text("namespace"), *namespaces)))),
        headroom=headroom(meta, max_amounts, min_amounts),
        pool=_total_below_root(annotations, max_amounts, root.faults) if is_root else None,
        faults=tuple(root.faults or ()),
    )


def quota_of_namespace(queues: Iterable[QueueSpec]) -> dict[str, str]:
    """Return for each namespace the name of the quota that pays for its pods that name no quota.

    That is the quota with the name of the namespace if it lists the namespace, else the first by name that lists it. A
    namespace that no quota lists is absent. queues: of any dialect; only koordinator's count.
    """
    quotas = sorted(
        (q for q in queues if q.dialect is QueueDialect.KOORDINATOR), key=lambda queue: queue.name, reverse=True
    )
    first_quotas = {namespace: queue.name for queue in quotas for namespace in queue.access.namespaces}
    return first_quotas | {queue.name: queue.name for queue in quotas if queue.name in queue.access.namespaces}


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, QueueShare]:
    """Return the share of each quota by name, without the root quota.

    Quotas with the same unknown parent divide the sum of their mins among them. The system and the default quota keep
    their own max; their use is taken from the total that the others divide. queues: all quotas of koordinator. The
    share of a quota in or below a cycle of parents is closed and has a fault.
    """
    specs = {queue.name: queue for queue in queues}
    parents = {name: queue.parent for name, queue in specs.items() if name not in (ROOT, *_OUTSIDE_TREE)}
    parents_first, in_cycle = top_down(parents)
    limit = _limits(parents_first, parents, specs, demand)
    used = sum_subtrees(parents_first, parents, demand.used)
    by_name = {name: _share(specs[name], limit, used[name]) for name in parents_first}
    for name in specs.keys() & set(_OUTSIDE_TREE):
        other_quota, own_use = specs[name], demand.used.get(name, NOTHING)
        by_name[name] = QueueShare(
            other_quota.capability,
            other_quota.deserved,
            own_use,
            headroom=other_quota.headroom,
            faults=other_quota.faults,
        )
    return by_name | {name: QueueShare(open=False, faults=(*specs[name].faults, CYCLE)) for name in in_cycle}


def _limits(
    parents_first: Sequence[str], parents: Mapping[str, str], specs: Mapping[str, QueueSpec], demand: Demand
) -> _AmountsByQueue:
    """Return the limit of each quota, by resource. Amounts of a parent are divided before those of its children.

    parents_first: the names, each parent before its children. parents: the parent of each name. specs: the quotas by
    name. demand: the amounts of all nodes, and what each quota uses and needs.
    """
    request = _requests(parents_first, parents, specs, demand)
    groups: dict[str, list[QueueSpec]] = {}
    for name in parents_first:
        groups.setdefault(parents[name], []).append(specs[name])
    available = Counter(demand.total)
    for name in _OUTSIDE_TREE:
        available.subtract(demand.used.get(name, NOTHING))
    limit: _AmountsByQueue = {}
    for parent, group in groups.items():
        for resource in sorted({resource for queue in group for resource in _resource_names(queue)}):
            shared_amount = sum(queue.deserved.get(resource, 0) for queue in group)
            if parent in limit:
                shared_amount = limit[parent].get(resource, shared_amount)
            elif parent == ROOT:
                shared_amount = max(0, available[resource])
            _divide_among(group, resource, shared_amount, request, limit)
        _limit_by_parent(group, limit, limit.get(parent, NOTHING))
    return limit


def _resource_names(queue: QueueSpec) -> tuple[str, ...]:
    """Return the resources that a quota names, maybe several times."""
    return (*queue.capability, *queue.deserved, *(queue.pool or ()))


def _share(queue: QueueSpec, limit: _AmountsByQueue, used: Amounts) -> QueueShare:
    """Return the share of a quota.

    limit: the limits of all quotas, by name. used: the use of the pods of its subtree.
    """
    return QueueShare(
        limit.get(queue.name, NOTHING),
        queue.deserved,
        used,
        queue.parent,
        headroom=queue.headroom,
        faults=queue.faults,
    )


def _requests(
    parents_first: Sequence[str], parents: Mapping[str, str], specs: Mapping[str, QueueSpec], demand: Demand
) -> dict[str, Counter[str]]:
    """Return the request of each quota to its parent, by resource.

    That is its own need plus the requests of its children, at most its max; at least its min if it does not lend.
    parents_first: the names, each parent before its children. parents: the parent of each name. specs: the quotas by
    name. demand: states the own need of each quota.
    """
    requests = {name: Counter(demand.need_of(name)) for name in parents_first}
    for name in reversed(parents_first):
        queue, request = specs[name], requests[name]
        for resource, max_amount in queue.capability.items():
            request[resource] = min(request[resource], max_amount)
        for resource, min_amount in queue.deserved.items():
            request[resource] = request[resource] if queue.sharing.lends else max(request[resource], min_amount)
        if parents[name] in requests:
            requests[parents[name]].update(request)
    return requests


def _divide_among(
    group: Sequence[QueueSpec],
    resource: str,
    shared_amount: int,
    request: Mapping[str, Amounts],
    limit: _AmountsByQueue,
) -> None:
    """Divide an amount of a resource among the quotas of one parent, and add the result to `limit`.

    group: the quotas. shared_amount: the amount to divide. request: the amounts that each quota requests, by quota and
    resource. A quota that is the root of its own tree gets its pool, or its min without a pool, and takes no part in
    the division. No quota gets more than its max.
    """
    sharing = [queue for queue in group if queue.pool is None]
    claims = [_claim(queue, resource, request[queue.name].get(resource, 0)) for queue in sharing]
    divided = zip(sharing, share_by_weight(claims, shared_amount), strict=True)
    max_share = {queue.name: amount for queue, (_, amount) in divided}
    for queue in group:
        if queue.pool is not None and (resource in queue.pool or resource in queue.capability):
            max_share[queue.name] = queue.pool.get(resource, queue.deserved.get(resource, 0))
    for queue in group:
        if queue.name in max_share and _is_limited(queue, resource):
            bound = queue.capability.get(resource, max_share[queue.name])
            limit.setdefault(queue.name, {})[resource] = min(bound, max_share[queue.name])


def _is_limited(queue: QueueSpec, resource: str) -> bool:
    """Return True if a quota states a max, a min or a pool, so that its amount of a resource is limited."""
    return resource in queue.capability or resource in queue.deserved or queue.pool is not None


def _claim(queue: QueueSpec, resource: str, requested: int) -> QueueClaim:
    """Return the claim of a quota on one resource: its request if that is within its min, else its min and more by its
    weight (no more if the weight is 0).

    requested: the amount that the quota and its subtree request.
    """
    min_amount, weight = queue.deserved.get(resource, 0), queue.sharing.weights.get(resource, 0)
    if requested <= min_amount:
        return QueueClaim(requested, weight, 0.0, 0.0, min_amount)
    return QueueClaim(min_amount, weight, 0.0, (requested - min_amount) / weight if weight else 0.0, min_amount)


def _limit_by_parent(group: Sequence[QueueSpec], limit: _AmountsByQueue, parent_limit: Amounts) -> None:
    """Reduce `limit` of the children to their parent's limits, also for resources that the children do not name.

    group: the children. parent_limit: by resource, {} for a parent without a limit.
    """
    for queue in group:
        own_limit = limit.setdefault(queue.name, {})
        for resource, max_amount in parent_limit.items():
            own_limit[resource] = min(own_limit.get(resource, max_amount), max_amount)


def _namespaces(meta: ObjectPart, annotations: ObjectPart) -> tuple[str, ...]:
    """Return the namespaces whose pods the quota pays for: its own if both have the same name, and those that it lists.

    meta: its metadata. annotations: its annotations. An annotation that is no JSON list of texts is a fault, and lists
    nothing.
    """
    name, listed_names = meta.text("name"), read_json(annotations, f"{LABEL}namespaces")
    namespaces = [name] if name and name == meta.text("namespace") else []
    if listed_names is not None:
        listed: list[Any] = listed_names if isinstance(listed_names, list) else [None]
        if all(isinstance(each, str) for each in listed):
            namespaces += listed
        else:
            annotations.fault(f"{LABEL}namespaces", listed_names, "it must be a list of names")
    return tuple(dict.fromkeys(namespaces))


def _total_below_root(annotations: ObjectPart, max_amounts: Amounts, faults: list[str] | None) -> Amounts:
    """Return the total that the tree below a root quota divides: the annotated total, else the max of the root quota.

    annotations: of the root quota; an annotation that is no JSON is a fault of this part, and counts as absent.
    max_amounts: its max. faults: receives a sentence for each unreadable amount; None: it is left out without a
    sentence.
    """
    total = read_json(annotations, f"{LABEL}total-resource")
    return (
        max_amounts if total is None else read_amounts(lenient_part({"": total}, f"{LABEL}total-resource", faults), "")
    )
