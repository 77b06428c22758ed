"""A plain namespace as a queue for jobs that name none: its ResourceQuotas, or an ElasticQuota of scheduler-plugins.

If several quotas limit a resource, the smallest amount counts. The ElasticQuotas of scheduler-plugins lend each other
the unused part of the sum of their mins: room = min(max - used, sum of mins - sum used).
Source: docs/facts/autoscaling.md 6

A ResourceQuota with scopes counts unless it cannot apply to training pods. The scope BestEffort applies only to pods
without requests, Terminating only to pods with their own deadline, VolumeAttributesClass to no pods. Whether a scope of
PriorityClass applies is unknown here, so it counts: too little may be lent, never too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from turnout.jobs.fields import ObjectPart
from turnout.jobs.queues.model import (
    NAMESPACE,
    NOTHING,
    POOL,
    Amounts,
    Demand,
    Object,
    Queue,
    QueueDialect,
    QueueSpec,
    headroom,
)

_ASKED = "requests."
_PODS = ("pods", "count/pods")
_OTHERS = ("limits.", "count/", "services", "configmaps", "secrets", "replicationcontrollers", "resourcequotas")
_STORAGE = ("storage", "persistentvolumeclaims")
_NOT_OURS = frozenset(("BestEffort", "Terminating", "VolumeAttributesClass"))


def read(raw: Object) -> QueueSpec:
    """Return the queue of a ResourceQuota. The smaller of `requests.X` and `X` is the limit."""
    root = ObjectPart.lenient(raw)
    meta, hard = root.part("metadata"), root.part("spec").part("hard")
    found: dict[str, int] = {}
    if not _NOT_OURS & set(_scopes(root.part("spec"))):
        for key in hard.value:
            if (what := _resource(key)) and (amount := hard.quantity(key, what)) is not None:
                found[what] = min(found.get(what, amount), amount)
    return _spec(meta, root, capability=found)


def read_elastic(raw: Object) -> QueueSpec:
    """Return the queue of an ElasticQuota of scheduling.x-k8s.io/v1alpha1."""
    root = ObjectPart.lenient(raw)
    spec = root.part("spec")
    min_amounts = spec.amounts("min")
    return _spec(root.part("metadata"), root, capability=spec.amounts("max"), deserved=min_amounts, pool=min_amounts)


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, Queue]:
    """Return the share of each namespace's pods, and of the pool of all ElasticQuotas."""
    found: dict[str, Queue] = {}
    for queue in queues:
        share = _share(queue, demand)
        found[queue.name] = _combine_shares(found[queue.name], share) if queue.name in found else share
    elastic = {queue.name for queue in queues if queue.pool is not None}
    if elastic:
        pool_total, used = Counter[str](), Counter[str]()
        for queue in queues:
            pool_total.update(queue.pool or NOTHING)
        for name in elastic:
            used.update(demand.used.get(name, NOTHING))
        found[POOL] = Queue(pool_total, used=used)
    return found


def _spec(
    meta: ObjectPart, root: ObjectPart, capability: Amounts, deserved: Amounts = NOTHING, pool: Amounts | None = None
) -> QueueSpec:
    """Return the queue of a namespace. meta: of the ResourceQuota. pool: amounts that several namespaces share."""
    name = NAMESPACE + meta.text("namespace")
    free_amounts = headroom(meta, capability, deserved)
    source = f"{meta.text('namespace')}/{meta.text('name')}"
    return QueueSpec(
        name,
        QueueDialect.NAMESPACE,
        capability,
        deserved=deserved,
        grants=(),
        headroom=free_amounts,
        pool=pool,
        source=source,
        faults=tuple(root.faults or ()),
    )


def _share(queue: QueueSpec, demand: Demand) -> Queue:
    parent = "" if queue.pool is None else POOL
    used = demand.used.get(queue.name, NOTHING)
    return Queue(queue.capability, queue.deserved, used, parent, headroom=queue.headroom, faults=queue.faults)


def _combine_shares(one: Queue, other: Queue) -> Queue:
    """Return the share under two quotas of one namespace: the smaller amounts and the larger headroom."""
    return Queue(
        _joined(min, one.limit, other.limit),
        _joined(min, one.deserved, other.deserved),
        one.used,
        one.parent or other.parent,
        headroom=_joined(max, one.headroom, other.headroom),
        faults=(*one.faults, *other.faults),
    )


def _joined(chosen: Callable[[int, int], int], one: Amounts, other: Amounts) -> Amounts:
    return {**one, **other, **{what: chosen(one[what], other[what]) for what in one.keys() & other.keys()}}


def _resource(key: str) -> str:
    """Return the pod resource that a key of `hard` limits; "" for none."""
    if key in _PODS:
        return "pods"
    if key.startswith(_OTHERS) or key.removeprefix(_ASKED) in _STORAGE or ".storageclass.storage.k8s.io/" in key:
        return ""
    return key.removeprefix(_ASKED)


def _scopes(spec: ObjectPart) -> Iterator[str]:
    """Yield the scopes, all of which a pod must match."""
    yield from spec.texts("scopes")
    for each in spec.part("scopeSelector").parts("matchExpressions"):
        if each.text("operator") == "Exists":
            yield each.text("scopeName")
