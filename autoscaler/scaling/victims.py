"""Chooses the elastic workers that have to leave so that one waiting job fits, and no more of them.

A victim is the worker that its controller will really delete: the highest index first, on the node where it runs. Eight
one-GPU workers on eight nodes make no room for one worker of eight GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from turnout.autoscaler.model import UNKNOWN_NODE, JobState, Pool
from turnout.autoscaler.scaling.reservations import CapacityRequest, Reservations
from turnout.autoscaler.scaling.turns import Turn, turns_of
from turnout.jobs.model import Job, JobKey, Pause
from turnout.kube.pod_shape import PodShape


@dataclass(frozen=True, slots=True)
class _Victim:
    """One unit of one job: the room that it gives back, and the size that is left."""

    seen: JobState
    rows: tuple[int, ...]
    left: int


def may_give(seen: JobState, now_s: float) -> bool:
    """True if a job may be told to give workers to a job of its own namespace.

    A pause holds among the jobs of one namespace only. It keeps no borrowed room from others.
    """
    job = seen.job
    return seen.gives and (job.pause is Pause.NONE or job.paused(now_s) not in (Pause.SHRINK, Pause.BOTH))


class Preemptor:
    """Chooses which jobs give workers, and knows what they could give at most. jobs: in the order of their turns.

    at_home: True for a job that may be told to give to a job of its own namespace.
    """

    def __init__(
        self,
        jobs: Sequence[JobState],
        room: Reservations,
        rich: Callable[[Job], bool],
        poor: Callable[[Job], bool],
        at_home: Callable[[JobState], bool],
    ) -> None:
        self._room, self._rich, self._poor, self._at_home = room, rich, poor, at_home
        self._of: dict[str, list[JobState]] = {}
        self._jobs, self._turns = jobs, dict[object, Turn]()  # by token, worked out when first asked
        self._willing: dict[str, list[tuple[Turn, JobState]]] = {}  # by queue, the most willing first, where asked
        for each in jobs:
            self._of.setdefault(each.pool.queue, []).append(each)
        self._gave: dict[JobKey, int] = {}
        self._best = self._all_gone()

    def _all_gone(self) -> Reservations:
        """Return what there would be if every elastic worker had left."""
        quota, rows = self._room.quota.copied(), dict[PodShape, list[int]]()
        left: dict[Pool, list[int]] = {}
        for offers in self._of.values():
            for each in offers:
                left.setdefault(each.pool, []).extend(each.evictable_nodes)
        for pool, where in left.items():
            rows.setdefault(pool.shape, []).extend(where)
            quota.take(pool.queue, pool.needs, -len(where))
        return Reservations(self._room.room.given(rows), quota)

    def served(self, wish: CapacityRequest) -> None:
        """Note that a request was met without anybody leaving."""
        self._best.reserve(wish)

    def select_victims(self, wish: CapacityRequest) -> dict[JobKey, tuple[JobState, int]] | None:
        """Return the jobs that shrink so that a request fits, with the sizes left to them; None when nothing helps.

        The room is charged to the waiting job then. Units that turn out not to be needed stay.
        """
        if not self._best.fits(wish):
            return None
        room, taken = self._room, list[_Victim]()
        for unit in self._offered(wish.queue, wish.namespace):
            room.release(unit.seen.pool, unit.rows)
            taken.append(unit)
            if room.fits(wish):
                break
        else:
            for unit in taken:
                room.release(unit.seen.pool, unit.rows, -1)
            return None
        sizes: dict[JobKey, tuple[JobState, int]] = {}
        for unit in _pruned(taken, wish, room):
            key = unit.seen.job.key
            sizes[key] = unit.seen, min(unit.left, sizes[key][1]) if key in sizes else unit.left
        for key, (seen, size) in list(sizes.items()):
            if self._poor(seen.job):  # it cannot pay for one more restart, so it gives everything in this one
                for unit in _units(seen, size):
                    room.release(unit.seen.pool, unit.rows)
                    sizes[key] = seen, unit.left
        self._gave.update({key: size for key, (_, size) in sizes.items()})
        room.reserve(wish)
        self._best.reserve(wish)
        return sizes

    def _offered(self, queue: str, namespace: str) -> Iterator[_Victim]:
        """Give what may be taken for a job, unit by unit: from its own queue, or borrowed by another one.

        The least important job gives first, then one whose balance covers a restart, then the newest. Within a
        namespace the priorities and deadlines that its owners say count before these two.
        """
        quota = self._room.quota
        asked = [name for name in self._of if name == queue or quota.borrows(name)]
        for _, each in heapq.merge(*map(self._offers, asked), key=itemgetter(0), reverse=True):
            if each.job.key.namespace == namespace and not self._at_home(each):
                continue
            for unit in _units(each, self._gave.get(each.job.key)):
                if each.job.queue != queue and not quota.borrows(each.job.queue):
                    break
                yield unit

    def _offers(self, queue: str) -> list[tuple[Turn, JobState]]:
        """Return the jobs of a queue that may give, the most willing first."""
        if (found := self._willing.get(queue)) is None:
            self._turns = self._turns or turns_of(self._jobs, lambda each: self._rich(each.job))
            told = [(self._turns[each.token], each) for each in self._of[queue]]
            found = self._willing[queue] = sorted(told, key=itemgetter(0), reverse=True)
        return found


def _units(seen: JobState, gave: int | None) -> Iterator[_Victim]:
    """Give a job's elastic workers, unit by unit, from the highest index down to its min."""
    job, living = seen.job, seen.living
    size = len(living) if gave is None else gave
    while (smaller := job.sizes.smaller(size)) >= job.bounds.least:
        leave = living[smaller:size]
        size = smaller
        yield _Victim(seen, tuple(worker.row for worker in leave if worker.row not in (None, UNKNOWN_NODE)), size)


def _pruned(taken: list[_Victim], wish: CapacityRequest, room: Reservations) -> list[_Victim]:
    """Drop the units that are not needed, the least willing job's first; of each job the highest indexes go."""
    kept: list[_Victim] = []
    for _, units in groupby(reversed(taken), key=lambda unit: unit.seen.job.key):
        mine = list(units)  # the deepest first, as they were taken last
        while mine:
            room.release(mine[0].seen.pool, mine[0].rows, -1)
            if not room.fits(wish):
                room.release(mine[0].seen.pool, mine[0].rows)
                break
            mine.pop(0)
        kept += mine
    return kept
