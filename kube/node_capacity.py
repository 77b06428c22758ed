"""The free room of every node in whole pods of each shape: allocatable resources less the pods charged to the node.

Rows have the order given to `set_row_order`, so that a fabric's tables have the same indices. The caller decides which
pods are charged (bound, nominated, assumed). A terminating pod stays charged until it is deleted; the caller releases a
finished one (Succeeded, Failed). `resource_table.py` has the amounts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnout.kube import labels
from turnout.kube.objects import Node
from turnout.kube.pod_shape import (
    SOFT_EFFECT,
    HostPort,
    PodShape,
    admission_view,
    admits,
    is_equal_for_placement,
    label_keys,
)
from turnout.kube.resource_table import MAX_ROOM, Charge, FreeSizes, ResourceTable, Rows

MAX_CACHED_SHAPES = 64  # room tables in the cache
_NO_UIDS: frozenset[str] = frozenset()


class ChargeIndex:
    """The uids of the charged pods by node and by host port.

    charges: by the uid of the pod. row_of: the row of each name of a node. The caller keeps both current.
    """

    def __init__(self, charges: Mapping[str, Charge], row_of: Mapping[str, int]) -> None:
        """Start without pods. The class docstring explains the arguments."""
        self._charges, self._row_of = charges, row_of
        self._uids_on_node: dict[str, set[str]] = {}
        self._port_uids: dict[HostPort, set[str]] = {}  # the pods that use each host port on any node

    def add(self, uid: str, charge: Charge) -> None:
        """Add a pod that was charged to a node. uid: of the pod."""
        self._uids_on_node.setdefault(charge.node, set()).add(uid)
        for port in charge.shape.host_ports:
            self._port_uids.setdefault(port, set()).add(uid)

    def remove(self, uid: str, charge: Charge) -> None:
        """Remove a pod that was added before, with the same charge. uid: of the pod."""
        self._uids_on_node[charge.node].discard(uid)
        for port in charge.shape.host_ports:
            self._port_uids[port].discard(uid)
            if not self._port_uids[port]:
                del self._port_uids[port]

    def on_node(self, node: str) -> Set[str]:
        """Return the uids of the pods that are charged to a node. Read only; valid until the next change."""
        return self._uids_on_node.get(node, _NO_UIDS)

    def ports_on(self, node: str) -> set[HostPort]:
        """Return the host ports that pods use on a node."""
        return {port for uid in self.on_node(node) for port in self._charges[uid].shape.host_ports}

    def port_holders(self, ports: Collection[HostPort]) -> dict[int, Counter[HostPort]]:
        """Return how many pods use each of these host ports, by row and port.

        Rows and ports without such pods are left out.
        """
        holders: dict[int, Counter[HostPort]] = {}
        for port in ports:
            for uid in self._port_uids.get(port, ()):
                if (row := self._row_of.get(self._charges[uid].node)) is not None:
                    holders.setdefault(row, Counter())[port] += 1
        return holders


class AdmissionTable:
    """The rows whose node admits each shape, without regard to free room.

    nodes: by name. row_of: the row of each name of a node. The caller keeps both current.
    """

    def __init__(self, nodes: Mapping[str, Node], row_of: Mapping[str, int]) -> None:
        """Start with an empty cache. The class docstring explains the arguments."""
        self._nodes, self._row_of = nodes, row_of
        self._admitted: dict[PodShape, NDArray[np.bool_]] = {}

    def rows(self, shape: PodShape) -> NDArray[np.bool_]:
        """Return which rows have a node that admits this shape, without regard to its free room: bool[rows].

        The result is cached, read only, and valid until the next change.
        """
        cached = self._admitted.get(key := _admission_shape(shape))
        if cached is None:
            while len(self._admitted) >= MAX_CACHED_SHAPES:
                del self._admitted[next(iter(self._admitted))]
            cached = self._admitted[key] = self._find_admitting_rows(key)
        return cached

    def set_node(self, row: int, node: Node | None) -> None:
        """Compute one row of all cached tables again. node: None for a deleted one, which admits nothing."""
        for shape, admitted in self._admitted.items():
            admitted[row] = node is not None and admits(node, shape)

    def clear(self) -> None:
        """Forget all tables, because the rows have another order."""
        self._admitted.clear()

    def _find_admitting_rows(self, shape: PodShape) -> NDArray[np.bool_]:
        """Return which rows have a node that admits the shape: bool[rows].

        Nodes with equal views are checked once, for speed.
        """
        keys = sorted({k for k, _ in shape.selector} | set(label_keys(shape)))
        by_name = shape.terms is not None and any(on_fields for _, on_fields in shape.terms)
        admitted_by_view: dict[object, bool] = {}
        admitted = np.zeros(len(self._row_of), np.bool_)
        for name, node in self._nodes.items():
            row = self._row_of.get(name)
            if row is None:
                continue
            view = admission_view(node, keys, by_name)
            answer = admitted_by_view.get(view)
            if answer is None:
                answer = admitted_by_view[view] = admits(node, shape)
            admitted[row] = answer
        return admitted


class ClusterSnapshot:
    """The free room of every node. One thread changes it, between requests and never during one.

    resources: the amounts that nodes offer and that pods use. sizes: the free size of each row. admission: the rows
    whose node admits a shape. pods: the charged pods by node and host port.
    """

    def __init__(self, gpu_resources: tuple[str, ...] = labels.GPU_RESOURCES) -> None:
        """Start without nodes. gpu_resources: the resources that count as accelerators in free sizes."""
        self.order: tuple[str, ...] = ()  # the names of the nodes by row
        self.row_of: dict[str, int] = {}  # the row of each name in `order`
        self.nodes: dict[str, Node] = {}  # by name
        self.charges: dict[str, Charge] = {}  # by the uid of the pod
        self.changed_rows: set[int] = set()  # rows whose free room changed since the caller cleared this set
        self.gain_version = 0  # increases when room may have become free anywhere
        self.offer_version = 0  # increases when a node changes in more than its heartbeat
        self.soft_tainted: set[str] = set()  # nodes with a PreferNoSchedule taint
        self.resources = ResourceTable(self.nodes, self.charges, self.row_of)
        self.sizes = FreeSizes(self.resources, gpu_resources)
        self.admission = AdmissionTable(self.nodes, self.row_of)
        self.pods = ChargeIndex(self.charges, self.row_of)
        self._rooms: dict[PodShape, Rows] = {}

    def set_row_order(self, order: Sequence[str]) -> None:
        """Set the order of the rows, and compute all tables again.

        order: names of nodes. A name without a node has a row without room; every node needs a row. All rows count as
        changed.
        """
        self.order = tuple(order)
        self.row_of.clear()
        self.row_of.update((name, row) for row, name in enumerate(self.order))
        self.offer_version += 1
        self.resources.rebuild()
        self.admission.clear()
        self._rooms.clear()
        self.changed_rows.update(range(len(self.order)))
        self.gain_version += 1

    def put_node(self, node: Node) -> bool:
        """Add or update a node. Return True if it has a row; a mere heartbeat changes no table.

        Return False if the last set_row_order() did not have its name: then call it again, with the name.
        """
        name = node.metadata.name
        old = self.nodes.get(name)
        self.nodes[name] = node
        if self.resources.note_offer(node):
            self._rooms.clear()  # a shape that requests the new resource had no room before
        if any(taint.effect == SOFT_EFFECT for taint in node.spec.taints or ()):
            self.soft_tainted.add(name)
        else:
            self.soft_tainted.discard(name)
        row = self.row_of.get(name)
        if row is None:
            return False
        if old is not None and is_equal_for_placement(old, node):
            return True  # a heartbeat
        self.offer_version += 1
        self.resources.set_offer(row, node)
        self.admission.set_node(row, node)
        self._update_rooms(row)
        self.gain_version += 1
        return True

    def drop_node(self, name: str) -> None:
        """Remove a node. Its row stays, without room, and the pods that are charged to it stay charged."""
        self.nodes.pop(name, None)
        self.soft_tainted.discard(name)
        self.offer_version += 1
        row = self.row_of.get(name)
        if row is None:
            return
        self.resources.set_offer(row, None)
        self.admission.set_node(row, None)
        self._update_rooms(row)

    def charge(self, uid: str, charge: Charge) -> None:
        """Charge a pod to a node, and release it from the node to which it was charged before. The node may be unknown.

        uid: of the pod. An equal charge changes nothing.
        """
        if self.charges.get(uid) == charge:
            return
        self.release(uid)
        self.resources.add_columns(charge.shape)  # before the pod is added, because a new column counts all pods again
        self.charges[uid] = charge
        self.pods.add(uid, charge)
        if (row := self.row_of.get(charge.node)) is not None:
            self.resources.change_use(row, charge.shape, 1)
            self._update_rooms(row)

    def release(self, uid: str) -> None:
        """Release the room of the pod with this uid. Do nothing if no node is charged for the pod."""
        charge = self.charges.pop(uid, None)
        if charge is None:
            return
        self.pods.remove(uid, charge)
        if (row := self.row_of.get(charge.node)) is not None:
            self.resources.change_use(row, charge.shape, -1)
            self._update_rooms(row)
        self.gain_version += 1

    def room(self, shape: PodShape) -> Rows:
        """Return how many more pods of this shape each row has room for: int32[rows], at most MAX_ROOM.

        0 for rows whose node does not admit the shape. The result is cached, read only, and valid until the next
        change. A resource that the shape requests and some node offers becomes a column, if it is none yet.
        """
        cached = self._rooms.get(shape)
        if cached is None:
            while len(self._rooms) >= MAX_CACHED_SHAPES:
                del self._rooms[next(iter(self._rooms))]
            self.resources.add_columns(shape)
            cached = self._rooms[shape] = self._count_room(shape, self.resources.free())
        return cached

    def room_after_preemption(
        self, shape: PodShape, priority: int, other_pods: Sequence[tuple[int, PodShape]] = ()
    ) -> Rows:
        """Return the room for a shape as if every pod of a lower priority were deleted, as preemption could do.

        shape, priority: of the pod that would preempt. other_pods: (row, shape) of pods that are not charged and use
        room in addition. Host ports stay in use. The result is a new array, int32[rows], at most MAX_ROOM, 0 where the
        node does not admit the shape.
        """
        lower_rows: dict[PodShape, list[int]] = {}  # the row of each pod of a lower priority, by shape
        for charge in self.charges.values():
            row = self.row_of.get(charge.node)
            if charge.priority < priority and row is not None:
                lower_rows.setdefault(charge.shape, []).append(row)
        for each in (shape, *lower_rows, *(other for _, other in other_pods)):
            self.resources.add_columns(each)  # before free(), because a new column makes the table wider
        free = self.resources.free()
        for lower_shape, rows in lower_rows.items():
            np.add.at(free, rows, self.resources.pod_amounts(lower_shape))
        for row, other_shape in other_pods:
            free[row] -= self.resources.pod_amounts(other_shape)
        return self._count_room(shape, free)

    def room_when_empty(self, shape: PodShape) -> Rows:
        """Return the room for a shape as if every node were empty: a new array, int32[rows], at most MAX_ROOM.

        0 where the node does not admit the shape. Host ports stay in use.
        """
        self.resources.add_columns(shape)
        return self._count_room(shape, self.resources.allocatable)

    def room_at(self, row: int, shape: PodShape) -> int:
        """Return how many more pods of this shape one row has room for, without computing the whole table.

        At most MAX_ROOM. row: as in `row_of`. 0 if its node does not admit the shape. A new resource of the shape
        becomes a column.
        """
        self.resources.add_columns(shape)
        if not self.admission.rows(shape)[row] or not self.resources.has_columns(shape):
            return 0
        free = self.resources.free_at(row)
        fits = min(
            (int(free[self.resources.column_of[name]]) // requested for name, requested in shape.requests),
            default=MAX_ROOM,
        )
        fits = max(0, min(fits, MAX_ROOM))
        if not shape.host_ports or not fits:
            return fits
        return 0 if self.pods.ports_on(self.order[row]).intersection(shape.host_ports) else 1

    def _count_room(self, shape: PodShape, free: NDArray[np.int64]) -> Rows:
        """Return how many pods of a shape each row holds: int32[rows], 0 where the node does not admit the shape.

        free: int64[rows, resources], in the units of pod_shape.amount.
        """
        admitted = self.admission.rows(shape)
        if not shape.requests:
            return np.where(admitted, MAX_ROOM, 0).astype(np.int32)
        if not self.resources.has_columns(shape):
            return np.zeros(len(self.order), np.int32)
        columns = [self.resources.column_of[name] for name, _ in shape.requests]
        fits = free[:, columns[0]] // shape.requests[0][1]
        for column, (_, requested) in zip(columns[1:], shape.requests[1:], strict=True):
            np.minimum(fits, free[:, column] // requested, out=fits)
        np.clip(fits, 0, MAX_ROOM, out=fits)
        room: Rows = np.where(admitted, fits, 0).astype(np.int32)
        if shape.host_ports:
            np.minimum(room, 1, out=room)
            room[list(self.pods.port_holders(shape.host_ports))] = 0
        return room

    def _update_rooms(self, row: int) -> None:
        """Compute one row of all cached tables again, and add it to `changed_rows`."""
        self.changed_rows.add(row)
        self.sizes.update_row(row)
        for shape, room in self._rooms.items():
            room[row] = self.room_at(row, shape)


@lru_cache(maxsize=4_096)
def _admission_shape(shape: PodShape) -> PodShape:
    """Return the shape without requests and host ports, which do not matter for admission."""
    return replace(shape, requests=(), host_ports=())
