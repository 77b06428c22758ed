"""Keeps what is left while a decision is made, on nodes and in queues, charged and given back together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turnout.autoscaler.capacity import Capacity, Charges
from turnout.autoscaler.model import UNKNOWN_NODE, Pool
from turnout.autoscaler.scaling.quota import Quota, total_of
from turnout.kube.pod_shape import PodShape

Pods = Sequence[tuple[PodShape, int]]


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """Pods that one job asks for at once. tier: the widest switch that they may span with the rows of `near`.

    namespace: of that job.
    """

    queue: str
    pods: Pods
    tier: int | None = None
    near_rows: tuple[int, ...] = ()
    namespace: str = ""


@dataclass(slots=True)
class Reservations:
    """Room and quota, charged together."""

    room: Capacity
    quota: Quota

    def copied(self) -> Reservations:
        """Copy the room and the quota, so that the copy can be charged."""
        return Reservations(self.room.copied(), self.quota.copied())

    def could(self, pool: Pool, pods: int) -> bool:
        """True if so many pods of a pool fit."""
        return self.quota.holds(pool.queue, pool.needs, pods) and self.room.total(pool.shape) >= pods

    def take(self, pool: Pool, pods: int) -> bool:
        """Charge so many pods; False, and nothing charged, when they do not fit."""
        if not self.quota.holds(pool.queue, pool.needs, pods) or self.room.take(pool.shape, pods) is None:
            return False
        self.quota.take(pool.queue, pool.needs, pods)
        return True

    def reserve(self, request: CapacityRequest) -> bool:
        """Charge pods to their queue and to nodes, all or none."""
        needs = total_of(request.pods)
        if not self.quota.holds(request.queue, needs) or self._take(request) is None:
            return False
        self.quota.take(request.queue, needs)
        return True

    def fits(self, request: CapacityRequest) -> bool:
        """True if `reserve` would charge the request. Leaves everything as it was."""
        if any(self.room.total(shape) < count for shape, count in request.pods):
            return False  # seen at once, as most that do not fit are
        charged = self._take(request) if self.quota.holds(request.queue, total_of(request.pods)) else None
        for shape, charges in charged or ():
            self.room.undo(shape, charges)
        return charged is not None

    def _take(self, request: CapacityRequest) -> list[tuple[PodShape, Charges]] | None:
        """Charge pods to nodes, all or none, within one switch where that is asked for."""
        if request.tier is None:
            return self._all(request.pods, None)
        for rows in self._domains(request):
            if (charged := self._all(request.pods, rows)) is not None:
                return charged
        return None

    def _domains(self, request: CapacityRequest) -> Iterator[list[int]]:
        """Yield the nodes of each switch that may hold a request, the tightest first. Nothing without a map."""
        tiers = self.room.switches
        if not tiers or request.tier is None:
            return
        of = tiers[min(request.tier, len(tiers)) - 1]
        required = {int(of[row]) for row in request.near_rows if row != UNKNOWN_NODE}
        if len(required) > 1:
            return
        shape, pods = max(request.pods, key=lambda each: each[1])
        room = self.room.fits(shape)
        on_map = of >= 0
        sums = np.bincount(of[on_map], weights=room[on_map])
        wide = np.flatnonzero(sums >= pods)
        for switch in wide[np.argsort(sums[wide], kind="stable")].tolist():
            if not required or switch in required:  # a node off the map has a switch that nobody has
                rows = np.flatnonzero(of == switch)
                yield rows[np.argsort(room[rows], kind="stable")].tolist()

    def _all(self, pods: Pods, rows: Iterable[int] | None) -> list[tuple[PodShape, Charges]] | None:
        done: list[tuple[PodShape, Charges]] = []
        for shape, count in pods:
            charges = self.room.take(shape, count) if rows is None else self.room.take_within(shape, count, rows)
            if charges is None:
                for other, charged in done:
                    self.room.undo(other, charged)
                return None
            done.append((shape, charges))
        return done

    def release(self, pool: Pool, rows: Sequence[int], sign: int = 1) -> None:
        """Give back what workers took that leave, or with sign=-1 let them stay."""
        if rows:
            self.room.give(pool.shape, rows, sign)
            self.quota.take(pool.queue, pool.needs, -sign * len(rows))

    def with_headroom(self, headroom: Mapping[str, int]) -> Reservations:
        """Return a copy with these amounts taken, on the nodes and in every queue."""
        other = self.copied()
        other.room.keep_free(headroom)
        other.quota.keep(headroom)
        return other
