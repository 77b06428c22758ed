"""A plain namespace as the queue of jobs that name none: its ResourceQuotas, or an ElasticQuota of scheduler-plugins.

Of several the smallest amount holds. The ElasticQuotas of scheduler-plugins lend one another what is left of the sum
of their mins: room = min(max - used, sum of mins - sum used). Source: docs/facts/autoscaling.md 6

A ResourceQuota with scopes binds unless training pods cannot be meant: BestEffort counts nothing but pods of no
requests, Terminating none but pods with a deadline of their own, VolumeAttributesClass no pods. Whether a PriorityClass
is meant cannot be seen here, so it binds: what is lent may be too little, never too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from turnout.jobs.queues.field_reader import Fields, headroom
from turnout.jobs.queues.model import NAMESPACE, NOTHING, POOL, Amounts, Demand, Dialect, Object, QueueSpec, Share

_ASKED = "requests."
_PODS = ("pods", "count/pods")
_OTHERS = ("limits.", "count/", "services", "configmaps", "secrets", "replicationcontrollers", "resourcequotas")
_STORAGE = ("storage", "persistentvolumeclaims")
_NOT_OURS = frozenset(("BestEffort", "Terminating", "VolumeAttributesClass"))


def read(raw: Object) -> QueueSpec:
    """A ResourceQuota: the smaller of `requests.X` and `X` is the limit."""
    whole = Fields(raw)
    meta, hard = whole.of("metadata"), whole.of("spec").of("hard")
    found: dict[str, int] = {}
    if not _NOT_OURS & set(_scopes(whole.of("spec"))):
        for key in hard:
            if (what := _resource(key)) and (amount := hard.quantity(key, what)) is not None:
                found[what] = min(found.get(what, amount), amount)
    return _spec(meta, whole, capability=found)


def read_elastic(raw: Object) -> QueueSpec:
    """An ElasticQuota of scheduling.x-k8s.io/v1alpha1."""
    whole = Fields(raw)
    spec = whole.of("spec")
    own = spec.amounts("min")
    return _spec(whole.of("metadata"), whole, capability=spec.amounts("max"), deserved=own, pool=own)


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, Share]:
    """Work out the share of each namespace's pods."""
    found: dict[str, Share] = {}
    for queue in queues:
        share = _share(queue, demand)
        found[queue.name] = _both(found[queue.name], share) if queue.name in found else share
    elastic = {queue.name for queue in queues if queue.pool is not None}
    if elastic:
        whole, used = Counter[str](), Counter[str]()
        for queue in queues:
            whole.update(queue.pool or NOTHING)
        for name in elastic:
            used.update(demand.used.get(name, NOTHING))
        found[POOL] = Share(whole, used=used)
    return found


def _spec(
    meta: Fields, whole: Fields, capability: Amounts, deserved: Amounts = NOTHING, pool: Amounts | None = None
) -> QueueSpec:
    name = NAMESPACE + meta.text("namespace")
    kept = headroom(meta, capability, deserved)
    source = f"{meta.text('namespace')}/{meta.text('name')}"
    return QueueSpec(
        name,
        Dialect.NAMESPACE,
        capability,
        deserved=deserved,
        grants=(),
        headroom=kept,
        pool=pool,
        source=source,
        faults=tuple(whole.faults),
    )


def _share(queue: QueueSpec, demand: Demand) -> Share:
    within = "" if queue.pool is None else POOL
    used = demand.used.get(queue.name, NOTHING)
    return Share(queue.capability, queue.deserved, used, within, headroom=queue.headroom, faults=queue.faults)


def _both(one: Share, other: Share) -> Share:
    """Two quotas of one namespace: the smaller amounts hold, and the larger headroom is kept."""
    return Share(
        _joined(min, one.limit, other.limit),
        _joined(min, one.deserved, other.deserved),
        one.used,
        one.within or other.within,
        headroom=_joined(max, one.headroom, other.headroom),
        faults=(*one.faults, *other.faults),
    )


def _joined(chosen: Callable[[int, int], int], one: Amounts, other: Amounts) -> Amounts:
    return {**one, **other, **{what: chosen(one[what], other[what]) for what in one.keys() & other.keys()}}


def _resource(key: str) -> str:
    """The resource of a pod that a name of `hard` bounds; "" for none."""
    if key in _PODS:
        return "pods"
    if key.startswith(_OTHERS) or key.removeprefix(_ASKED) in _STORAGE or ".storageclass.storage.k8s.io/" in key:
        return ""
    return key.removeprefix(_ASKED)


def _scopes(spec: Fields) -> Iterator[str]:
    """The scopes, all of which a pod has to meet. One that cannot be read is told."""
    yield from spec.texts("scopes")
    for each in spec.of("scopeSelector").each("matchExpressions"):
        if each.text("operator") == "Exists":
            yield each.text("scopeName")
