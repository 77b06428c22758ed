"""Estimates when waiting jobs start, by twelve simulated futures.

Nobody knows when a job ends. Each future draws an end for every running job from the run times of its queue, and starts
waiting jobs in order on whole nodes and within quotas. The earliest, the middle and the latest start over all futures
are reported: one start in thirteen is earlier than the first, one later than the last. The draws depend on the jobs
only, so an estimate changes only with its inputs.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from turnout.autoscaler.model import ORDER, JobState, Observation, Reason, Step
from turnout.autoscaler.reporting.queue_simulation import NEVER, DemandGroup, simulate
from turnout.autoscaler.reporting.runtime_stats import Ended, Floats, RuntimeStats
from turnout.autoscaler.scaling.quota import Quota, least_of, total_of
from turnout.autoscaler.scaling.reservations import CapacityRequest, Reservations
from turnout.autoscaler.scaling.turns import in_turn
from turnout.jobs.model import JobKey
from turnout.kube.pod_shape import PodShape

DRAWS = 12
AGAIN_S = 10.0  # between two forecasts
SOON_S = 1.0  # after the last estimate, when somebody waits of whom it says nothing
MOST_WAITERS = 200  # those whose turn comes first; the others are told that they come after these
GRACE_S = 30.0  # Kubernetes' own time for a pod to end in; a job's may differ
SCHEDULER_S = (5.0, 60.0)  # what a scheduler takes that has room, and takes at most

_GUESS = "a guess, since too few jobs have finished yet: that each runs as long again as it has run, more or less"
_FEW = 2000  # workers, for which nodes are counted one by one
_SERVED = (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM)
_UNTRUSTED = (Reason.STALE, Reason.NODES_UNREADY)


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a job may start, in seconds since 1970, early <= likely <= late; infinite for never, or nobody can say.

    because: what it is made of, as the rest of a sentence. guess: it is made of little.
    """

    early_s: float
    likely_s: float
    late_s: float
    because: str
    guess: bool = False

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
            self._lives.look(ended())
            found = forecast(observation, steps, self._lives, now_s, acts)
            times = ((key, (each.early_s, each.likely_s, each.late_s)) for key, each in found.items())
            self._starts = {key: each for key, each in times if each[2] < NEVER}
        return self._starts


def forecast(
    observation: Observation, steps: Sequence[Step], lives: RuntimeStats, now_s: float, acts: bool = True
) -> dict[JobKey, Estimate]:
    """Return an estimate for each job that waits for its min.

    steps: of this observation, in its order. acts: sizes are really changed.
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
        found |= _simulated(later, observation, served, lives, now_s, acts)
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


def _simulated(
    later: Sequence[JobState],
    observation: Observation,
    served: Sequence[JobState],
    lives: RuntimeStats,
    now_s: float,
    acts: bool,
) -> dict[JobKey, Estimate]:
    shrinking = _shrinking_queues(observation, later) if acts else set()
    start = _room_after_shrinks(observation, shrinking, served)
    running = sorted(
        [each for each in observation.jobs if each.bound_workers and not each.is_waiting],
        key=lambda each: each.job.queue,
    )
    left, ages = _ends(running, lives, now_s)
    first = later[:MOST_WAITERS]
    lines = _lines(first, lives, ages)
    starts = [simulate(draw, start, running, shrinking, left[draw], lines) for draw in range(DRAWS)]
    found: dict[JobKey, Estimate] = {}
    for rank, each in enumerate(first):
        at = sorted(future.get(rank, NEVER) for future in starts)
        guess = not len(lives.of(each.job.queue))
        found[each.job.key] = _estimate(at, now_s, len(running), rank, guess)
    behind = f"{len(first)} waiting jobs come first: nobody looks farther"
    return found | {each.job.key: Estimate(now_s, NEVER, NEVER, behind) for each in later[len(first) :]}


def _estimate(at: list[float], now_s: float, running: int, rank: int, guess: bool) -> Estimate:
    because = "as the job that runs ends" if running == 1 else f"as the {running} jobs that run end"
    if rank:
        because += f", after {rank} waiting job{'' if rank == 1 else 's'}"
    if guess:
        because += f"; {_GUESS}"
    if at[0] == NEVER:
        return Estimate(now_s, NEVER, NEVER, f"beyond what can be foreseen {because}", guess)
    return Estimate(now_s + at[0], now_s + median(at), now_s + at[-1], because, guess)


def _room_after_shrinks(
    observation: Observation, shrinking: Collection[str], served: Sequence[JobState]
) -> Reservations:
    """Return the room after these queues' elastic workers have left and the `served` jobs have started."""
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
        room = observation.room.with_pods_removed(rows)  # counts all nodes anew
    else:
        room = observation.room.copied()
        for shape, where in rows.items():
            room.give(shape, where)
    left = Reservations(room, quota)
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


def _lines(waiters: Sequence[JobState], lives: RuntimeStats, ages: Floats) -> list[DemandGroup]:
    """Group waiting jobs by their request."""
    lines: dict[CapacityRequest, DemandGroup] = {}
    life_s: dict[str, Floats] = {}
    chances = _chances([each.job.uid for each in waiters])
    for rank, each in enumerate(waiters):
        request = _request(each)
        if request not in lines:
            if each.job.queue not in life_s:
                life_s[each.job.queue] = lives.new_s(each.job.queue, ages, chances[:, rank])
            lines[request] = DemandGroup(request, total_of(request.pods), life_s[each.job.queue])
        lines[request].ranks.append(rank)
    return list(lines.values())


def _request(state: JobState) -> CapacityRequest:
    tier = state.job.spread.tier
    near_rows = () if tier is None else tuple(worker.row for worker in state.living if worker.row is not None)
    return CapacityRequest(state.job.queue, tuple(least_of(state)), tier, near_rows)
