"""Keep the nodes: what is free on each, under which switch of the map it is, and the share that is not ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import UNKNOWN_NODE, JobState
from turnout.kube.errors import KubeError
from turnout.kube.node_capacity import Charge, ClusterSnapshot
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import PodShape, amount
from turnout.topology.fabric import EMPTY, Fabric

_OVER = ("Succeeded", "Failed")  # phases of pods that have ended


class NodeCache:
    """The nodes of the cluster. total: what all nodes offer together, by resource.

    by_name: the objects of the nodes. snapshot: what is free on each. fabric: the map of switches.
    """

    def __init__(self) -> None:
        """Start without nodes, and without a map."""
        self.by_name: dict[str, Node] = {}
        self.snapshot = ClusterSnapshot()
        self._has_all_rows = True  # every node has a row
        self._unready: set[str] = set()
        self._switches: tuple[NDArray[np.int32], ...] | None = None  # by tier; None when they have to be computed again
        self.total: Counter[str] = Counter()
        self.fabric: Fabric = EMPTY

    def use_map(self, fabric: Fabric) -> None:
        """Use this map of switches from the next observation on."""
        self.fabric, self._switches = fabric, None

    def put_node(self, node: Node) -> Collection[str]:
        """Store a node. Return the uids of the pods on it if the node is new, else ()."""
        name = node.metadata.name
        new = name not in self.by_name
        _add_offer(self.total, self.by_name.get(name), -1)
        _add_offer(self.total, node, 1)
        (self._unready.discard if _is_ready(node) else self._unready.add)(name)
        self.by_name[name] = node
        self._has_all_rows &= self.snapshot.put_node(node)
        if not new:
            return ()
        self._switches = None
        return self.snapshot.pods.on_node(name)

    def drop_node(self, name: str) -> Collection[str]:
        """Drop a deleted node by its name; its row stays, without room. Return the uids of the pods on it. An
        unknown node is ignored.
        """
        _add_offer(self.total, self.by_name.pop(name, None), -1)
        self._unready.discard(name)
        self.snapshot.drop_node(name)
        return self.snapshot.pods.on_node(name)

    def put_pod(self, pod: Pod, shape: PodShape) -> None:
        """Charge a pod to its node if it has one and has not ended; else release what it was charged. shape: of the
        pod.
        """
        if pod.spec.node_name and pod.status.phase not in _OVER:
            self.snapshot.charge(pod.metadata.uid, Charge(pod.spec.node_name, shape, pod.spec.priority or 0))
        else:
            self.snapshot.release(pod.metadata.uid)

    def assign_rows(self) -> bool:
        """Give every node a row, in the order of names. Return False if all have one already; else rows may have
        moved.
        """
        if self._has_all_rows:
            return False
        self.snapshot.set_row_order(sorted(self.by_name))
        self._has_all_rows, self._switches = True, None
        return True

    def row(self, node: str) -> int | None:
        """Return the row of a node by its name; UNKNOWN_NODE for an unknown node, None for the name "".

        A known node without a row raises KeyError: call assign_rows() before.
        """
        if not node:
            return None
        return self.snapshot.row_of[node] if node in self.by_name else UNKNOWN_NODE

    def gpus_by_state(self, gpus: Collection[str], fault_taint: str) -> Mapping[str, int]:
        """Return state -> GPUs of all nodes: used by pods, and the others by the state of their node.

        gpus: the resources that count as a GPU. fault_taint: the key of the taint of faulty nodes. GPUs that no pod
        uses are `faulty` on nodes with that taint, `unschedulable` on nodes that are cordoned or not ready, and `free`
        elsewhere.
        """
        counts = dict.fromkeys(("used", "free", "faulty", "unschedulable"), 0)
        column_of = self.snapshot.resources.column_of
        columns = [(name, column_of[name]) for name in gpus if name in column_of]
        remaining = self.snapshot.resources.free()
        for name, node in self.by_name.items():
            offered = sum(_offered(node, resource) for resource in gpus)
            row = self.snapshot.row_of.get(name)  # None until the next observation
            used = (
                0
                if row is None
                else sum(_offered(node, each) - int(remaining[row, column]) for each, column in columns)
            )
            used = min(max(used, 0), offered)
            counts["used"] += used
            if any(taint.key == fault_taint for taint in node.spec.taints or ()):
                counts["faulty"] += offered - used
            elif node.spec.unschedulable or name in self._unready:
                counts["unschedulable"] += offered - used
            else:
                counts["free"] += offered - used
        return counts

    def unready_share(self) -> float:
        """Return the share of nodes that are not ready, 0 to 1; 0 without nodes."""
        return len(self._unready) / max(1, len(self.by_name))

    def free_on(self, nodes: Collection[str]) -> Mapping[str, int]:
        """Return what is free on these nodes together, by resource. Unknown nodes and zeros are left out.

        An overcommitted resource of a node counts as 0.
        """
        rows = self._rows_of(nodes)
        sums = np.maximum(self.snapshot.resources.free()[rows], 0).sum(axis=0).tolist() if rows else []
        return {name: amount for name, amount in zip(self.snapshot.resources.column_of, sums, strict=False) if amount}

    def _rows_of(self, nodes: Collection[str]) -> list[int]:
        """Return the rows of the nodes that exist."""
        return [self.snapshot.row_of[node] for node in nodes if node in self.by_name]

    def room(self, shapes: Iterable[PodShape], reserved: Collection[str] = ()) -> Capacity:
        """Return the free room of the nodes for these shapes of pods. reserved: nodes that admit none of the shapes.

        The result is a copy: later changes of nodes do not change it.
        """
        shapes, resources = set(shapes), self.snapshot.resources
        for shape in shapes:
            resources.pod_amounts(shape)  # every resource gets its column first
        takes = {shape: resources.pod_amounts(shape) for shape in shapes}
        admits = {shape: self.snapshot.admission.rows(shape).copy() for shape in shapes}
        for admitted in admits.values():
            admitted[self._rows_of(reserved)] = False
        if self._switches is None:
            rows = sorted(self.snapshot.row_of, key=self.snapshot.row_of.__getitem__)
            self._switches = switches(self.fabric, (self.by_name.get(name) for name in rows))
        ports_held = self.snapshot.pods.port_holders({port for shape in shapes for port in shape.host_ports})
        names = tuple(resources.column_of)
        return Capacity(names, resources.free(), takes, admits, self._switches, ports_held)


def _add_offer(total: Counter[str], node: Node | None, sign: int) -> None:
    """Add what a node offers to `total`, by resource, or subtract it. node: None changes nothing. sign: 1 or -1.

    An amount that cannot be read counts as none.
    """
    for resource, text in ((node.status.allocatable or {}) if node is not None else {}).items():
        try:
            total[resource] += sign * amount(resource, text)
        except KubeError:
            continue  # an invalid amount counts as none


def shapes_of(states: Collection[JobState]) -> set[PodShape]:
    """Return every shape of pods that one of these jobs may request, other roles included."""
    shapes = {pool.shape for pool in {each.pool for each in states}}
    shapes.update(shape for each in states if each.job.other_roles for shape, _ in each.job.other_roles)
    return shapes


def _is_ready(node: Node) -> bool:
    """Return True if a node reports no Ready condition other than "True"."""
    return all(each.status == "True" for each in node.status.conditions or () if each.type == "Ready")


NOT_ON_MAP = -1  # the switch and the host of a node that is not on the map


def switches(fabric: Fabric, nodes: Iterable[Node | None]) -> tuple[NDArray[np.int32], ...]:
    """Return the switch of each node, int[nodes] for each tier from the leaves up; () without a map or nodes.

    nodes: by row, None for a deleted one. A node that is not on the map gets NOT_ON_MAP.
    """
    hosts = [NOT_ON_MAP if node is None else _host(fabric, node) for node in nodes]
    if not fabric.mapped_count or not hosts:
        return ()
    host_ids = np.array(hosts, dtype=np.intp)
    on_map = host_ids >= 0
    tiers = []
    for tier in range(1, fabric.tiers + 1):
        row = np.full(len(hosts), NOT_ON_MAP, dtype=np.int32)
        row[on_map] = fabric.switch_of[tier][host_ids[on_map]]
        tiers.append(row)
    return tuple(tiers)


def _host(fabric: Fabric, node: Node) -> int:
    """Return the host id of a node on the map, looked up by each InternalIP, then by its name.

    NOT_ON_MAP if the map has none of them.
    """
    for name in (*(a.address for a in node.status.addresses or () if a.type == "InternalIP"), node.metadata.name):
        host = fabric.id_of_host.get(name)
        if host is not None and fabric.mapped[host]:
            return host
    return NOT_ON_MAP


def _offered(node: Node, resource: str) -> int:
    """Return what a node offers of a resource; 0 if its quantity cannot be read."""
    text = (node.status.allocatable or {}).get(resource)
    try:
        return amount(resource, text) if text is not None else 0
    except KubeError:
        return 0
