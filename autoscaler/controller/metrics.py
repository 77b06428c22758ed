"""The metrics page of the autoscaler: every queue, and a bounded number of jobs.

Only the leader has series of queues and jobs, so two replicas never count the same GPU. `reporting/samples.py` turns
one decision into numbers; `Metrics` also counts over time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from math import isfinite

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
    Reason,
    Step,
)
from turnout.autoscaler.node_faults.model import NodeReason
from turnout.autoscaler.reporting.samples import (
    FAMILIES,
    Sample,
    Snapshot,
    Start,
    job_queues,
    prediction_result,
    samples,
    waiting_since_s,
)
from turnout.autoscaler.reporting.usage import elastic_gpus, gpus_of
from turnout.jobs.model import JobKey, JobLifecycle
from turnout.kube.client.clock import Clock, RealClock
from turnout.kube.server.client_metrics import ClientMetrics, Watch, start_at_zero
from turnout.kube.server.probes import leading_gauge, register_build_info

_DECIDE_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_PREDICTIONS_TEXT = "Started jobs, by their place in the interval of the first estimate."
_RESULTS = ("early", "inside", "late")  # of start predictions
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
    Without `show_cluster`, the series of nodes and of the decision log are empty.
    """

    def __init__(self, gpus: Gpus, clock: Clock | None = None, restart_s: float = Policy().restart_s) -> None:
        """Create the page. clock: None for the real one. The class explains the other arguments."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._counts, self._clock, self._restart_s = gpus, clock or RealClock(), restart_s
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        register_build_info(registry, "autoscaler")
        self.decide_s = Histogram(
            "turnout_autoscaler_decide_seconds", "Time for one decision.", buckets=_DECIDE_S, registry=registry
        )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_{name}", text, labels, registry=registry)

        change_labels = ("queue", "direction", "reason", "outcome")
        self.changes = counter("autoscaler_changes", "Changes of size, by reason and outcome.", *change_labels)
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
        self._first_estimates = _FirstEstimates(counter("start_predictions", _PREDICTIONS_TEXT, "queue", "result"))
        self.leading = _Leading(leading_gauge(registry, "autoscaler"), self._drop_series)
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
        """Store an observation and its decision for the page, and count usage and waiting jobs that have started.

        steps: one for each job. starts: job -> expected start; None keeps the previous ones.
        """
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
        self._first_estimates.count_started(observation.jobs, since, now_s)
        self._snapshot = Snapshot(
            now_s, observation.jobs, observation.queues, steps, since, self._first_estimates.estimates
        )
        if starts is not None:
            self.set_starts(starts)
        self._by_key = {}
        if self._dry_run_steps:
            changing = {step.key for step in self._snapshot.steps if step.changes}
            self._dry_run_steps = {key: step for key, step in self._dry_run_steps.items() if key in changing}
        for name in self._snapshot.names() - self._known_queues:
            self._begin_series(name)

    def set_starts(self, starts: Mapping[JobKey, Start]) -> None:
        """Set the expected starts of waiting jobs: job -> (earliest, likely, latest), in seconds since 1970.

        The first estimate of a job with a finite latest start is kept as its promised start.
        """
        self._starts = starts
        if self._snapshot is not None:
            self._first_estimates.add(starts, self._snapshot.since)

    def count_outcome(self, step: Step, outcome: str) -> None:
        """Count the outcome of a change: Written, DryRun, NotLeading, Conflict or Refused.

        A written change also counts its GPUs and its assumed cost. A change that a dry run intends is counted once for
        as long as it stays the same.
        """
        if outcome == "DryRun":
            if self._dry_run_steps.get(step.key) == step:
                return
            self._dry_run_steps[step.key] = step
        state = self._job(step.key)
        queue = state.job.queue if state is not None else ""
        direction = "grow" if step.target > step.current else "shrink"
        self.changes.labels(queue, direction, step.reason.value, outcome).inc()
        if outcome == "Written" and state is not None:
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
        """Count an outcome of a write of one PodGroup's minCount. reason, outcome: as of GangMinReport."""
        self._gang_mins.labels(reason.value, outcome).inc()

    def show_cluster(
        self,
        gpus_by_state: Callable[[], Mapping[str, int]],
        lost_decisions: Callable[[], int],
        other_jobs: Callable[[], Iterable[tuple[JobKey, str]]] = tuple,
    ) -> None:
        """Set the sources of cluster series.

        gpus_by_state: returns state -> GPUs of the nodes. lost_decisions: returns how many decisions the decision log
        lost. other_jobs: returns (owner, queue) of the pods without a known job.
        """
        self._cluster_gpus, self._lost_decisions, self._other_jobs = gpus_by_state, lost_decisions, other_jobs

    def show_client(
        self,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        watches: Callable[[], Iterable[tuple[str, Watch]]],
        clock: Clock,
    ) -> None:
        """Register the series about calls to the API server and about watches, read at each scrape.

        requests: returns (method, outcome) -> calls. watches: returns (kind, watch).
        """
        self.registry.register(ClientMetrics("autoscaler", requests, watches, clock))

    def page(self) -> bytes:
        """Return the page as Prometheus reads it."""
        self._lent.add_elapsed()
        return generate_latest(self.registry)

    def _samples(self) -> Iterator[Sample]:
        """Yield all samples of the last decision; none before the first, or while another replica leads."""
        if self._snapshot is not None:
            yield from samples(self._snapshot, self._starts, self._counts)
            yield from job_queues(self._snapshot.jobs, self._other_jobs())
            yield "autoscaler_observation_age_seconds", (), self._age_s + self._clock.monotonic() - self._at_s
            for state, gpus in self._cluster_gpus().items():
                yield "cluster_gpus", (state,), gpus

    def _drop_series(self) -> None:
        """Drop the series of queues, jobs and nodes, because another replica leads now."""
        self._lent.set_lent({})
        self.nodes.clear()
        self.usage.clear()
        self._snapshot, self._starts, self._by_key, self._dry_run_steps = None, {}, {}, {}
        self._first_estimates.estimates.clear()

    def _job(self, key: JobKey) -> JobState | None:
        """Return the state of a job in the last decision; None if it was not there."""
        if not self._by_key and self._snapshot is not None:
            self._by_key = {each.job.key: each for each in self._snapshot.jobs}
        return self._by_key.get(key)

    def _begin_series(self, queue: str) -> None:
        """Create the counters of a queue with value 0.

        Prometheus sees no increase in a series that did not exist before.
        """
        self._known_queues.add(queue)
        self._lent.gpu_seconds.labels(queue)
        self._restarts.labels(queue)
        self._first_estimates.begin(queue)
        for direction, reason in _CHANGES:
            self._resized.labels(queue, direction)
            for outcome in _OUTCOMES:
                self.changes.labels(queue, direction, reason.value, outcome)


