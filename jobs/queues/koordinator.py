"""koordinator's ElasticQuota: a min of its own, a max, and by weight a share of what the others leave.

What koordinator writes as `runtime` follows requests, elastic workers included, and is 0 for a quota that asks for
nothing; `guaranteed` follows what is allocated. So neither is read: the share is worked out on mins, as koordinator
does it on requests, down the tree, and each quota's limit is what it would get if it alone asked for more.
Source: docs/facts/autoscaling.md 6; koordinator pkg/scheduler/plugins/elasticquota/core/runtime_quota_calculator.go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnout.jobs.queues.field_reader import Fields, headroom
from turnout.jobs.queues.hierarchy import CIRCLE, added_up, top_down
from turnout.jobs.queues.model import NOTHING, Amounts, Demand, Dialect, Object, QueueSpec, Share
from turnout.jobs.queues.weighted_fair_share import Claim, fill

LABEL = "quota.scheduling.koordinator.sh/"
NAME = f"{LABEL}name"  # of the quota that pays for a pod
ROOT, SYSTEM, DEFAULT = "koordinator-root-quota", "koordinator-system-quota", "koordinator-default-quota"
_BESIDE = (SYSTEM, DEFAULT)  # what their pods use is not there for the others
_Level = dict[str, dict[str, int]]


def read(raw: Object) -> QueueSpec:
    """An ElasticQuota of scheduling.sigs.k8s.io/v1alpha1; known, as pods name it, by its name."""
    whole = Fields(raw)
    meta, spec = whole.of("metadata"), whole.of("spec")
    marks, notes = meta.of("labels"), meta.of("annotations")
    own, most, name = spec.amounts("min"), spec.amounts("max"), meta.text("name")
    parent = marks.text(f"{LABEL}parent", "" if name == ROOT else ROOT)
    told = {"": notes.json(f"{LABEL}shared-weight")}
    weights = Fields(told, f"shared-weight of {name}", whole.faults).amounts("")
    is_root = marks.text(f"{LABEL}is-root") == "true" and name != ROOT
    namespaces = _namespaces(meta, notes)
    return QueueSpec(
        name,
        Dialect.KOORDINATOR,
        capability=most,
        deserved=own,
        lends=marks.text(f"{LABEL}allow-lent-resource") != "false",
        parent="" if is_root else parent,
        weights=weights if any(weights.values()) else most,
        namespaces=namespaces,
        grants=tuple(dict.fromkeys((meta.text("namespace"), *namespaces))),
        headroom=headroom(meta, most, own),
        pool=_pool(notes, most, whole.faults) if is_root else None,
        faults=tuple(whole.faults),
    )


def by_namespace(queues: Iterable[QueueSpec]) -> dict[str, str]:
    """The quota that pays for pods of a namespace that name none: the namespace's own, else one that lists it."""
    ours = sorted((q for q in queues if q.dialect is Dialect.KOORDINATOR), key=lambda queue: queue.name, reverse=True)
    found = {namespace: queue.name for queue in ours for namespace in queue.namespaces}
    return found | {queue.name: queue.name for queue in ours if queue.name in queue.namespaces}


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, Share]:
    """Work out the share of each quota. Quotas of an unknown parent share their mins."""
    known = {queue.name: queue for queue in queues}
    parents = {name: queue.parent for name, queue in known.items() if name not in (ROOT, *_BESIDE)}
    order, circle = top_down(parents)
    request = _requests(order, parents, known, demand)
    groups: dict[str, list[QueueSpec]] = {}
    for name in order:
        groups.setdefault(parents[name], []).append(known[name])
    there = Counter(demand.total)
    for name in _BESIDE:
        there.subtract(demand.used.get(name, NOTHING))
    limit: _Level = {}
    for parent, group in groups.items():  # a parent's own group comes first
        for what in sorted({what for queue in group for what in _named(queue)}):
            whole = sum(queue.deserved.get(what, 0) for queue in group)
            if parent in limit:
                whole = limit[parent].get(what, whole)
            elif parent == ROOT:
                whole = max(0, there[what])
            _share_out(group, what, whole, request, limit)
        _bound(group, limit, limit.get(parent, NOTHING))
    used = added_up(order, parents, demand.used)
    found = {name: _share(known[name], limit, used[name]) for name in order}
    for name in known.keys() & set(_BESIDE):
        beside, mine = known[name], demand.used.get(name, NOTHING)
        found[name] = Share(beside.capability, beside.deserved, mine, headroom=beside.headroom, faults=beside.faults)
    return found | {name: Share(open=False, faults=(*known[name].faults, CIRCLE)) for name in circle}


def _named(queue: QueueSpec) -> tuple[str, ...]:
    return (*queue.capability, *queue.deserved, *(queue.pool or ()))


def _share(queue: QueueSpec, limit: _Level, used: Amounts) -> Share:
    return Share(
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
    """Work out what each quota asks of its parent, by resource.

    That is the sum of what all below it ask for, at most its max, and at least its min when it lends none.
    """
    found = {name: Counter(demand.of(name)) for name in order}
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
    group: Sequence[QueueSpec], what: str, whole: int, request: Mapping[str, Amounts], limit: _Level
) -> None:
    """A tree in itself has its pool, and its min of what that does not name; the others have what their parent has."""
    sharing = [queue for queue in group if queue.pool is None]
    claims = [_claim(queue, what, request[queue.name].get(what, 0)) for queue in sharing]
    found = zip(sharing, fill(claims, whole), strict=True)
    most = {queue.name: amount for queue, (_, amount) in found}
    for queue in group:
        if queue.pool is not None and (what in queue.pool or what in queue.capability):
            most[queue.name] = queue.pool.get(what, queue.deserved.get(what, 0))
    for queue in group:
        if queue.name in most and (what in queue.capability or what in queue.deserved or queue.pool is not None):
            bound = queue.capability.get(what, most[queue.name])
            limit.setdefault(queue.name, {})[what] = min(bound, most[queue.name])


def _claim(queue: QueueSpec, what: str, asked: int) -> Claim:
    own, weight = queue.deserved.get(what, 0), queue.weights.get(what, 0)
    if asked <= own:
        return Claim(asked, weight, 0.0, 0.0, own)
    return Claim(own, weight, 0.0, (asked - own) / weight if weight else 0.0, own)


def _bound(group: Sequence[QueueSpec], limit: _Level, above: Amounts) -> None:
    """Bound the children by their parent's limits, also for resources that they do not name."""
    for queue in group:
        mine = limit.setdefault(queue.name, {})
        for what, most in above.items():
            mine[what] = min(mine.get(what, most), most)


def _namespaces(meta: Fields, notes: Fields) -> tuple[str, ...]:
    """The namespaces whose pods a quota pays for: that of its own name which it stands in, and those that it lists."""
    name, told = meta.text("name"), notes.json(f"{LABEL}namespaces")
    found = [name] if name and name == meta.text("namespace") else []
    if told is not None:
        listed: list[Any] = told if isinstance(told, list) else [None]
        if all(isinstance(each, str) for each in listed):
            found += listed
        else:
            notes.fault(f"{LABEL}namespaces", told, "it must be a list of names")
    return tuple(dict.fromkeys(found))


def _pool(notes: Fields, most: Amounts, faults: list[str]) -> Amounts:
    """Read what a tree of its own shares out: its annotated total, else its max."""
    told = notes.json(f"{LABEL}total-resource")
    return most if told is None else Fields({"": told}, f"{LABEL}total-resource", faults).amounts("")
