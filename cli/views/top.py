"""Shows who uses the cluster's GPUs, by job, queue, namespace or node: `turnout top`.

It counts pods that request GPUs and have a node, not how busy the GPUs are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnout.autoscaler.model import Gpus
from turnout.cli.views.listing import Column, Listing
from turnout.kube import labels
from turnout.kube.objects import Node
from turnout.kube.pod_shape import amount

BY = ("job", "queue", "namespace", "node")


@dataclass(frozen=True, slots=True)
class PodGpus:
    """One pod that requests GPUs."""

    job: str  # KIND/NAMESPACE/NAME
    namespace: str
    queue: str
    node: str  # "" until it has one
    gpus: int


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The GPUs of one node."""

    node: str
    gpus: int
    why: str = ""  # why no new pod may go there, "" if one may


@dataclass(frozen=True, slots=True)
class TopRow:
    """One job, queue, namespace or node, and what it holds."""

    name: str
    gpus: int  # of pods with a node
    share: float  # of all GPUs of the cluster, 0 to 1
    pods: int
    nodes: int
    waiting_gpus: int  # of pods without a node
    queue: str = ""  # of a job, several joined by commas; "" for all else
    offered_gpus: int | None = None  # of a node, None for all else
    why: str = ""  # why no new pod may go to the node, "" if one may


@dataclass(slots=True)
class _Sum:
    gpus: int = 0
    pods: int = 0
    waiting_gpus: int = 0
    nodes: set[str] = field(default_factory=set)
    queues: set[str] = field(default_factory=set)

    def add(self, pod: PodGpus) -> None:
        """Add one pod: to the GPUs in use if it has a node, otherwise to those that wait."""
        self.queues.add(pod.queue)
        if not pod.node:
            self.waiting_gpus += pod.gpus
            return
        self.gpus, self.pods = self.gpus + pod.gpus, self.pods + 1
        self.nodes.add(pod.node)


def offers(nodes: Iterable[Node], gpus: Gpus) -> list[NodeOffer]:
    """Return the offer of each node that has allocatable GPUs, sorted by name. gpus: names of GPU resources."""
    found = []
    for node in nodes:
        room = node.status.allocatable or {}
        if count := sum(amount(each, room[each]) for each in gpus if each in room):
            found.append(NodeOffer(node.metadata.name, count, closed(node)))
    return sorted(found, key=lambda each: each.node)


def closed(node: Node) -> str:
    """Return why no new GPU pod can go to a node: not ready, cordoned or faulty; "" if one can.

    Of the taints only that of a faulty node counts, because GPU pods tolerate others.
    """
    if any(each.status != "True" for each in node.status.conditions or () if each.type == "Ready"):
        return "not ready"
    if node.spec.unschedulable:
        return "cordoned"
    return "faulty" if any(each.key == labels.FAULTY for each in node.spec.taints or ()) else ""


_KEYS: Mapping[str, Callable[[PodGpus], str]] = {
    "job": lambda each: each.job,
    "queue": lambda each: each.queue,
    "namespace": lambda each: each.namespace,
    "node": lambda each: each.node,
}


def rows(by: str, holdings: Iterable[PodGpus], offers: Sequence[NodeOffer]) -> list[TopRow]:
    """Return one row for each job, queue, namespace or node, sorted by GPUs in use, most first.

    by: one of BY. By node, nodes that offer GPUs have a row even if nothing runs there, and pods without a node are
    left out. holdings: of all pods with GPUs, also waiting ones. offers: of all nodes; the shares are of their sum.
    """
    offered = {each.node: each for each in offers} if by == "node" else {}
    sums = {name: _Sum() for name in offered}
    for each in holdings:
        if each.node or by != "node":
            sums.setdefault(_KEYS[by](each), _Sum()).add(each)
    total_gpus = sum(each.gpus for each in offers)
    found = []
    for name, one in sums.items():
        share = round(one.gpus / total_gpus, 4) if total_gpus else 0.0
        queue, offer = ",".join(sorted(one.queues)) if by == "job" else "", offered.get(name)
        row = TopRow(name, one.gpus, share, one.pods, len(one.nodes), one.waiting_gpus, queue)
        found.append(row if offer is None else replace(row, offered_gpus=offer.gpus, why=offer.why))
    return sorted(found, key=lambda row: (-row.gpus, -row.waiting_gpus, row.name))


def summary(holdings: Iterable[PodGpus], offers: Sequence[NodeOffer]) -> str:
    """Return a sentence that says how many GPUs of the cluster are in use, and how many are on closed nodes.

    holdings: of all pods with GPUs; those without a node do not count. offers: of all nodes.
    """
    total_gpus, closed = sum(each.gpus for each in offers), sum(each.gpus for each in offers if each.why)
    used = sum(each.gpus for each in holdings if each.node)
    share = f" ({used / total_gpus:.0%})" if total_gpus else ""
    text = f"{used} of {total_gpus} GPUs are held{share}, on {len(offers)} nodes"
    return f"{text}; {closed} GPUs are on nodes that take no new pods" if closed else text


def listing(by: str, top_rows: Sequence[TopRow], notes: tuple[str, ...] = ()) -> Listing[TopRow]:
    """Return the rows as a listing for all output formats. by: one of BY."""
    node = by == "node"
    columns: list[Column[TopRow]] = [
        Column(by.upper(), lambda row: row.name),
        Column("GPUS", lambda row: str(row.gpus), number=True),
    ]
    if node:
        columns.append(
            Column(
                "OF", _offered, number=True, share=lambda row: row.gpus / row.offered_gpus if row.offered_gpus else 0.0
            )
        )
    else:
        columns.append(Column("SHARE", lambda row: f"{row.share:.1%}", number=True, share=lambda row: row.share))
    columns.append(Column("PODS", lambda row: str(row.pods), number=True))
    if node:
        columns.append(Column("CLOSED", lambda row: row.why))
    else:
        columns.append(Column("NODES", lambda row: str(row.nodes), number=True))
        columns.append(Column("WAITING", lambda row: str(row.waiting_gpus), number=True))
    if by == "job":
        columns.append(Column("QUEUE", lambda row: row.queue))
    empty = "no node offers GPUs" if node else "nobody asks for GPUs here"
    return Listing(columns, top_rows, lambda row: row.name if by == "job" else f"{by}/{row.name}", empty, notes)


def _offered(row: TopRow) -> str:
    return "-" if row.offered_gpus is None else str(row.offered_gpus)
