"""Second phase: serve the waiting jobs in order. Elastic workers leave if that lets a waiting job start.

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

from turnout.autoscaler.model import UNKNOWN_NODE, Identity, JobState, Observation, Policy, Pool, Reason, Step
from turnout.autoscaler.scaling.free_room import CapacityRequest, FreeRoom, lacking_pods, total_of
from turnout.autoscaler.scaling.guard import Decision, Turn, in_queue_order, in_turn, may_give, turns_of
from turnout.autoscaler.scaling.resize_cost import has_surplus, is_exhausted
from turnout.jobs.model import Job, JobKey
from turnout.kube.pod_shape import PodShape, amount_text


def preempt(before: Decision, observation: Observation, policy: Policy, now_s: float) -> Decision:
    """Return the decision with a step for each waiting job, and for each job that makes room.

    In a strict queue, a job that nobody can help blocks all jobs behind it, because they must not start before it. The
    rooms of `before` are charged. If no job waits, `before` itself is returned. now_s: seconds since 1970.
    """
    if not before.waiting:
        return before
    # Room that is charged to waiting jobs is not free, even if no worker leaves yet.
    free, expected = before.free, before.free.copy() if before.expected is before.free else before.expected
    can_pay_restart = partial(has_surplus, policy=policy, now_s=now_s)
    would_be_exhausted = partial(is_exhausted, policy=policy, now_s=now_s)
    givers = [each for each in in_queue_order(observation) if each.can_shrink and each.identity not in before.steps]
    preemptor = Preemptor(givers, expected, can_pay_restart, would_be_exhausted, partial(may_give, now_s=now_s))
    steps: dict[Identity, Step] = {}
    blocked: dict[str, JobState] = {}  # by strict queue, the job that blocks it
    for waiter in in_turn(before.waiting):
        queue = waiter.job.queue
        if (blocking_job := blocked.get(queue)) is not None:
            detail = f"its queue is strict, and {blocking_job.job.key} comes first"
            steps[waiter.identity] = waiter.hold(Reason.OTHERS_WAIT, detail)
            continue
        for each, step in _steps_for_waiting_job(waiter, preemptor, expected, free):
            steps[each.identity] = _with_first_beneficiary(step, steps.get(each.identity))
        if (
            queue in observation.queues
            and observation.queues[queue].strict
            and steps[waiter.identity].reason is Reason.NEEDS_MORE
        ):
            blocked[queue] = waiter
    is_room_same = before.expected is before.free and not any(step.changes for step in steps.values())
    running = [each for each in before.running if each.identity not in steps]
    return replace(
        before.with_steps(steps), running=running, free=expected if is_room_same else free, expected=expected
    )


def request_of(state: JobState) -> CapacityRequest:
    """Return a waiting job's request: the pods that it lacks to its min, the tier of switch that it requires, and
    the nodes of its living workers.
    """
    near_rows = tuple(worker.row for worker in state.living if worker.row is not None)
    return CapacityRequest(
        state.job.queue, lacking_pods(state), state.job.spread.tier, near_rows, state.job.key.namespace
    )


def _steps_for_waiting_job(
    waiter: JobState, preemptor: Preemptor, expected: FreeRoom, free: FreeRoom
) -> Iterator[tuple[JobState, Step]]:
    """Yield (job, step): the shrinks of the jobs that make room for a waiting job, then its own step, which keeps its
    size.

    waiter: the waiting job. preemptor: chooses the jobs that shrink, in the room `expected`. expected: the room after
    promised workers have left; the job is charged if it fits, also if that needs shrinks. free: the room now; the job
    is charged if it fits in both without a shrink.
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


def _with_first_beneficiary(step: Step, before: Step | None) -> Step:
    """Return the step with the beneficiary of an earlier shrink of the same job, which it replaces.

    before: the earlier step, None for none. Without a beneficiary in it, `step` is returned unchanged.
    """
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
    """The workers between two sizes of one job, which leave together."""

    state: JobState
    rows: tuple[int, ...]  # node rows of the workers that leave; workers without a known node have none
    size_left: int  # size of the job after that, in workers, >= its min


