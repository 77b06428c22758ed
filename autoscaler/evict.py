"""Evict first: the elastic workers that have to leave so that one waiting job fits, and no more of them.

A victim is what its controller will really delete, the highest index first, on the node where it stands: eight
one-GPU workers on eight nodes make no room for a worker of eight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.model import ELSEWHERE, Seen
from autoscaler.quota import Quota, needs_of, total_of
from autoscaler.room import Charges, Room
from jobs.model import JobKey, Pause
from kube.shape import PodShape

Pods = Sequence[tuple[PodShape, int]]


@dataclass(slots=True)
class Ledger:
    """What is left while a decision is made."""

    room: Room
    quota: Quota

    def copied(self) -> Ledger:
        """The same, to be charged."""
        return Ledger(self.room.copied(), self.quota.copied())

    def could(self, queue: str, shape: PodShape, pods: int) -> bool:
        """Would pods of one shape fit?"""
        return self.room.total(shape) >= pods and self.quota.holds(queue, needs_of(shape, pods))

    def reserve(self, queue: str, pods: Pods) -> bool:
        """Charge pods to their queue and to nodes, all or none."""
        needs = total_of(pods)
        if not self.quota.holds(queue, needs) or self._take(pods) is None:
            return False
        self.quota.take(queue, needs)
        return True

    def fits(self, queue: str, pods: Pods) -> bool:
        """Would `reserve` do it? Leaves everything as it was."""
        if any(self.room.total(shape) < count for shape, count in pods):
            return False  # seen at once, as most that do not fit are
        taken = self._take(pods) if self.quota.holds(queue, total_of(pods)) else None
        for shape, charges in taken or ():
            self.room.undo(shape, charges)
        return taken is not None

    def _take(self, pods: Pods) -> list[tuple[PodShape, Charges]] | None:
        """Charge pods to nodes, all or none."""
        done: list[tuple[PodShape, Charges]] = []
        for shape, count in pods:
            charges = self.room.take(shape, count)
            if charges is None:
                for other, charged in done:
                    self.room.undo(other, charged)
                return None
            done.append((shape, charges))
        return done

    def release(self, seen: Seen, rows: Sequence[int], sign: int = 1) -> None:
        """Give back what workers took that leave, or with sign=-1 let them stay."""
        if rows:
            self.room.give(seen.job.shape, rows, sign)
            self.quota.take(seen.job.queue, needs_of(seen.job.shape, len(rows)), -sign)

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


def by_willingness(jobs: Iterable[Seen]) -> list[Seen]:
    """Those that may give anything, the least important and newest first."""
    able = [each for each in jobs if _may_give(each)]
    able.sort(key=lambda each: each.job.key)
    able.sort(key=lambda each: each.job.created, reverse=True)
    able.sort(key=lambda each: each.job.priority)
    return able


def make_room(
    waiter: Seen, lacking: Pods, willing: Iterable[Seen], ledger: Ledger
) -> dict[JobKey, tuple[int, int]] | None:
    """The jobs that shrink so that the waiter fits: key -> (size before, size after); None when nothing helps.

    willing: as by_willingness orders them. The room is charged to the waiter then; units that turn out not to be
    needed stay.
    """
    queue = waiter.job.queue
    taken: list[_Victim] = []
    for unit in _offered(waiter, willing, ledger):
        ledger.release(unit.seen, unit.rows)
        taken.append(unit)
        if ledger.fits(queue, lacking):
            break
    else:
        for unit in taken:
            ledger.release(unit.seen, unit.rows, -1)
        return None
    sizes: dict[JobKey, tuple[int, int]] = {}
    for unit in _pruned(taken, queue, lacking, ledger):
        key = unit.seen.job.key
        sizes[key] = (unit.seen.job.replicas, min(unit.left, sizes.get(key, (0, unit.left))[1]))
    ledger.reserve(queue, lacking)
    return sizes


def _offered(waiter: Seen, willing: Iterable[Seen], ledger: Ledger) -> Iterator[_Victim]:
    """What may be taken for a job, unit by unit: of its own queue, or borrowed by another."""
    for each in willing:
        if each.job.queue == waiter.job.queue:
            yield from _units(each)
        else:
            for unit in _units(each):
                if not ledger.quota.borrows(each.job.queue):
                    break
                yield unit


def _may_give(seen: Seen) -> bool:
    return seen.job.elastic and seen.job.pause not in (Pause.SHRINK, Pause.BOTH) and not seen.waits


def _units(seen: Seen) -> Iterator[_Victim]:
    """A job's elastic workers, unit by unit from the highest index down; rank 0 is below every min and never there."""
    job, living = seen.job, seen.living
    size = len(living)
    while size - job.unit >= job.bounds.least:
        leave = living[size - job.unit : size]
        size -= job.unit
        yield _Victim(seen, tuple(worker.row for worker in leave if worker.row not in (None, ELSEWHERE)), size)


def _pruned(taken: list[_Victim], queue: str, lacking: Pods, ledger: Ledger) -> list[_Victim]:
    """Leave out what is not needed, the least willing last, keeping of each job a run from its highest index down."""
    kept = list(taken)
    for unit in taken:
        if any(other.seen is unit.seen and other.left < unit.left for other in kept):
            continue  # a deeper unit of the same job goes, so this one has to
        ledger.release(unit.seen, unit.rows, -1)
        if ledger.fits(queue, lacking):
            kept.remove(unit)
        else:
            ledger.release(unit.seen, unit.rows)
    return kept
