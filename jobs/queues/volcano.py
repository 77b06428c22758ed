"""Volcano's Queue, with the shares that its plugins capacity and proportion enforce.

Plugin capacity: real capability = min(capability, the parent's amount - the guarantees of the siblings), and `deserved`
is its own. Plugin proportion is assumed if no queue has `deserved` or a parent: the total is shared by `weight`, and
each queue gets at least its guarantee and at most its request. A queue's request is computed from the mins of its jobs:
the requests in its status also count the elastic workers that we added. Source: docs/facts/schedulers.md 3.4
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from turnout.jobs.fields import MAX_INT32, ObjectPart, lenient_part, read_amounts
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
from turnout.kube import labels

ROOT = "root"  # the queue that Volcano makes above all others
_OPEN = "Open"  # in the states Closing, Closed and Unknown a queue accepts no jobs
_PODS = "pods"  # a resource that is not shared by weight
_AmountsByQueue = dict[str, dict[str, int]]  # by queue, by resource


def read(raw: Object) -> QueueSpec:
    """Return the queue that a Queue object of scheduling.volcano.sh/v1beta1 describes.

    A field that cannot be read is reported in `faults` of the result.
    """
    root = lenient_part(raw)
    meta, spec = root.part("metadata"), root.part("spec")
    capability, deserved = read_amounts(spec, "capability"), read_amounts(spec, "deserved")
    guarantee = read_amounts(spec.part("guarantee"), "resource")
    return QueueSpec(
        meta.text("name"),
        QueueDialect.VOLCANO,
        capability=capability,
        guarantee=guarantee,
        deserved=deserved,
        parent=spec.text("parent"),
        sharing=Sharing(max(1, spec.count("weight", 1, maximum=MAX_INT32))),
        open=root.part("status").text("state", _OPEN) == _OPEN,
        access=QueueAccess(grants=_allowed_namespaces(meta)),
        headroom=headroom(meta, capability, guarantee, deserved),
        faults=tuple(root.faults or ()),
    )


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, QueueShare]:
    """Return the share of each queue by name.

    Plugin capacity is assumed if a queue states `deserved` or a parent other than the root, or if `demand.needed` is
    empty, else plugin proportion. A resource that no queue names has no limit; for proportion it has one if a queue
    needs it. queues: all queues of Volcano. The share of a queue in or below a cycle of parents is closed and has a
    fault. A queue below a closed queue is closed.
    """
    specs = {queue.name: queue for queue in queues}
    parents = {name: _parent(queue, specs) for name, queue in specs.items()}
    parents_first, in_cycle = top_down(parents)
    real = _real_capability(parents_first, specs, parents, demand.total)
    capacity = any(queue.deserved or queue.parent not in ("", ROOT) for queue in queues)
    deserved = (
        _deserved(specs, parents_first, real) if capacity or not demand.needed else _by_weight(specs, real, demand)
    )
    used, is_open = sum_subtrees(parents_first, parents, demand.used), dict[str, bool]()
    for name in parents_first:
        is_open[name] = specs[name].open and is_open.get(parents[name], True)
    by_name = {
        name: QueueShare(
            real[name],
            deserved.get(name, NOTHING),
            used[name],
            parents[name],
            open=is_open[name],
            headroom=specs[name].headroom,
            faults=specs[name].faults,
        )
        for name in parents_first
    }
    return by_name | {name: QueueShare(open=False, faults=(*specs[name].faults, CYCLE)) for name in in_cycle}


def _allowed_namespaces(meta: ObjectPart) -> tuple[str, ...] | None:
    """Return the namespaces that may name a Queue, from our annotation; None for all, as in Volcano itself.

    meta: the metadata of the Queue.
    """
    annotations = meta.part("annotations")
    if not annotations.has(labels.QUEUE_NAMESPACES):
        return None
    return tuple(name.strip() for name in annotations.text(labels.QUEUE_NAMESPACES).split(",") if name.strip())


def _parent(queue: QueueSpec, specs: Mapping[str, QueueSpec]) -> str:
    """Return the name of a queue's parent, the root queue by default; "" for the root and if there is no root."""
    if queue.name == ROOT:
        return ""
    return queue.parent or (ROOT if ROOT in specs else "")


