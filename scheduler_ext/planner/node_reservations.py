"""Sum the room that plans keep on each node beside the pods that are charged to it.

The caller remembers whose plan keeps what. Here are only the sums, in the rows and columns of a snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import MAX_ROOM, ClusterSnapshot, Rows
from turnout.kube.pod_shape import HostPort, PodShape

PodsOnRows = Sequence[tuple[int, PodShape]]  # (row, shape), one entry a pod


class ReservedRoom:
    """Sums of the room kept on each row. The owner clears them when the snapshot's rows change their meaning."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self.clear()

    def clear(self) -> None:
        """Remove everything that is kept, and use the current rows."""
        rows = len(self._snapshot.order)
        self._reserved: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self._pods: Rows = np.zeros(rows, np.int32)
        self._ports: dict[int, Counter[HostPort]] = {}

    def reserve(self, pods: PodsOnRows) -> None:
        """Keep room for some pods."""
        self._add(pods, 1)

    def release(self, pods: PodsOnRows) -> None:
        """Release the room of some pods, which must have been kept before."""
        self._add(pods, -1)

    def room(self, shape: PodShape, without: PodsOnRows = (), besides: PodsOnRows = ()) -> Rows:
        """Return how many pods of this shape each row holds beside what is kept, as a new table.

        without: kept pods whose room may be used. besides: pods whose room may not be used, though it is not kept yet.
        """
        room = self._snapshot.room(shape).copy()
        rows = np.flatnonzero(self._pods)
        if besides:
            rows = np.union1d(rows, np.array([row for row, _ in besides], np.intp))
        if not len(rows):
            return room
        self._widen()
        reserved = self._reserved[rows]
        for pods, sign in ((without, -1), (besides, 1)):
            by_shape: dict[PodShape, list[int]] = {}
            for row, other in pods:
                by_shape.setdefault(other, []).append(row)
            for other, at in by_shape.items():
                np.add.at(reserved, np.searchsorted(rows, at), sign * self._snapshot.vector(other))
        room[rows] = np.minimum(room[rows], self._snapshot.fits_at(rows, shape, reserved))
        if shape.host_ports:
            self._block_ports(room, shape, without, besides)
        return room

    def is_overdrawn(self, row: int) -> bool:
        """True if a row has less free than is kept there, or keeps a port twice.

        Only resources that are kept on it count.
        """
        self._widen()
        if any(count > 1 for count in self._ports.get(row, {}).values()):
            return True
        reserved = self._reserved[row]
        return bool(np.any((self._snapshot.free_at(row) < reserved) & (reserved > 0)))

    def _add(self, pods: PodsOnRows, sign: int) -> None:
        # First, since a new resource widens the rows.
        vectors = {shape: self._snapshot.vector(shape) for shape in {shape for _, shape in pods}}
        self._widen()
        for row, shape in pods:
            vector = vectors[shape]
            self._reserved[row, : len(vector)] += sign * vector
            self._pods[row] += sign
            for port in shape.host_ports:
                self._ports.setdefault(row, Counter())[port] += sign

    def _widen(self) -> None:
        """Add columns for resources that became known since; nothing of them is kept."""
        missing = self._snapshot.width - self._reserved.shape[1]
        if missing:
            self._reserved = np.pad(self._reserved, ((0, 0), (0, missing)))

    def _block_ports(self, room: Rows, shape: PodShape, without: PodsOnRows, besides: PodsOnRows) -> None:
        used_ports = {row: Counter(ports) for row, ports in self._ports.items()}
        for row, other in without:
            used_ports.setdefault(row, Counter()).subtract(other.host_ports)
        for row, other in besides:
            used_ports.setdefault(row, Counter()).update(other.host_ports)
        for row, ports in used_ports.items():
            if any(ports[port] > 0 for port in shape.host_ports):
                room[row] = 0


def restrict_to_rows(room: Rows, rows: Iterable[int]) -> Rows:
    """Return the room limited to some rows; all other rows get 0."""
    most = np.zeros_like(room)
    most[np.fromiter(rows, np.intp)] = MAX_ROOM
    return np.minimum(room, most)
