"""The free room of every node in whole pods of each shape: allocatable resources less the pods charged to the node.

Rows have the order given to `set_row_order`, so that a fabric's tables have the same indices. The caller decides which
pods are charged (bound, nominated, assumed). A terminating pod stays charged until it is deleted; the caller releases a
finished one (Succeeded, Failed).
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
ACCELERATOR_SIZE = 1 << 14  # the part of one free accelerator: more than the parts of all other resources together
_RESOURCE_SIZE = 1_000  # the part of another resource that is completely free, on the node that offers most of it
_MAX_SIZED_AMOUNT = 1 << 48  # an amount counts up to this bound, so that products stay below 64 bits
MAX_CACHED_SHAPES = 64  # room tables in the cache
_NO_UIDS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Charge:
    """A pod that uses room on a node."""

    node: str  # the name of the node
    shape: PodShape  # the shape of the pod
    priority: int  # the priority of the pod; a pod of a higher priority may preempt it


class ClusterSnapshot:
    """The free room of every node. One thread changes it, between requests and never during one.

    A resource gets a column when a pod requests it and some node offers it. Invented resource names cost nothing.
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
        self._uids_on_node: dict[str, set[str]] = {}
        self._port_uids: dict[HostPort, set[str]] = {}  # the pods that use each host port on any node
        self._column_of: dict[str, int] = {}
        self._offered: set[str] = set()  # resources that some node has offered
        self._allocatable: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._used: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._rooms: dict[PodShape, Rows] = {}
        self._admitted: dict[PodShape, NDArray[np.bool_]] = {}
        self._gpu_resources = gpu_resources
        # by resource: factor and divisor of an amount in a free size; None when they have to be computed again
        self._cached_size_weights: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._free_sizes: NDArray[np.int64] | None = None  # by row; None when it has to be computed again

    # Changes.

    def set_row_order(self, order: Sequence[str]) -> None:
        """Set the order of the rows, and compute all tables again.

        order: names of nodes. A name without a node has a row without room; every node needs a row. All rows count as
        changed.
        """
        self.order = tuple(order)
        self.row_of = {name: row for row, name in enumerate(self.order)}
        self.offer_version += 1
        self._rebuild()
        self.changed_rows.update(range(len(self.order)))
        self.gain_version += 1

    def put_node(self, node: Node) -> bool:
        """Add or update a node. Return True if it has a row; a mere heartbeat changes no table.

        Return False if the last set_row_order() did not have its name: then call it again, with the name.
        """
        name = node.metadata.name
        old = self.nodes.get(name)
        self.nodes[name] = node
        offered = _offered_amounts(node)
        if not self._offered.issuperset(offered):
            self._offered.update(offered)
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
        self._fill_node(row, node)
        for shape, admitted in self._admitted.items():
            admitted[row] = admits(node, shape)
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
        self._allocatable[row] = 0
        self._forget_sizes()
        for admitted in self._admitted.values():
            admitted[row] = False
        self._update_rooms(row)

    def charge(self, uid: str, charge: Charge) -> None:
        """Charge a pod to a node, and release it from the node to which it was charged before. The node may be unknown.

        uid: of the pod. An equal charge changes nothing.
        """
        if self.charges.get(uid) == charge:
            return
        self.release(uid)
        self._add_columns(charge.shape)  # before the pod is added, because a new column counts all pods again
        self.charges[uid] = charge
        self._uids_on_node.setdefault(charge.node, set()).add(uid)
        for port in charge.shape.host_ports:
            self._port_uids.setdefault(port, set()).add(uid)
        self._change_use(charge, 1)

    def release(self, uid: str) -> None:
        """Release the room of the pod with this uid. Do nothing if no node is charged for the pod."""
        charge = self.charges.pop(uid, None)
        if charge is None:
            return
        self._uids_on_node[charge.node].discard(uid)
        for port in charge.shape.host_ports:
            self._port_uids[port].discard(uid)
            if not self._port_uids[port]:
                del self._port_uids[port]
        self._change_use(charge, -1)
        self.gain_version += 1

    # Queries.

    def pods_on(self, node: str) -> Set[str]:
        """Return the uids of the pods that are charged to a node. Read only; valid until the next change."""
        return self._uids_on_node.get(node, _NO_UIDS)

    def room(self, shape: PodShape) -> Rows:
        """Return how many more pods of this shape each row has room for: int32[rows], at most MAX_ROOM.

        0 for rows whose node does not admit the shape. The result is cached, read only, and valid until the next
        change. A resource that the shape requests and some node offers becomes a column, if it is none yet.
        """
        cached = self._rooms.get(shape)
        if cached is None:
            while len(self._rooms) >= MAX_CACHED_SHAPES:
                del self._rooms[next(iter(self._rooms))]
            self._add_columns(shape)
            cached = self._rooms[shape] = self._count_room(shape, self.free())
        return cached

    def fits_at(self, rows: NDArray[np.intp], shape: PodShape, additional_use: NDArray[np.int64]) -> Rows:
        """Return how many more pods of this shape the given rows hold by their free resources alone: int32[len(rows)].

        At most MAX_ROOM. Whether the node admits the shape, and host ports, are not checked. 0 if no node has offered a
        resource of the shape. rows: numbers of rows, as in `row_of`. additional_use: int64[len(rows), resources] in the
        order of `columns`, subtracted from the free amounts first.
        """
        if not shape.requests:
            return np.full(len(rows), MAX_ROOM, np.int32)
        if not self._has_columns(shape):
            return np.zeros(len(rows), np.int32)
        columns = np.array([self._column_of[name] for name, _ in shape.requests])
        cells = np.ix_(rows, columns)
        remaining: NDArray[np.int64] = self._allocatable[cells] - self._used[cells] - additional_use[:, columns]
        fits: Rows = np.clip((remaining // [requested for _, requested in shape.requests]).min(axis=1), 0, MAX_ROOM)
        return fits.astype(np.int32)

    def room_after_preemption(
        self, shape: PodShape, priority: int, other_pods: Sequence[tuple[int, PodShape]] = ()
    ) -> Rows:
        """Return the room for a shape as if every pod of a lower priority were deleted, as preemption could do.

        shape, priority: of the pod that would preempt. other_pods: (row, shape) of pods that are not charged and use
        room in addition. Host ports stay in use. The result is a new array, int32[rows], at most MAX_ROOM, 0 where the
        node does not admit the shape.
        """
        self._add_columns(shape)
        free, vectors = self.free(), dict[PodShape, NDArray[np.int64]]()
        for charge in self.charges.values():
            row = self.row_of.get(charge.node)
            if charge.priority < priority and row is not None:
                if charge.shape not in vectors:
                    vectors[charge.shape] = self.pod_amounts(charge.shape)
                free[row] += vectors[charge.shape]
        for row, other_shape in other_pods:
            free[row] -= self.pod_amounts(other_shape)
        return self._count_room(shape, free)

    def room_when_empty(self, shape: PodShape) -> Rows:
        """Return the room for a shape as if every node were empty: a new array, int32[rows], at most MAX_ROOM.

        0 where the node does not admit the shape. Host ports stay in use.
        """
        self._add_columns(shape)
        return self._count_room(shape, self._allocatable)

    def room_at(self, row: int, shape: PodShape) -> int:
        """Return how many more pods of this shape one row has room for, without computing the whole table.

        At most MAX_ROOM. row: as in `row_of`. 0 if its node does not admit the shape. A new resource of the shape
        becomes a column.
        """
        self._add_columns(shape)
        if not self.admitted(shape)[row] or not self._has_columns(shape):
            return 0
        free = self._allocatable[row] - self._used[row]
        fits = min(
            (int(free[self._column_of[name]]) // requested for name, requested in shape.requests), default=MAX_ROOM
        )
        return self._limit_by_ports(row, shape, max(0, min(fits, MAX_ROOM)))

    def port_holders(self, ports: Collection[HostPort]) -> dict[int, Counter[HostPort]]:
        """Return how many pods use each of these host ports, by row and port.

        Rows and ports without such pods are left out.
        """
        holders: dict[int, Counter[HostPort]] = {}
        for port in ports:
            for uid in self._port_uids.get(port, ()):
                if (row := self.row_of.get(self.charges[uid].node)) is not None:
                    holders.setdefault(row, Counter())[port] += 1
        return holders

    def free(self) -> NDArray[np.int64]:
        """Return allocatable less used amounts: a new array, int64[rows, resources]. Negative where too much is
        charged.
        """
        free: NDArray[np.int64] = self._allocatable - self._used
        return free

    def allocatable(self) -> NDArray[np.int64]:
        """Return the amounts that the nodes offer: int64[rows, resources]. Read only; valid until the next change."""
        return self._allocatable

    def free_sizes(self) -> NDArray[np.int64]:
        """Return the free size of each row: int64[rows], 0 or more. Read only; valid until the next change.

        A free size is one number for all free resources, which sorts nodes. Each free accelerator adds
        ACCELERATOR_SIZE. All other resources together add less, each by its share of the largest amount that a node
        offers.
        """
        if self._free_sizes is None:
            self._free_sizes = self._sizes(self.free())
        return self._free_sizes

    def free_sizes_at(self, rows: NDArray[np.intp], additional_use: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the free sizes (see free_sizes()) of the given rows, after `additional_use` is subtracted: a new
        array, int64[len(rows)].

        additional_use: int64[len(rows), resources], in the order of `columns`.
        """
        return self._sizes(self._allocatable[rows] - self._used[rows] - additional_use)

    def free_at(self, row: int) -> NDArray[np.int64]:
        """Return the free amounts of one row, in the order of `columns`: a new array, int64[resources].

        Negative where too much is charged.
        """
        free: NDArray[np.int64] = self._allocatable[row] - self._used[row]
        return free

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the known resources, in the order of the columns of all tables."""
        return tuple(self._column_of)

    @property
    def column_count(self) -> int:
        """Return the number of known resources: the columns of all tables, and the length of pod_amounts()."""
        return len(self._column_of)

    def pod_amounts(self, shape: PodShape) -> NDArray[np.int64]:
        """Return the amounts that one pod of this shape uses, in the order of `columns`: int64[resources].

        Resources that the shape requests and some node offers become columns first. A new column makes tables and
        vectors of earlier calls invalid. A resource that no node offers is left out, so check with room() that the pod
        fits.
        """
        self._add_columns(shape)
        vector = np.zeros(len(self._column_of), np.int64)
        for name, requested in shape.requests:
            if (column := self._column_of.get(name)) is not None:
                vector[column] = requested
        return vector

    def admitted(self, shape: PodShape) -> NDArray[np.bool_]:
        """Return which rows have a node that admits this shape, without regard to its free room: bool[rows].

        The result is cached, read only, and valid until the next change.
        """
        cached = self._admitted.get(key := _admission_shape(shape))
        if cached is None:
            while len(self._admitted) >= MAX_CACHED_SHAPES:
                del self._admitted[next(iter(self._admitted))]
            cached = self._admitted[key] = self._find_admitting_rows(key)
        return cached

    # Internal tables.

    def _add_columns(self, shape: PodShape) -> None:
        """Add the resources that a shape requests and some node has offered as columns of all tables.

        If there is a new column, all tables are computed again, and earlier results are no longer valid.
        """
        new = [name for name, _ in shape.requests if name not in self._column_of and name in self._offered]
        if not new:
            return
        for name in new:
            self._column_of[name] = len(self._column_of)
        self._rebuild()

    def _sizes(self, free: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the free size of each row: int64[rows]. free: int64[rows, resources], may be negative."""
        factors, divisors = self._size_weights()
        sizes: NDArray[np.int64] = (free.clip(0, _MAX_SIZED_AMOUNT) * factors // divisors).sum(axis=1)
        return sizes

    def _size_of(self, row: int) -> int:
        """Return the free size of one row, much faster than a table of one row."""
        terms = zip(self.free_at(row).tolist(), *(weights.tolist() for weights in self._size_weights()), strict=True)
        return sum(min(max(free, 0), _MAX_SIZED_AMOUNT) * factor // divisor for free, factor, divisor in terms)

    def _size_weights(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (factors, divisors) by resource: a free amount adds amount * factor // divisor to the free size.

        Each is int64[resources]. The result is cached until _forget_sizes().
        """
        if self._cached_size_weights is None:
            most_offered = self._allocatable.max(axis=0, initial=1)
            is_gpu = np.array([name in self._gpu_resources for name in self._column_of], np.bool_)
            counts = np.array([name != "pods" for name in self._column_of], np.bool_)
            factors = np.where(is_gpu, ACCELERATOR_SIZE, np.where(counts, _RESOURCE_SIZE, 0))
            self._cached_size_weights = factors, np.where(is_gpu, 1, most_offered)
        return self._cached_size_weights

    def _forget_sizes(self) -> None:
        """Forget the free sizes, because a node offers something else."""
        self._cached_size_weights = self._free_sizes = None

    def _has_columns(self, shape: PodShape) -> bool:
        """Return True if some node has offered every resource that this shape requests."""
        return all(name in self._column_of for name, _ in shape.requests)

    def _rebuild(self) -> None:
        """Compute all tables from nodes and charges, after a new resource or another order of rows.

        A new resource changes no room: a shape that requests it had none on any row.
        """
        size = (len(self.order), len(self._column_of))
        self._forget_sizes()
        self._allocatable = np.zeros(size, np.int64)
        self._used = np.zeros(size, np.int64)
        self._rooms.clear()
        self._admitted.clear()
        for name, node in self.nodes.items():
            if (row := self.row_of.get(name)) is not None:
                self._fill_node(row, node)
        for charge in self.charges.values():
            if (row := self.row_of.get(charge.node)) is not None:
                for resource, requested in charge.shape.requests:
                    if (column := self._column_of.get(resource)) is not None:
                        self._used[row, column] += requested

    def _fill_node(self, row: int, node: Node) -> None:
        """Set the allocatable amounts of a node's row."""
        self._forget_sizes()
        offered = _offered_amounts(node)
        for resource, column in self._column_of.items():
            self._allocatable[row, column] = amount_or_zero(resource, offered)

    def _change_use(self, charge: Charge, sign: int) -> None:
        """Add a pod's requests to the use of its node, or subtract them, and update the tables.

        sign: +1 to add, -1 to subtract. A pod on a node without a row changes nothing. A resource without a column is
        left out.
        """
        row = self.row_of.get(charge.node)
        if row is None:
            return
        for resource, requested in charge.shape.requests:
            if (column := self._column_of.get(resource)) is not None:
                self._used[row, column] += sign * requested
        self._update_rooms(row)

    def _update_rooms(self, row: int) -> None:
        """Compute one row of all cached tables again, and add it to `changed_rows`."""
        self.changed_rows.add(row)
        if self._free_sizes is not None:
            self._free_sizes[row] = self._size_of(row)
        for shape, room in self._rooms.items():
            room[row] = self.room_at(row, shape)

    def _count_room(self, shape: PodShape, free: NDArray[np.int64]) -> Rows:
        """Return how many pods of a shape each row holds: int32[rows], 0 where the node does not admit the shape.

        free: int64[rows, resources], in the units of pod_shape.amount.
        """
        admitted = self.admitted(shape)
        if not shape.requests:
            return np.where(admitted, MAX_ROOM, 0).astype(np.int32)
        if not self._has_columns(shape):
            return np.zeros(len(self.order), np.int32)
        columns = [self._column_of[name] for name, _ in shape.requests]
        fits = free[:, columns[0]] // shape.requests[0][1]
        for column, (_, requested) in zip(columns[1:], shape.requests[1:], strict=True):
            np.minimum(fits, free[:, column] // requested, out=fits)
        np.clip(fits, 0, MAX_ROOM, out=fits)
        room: Rows = np.where(admitted, fits, 0).astype(np.int32)
        if shape.host_ports:
            np.minimum(room, 1, out=room)
            room[list(self.port_holders(shape.host_ports))] = 0
        return room

    def _limit_by_ports(self, row: int, shape: PodShape, fits: int) -> int:
        """Return `fits` limited by host ports: 1 at most for a shape with host ports, 0 if one of them is in use on the
        row.

        fits: pods that the row holds by its resources.
        """
        if not shape.host_ports or not fits:
            return fits
        used_ports = {
            port for uid in self._uids_on_node.get(self.order[row], ()) for port in self.charges[uid].shape.host_ports
        }
        return 0 if used_ports.intersection(shape.host_ports) else 1

    def _find_admitting_rows(self, shape: PodShape) -> NDArray[np.bool_]:
        """Return which rows have a node that admits the shape: bool[rows].

        Nodes with equal views are checked once, for speed.
        """
        keys = sorted({k for k, _ in shape.selector} | set(label_keys(shape)))
        by_name = shape.terms is not None and any(on_fields for _, on_fields in shape.terms)
        admitted_by_view: dict[object, bool] = {}
        admitted = np.zeros(len(self.order), np.bool_)
        for name, node in self.nodes.items():
            row = self.row_of.get(name)
            if row is None:
                continue
            view = admission_view(node, keys, by_name)
            answer = admitted_by_view.get(view)
            if answer is None:
                answer = admitted_by_view[view] = admits(node, shape)
            admitted[row] = answer
        return admitted


def _offered_amounts(node: Node) -> Mapping[str, str | int | float]:
    """Return the quantities that a node offers to pods, by resource; its capacity if it states no allocatable."""
    return node.status.allocatable or node.status.capacity or {}


@lru_cache(maxsize=4_096)
def _admission_shape(shape: PodShape) -> PodShape:
    """Return the shape without requests and host ports, which do not matter for admission."""
    return replace(shape, requests=(), host_ports=())


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
