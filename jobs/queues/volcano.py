"""Volcano's Queue, with the shares that its plugins capacity and proportion enforce.

Plugin capacity: real capability = min(capability, the parent's amount - the guarantees of the siblings), and `deserved`
is its own. Plugin proportion is assumed if no queue has `deserved` or a parent: the total is shared by `weight`, at
most the request of a queue and at least its guarantee. Requests are taken from mins, because real requests include our
own elastic workers. Source: docs/facts/schedulers.md 3.4
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from turnout.jobs.fields import MAX_INT32, ObjectPart
from turnout.jobs.queues.accounting import CIRCLE, QueueClaim, share_by_weight, sum_subtrees, top_down
from turnout.jobs.queues.model import NOTHING, Amounts, Demand, Object, Queue, QueueDialect, QueueSpec, headroom
from turnout.kube import labels

ROOT = "root"
_OPEN = "Open"  # in the states Closing, Closed and Unknown a queue accepts no jobs
_PODS = "pods"
_AmountsByQueue = dict[str, dict[str, int]]  # by queue, by resource


def read(raw: Object) -> QueueSpec:
    """Return the queue that a Queue object of scheduling.volcano.sh/v1beta1 describes.

    Its faults name unreadable fields.
    """
    root = ObjectPart.lenient(raw)
    meta, spec = root.part("metadata"), root.part("spec")
    capability, deserved = spec.amounts("capability"), spec.amounts("deserved")
    guarantee = spec.part("guarantee").amounts("resource")
    return QueueSpec(
        meta.text("name"),
        QueueDialect.VOLCANO,
        capability=capability,
        guarantee=guarantee,
        deserved=deserved,
        parent=spec.text("parent"),
        weight=max(1, spec.count("weight", 1, most=MAX_INT32)),
        open=root.part("status").text("state", _OPEN) == _OPEN,
        grants=_grants(meta),
        headroom=headroom(meta, capability, guarantee, deserved),
        faults=tuple(root.faults or ()),
    )


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, Queue]:
    """Return the share of each queue. A resource that no queue names has no limit."""
    known = {queue.name: queue for queue in queues}
    parents = {name: _parent(queue, known) for name, queue in known.items()}
    order, circle = top_down(parents)
    real = _real_capability(order, known, parents, demand.total)
    capacity = any(queue.deserved or queue.parent not in ("", ROOT) for queue in queues)
    own = _deserved(known, order, real) if capacity or not demand.needed else _by_weight(known, real, demand)
    used, is_open = sum_subtrees(order, parents, demand.used), dict[str, bool]()
    for name in order:
        is_open[name] = known[name].open and is_open.get(parents[name], True)
    found = {
        name: Queue(
            real[name],
            own.get(name, NOTHING),
            used[name],
            parents[name],
            open=is_open[name],
            headroom=known[name].headroom,
            faults=known[name].faults,
        )
        for name in order
    }
    return found | {name: Queue(open=False, faults=(*known[name].faults, CIRCLE)) for name in circle}


def _grants(meta: ObjectPart) -> tuple[str, ...] | None:
    """Return the namespaces that may name a Queue; None for all, as in Volcano itself."""
    notes = meta.part("annotations")
    if not notes.has(labels.QUEUE_NAMESPACES):
        return None
    return tuple(name.strip() for name in notes.text(labels.QUEUE_NAMESPACES).split(",") if name.strip())


def _parent(queue: QueueSpec, known: Mapping[str, QueueSpec]) -> str:
    if queue.name == ROOT:
        return ""
    return queue.parent or (ROOT if ROOT in known else "")


def _real_capability(
    order: Sequence[str], known: Mapping[str, QueueSpec], parents: Mapping[str, str], total: Amounts
) -> dict[str, dict[str, int]]:
    """Return the real capability: at most the parent's amount less the guarantees of the siblings."""
    promised: dict[str, Counter[str]] = {}
    for name in order:
        if guarantee := known[name].guarantee:
            promised.setdefault(parents[name], Counter()).update(guarantee)
    found: _AmountsByQueue = {}
    for name in order:
        above = found.get(parents[name], NOTHING)
        amounts, own_guarantee = dict(known[name].capability), known[name].guarantee
        guaranteed_total = promised.get(parents[name], NOTHING)
        for what in {**above, **guaranteed_total}:
            rest = above.get(what, total.get(what, 0)) - guaranteed_total.get(what, 0) + own_guarantee.get(what, 0)
            amounts[what] = max(0, min(amounts.get(what, rest), rest))
        found[name] = amounts
    return found


def _deserved(known: Mapping[str, QueueSpec], order: Sequence[str], real: Mapping[str, Amounts]) -> _AmountsByQueue:
    """Return the deserved amounts of plugin capacity: within the real capability, at least the guarantee."""
    named = dict.fromkeys(what for queue in known.values() for what in queue.deserved)
    found: _AmountsByQueue = {}
    for name in order:
        queue, most = known[name], real[name]
        deserved_amounts = {what: queue.deserved.get(what, 0) for what in named}
        own = {what: min(amount, most.get(what, amount)) for what, amount in deserved_amounts.items()}
        for what, amount in queue.guarantee.items():
            own[what] = max(own.get(what, 0), amount)
        found[name] = own
    return found


def _by_weight(known: Mapping[str, QueueSpec], real: _AmountsByQueue, demand: Demand) -> _AmountsByQueue:
    """Return the deserved amounts of plugin proportion, and reduce the real capability to the most that a queue could
    deserve.
    """
    queues = [queue for name, queue in known.items() if name in real and name != ROOT]
    named = {what for queue in queues for what in (*queue.capability, *queue.guarantee)}
    named |= {what for queue in queues for what in demand.need_of(queue.name)}
    found: _AmountsByQueue = {}
    for what in sorted(what for what in named - {_PODS} if demand.total.get(what)):
        claims = [_claim(queue, what, real[queue.name], demand) for queue in queues]
        for queue, (own, most) in zip(queues, share_by_weight(claims, demand.total[what]), strict=True):
            mine = real[queue.name]
            found.setdefault(queue.name, {})[what] = own
            mine[what] = min(mine.get(what, most), most)
    return found


def _claim(queue: QueueSpec, what: str, real: Amounts, demand: Demand) -> QueueClaim:
    least, requested = queue.guarantee.get(what, 0), demand.need_of(queue.name).get(what, 0)
    most = max(least, min(requested, real.get(what, requested)))
    return QueueClaim(least, queue.weight, least / queue.weight, most / queue.weight, least)
