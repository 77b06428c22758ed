"""Estimates when waiting jobs start, by twelve simulated futures.

Nobody knows when a job ends. Each future draws an end for every running job from the run times of its queue, and starts
waiting jobs in order on whole nodes and within quotas. The earliest, the middle and the latest start over all futures
are reported: one start in thirteen is earlier than the first, one later than the last. The draws depend on the jobs
only, so an estimate changes only with its inputs.

A job that has run longer than all known jobs, or whose queue has no finished job, is expected to run as long again as
it has run: in three of five cases within a quarter and four times of that. This is a guess. To bound the cost, only the
first ends are simulated, and of jobs with the same request only the first is tried.
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

DRAWS = 12
AGAIN_S = 10.0  # between two forecasts
SOON_S = 1.0  # after the last estimate, if a new job waits
MOST_WAITERS = 200  # those whose turn comes first; the others are told that they come after these
GRACE_S = 30.0  # Kubernetes' own time for a pod to end in; a job's may differ
SCHEDULER_S = (5.0, 60.0)  # likely and longest time of a scheduler that has room

_GUESS = "a guess, since too few jobs have finished yet: that each runs as long again as it has run, more or less"
_FEW = 2000  # workers, for which nodes are counted one by one
_SERVED = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
_UNTRUSTED = (Reason.STALE, Reason.NODES_UNREADY)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected start of a job, in seconds since 1970: early <= likely <= late, infinite for never or unknown."""

    early_s: float
    likely_s: float
    late_s: float
    because: str  # the basis of the estimate, as the rest of a sentence
    guess: bool = False  # too few jobs have finished for a real estimate

    @property
    def known(self) -> bool:
        """True if a likely start is known."""
        return self.likely_s < NEVER


class ForecastCache:
    """The last estimates. They are made again every few seconds, and soon when a new job waits."""

    def __init__(self) -> None:
        self._lives, self._at_s = RuntimeStats(), -math.inf
        self._starts: dict[JobKey, tuple[float, float, float]] = {}
        self._waiting: set[JobKey] = set()

    def starts(
        self,
        observation: Observation,
        steps: Sequence[Step],
        ended: Callable[[], Iterable[Ended]],
        now_s: float,
        acts: bool,
    ) -> Mapping[JobKey, tuple[float, float, float]]:
        """Return (early, likely, late), in seconds since 1970, of each job for which all three are known.

        ended: returns the jobs that have ended and still exist.
        """
        waiting = {each.job.key for each in observation.jobs if each.is_waiting}
        due_s = AGAIN_S if waiting <= self._waiting else SOON_S
        if not 0 <= now_s - self._at_s < due_s:
            self._at_s, self._waiting = now_s, waiting
            self._lives.add_ended(ended())
            found = forecast(observation, steps, self._lives, now_s, acts)
            times = ((key, (each.early_s, each.likely_s, each.late_s)) for key, each in found.items())
            self._starts = {key: each for key, each in times if each[2] < NEVER}
        return self._starts


def forecast(
    observation: Observation, steps: Sequence[Step], lives: RuntimeStats, now_s: float, acts: bool = True
) -> dict[JobKey, Estimate]:
    """Return an estimate for each job that waits for its min.

    steps: of this observation, in its order. acts: False for a dry run, in which no worker leaves for a waiting job.
    """
    found: dict[JobKey, Estimate] = {}
    later: list[JobState] = []
    served: list[JobState] = []
    waiting = {each.token: step for each, step in zip(observation.jobs, steps, strict=True) if each.is_waiting}
    for each in in_turn(sorted((each for each in observation.jobs if each.is_waiting), key=ORDER)):
        step = waiting[each.token]
        if (estimate := _known_start(step, now_s, acts)) is not None:
            found[each.job.key] = estimate
            if step.reason in _SERVED:
                served.append(each)
        else:
            later.append(each)
    if later:
        found |= _simulate_futures(later, observation, served, lives, now_s, acts)
    return found


