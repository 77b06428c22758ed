"""Keeps the nodes: what is free on each, under which switch of the map it is, and the share that is not ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import UNKNOWN_NODE, JobState
from turnout.kube.errors import KubeError
from turnout.kube.node_capacity import Charge, ClusterSnapshot
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import PodShape, amount
from turnout.topology.fabric import EMPTY, Fabric

_OVER = ("Succeeded", "Failed")


class NodeCache:
    """The nodes of the cluster. total: what all nodes offer together, by resource."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._snapshot = ClusterSnapshot()
        self._laid_out = True  # does every node have a row?
        self._unready: set[str] = set()
        self._switches: tuple[NDArray[np.int32], ...] | None = None  # None until they are worked out anew
        self.total: Counter[str] = Counter()
        self._fabric: Fabric = EMPTY

    def use_map(self, fabric: Fabric) -> None:
        """Use this map of switches from the next observation on."""
        self._fabric, self._switches = fabric, None

    def put_node(self, node: Node) -> Collection[str]:
        """Store a node. Return the uids of the pods on it if the node is new."""
        name = node.metadata.name
        new = name not in self._nodes
        self._offer(self._nodes.get(name), -1)
        self._offer(node, 1)
        (self._unready.discard if _ready(node) else self._unready.add)(name)
        self._nodes[name] = node
        self._laid_out &= self._snapshot.put_node(node)
        if not new:
            return ()
        self._switches = None
        return self._snapshot.pods_on(name)

    def drop_node(self, name: str) -> Collection[str]:
        """Drop a deleted node; its row stays, without room. Return the uids of the pods on it."""
        self._offer(self._nodes.pop(name, None), -1)
        self._unready.discard(name)
        self._snapshot.drop_node(name)
        return self._snapshot.pods_on(name)

    def put_pod(self, pod: Pod, shape: PodShape) -> None:
        """Charge a pod that is on a node and not over; release any other."""
        if pod.spec.node_name and pod.status.phase not in _OVER:
            self._snapshot.charge(pod.metadata.uid, Charge(pod.spec.node_name, shape, pod.spec.priority or 0))
        else:
            self._snapshot.release(pod.metadata.uid)

    def drop_pod(self, uid: str) -> None:
        """Release a deleted pod."""
        self._snapshot.release(uid)

    def settle(self) -> bool:
        """Give every new node a row. True if rows have moved."""
        if self._laid_out:
            return False
        self._snapshot.set_row_order(sorted(self._nodes))
        self._laid_out, self._switches = True, None
        return True

    def row(self, node: str) -> int | None:
        """Return a node's row; UNKNOWN_NODE for an unknown node, None for no node."""
        if not node:
            return None
        return self._snapshot.row_of[node] if node in self._nodes else UNKNOWN_NODE

    def gpus_by_state(self, gpus: Collection[str], fault_taint: str) -> Mapping[str, int]:
        """Return the GPUs of all nodes: used by pods, and the others by the state of their node.

        gpus: the resources that count as a GPU. fault_taint: the key of the taint of faulty nodes. Others are free,
        faulty on nodes with that taint, and unschedulable on nodes that are cordoned or not ready.
        """
        counts = dict.fromkeys(("used", "free", "faulty", "unschedulable"), 0)
        columns = [(name, self._snapshot.columns.index(name)) for name in gpus if name in self._snapshot.columns]
        remaining = self._snapshot.free()
        for name, node in self._nodes.items():
            offered = sum(_offered(node, resource) for resource in gpus)
            row = self._snapshot.row_of.get(name)  # None until the next observation
            used = 0 if row is None else sum(_offered(node, each) - int(remaining[row, at]) for each, at in columns)
            used = min(max(used, 0), offered)
            counts["used"] += used
            if any(taint.key == fault_taint for taint in node.spec.taints or ()):
                counts["faulty"] += offered - used
            elif node.spec.unschedulable or name in self._unready:
                counts["unschedulable"] += offered - used
            else:
                counts["free"] += offered - used
        return counts

    def names(self) -> Sequence[str]:
        """Give the nodes' names, by row."""
        return self._snapshot.order

    def unready(self) -> float:
        """Return the share of nodes that are not ready, 0 to 1."""
        return len(self._unready) / max(1, len(self._nodes))

    def reserved(self, nodes: Collection[str]) -> Mapping[str, int]:
        """Return what is free on these nodes, by resource."""
        rows = self._rows_of(nodes)
        sums = np.maximum(self._snapshot.free()[rows], 0).sum(axis=0).tolist() if rows else []
        return {name: amount for name, amount in zip(self._snapshot.columns, sums, strict=False) if amount}

    def _rows_of(self, nodes: Collection[str]) -> list[int]:
        """Return the rows of the nodes that exist."""
        return [self._snapshot.row_of[node] for node in nodes if node in self._nodes]

    def room(self, shapes: Iterable[PodShape], reserved: Collection[str] = ()) -> Capacity:
        """Return what is free on the nodes, for these shapes. reserved: nodes that admit none of them."""
        shapes = set(shapes)
        for shape in shapes:
            self._snapshot.vector(shape)  # every resource gets its column first
        takes = {shape: self._snapshot.vector(shape) for shape in shapes}
        admits = {shape: self._snapshot.admitted(shape).copy() for shape in shapes}
        for marks in admits.values():
            marks[self._rows_of(reserved)] = False
        if self._switches is None:
            rows = sorted(self._snapshot.row_of, key=self._snapshot.row_of.__getitem__)
            self._switches = switches(self._fabric, (self._nodes.get(name) for name in rows))
        ports_held = self._snapshot.port_holders({port for shape in shapes for port in shape.host_ports})
        return Capacity(self._snapshot.columns, self._snapshot.free(), takes, admits, self._switches, ports_held)

    def _offer(self, node: Node | None, sign: int) -> None:
        """Count what a node offers in the cluster's total."""
        for what, text in ((node.status.allocatable or {}) if node is not None else {}).items():
            try:
                self.total[what] += sign * amount(what, text)
            except KubeError:
                continue  # an invalid amount counts as none


