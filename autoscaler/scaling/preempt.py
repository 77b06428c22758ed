"""Second phase: serves the waiting jobs in order. Elastic workers leave if that lets a waiting job start.

A victim is the worker that its controller will really delete: the highest index first, on the node where it runs. Eight
one-GPU workers on eight nodes make no room for one worker of eight GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter

from turnout.autoscaler.model import UNKNOWN_NODE, JobState, Observation, Policy, Pool, Reason, Step
from turnout.autoscaler.scaling.free_room import CapacityRequest, FreeRoom, lacking_pods, total_of
from turnout.autoscaler.scaling.guard import Decision, Turn, in_queue_order, in_turn, may_give, turns_of
from turnout.autoscaler.scaling.resize_cost import has_surplus, is_exhausted
from turnout.jobs.model import Job, JobKey
from turnout.kube.pod_shape import PodShape, amount_text


def preempt(before: Decision, observation: Observation, policy: Policy, now_s: float) -> Decision:
    """Return the decision with a step for each waiting job, and for each job that makes room.

    In a strict queue a job that nobody can help blocks all jobs behind it, because they must not start before it.
    """
    if not before.waiting:
        return before
    # Room that is charged to waiting jobs is not free, even if no worker leaves yet.
    free, expected = before.free, before.free.copied() if before.expected is before.free else before.expected
    wealthy, poor = partial(has_surplus, policy=policy, now_s=now_s), partial(is_exhausted, policy=policy, now_s=now_s)
    able = [each for each in in_queue_order(observation) if each.can_shrink and each.token not in before.steps]
    preemptor = Preemptor(able, expected, wealthy, poor, partial(may_give, now_s=now_s))
    steps: dict[object, Step] = {}
    blocked: dict[str, JobState] = {}  # by strict queue, the job that blocks it
    for waiter in in_turn(before.waiting):
        queue = waiter.job.queue
        if (head := blocked.get(queue)) is not None:
            detail = f"its queue is strict, and {head.job.key} comes first"
            steps[waiter.token] = waiter.hold(Reason.OTHERS_WAIT, detail)
            continue
        for each, step in _steps_for_waiting_job(waiter, preemptor, expected, free):
            steps[each.token] = _with_others(step, steps.get(each.token))
        if (
            queue in observation.queues
            and observation.queues[queue].strict
            and steps[waiter.token].reason is Reason.NEEDS_MORE
        ):
            blocked[queue] = waiter
    alike = before.expected is before.free and not any(step.changes for step in steps.values())
    running = [each for each in before.running if each.token not in steps]
    return replace(before.with_steps(steps), running=running, free=expected if alike else free, expected=expected)


def request_of(state: JobState) -> CapacityRequest:
    """Return the request of a waiting job: the pods that it lacks to its min, under the switch that it requires."""
    near_rows = tuple(worker.row for worker in state.living if worker.row is not None)
    return CapacityRequest(
        state.job.queue, lacking_pods(state), state.job.spread.tier, near_rows, state.job.key.namespace
    )


def _steps_for_waiting_job(
    waiter: JobState, preemptor: Preemptor, expected: FreeRoom, free: FreeRoom
) -> Iterator[tuple[JobState, Step]]:
    """Yield the steps for a waiting job: why it waits, and the shrinks of the jobs that make room for it.

    expected: room once promised workers have left. free: room now. Both are charged.
    """
    job, request = waiter.job, request_of(waiter)
    needs = total_of(request.pods)
    if not expected.quota.is_open(job.queue):
        yield waiter, waiter.hold(Reason.QUEUE_CLOSED, f"queue {job.queue} is closed")
    elif not expected.quota.fits_empty(job.queue, needs):
        yield waiter, waiter.hold(Reason.OVER_QUOTA, f"its min asks for {_amounts_text(needs)}")
    elif expected.reserve(request):
        preemptor.note_served(request)
        if free.reserve(request):
            yield waiter, waiter.hold(Reason.SCHEDULERS_TURN, "there is room for its min")
        else:
            yield waiter, waiter.hold(Reason.WAITS_FOR_ROOM, "workers are on their way out")
    elif (victims := preemptor.select_victims(request)) is None:
        where = "" if request.tier is None else f" under one switch of tier {request.tier}"
        yield waiter, waiter.hold(Reason.NEEDS_MORE, f"its min asks for {_amounts_text(needs)}{where}")
    else:
        for each, size in victims.values():
            current = each.job.replicas
            detail = f"{_leave_text(current - size)} for {job.key}"
            yield each, Step(each.job.key, size, current, Reason.MAKES_ROOM, detail, job.key)
        who = "1 job makes" if len(victims) == 1 else f"{len(victims)} jobs make"
        yield waiter, waiter.hold(Reason.WAITS_FOR_ROOM, f"{who} room")


def _with_others(step: Step, before: Step | None) -> Step:
    """Return the step of a job that gives to several jobs, with the first of them as beneficiary."""
    if before is None or before.beneficiary is None:
        return step
    detail = f"{_leave_text(step.current - step.target)} for {before.beneficiary} and others"
    return step._replace(detail=detail, beneficiary=before.beneficiary)


def _leave_text(workers: int) -> str:
    return "1 worker leaves" if workers == 1 else f"{workers} workers leave"


def _amounts_text(needs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(amount_text(what, amount) for what, amount in needs) or "nothing"


@dataclass(frozen=True, slots=True)
class _Victim:
    """One unit of one job: the room that it gives back, and the size that is left."""

    state: JobState
    rows: tuple[int, ...]
    size_left: int


class Preemptor:
    """Chooses which jobs give workers, and knows what they could give at most.

    jobs: in order. may_shrink_in_namespace: True for a job that may have to give to a job of its own namespace.
    """

    def __init__(
        self,
        jobs: Sequence[JobState],
        room: FreeRoom,
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
        self._best = self._room_without_elastic()

    def _room_without_elastic(self) -> FreeRoom:
        """Return what there would be if every elastic worker had left."""
        quota, rows = self._room.quota.copied(), dict[PodShape, list[int]]()
        left: dict[Pool, list[int]] = {}
        for offers in self._of.values():
            for each in offers:
                left.setdefault(each.pool, []).extend(each.evictable_nodes)
        for pool, where in left.items():
            rows.setdefault(pool.shape, []).extend(where)
            quota.take(pool.queue, pool.needs, -len(where))
        return FreeRoom(self._room.room.with_pods_removed(rows), quota)

    def note_served(self, request: CapacityRequest) -> None:
        """Note that a request was met without any victim."""
        self._best.reserve(request)

    def select_victims(self, request: CapacityRequest) -> dict[JobKey, tuple[JobState, int]] | None:
        """Return the jobs that shrink so that a request fits, with the sizes left to them; None when nothing helps.

        The room is charged to the waiting job then. Units that turn out not to be needed stay.
        """
        if not self._best.fits(request):
            return None
        room, victims = self._room, list[_Victim]()
        for unit in self._offered_units(request.queue, request.namespace):
            room.release(unit.state.pool, unit.rows)
            victims.append(unit)
            if room.fits(request):
                break
        else:
            for unit in victims:
                room.release(unit.state.pool, unit.rows, -1)
            return None
        sizes: dict[JobKey, tuple[JobState, int]] = {}
        for unit in _needed_units(victims, request, room):
            key = unit.state.job.key
            sizes[key] = unit.state, min(unit.size_left, sizes[key][1]) if key in sizes else unit.size_left
        for key, (state, size) in list(sizes.items()):
            if self._poor(state.job):  # it cannot pay for one more restart, so it gives everything in this one
                for unit in _units(state, size):
                    room.release(unit.state.pool, unit.rows)
                    sizes[key] = state, unit.size_left
        self._sizes.update({key: size for key, (_, size) in sizes.items()})
        room.reserve(request)
        self._best.reserve(request)
        return sizes

    def _offered_units(self, queue: str, namespace: str) -> Iterator[_Victim]:
        """Give what may be taken for a job, unit by unit: from its own queue, or borrowed by another one.

        The least important job gives first, then one whose balance covers a restart, then the newest. Within a
        namespace the priorities and deadlines that its owners say count before these two.
        """
        quota = self._room.quota
        queues = [name for name in self._of if name == queue or quota.borrows(name)]
        for _, each in heapq.merge(*map(self._willing_jobs, queues), key=itemgetter(0), reverse=True):
            if each.job.key.namespace == namespace and not self._may_shrink_in_namespace(each):
                continue
            for unit in _units(each, self._sizes.get(each.job.key)):
                if each.job.queue != queue and not quota.borrows(each.job.queue):
                    break
                yield unit

    def _willing_jobs(self, queue: str) -> list[tuple[Turn, JobState]]:
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


def _needed_units(victims: list[_Victim], request: CapacityRequest, room: FreeRoom) -> list[_Victim]:
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
