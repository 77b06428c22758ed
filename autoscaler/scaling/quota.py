"""Charges queues while a decision is made: how much each may still take, and which use borrowed room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from turnout.autoscaler.model import JobState
from turnout.jobs.queues.model import Queue
from turnout.jobs.queues.quota_accounting import charge, holds
from turnout.kube.pod_shape import PodShape

Needs = tuple[tuple[str, int], ...]  # (resource, amount), what a queue is asked for


class Quota:
    """The queues of an observation, charged as the decision goes on."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._used = {name: dict(queue.used) for name, queue in queues.items()}

    def holds(self, queue: str, needs: Needs, times: int = 1) -> bool:
        """True if so much more fits, `times` times, in a queue and all above it. An unknown queue has no limit."""
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
        """True if the request would fit without any use."""
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

    def keep(self, amounts: Mapping[str, int]) -> None:
        """Keep so much free in every queue, and what each queue keeps for itself."""
        for name, used in self._used.items():
            own = self._queues[name].headroom
            for what in {**amounts, **own}:
                used[what] = used.get(what, 0) + max(amounts.get(what, 0), own.get(what, 0))

    def keeps(self) -> bool:
        """True if any queue keeps room free for itself."""
        return any(queue.headroom for queue in self._queues.values())

    def is_open(self, queue: str) -> bool:
        """True if a queue takes new pods."""
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
        """True if a queue uses more than its deserved share.

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


def least_of(state: JobState) -> list[tuple[PodShape, int]]:
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
