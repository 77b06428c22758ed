"""The metrics page of the autoscaler: every queue, and a bounded number of jobs.

Only the leader has series of queues and jobs, so two replicas never count the same GPU. metric_samples.py computes the
samples of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.autoscaler.controller import metric_samples
from turnout.autoscaler.controller.metric_samples import FAMILIES, Snapshot, Start, gpus_of
from turnout.autoscaler.gpu_sums import Gpus
from turnout.autoscaler.model import JobState, Observation, Policy, Reason, Step
from turnout.jobs.model import JobKey
from turnout.kube.client.clock import Clock, RealClock
from turnout.kube.server.probes import build_info

_DECIDE_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_OUTCOMES = ("Written", "DryRun", "Conflict", "Refused", "NotLeading")
_CHANGES = (
    ("grow", Reason.IDLE_ROOM),
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
        build_info(registry)
        self.decide_s = Histogram(
            "turnout_autoscaler_decide_seconds", "Time for one decision.", buckets=_DECIDE_S, registry=registry
        )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_{name}", text, labels, registry=registry)

        self.changes = counter(
            "autoscaler_changes", "Changes of size, by reason and outcome.", "queue", "direction", "reason", "outcome"
        )
        self._resized = counter("queue_resized_gpus", "GPUs of workers added or taken.", "queue", "direction")
        self._restarts = counter(
            "queue_restart_gpu_seconds", "GPU time that changes of size cost the jobs they were made of.", "queue"
        )
        self._lent = _LentTime(
            counter("queue_elastic_gpu_seconds", "Time for which workers above the min had GPUs.", "queue"), self._clock
        )
        self.leading = _Leading(
            Gauge("turnout_autoscaler_leading", "1 while this replica decides.", registry=registry), self._stopped
        )
        self.nodes = _NodeMetrics(registry)
        self._snapshot: Snapshot | None = None
        self._starts: Mapping[JobKey, Start] = {}
        self._age_s = self._at_s = 0.0
        self._by_key: dict[JobKey, JobState] = {}
        self._dry_run_steps: dict[JobKey, Step] = {}
        self._known_queues: set[str] = set()
        registry.register(_SnapshotCollector(self._samples))

    def record_decision(
        self, observation: Observation, steps: Iterable[Step], starts: Mapping[JobKey, Start] | None = None
    ) -> None:
        """Take over an observation and its decision. starts: as for `set_starts`; None keeps the previous ones."""
        self._age_s, self._at_s = observation.age_s, self._clock.monotonic()
        self._lent.set_lent(metric_samples.lent(observation.jobs, self._counts))
        before = self._snapshot.since if self._snapshot is not None else {}
        now_s = self._clock.wall()
        since = {
            each.job.key: before.get(each.job.key) or metric_samples.waiting_since_s(each, now_s)
            for each in observation.jobs
            if each.is_waiting
        }
        self._snapshot = Snapshot(now_s, observation.jobs, observation.queues, tuple(steps), since)
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
            usual_s = self._restart_s if state.job.bank.restart_s is None else state.job.bank.restart_s
            cost_s = 0.0 if step.at_start else usual_s
            self._restarts.labels(queue).inc(gpus * min(state.bound_workers, step.target) * cost_s)

    def page(self) -> bytes:
        """Return the page as Prometheus reads it."""
        self._lent.add_elapsed()
        return generate_latest(self.registry)

    def _samples(self) -> Iterator[metric_samples.Sample]:
        if self._snapshot is not None:
            yield from metric_samples.samples(self._snapshot, self._starts, self._counts)
            yield "autoscaler_observation_age_seconds", (), self._age_s + self._clock.monotonic() - self._at_s

    def _stopped(self) -> None:
        """Drop the series of queues, jobs and nodes, because another replica leads now."""
        self._lent.set_lent({})
        self.nodes.clear()
        self._snapshot, self._starts, self._by_key, self._dry_run_steps = None, {}, {}, {}

    def _job(self, key: JobKey) -> JobState | None:
        if not self._by_key and self._snapshot is not None:
            self._by_key = {each.job.key: each for each in self._snapshot.jobs}
        return self._by_key.get(key)

    def _begin(self, queue: str) -> None:
        """Set every counter of a queue to 0. Prometheus sees no increase in a series that did not exist before."""
        self._known_queues.add(queue)
        self._lent.gpu_seconds.labels(queue)
        self._restarts.labels(queue)
        for direction, reason in _CHANGES:
            self._resized.labels(queue, direction)
            for word in _OUTCOMES:
                self.changes.labels(queue, direction, reason.value, word)


class _NodeMetrics:
    """Counters of nodes on which pods have reported faults."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = (
            "Nodes that are tainted, suspected or on trial, the limit of tainted nodes, and the nodes that offer GPUs."
        )
        self._now = Gauge("turnout_autoscaler_faulty_nodes", text, ("what",), registry=registry)
        self._changes = Counter(
            "turnout_node_changes", "Changes of nodes, by reason and outcome.", ("reason", "outcome"), registry=registry
        )
        self._skipped = Counter(
            "turnout_node_verdicts_skipped", "Verdicts without effect, by why.", ("reason",), registry=registry
        )

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Set the number of nodes in each state."""
        for what, count in counts.items():
            self._now.labels(what).set(count)

    def count_outcome(self, word: str, outcome: str) -> None:
        """Count the outcome of one step."""
        self._changes.labels(word, outcome).inc()

    def count_skipped(self, word: str) -> None:
        """Count a verdict without effect."""
        self._skipped.labels(word).inc()

    def clear(self) -> None:
        """Drop the series, because another replica leads now."""
        self._now.clear()


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


class _SnapshotCollector(Collector):
    """The samples of the last decision, computed only when the page is read."""

    def __init__(self, samples: Callable[[], Iterable[metric_samples.Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        found = {name: GaugeMetricFamily(f"turnout_{name}", text, labels=of) for name, (text, of) in FAMILIES.items()}
        for name, labels, amount in self._samples():
            found[name].add_metric(labels, amount)
        yield from found.values()
