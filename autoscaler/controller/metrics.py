"""The metrics page of the autoscaler: every queue, and a bounded number of jobs.

Only the leader has series of queues and jobs, so two replicas never count the same GPU. `samples` turns one decision
into numbers; `Metrics` also counts over time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf, isfinite

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.autoscaler.controller.usage_meter import UsageMeter
from turnout.autoscaler.model import (
    GangReason,
    Gpus,
    JobState,
    Observation,
    Policy,
    QueueOrder,
    Reason,
    Step,
    bound,
    free,
    total,
)
from turnout.autoscaler.node_faults.model import NodeReason
from turnout.autoscaler.reporting.usage import elastic_gpus, gpus_of, missing_gpus
from turnout.jobs.model import JobKey, Life
from turnout.jobs.queues.model import Queue, bounds_several
from turnout.kube.client.clock import Clock, RealClock
from turnout.kube.server.client_metrics import ClientMetrics, Watch, start_at_zero
from turnout.kube.server.probes import build_info, leading_gauge
from turnout.kube.times import unix_s

_DECIDE_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_OUTCOMES = ("Written", "DryRun", "Conflict", "Refused", "NotLeading")
_GANG_MIN_OUTCOMES = ("Written", "Conflict", "Refused", "Skipped")
_CHANGES = (
    ("grow", Reason.IDLE_ROOM),
    ("grow", Reason.RETURNED),
    ("shrink", Reason.MAKES_ROOM),
    ("shrink", Reason.ROOM_TAKEN),
    ("shrink", Reason.RELEASED),
)


class Metrics:
    """The metrics page.

    gpus: the resources that count as a GPU. restart_s: the cost of a change for a job that states none, in seconds.
    """

    def __init__(self, gpus: Gpus, clock: Clock | None = None, restart_s: float = Policy().restart_s) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._counts, self._clock, self._restart_s = gpus, clock or RealClock(), restart_s
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build_info(registry, "autoscaler")
        self.decide_s = Histogram(
            "turnout_autoscaler_decide_seconds", "Time for one decision.", buckets=_DECIDE_S, registry=registry
        )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_{name}", text, labels, registry=registry)

        self.changes = counter(
            "autoscaler_changes", "Changes of size, by reason and outcome.", "queue", "direction", "reason", "outcome"
        )
        self._gang_mins = _gang_min_changes(registry)
        self._resized = counter("queue_resized_gpus", "GPUs of workers added or taken.", "queue", "direction")
        self._restarts = counter(
            "queue_assumed_restart_gpu_seconds",
            "GPU time that changes of size are assumed to cost the jobs, by queue.",
            "queue",
        )
        self._lent = _LentTime(
            counter("queue_elastic_gpu_seconds", "Time for which workers above the min had GPUs.", "queue"), self._clock
        )
        self._promises = _Promises(counter("start_predictions", _PREDICTIONS_TEXT, "queue", "result"))
        self.leading = _Leading(leading_gauge(registry, "autoscaler"), self._stopped)
        self.nodes = _NodeMetrics(registry)
        self.usage = UsageMeter(registry, gpus, self._clock)
        self._cluster_gpus: Callable[[], Mapping[str, int]] = dict
        self._lost_decisions: Callable[[], int] = int
        self._other_jobs: Callable[[], Iterable[tuple[JobKey, str]]] = tuple
        self._snapshot: Snapshot | None = None
        self._starts: Mapping[JobKey, Start] = {}
        self._age_s = self._at_s = 0.0
        self._by_key: dict[JobKey, JobState] = {}
        self._dry_run_steps: dict[JobKey, Step] = {}
        self._known_queues: set[str] = set()
        registry.register(_SnapshotCollector(self._samples))
        registry.register(_LossCollector(lambda: self._lost_decisions()))

    def record_decision(
        self, observation: Observation, steps: Iterable[Step], starts: Mapping[JobKey, Start] | None = None
    ) -> None:
        """Take over an observation and its decision. starts: as for `set_starts`; None keeps the previous ones."""
        self._age_s, self._at_s = observation.age_s, self._clock.monotonic()
        self.usage.record_decision(observation, steps := tuple(steps))
        self._lent.set_lent(elastic_gpus(observation.jobs, self._counts))
        before = self._snapshot.since if self._snapshot is not None else {}
        now_s = self._clock.wall()
        since = {
            each.job.key: before.get(each.job.key) or waiting_since_s(each, now_s)
            for each in observation.jobs
            if each.is_waiting
        }
        self._promises.settle(observation.jobs, since, now_s)
        self._snapshot = Snapshot(now_s, observation.jobs, observation.queues, steps, since, self._promises.starts)
        if starts is not None:
            self.set_starts(starts)
        self._by_key = {}
        if self._dry_run_steps:
            changing = {step.key for step in self._snapshot.steps if step.changes}
            self._dry_run_steps = {key: step for key, step in self._dry_run_steps.items() if key in changing}
        for name in self._snapshot.names() - self._known_queues:
            self._begin(name)

    def set_starts(self, starts: Mapping[JobKey, Start]) -> None:
        """Set the expected starts of waiting jobs: the earliest, the likely and the latest time of each."""
        self._starts = starts
        if self._snapshot is not None:
            self._promises.add(starts, self._snapshot.since)

    def count_outcome(self, step: Step, word: str) -> None:
        """Count the outcome of a change.

        A change that a dry run intends is counted once for as long as it stays the same.
        """
        if word == "DryRun":
            if self._dry_run_steps.get(step.key) == step:
                return
            self._dry_run_steps[step.key] = step
        state = self._job(step.key)
        queue = state.job.queue if state is not None else ""
        direction = "grow" if step.target > step.current else "shrink"
        self.changes.labels(queue, direction, step.reason.value, word).inc()
        if word == "Written" and state is not None:
            gpus = gpus_of(state.job.shape, self._counts)
            self._resized.labels(queue, direction).inc(gpus * abs(step.target - step.current))
            usual_s = (
                self._restart_s if state.job.resize_budget.restart_s is None else state.job.resize_budget.restart_s
            )
            cost_s = 0.0 if step.at_start else usual_s
            self._restarts.labels(queue).inc(gpus * min(state.bound_workers, step.target) * cost_s)
            beneficiary = self._job(step.beneficiary) if step.beneficiary is not None else None
            self.usage.count_resize(state, step, "" if beneficiary is None else beneficiary.job.queue, cost_s)

    def count_gang_min(self, reason: GangReason, outcome: str) -> None:
        """Count what became of the minCount of one PodGroup."""
        self._gang_mins.labels(reason.value, outcome).inc()

    def show_cluster(
        self,
        gpus_by_state: Callable[[], Mapping[str, int]],
        lost_decisions: Callable[[], int],
        other_jobs: Callable[[], Iterable[tuple[JobKey, str]]] = tuple,
    ) -> None:
        """Show the GPUs of the nodes by state, and the decisions that the decision log lost.

        other_jobs: returns the owners of pods without a known job, with their queues.
        """
        self._cluster_gpus, self._lost_decisions, self._other_jobs = gpus_by_state, lost_decisions, other_jobs

    def show_client(
        self,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        watches: Callable[[], Iterable[tuple[str, Watch]]],
        clock: Clock,
    ) -> None:
        """Show the calls and the watches of the API server, as for ClientMetrics."""
        self.registry.register(ClientMetrics("autoscaler", requests, watches, clock))

    def page(self) -> bytes:
        """Return the page as Prometheus reads it."""
        self._lent.add_elapsed()
        return generate_latest(self.registry)

    def _samples(self) -> Iterator[Sample]:
        if self._snapshot is not None:
            yield from samples(self._snapshot, self._starts, self._counts)
            yield from job_queues(self._snapshot.jobs, self._other_jobs())
            yield "autoscaler_observation_age_seconds", (), self._age_s + self._clock.monotonic() - self._at_s
            for state, gpus in self._cluster_gpus().items():
                yield "cluster_gpus", (state,), gpus

    def _stopped(self) -> None:
        """Drop the series of queues, jobs and nodes, because another replica leads now."""
        self._lent.set_lent({})
        self.nodes.clear()
        self.usage.clear()
        self._snapshot, self._starts, self._by_key, self._dry_run_steps = None, {}, {}, {}
        self._promises.starts.clear()

    def _job(self, key: JobKey) -> JobState | None:
        if not self._by_key and self._snapshot is not None:
            self._by_key = {each.job.key: each for each in self._snapshot.jobs}
        return self._by_key.get(key)

    def _begin(self, queue: str) -> None:
        """Set every counter of a queue to 0. Prometheus sees no increase in a series that did not exist before."""
        self._known_queues.add(queue)
        self._lent.gpu_seconds.labels(queue)
        self._restarts.labels(queue)
        self._promises.begin(queue)
        for direction, reason in _CHANGES:
            self._resized.labels(queue, direction)
            for word in _OUTCOMES:
                self.changes.labels(queue, direction, reason.value, word)


def _gang_min_changes(registry: CollectorRegistry) -> Counter:
    """Return the counter of changes of minCount, with every series at 0."""
    text = "Changes of minCount of native PodGroups, by reason and outcome."
    changes = Counter("turnout_gang_min_changes", text, ("reason", "outcome"), registry=registry)
    start_at_zero(changes, [reason.value for reason in GangReason], _GANG_MIN_OUTCOMES)
    return changes


class _NodeMetrics:
    """Counters of nodes on which pods have reported faults."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Nodes that offer GPUs, by state: all of them, and those that are tainted, suspected or on trial."
        self._now = Gauge("turnout_gpu_nodes", text, ("state",), registry=registry)
        self._limit = _OptionalGauge("gpu_nodes_taint_limit", "Number of nodes that may be tainted at once.")
        registry.register(self._limit)
        self._changes = Counter(
            "turnout_node_changes", "Changes of nodes, by reason and outcome.", ("reason", "outcome"), registry=registry
        )
        self._skipped = Counter(
            "turnout_node_verdicts_skipped", "Verdicts without effect, by reason.", ("reason",), registry=registry
        )
        reasons = [reason.value for reason in NodeReason]
        start_at_zero(self._changes, reasons, _OUTCOMES)
        start_at_zero(self._skipped, reasons)

    def set_counts(self, counts: Mapping[str, int], limit: int) -> None:
        """Set the number of nodes in each state, and the number of nodes that may be tainted."""
        for state, count in counts.items():
            self._now.labels(state).set(count)
        self._limit.number = limit

    def count_outcome(self, word: str, outcome: str) -> None:
        """Count the outcome of one step."""
        self._changes.labels(word, outcome).inc()

    def count_skipped(self, word: str) -> None:
        """Count a verdict without effect."""
        self._skipped.labels(word).inc()

    def clear(self) -> None:
        """Drop the series, because another replica leads now."""
        self._now.clear()
        self._limit.number = None


