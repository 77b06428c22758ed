"""Counts what every node has left, for each pod shape in whole pods: allocatable less the pods charged to it.

Rows are in the order given to `lay_out`, so that a fabric's tables have the same indices. The caller decides which pods
are charged (bound, nominated, assumed). A terminating pod stays charged until it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnout.kube.errors import BadQuantity
from turnout.kube.objects import Node
from turnout.kube.pod_shape import SOFT_EFFECT, HostPort, PodShape, admits, amount, label_keys, look, same_offer

Rows = NDArray[np.int32]
MOST_ROOM = 1_000_000  # a pod that asks for nothing fits this often: a bound, not a measurement
KEPT_SHAPES = 64  # room tables kept ready at once
_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Charge:
    """A pod that takes room on a node. priority: of the pod, for who may preempt it."""

    node: str
    shape: PodShape
    priority: int


class ClusterSnapshot:
    """Free room of every node. One thread changes it, between requests and never within one.

    Resources are counted once a pod asks for one that a node offers: a name that pods make up costs nothing.
    """

    def __init__(self) -> None:
        self.order: tuple[str, ...] = ()
        self.row_of: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.charges: dict[str, Charge] = {}
        self.changed: set[int] = set()  # rows whose free room changed since the caller last cleared it
        self.gains = 0  # raised when room may have been given back anywhere
        self.offers = 0  # raised when a node changed in more than its heartbeat
        self.soft_tainted: set[str] = set()  # nodes that prefer no pods
        self._on_node: dict[str, set[str]] = {}
        self._port_uids: dict[HostPort, set[str]] = {}  # the pods that hold each host port somewhere
        self._columns: dict[str, int] = {}
        self._offered: set[str] = set()  # resources that some node has offered
        self._allocatable: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._used: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._rooms: dict[PodShape, Rows] = {}
        self._admitted: dict[PodShape, NDArray[np.bool_]] = {}

    # What is seen.

    def lay_out(self, order: Sequence[str]) -> None:
        """Give the rows a new order. Names without a node keep a row without room; every node needs a row."""
        self.order = tuple(order)
        self.row_of = {name: row for row, name in enumerate(self.order)}
        self.offers += 1
        self._refill()

    def put_node(self, node: Node) -> bool:
        """Take in a node as it is now. False when it has no row yet: lay out again before asking."""
        name = node.metadata.name
        old = self.nodes.get(name)
        self.nodes[name] = node
        offered = _offers(node)
        if not self._offered.issuperset(offered):
            self._offered.update(offered)
            self._rooms.clear()  # a shape that asks for it had no room anywhere
        if any(taint.effect == SOFT_EFFECT for taint in node.spec.taints or ()):
            self.soft_tainted.add(name)
        else:
            self.soft_tainted.discard(name)
        row = self.row_of.get(name)
        if row is None:
            return False
        if old is not None and same_offer(old, node):
            return True  # a heartbeat
        self.offers += 1
        self._fill_node(row, node)
        for shape, admitted in self._admitted.items():
            admitted[row] = admits(node, shape)
        self._touch(row)
        self.gains += 1
        return True

    def drop_node(self, name: str) -> None:
        """A node is gone: its row stays, without room."""
        self.nodes.pop(name, None)
        self.soft_tainted.discard(name)
        self.offers += 1
        row = self.row_of.get(name)
        if row is None:
            return
        self._allocatable[row] = 0
        for admitted in self._admitted.values():
            admitted[row] = False
        self._touch(row)

    def charge(self, uid: str, charge: Charge) -> None:
        """Let a pod take room, moving it when it was charged elsewhere."""
        if self.charges.get(uid) == charge:
            return
        self.release(uid)
        self._know(charge.shape)  # before the pod is written down, since a new resource counts everybody afresh
        self.charges[uid] = charge
        self._on_node.setdefault(charge.node, set()).add(uid)
        for port in charge.shape.host_ports:
            self._port_uids.setdefault(port, set()).add(uid)
        self._add(charge, 1)

    def release(self, uid: str) -> None:
        """A pod takes no room any more. Nothing happens when it took none."""
        charge = self.charges.pop(uid, None)
        if charge is None:
            return
        self._on_node[charge.node].discard(uid)
        for port in charge.shape.host_ports:
            self._port_uids[port].discard(uid)
            if not self._port_uids[port]:
                del self._port_uids[port]
        self._add(charge, -1)
        self.gains += 1

    # What can be asked.

    def pods_on(self, node: str) -> Set[str]:
        """The uids of the pods that are charged to a node, known or not. Read only; valid until the next change."""
        return self._on_node.get(node, _NOBODY)

    def room(self, shape: PodShape) -> Rows:
        """How many more pods of this shape each row holds: int32[rows]. Read only; valid until the next change."""
        ready = self._rooms.get(shape)
        if ready is None:
            while len(self._rooms) >= KEPT_SHAPES:
                del self._rooms[next(iter(self._rooms))]
            self._know(shape)
            ready = self._rooms[shape] = self._count(shape, self.free())
        return ready

    def fits_at(self, rows: NDArray[np.intp], shape: PodShape, gone: NDArray[np.int64]) -> Rows:
        """How many pods of this shape some rows' resources hold once `gone` (a vector a row) is taken as well."""
        if not shape.requests:
            return np.full(len(rows), MOST_ROOM, np.int32)
        if not self._counted(shape):
            return np.zeros(len(rows), np.int32)
        columns = np.array([self._columns[name] for name, _ in shape.requests])
        at = np.ix_(rows, columns)
        left: NDArray[np.int64] = self._allocatable[at] - self._used[at] - gone[:, columns]
        fits: Rows = np.clip((left // [wanted for _, wanted in shape.requests]).min(axis=1), 0, MOST_ROOM)
        return fits.astype(np.int32)

    def room_above(self, shape: PodShape, priority: int, besides: Sequence[tuple[int, PodShape]] = ()) -> Rows:
        """Room as if every pod of a lower priority were gone: what preemption could make. A table of its own.

        besides: (row, shape) of pods that take room as well. Host ports are counted as they are held now.
        """
        self._know(shape)
        free, vectors = self.free(), dict[PodShape, NDArray[np.int64]]()
        for charge in self.charges.values():
            row = self.row_of.get(charge.node)
            if charge.priority < priority and row is not None:
                if charge.shape not in vectors:
                    vectors[charge.shape] = self.vector(charge.shape)
                free[row] += vectors[charge.shape]
        for row, other in besides:
            free[row] -= self.vector(other)
        return self._count(shape, free)

    def capacity(self, shape: PodShape) -> Rows:
        """Room as if every node were empty: what the hardware could ever hold. A table of its own."""
        self._know(shape)
        return self._count(shape, self._allocatable)

    def room_at(self, row: int, shape: PodShape) -> int:
        """Room of one row: `room(shape)[row]`, without making the table."""
        self._know(shape)
        if not self.admitted(shape)[row] or not self._counted(shape):
            return 0
        free = self._allocatable[row] - self._used[row]
        fits = min((int(free[self._columns[name]]) // wanted for name, wanted in shape.requests), default=MOST_ROOM)
        return self._with_ports(row, shape, max(0, min(fits, MOST_ROOM)))

    def ports_held(self, ports: Collection[HostPort]) -> dict[int, Counter[HostPort]]:
        """Return by row how many pods hold each of these host ports there. Rows without any are left out."""
        held: dict[int, Counter[HostPort]] = {}
        for port in ports:
            for uid in self._port_uids.get(port, ()):
                if (row := self.row_of.get(self.charges[uid].node)) is not None:
                    held.setdefault(row, Counter())[port] += 1
        return held

    def free(self) -> NDArray[np.int64]:
        """Allocatable less used: int64[rows, resources]. Below 0 where more is charged than there is."""
        free: NDArray[np.int64] = self._allocatable - self._used
        return free

    def allocatable(self) -> NDArray[np.int64]:
        """Return what the nodes offer in all: int64[rows, resources]. Read only; valid until the next change."""
        return self._allocatable

    def free_at(self, row: int) -> NDArray[np.int64]:
        """One row of `free`."""
        free: NDArray[np.int64] = self._allocatable[row] - self._used[row]
        return free

    @property
    def columns(self) -> tuple[str, ...]:
        """The resources, in the order of a vector's columns."""
        return tuple(self._columns)

    @property
    def width(self) -> int:
        """How many resources are known: the length of a vector."""
        return len(self._columns)

    def vector(self, shape: PodShape) -> NDArray[np.int64]:
        """Return what one pod of this shape takes, in the order of the resources' columns."""
        self._know(shape)
        vector = np.zeros(len(self._columns), np.int64)
        for name, wanted in shape.requests:
            if (column := self._columns.get(name)) is not None:
                vector[column] = wanted
        return vector

    def admitted(self, shape: PodShape) -> NDArray[np.bool_]:
        """Which rows hold a node that would take this shape, room apart."""
        ready = self._admitted.get(key := _alike(shape))
        if ready is None:
            while len(self._admitted) >= KEPT_SHAPES:
                del self._admitted[next(iter(self._admitted))]
            ready = self._admitted[key] = self._admit_all(key)
        return ready

    # Inside.

    def _know(self, shape: PodShape) -> None:
        new = [name for name, _ in shape.requests if name not in self._columns and name in self._offered]
        if not new:
            return
        for name in new:
            self._columns[name] = len(self._columns)
        self._refill()

    def _counted(self, shape: PodShape) -> bool:
        """Tell whether some node has offered everything that this shape asks for."""
        return all(name in self._columns for name, _ in shape.requests)

    def _refill(self) -> None:
        size = (len(self.order), len(self._columns))
        self._allocatable = np.zeros(size, np.int64)
        self._used = np.zeros(size, np.int64)
        self._rooms.clear()
        self._admitted.clear()
        for name, node in self.nodes.items():
            if (row := self.row_of.get(name)) is not None:
                self._fill_node(row, node)
        for charge in self.charges.values():
            if (row := self.row_of.get(charge.node)) is not None:
                for resource, wanted in charge.shape.requests:
                    if (column := self._columns.get(resource)) is not None:
                        self._used[row, column] += wanted
        self.changed.update(range(len(self.order)))
        self.gains += 1

    def _fill_node(self, row: int, node: Node) -> None:
        offered = _offers(node)
        for resource, column in self._columns.items():
            self._allocatable[row, column] = amount_or_nothing(resource, offered)

    def _add(self, charge: Charge, sign: int) -> None:
        row = self.row_of.get(charge.node)
        if row is None:
            return
        for resource, wanted in charge.shape.requests:
            if (column := self._columns.get(resource)) is not None:
                self._used[row, column] += sign * wanted
        self._touch(row)

    def _touch(self, row: int) -> None:
        self.changed.add(row)
        for shape, room in self._rooms.items():
            room[row] = self.room_at(row, shape)

    def _count(self, shape: PodShape, free: NDArray[np.int64]) -> Rows:
        admitted = self.admitted(shape)
        if not shape.requests:
            return np.where(admitted, MOST_ROOM, 0).astype(np.int32)
        if not self._counted(shape):
            return np.zeros(len(self.order), np.int32)
        columns = [self._columns[name] for name, _ in shape.requests]
        fits = free[:, columns[0]] // shape.requests[0][1]
        for column, (_, wanted) in zip(columns[1:], shape.requests[1:], strict=True):
            np.minimum(fits, free[:, column] // wanted, out=fits)
        np.clip(fits, 0, MOST_ROOM, out=fits)
        room: Rows = np.where(admitted, fits, 0).astype(np.int32)
        if shape.host_ports:
            np.minimum(room, 1, out=room)
            room[list(self.ports_held(shape.host_ports))] = 0
        return room

    def _with_ports(self, row: int, shape: PodShape, fits: int) -> int:
        """A host port is had once a node, so at most one pod of such a shape, and none beside a rival."""
        if not shape.host_ports or not fits:
            return fits
        taken = {port for uid in self._on_node.get(self.order[row], ()) for port in self.charges[uid].shape.host_ports}
        return 0 if taken.intersection(shape.host_ports) else 1

    def _admit_all(self, shape: PodShape) -> NDArray[np.bool_]:
        """Nodes that look alike to this shape are judged once: 50,000 nodes have few looks."""
        keys = sorted({k for k, _ in shape.selector} | set(label_keys(shape)))
        by_name = shape.terms is not None and any(on_fields for _, on_fields in shape.terms)
        judged: dict[object, bool] = {}
        admitted = np.zeros(len(self.order), np.bool_)
        for name, node in self.nodes.items():
            row = self.row_of.get(name)
            if row is None:
                continue
            seen = look(node, keys, by_name)
            answer = judged.get(seen)
            if answer is None:
                answer = judged[seen] = admits(node, shape)
            admitted[row] = answer
        return admitted


def _offers(node: Node) -> Mapping[str, str | int | float]:
    return node.status.allocatable or node.status.capacity or {}


@lru_cache(maxsize=4_096)
def _alike(shape: PodShape) -> PodShape:
    """Drop what no node is admitted by: shapes that differ in what they ask for are admitted by the same nodes."""
    return replace(shape, requests=(), host_ports=())


def amount_or_nothing(resource: str, offered: Mapping[str, str | int | float]) -> int:
    """Return what a node offers of a resource; 0 when it offers none or the quantity cannot be read."""
    quantity = offered.get(resource)
    if quantity is None:
        return 0
    try:
        return amount(resource, quantity)
    except BadQuantity:
        return 0
