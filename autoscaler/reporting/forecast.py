"""Estimate when waiting jobs start, by twelve simulated futures.

Nobody knows when a job ends. Each future draws an end for every running job from the run times of its queue, and starts
waiting jobs in order on whole nodes and within quotas. The earliest, the middle and the latest start over all futures
are reported. The real start is before the earliest with a probability of 1/13, and after the latest with 1/13. The
draws depend on the jobs only, so an estimate changes only with its inputs.

A job that has run longer than all known jobs, or whose queue has no finished job, is expected to run as long again as
it has run: with a probability of 3/5 it runs on for between 1/4 and 4 times its present age. This is a guess. To bound
the cost, only the first ends are simulated, and of jobs with the same request only the first is tried.
"""

from __future__ import annotations

import heapq
import math
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.autoscaler.capacity import Charges
from turnout.autoscaler.model import ORDER, UNKNOWN_NODE, JobState, Observation, Reason, Step
from turnout.autoscaler.scaling.free_room import CapacityRequest, FreeRoom, Quota, lacking_pods, total_of
from turnout.autoscaler.scaling.guard import in_turn
from turnout.jobs.model import JobKey
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s

DRAWS = 12  # simulated futures
REFRESH_S = 10.0  # between two forecasts
NEW_JOB_REFRESH_S = 1.0  # between two forecasts if a new job waits
MAX_WAITERS = 200  # waiting jobs that are simulated, the first by their turns; the others start after these
GRACE_S = 30.0  # Kubernetes' own time for a pod to end in; a job's may differ
SCHEDULER_S = (5.0, 60.0)  # likely and longest time of a scheduler that has room

