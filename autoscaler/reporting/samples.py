"""The series of queues and jobs of one moment, as numbers. A bounded number of jobs has series of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf, isfinite

from turnout.autoscaler.model import Gpus, JobState, QueueOrder, Reason, Step, gpu_limit, remaining_gpus, total_gpus
from turnout.autoscaler.reporting.usage import gpus_of, missing_gpus
from turnout.jobs.model import JobKey, JobLifecycle
from turnout.jobs.queues.model import QueueShare, bounds_several
from turnout.kube.times import unix_s

MAX_JOBS = 200  # jobs with series of their own: about a thousand lines of a page
Start = tuple[float, float, float]  # the earliest, the likely and the latest, in seconds since 1970, or infinite
UNKNOWN_START: Start = (inf, inf, inf)
Sample = tuple[str, tuple[str, ...], float]  # name of a family of FAMILIES, values of its labels, number

_QUEUE = ("queue",)
_JOB = ("queue", "job_kind", "job_namespace", "job_name")  # Prometheus itself adds labels `job` and `namespace`
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "queue_gpus": ("GPUs of a queue: limit, deserved, used, available.", (*_QUEUE, "type")),
    "queue_jobs": ("Jobs of a queue: running, waiting for their min, suspended.", (*_QUEUE, "state")),
    "queue_worker_gpus": ("GPUs of running workers up to the min, and above it.", (*_QUEUE, "part")),
    "queue_missing_gpus": ("GPUs that are missing to the mins of the waiting jobs of a queue.", _QUEUE),
    "queue_jobs_by_reason": ("Jobs of a queue by the reason of the last decision.", (*_QUEUE, "reason")),
    "queue_unlisted_jobs": ("Jobs of a queue that have no series of their own.", _QUEUE),
    "job_gpus": ("GPUs of a job's running workers up to the min, and above it.", (*_JOB, "part")),
    "job_reason": ("1 for the reason of the last decision on a job.", (*_JOB, "reason")),
    "job_missing_gpus": ("GPUs that are missing to the min of a waiting job.", _JOB),
    "job_waiting_since_timestamp_seconds": ("Since when a job waits for its min, in seconds since 1970.", _JOB),
    "job_predicted_start_timestamp_seconds": (
        "When a waiting job is expected to start, in seconds since 1970: at the earliest, likely, at the latest.",
        (*_JOB, "bound"),
    ),
    "job_promised_start_timestamp_seconds": (
        "Latest start by the first estimate for a waiting job, in seconds since 1970. It does not move with time.",
        _JOB,
    ),
    "job_gpus_ahead": ("GPUs that are missing to the mins of the jobs before a waiting job in its queue.", _JOB),
    "cluster_gpus": (
        "GPUs of all nodes: used, or free, faulty and unschedulable by the state of the node.",
        ("state",),
    ),
    "job_info": ("1 for each job: which queue it is in.", _JOB),
    "autoscaler_observation_age_seconds": ("Age of the last message about nodes or pods.", ()),
    "autoscaler_last_decision_timestamp_seconds": ("Time of the last decision, in seconds since 1970.", ()),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An observation and the decision on it."""

    now_s: float = 0.0  # time of the decision, in seconds since 1970
    jobs: Sequence[JobState] = ()
    queues: Mapping[str, QueueShare] = field(default_factory=dict)  # by name
    steps: Sequence[Step] = ()  # one for each job, in any order
    since: Mapping[JobKey, float] = field(default_factory=dict)  # since when jobs wait, in seconds since 1970
    promises: Mapping[JobKey, Start] = field(default_factory=dict)  # the first estimate of each waiting job

    def names(self) -> set[str]:
        """Return the names of all queues that exist or that a job names, without quotas that bound several queues."""
        described = {name for name in self.queues if not bounds_several(name)}
        return described | {each.job.queue for each in self.jobs}


def waiting_since_s(state: JobState, now_s: float) -> float:
    """Return since when a job waits, in seconds since 1970; `now_s` if that is not known.

    That is the creation of the job; or, if it has workers on nodes or finished ones, the creation of its oldest worker
    without a node.
    """
    without_node_s = min((w.since_s for w in state.living if w.row is None and w.since_s), default=now_s)
    return without_node_s if state.bound_workers or state.finished else unix_s(state.job.created) or without_node_s