class _OptionalGauge(Collector):
    """A gauge without a series while its number is unknown."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = f"turnout_{name}", text
        self.number: float | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge."""
        yield GaugeMetricFamily(self._name, self._text, value=self.number)


class _Leading:
    """The gauge of the leader. stopped: called when this replica no longer leads."""

    def __init__(self, gauge: Gauge, stopped: Callable[[], None]) -> None:
        self._gauge, self._stopped = gauge, stopped

    def set(self, leads: int) -> None:
        self._gauge.set(leads)
        if not leads:
            self._stopped()


class _LentTime:
    """The time for which GPUs are lent, by queue."""

    def __init__(self, gpu_seconds: Counter, clock: Clock) -> None:
        self.gpu_seconds, self._clock = gpu_seconds, clock
        self._gpus: Mapping[str, int] = {}
        self._at_s = 0.0

    def set_lent(self, gpus: Mapping[str, int]) -> None:
        """Set the number of GPUs that are lent from now on, by queue."""
        self.add_elapsed()
        self._gpus, self._at_s = gpus, self._clock.monotonic()

    def add_elapsed(self) -> None:
        """Count the time since the last count."""
        now_s = self._clock.monotonic()
        for queue, gpus in self._gpus.items():
            self.gpu_seconds.labels(queue).inc(gpus * (now_s - self._at_s))
        self._at_s = now_s


