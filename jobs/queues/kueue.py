"""Kueue's ClusterQueues, which LocalQueues name, and their cohorts, by flavor and resource.

A node of the tree has its own quota and what its children lend: subtree = nominal + sum of the children's
(subtree - local), where local = subtree - lending limit, or 0 without a lending limit. The limit of a node is
subtree + borrowing limit. Use beyond `local` counts in the parent cohort.
Source: docs/facts/autoscaling.md 6; Kueue pkg/cache/scheduler/resource_node.go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from turnout.jobs.fields import ObjectPart
from turnout.jobs.queues.accounting import CIRCLE, top_down
from turnout.jobs.queues.model import COHORT, NOTHING, Demand, Flavor, Object, Queue, QueueDialect, QueueSpec, headroom
from turnout.kube import labels

BOOST = labels.KUEUE_BOOST
_NEVER, _NO_STOP = "Never", "None"
_UNKNOWN = ""  # the name of a resource in the cohort if its flavor is unknown


def read(raw: Object) -> QueueSpec:
    """Return the queue of a ClusterQueue of kueue.x-k8s.io, v1beta1 (`cohort`) or v1beta2 (`cohortName`)."""
    root = ObjectPart.lenient(raw)
    meta, spec = root.part("metadata"), root.part("spec")
    flavors, nominal, preemption = tuple(_flavors(spec)), Counter[str](), spec.part("preemption")
    for flavor in flavors:
        nominal[flavor.resource] += flavor.nominal
    cohort, preempts = spec.text("cohortName", spec.text("cohort")), preemption.text("withinClusterQueue", _NEVER)
    return QueueSpec(
        meta.text("name"),
        QueueDialect.KUEUE,
        deserved=dict(nominal),
        parent=COHORT + cohort if cohort else "",
        open=spec.text("stopPolicy", _NO_STOP) == _NO_STOP,
        strict=spec.text("queueingStrategy") == "StrictFIFO",
        grants=(),
        headroom=headroom(meta, nominal),
        flavors=flavors,
        preempts="" if preempts == _NEVER else preempts,
        reclaims=preemption.text("reclaimWithinCohort", _NEVER) != _NEVER,
        faults=tuple(root.faults or ()),
    )


def read_cohort(raw: Object) -> QueueSpec:
    """Return the queue of a Cohort of kueue.x-k8s.io: its own quota, and its parent cohort."""
    root = ObjectPart.lenient(raw)
    spec = root.part("spec")
    parent, flavors = spec.text("parentName"), tuple(_flavors(spec))
    name = COHORT + root.part("metadata").text("name")
    above = COHORT + parent if parent else ""
    return QueueSpec(
        name, QueueDialect.KUEUE, parent=above, grants=(), flavors=flavors, faults=tuple(root.faults or ())
    )


def local_queue(raw: Object) -> tuple[str, str]:
    """Return the name (namespace/name) of a LocalQueue and of its ClusterQueue."""
    root = ObjectPart.lenient(raw)
    meta = root.part("metadata")
    return f"{meta.text('namespace')}/{meta.text('name')}", root.part("spec").text("clusterQueue")


def accepts_workloads(raw: Object) -> bool:
    """Return True if a LocalQueue accepts workloads, so its stopPolicy is neither Hold nor HoldAndDrain."""
    return ObjectPart.lenient(raw).part("spec").text("stopPolicy", _NO_STOP) == _NO_STOP


@dataclass(slots=True)
class _Node:
    """A ClusterQueue or cohort during the computation. Amounts are by flavor and resource."""

    spec: QueueSpec
    parent: str
    subtree: dict[str, int] = field(default_factory=dict)  # its own quota, and what its children lend
    local: dict[str, int] = field(default_factory=dict)  # the part of `subtree` that it does not lend
    limit: dict[str, int] = field(default_factory=dict)  # the most that it may use
    used: dict[str, int] = field(default_factory=dict)  # by its pods and its subtree
    ambiguous: set[str] = field(default_factory=set)  # resources of which the node has several flavors


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, Queue]:
    """Return the share of each ClusterQueue and of each cohort, also of cohorts without an object."""
    known = {queue.name: queue for queue in queues}
    for queue in queues:
        if queue.parent and queue.parent not in known:
            known[queue.parent] = QueueSpec(queue.parent, QueueDialect.KUEUE)
    parents = {name: queue.parent for name, queue in known.items()}
    order, circle = top_down(parents)
    nodes = {name: _Node(known[name], parents[name]) for name in order}
    _lend_upwards(order, nodes)
    for name in order:
        _set_limit(nodes[name], nodes)
    _use_upwards(order, nodes, demand)
    exposed = _queues_exposed_to_eviction(order, nodes)
    found = {name: _share(node, demand, name in exposed) for name, node in nodes.items()}
    return found | {name: Queue(open=False, faults=(*known[name].faults, CIRCLE)) for name in circle}


def _lend_upwards(order: Sequence[str], nodes: Mapping[str, _Node]) -> None:
    """Compute each node's quota with all below it, and add to its parent what it lends.

    order: parents before children.
    """
    for name in reversed(order):
        node = nodes[name]
        lending, resources = dict[str, int](), set[str]()
        for flavor in node.spec.flavors:
            if flavor.resource in resources:
                node.ambiguous.add(flavor.resource)
            resources.add(flavor.resource)
            node.subtree[flavor.key] = node.subtree.get(flavor.key, 0) + flavor.nominal
            if flavor.lending is not None:
                lending[flavor.key] = flavor.lending
        node.local = {key: max(0, node.subtree[key] - most) for key, most in lending.items()}
        if node.parent in nodes:
            above = nodes[node.parent].subtree
            for key, amount in node.subtree.items():
                above[key] = above.get(key, 0) + amount - node.local.get(key, 0)


def _set_limit(node: _Node, nodes: Mapping[str, _Node]) -> None:
    """Set the limit of a node: what it could use if no other queue used anything. Its parent's limit is set first.

    That is its own quota that is not lent plus the limit of its parent, at most its subtree plus its borrowing limit.
    """
    if node.parent not in nodes:
        node.limit = dict(node.subtree)
        return
    above, mine = nodes[node.parent].limit, node.subtree  # what is mine has a name above, too
    node.limit = {key: node.local.get(key, 0) + amount for key, amount in above.items()}
    for flavor in node.spec.flavors:
        if flavor.borrowing is not None:
            key = flavor.key
            node.limit[key] = min(node.limit[key], mine[key] + flavor.borrowing)


def _use_upwards(order: Sequence[str], nodes: Mapping[str, _Node], demand: Demand) -> None:
    """Charge each node with its use, and its cohort with the use beyond the node's own part.

    If a resource may be of several flavors, each of them is charged with the whole use, up to its limit.
    """
    for name in reversed(order):
        node = nodes[name]
        used = demand.used.get(name, NOTHING)
        for flavor in node.spec.flavors:
            if flavor.resource in used and not name.startswith(COHORT):
                amount = used[flavor.resource]
                unclear = flavor.resource in node.ambiguous
                node.used[flavor.key] = min(amount, node.limit[flavor.key]) if unclear else amount
        if node.parent in nodes:
            above = nodes[node.parent].used
            for key, amount in node.used.items():
                above[key] = above.get(key, 0) + max(0, amount - node.local.get(key, 0))


def _queues_exposed_to_eviction(order: Sequence[str], nodes: Mapping[str, _Node]) -> set[str]:
    """Return the queues from which another queue of the cohort tree may reclaim quota by evicting whole jobs."""
    root, reclaimers = dict[str, str](), Counter[str]()
    for name in order:
        root[name] = root.get(nodes[name].parent, name)
        reclaimers[root[name]] += nodes[name].spec.reclaims
    return {name for name in order if reclaimers[root[name]] > nodes[name].spec.reclaims}


def _share(node: _Node, demand: Demand, exposed: bool) -> Queue:
    """Return the queue of a ClusterQueue or cohort.

    exposed: its borrowed workers may be preempted with the whole job.
    """
    spec = node.spec
    if spec.name.startswith(COHORT):
        return Queue(node.limit, used=node.used, parent=node.parent, guaranteed=node.local, faults=spec.faults)
    limit, guaranteed, parent_resources = dict[str, int](), dict[str, int](), dict[str, str]()
    ambiguous = node.ambiguous
    for flavor in spec.flavors:
        what = flavor.resource
        limit[what] = limit.get(what, 0) + node.limit[flavor.key]
        parent_resources[what] = _UNKNOWN if what in ambiguous else flavor.key
        if flavor.key in node.local and what not in ambiguous:
            guaranteed[what] = node.local[flavor.key]
    free = dict(spec.headroom)
    if exposed:  # what is borrowed could be taken back with the whole job: elastic workers stay within its own
        for what in limit.keys() & set(labels.GPU_RESOURCES):
            free[what] = free.get(what, 0) + max(0, limit[what] - spec.deserved[what])
    return Queue(
        limit,
        spec.deserved,
        demand.used.get(spec.name, NOTHING),
        node.parent,
        guaranteed,
        parent_resources,
        spec.open,
        free,
        _no_flavor(spec, sorted(ambiguous)),
        _eviction_risk(spec),
        spec.faults,
        spec.strict,
    )


def _no_flavor(spec: QueueSpec, ambiguous: Sequence[str]) -> str:
    if not ambiguous:
        return ""
    return f"ClusterQueue {spec.name} has several flavors of {ambiguous[0]}: which one a job was given is not known"


def _eviction_risk(spec: QueueSpec) -> str:
    """Return why Kueue might evict a job of this ClusterQueue as a whole; "" if it never does."""
    if not spec.preempts:
        return ""
    return (
        f"Kueue may evict a job whole for another of its ClusterQueue: preemption.withinClusterQueue of {spec.name} is "
        f"{spec.preempts}, not Never"
    )


def _flavors(spec: ObjectPart) -> Iterator[Flavor]:
    """Yield the flavors of a ClusterQueue. A resource that stands twice in a flavor, or has no name, is a fault."""
    known_pairs: set[tuple[str, str]] = set()
    for group in spec.parts("resourceGroups"):
        for flavor in group.parts("flavors"):
            for resource in flavor.parts("resources"):
                name, what = flavor.text("name"), resource.text("name")
                limits = (resource.quantity(key, what) for key in ("nominalQuota", "lendingLimit", "borrowingLimit"))
                nominal, lending, borrowing = limits
                if (name, what) in known_pairs or not what:
                    resource.fault("name", what, "each resource has to be named, and once in a flavor")
                    continue
                known_pairs.add((name, what))
                yield Flavor(name, what, nominal or 0, lending, borrowing)
