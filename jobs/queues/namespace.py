"""A plain namespace as a queue for jobs that name none: its ResourceQuotas, or an ElasticQuota of scheduler-plugins.

If several quotas limit a resource, the smallest amount counts. The ElasticQuotas of scheduler-plugins lend each other
the unused part of the sum of their mins: room = min(max - used, sum of mins - sum used). Source:
docs/facts/autoscaling.md 6

A ResourceQuota with scopes counts unless it cannot apply to training pods. The scope BestEffort applies only to pods
without requests, Terminating only to pods with their own deadline, VolumeAttributesClass to no pods. Whether a scope of
PriorityClass applies is unknown here, so it counts: too little may be lent, never too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from turnout.jobs.fields import ObjectPart, lenient_part, read_amounts, read_quantity
from turnout.jobs.queues.model import (
    NAMESPACE,
    NOTHING,
    POOL,
    Amounts,
    Demand,
    Object,
    QueueAccess,
    QueueDialect,
    QueueShare,
    QueueSpec,
    headroom,
)

_REQUESTS = "requests."
_PODS = ("pods", "count/pods")
# Prefixes of keys of a ResourceQuota that limit neither requests of pods nor their number.
_OTHER_KEYS = ("limits.", "count/", "services", "configmaps", "secrets", "replicationcontrollers", "resourcequotas")
_STORAGE = ("storage", "persistentvolumeclaims")
_OTHER_SCOPES = frozenset(("BestEffort", "Terminating", "VolumeAttributesClass"))


def read(raw: Object) -> QueueSpec:
    """Return the queue of a ResourceQuota. The smaller of `requests.X` and `X` is the limit of X.

    A ResourceQuota whose scopes exclude training pods limits nothing. A field that cannot be read is reported in
    `faults` of the result.
    """
    root = lenient_part(raw)
    meta, hard = root.part("metadata"), root.part("spec").part("hard")
    limits: dict[str, int] = {}
    if not _OTHER_SCOPES & set(_scopes(root.part("spec"))):
        for key in hard.value:
            if (resource := _limited_resource(key)) and (amount := read_quantity(hard, key, resource)) is not None:
                limits[resource] = min(limits.get(resource, amount), amount)
    return _spec(meta, root, capability=limits)


def read_elastic(raw: Object) -> QueueSpec:
    """Return the queue of an ElasticQuota of scheduling.x-k8s.io/v1alpha1. Its name is NAMESPACE + the namespace.

    A field that cannot be read is reported in `faults` of the result.
    """
    root = lenient_part(raw)
    spec = root.part("spec")
    min_amounts = read_amounts(spec, "min")
    return _spec(
        root.part("metadata"), root, capability=read_amounts(spec, "max"), deserved=min_amounts, pool=min_amounts
    )


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, QueueShare]:
    """Return the share (limits and use) of each namespace's queue, by name.

    If there are ElasticQuotas, POOL is one more share: its limit is the sum of their mins, its use the sum of the use
    of their namespaces. queues: one for each quota; of several with the same name, the smallest limits count. demand:
    only `demand.used` is read.
    """
    by_name: dict[str, QueueShare] = {}
    for queue in queues:
        share = _share(queue, demand)
        by_name[queue.name] = _combine_shares(by_name[queue.name], share) if queue.name in by_name else share
    elastic = {queue.name for queue in queues if queue.pool is not None}
    if elastic:
        pool_total, used = Counter[str](), Counter[str]()
        for queue in queues:
            pool_total.update(queue.pool or NOTHING)
        for name in elastic:
            used.update(demand.used.get(name, NOTHING))
        by_name[POOL] = QueueShare(pool_total, used=used)
    return by_name


def _spec(
    meta: ObjectPart, root: ObjectPart, capability: Amounts, deserved: Amounts = NOTHING, pool: Amounts | None = None
) -> QueueSpec:
    """Return the queue of a namespace. meta: the metadata of its quota. root: the whole quota, which collects faults.

    capability: the limits. deserved: its own amounts. pool: the amounts that it adds to the pool of all ElasticQuotas,
    None for a ResourceQuota.
    """
    name = NAMESPACE + meta.text("namespace")
    free_amounts = headroom(meta, capability, deserved)
    source = f"{meta.text('namespace')}/{meta.text('name')}"
    return QueueSpec(
        name,
        QueueDialect.NAMESPACE,
        capability,
        deserved=deserved,
        access=QueueAccess(grants=()),
        headroom=free_amounts,
        pool=pool,
        source=source,
        faults=tuple(root.faults or ()),
    )


def _share(queue: QueueSpec, demand: Demand) -> QueueShare:
    """Return the share under one quota of a namespace."""
    parent = "" if queue.pool is None else POOL
    used = demand.used.get(queue.name, NOTHING)
    return QueueShare(queue.capability, queue.deserved, used, parent, headroom=queue.headroom, faults=queue.faults)


def _combine_shares(share: QueueShare, other_share: QueueShare) -> QueueShare:
    """Return the share under two quotas of one namespace: the smaller amounts, the larger headroom, and all faults."""
    return QueueShare(
        _merge_amounts(min, share.limit, other_share.limit),
        _merge_amounts(min, share.deserved, other_share.deserved),
        share.used,
        share.parent or other_share.parent,
        headroom=_merge_amounts(max, share.headroom, other_share.headroom),
        faults=(*share.faults, *other_share.faults),
    )


def _merge_amounts(choose: Callable[[int, int], int], amounts: Amounts, other_amounts: Amounts) -> Amounts:
    """Return the amounts of both by resource. choose: picks one of two amounts of the same resource."""
    return {
        **amounts,
        **other_amounts,
        **{
            resource: choose(amounts[resource], other_amounts[resource])
            for resource in amounts.keys() & other_amounts.keys()
        },
    }


def _limited_resource(key: str) -> str:
    """Return the resource of pods that a key of `hard` limits; "" if the key limits something else."""
    if key in _PODS:
        return "pods"
    if key.startswith(_OTHER_KEYS) or key.removeprefix(_REQUESTS) in _STORAGE or ".storageclass.storage.k8s.io/" in key:
        return ""
    return key.removeprefix(_REQUESTS)


def _scopes(spec: ObjectPart) -> Iterator[str]:
    """Yield the names of the scopes that a pod must match for the quota to apply. spec: of the ResourceQuota.

    Of scopeSelector only expressions with the operator Exists are read.
    """
    yield from spec.texts("scopes")
    for each in spec.part("scopeSelector").parts("matchExpressions"):
        if each.text("operator") == "Exists":
            yield each.text("scopeName")
