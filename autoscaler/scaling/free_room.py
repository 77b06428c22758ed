"""Charge nodes and queues together during one decision, and give back what is not used.

Which room is kept for a waiting job is decided in observe/room_history.py, in `UnusedRoom`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turnout.autoscaler.capacity import Capacity, Charges
from turnout.autoscaler.model import UNKNOWN_NODE, JobState, Pool
from turnout.jobs.queues.accounting import charge, holds
from turnout.jobs.queues.model import QueueShare
from turnout.kube.pod_shape import PodShape

Needs = tuple[tuple[str, int], ...]  # (resource, amount) of a request to a queue, without the resource "pods"


class Quota:
    """The use of the queues of an observation, charged during one decision."""

    def __init__(self, queues: Mapping[str, QueueShare]) -> None:
        self._queues = queues
        self._used = {name: dict(queue.used) for name, queue in queues.items()}

    def holds(self, queue: str, needs: Needs, times: int = 1) -> bool:
        """Return True if a request fits `times` times in a queue and each queue above it, beside what is charged.

        An unknown queue has no limit. needs: (resource, amount) of one request, without the resource "pods".
        """
        described = self._queues.get(queue)
        if described is None:
            return True
        if described.parent:
            return holds(self._queues, self._used, queue, needs, times)
        used, limit = self._used[queue], described.limit  # faster than `holds`, for a queue without parent
        for resource, amount in needs:
            max_amount = limit.get(resource)
            if max_amount is not None and amount and used.get(resource, 0) + amount * times > max_amount:
                return False
        return True

    def fits_empty(self, queue: str, needs: Needs) -> bool:
        """Return True if a request would fit in a queue, and in the queues above it, if nothing used them.

        An unknown queue has no limit. needs: as of holds().
        """
        return holds(self._queues, {}, queue, needs)

    def take(self, queue: str, needs: Needs, times: int = 1) -> None:
        """Charge a request `times` times to a queue and each queue above it, even beyond a limit. Negative `times` give
        back.

        An unknown queue is ignored. needs: as of holds().
        """
        described = self._queues.get(queue)
        if described is not None and described.parent:
            charge(self._queues, self._used, queue, needs, times)
        elif described is not None:
            used = self._used[queue]
            for resource, amount in needs:
                used[resource] = used.get(resource, 0) + amount * times

    def keep_free(self, amounts: Mapping[str, int]) -> None:
        """Charge headroom to every queue: of each resource the larger of `amounts` and the queue's own headroom."""
        for name, used in self._used.items():
            queue_headroom = self._queues[name].headroom
            for resource in {**amounts, **queue_headroom}:
                used[resource] = used.get(resource, 0) + max(amounts.get(resource, 0), queue_headroom.get(resource, 0))

    def has_headroom(self) -> bool:
        """Return True if any queue has headroom of its own."""
        return any(queue.headroom for queue in self._queues.values())

    def is_open(self, queue: str) -> bool:
        """Return True if a queue takes new pods. An unknown queue does."""
        described = self._queues.get(queue)
        return described is None or described.open

    def chain(self, queue: str) -> Iterator[str]:
        """Yield a queue and the queues above it, bottom up, until one has no parent or is unknown.

        Yields nothing for an unknown queue.
        """
        while (described := self._queues.get(queue)) is not None:
            yield queue
            if not described.parent:
                return
            queue = described.parent

    def borrows(self, queue: str) -> bool:
        """Return True if a queue uses more of some resource than its deserved share.

        True also for a queue without a deserved share, and for an unknown queue: each of its workers is borrowed
        (VE-29).
        """
        described = self._queues.get(queue)
        if described is None or not described.deserved:
            return True
        used = self._used[queue]
        return any(used.get(resource, 0) > own for resource, own in described.deserved.items())

    def copy(self) -> Quota:
        """Return a copy with the same use, which can be charged on its own."""
        other = Quota({})
        other._queues = self._queues
        other._used = {name: dict(used) for name, used in self._used.items()}
        return other


def lacking_pods(state: JobState) -> list[tuple[PodShape, int]]:
    """Return the pods that a waiting job still needs to reach its min, as (shape, count >= 1); [] if it needs none.

    Its workers come first, then its other roles. Finished workers count as present. A pod without a node counts as
    lacking.
    """
    lacking = [(state.job.shape, state.job.bounds.minimum - state.bound_workers - state.finished)]
    other_roles = zip(state.job.other_roles, state.other_pods or (0,) * len(state.job.other_roles), strict=False)
    lacking += [(shape, replicas - bound) for (shape, replicas), bound in other_roles]
    return [(shape, pods) for shape, pods in lacking if pods > 0]


def total_of(pods: Iterable[tuple[PodShape, int]]) -> Needs:
    """Return the sum of the requests of pods, sorted by resource, without the resource `pods`, which no queue limits.

    pods: (shape, count).
    """
    total: Counter[str] = Counter()
    for shape, count in pods:
        for resource, amount in shape.requests:
            if resource != "pods":
                total[resource] += amount * count
    return tuple(sorted(total.items()))


