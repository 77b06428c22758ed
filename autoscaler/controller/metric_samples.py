"""Turns one decision into samples of metrics: of every queue, and of a bounded number of jobs.

metrics.py counts over time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from math import isfinite

from turnout.autoscaler.gpu_sums import Gpus, bound, free, total
from turnout.autoscaler.model import JobState, QueueOrder, Reason, Step
from turnout.jobs.model import JobKey, Life
from turnout.jobs.queues.model import Queue, bounds_several
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s

MOST_JOBS = 200  # with series of their own: about a thousand lines of a page
Start = tuple[float, float, float]  # the earliest, the likely and the latest, in seconds since 1970, or infinite
Sample = tuple[str, tuple[str, ...], float]  # a family of FAMILIES, its labels' values, the number

_QUEUE = ("queue",)
_JOB = ("queue", "job_kind", "job_namespace", "job_name")  # a scrape has a `job` and a `namespace` of its own
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "queue_gpus": ("GPUs of a queue: its limit, its own (deserved), used, free.", (*_QUEUE, "what")),
    "queue_jobs": ("Jobs of a queue: running, waiting for their min, suspended.", (*_QUEUE, "state")),
    "queue_worker_gpus": ("GPUs of running workers up to the min, and above it.", (*_QUEUE, "part")),
    "queue_missing_gpus": ("GPUs that are missing to the mins of the waiting jobs of a queue.", _QUEUE),
    "queue_reasons": ("Jobs of a queue by the reason of the last decision.", (*_QUEUE, "reason")),
    "queue_jobs_without_series": ("Jobs of a queue that have no series of their own.", _QUEUE),
    "job_gpus": ("GPUs of a job's running workers up to the min, and above it.", (*_JOB, "part")),
    "job_reason": ("1 for the reason of the last decision on a job.", (*_JOB, "reason")),
    "job_missing_gpus": ("GPUs that are missing to the min of a waiting job.", _JOB),
    "job_waiting_since_timestamp_seconds": ("Since when a job waits for its min, in seconds since 1970.", _JOB),
    "job_estimated_start_timestamp_seconds": (
        "When a waiting job is expected to start, in seconds since 1970: at the earliest, likely, at the latest.",
        (*_JOB, "bound"),
    ),
    "autoscaler_observation_age_seconds": ("Age of the last message about nodes or pods.", ()),
    "autoscaler_last_decision_timestamp_seconds": ("Time of the last decision, in seconds since 1970.", ()),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An observation and the decision on it, at `now_s`.

    since: the time since when each waiting job waits, in seconds since 1970.
    """

    now_s: float = 0.0
    jobs: Sequence[JobState] = ()
    queues: Mapping[str, Queue] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    since: Mapping[JobKey, float] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return the names of all queues that exist or that a job names."""
        described = {name for name in self.queues if not bounds_several(name)}
        return described | {each.job.queue for each in self.jobs}


def waiting_since_s(state: JobState, now_s: float) -> float:
    """Return the time since when a job waits, in seconds since 1970.

    That is the creation of the job, or, if a part of it runs, the creation of its oldest worker without a node. now_s:
    returned if neither is known.
    """
    lost = min((w.since_s for w in state.living if w.row is None and w.since_s), default=now_s)
    return lost if state.bound_workers or state.finished else unix_s(state.job.created) or lost


def lent(jobs: Iterable[JobState], gpus: Gpus) -> Counter[str]:
    """Return the GPUs of workers above the min, by queue."""
    found: Counter[str] = Counter()
    for each in jobs:
        if each.evictable_nodes:
            found[each.job.queue] += len(each.evictable_nodes) * gpus_of(each.job.shape, gpus)
    return found


def samples(look: Snapshot, starts: Mapping[JobKey, Start], gpus: Gpus, most: int = MOST_JOBS) -> Iterator[Sample]:
    """Yield all samples of a decision.

    starts: when waiting jobs may start. gpus: the resources that count as a GPU. most: the number of jobs with samples
    of their own.
    """
    shown = _shown(look.jobs, gpus, most)
    yield from _of_queues(look, gpus)
    yield from _sums(look, gpus, shown)
    yield "autoscaler_last_decision_timestamp_seconds", (), look.now_s
    keys = {each.job.key for each in shown}
    reasons = {step.key: step.reason for step in look.steps if step.key in keys}
    for each in shown:
        key = each.job.key
        yield from _of_job(each, gpus, reasons.get(key), look.since.get(key), starts.get(key))


@lru_cache(maxsize=4096)
def gpus_of(shape: PodShape, gpus: Gpus) -> int:
    """Return the GPUs that one pod requests."""
    return shape.gpus(gpus)


def _of_queues(look: Snapshot, gpus: Gpus) -> Iterator[Sample]:
    for name, queue in look.queues.items():
        if bounds_several(name):
            continue
        amounts = {
            "limit": bound(queue.limit, gpus),
            "deserved": bound(queue.deserved, gpus),
            "used": total(queue.used, gpus),
            "free": free(queue.limit, queue.used, gpus),
        }
        for what, amount in amounts.items():
            if amount is not None:
                yield "queue_gpus", (name, what), amount


@dataclass(slots=True)
class _Sums:
    """Sums over the jobs of one queue."""

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("running", "waiting", "suspended"), 0))
    least_gpus: int = 0
    elastic_gpus: int = 0
    lacking_gpus: int = 0
    left_out: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, state: JobState, gpus: Gpus) -> None:
        """Add a job. It counts as a job without series of its own."""
        self.states[_state(state)] += 1
        least_gpus, elastic_gpus = _parts(state, gpus)
        self.least_gpus += least_gpus
        self.elastic_gpus += elastic_gpus
        self.lacking_gpus += _missing_gpus(state, gpus) if state.is_waiting else 0
        self.left_out += 1

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the samples of the queue. Zeros are included, so that a graph has no gaps."""
        for state, jobs in self.states.items():
            yield "queue_jobs", (name, state), jobs
        yield "queue_worker_gpus", (name, "min"), self.least_gpus
        yield "queue_worker_gpus", (name, "elastic"), self.elastic_gpus
        yield "queue_missing_gpus", (name,), self.lacking_gpus
        yield "queue_jobs_without_series", (name,), self.left_out
        for reason, jobs in self.reasons.items():
            yield "queue_reasons", (name, reason), jobs