def samples(
    snapshot: Snapshot, starts: Mapping[JobKey, Start], gpus: Gpus, max_jobs: int = MAX_JOBS
) -> Iterator[Sample]:
    """Yield all samples of a decision.

    starts: job -> expected start, for those with an estimate. gpus: the resources that count as a GPU. max_jobs: how
    many jobs get samples of their own.
    """
    jobs_with_series = _jobs_with_series(snapshot.jobs, gpus, max_jobs)
    yield from _queue_samples(snapshot, gpus)
    yield from _job_sums(snapshot, gpus, jobs_with_series)
    yield "autoscaler_last_decision_timestamp_seconds", (), snapshot.now_s
    keys = {each.job.key for each in jobs_with_series}
    reasons = {step.key: step.reason for step in snapshot.steps if step.key in keys}
    ahead = gpus_ahead(snapshot.jobs, gpus)
    for each in jobs_with_series:
        key = each.job.key
        yield from _job_samples(each, gpus, reasons.get(key), snapshot.since.get(key), starts.get(key))
        if each.is_waiting:
            yield "job_gpus_ahead", (each.job.queue, *key), ahead[key]
            if isfinite(latest_s := snapshot.promises.get(key, UNKNOWN_START)[2]):
                yield "job_promised_start_timestamp_seconds", (each.job.queue, *key), latest_s


def job_queues(jobs: Iterable[JobState], others: Iterable[tuple[JobKey, str]]) -> Iterator[Sample]:
    """Yield samples (`job_info`, (queue, *key), 1) of each job and each of `others`.

    A series of a launcher names its job by kind, namespace and name. Where the kind of a JobKey contains the API group
    (`TYPE.group`), a second sample with the kind alone is added, unless another job has that key. others: (owner,
    queue) of pods that no known job owns.
    """
    queues = {state.job.key: state.job.queue for state in jobs}
    for key, queue in list(queues.items()):
        queues.setdefault(JobKey(key.kind.partition(".")[0], key.namespace, key.name), queue)
    for key, queue in others:
        queues.setdefault(key, queue)
    for key, queue in queues.items():
        yield "job_info", (queue, *key), 1


def gpus_ahead(jobs: Iterable[JobState], gpus: Gpus) -> Mapping[JobKey, int]:
    """Return, for each waiting job, the GPUs that the waiting jobs before it in its queue lack to reach their mins.

    jobs: all. Jobs that do not wait have no entry.
    """
    sums: dict[str, int] = defaultdict(int)
    ahead: dict[JobKey, int] = {}
    for state in sorted((each for each in jobs if each.is_waiting), key=lambda each: each.queue_order):
        ahead[state.job.key] = sums[state.job.queue]
        sums[state.job.queue] += missing_gpus(state, gpus)
    return ahead


def prediction_result(estimate: Start, started_s: float) -> str:
    """Return "early", "inside" or "late": the place of a start in its first estimate. started_s: seconds since 1970."""
    earliest_s, _, latest_s = estimate
    if started_s < earliest_s:
        return "early"
    return "inside" if started_s <= latest_s else "late"


def _queue_samples(snapshot: Snapshot, gpus: Gpus) -> Iterator[Sample]:
    """Yield the GPUs of each queue by type; no sample for an amount that the queue does not state.

    snapshot: of the decision. gpus: the resources that count as a GPU.
    """
    for name, queue in snapshot.queues.items():
        if bounds_several(name):
            continue
        amounts = {
            "limit": gpu_limit(queue.limit, gpus),
            "deserved": gpu_limit(queue.deserved, gpus),
            "used": total_gpus(queue.used, gpus),
            "available": remaining_gpus(queue.limit, queue.used, gpus),
        }
        for type_, amount in amounts.items():
            if amount is not None:
                yield "queue_gpus", (name, type_), amount


