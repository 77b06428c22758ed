"""The free room of every node in whole pods of each shape: allocatable resources less the pods charged to the node.

Rows have the order given to `set_row_order`, so that a fabric's tables have the same indices. The caller decides which
pods are charged (bound, nominated, assumed). A terminating pod stays charged until it is deleted; the caller releases a
finished one (Succeeded, Failed). `ResourceTable` has what the nodes offer and what the pods use of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnout.kube import labels
from turnout.kube.errors import BadQuantity
from turnout.kube.objects import Node
from turnout.kube.pod_shape import (
    SOFT_EFFECT,
    HostPort,
    PodShape,
    admission_view,
    admits,
    amount,
    is_equal_for_placement,
    label_keys,
)

Rows = NDArray[np.int32]  # a number of pods for each row
MAX_ROOM = 1_000_000  # pods: the room of a node for a pod without requests
# A free size is one number for all free resources of a node.
ACCELERATOR_SIZE = 1 << 14  # the part of one free accelerator: more than the parts of 16 other resources
_RESOURCE_SIZE = 1_000  # the part of another resource that is completely free, on the node that offers most of it
_MAX_SIZED_AMOUNT = 1 << 48  # an amount counts up to this bound, so that products stay below 64 bits


@dataclass(frozen=True, slots=True)
class Charge:
    """A pod that uses room on a node."""

    node: str  # the name of the node
    shape: PodShape  # the shape of the pod
    priority: int  # the priority of the pod; a pod of a higher priority may preempt it


class ResourceTable:
    """The amounts that nodes offer and that charged pods use, by row and resource.

    A resource gets a column when a pod requests it and some node offers it. Invented resource names cost nothing.
    nodes: by name. charges: by the uid of the pod. row_of: the row of each name of a node. The caller keeps these three
    current. column_of: the column of each known resource, in the order of the columns. allocatable, used: int64[rows,
    resources]; read only, and valid until the next change.
    """

    def __init__(self, nodes: Mapping[str, Node], charges: Mapping[str, Charge], row_of: Mapping[str, int]) -> None:
        """Start without columns. The class docstring explains the arguments."""
        self._nodes, self._charges, self._row_of = nodes, charges, row_of
        self.column_of: dict[str, int] = {}
        self.allocatable: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.used: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.offer_version = 0  # increases when a row or a column of `allocatable` changes
        self._offered: set[str] = set()  # resources that some node has offered

    def note_offer(self, node: Node) -> bool:
        """Note the resources that a node offers. Return True if no node has offered one of them before."""
        offered = offered_amounts(node)
        if self._offered.issuperset(offered):
            return False
        self._offered.update(offered)
        return True

    def add_columns(self, shape: PodShape) -> None:
        """Add a column for each requested resource that some node has offered and that has no column yet.

        If there is a new column, all tables are computed again, and earlier results are no longer valid.
        """
        new = [name for name, _ in shape.requests if name not in self.column_of and name in self._offered]
        if not new:
            return
        for name in new:
            self.column_of[name] = len(self.column_of)
        self.rebuild()

    def has_columns(self, shape: PodShape) -> bool:
        """Return True if each resource that this shape requests has a column. Call add_columns() first."""
        return all(name in self.column_of for name, _ in shape.requests)

    def rebuild(self) -> None:
        """Compute all tables from nodes and charges, after a new resource or another order of rows."""
        size = (len(self._row_of), len(self.column_of))
        self.allocatable = np.zeros(size, np.int64)
        self.used = np.zeros(size, np.int64)
        self.offer_version += 1
        for name, node in self._nodes.items():
            if (row := self._row_of.get(name)) is not None:
                self.set_offer(row, node)
        for charge in self._charges.values():
            if (row := self._row_of.get(charge.node)) is not None:
                self.change_use(row, charge.shape, 1)

    def set_offer(self, row: int, node: Node | None) -> None:
        """Set the allocatable amounts of a row. node: None for a deleted one, which offers nothing."""
        self.offer_version += 1
        offered = {} if node is None else offered_amounts(node)
        for resource, column in self.column_of.items():
            self.allocatable[row, column] = amount_or_zero(resource, offered)

    def change_use(self, row: int, shape: PodShape, sign: int) -> None:
        """Add a pod's requests to the use of a row, or subtract them. sign: +1 to add, -1 to subtract.

        A resource without a column is left out.
        """
        for resource, requested in shape.requests:
            if (column := self.column_of.get(resource)) is not None:
                self.used[row, column] += sign * requested

    def free(self) -> NDArray[np.int64]:
        """Return allocatable less used amounts: a new array, int64[rows, resources]. Negative where too much is
        charged.
        """
        free: NDArray[np.int64] = self.allocatable - self.used
        return free

    def free_at(self, row: int) -> NDArray[np.int64]:
        """Return the free amounts of one row, in the order of `column_of`: a new array, int64[resources].

        Negative where too much is charged.
        """
        free: NDArray[np.int64] = self.allocatable[row] - self.used[row]
        return free

    def fits_at(self, rows: NDArray[np.intp], shape: PodShape, additional_use: NDArray[np.int64]) -> Rows:
        """Return how many more pods of this shape the given rows hold by their free resources alone: int32[len(rows)].

        At most MAX_ROOM. Whether the node admits the shape, and host ports, are not checked. 0 if no node has offered a
        resource of the shape. additional_use: int64[len(rows), resources] in the order of `column_of`, subtracted from
        the free amounts first.
        """
        if not shape.requests:
            return np.full(len(rows), MAX_ROOM, np.int32)
        if not self.has_columns(shape):
            return np.zeros(len(rows), np.int32)
        columns = np.array([self.column_of[name] for name, _ in shape.requests])
        cells = np.ix_(rows, columns)
        remaining: NDArray[np.int64] = self.allocatable[cells] - self.used[cells] - additional_use[:, columns]
        fits: Rows = np.clip((remaining // [requested for _, requested in shape.requests]).min(axis=1), 0, MAX_ROOM)
        return fits.astype(np.int32)

    def pod_amounts(self, shape: PodShape) -> NDArray[np.int64]:
        """Return the amounts that one pod of this shape uses, in the order of `column_of`: int64[resources].

        First add a column for each resource that the shape requests and some node has ever offered. A new column makes
        tables and vectors of earlier calls invalid. A resource that no node has offered is left out: check the room of
        the shape to know whether the pod fits.
        """
        self.add_columns(shape)
        vector = np.zeros(len(self.column_of), np.int64)
        for name, requested in shape.requests:
            if (column := self.column_of.get(name)) is not None:
                vector[column] = requested
        return vector


class FreeSizes:
    """The free size of each row: one number for all its free resources, 0 or more, which sorts nodes.

    Each free accelerator adds ACCELERATOR_SIZE. Another resource adds at most _RESOURCE_SIZE, its share of the largest
    amount that a node offers; so up to 16 other resources together add less than one accelerator. gpu_resources: the
    resources that count as accelerators.
    """

    def __init__(self, table: ResourceTable, gpu_resources: tuple[str, ...]) -> None:
        """Read this table. The class docstring explains the arguments."""
        self._table, self._gpu_resources = table, gpu_resources
        self._offer_version = -1  # that of the table with which the two below were computed
        self._sizes: NDArray[np.int64] | None = None  # by row; None when it has to be computed again
        # By resource: factor and divisor of an amount; None when they have to be computed again.
        self._cached_weights: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def all(self) -> NDArray[np.int64]:
        """Return the free size of each row: int64[rows]. Read only; valid until the next change."""
        self._forget_old()
        if self._sizes is None:
            self._sizes = self._sizes_of(self._table.free())
        return self._sizes

    def at(self, rows: NDArray[np.intp], additional_use: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the free sizes of the given rows, after `additional_use` is subtracted: a new array, int64[len(rows)].

        additional_use: int64[len(rows), resources], in the order of the table's columns.
        """
        return self._sizes_of(self._table.allocatable[rows] - self._table.used[rows] - additional_use)

    def update_row(self, row: int) -> None:
        """Compute the free size of one row again, after its use has changed. Do nothing before the first `all()`.

        Plain integers are used, because they are faster than numpy on one row.
        """
        self._forget_old()
        if self._sizes is not None:
            weights = (each.tolist() for each in self._weights())
            terms = zip(self._table.free_at(row).tolist(), *weights, strict=True)
            self._sizes[row] = sum(
                min(max(free, 0), _MAX_SIZED_AMOUNT) * factor // divisor for free, factor, divisor in terms
            )

    def _sizes_of(self, free: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the free size of each row: int64[rows]. free: int64[rows, resources], may be negative."""
        factors, divisors = self._weights()
        sizes: NDArray[np.int64] = (free.clip(0, _MAX_SIZED_AMOUNT) * factors // divisors).sum(axis=1)
        return sizes

    def _weights(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (factors, divisors) by resource: a free amount adds amount * factor // divisor to the free size.

        Each is int64[resources]. The result is cached as long as the nodes offer the same.
        """
        self._forget_old()
        if self._cached_weights is None:
            names = self._table.column_of
            most_offered = self._table.allocatable.max(axis=0, initial=1)
            is_gpu = np.array([name in self._gpu_resources for name in names], np.bool_)
            counts = np.array([name != "pods" for name in names], np.bool_)
            factors = np.where(is_gpu, ACCELERATOR_SIZE, np.where(counts, _RESOURCE_SIZE, 0))
            self._cached_weights = factors, np.where(is_gpu, 1, most_offered)
        return self._cached_weights

    def _forget_old(self) -> None:
        """Forget sizes and weights if a node offers something else since they were computed."""
        if self._offer_version != self._table.offer_version:
            self._offer_version = self._table.offer_version
            self._sizes = self._cached_weights = None


def offered_amounts(node: Node) -> Mapping[str, str | int | float]:
    """Return the quantities that a node offers to pods, by resource; its capacity if it states no allocatable."""
    return node.status.allocatable or node.status.capacity or {}


def amount_or_zero(resource: str, offered: Mapping[str, str | int | float]) -> int:
    """Return the amount of a resource that a node offers, in the unit of pod_shape.amount.

    offered: quantities by resource. 0 if the resource is absent or its quantity cannot be read.
    """
    quantity = offered.get(resource)
    if quantity is None:
        return 0
    try:
        return amount(resource, quantity)
    except BadQuantity:
        return 0


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

        order: names of nodes. A name without a node has a row without room. A node whose name is missing in `order` has
        no row, and so no room, until the next call. All rows count as changed.
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
