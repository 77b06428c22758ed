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

    state: JobState
    rows: tuple[int, ...]
    left: int


def may_give(state: JobState, now_s: float) -> bool:
    """True if a job may have to give workers to a job of its own namespace.

    A pause counts among the jobs of one namespace only. It keeps no borrowed room from others.
    """
    job = state.job
    return state.can_shrink and (job.pause is Pause.NONE or job.paused(now_s) not in (Pause.SHRINK, Pause.BOTH))


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
        may_shrink_in_namespace: Callable[[JobState], bool],
    ) -> None:
        self._room, self._rich, self._poor, self._may_shrink_in_namespace = room, rich, poor, may_shrink_in_namespace
        self._of: dict[str, list[JobState]] = {}
        self._jobs, self._turns = jobs, dict[object, Turn]()  # by token, worked out when first asked
        self._willing: dict[str, list[tuple[Turn, JobState]]] = {}  # by queue, the most willing first, where asked
        for each in jobs:
            self._of.setdefault(each.pool.queue, []).append(each)
        self._sizes: dict[JobKey, int] = {}
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
        return Reservations(self._room.room.with_pods_removed(rows), quota)

    def note_served(self, request: CapacityRequest) -> None:
        """Note that a request was met without anybody leaving."""
        self._best.reserve(request)

    def select_victims(self, request: CapacityRequest) -> dict[JobKey, tuple[JobState, int]] | None:
        """Return the jobs that shrink so that a request fits, with the sizes left to them; None when nothing helps.

        The room is charged to the waiting job then. Units that turn out not to be needed stay.
        """
        if not self._best.fits(request):
            return None
        room, victims = self._room, list[_Victim]()
        for unit in self._offered(request.queue, request.namespace):
            room.release(unit.state.pool, unit.rows)
            victims.append(unit)
            if room.fits(request):
                break
        else:
            for unit in victims:
                room.release(unit.state.pool, unit.rows, -1)
            return None
        sizes: dict[JobKey, tuple[JobState, int]] = {}
        for unit in _pruned(victims, request, room):
            key = unit.state.job.key
            sizes[key] = unit.state, min(unit.left, sizes[key][1]) if key in sizes else unit.left
        for key, (state, size) in list(sizes.items()):
            if self._poor(state.job):  # it cannot pay for one more restart, so it gives everything in this one
                for unit in _units(state, size):
                    room.release(unit.state.pool, unit.rows)
                    sizes[key] = state, unit.left
        self._sizes.update({key: size for key, (_, size) in sizes.items()})
        room.reserve(request)
        self._best.reserve(request)
        return sizes

    def _offered(self, queue: str, namespace: str) -> Iterator[_Victim]:
        """Give what may be taken for a job, unit by unit: from its own queue, or borrowed by another one.

        The least important job gives first, then one whose balance covers a restart, then the newest. Within a
        namespace the priorities and deadlines that its owners say count before these two.
        """
        quota = self._room.quota
        queues = [name for name in self._of if name == queue or quota.borrows(name)]
        for _, each in heapq.merge(*map(self._offers, queues), key=itemgetter(0), reverse=True):
            if each.job.key.namespace == namespace and not self._may_shrink_in_namespace(each):
                continue
            for unit in _units(each, self._sizes.get(each.job.key)):
                if each.job.queue != queue and not quota.borrows(each.job.queue):
                    break
                yield unit

    def _offers(self, queue: str) -> list[tuple[Turn, JobState]]:
        """Return the jobs of a queue that may give, the most willing first."""
        if (found := self._willing.get(queue)) is None:
            self._turns = self._turns or turns_of(self._jobs, lambda each: self._rich(each.job))
            jobs = [(self._turns[each.token], each) for each in self._of[queue]]
            found = self._willing[queue] = sorted(jobs, key=itemgetter(0), reverse=True)
        return found


def _units(state: JobState, size_left: int | None) -> Iterator[_Victim]:
    """Give a job's elastic workers, unit by unit, from the highest index down to its min."""
    job, living = state.job, state.living
    size = len(living) if size_left is None else size_left
    while (smaller := job.sizes.smaller(size)) >= job.bounds.least:
        leave = living[smaller:size]
        size = smaller
        yield _Victim(state, tuple(worker.row for worker in leave if worker.row not in (None, UNKNOWN_NODE)), size)


def _pruned(victims: list[_Victim], request: CapacityRequest, room: Reservations) -> list[_Victim]:
    """Drop the units that are not needed, the least willing job's first; of each job the highest indexes go."""
    needed: list[_Victim] = []
    for _, units in groupby(reversed(victims), key=lambda unit: unit.state.job.key):
        mine = list(units)  # the deepest first, as they were taken last
        while mine:
            room.release(mine[0].state.pool, mine[0].rows, -1)
            if not room.fits(request):
                room.release(mine[0].state.pool, mine[0].rows)
                break
            mine.pop(0)
        needed += mine
    return needed
