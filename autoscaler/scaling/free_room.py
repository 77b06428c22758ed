"""Charges nodes and queues together during one decision, and gives back what is not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turnout.autoscaler.capacity import Capacity, Charges
from turnout.autoscaler.model import UNKNOWN_NODE, JobState, Pool
from turnout.jobs.queues.accounting import charge, holds
from turnout.jobs.queues.model import Queue
from turnout.kube.pod_shape import PodShape

Needs = tuple[tuple[str, int], ...]  # (resource, amount) of a request to a queue


class Quota:
    """The queues of an observation, charged as the decision goes on."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._used = {name: dict(queue.used) for name, queue in queues.items()}

    def holds(self, queue: str, needs: Needs, times: int = 1) -> bool:
        """Return True if so much more fits, `times` times, in a queue and all above it.

        An unknown queue has no limit.
        """
        found = self._queues.get(queue)
        if found is None:
            return True
        if found.parent:
            return holds(self._queues, self._used, queue, needs, times)
        used, limit = self._used[queue], found.limit  # the same, where nothing is above
        for what, amount in needs:
            most = limit.get(what)
            if most is not None and amount and used.get(what, 0) + amount * times > most:
                return False
        return True

    def fits_empty(self, queue: str, needs: Needs) -> bool:
        """Return True if the request would fit without any use."""
        return holds(self._queues, {}, queue, needs)

    def take(self, queue: str, needs: Needs, times: int = 1) -> None:
        """Charge a queue and what is above it so many times, or with times below 0 give back."""
        found = self._queues.get(queue)
        if found is not None and found.parent:
            charge(self._queues, self._used, queue, needs, times)
        elif found is not None:
            used = self._used[queue]
            for what, amount in needs:
                used[what] = used.get(what, 0) + amount * times

    def keep_free(self, amounts: Mapping[str, int]) -> None:
        """Keep so much free in every queue, and what each queue keeps for itself."""
        for name, used in self._used.items():
            own = self._queues[name].headroom
            for what in {**amounts, **own}:
                used[what] = used.get(what, 0) + max(amounts.get(what, 0), own.get(what, 0))

    def keeps_room(self) -> bool:
        """Return True if any queue keeps room free for itself."""
        return any(queue.headroom for queue in self._queues.values())

    def is_open(self, queue: str) -> bool:
        """Return True if a queue takes new pods."""
        found = self._queues.get(queue)
        return found is None or found.open

    def chain(self, queue: str) -> Iterator[str]:
        """Yield a queue and the queues above it, as far as they are described."""
        while (found := self._queues.get(queue)) is not None:
            yield queue
            if not found.parent:
                return
            queue = found.parent

    def borrows(self, queue: str) -> bool:
        """Return True if a queue uses more than its deserved share.

        Where no share is given, every lent worker is borrowed (VE-29).
        """
        found = self._queues.get(queue)
        if found is None or not found.deserved:
            return True
        used = self._used[queue]
        return any(used.get(what, 0) > own for what, own in found.deserved.items())

    def copied(self) -> Quota:
        """Copy the queues' use, so that the copy can be charged."""
        other = Quota({})
        other._queues = self._queues
        other._used = {name: dict(used) for name, used in self._used.items()}
        return other


def lacking_pods(state: JobState) -> list[tuple[PodShape, int]]:
    """Return the pods that a waiting job lacks to its min, as (shape, how many)."""
    lacking = [(state.job.shape, state.job.bounds.least - state.bound_workers - state.finished)]
    other_roles = zip(state.job.other_roles, state.other_pods or (0,) * len(state.job.other_roles), strict=False)
    lacking += [(shape, replicas - bound) for (shape, replicas), bound in other_roles]
    return [(shape, pods) for shape, pods in lacking if pods > 0]


def total_of(pods: Iterable[tuple[PodShape, int]]) -> Needs:
    """Sum up what pods of several shapes ask of a queue, by resource."""
    total: Counter[str] = Counter()
    for shape, count in pods:
        for what, amount in shape.requests:
            if what != "pods":
                total[what] += amount * count
    return tuple(sorted(total.items()))


Pods = Sequence[tuple[PodShape, int]]


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """Pods that one job requests at once."""

    queue: str
    pods: Pods
    tier: int | None = None  # of the widest switch that they may span with `near_rows`, None for any
    near_rows: tuple[int, ...] = ()  # rows of the nodes of the job's other pods
    namespace: str = ""  # of the job


@dataclass(slots=True)
class FreeRoom:
    """Room and quota, charged together."""

    room: Capacity
    quota: Quota

    def copied(self) -> FreeRoom:
        """Copy the room and the quota, so that the copy can be charged."""
        return FreeRoom(self.room.copied(), self.quota.copied())

    def has_room_for(self, pool: Pool, pods: int) -> bool:
        """Return True if so many pods of a pool fit."""
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
        """Return True if `reserve` would charge the request. Leaves everything as it was."""
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
            if not required or switch in required:  # a node off the map is under no switch of the map
                rows = np.flatnonzero(of == switch)
                yield rows[np.argsort(room[rows], kind="stable")].tolist()

    def _all(self, pods: Pods, rows: Iterable[int] | None) -> list[tuple[PodShape, Charges]] | None:
        """Take room for all pods, or for none: then None. rows: of nodes to use, None for all."""
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

    def with_headroom(self, headroom: Mapping[str, int]) -> FreeRoom:
        """Return a copy with these amounts taken, on the nodes and in every queue."""
        other = self.copied()
        other.room.keep_free(headroom)
        other.quota.keep_free(headroom)
        return other