def _sums(look: Snapshot, gpus: Gpus, shown: Iterable[JobState]) -> Iterator[Sample]:
    sums = {name: _Sums() for name in sorted(look.names())}
    of: dict[JobKey, _Sums] = {}
    for each in look.jobs:
        mine = of[each.job.key] = sums[each.job.queue]
        mine.add(each, gpus)
    for each in shown:
        of[each.job.key].left_out -= 1
    for step in look.steps:
        if (its := of.get(step.key)) is not None:
            its.reasons[step.reason.value] += 1
    for name, found in sums.items():
        yield from found.samples(name)


def _of_job(
    state: JobState, gpus: Gpus, reason: Reason | None, since_s: float | None, start: Start | None
) -> Iterator[Sample]:
    labels = (state.job.queue, *state.job.key)
    for part, amount in zip(("min", "elastic"), _parts(state, gpus), strict=True):
        yield "job_gpus", (*labels, part), amount
    if reason is not None:
        yield "job_reason", (*labels, reason.value), 1
    if not state.is_waiting:
        return
    yield "job_missing_gpus", labels, _missing_gpus(state, gpus)
    if since_s is not None:
        yield "job_waiting_since_timestamp_seconds", labels, since_s
    if start is not None:
        for bound, at_s in zip(("early", "likely", "late"), start, strict=True):
            if isfinite(at_s):  # of one that nobody can say there is no series
                yield "job_estimated_start_timestamp_seconds", (*labels, bound), at_s


def _shown(jobs: Iterable[JobState], gpus: Gpus, most: int) -> list[JobState]:
    """Return the jobs with series of their own: of each queue the waiting jobs in order, then those with most GPUs.

    The first job of every queue comes before the second job of any queue, so one queue cannot hide the jobs of another.
    """
    by_queue: dict[str, list[JobState]] = defaultdict(list)
    for each in jobs:
        by_queue[each.job.queue].append(each)

    def order(state: JobState) -> tuple[bool, int, QueueOrder]:
        return (
            not state.is_waiting,
            0 if state.is_waiting else -state.bound_workers * gpus_of(state.job.shape, gpus),
            state.queue_order,
        )

    places = [
        (place, name, each)
        for name, mine in sorted(by_queue.items())
        for place, each in enumerate(nsmallest(most, mine, key=order))
    ]
    return [each for _, _, each in sorted(places, key=lambda found: found[:2])[:most]]


def _state(state: JobState) -> str:
    if state.job.life is Life.SUSPENDED:
        return "suspended"
    return "waiting" if state.is_waiting else "running"


def _parts(state: JobState, gpus: Gpus) -> tuple[int, int]:
    """Return the GPUs of the running workers up to the min, and above it."""
    worker_gpus, least, bound = gpus_of(state.job.shape, gpus), state.job.bounds.least, state.bound_workers
    return (worker_gpus * bound, 0) if bound <= least else (worker_gpus * least, worker_gpus * (bound - least))


def _missing_gpus(state: JobState, gpus: Gpus) -> int:
    """Return the GPUs of the pods that are missing to the min, other roles included."""
    job = state.job
    workers = max(0, job.bounds.least - state.bound_workers - state.finished) * gpus_of(job.shape, gpus)
    roles = zip(state.other_pods or (0,) * len(job.other_roles), job.other_roles, strict=False)
    return workers + sum(max(0, replicas - bound) * gpus_of(shape, gpus) for bound, (shape, replicas) in roles)