def _known_start(step: Step, now_s: float, acts: bool) -> Estimate | None:
    """Return the estimate of a job that needs no simulation; None if it needs one."""
    match step.reason:
        case Reason.SCHEDULERS_TURN:
            return Estimate(
                now_s, now_s + SCHEDULER_S[0], now_s + SCHEDULER_S[1], "there is room for its min", guess=True
            )
        case Reason.WAITS_FOR_ROOM if acts:
            likely, late = now_s + GRACE_S / 2, now_s + GRACE_S + SCHEDULER_S[0]
            return Estimate(now_s, likely, late, "workers leave for it, each within its grace, if the autoscaler acts")
        case Reason.OVER_QUOTA:
            return Estimate(NEVER, NEVER, NEVER, "never: its min is more than its queue may have")
        case Reason.QUEUE_CLOSED:
            return Estimate(NEVER, NEVER, NEVER, "not before its queue is open again")
        case reason if reason in _UNTRUSTED:
            return Estimate(NEVER, NEVER, NEVER, "nobody can say: what is seen is not to be trusted")
    return None


def _simulate_futures(
    later: Sequence[JobState],
    observation: Observation,
    served: Sequence[JobState],
    lives: RuntimeStats,
    now_s: float,
    acts: bool,
) -> dict[JobKey, Estimate]:
    """Estimate the start of the `later` jobs from many simulated futures.

    served: waiting jobs that start before them. lives: run times seen so far. now_s: seconds since 1970.
    """
    shrinking = _shrinking_queues(observation, later) if acts else set()
    start = _room_after_shrinks(observation, shrinking, served)
    running = sorted(
        [each for each in observation.jobs if each.bound_workers and not each.is_waiting],
        key=lambda each: each.job.queue,
    )
    left, ages = _ends(running, lives, now_s)
    first = later[:MOST_WAITERS]
    lines = _demand_groups(first, lives, ages)
    starts = [simulate(draw, start, running, shrinking, left[draw], lines) for draw in range(DRAWS)]
    found: dict[JobKey, Estimate] = {}
    for rank, each in enumerate(first):
        at = sorted(future.get(rank, NEVER) for future in starts)
        guess = not len(lives.of(each.job.queue))
        found[each.job.key] = _estimate(at, now_s, len(running), rank, guess)
    behind = f"{len(first)} waiting jobs come first: nobody looks farther"
    return found | {each.job.key: Estimate(now_s, NEVER, NEVER, behind) for each in later[len(first) :]}


def _estimate(at: list[float], now_s: float, running: int, rank: int, guess: bool) -> Estimate:
    """Return when a job starts: earliest, median and latest of the drawn futures.

    at: seconds from now in each future, sorted. running: jobs that run. rank: waiting jobs before it. guess: too few
    run times are known.
    """
    because = "as the job that runs ends" if running == 1 else f"as the {running} jobs that run end"
    if rank:
        because += f", after {rank} waiting job{'' if rank == 1 else 's'}"
    if guess:
        because += f"; {_GUESS}"
    if at[0] == NEVER:
        return Estimate(now_s, NEVER, NEVER, f"beyond what can be foreseen {because}", guess)
    return Estimate(now_s + at[0], now_s + median(at), now_s + at[-1], because, guess)


def _room_after_shrinks(observation: Observation, shrinking: Collection[str], served: Sequence[JobState]) -> FreeRoom:
    """Return the room after elastic workers have left and the `served` jobs have started.

    shrinking: queues whose elastic workers all leave; in the others only promised workers do.
    """
    quota, rows = Quota(observation.queues), dict[PodShape, list[int]]()
    for each in observation.jobs:
        if each.can_shrink or each.promised:
            left_rows = (
                each.promised + each.evictable_nodes
                if each.can_shrink and each.job.queue in shrinking
                else each.promised
            )
            rows.setdefault(each.job.shape, []).extend(left_rows)
            quota.take(each.job.queue, each.pool.needs, -len(left_rows))
    if sum(map(len, rows.values())) > _FEW:
        room = observation.room.with_pods_removed(rows)  # counts all nodes again
    else:
        room = observation.room.copied()
        for shape, where in rows.items():
            room.give(shape, where)
    left = FreeRoom(room, quota)
    for each in served:
        left.reserve(_request(each))
    return left


def _shrinking_queues(observation: Observation, later: Sequence[JobState]) -> set[str]:
    """Return the queues whose elastic workers leave: a job waits in the queue, or the queue has borrowed."""
    quota = Quota(observation.queues)
    return {each.job.queue for each in later} | {name for name in observation.queues if quota.borrows(name)}