class _Promises:
    """The first estimates for the waiting jobs."""

    def __init__(self, results: Counter) -> None:
        """results: counts started jobs by queue and result."""
        self._results = results
        self.starts: dict[JobKey, Start] = {}

    def begin(self, queue: str) -> None:
        """Set the counters of a queue to 0."""
        for result in _RESULTS:
            self._results.labels(queue, result)

    def add(self, starts: Mapping[JobKey, Start], waiting: Container[JobKey]) -> None:
        """Keep the first estimate with an end of each waiting job."""
        for key, start in starts.items():
            if isfinite(start[2]) and key in waiting:
                self.starts.setdefault(key, start)

    def settle(self, jobs: Iterable[JobState], waiting: Container[JobKey], now_s: float) -> None:
        """Count the jobs that have started since the last decision, and forget the jobs that wait no more."""
        for state in jobs if self.starts else ():
            key = state.job.key
            if key in self.starts and key not in waiting and state.job.life is Life.LIVE:
                self._results.labels(state.job.queue, prediction_result(self.starts[key], now_s)).inc()
        for key in [key for key in self.starts if key not in waiting]:
            del self.starts[key]


class _SnapshotCollector(Collector):
    """The samples of the last decision, computed only when the page is read."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the latest observation."""
        found = {name: GaugeMetricFamily(f"turnout_{name}", text, labels=of) for name, (text, of) in FAMILIES.items()}
        for name, labels, amount in self._samples():
            found[name].add_metric(labels, amount)
        yield from found.values()