def _real_capability(
    parents_first: Sequence[str], specs: Mapping[str, QueueSpec], parents: Mapping[str, str], total: Amounts
) -> dict[str, dict[str, int]]:
    """Return the real capability of each queue, by resource.

    That is its capability, at most the parent's amount less the guarantees of the siblings, and at least 0. A resource
    that the parent does not have and no sibling guarantees is limited by the capability alone. parents_first: the
    names, each parent before its children. specs: the queues by name. parents: the parent of each name, "" for none.
    total: the amounts of all nodes.
    """
    guarantees: dict[str, Counter[str]] = {}
    for name in parents_first:
        if guarantee := specs[name].guarantee:
            guarantees.setdefault(parents[name], Counter()).update(guarantee)
    by_name: _AmountsByQueue = {}
    for name in parents_first:
        parent_amounts = by_name.get(parents[name], NOTHING)
        amounts, own_guarantee = dict(specs[name].capability), specs[name].guarantee
        guaranteed_total = guarantees.get(parents[name], NOTHING)
        for resource in {**parent_amounts, **guaranteed_total}:
            rest = (
                parent_amounts.get(resource, total.get(resource, 0))
                - guaranteed_total.get(resource, 0)
                + own_guarantee.get(resource, 0)
            )
            amounts[resource] = max(0, min(amounts.get(resource, rest), rest))
        by_name[name] = amounts
    return by_name


def _deserved(specs: Mapping[str, QueueSpec], names: Sequence[str], real: Mapping[str, Amounts]) -> _AmountsByQueue:
    """Return, for plugin capacity, the deserved amounts of each queue by resource: spec.deserved, at most the real
    capability, but never below the guarantee.

    A resource that another queue names in spec.deserved and this queue does not counts as 0. specs: the queues by name.
    names: of the queues to compute. real: the real capability of each queue.
    """
    resources = dict.fromkeys(resource for queue in specs.values() for resource in queue.deserved)
    by_name: _AmountsByQueue = {}
    for name in names:
        queue, capability = specs[name], real[name]
        deserved_amounts = {resource: queue.deserved.get(resource, 0) for resource in resources}
        deserved = {
            resource: min(amount, capability.get(resource, amount)) for resource, amount in deserved_amounts.items()
        }
        for resource, amount in queue.guarantee.items():
            deserved[resource] = max(deserved.get(resource, 0), amount)
        by_name[name] = deserved
    return by_name


def _by_weight(specs: Mapping[str, QueueSpec], real: _AmountsByQueue, demand: Demand) -> _AmountsByQueue:
    """Return, for plugin proportion, the deserved amounts of each queue by resource, divided by the weights of the
    queues.

    The number of pods is not divided. specs: the queues by name. real: the real capability of each queue; it is reduced
    to the largest amount that the queue could deserve.
    """
    queues = [queue for name, queue in specs.items() if name in real and name != ROOT]
    by_name: _AmountsByQueue = {}
    for resource in _divided_resources(queues, demand):
        claims = [_claim(queue, resource, real[queue.name], demand) for queue in queues]
        for queue, (share, max_share) in zip(queues, share_by_weight(claims, demand.total[resource]), strict=True):
            capability = real[queue.name]
            by_name.setdefault(queue.name, {})[resource] = share
            capability[resource] = min(capability.get(resource, max_share), max_share)
    return by_name


def _divided_resources(queues: Sequence[QueueSpec], demand: Demand) -> list[str]:
    """Return the resources that queues limit, guarantee or need and that the cluster has, sorted, without pods."""
    resources = {resource for queue in queues for resource in (*queue.capability, *queue.guarantee)}
    resources |= {resource for queue in queues for resource in demand.need_of(queue.name)}
    return sorted(resource for resource in resources - {_PODS} if demand.total.get(resource))


def _claim(queue: QueueSpec, resource: str, real: Amounts, demand: Demand) -> QueueClaim:
    """Return the claim of a queue on one resource: at least its guarantee, at most its need.

    real: the real capability of the queue, which limits the need.
    """
    minimum, requested = queue.guarantee.get(resource, 0), demand.need_of(queue.name).get(resource, 0)
    max_amount = max(minimum, min(requested, real.get(resource, requested)))
    weight = queue.sharing.weight
    return QueueClaim(minimum, weight, minimum / weight, max_amount / weight, minimum)