@dataclass(slots=True)
class _Sums:
    """Sums over the jobs of one queue."""

    # Number of jobs by state.
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("running", "waiting", "suspended"), 0))
    min_part_gpus: int = 0  # of running workers up to the mins
    elastic_gpus: int = 0  # of running workers above the mins
    missing_gpus: int = 0  # that waiting jobs lack to their mins
    without_series: int = 0  # jobs without series of their own
    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # number of jobs by reason of the step

    def add(self, state: JobState, gpus: Gpus) -> None:
        """Add a job to the sums. It counts as a job without series of its own."""
        self.states[_state(state)] += 1
        min_part_gpus, elastic_gpus = _gpus_by_part(state, gpus)
        self.min_part_gpus += min_part_gpus
        self.elastic_gpus += elastic_gpus
        self.missing_gpus += missing_gpus(state, gpus) if state.is_waiting else 0
        self.without_series += 1

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the samples of a queue by its name. Zeros are included, so that a graph has no gaps."""
        for state, jobs in self.states.items():
            yield "queue_jobs", (name, state), jobs
        yield "queue_worker_gpus", (name, "min"), self.min_part_gpus
        yield "queue_worker_gpus", (name, "elastic"), self.elastic_gpus
        yield "queue_missing_gpus", (name,), self.missing_gpus
        yield "queue_unlisted_jobs", (name,), self.without_series
        for reason, jobs in self.reasons.items():
            yield "queue_jobs_by_reason", (name, reason), jobs


def _job_sums(snapshot: Snapshot, gpus: Gpus, jobs_with_series: Iterable[JobState]) -> Iterator[Sample]:
    """Yield the sums over the jobs of each queue, zeros included. jobs_with_series: the jobs that have series of
    their own.
    """
    sums = {name: _Sums() for name in sorted(snapshot.names())}
    sums_of_job: dict[JobKey, _Sums] = {}
    for each in snapshot.jobs:
        sums_of_queue = sums_of_job[each.job.key] = sums[each.job.queue]
        sums_of_queue.add(each, gpus)
    for each in jobs_with_series:
        sums_of_job[each.job.key].without_series -= 1
    for step in snapshot.steps:
        if (queue_sums := sums_of_job.get(step.key)) is not None:
            queue_sums.reasons[step.reason.value] += 1
    for name, queue_sums in sums.items():
        yield from queue_sums.samples(name)


def _job_samples(
    state: JobState, gpus: Gpus, reason: Reason | None, since_s: float | None, start: Start | None
) -> Iterator[Sample]:
    """Yield the samples of one job, except job_gpus_ahead and job_promised_start.

    reason: of its last step, None without a step. since_s: since when it waits, in seconds since 1970; None if unknown.
    start: its expected start, None for none; an infinite time has no sample. A job that does not wait has no sample
    about waiting.
    """
    labels = (state.job.queue, *state.job.key)
    for part, amount in zip(("min", "elastic"), _gpus_by_part(state, gpus), strict=True):
        yield "job_gpus", (*labels, part), amount
    if reason is not None:
        yield "job_reason", (*labels, reason.value), 1
    if not state.is_waiting:
        return
    yield "job_missing_gpus", labels, missing_gpus(state, gpus)
    if since_s is not None:
        yield "job_waiting_since_timestamp_seconds", labels, since_s
    if start is not None:
        for bound, at_s in zip(("earliest", "likely", "latest"), start, strict=True):
            if isfinite(at_s):  # no series if the time is unknown
                yield "job_predicted_start_timestamp_seconds", (*labels, bound), at_s


def _jobs_with_series(jobs: Iterable[JobState], gpus: Gpus, max_jobs: int) -> list[JobState]:
    """Return at most `max_jobs` jobs to have series of their own: in each queue waiting jobs first, then by GPUs.

    The first job of every queue comes before the second job of any queue, so one queue cannot hide the jobs of another.
    Queues come by name.
    """
    by_queue: dict[str, list[JobState]] = defaultdict(list)
    for each in jobs:
        by_queue[each.job.queue].append(each)

    def order(state: JobState) -> tuple[bool, int, QueueOrder]:
        """Return the sort key: waiting jobs first, then those with most GPUs."""
        return (
            not state.is_waiting,
            0 if state.is_waiting else -state.bound_workers * gpus_of(state.job.shape, gpus),
            state.queue_order,
        )

    places = [
        (place, name, each)
        for name, queue_jobs in sorted(by_queue.items())
        for place, each in enumerate(nsmallest(max_jobs, queue_jobs, key=order))
    ]
    return [each for _, _, each in sorted(places, key=lambda entry: entry[:2])[:max_jobs]]


def _state(state: JobState) -> str:
    """Return the state of a job as the series name it."""
    if state.job.lifecycle is JobLifecycle.SUSPENDED:
        return "suspended"
    return "waiting" if state.is_waiting else "running"


def _gpus_by_part(state: JobState, gpus: Gpus) -> tuple[int, int]:
    """Return (GPUs of the running workers up to the min, GPUs of those above it)."""
    worker_gpus, minimum, bound = gpus_of(state.job.shape, gpus), state.job.bounds.minimum, state.bound_workers
    return (worker_gpus * bound, 0) if bound <= minimum else (worker_gpus * minimum, worker_gpus * (bound - minimum))
