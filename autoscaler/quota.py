"""Queues while a decision is made: who may still take how much, and whose workers are borrowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from autoscaler.model import Queue, Seen
from kube.shape import PodShape


class Quota:
    """The queues of an observation, charged as the decision goes on."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._used = {name: Counter(queue.used) for name, queue in queues.items()}

    def holds(self, queue: str, needs: Mapping[str, int]) -> bool:
        """Does so much more fit into a queue's limit? A queue that nobody describes has no limit."""
        found = self._queues.get(queue)
        if found is None:
            return True
        used = self._used[queue]
        return all(used[what] + amount <= found.limit[what] for what, amount in needs.items() if what in found.limit)

    def ever(self, queue: str, needs: Mapping[str, int]) -> bool:
        """Would it fit into a queue that nobody uses?"""
        found = self._queues.get(queue)
        return found is None or all(
            amount <= found.limit[what] for what, amount in needs.items() if what in found.limit
        )

    def take(self, queue: str, needs: Mapping[str, int], sign: int = 1) -> None:
        """Charge a queue, or with sign=-1 give back."""
        if queue in self._used:
            self._used[queue].update({what: sign * amount for what, amount in needs.items()})

    def take_everywhere(self, amounts: Mapping[str, int]) -> None:
        """Charge every queue."""
        for used in self._used.values():
            used.update(amounts)

    def is_open(self, queue: str) -> bool:
        """Does it take anything new?"""
        found = self._queues.get(queue)
        return found is None or found.open

    def borrows(self, queue: str) -> bool:
        """Does it use more than is its own, of anything that has been granted?"""
        found = self._queues.get(queue)
        return found is not None and any(self._used[queue][what] > own for what, own in found.deserved.items())

    def copied(self) -> Quota:
        """The same, to be charged."""
        other = Quota(self._queues)
        other._used = {name: Counter(used) for name, used in self._used.items()}
        return other


def needs_of(shape: PodShape, pods: int) -> dict[str, int]:
    """What so many pods ask of a queue."""
    return {what: amount * pods for what, amount in shape.requests if what != "pods"}


def least_of(seen: Seen) -> list[tuple[PodShape, int]]:
    """The pods that a waiting job lacks to its min: (shape, how many)."""
    lacking = [(seen.job.shape, seen.job.bounds.least - seen.placed - seen.done)]
    beside = zip(seen.job.beside, seen.beside or (0,) * len(seen.job.beside), strict=False)
    lacking += [(shape, wanted - there) for (shape, wanted), there in beside]
    return [(shape, pods) for shape, pods in lacking if pods > 0]


def total_of(pods: Iterable[tuple[PodShape, int]]) -> Counter[str]:
    """What pods of several shapes ask of a queue together."""
    total: Counter[str] = Counter()
    for shape, count in pods:
        total.update(needs_of(shape, count))
    return total
