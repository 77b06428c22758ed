"""Kueue's ClusterQueues, which LocalQueues name, and their cohorts, by flavor and resource.

A node of the tree has its own quota and what its children lend: subtree_quota = its own quota + for each child
(subtree_quota - not_lent), where not_lent = max(0, subtree_quota - lending limit), or 0 without a lending limit. The
limit of a node is not_lent + the limit of its parent, at most subtree_quota + borrowing limit; that of a root is its
subtree_quota. Use beyond `not_lent` (in Kueue: localQuota) counts in the parent cohort. Source:
docs/facts/autoscaling.md 6; Kueue pkg/cache/scheduler/resource_node.go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from turnout.jobs.fields import ObjectPart, lenient_part, read_quantity
from turnout.jobs.queues.accounting import CYCLE, top_down
from turnout.jobs.queues.model import (
    COHORT,
    NOTHING,
    Demand,
    Flavor,
    KueueTerms,
    Object,
    QueueAccess,
    QueueDialect,
    QueueShare,
    QueueSpec,
    headroom,
)
from turnout.kube import labels

BOOST = labels.KUEUE_BOOST
_NEVER, _NO_STOP = "Never", "None"  # the defaults of preemption policies and of stopPolicy
_UNKNOWN_FLAVOR = ""  # the name of a resource in the cohort if its flavor is unknown


def read(raw: Object) -> QueueSpec:
    """Return the queue of a ClusterQueue of kueue.x-k8s.io, v1beta1 (`cohort`) or v1beta2 (`cohortName`).

    A field that cannot be read is reported in `faults` of the result.
    """
    root = lenient_part(raw)
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
        access=QueueAccess(grants=()),
        headroom=headroom(meta, nominal),
        kueue=KueueTerms(
            flavors,
            "" if preempts == _NEVER else preempts,
            reclaims=preemption.text("reclaimWithinCohort", _NEVER) != _NEVER,
        ),
        faults=tuple(root.faults or ()),
    )


def read_cohort(raw: Object) -> QueueSpec:
    """Return a Cohort of kueue.x-k8s.io as a queue that no pod may name: its own quota, and its parent cohort.

    A field that cannot be read is reported in `faults` of the result.
    """
    root = lenient_part(raw)
    spec = root.part("spec")
    parent, flavors = spec.text("parentName"), tuple(_flavors(spec))
    name = COHORT + root.part("metadata").text("name")
    parent_name = COHORT + parent if parent else ""
    return QueueSpec(
        name,
        QueueDialect.KUEUE,
        parent=parent_name,
        access=QueueAccess(grants=()),
        kueue=KueueTerms(flavors),
        faults=tuple(root.faults or ()),
    )


def local_queue(raw: Object) -> tuple[str, str]:
    """Return (namespace/name of a LocalQueue, name of its ClusterQueue). raw: the LocalQueue. An absent name is ""."""
    root = lenient_part(raw)
    meta = root.part("metadata")
    return f"{meta.text('namespace')}/{meta.text('name')}", root.part("spec").text("clusterQueue")


def accepts_workloads(raw: Object) -> bool:
    """Return True if a LocalQueue accepts workloads: its stopPolicy is neither Hold nor HoldAndDrain."""
    return lenient_part(raw).part("spec").text("stopPolicy", _NO_STOP) == _NO_STOP


@dataclass(slots=True)
class _TreeNode:
    """A ClusterQueue or cohort during the computation. The keys of amounts are Flavor.key, as in flavor/resource."""

    spec: QueueSpec
    parent: str  # the name of its cohort, "" for none
    subtree_quota: dict[str, int] = field(default_factory=dict)  # its own quota plus what its children lend
    not_lent: dict[str, int] = field(default_factory=dict)  # what it does not lend of them; absent for 0
    limit: dict[str, int] = field(default_factory=dict)  # the largest use that is allowed
    used: dict[str, int] = field(default_factory=dict)  # the use of its pods and its subtree
    ambiguous: set[str] = field(default_factory=set)  # resources of which it has several flavors


def shares(queues: Sequence[QueueSpec], demand: Demand) -> dict[str, QueueShare]:
    """Return the share of each ClusterQueue and of each cohort by name, also of cohorts without an object.

    queues: all ClusterQueues and Cohorts. The share of a member of a cycle, or below one, is closed and has a fault.
    """
    specs = {queue.name: queue for queue in queues}
    for queue in queues:
        if queue.parent and queue.parent not in specs:
            specs[queue.parent] = QueueSpec(queue.parent, QueueDialect.KUEUE)
    parents = {name: queue.parent for name, queue in specs.items()}
    parents_first, in_cycle = top_down(parents)
    nodes = {name: _TreeNode(specs[name], parents[name]) for name in parents_first}
    _compute_subtree_quotas(parents_first, nodes)
    for name in parents_first:
        _set_limit(nodes[name], nodes)
    _compute_use(parents_first, nodes, demand)
    exposed = _queues_exposed_to_eviction(parents_first, nodes)
    by_name = {name: _share(node, demand, name in exposed) for name, node in nodes.items()}
    return by_name | {name: QueueShare(open=False, faults=(*specs[name].faults, CYCLE)) for name in in_cycle}


def _compute_subtree_quotas(parents_first: Sequence[str], nodes: Mapping[str, _TreeNode]) -> None:
    """Set `subtree_quota`, `not_lent` and `ambiguous` of each node, and add the amounts that it lends to its parent's
    subtree_quota.

    parents_first: the names, each parent before its children. nodes: by name.
    """
    for name in reversed(parents_first):
        node = nodes[name]
        lending, resources = dict[str, int](), set[str]()
        for flavor in node.spec.kueue.flavors:
            if flavor.resource in resources:
                node.ambiguous.add(flavor.resource)
            resources.add(flavor.resource)
            node.subtree_quota[flavor.key] = node.subtree_quota.get(flavor.key, 0) + flavor.nominal
            if flavor.lending is not None:
                lending[flavor.key] = flavor.lending
        node.not_lent = {key: max(0, node.subtree_quota[key] - lending_limit) for key, lending_limit in lending.items()}
        if node.parent in nodes:
            parent_subtree_quota = nodes[node.parent].subtree_quota
            for key, amount in node.subtree_quota.items():
                parent_subtree_quota[key] = parent_subtree_quota.get(key, 0) + amount - node.not_lent.get(key, 0)


def _set_limit(node: _TreeNode, nodes: Mapping[str, _TreeNode]) -> None:
    """Set the limit of a node, by Flavor.key. The limit is the most that the node could use if no other queue used
    anything.

    The limit of a node without a parent is its subtree_quota. Else it is the quota that the node does not lend plus the
    limit of its parent, at most its subtree_quota plus its borrowing limit. nodes: all nodes by name. The limit of the
    parent must be set already.
    """
    if node.parent not in nodes:
        node.limit = dict(node.subtree_quota)
        return
    parent_limit = nodes[node.parent].limit  # has each key of the node
    node.limit = {key: node.not_lent.get(key, 0) + amount for key, amount in parent_limit.items()}
    for flavor in node.spec.kueue.flavors:
        if flavor.borrowing is not None:
            key = flavor.key
            node.limit[key] = min(node.limit[key], node.subtree_quota[key] + flavor.borrowing)


def _compute_use(parents_first: Sequence[str], nodes: Mapping[str, _TreeNode], demand: Demand) -> None:
    """Set `used` of each node: the use of its own pods, plus the use of each child above the quota that the child does
    not lend.

    If a resource has several flavors, each flavor is charged with the whole use, up to its limit, because it is unknown
    which flavor a pod got. parents_first: the names, each parent before its children. nodes: by name, with their
    limits. demand: only `demand.used` is read. Cohorts have no pods of their own.
    """
    for name in reversed(parents_first):
        node = nodes[name]
        used = demand.used.get(name, NOTHING)
        for flavor in node.spec.kueue.flavors:
            if flavor.resource in used and not name.startswith(COHORT):
                amount = used[flavor.resource]
                is_ambiguous = flavor.resource in node.ambiguous
                node.used[flavor.key] = min(amount, node.limit[flavor.key]) if is_ambiguous else amount
        if node.parent in nodes:
            parent_used = nodes[node.parent].used
            for key, amount in node.used.items():
                parent_used[key] = parent_used.get(key, 0) + max(0, amount - node.not_lent.get(key, 0))


def _queues_exposed_to_eviction(parents_first: Sequence[str], nodes: Mapping[str, _TreeNode]) -> set[str]:
    """Return the names of queues and cohorts in whose tree another queue has reclaimWithinCohort other than Never.

    To get the quota of that other queue back, Kueue may evict jobs of these queues, each with all its pods.
    parents_first: the names, each parent before its children. nodes: the queues and cohorts of all trees, by name.
    """
    root, reclaimers = dict[str, str](), Counter[str]()
    for name in parents_first:
        root[name] = root.get(nodes[name].parent, name)
        reclaimers[root[name]] += nodes[name].spec.kueue.reclaims
    return {name for name in parents_first if reclaimers[root[name]] > nodes[name].spec.kueue.reclaims}


def _share(node: _TreeNode, demand: Demand, exposed: bool) -> QueueShare:
    """Return the share of a ClusterQueue or cohort. Its amounts are by resource for a ClusterQueue, by Flavor.key for a
    cohort.

    node: with all its fields computed. demand: only `demand.used` is read. exposed: True if Kueue may evict its jobs to
    take borrowed quota back; then elastic workers leave the borrowed GPUs free.
    """
    spec = node.spec
    if spec.name.startswith(COHORT):
        return QueueShare(node.limit, used=node.used, parent=node.parent, guaranteed=node.not_lent, faults=spec.faults)
    limit, guaranteed, parent_resources = dict[str, int](), dict[str, int](), dict[str, str]()
    ambiguous = node.ambiguous
    for flavor in spec.kueue.flavors:
        resource = flavor.resource
        limit[resource] = limit.get(resource, 0) + node.limit[flavor.key]
        parent_resources[resource] = _UNKNOWN_FLAVOR if resource in ambiguous else flavor.key
        if flavor.key in node.not_lent and resource not in ambiguous:
            guaranteed[resource] = node.not_lent[flavor.key]
    free_amounts = dict(spec.headroom)
    if exposed:
        # Kueue would evict the whole job to take borrowed quota back, so elastic workers use only the own quota.
        for resource in limit.keys() & set(labels.GPU_RESOURCES):
            free_amounts[resource] = free_amounts.get(resource, 0) + max(0, limit[resource] - spec.deserved[resource])
    return QueueShare(
        limit,
        spec.deserved,
        demand.used.get(spec.name, NOTHING),
        node.parent,
        guaranteed,
        parent_resources,
        spec.open,
        free_amounts,
        _ambiguity_refusal(spec, sorted(ambiguous)),
        _eviction_risk(spec),
        spec.faults,
        spec.strict,
    )


def _ambiguity_refusal(spec: QueueSpec, ambiguous: Sequence[str]) -> str:
    """Return a sentence why no job of a ClusterQueue can be resized: it has several flavors of a resource. "" if it has
    not.

    ambiguous: the resources with several flavors, sorted.
    """
    if not ambiguous:
        return ""
    return f"ClusterQueue {spec.name} has several flavors of {ambiguous[0]}: which one a job was given is not known"


def _eviction_risk(spec: QueueSpec) -> str:
    """Return a sentence why Kueue might evict a job for another job of the same ClusterQueue; "" if it never does."""
    if not spec.kueue.preempts:
        return ""
    return (
        "Kueue may evict a whole job to make room for another job of its ClusterQueue: preemption.withinClusterQueue "
        f"of {spec.name} is {spec.kueue.preempts}, not Never"
    )


def _flavors(spec: ObjectPart) -> Iterator[Flavor]:
    """Yield each quota for a resource of a flavor. spec: of a ClusterQueue or Cohort.

    A resource without a name, or twice in one flavor, is a fault and is left out.
    """
    known_pairs: set[tuple[str, str]] = set()
    for group in spec.parts("resourceGroups"):
        for flavor in group.parts("flavors"):
            for resource in flavor.parts("resources"):
                name, resource_name = flavor.text("name"), resource.text("name")
                limits = (
                    read_quantity(resource, key, resource_name)
                    for key in ("nominalQuota", "lendingLimit", "borrowingLimit")
                )
                nominal, lending, borrowing = limits
                if (name, resource_name) in known_pairs or not resource_name:
                    resource.fault("name", resource_name, "each resource has to be named, and once in a flavor")
                    continue
                known_pairs.add((name, resource_name))
                yield Flavor(name, resource_name, nominal or 0, lending, borrowing)