def _ends(running: Sequence[JobState], lives: RuntimeStats, now_s: float) -> tuple[Floats, Floats]:
    """Return when running jobs end, in seconds from now, float[draws, jobs], and their ages, float[jobs].

    running: grouped by queue.
    """
    ages = now_s - np.array([each.workers[0].since_s for each in running], dtype=np.float64)
    queues = Counter([each.job.queue for each in running])
    return lives.remaining_s(queues.items(), ages, _chances([each.job.uid for each in running])), ages


def _chances(uids: Sequence[str]) -> Floats:
    """Return pseudo-random numbers in 0..1, float[draws, jobs], always the same for a job (splitmix64)."""
    seeds = np.array([zlib.crc32(uid.encode()) for uid in uids], np.uint64)
    found = np.empty((DRAWS, len(uids)))
    for draw in range(DRAWS):
        mixed: Any = (seeds * np.uint64(DRAWS) + np.uint64(draw + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found[draw] = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
    return found


def _demand_groups(waiters: Sequence[JobState], lives: RuntimeStats, ages: Floats) -> list[DemandGroup]:
    """Group waiting jobs by their request."""
    lines: dict[CapacityRequest, DemandGroup] = {}
    life_s: dict[str, Floats] = {}
    chances = _chances([each.job.uid for each in waiters])
    for rank, each in enumerate(waiters):
        request = _request(each)
        if request not in lines:
            if each.job.queue not in life_s:
                life_s[each.job.queue] = lives.new_job_s(each.job.queue, ages, chances[:, rank])
            lines[request] = DemandGroup(request, total_of(request.pods), life_s[each.job.queue])
        lines[request].ranks.append(rank)
    return list(lines.values())


def _request(state: JobState) -> CapacityRequest:
    tier = state.job.spread.tier
    near_rows = () if tier is None else tuple(worker.row for worker in state.living if worker.row is not None)
    return CapacityRequest(state.job.queue, tuple(lacking_pods(state)), tier, near_rows)


Floats = NDArray[np.float64]
Ended = tuple[str, str, Mapping[str, Any]]  # the uid, the queue, the object

KEPT = 256  # lives a queue, the latest
KEPT_QUEUES = 1000
ENOUGH = 8  # lives, below which all queues together are asked
YOUNG_S = 60.0  # a job that has just begun says nothing by its age yet
USUAL_S = 3600.0  # of a job that has not begun, where nothing at all is known
_SUREST = 0.99  # larger chances are cut off, since no job runs a hundred times as long again

_ENDS = ("Complete", "Completed", "Succeeded", "Failed", "Terminated", "Aborted")
_BEGINS = ("Running",)
_RAN = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?")


class RuntimeStats:
    """The run times of finished jobs, by queue, a bounded number of them."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=4 * KEPT)
        self._of: dict[str, deque[float]] = {}
        self._counted: set[str] = set()
        self._sorted: dict[str, Floats] = {}

    def add(self, queue: str, lived_s: float) -> None:
        """Add the run time of a finished job of this queue."""
        if lived_s <= 0:
            return
        while len(self._of) >= KEPT_QUEUES and queue not in self._of:
            del self._of[next(iter(self._of))]
        self._of.setdefault(queue, deque(maxlen=KEPT)).append(lived_s)
        self._all.append(lived_s)
        self._sorted.clear()

    def add_ended(self, ended: Iterable[Ended]) -> None:
        """Add the jobs that have ended and still exist, each once."""
        ended_uids = set()
        for uid, queue, raw in ended:
            ended_uids.add(uid)
            if uid not in self._counted and (lived := run_time_s(raw)) is not None:
                self.add(queue, lived)
        self._counted = ended_uids

    def of(self, queue: str) -> Floats:
        """Return the run times of a queue's jobs, ascending.

        If the queue has too few, the run times of all queues are returned; empty if there are too few of these, too.
        """
        mine: Sequence[float] = self._of.get(queue, ())
        name = queue if len(mine) >= ENOUGH else ""
        if name not in self._sorted:
            known: Iterable[float] = mine if name else (self._all if len(self._all) >= ENOUGH else ())
            self._sorted[name] = np.sort(np.fromiter(known, dtype=np.float64))
        return self._sorted[name]

    def remaining_s(self, queues: Iterable[tuple[str, int]], ages_s: Floats, chances: Floats) -> Floats:
        """Return how long jobs still run, float[draws, jobs]. ages_s: float[jobs]. chances: 0..1, float[draws, jobs].

        queues: (name, number of its jobs) in the order of the jobs. Each known run time above a job's age is equally
        likely, and so is a time beyond all of them. A larger chance is never a shorter time.
        """
        ages = np.maximum(ages_s, 0.0)
        ends, longer, longest = np.zeros(len(ages), np.int64), np.zeros(len(ages), np.int64), ages.copy()
        known, end, first = [np.zeros(1)], 1, 0  # all lives in one row, so that all jobs are looked up at once
        for queue, count in queues:
            lives, mine = self.of(queue), slice(first, first + count)
            known.append(lives)
            end, first = end + len(lives), first + count
            if len(lives):
                ends[mine] = end
                longer[mine] = len(lives) - np.searchsorted(lives, ages[mine], side="right")
                longest[mine] = np.maximum(lives[-1], ages[mine])
        row, found = np.concatenate(known), np.empty_like(chances)
        for draw, chance in enumerate(chances):  # one by one: small arrays stay in the cache
            places = chance * (longer + 1)
            steps = np.minimum(places.astype(np.int64), longer)
            known_s = row[np.maximum(np.minimum(ends - longer + steps, ends - 1), 0)]
            beyond_s = longest + _as_long_again(longest, places - steps)
            found[draw] = np.where(steps == longer, beyond_s, known_s) - ages
        return found

    def new_job_s(self, queue: str, running_s: Floats, chances: Floats) -> Floats:
        """Return how long a job runs that has not begun, float[draws]. running_s: ages of running jobs."""
        if len(self.of(queue)):
            return self.remaining_s([(queue, 1)], np.zeros(1), chances[:, None]).reshape(-1)
        usual_s = 2 * float(np.median(running_s)) if len(running_s) else USUAL_S
        return _as_long_again(np.array(usual_s), chances)


def _as_long_again(ages_s: Floats, chances: Floats) -> Floats:
    """Return how long jobs of these ages still run, in seconds.

    A job runs x times its age longer with a chance of 1 / (1 + x).
    """
    sure = np.minimum(chances, _SUREST)
    found: Floats = np.maximum(ages_s, YOUNG_S) * sure / (1 - sure)
    return found


def run_time_s(raw: Mapping[str, Any]) -> float | None:
    """Return how long a finished job has run, by its own status; None if the status does not say.

    Jobs of batch and kubeflow write startTime and completionTime, but only a condition for a failed job. Volcano writes
    its phase, conditions by phase, and runningDuration.
    """
    status = raw.get("status") or {}
    if (ran := _RAN.fullmatch(str(status.get("runningDuration") or "-"))) is not None:
        hours, minutes, seconds = (float(part or 0) for part in ran.groups())
        return hours * 3600 + minutes * 60 + seconds
    changes = _changes(status)
    began_s = _first_time_s(unix_s(status.get("startTime")), *map(changes.get, _BEGINS))
    ended_s = _first_time_s(unix_s(status.get("completionTime")), *map(changes.get, _ENDS))
    return ended_s - began_s if began_s is not None and ended_s is not None and ended_s > began_s else None


def _first_time_s(*times_s: float | None) -> float | None:
    return next((time_s for time_s in times_s if time_s is not None), None)


def _changes(status: Mapping[str, Any]) -> dict[str, float | None]:
    """Return when each condition, or phase, began. Volcano's conditions have no type, and their status is a phase."""
    found = {}
    for each in [*(status.get("conditions") or ()), status.get("state") or {}]:
        if not isinstance(each, Mapping):
            continue
        if "type" not in each or each.get("status") == "True":
            word = each.get("type") or each.get("phase") or each.get("status") or ""
            found[str(word)] = unix_s(each.get("lastTransitionTime"))
    return found


MOST_ENDS = 48  # of running jobs, the first of a future
ROUNDS = 24  # in which these are handed on
MOST_TRIES = 120  # to find room in one future
NEVER = math.inf
PodCharges = list[tuple[PodShape, Charges]]


@dataclass(slots=True)
class DemandGroup:
    """Waiting jobs with the same request, in order. If the first finds no room, none of them does."""

    request: CapacityRequest
    needs: tuple[tuple[str, int], ...]  # (resource, amount) of its queue
    run_time_s: Floats  # run time of one of them, by future
    ranks: list[int] = field(default_factory=list)  # their places among all waiting jobs

    def reserve(self, left: FreeRoom) -> PodCharges | None:
        """Charge one job. Return what it has taken, None if it does not fit."""
        request, room, quota = self.request, left.room, left.quota
        if request.tier is not None:
            return [] if left.reserve(request) else None  # where it stands is not told: its room is not counted again
        if not quota.holds(request.queue, self.needs):
            return None
        reserved: PodCharges = []
        for shape, pods in request.pods:
            charges = room.take(shape, pods)
            if charges is None:
                for other, charged in reserved:
                    room.undo(other, charged)
                return None
            reserved.append((shape, charges))
        quota.take(request.queue, self.needs)
        return reserved

    def leave(self, left: FreeRoom, charges_of_job: PodCharges) -> None:
        """Give back what one job of the group has held."""
        for shape, charges in charges_of_job:
            left.room.undo(shape, charges)
        if charges_of_job:
            left.quota.take(self.request.queue, self.needs, -1)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job."""

    state: JobState
    lent: bool  # its workers above the min have left before its end

    def leave(self, left: FreeRoom, charges: PodCharges) -> None:
        """Give back what a running job holds at its end."""
        stay = self.state.living[: self.state.job.bounds.least] if self.lent else self.state.living
        left.release(
            self.state.pool, [worker.row for worker in stay if worker.row is not None and worker.row != UNKNOWN_NODE]
        )


End = tuple[float, int, RunningJob | DemandGroup, PodCharges]  # time, a tie-breaker, owner, charges


def simulate(
    draw: int,
    start: FreeRoom,
    running: Sequence[JobState],
    lent: Collection[str],
    left_s: Floats,
    lines: Sequence[DemandGroup],
) -> dict[int, float]:
    """Return when waiting jobs start in one future, by rank, in seconds from now.

    start: the room now. lent: queues whose elastic workers have left. left_s: how long running jobs still run.
    """
    left, starts, line_of = start.copied(), dict[int, float](), _DemandGroups(lines)
    soonest = np.argpartition(left_s, MOST_ENDS)[:MOST_ENDS] if len(left_s) > MOST_ENDS else np.arange(len(left_s))
    ends: list[End] = []
    for at_s, number in zip(left_s[soonest].tolist(), soonest.tolist(), strict=True):
        who = running[number]
        ends.append((at_s, number, RunningJob(who, who.can_shrink and who.job.queue in lent), []))
    heapq.heapify(ends)
    at_once = max(1, len(ends) // ROUNDS)
    while ends and line_of.tries < MOST_TRIES and len(starts) < line_of.waiters:
        at_s = 0.0
        for _ in range(min(at_once, len(ends))):
            at_s, _, owner, charges = heapq.heappop(ends)
            owner.leave(left, charges)
        for line, rank, charges in line_of.served(left):
            starts[rank] = at_s
            life_s = float(line.run_time_s[(draw + rank) % len(line.run_time_s)])
            heapq.heappush(ends, (at_s + life_s, -len(starts), line, charges))
    return starts


_Head = tuple[int, int, DemandGroup]  # whose turn it is in a line: its rank, its place in the line


class _DemandGroups:
    """The heads of the lines, by the first shape that they ask for. tries: how often room was looked for."""

    def __init__(self, lines: Sequence[DemandGroup]) -> None:
        self._of: dict[PodShape, list[_Head]] = {}
        self.waiters, self.tries = sum(len(line.ranks) for line in lines), 0
        for line in lines:
            self._of.setdefault(line.request.pods[0][0], []).append((line.ranks[0], 0, line))

    def served(self, left: FreeRoom) -> Iterator[tuple[DemandGroup, int, PodCharges]]:
        """Yield the waiting jobs that find room now, in order. A shape without room is not tried."""
        room = {shape: left.room.total(shape) for shape, heads in self._of.items() if heads}
        self.tries += 1
        heads = [head for shape in room if room[shape] for head in self._of[shape]]
        heapq.heapify(heads)
        while heads:
            head = heapq.heappop(heads)
            rank, place, line = head
            shape, pods = line.request.pods[0]
            if room[shape] < pods:
                continue
            self.tries += 1
            if (charges := line.reserve(left)) is None:
                continue
            yield line, rank, charges
            room[shape] = left.room.total(shape)  # for the other shapes it is an upper bound
            mine = self._of[shape]
            mine.remove(head)
            if place + 1 < len(line.ranks):
                mine.append((line.ranks[place + 1], place + 1, line))
                heapq.heappush(heads, mine[-1])
            if not any(room.values()):
                return