class _LossCollector(Collector):
    """The decisions that the decision log lost, because its disk was slow."""

    def __init__(self, lost: Callable[[], int]) -> None:
        self._lost = lost

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        text = "Decisions that are missing in the decision log, because its disk was slow."
        yield CounterMetricFamily("turnout_decision_log_lost", text, value=self._lost())


MOST_JOBS = 200  # with series of their own: about a thousand lines of a page
Start = tuple[float, float, float]  # the earliest, the likely and the latest, in seconds since 1970, or infinite
UNKNOWN_START: Start = (inf, inf, inf)
_PREDICTIONS_TEXT = "Started jobs, by their place in the interval of the first estimate."
_RESULTS = ("early", "inside", "late")  # of start predictions
Sample = tuple[str, tuple[str, ...], float]  # a family of FAMILIES, its labels' values, the number

_QUEUE = ("queue",)
_JOB = ("queue", "job_kind", "job_namespace", "job_name")  # a scrape has a `job` and a `namespace` of its own
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
    """An observation and the decision on it, at `now_s`.

    since: the time since when each waiting job waits, in seconds since 1970. promises: the first estimate of each
    waiting job.
    """

    now_s: float = 0.0
    jobs: Sequence[JobState] = ()
    queues: Mapping[str, Queue] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    since: Mapping[JobKey, float] = field(default_factory=dict)
    promises: Mapping[JobKey, Start] = field(default_factory=dict)

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


def samples(look: Snapshot, starts: Mapping[JobKey, Start], gpus: Gpus, most: int = MOST_JOBS) -> Iterator[Sample]:
    """Yield all samples of a decision.

    starts: when waiting jobs may start. gpus: the resources that count as a GPU. most: the number of jobs with samples
    of their own.
    """
    shown = _jobs_with_series(look.jobs, gpus, most)
    yield from _queue_samples(look, gpus)
    yield from _job_sums(look, gpus, shown)
    yield "autoscaler_last_decision_timestamp_seconds", (), look.now_s
    keys = {each.job.key for each in shown}
    reasons = {step.key: step.reason for step in look.steps if step.key in keys}
    ahead = gpus_ahead(look.jobs, gpus)
    for each in shown:
        key = each.job.key
        yield from _job_samples(each, gpus, reasons.get(key), look.since.get(key), starts.get(key))
        if each.is_waiting:
            yield "job_gpus_ahead", (each.job.queue, *key), ahead[key]
            if isfinite(latest_s := look.promises.get(key, UNKNOWN_START)[2]):
                yield "job_promised_start_timestamp_seconds", (each.job.queue, *key), latest_s


def job_queues(jobs: Iterable[JobState], others: Iterable[tuple[JobKey, str]]) -> Iterator[Sample]:
    """Yield the queue of each job, by the names that series of launchers have: one sample per name.

    others: owners of pods that no known job owns, and their queues. Prometheus does not know the API group of a pod's
    owner. So a job of a group whose kind has a longer name here also gets the short name, unless a job has it.
    """
    queues = {state.job.key: state.job.queue for state in jobs}
    for key, queue in list(queues.items()):
        queues.setdefault(JobKey(key.kind.partition(".")[0], key.namespace, key.name), queue)
    for key, queue in others:
        queues.setdefault(key, queue)
    for key, queue in queues.items():
        yield "job_info", (queue, *key), 1


def gpus_ahead(jobs: Iterable[JobState], gpus: Gpus) -> Mapping[JobKey, int]:
    """Return, for each waiting job, the GPUs that the waiting jobs before it in its queue miss to their mins."""
    sums: dict[str, int] = defaultdict(int)
    found: dict[JobKey, int] = {}
    for state in sorted((each for each in jobs if each.is_waiting), key=lambda each: each.queue_order):
        found[state.job.key] = sums[state.job.queue]
        sums[state.job.queue] += missing_gpus(state, gpus)
    return found


