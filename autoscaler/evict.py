"""Evict first: the elastic workers that have to leave so that one waiting job fits, and no more of them.

A victim is what its controller will really delete, the highest index first, on the node where it stands: eight
one-GPU workers on eight nodes make no room for a worker of eight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.model import Seen
from autoscaler.quota import Quota, needs_of, total_of
from autoscaler.room import Room
from jobs.model import JobKey, Pause
from kube.shape import PodShape

Pods = Sequence[tuple[PodShape, int]]


@dataclass(slots=True)
class Ledger:
    """What is left while a decision is made. sizes: of every job, as decided so far."""

    room: Room
    quota: Quota
    sizes: dict[JobKey, int]

    def copied(self) -> Ledger:
        """The same, to be tried on."""
        return Ledger(self.room.copied(), self.quota.copied(), dict(self.sizes))

    def reserve(self, queue: str, pods: Pods) -> bool:
        """Charge pods to their queue and to nodes, all or none."""
        needs = total_of(list(pods))
        if not self.quota.holds(queue, needs):
            return False
        before = self.room.free.copy()
        for shape, count in pods:
            if not self.room.take(shape, count):
                self.room.free[:] = before
                return False
        self.quota.take(queue, needs)
        return True

    def release(self, seen: Seen, rows: Sequence[int]) -> None:
        """Give back what workers took that leave."""
        self.room.give(seen.job.shape, rows)
        self.quota.take(seen.job.queue, needs_of(seen.job.shape, len(rows)), -1)

    def with_headroom(self, headroom: Mapping[str, int]) -> Ledger:
        """A copy in which so much is taken, on the nodes and in every queue."""
        other = self.copied()
        other.room.keep(headroom)
        other.quota.take_everywhere(headroom)
        return other


@dataclass(frozen=True, slots=True)
class _Victim:
    """One unit of one job: what it gives back, and the size that is left."""

    seen: Seen
    rows: tuple[int, ...]
    left: int


def make_room(
    waiter: Seen, lacking: Pods, others: Iterable[Seen], ledger: Ledger
) -> dict[JobKey, tuple[int, int]] | None:
    """The jobs that shrink so that the waiter fits: key -> (size before, size after); None when nothing helps.

    The room is charged to the waiter then. Least important and newest jobs give first; units that turn out not to be
    needed stay.
    """
    queue = waiter.job.queue
    victims = sorted(
        (unit for each in others if _may_give(each, waiter, ledger) for unit in _units(each)),
        key=lambda unit: (unit.seen.job.priority, _newest(unit.seen), -unit.left),
    )
    taken: list[_Victim] = []
    trial = ledger.copied()
    for unit in victims:
        trial.release(unit.seen, unit.rows)
        taken.append(unit)
        if trial.copied().reserve(queue, lacking):
            break
    else:
        return None
    needed = _pruned(taken, queue, lacking, ledger)
    sizes: dict[JobKey, tuple[int, int]] = {}
    for unit in needed:
        key = unit.seen.job.key
        sizes[key] = (unit.seen.job.replicas, min(unit.left, sizes.get(key, (0, unit.left))[1]))
        ledger.release(unit.seen, unit.rows)
        ledger.sizes[key] = sizes[key][1]
    ledger.reserve(queue, lacking)
    return sizes


def _may_give(seen: Seen, waiter: Seen, ledger: Ledger) -> bool:
    """May workers of this job be taken for that one: of its own queue, or borrowed by another."""
    job = seen.job
    if not job.elastic or seen.waits or job.pause in (Pause.SHRINK, Pause.BOTH):
        return False
    return job.queue == waiter.job.queue or ledger.quota.borrows(job.queue)


def _units(seen: Seen) -> Iterable[_Victim]:
    """A job's elastic workers, unit by unit from the highest index down; rank 0 is below every min and never there."""
    job, living = seen.job, seen.living
    size = len(living)
    while size - job.unit >= job.bounds.least:
        leave = living[size - job.unit : size]
        size -= job.unit
        yield _Victim(seen, tuple(worker.row for worker in leave if worker.row is not None), size)


def _newest(seen: Seen) -> tuple[int, ...]:
    """Newer jobs first: the text of a creation time, turned around."""
    return tuple(-ord(letter) for letter in seen.job.created)


def _pruned(taken: list[_Victim], queue: str, lacking: Pods, ledger: Ledger) -> list[_Victim]:
    """Leave out what is not needed, the least willing first, keeping of each job a run from its highest index down."""
    kept = list(taken)
    for unit in taken:
        deeper = [other for other in kept if other.seen is unit.seen and other.left < unit.left]
        if deeper:
            continue  # a deeper unit of the same job goes, so this one has to
        without = [other for other in kept if other is not unit]
        trial = ledger.copied()
        for other in without:
            trial.release(other.seen, other.rows)
        if trial.reserve(queue, lacking):
            kept = without
    return kept