def _gang_min_changes(registry: CollectorRegistry) -> Counter:
    """Return the counter of changes of minCount, with every series at 0."""
    text = "Changes of minCount of native PodGroups, by reason and outcome."
    changes = Counter("turnout_gang_min_changes", text, ("reason", "outcome"), registry=registry)
    start_at_zero(changes, [reason.value for reason in GangReason], _GANG_MIN_OUTCOMES)
    return changes


class _NodeMetrics:
    """Counters of nodes on which pods have reported faults."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the series, the counters at 0, in this registry."""
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
        """Set the gauges of nodes. counts: state -> nodes; other states keep their number. limit: how many nodes may
        be tainted.
        """
        for state, count in counts.items():
            self._now.labels(state).set(count)
        self._limit.number = limit

    def count_outcome(self, reason: str, outcome: str) -> None:
        """Count the outcome of one step on a node. reason: of the step."""
        self._changes.labels(reason, outcome).inc()

    def count_skipped(self, reason: str) -> None:
        """Count a report without effect. reason: why it has none."""
        self._skipped.labels(reason).inc()

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
        """Set the gauge to 1 or 0. At 0, call `stopped`. leads: 1 if this replica leads, else 0."""
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
        """Set queue -> GPUs that are lent from now on; the time before is added by the old numbers."""
        self.add_elapsed()
        self._gpus, self._at_s = gpus, self._clock.monotonic()

    def add_elapsed(self) -> None:
        """Add the GPU-seconds since the last addition to the counters."""
        now_s = self._clock.monotonic()
        for queue, gpus in self._gpus.items():
            self.gpu_seconds.labels(queue).inc(gpus * (now_s - self._at_s))
        self._at_s = now_s


class _FirstEstimates:
    """The first estimates for the waiting jobs."""

    def __init__(self, results: Counter) -> None:
        """results: counts started jobs by queue and result."""
        self._results = results
        self.estimates: dict[JobKey, Start] = {}

    def begin(self, queue: str) -> None:
        """Set the counters of a queue to 0."""
        for result in _RESULTS:
            self._results.labels(queue, result)

    def add(self, starts: Mapping[JobKey, Start], waiting: Container[JobKey]) -> None:
        """Store the first estimate with a finite latest start (Start[2]) for each waiting job; later ones do not
        replace it.

        starts: job -> estimate. waiting: jobs that wait now.
        """
        for key, start in starts.items():
            if isfinite(start[2]) and key in waiting:
                self.estimates.setdefault(key, start)

    def count_started(self, jobs: Iterable[JobState], waiting: Container[JobKey], now_s: float) -> None:
        """Count the waiting jobs that have started since the last call by their place in the first estimate.

        Jobs that no longer wait are forgotten; one that has ended or is deleted is not counted. waiting: jobs that wait
        now. now_s: seconds since 1970.
        """
        for state in jobs if self.estimates else ():
            key = state.job.key
            if key in self.estimates and key not in waiting and state.job.lifecycle is JobLifecycle.LIVE:
                self._results.labels(state.job.queue, prediction_result(self.estimates[key], now_s)).inc()
        for key in [key for key in self.estimates if key not in waiting]:
            del self.estimates[key]


class _SnapshotCollector(Collector):
    """The samples of the last decision, computed only when the page is read."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last decision."""
        families = {
            name: GaugeMetricFamily(f"turnout_{name}", text, labels=label_names)
            for name, (text, label_names) in FAMILIES.items()
        }
        for name, labels, amount in self._samples():
            families[name].add_metric(labels, amount)
        yield from families.values()


class _LossCollector(Collector):
    """The decisions that the decision log lost, because its disk was slow."""

    def __init__(self, lost: Callable[[], int]) -> None:
        self._lost = lost

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        text = "Decisions that are missing in the decision log, because its disk was slow."
        yield CounterMetricFamily("turnout_decision_log_lost", text, value=self._lost())
