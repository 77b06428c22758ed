"""Sum up usage over time between the decisions of one leader, for the metrics and for the decision log.

`reporting/usage.py` works out the rates of one moment. The sums of the metrics begin with a term; those of the decision
log begin with each line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.autoscaler.model import Gpus, JobState, Observation, Step
from turnout.autoscaler.reporting.usage import (
    OTHER,
    IdleReason,
    Pair,
    Reclaims,
    UsageRates,
    UsageSums,
    bounded,
    gpus_of,
    leaf_queues,
    split_return,
    usage_rates,
)
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import Queue
from turnout.kube.client.clock import Clock

RATES_EACH_S = 1.0  # decisions closer in time count as one: working out the rates of 10,000 jobs takes 0.1 s
_RECLAIM_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class _Pending(NamedTuple):
    """A decision whose rates are not worked out yet. Later decisions replace it while it waits."""

    since_s: float  # when the first of them was made, of a clock that never jumps
    observation: Observation
    steps: Sequence[Step]


class UsageMeter(Collector):
    """The usage since this process leads. It has no series while another replica leads."""

    def __init__(self, registry: CollectorRegistry, gpus: Gpus, clock: Clock) -> None:
        self._gpus, self._clock = gpus, clock
        self._free_gpus: Callable[[], int] = int
        self._owner_of: Callable[[JobKey], str] = lambda _: ""
        self._headroom: Mapping[str, int] = {}
        self._reclaim_s = Histogram(
            "turnout_reclaim_seconds",
            "Time from the decision that elastic workers leave for a job until its min is bound.",
            ["queue"],
            buckets=_RECLAIM_S,
            registry=registry,
        )
        registry.register(self)
        self.clear()

    def clear(self) -> None:
        """Forget everything, because another replica leads now."""
        self._rates: UsageRates | None = None
        self._pending: _Pending | None = None
        self._at_s = 0.0
        self._sums, self._period = UsageSums(), UsageSums()
        self._queues: Mapping[str, Queue] = {}
        self._pairs: set[Pair] = set()
        self._reclaims = Reclaims()
        self._reclaim_s.clear()

    def follow(
        self, free_gpus: Callable[[], int], owner_of: Callable[[JobKey], str], headroom: Mapping[str, int]
    ) -> None:
        """Set where the rest comes from: the free GPUs of ready nodes, the owner of a job, and the admin's headroom."""
        self._free_gpus, self._owner_of, self._headroom = free_gpus, owner_of, headroom

    def record_decision(self, observation: Observation, steps: Sequence[Step]) -> None:
        """Count the time since the last decision, and take over the rates from now on."""
        now_s = self._clock.monotonic()
        self.add_elapsed()
        self._queues = observation.queues
        for queue, seconds in self._reclaims.update(observation.jobs, steps, now_s):
            self._reclaim_s.labels(queue).observe(seconds)
        if self._rates is None:
            self._at_s = now_s
            self._take_rates(observation, steps)
        else:
            since_s = now_s if self._pending is None else self._pending.since_s
            self._pending = _Pending(since_s, observation, steps)

    def add_elapsed(self) -> None:
        """Count the time since the last count."""
        now_s = self._clock.monotonic()
        if self._pending is not None and now_s - self._pending.since_s >= RATES_EACH_S:
            pending, self._pending = self._pending, None
            self._add_until(pending.since_s)
            self._take_rates(pending.observation, pending.steps)
        self._add_until(now_s)

    def _add_until(self, until_s: float) -> None:
        if self._rates is not None and until_s > self._at_s:
            for sums in (self._sums, self._period):
                sums.add(self._rates, until_s - self._at_s)
            self._at_s = until_s

    def _take_rates(self, observation: Observation, steps: Sequence[Step]) -> None:
        """Work out the rates from now on, and begin the series that they need at 0."""
        rates = usage_rates(observation, steps, self._free_gpus(), self._gpus, self._headroom, self._owner_of)
        self._rates = rates = replace(rates, lent=bounded(rates.lent, self._pairs))
        for pair in rates.lent:
            self._sums.lent[pair] += 0.0
            self._sums.returned[pair] += 0.0
        for queue in (*(name for name, _ in leaf_queues(observation.queues)), OTHER):
            for reason in IdleReason:
                self._sums.idle[queue, reason.value] += 0.0
            self._reclaim_s.labels(queue)

    def count_resize(self, state: JobState, step: Step, beneficiary_queue: str, cost_s: float) -> None:
        """Count a written change of size. cost_s: what a restart is assumed to cost each worker that goes on.

        beneficiary_queue: of the job for which workers leave; "" for none. Then the lenders get their parts.
        """
        queue, worker_gpus = state.job.queue, gpus_of(state.job.shape, self._gpus)
        cost = worker_gpus * min(state.bound_workers, step.target) * cost_s
        returned = worker_gpus * max(0, step.current - step.target)
        parts: Mapping[str, float] = {beneficiary_queue: returned}
        if not beneficiary_queue:
            parts = split_return(queue, returned, self._queues, self._gpus)
        pairs = bounded({(source, queue): part for source, part in parts.items() if part}, self._pairs)
        for sums in (self._sums, self._period):
            sums.cost[queue] += cost
            for pair, part in pairs.items():
                sums.returned[pair] += part

    def take_period(self) -> UsageSums:
        """Return the sums since the last call, and begin with new ones."""
        self.add_elapsed()
        period, self._period = self._period, UsageSums()
        return period

    def collect(self) -> Iterator[Metric]:
        """Yield the counters as they are now."""
        self.add_elapsed()
        idle_text = "Time for which GPUs of ready nodes were idle, by the queue whose share they are and by reason."
        lent_text = "Time for which elastic workers of the borrower used GPUs of the lender's share."
        returned_text = "GPUs that elastic workers of the borrower gave back to the lender."
        yield _counter("idle_gpu_seconds", idle_text, ("queue", "reason"), self._sums.idle)
        yield _counter("lent_gpu_seconds", lent_text, ("lender", "borrower"), self._sums.lent)
        yield _counter("returned_gpus", returned_text, ("lender", "borrower"), self._sums.returned)


def _counter(
    name: str, text: str, labels: Iterable[str], amounts: Mapping[tuple[str, str], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"turnout_{name}", text, labels=tuple(labels))
    for values, amount in amounts.items():
        family.add_metric(values, amount)
    return family
