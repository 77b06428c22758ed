"""What the nodes offer and what pods use of it: tables of amounts by row and resource, and one free size for each row.

Rows have the order of `ClusterSnapshot.set_row_order`; `node_capacity.py` counts pods of a shape on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.kube.errors import BadQuantity
from turnout.kube.objects import Node
from turnout.kube.pod_shape import PodShape, amount

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