def shapes_of(states: Collection[JobState]) -> set[PodShape]:
    """Return every shape of pods that one of these jobs may request."""
    found = {pool.shape for pool in {each.pool for each in states}}
    found.update(shape for each in states if each.job.other_roles for shape, _ in each.job.other_roles)
    return found


def _ready(node: Node) -> bool:
    return all(each.status == "True" for each in node.status.conditions or () if each.type == "Ready")


NOWHERE = -1


def switches(fabric: Fabric, nodes: Iterable[Node | None]) -> tuple[NDArray[np.int32], ...]:
    """Return the switch of each node, one array for each tier from the leaves up;

    NOWHERE for a node that is not on the map.
    """
    hosts = [NOWHERE if node is None else _host(fabric, node) for node in nodes]
    if not fabric.mapped_count or not hosts:
        return ()
    at = np.array(hosts, dtype=np.intp)
    known = at >= 0
    found = []
    for tier in range(1, fabric.tiers + 1):
        row = np.full(len(hosts), NOWHERE, dtype=np.int32)
        row[known] = fabric.switch_of[tier][at[known]]
        found.append(row)
    return tuple(found)


def _host(fabric: Fabric, node: Node) -> int:
    """Return a node's place on the map, by its InternalIP or its name."""
    for name in (*(a.address for a in node.status.addresses or () if a.type == "InternalIP"), node.metadata.name):
        at = fabric.index.get(name)
        if at is not None and fabric.mapped[at]:
            return at
    return NOWHERE


def _offered(node: Node, resource: str) -> int:
    """Return what a node offers of a resource; 0 if its quantity cannot be read."""
    text = (node.status.allocatable or {}).get(resource)
    try:
        return amount(resource, text) if text is not None else 0
    except KubeError:
        return 0