_GUESS = "a guess, since too few jobs have finished yet: that each runs as long again as it has run, more or less"
_MAX_SINGLE_COUNTS = 2000  # leaving workers up to which their nodes are counted one by one
_SERVED = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
_UNTRUSTED = (Reason.STALE, Reason.NODES_UNREADY)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected start of a job. Times are in seconds since 1970, in ascending order; NEVER for never or unknown."""

    early_s: float  # earliest start
    likely_s: float  # median start
    late_s: float  # latest start
    because: str  # the basis of the estimate, as the rest of a sentence
    guess: bool = False  # too few jobs have finished for a real estimate

    @property
    def known(self) -> bool:
        """True if a likely start is known."""
        return self.likely_s < NEVER


class ForecastCache:
    """The last estimates. They are computed again after REFRESH_S, or after NEW_JOB_REFRESH_S if a new job waits."""

    def __init__(self) -> None:
        self._runtime_stats, self._at_s = RuntimeStats(), -math.inf
        self._starts: dict[JobKey, tuple[float, float, float]] = {}
        self._waiting: set[JobKey] = set()

    def start_times(
        self,
        observation: Observation,
        steps: Sequence[Step],
        ended: Callable[[], Iterable[Ended]],
        now_s: float,
        dry_run: bool,
    ) -> Mapping[JobKey, tuple[float, float, float]]:
        """Return job -> (early, likely, late) start, in seconds since 1970, of each waiting job whose latest start is
        known.

        Computed again only after REFRESH_S, or NEW_JOB_REFRESH_S if a new job waits; until then the last answer is
        returned. steps: one for each job of the observation, in its order. ended: called at a new computation, returns
        ended jobs that still exist. dry_run: True if no worker leaves for a waiting job. now_s: seconds since 1970.
        """
        waiting = {each.job.key for each in observation.jobs if each.is_waiting}
        due_s = REFRESH_S if waiting <= self._waiting else NEW_JOB_REFRESH_S
        if not 0 <= now_s - self._at_s < due_s:
            self._at_s, self._waiting = now_s, waiting
            self._runtime_stats.add_ended(ended())
            estimates = forecast(observation, steps, self._runtime_stats, now_s, dry_run)
            times = ((key, (each.early_s, each.likely_s, each.late_s)) for key, each in estimates.items())
            self._starts = {key: each for key, each in times if each[2] < NEVER}
        return self._starts


def forecast(
    observation: Observation, steps: Sequence[Step], runtime_stats: RuntimeStats, now_s: float, dry_run: bool = False
) -> dict[JobKey, Estimate]:
    """Return an estimate for each job that waits for its min.

    steps: of this observation, one for each of its jobs, in their order. runtime_stats: run times of finished jobs.
    dry_run: True if no worker leaves for a waiting job. now_s: seconds since 1970.
    """
    estimates: dict[JobKey, Estimate] = {}
    to_simulate: list[JobState] = []
    served: list[JobState] = []
    waiting = {each.identity: step for each, step in zip(observation.jobs, steps, strict=True) if each.is_waiting}
    for each in in_turn(sorted((each for each in observation.jobs if each.is_waiting), key=ORDER)):
        step = waiting[each.identity]
        if (estimate := _known_start(step, now_s, dry_run)) is not None:
            estimates[each.job.key] = estimate
            if step.reason in _SERVED:
                served.append(each)
        else:
            to_simulate.append(each)
    if to_simulate:
        estimates |= _simulate_futures(to_simulate, observation, served, runtime_stats, now_s, dry_run)
    return estimates


def _known_start(step: Step, now_s: float, dry_run: bool) -> Estimate | None:
    """Return the estimate of a job that needs no simulation; None if it needs one.

    now_s: seconds since 1970. dry_run: True if no worker leaves for a waiting job.
    """
    match step.reason:
        case Reason.SCHEDULERS_TURN:
            return Estimate(
                now_s, now_s + SCHEDULER_S[0], now_s + SCHEDULER_S[1], "there is room for its min", guess=True
            )
        case Reason.WAITS_FOR_ROOM if not dry_run:
            likely, late = now_s + GRACE_S / 2, now_s + GRACE_S + SCHEDULER_S[0]
            return Estimate(now_s, likely, late, "workers leave for it, each within its grace, if the autoscaler acts")
        case Reason.OVER_QUOTA:
            return Estimate(NEVER, NEVER, NEVER, "never: its min is more than its queue may have")
        case Reason.QUEUE_CLOSED:
            return Estimate(NEVER, NEVER, NEVER, "not before its queue is open again")
        case reason if reason in _UNTRUSTED:
            return Estimate(NEVER, NEVER, NEVER, "nobody can say: the observation cannot be trusted")
    return None


def _simulate_futures(
    later: Sequence[JobState],
    observation: Observation,
    served: Sequence[JobState],
    runtime_stats: RuntimeStats,
    now_s: float,
    dry_run: bool,
) -> dict[JobKey, Estimate]:
    """Return the estimates of the `later` jobs from DRAWS simulated futures.

    later: in the order of their turns; those beyond MAX_WAITERS get no likely start. served: waiting jobs that start
    before them. runtime_stats: run times of finished jobs. now_s: seconds since 1970. dry_run: True if no worker leaves
    for a waiting job.
    """
    shrinking = set() if dry_run else _shrinking_queues(observation, later)
    start = _room_after_shrinks(observation, shrinking, served)
    running = sorted(
        [each for each in observation.jobs if each.bound_workers and not each.is_waiting],
        key=lambda each: each.job.queue,
    )
    remaining_s, ages = _draw_remaining_s(running, runtime_stats, now_s)
    first = later[:MAX_WAITERS]
    groups = _demand_groups(first, runtime_stats, ages)
    starts = [simulate(draw, start, running, shrinking, remaining_s[draw], groups) for draw in range(DRAWS)]
    estimates: dict[JobKey, Estimate] = {}
    for rank, each in enumerate(first):
        starts_s = sorted(future.get(rank, NEVER) for future in starts)
        guess = not len(runtime_stats.of(each.job.queue))
        estimates[each.job.key] = _estimate(starts_s, now_s, len(running), rank, guess)
    behind = f"{len(first)} waiting jobs come first: nobody looks farther"
    return estimates | {each.job.key: Estimate(now_s, NEVER, NEVER, behind) for each in later[len(first) :]}


def _estimate(starts_s: list[float], now_s: float, running: int, rank: int, guess: bool) -> Estimate:
    """Return the estimate of a job from its simulated starts: earliest, median and latest.

    NEVER if no future has a start. starts_s: seconds from now in each future, ascending; NEVER for a future without a
    start. running: number of running jobs. rank: number of waiting jobs before it. guess: True if too few run times are
    known. now_s: seconds since 1970.
    """
    if not running and starts_s[0] == NEVER:
        return Estimate(
            now_s, NEVER, NEVER, "beyond what can be foreseen: no job runs whose end would make room", guess
        )
    because = "as the job that runs ends" if running == 1 else f"as the {running} jobs that run end"
    if not running:
        because = "as jobs that start before it end"
    if rank:
        because += f", after {rank} waiting job{'' if rank == 1 else 's'}"
    if guess:
        because += f"; {_GUESS}"
    if starts_s[0] == NEVER:
        return Estimate(now_s, NEVER, NEVER, f"beyond what can be foreseen {because}", guess)
    return Estimate(now_s + starts_s[0], now_s + median(starts_s), now_s + starts_s[-1], because, guess)


def _room_after_shrinks(observation: Observation, shrinking: Collection[str], served: Sequence[JobState]) -> FreeRoom:
    """Return a copy of the room after workers have left and the `served` jobs have started.

    shrinking: queues whose elastic workers all leave; in the others only promised workers leave.
    """
    quota, rows_of_shape = Quota(observation.queues), dict[PodShape, list[int]]()
    for each in observation.jobs:
        if each.can_shrink or each.promised:
            left_rows = (
                each.promised + each.evictable_rows
                if each.can_shrink and each.job.queue in shrinking
                else each.promised
            )
            rows_of_shape.setdefault(each.job.shape, []).extend(left_rows)
            quota.take(each.job.queue, each.pool.needs, -len(left_rows))
    if sum(map(len, rows_of_shape.values())) > _MAX_SINGLE_COUNTS:
        room = observation.room.with_pods_removed(rows_of_shape)  # counts all nodes again
    else:
        room = observation.room.copy()
        for shape, shape_rows in rows_of_shape.items():
            room.release(shape, shape_rows)
    free_room = FreeRoom(room, quota)
    for each in served:
        free_room.reserve(_request(each))
    return free_room


def _shrinking_queues(observation: Observation, later: Sequence[JobState]) -> set[str]:
    """Return the queues whose elastic workers leave: a job of `later` waits there, or the queue has borrowed."""
    quota = Quota(observation.queues)
    return {each.job.queue for each in later} | {name for name in observation.queues if quota.borrows(name)}


def _draw_remaining_s(running: Sequence[JobState], runtime_stats: RuntimeStats, now_s: float) -> tuple[Floats, Floats]:
    """Return (how long running jobs still run, in seconds, float[draws, jobs]; their ages in seconds, float[jobs]).

    running: jobs with workers, grouped by queue. now_s: seconds since 1970.
    """
    ages = now_s - np.array([each.workers[0].since_s for each in running], dtype=np.float64)
    queues = Counter([each.job.queue for each in running])
    return runtime_stats.remaining_s(queues.items(), ages, _pseudo_random([each.job.uid for each in running])), ages


def _pseudo_random(uids: Sequence[str]) -> Floats:
    """Return pseudo-random numbers in 0 <= x < 1, float[draws, jobs], always the same for a uid (splitmix64)."""
    seeds = np.array([zlib.crc32(uid.encode()) for uid in uids], np.uint64)
    numbers = np.empty((DRAWS, len(uids)))
    for draw in range(DRAWS):
        mixed: Any = (seeds * np.uint64(DRAWS) + np.uint64(draw + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers[draw] = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
    return numbers


def _demand_groups(waiters: Sequence[JobState], runtime_stats: RuntimeStats, ages: Floats) -> list[DemandGroup]:
    """Return the waiting jobs grouped by request, in the order of the first job of each group.

    runtime_stats: run times of finished jobs. ages: of the running jobs, in seconds.
    """
    groups: dict[CapacityRequest, DemandGroup] = {}
    life_s: dict[str, Floats] = {}
    chances = _pseudo_random([each.job.uid for each in waiters])
    for rank, each in enumerate(waiters):
        request = _request(each)
        if request not in groups:
            if each.job.queue not in life_s:
                life_s[each.job.queue] = runtime_stats.new_job_s(each.job.queue, ages, chances[:, rank])
            groups[request] = DemandGroup(request, total_of(request.pods), life_s[each.job.queue])
        groups[request].ranks.append(rank)
    return list(groups.values())


def _request(state: JobState) -> CapacityRequest:
    """Return the request of a waiting job without its namespace, so that equal requests form one group."""
    tier = state.job.spread.tier
    near_rows = () if tier is None else tuple(worker.row for worker in state.living if worker.row is not None)
    return CapacityRequest(state.job.queue, tuple(lacking_pods(state)), tier, near_rows)


Floats = NDArray[np.float64]
Ended = tuple[str, str, Mapping[str, Any]]  # the uid, the queue, the object

MAX_RUN_TIMES = 256  # of one queue, the latest
MAX_QUEUES = 1000  # queues whose run times are kept
MIN_RUN_TIMES = 8  # a queue with fewer uses the run times of all queues
MIN_AGE_S = 60.0  # a younger job counts as this old, since its age predicts nothing yet
DEFAULT_RUN_TIME_S = 3600.0  # median run time of a new job if nothing at all is known
_MAX_CHANCE = 0.99  # larger chances are cut off, since no job runs a hundred times as long again

# Conditions and phases of an ended, and of a running, job.
_ENDS = ("Complete", "Completed", "Succeeded", "Failed", "Terminated", "Aborted")
_BEGINS = ("Running",)
_DURATION = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?")


class RuntimeStats:
    """The run times of finished jobs, by queue, a bounded number of them."""

    def __init__(self) -> None:
        """Start without run times."""
        self._all: deque[float] = deque(maxlen=4 * MAX_RUN_TIMES)  # of all queues
        self._of: dict[str, deque[float]] = {}
        self._counted: set[str] = set()  # uids of ended jobs that are included
        self._sorted: dict[str, Floats] = {}

    def add(self, queue: str, run_time_s: float) -> None:
        """Add the run time of a finished job of a queue, in seconds; ignored if it is not above 0.

        The oldest run times beyond MAX_RUN_TIMES of a queue, and the oldest queues beyond MAX_QUEUES, are dropped.
        """
        if run_time_s <= 0:
            return
        while len(self._of) >= MAX_QUEUES and queue not in self._of:
            del self._of[next(iter(self._of))]
        self._of.setdefault(queue, deque(maxlen=MAX_RUN_TIMES)).append(run_time_s)
        self._all.append(run_time_s)
        self._sorted.clear()

    def add_ended(self, ended: Iterable[Ended]) -> None:
        """Add the run times of ended jobs that were not among the ended jobs of the last call.

        ended: all that still exist. A job whose status states no run time is left out.
        """
        ended_uids = set()
        for uid, queue, raw in ended:
            ended_uids.add(uid)
            if uid not in self._counted and (seconds := run_time_s(raw)) is not None:
                self.add(queue, seconds)
        self._counted = ended_uids

    def of(self, queue: str) -> Floats:
        """Return the run times of a queue's jobs, in seconds, ascending. The array is cached: do not change it.

        A queue with fewer than MIN_RUN_TIMES gets those of all queues together; the array is empty if these are too
        few, too.
        """
        queue_times: Sequence[float] = self._of.get(queue, ())
        name = queue if len(queue_times) >= MIN_RUN_TIMES else ""
        if name not in self._sorted:
            known: Iterable[float] = queue_times if name else (self._all if len(self._all) >= MIN_RUN_TIMES else ())
            self._sorted[name] = np.sort(np.fromiter(known, dtype=np.float64))
        return self._sorted[name]

    def remaining_s(self, queues: Iterable[tuple[str, int]], ages_s: Floats, chances: Floats) -> Floats:
        """Return how long jobs still run, in seconds, float[draws, jobs].

        queues: (name, number of its jobs) in the order of the jobs. ages_s: float[jobs], by now. chances: quantiles,
        0..1, float[draws, jobs]: the time of a larger quantile is longer or equal. Each known run time above a job's
        age is equally likely, and so is a time beyond all of them.
        """
        ages = np.maximum(ages_s, 0.0)
        ends, longer, longest = np.zeros(len(ages), np.int64), np.zeros(len(ages), np.int64), ages.copy()
        known, end, first = [np.zeros(1)], 1, 0  # all run times in one row, so that all jobs are looked up at once
        for queue, count in queues:
            run_times, queue_jobs = self.of(queue), slice(first, first + count)
            known.append(run_times)
            end, first = end + len(run_times), first + count
            if len(run_times):
                ends[queue_jobs] = end
                longer[queue_jobs] = len(run_times) - np.searchsorted(run_times, ages[queue_jobs], side="right")
                longest[queue_jobs] = np.maximum(run_times[-1], ages[queue_jobs])
        row, remaining = np.concatenate(known), np.empty_like(chances)
        for draw, chance in enumerate(chances):  # one by one: small arrays stay in the cache
            places = chance * (longer + 1)
            steps = np.minimum(places.astype(np.int64), longer)
            known_s = row[np.maximum(np.minimum(ends - longer + steps, ends - 1), 0)]
            beyond_s = longest + _as_long_again(longest, places - steps)
            remaining[draw] = np.where(steps == longer, beyond_s, known_s) - ages
        return remaining

    def new_job_s(self, queue: str, running_s: Floats, chances: Floats) -> Floats:
        """Return how long a job runs that has not begun, in seconds, float[draws].

        running_s: ages of running jobs, used if no run times are known. chances: 0..1, float[draws].
        """
        if len(self.of(queue)):
            return self.remaining_s([(queue, 1)], np.zeros(1), chances[:, None]).reshape(-1)
        usual_s = 2 * float(np.median(running_s)) if len(running_s) else DEFAULT_RUN_TIME_S
        return _as_long_again(np.array(usual_s), chances)


def _as_long_again(ages_s: Floats, chances: Floats) -> Floats:
    """Return how much longer jobs of these ages run, in seconds. chances: 0..1.

    A job runs at least x times its age longer with a probability of 1 / (1 + x), for x up to 99. Ages below MIN_AGE_S
    count as MIN_AGE_S.
    """
    capped = np.minimum(chances, _MAX_CHANCE)
    longer_s: Floats = np.maximum(ages_s, MIN_AGE_S) * capped / (1 - capped)
    return longer_s


def run_time_s(raw: Mapping[str, Any]) -> float | None:
    """Return how long a finished job has run, by its own status, in seconds; None if the status does not say. raw: its
    object.

    Jobs of batch and kubeflow write startTime and completionTime, but only a condition for a failed job. Volcano writes
    its phase, conditions by phase, and runningDuration.
    """
    status = raw.get("status") or {}
    if (duration := _DURATION.fullmatch(str(status.get("runningDuration") or "-"))) is not None:
        hours, minutes, seconds = (float(part or 0) for part in duration.groups())
        return hours * 3600 + minutes * 60 + seconds
    changes = _changes(status)
    began_s = _first_time_s(unix_s(status.get("startTime")), *map(changes.get, _BEGINS))
    ended_s = _first_time_s(unix_s(status.get("completionTime")), *map(changes.get, _ENDS))
    return ended_s - began_s if began_s is not None and ended_s is not None and ended_s > began_s else None


def _first_time_s(*times_s: float | None) -> float | None:
    """Return the first of these times that is known, None without any."""
    return next((time_s for time_s in times_s if time_s is not None), None)


def _changes(status: Mapping[str, Any]) -> dict[str, float | None]:
    """Return name of a condition or phase -> when it began, in seconds since 1970; None if that is not stated.

    Volcano's conditions have no type, and their status is a phase. Conditions that are not true are left out.
    """
    began_s = {}
    for each in [*(status.get("conditions") or ()), status.get("state") or {}]:
        if not isinstance(each, Mapping):
            continue
        if "type" not in each or each.get("status") == "True":
            name = each.get("type") or each.get("phase") or each.get("status") or ""
            began_s[str(name)] = unix_s(each.get("lastTransitionTime"))
    return began_s


MAX_ENDS = 48  # ends of running jobs in one future, the earliest
ROUNDS = 24  # rounds of one future: in each, some jobs end and others start
MAX_TRIES = 120  # attempts to find room in one future
NEVER = math.inf  # a start that never comes, or is unknown
PodCharges = list[tuple[PodShape, Charges]]


@dataclass(slots=True)
class DemandGroup:
    """Waiting jobs with the same request, in order. If the first finds no room, none of them does."""

    request: CapacityRequest
    needs: tuple[tuple[str, int], ...]  # (resource, amount) that one job requests of its queue
    run_time_s: Floats  # run time of one job, in seconds, float[draws]
    ranks: list[int] = field(default_factory=list)  # their places among all waiting jobs

    def reserve(self, free_room: FreeRoom) -> PodCharges | None:
        """Charge one job of the group. Return what it has taken, for `leave`; None, with nothing charged, if it does
        not fit.

        The result is [] for a request with a tier, and `leave` then gives nothing back.
        """
        request, room, quota = self.request, free_room.room, free_room.quota
        if request.tier is not None:
            return [] if free_room.reserve(request) else None
        if not quota.holds(request.queue, self.needs):
            return None
        reserved: PodCharges = []
        for shape, pods in request.pods:
            charges = room.charge(shape, pods)
            if charges is None:
                for charged_shape, charged in reserved:
                    room.undo(charged_shape, charged)
                return None
            reserved.append((shape, charges))
        quota.take(request.queue, self.needs)
        return reserved

    def leave(self, free_room: FreeRoom, charges_of_job: PodCharges) -> None:
        """Give back what one job of the group has taken. charges_of_job: the result of `reserve`."""
        for shape, charges in charges_of_job:
            free_room.room.undo(shape, charges)
        if charges_of_job:
            free_room.quota.take(self.request.queue, self.needs, -1)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job in a simulated future."""

    state: JobState
    lent: bool  # its workers above the min have left before its end

    def leave(self, free_room: FreeRoom, charges: PodCharges) -> None:
        """Give back what the job holds at its end. charges: not used, as the workers are known."""
        workers_left = self.state.living[: self.state.job.bounds.minimum] if self.lent else self.state.living
        free_room.release(
            self.state.pool,
            [worker.row for worker in workers_left if worker.row is not None and worker.row != UNKNOWN_NODE],
        )