def prediction_result(promise: Start, started_s: float) -> str:
    """Return whether a job started early, inside or late of its first estimate. started_s: seconds since 1970."""
    earliest_s, _, latest_s = promise
    if started_s < earliest_s:
        return "early"
    return "inside" if started_s <= latest_s else "late"


def _queue_samples(look: Snapshot, gpus: Gpus) -> Iterator[Sample]:
    """Yield the GPUs of each queue by type. A quota that bounds several queues has no series."""
    for name, queue in look.queues.items():
        if bounds_several(name):
            continue
        amounts = {
            "limit": bound(queue.limit, gpus),
            "deserved": bound(queue.deserved, gpus),
            "used": total(queue.used, gpus),
            "available": free(queue.limit, queue.used, gpus),
        }
        for type_, amount in amounts.items():
            if amount is not None:
                yield "queue_gpus", (name, type_), amount


@dataclass(slots=True)
class _Sums:
    """Sums over the jobs of one queue."""

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("running", "waiting", "suspended"), 0))
    least_gpus: int = 0
    elastic_gpus: int = 0
    missing_gpus: int = 0
    without_series: int = 0
    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, state: JobState, gpus: Gpus) -> None:
        """Add a job. It counts as a job without series of its own."""
        self.states[_state(state)] += 1
        least_gpus, elastic_gpus = _gpus_by_part(state, gpus)
        self.least_gpus += least_gpus
        self.elastic_gpus += elastic_gpus
        self.missing_gpus += missing_gpus(state, gpus) if state.is_waiting else 0
        self.without_series += 1

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the samples of the queue. Zeros are included, so that a graph has no gaps."""
        for state, jobs in self.states.items():
            yield "queue_jobs", (name, state), jobs
        yield "queue_worker_gpus", (name, "min"), self.least_gpus
        yield "queue_worker_gpus", (name, "elastic"), self.elastic_gpus
        yield "queue_missing_gpus", (name,), self.missing_gpus
        yield "queue_unlisted_jobs", (name,), self.without_series
        for reason, jobs in self.reasons.items():
            yield "queue_jobs_by_reason", (name, reason), jobs


def _job_sums(look: Snapshot, gpus: Gpus, shown: Iterable[JobState]) -> Iterator[Sample]:
    """Yield the sums over the jobs of each queue.

    shown: the jobs that have series of their own; all others are counted as without series.
    """
    sums = {name: _Sums() for name in sorted(look.names())}
    of: dict[JobKey, _Sums] = {}
    for each in look.jobs:
        mine = of[each.job.key] = sums[each.job.queue]
        mine.add(each, gpus)
    for each in shown:
        of[each.job.key].without_series -= 1
    for step in look.steps:
        if (its := of.get(step.key)) is not None:
            its.reasons[step.reason.value] += 1
    for name, found in sums.items():
        yield from found.samples(name)


def _job_samples(
    state: JobState, gpus: Gpus, reason: Reason | None, since_s: float | None, start: Start | None
) -> Iterator[Sample]:
    """Yield the series of one job. since_s: since when it waits, in seconds since 1970. start: its expected start."""
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


def _jobs_with_series(jobs: Iterable[JobState], gpus: Gpus, most: int) -> list[JobState]:
    """Return the jobs with series of their own: of each queue the waiting jobs in order, then those with most GPUs.

    The first job of every queue comes before the second job of any queue, so one queue cannot hide the jobs of another.
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
        for name, mine in sorted(by_queue.items())
        for place, each in enumerate(nsmallest(most, mine, key=order))
    ]
    return [each for _, _, each in sorted(places, key=lambda found: found[:2])[:most]]


def _state(state: JobState) -> str:
    if state.job.life is Life.SUSPENDED:
        return "suspended"
    return "waiting" if state.is_waiting else "running"


def _gpus_by_part(state: JobState, gpus: Gpus) -> tuple[int, int]:
    """Return the GPUs of the running workers up to the min, and above it."""
    worker_gpus, least, bound = gpus_of(state.job.shape, gpus), state.job.bounds.least, state.bound_workers
    return (worker_gpus * bound, 0) if bound <= least else (worker_gpus * least, worker_gpus * (bound - least))