Pods = Sequence[tuple[PodShape, int]]  # shape, and count >= 1


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """Pods that one job requests at once."""

    queue: str  # that pays for the pods
    pods: Pods
    tier: int | None = None  # tier >= 1 of the one switch that must hold them and `near_rows`, None for no limit
    near_rows: tuple[int, ...] = ()  # rows of the nodes of the job's other pods
    namespace: str = ""  # of the job


@dataclass(slots=True)
class FreeRoom:
    """Room and quota, charged together."""

    room: Capacity
    quota: Quota

    def copy(self) -> FreeRoom:
        """Return a copy of room and quota that can be charged."""
        return FreeRoom(self.room.copy(), self.quota.copy())

    def has_room_for(self, pool: Pool, pods: int) -> bool:
        """Return True if so many pods of a pool fit in its queue and, each as a whole, on the nodes.

        Nothing is charged.
        """
        return self.quota.holds(pool.queue, pool.needs, pods) and self.room.total(pool.shape) >= pods

    def take(self, pool: Pool, pods: int) -> bool:
        """Charge pods of a pool to its queue and to nodes. Return False, with nothing charged, if they do not all fit.

        pods: how many.
        """
        if not self.quota.holds(pool.queue, pool.needs, pods) or self.room.charge(pool.shape, pods) is None:
            return False
        self.quota.take(pool.queue, pool.needs, pods)
        return True

    def reserve(self, request: CapacityRequest) -> bool:
        """Charge a request to its queue and to nodes. Return False, with nothing charged, if it does not fit."""
        needs = total_of(request.pods)
        if not self.quota.holds(request.queue, needs) or self._take_on_nodes(request) is None:
            return False
        self.quota.take(request.queue, needs)
        return True

    def fits(self, request: CapacityRequest) -> bool:
        """Return True if `reserve` would charge the request. Nothing stays charged."""
        if any(self.room.total(shape) < count for shape, count in request.pods):
            return False  # a cheap check that refuses most requests
        charged = self._take_on_nodes(request) if self.quota.holds(request.queue, total_of(request.pods)) else None
        for shape, charges in charged or ():
            self.room.undo(shape, charges)
        return charged is not None

    def _take_on_nodes(self, request: CapacityRequest) -> list[tuple[PodShape, Charges]] | None:
        """Charge a request to nodes only, under one switch if it has a tier. Return (shape, charges) of each of its
        entries.

        None, with nothing charged, if the pods do not all fit.
        """
        if request.tier is None:
            return self._take_all(request.pods, None)
        for rows in self._domains(request):
            if (charged := self._take_all(request.pods, rows)) is not None:
                return charged
        return None

    def _domains(self, request: CapacityRequest) -> Iterator[list[int]]:
        """Yield the node rows of each switch that may hold a request with a tier, the tightest switch first.

        A switch counts if the pods of the most frequent shape fit under it, and if the job's other pods are under it.
        Nothing is yielded without a map of switches, or if those pods are under several switches.
        """
        tiers = self.room.switches
        if not tiers or request.tier is None:
            return
        switch_of_row = tiers[min(request.tier, len(tiers)) - 1]
        required = {int(switch_of_row[row]) for row in request.near_rows if row != UNKNOWN_NODE}
        if len(required) > 1:
            return
        shape, pods = max(request.pods, key=lambda each: each[1])
        room = self.room.fits(shape)
        on_map = switch_of_row >= 0
        sums = np.bincount(switch_of_row[on_map], weights=room[on_map])
        large_enough = np.flatnonzero(sums >= pods)
        for switch in large_enough[np.argsort(sums[large_enough], kind="stable")].tolist():
            if not required or switch in required:  # a node off the map is under no switch of the map
                rows = np.flatnonzero(switch_of_row == switch)
                yield rows[np.argsort(room[rows], kind="stable")].tolist()

    def _take_all(self, pods: Pods, rows: Iterable[int] | None) -> list[tuple[PodShape, Charges]] | None:
        """Charge all pods to nodes. Return (shape, charges) of each entry; None, with nothing charged, if some do not
        fit.

        rows: nodes to use, in this order, None for all.
        """
        all_charges: list[tuple[PodShape, Charges]] = []
        for shape, count in pods:
            charges = self.room.charge(shape, count) if rows is None else self.room.charge_on_rows(shape, count, rows)
            if charges is None:
                for other, charged in all_charges:
                    self.room.undo(other, charged)
                return None
            all_charges.append((shape, charges))
        return all_charges

    def release(self, pool: Pool, rows: Sequence[int]) -> None:
        """Give back what one worker of a pool takes on each of these node rows, also in the queue.

        rows: a row may occur several times.
        """
        if rows:
            self.room.release(pool.shape, rows)
            self.quota.take(pool.queue, pool.needs, -len(rows))

    def charge_rows(self, pool: Pool, rows: Sequence[int]) -> None:
        """Charge one worker of a pool to each of these node rows and to the queue, even if it does not fit.

        rows: a row may occur several times.
        """
        if rows:
            self.room.charge_rows(pool.shape, rows)
            self.quota.take(pool.queue, pool.needs, len(rows))

    def with_headroom(self, headroom: Mapping[str, int]) -> FreeRoom:
        """Return a copy with headroom charged to the nodes and to every queue. headroom: by resource."""
        copy = self.copy()
        copy.room.keep_free(headroom)
        copy.quota.keep_free(headroom)
        return copy