class Preemptor:
    """The choice of the jobs that give workers to waiting jobs, and of the workers that leave.

    jobs: jobs that can shrink, sorted by ORDER. room: the room after promised workers have left; it is charged.
    can_pay_restart: returns True for a job whose resize budget covers one more restart. would_be_exhausted: returns
    True for a job that cannot pay another restart after this one. may_shrink_in_namespace: returns True for a job that
    may be shrunk for a waiting job of its own namespace.
    """

    def __init__(
        self,
        jobs: Sequence[JobState],
        room: FreeRoom,
        can_pay_restart: Callable[[Job], bool],
        would_be_exhausted: Callable[[Job], bool],
        may_shrink_in_namespace: Callable[[JobState], bool],
    ) -> None:
        """Prepare the choice for one decision. The class docstring explains the arguments."""
        self._room, self._can_pay_restart, self._would_be_exhausted = room, can_pay_restart, would_be_exhausted
        self._may_shrink_in_namespace = may_shrink_in_namespace
        self._jobs_of_queue: dict[str, list[JobState]] = {}
        self._jobs, self._turns = jobs, dict[Identity, Turn]()  # by identity, computed at first use
        self._sorted_jobs: dict[str, list[tuple[Turn, JobState]]] = {}  # by queue, at first use; last turn first
        for each in jobs:
            self._jobs_of_queue.setdefault(each.pool.queue, []).append(each)
        self._sizes: dict[JobKey, int] = {}  # sizes that earlier shrinks of this decision leave, in workers
        self._room_without_elastic = self._remove_elastic()

    def _remove_elastic(self) -> FreeRoom:
        """Return a copy of the room and quota as they would be if every elastic worker had left."""
        quota, rows = self._room.quota.copy(), dict[PodShape, list[int]]()
        rows_of_pool: dict[Pool, list[int]] = {}
        for givers in self._jobs_of_queue.values():
            for each in givers:
                rows_of_pool.setdefault(each.pool, []).extend(each.evictable_rows)
        for pool, pool_rows in rows_of_pool.items():
            rows.setdefault(pool.shape, []).extend(pool_rows)
            quota.take(pool.queue, pool.needs, -len(pool_rows))
        return FreeRoom(self._room.room.with_pods_removed(rows), quota)

    def note_served(self, request: CapacityRequest) -> None:
        """Note that a request was met without any victim: charge it to the room without elastic workers, too."""
        self._room_without_elastic.reserve(request)

    def select_victims(self, request: CapacityRequest) -> dict[JobKey, tuple[JobState, int]] | None:
        """Return job -> (state, size that is left in workers) of the jobs that shrink so that a request fits; None if
        nothing helps.

        The request is then charged to the room, after the room of the victims was released. Victims that turn out not
        to be needed keep their workers. A job that would be exhausted gives all its elastic workers, since it cannot
        pay another restart. With None nothing is charged. A job may be returned again by a later call, with a smaller
        size.
        """
        if not self._room_without_elastic.fits(request):
            return None
        room, victims = self._room, list[_Victim]()
        for unit in self._offered_units(request.queue, request.namespace):
            room.release(unit.state.pool, unit.rows)
            victims.append(unit)
            if room.fits(request):
                break
        else:
            for unit in victims:
                room.charge_rows(unit.state.pool, unit.rows)
            return None
        sizes: dict[JobKey, tuple[JobState, int]] = {}
        for unit in _needed_units(victims, request, room):
            key = unit.state.job.key
            sizes[key] = unit.state, min(unit.size_left, sizes[key][1]) if key in sizes else unit.size_left
        for key, (state, size) in list(sizes.items()):
            if self._would_be_exhausted(state.job):  # so that this restart is its last
                for unit in _elastic_units(state, size):
                    room.release(unit.state.pool, unit.rows)
                    sizes[key] = state, unit.size_left
        self._sizes.update({key: size for key, (_, size) in sizes.items()})
        room.reserve(request)
        self._room_without_elastic.reserve(request)
        return sizes

    def _offered_units(self, queue: str, namespace: str) -> Iterator[_Victim]:
        """Yield victims for a waiting job, the last turn first: from its own queue, or from a queue that has borrowed.

        So the least important job gives first, then a job whose balance covers a restart, then the newest. Within a
        namespace, the priorities and deadlines that owners write count before that. queue, namespace: of the waiting
        job.
        """
        quota = self._room.quota
        queues = [name for name in self._jobs_of_queue if name == queue or quota.borrows(name)]
        for _, each in heapq.merge(*map(self._jobs_last_turn_first, queues), key=itemgetter(0), reverse=True):
            if each.job.key.namespace == namespace and not self._may_shrink_in_namespace(each):
                continue
            for unit in _elastic_units(each, self._sizes.get(each.job.key)):
                if each.job.queue != queue and not quota.borrows(each.job.queue):
                    break
                yield unit

    def _jobs_last_turn_first(self, queue: str) -> list[tuple[Turn, JobState]]:
        """Return (turn, job) of the jobs of a queue that may give, the last turn first. Cached for this decision: do
        not change it.
        """
        if (sorted_jobs := self._sorted_jobs.get(queue)) is None:
            self._turns = self._turns or turns_of(self._jobs, lambda each: self._can_pay_restart(each.job))
            jobs = [(self._turns[each.identity], each) for each in self._jobs_of_queue[queue]]
            sorted_jobs = self._sorted_jobs[queue] = sorted(jobs, key=itemgetter(0), reverse=True)
        return sorted_jobs


def _elastic_units(state: JobState, size_left: int | None) -> Iterator[_Victim]:
    """Yield a job's elastic workers as victims, size by size, from the highest index down, and never below its min.

    size_left: the size from which to begin, in workers; None for the number of its living workers.
    """
    job, living = state.job, state.living
    size = len(living) if size_left is None else size_left
    while (smaller := job.sizes.smaller(size)) >= job.bounds.minimum:
        leaving = living[smaller:size]
        size = smaller
        yield _Victim(state, tuple(worker.row for worker in leaving if worker.row not in (None, UNKNOWN_NODE)), size)


def _needed_units(victims: list[_Victim], request: CapacityRequest, room: FreeRoom) -> list[_Victim]:
    """Return the victims without which the request does not fit; the others are charged to the room again.

    The victims that were selected last are spared first. Of each job, the highest indexes leave. victims: in the order
    of selection, those of one job one after another, all released in the room.
    """
    needed: list[_Victim] = []
    for _, units in groupby(reversed(victims), key=lambda unit: unit.state.job.key):
        units_of_job = list(units)  # the deepest first, as they were taken last
        while units_of_job:
            room.charge_rows(units_of_job[0].state.pool, units_of_job[0].rows)
            if not room.fits(request):
                room.release(units_of_job[0].state.pool, units_of_job[0].rows)
                break
            units_of_job.pop(0)
        needed += units_of_job
    return needed