End = tuple[float, int, RunningJob | DemandGroup, PodCharges]  # time, a tie-breaker, owner, charges


def simulate(
    draw: int,
    start: FreeRoom,
    running: Sequence[JobState],
    lent: Collection[str],
    remaining_s: Floats,
    groups: Sequence[DemandGroup],
) -> dict[int, float]:
    """Return rank -> start of waiting jobs in one future, in seconds from now. A job without a start has no entry.

    draw: number of the future. start: the room now; it is not charged. running: the running jobs. lent: queues whose
    elastic workers have left. remaining_s: how long these jobs still run, in seconds, float[jobs]. groups: the waiting
    jobs by request. Only the first MAX_ENDS ends are simulated.
    """
    free_room, starts, heads = start.copy(), dict[int, float](), _DemandGroups(groups)
    soonest = (
        np.argpartition(remaining_s, MAX_ENDS)[:MAX_ENDS]
        if len(remaining_s) > MAX_ENDS
        else np.arange(len(remaining_s))
    )
    ends: list[End] = []
    for at_s, number in zip(remaining_s[soonest].tolist(), soonest.tolist(), strict=True):
        job = running[number]
        ends.append((at_s, number, RunningJob(job, job.can_shrink and job.job.queue in lent), []))
    heapq.heapify(ends)
    ends_per_round = max(1, len(ends) // ROUNDS)
    while ends and heads.tries < MAX_TRIES and len(starts) < heads.waiters:
        at_s = 0.0
        for _ in range(min(ends_per_round, len(ends))):
            at_s, _, owner, charges = heapq.heappop(ends)
            owner.leave(free_room, charges)
        for group, rank, charges in heads.serve(free_room):
            starts[rank] = at_s
            life_s = float(group.run_time_s[(draw + rank) % len(group.run_time_s)])
            heapq.heappush(ends, (at_s + life_s, -len(starts), group, charges))
    return starts


_Head = tuple[int, int, DemandGroup]  # the next job of a group: its rank, its index in the group, the group


class _DemandGroups:
    """The next job of each group, by the first shape of its request. tries: attempts to find room so far."""

    def __init__(self, groups: Sequence[DemandGroup]) -> None:
        """Start with the first job of each group. groups: each with at least one job."""
        self._of: dict[PodShape, list[_Head]] = {}
        self.waiters, self.tries = sum(len(group.ranks) for group in groups), 0
        for group in groups:
            self._of.setdefault(group.request.pods[0][0], []).append((group.ranks[0], 0, group))

    def serve(self, free_room: FreeRoom) -> Iterator[tuple[DemandGroup, int, PodCharges]]:
        """Yield (group, rank, charges) of the waiting jobs that fit now, by rank, and charge them to the room.

        Served jobs are removed. `tries` grows by each attempt.
        """
        room = {shape: free_room.room.total(shape) for shape, heads in self._of.items() if heads}
        self.tries += 1
        heads = [head for shape in room if room[shape] for head in self._of[shape]]
        heapq.heapify(heads)
        while heads:
            head = heapq.heappop(heads)
            rank, index, group = head
            shape, pods = group.request.pods[0]
            if room[shape] < pods:
                continue
            self.tries += 1
            if (charges := group.reserve(free_room)) is None:
                continue
            yield group, rank, charges
            room[shape] = free_room.room.total(shape)  # for the other shapes it is an upper bound
            shape_heads = self._of[shape]
            shape_heads.remove(head)
            if index + 1 < len(group.ranks):
                shape_heads.append((group.ranks[index + 1], index + 1, group))
                heapq.heappush(heads, shape_heads[-1])
            if not any(room.values()):
                return
