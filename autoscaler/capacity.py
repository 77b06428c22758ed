"""The free room of nodes: what a pod requests, how many pods of a shape fit, and under which switch.

A Capacity is charged and given back during one decision, on a copy, so that the observation does not change. The pods
of a shape that fit are counted once for all nodes, and later only for nodes that changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from turnout.kube.pod_shape import HostPort, PodShape

Rows = NDArray[np.int64]
Charges = list[tuple[int, int]]  # (row of a node, pods charged to it)
_NO_BOUND = 1 << 40  # pods that fit where a shape requests nothing
_NO_PORTS: Counter[HostPort] = Counter()


@dataclass(slots=True)
class _Count:
    """How many pods of one shape fit on each node before any charge. All copies of a Capacity share it."""

    needs: tuple[tuple[int, int], ...]  # (column, amount > 0) of one pod
    admits: list[bool]  # by row: the node admits the shape
    base: list[int]  # by row: pods that fit, >= 0
    order: list[int]  # rows with base > 0, the fullest node first
    ports: tuple[HostPort, ...] = ()  # host ports of one pod: one pod on a node can hold each
    # The two entries of `needs` in one tuple, as most shapes have exactly two: counted faster.
    pair: tuple[int, int, int, int] | None = None

    def __post_init__(self) -> None:
        if len(self.needs) == 2:
            self.pair = (*self.needs[0], *self.needs[1])


class _ChargedNodes:
    """The free amounts and the held host ports of the nodes that were charged.

    free: int[nodes, resources] before any charge. ports_held: by row, how many pods hold each host port before any
    charge. log: the rows that were charged, in order.
    """

    __slots__ = ("_free", "_free_now", "_ports_held", "_ports_now", "log")

    def __init__(self, free: Rows, ports_held: Mapping[int, Counter[HostPort]]) -> None:
        """Start without charges. The class docstring explains the arguments, which are never changed."""
        self._free, self._ports_held = free, ports_held
        self._free_now: dict[int, list[int]] = {}  # free amounts of the nodes that were charged
        self._ports_now: dict[int, Counter[HostPort]] = {}  # of rows whose held ports have changed
        self.log: list[int] = []

    def copy(self) -> _ChargedNodes:
        """Return a copy that can be charged on its own."""
        other = _ChargedNodes(self._free, self._ports_held)
        other._ports_now = {row: used.copy() for row, used in self._ports_now.items()}
        other._free_now = {row: list(free_amounts) for row, free_amounts in self._free_now.items()}
        other.log = list(self.log)
        return other

    def charge(self, row: int, needs: Iterable[tuple[int, int]], pods: int, ports: Iterable[HostPort] = ()) -> None:
        """Charge pods to a row, or give them back with a negative number; the free amounts may become negative.

        needs: (column, amount) of one pod. ports: host ports of one pod.
        """
        free_amounts = self._free_now.get(row)
        if free_amounts is None:
            free_amounts = self._free_now[row] = self._free[row].tolist()
        for column, amount in needs:
            free_amounts[column] -= amount * pods
        for port in ports:
            if row not in self._ports_now:
                self._ports_now[row] = self._ports_held.get(row, _NO_PORTS).copy()
            self._ports_now[row][port] += pods
        self.log.append(row)

    def fitting(self, row: int, count: _Count) -> int:
        """Return how many pods of a shape fit on a row now, >= 0. The node must admit the shape. count: of the
        shape.
        """
        free_amounts = self._free_now.get(row)
        if free_amounts is None:
            return count.base[row]
        if count.ports and _is_any_port_used(
            self._ports_now.get(row) or self._ports_held.get(row, _NO_PORTS), count.ports
        ):
            return 0
        if count.pair is not None:
            first, first_amount, second, second_amount = count.pair
            fits, other_fits = free_amounts[first] // first_amount, free_amounts[second] // second_amount
            fits = other_fits if other_fits < fits else fits
        else:
            fits = min([free_amounts[column] // amount for column, amount in count.needs], default=_NO_BOUND)
        if count.ports:
            fits = min(fits, 1)
        return fits if fits > 0 else 0

    def free(self) -> Rows:
        """Return what is free with all charges included: int[nodes, resources], a new array."""
        free = self._free.copy()
        for row, free_amounts in self._free_now.items():
            free[row] = free_amounts
        return free

    def free_in(self, column: int) -> Rows:
        """Return what is free of one resource with all charges included: int[nodes], a new array. column: of `free`."""
        free_amounts: Rows = self._free[:, column].copy()
        for row, free_now in self._free_now.items():
            free_amounts[row] = free_now[column]
        return free_amounts

    def ports_held(self) -> dict[int, Counter[HostPort]]:
        """Return how many pods hold each host port, by row, with all charges included: a new mapping."""
        return {**self._ports_held, **self._ports_now}


@dataclass(slots=True)
class _CurrentCount:
    """The count of one shape during a decision, with charges included."""

    total: int  # pods that fit on all nodes
    changed: dict[int, int] = field(default_factory=dict)  # pods that fit now, of the rows whose number has changed
    grew: list[int] = field(default_factory=list)  # rows on which more pods fit than before, to be filled again
    at: int = 0  # how many entries of `_Count.order` have been filled
    read: int = 0  # how many entries of the log of charges are included

    def copy(self) -> _CurrentCount:
        """Return a copy that can be changed."""
        return _CurrentCount(self.total, dict(self.changed), list(self.grew), self.at, self.read)

    def recount(self, row: int, count: _Count, nodes: _ChargedNodes) -> None:
        """Count one row again, and store a changed number. A node that does not admit the shape is left out.

        count: of the same shape. nodes: what is free now.
        """
        if not count.admits[row]:
            return
        fits = nodes.fitting(row, count)
        before = self.changed.get(row)
        if before is None:
            before = count.base[row]
        if fits != before:
            self.changed[row] = fits
            self.total += fits - before
            if fits > before:
                self.grew.append(row)  # `Capacity.charge` may have passed this node already


class Capacity:
    """The free room of nodes, charged by one decision.

    names: of the resources, which are the columns of `free`. free: int[nodes, resources] before any charge; never
    changed. pod_requests: int[resources] that one pod of each shape requests. admitting_nodes: bool[nodes] that admit
    each shape. switches: for tier 1, 2, … the switch of each node, int[nodes], -1 for a node that is not on the map;
    empty without a map. ports_held: by row, how many pods hold each host port; never changed. A method that gets a
    shape that is missing in `pod_requests` raises KeyError.
    """

    def __init__(
        self,
        names: Sequence[str],
        free: Rows,
        pod_requests: Mapping[PodShape, Rows],
        admitting_nodes: Mapping[PodShape, NDArray[np.bool_]],
        switches: Sequence[NDArray[np.int32]] = (),
        ports_held: Mapping[int, Counter[HostPort]] = MappingProxyType({}),
    ) -> None:
        """Start without charges. The class docstring explains the arguments."""
        self.names, self.free, self.switches = names, free, switches
        self.pod_requests, self.admitting_nodes = pod_requests, admitting_nodes
        self._counts: dict[PodShape, _Count] = {}  # shared by all copies
        self._now: dict[PodShape, _CurrentCount] = {}
        self._ports_held = ports_held
        self._nodes = _ChargedNodes(free, ports_held)
        self._fullest_first = True

    def copy(self) -> Capacity:
        """Return a copy with the same charges, which can be charged on its own."""
        other = Capacity(
            self.names, self.free, self.pod_requests, self.admitting_nodes, self.switches, self._ports_held
        )
        other._nodes = self._nodes.copy()
        other._counts = self._counts
        other._now = {shape: now.copy() for shape, now in self._now.items()}
        other._fullest_first = self._fullest_first
        return other

    def fits(self, shape: PodShape) -> Rows:
        """Return how many more pods of a shape fit on each node, int[nodes], as a new array. Charges are included."""
        now = self._current_count(shape)
        counts = np.array(self._counts[shape].base, dtype=np.int64)
        for row, count in now.changed.items():
            counts[row] = count
        return counts

    def total(self, shape: PodShape) -> int:
        """Return how many more pods of a shape fit on all nodes together."""
        return self._current_count(shape).total

    def charge(self, shape: PodShape, pods: int) -> Charges | None:
        """Charge pods of a shape, on the fullest nodes first. Return what was charged: (row, pods) of each node used.

        None, with nothing charged, if not all of them fit. pods: how many, > 0.
        """
        now = self._now.get(shape) or self._current_count(shape)
        if now.total < pods:
            now = self._current_count(shape)
            if now.total < pods:
                return None
        count, charged, remaining = self._counts[shape], Charges(), pods
        order, at_most, nodes = count.order, len(count.order), self._nodes
        while remaining:
            if now.at < at_most:
                row = order[now.at]
            elif now.grew or (now.read < len(nodes.log) and self._current_count(shape).grew):
                row = now.grew[-1]
            else:
                self.undo(shape, charged)
                return None
            fitting = nodes.fitting(row, count)
            taken_pods = min(remaining, fitting)
            if taken_pods:
                nodes.charge(row, count.needs, taken_pods, count.ports)
                charged.append((row, taken_pods))
                remaining -= taken_pods
            if taken_pods == fitting:  # the node is full
                now.total -= now.changed.get(row, count.base[row])
                now.changed[row] = 0
                if now.at < at_most:
                    now.at += 1
                else:
                    now.grew.pop()
        return charged

    def charge_on_rows(self, shape: PodShape, pods: int, rows: Iterable[int]) -> Charges | None:
        """Charge pods on these rows only, in their order. Return (row, pods) of each row used.

        None, with nothing charged, if the pods do not all fit. pods: how many, > 0.
        """
        now, charged, remaining = self._current_count(shape), Charges(), pods
        count = self._counts[shape]
        for row in rows:
            changed_count = now.changed.get(row)
            taken_pods = min(remaining, count.base[row] if changed_count is None else changed_count)
            if taken_pods:
                self._nodes.charge(row, count.needs, taken_pods, count.ports)
                now.recount(row, count, self._nodes)
                charged.append((row, taken_pods))
                remaining -= taken_pods
            if not remaining:
                return charged
        self.undo(shape, charged)
        return None

    def undo(self, shape: PodShape, charges: Charges) -> None:
        """Give back what `charge` or `charge_on_rows` has charged. charges: their result."""
        count = self._counts[shape]
        for row, pods in charges:
            self._nodes.charge(row, count.needs, -pods, count.ports)

    def release(self, shape: PodShape, rows: Sequence[int]) -> None:
        """Give back what one pod of a shape requests on each of these rows. A row may occur several times."""
        self.charge_rows(shape, rows, -1)

    def charge_rows(self, shape: PodShape, rows: Sequence[int], pods: int = 1) -> None:
        """Charge pods of a shape to each of these rows, even if they do not fit. A row may occur several times.

        pods: to each row; negative to give them back.
        """
        self._current_count(shape)
        count = self._counts[shape]
        for row in rows:
            self._nodes.charge(row, count.needs, pods, count.ports)

    def with_pods_removed(self, rows: Mapping[PodShape, Sequence[int]]) -> Capacity:
        """Return another capacity, in which one pod of a shape has left each of its rows.

        rows: shape -> rows; a row may occur several times. The result answers only whether pods fit: it does not fill
        the fullest nodes first.
        """
        free, ports_held = self._nodes.free(), self._nodes.ports_held()
        for shape, shape_rows in rows.items():
            counts = np.bincount(np.asarray(shape_rows, dtype=np.intp), minlength=len(free))
            free += counts[:, None] * self.pod_requests[shape]
            for row in shape_rows if shape.host_ports else ():
                ports_held[row] = ports_held.get(row, Counter()) - Counter(shape.host_ports)
        capacity = Capacity(self.names, free, self.pod_requests, self.admitting_nodes, self.switches, ports_held)
        capacity._fullest_first = False  # this copy only tests whether pods fit
        return capacity

    def keep_free(self, amounts: Mapping[str, int]) -> None:
        """Charge headroom to the nodes that have most of each resource free; less if less is free.

        amounts: resource -> amount in base units (whole devices, milli-CPUs, bytes), >= 0, for all nodes together.
        Names that are no resource of these nodes are skipped.
        """
        for name, amount in amounts.items():
            if name not in self.names:
                continue
            column, remaining = self.names.index(name), amount
            free_amounts = self._nodes.free_in(column)
            for row in np.argsort(-free_amounts, kind="stable").tolist():
                kept_amount = min(remaining, max(0, int(free_amounts[row])))
                self._nodes.charge(row, ((column, kept_amount),), 1)
                remaining -= kept_amount
                if remaining <= 0:
                    break

    def _current_count(self, shape: PodShape) -> _CurrentCount:
        """Return the count of a shape with all charges included. It is the capacity's own object, which is brought
        up to date.
        """
        now = self._now.get(shape)
        if now is None:
            count = self._counts.get(shape)
            if count is None:
                count = self._counts[shape] = _count_shape(
                    self.free,
                    self.pod_requests[shape],
                    self.admitting_nodes[shape],
                    shape.host_ports,
                    self._ports_held,
                    fullest_first=self._fullest_first,
                )
            now = self._now[shape] = _CurrentCount(sum(count.base))
        if now.read < len(self._nodes.log):
            count, log = self._counts[shape], self._nodes.log
            if len(log) == now.read + 1:
                now.recount(log[-1], count, self._nodes)
            else:
                for row in set(log[now.read :]):
                    now.recount(row, count, self._nodes)
            now.read = len(log)
        return now


def _count_shape(
    free: Rows,
    requests: Rows,
    admits: NDArray[np.bool_],
    host_ports: tuple[HostPort, ...],
    ports_held: Mapping[int, Counter[HostPort]],
    *,
    fullest_first: bool,
) -> _Count:
    """Return the count of a shape before any charge: the pods that fit on each node, >= 0, and the order of filling.

    free: int[nodes, resources]. requests: int[resources] of one pod. admits: bool[nodes]. host_ports: of one pod.
    ports_held: by row, how many pods hold each host port. fullest_first: the fullest node is filled first, else the
    first row.
    """
    requested = requests > 0
    counts = (
        (free[:, requested] // requests[requested]).min(axis=1) if requested.any() else np.full(len(free), _NO_BOUND)
    )
    counts = np.where(admits, np.maximum(counts, 0), 0)
    if host_ports:
        counts = np.minimum(counts, 1)
        counts[[row for row, used_ports in ports_held.items() if _is_any_port_used(used_ports, host_ports)]] = 0
    rows = np.flatnonzero(counts)
    if fullest_first:
        rows = rows[np.argsort(counts[rows], kind="stable")]
    needs = tuple((column, amount) for column, amount in enumerate(requests.tolist()) if amount > 0)
    return _Count(needs, admits.tolist(), counts.tolist(), rows.tolist(), host_ports)


def _is_any_port_used(used: Counter[HostPort], ports: Iterable[HostPort]) -> bool:
    """Return True if some pod holds one of these host ports. used: by port, how many pods hold it."""
    return any(used[port] > 0 for port in ports)
