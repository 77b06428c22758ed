"""Sum up usage over time between the decisions of one leader, for the metrics and for the decision log.

`reporting/usage.py` computes the rates of one moment. The sums of the metrics begin with a term of leadership; those of
the decision log begin with each line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.autoscaler.model import Gpus, JobState, Observation, Step
from turnout.autoscaler.reporting.decision_log import UsageLine, usage_lines
from turnout.autoscaler.reporting.usage import (
    OTHER,
    IdleReason,
    Pair,
    Reclaims,
    UsageRates,
    UsageSums,
    bound_pairs,
    gpus_of,
    leaf_queues,
    split_return,
    usage_rates,
)
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import QueueShare
from turnout.kube.client.clock import Clock

PERIOD_S = 900.0  # of one usage line in the decision log; it ends with each quarter of an hour
RATES_INTERVAL_S = 1.0  # decisions closer in time count as one: the rates of 10,000 jobs take 0.1 s
_RECLAIM_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class _Pending(NamedTuple):
    """A decision whose rates are not computed yet. A later decision replaces it, but keeps its `since_s`."""

    since_s: float  # when the first replaced decision was made, by a clock that never jumps
    observation: Observation
    steps: Sequence[Step]
    free_gpus: int  # on ready nodes, >= 0


class UsageMeter(Collector):
    """The usage since this process became leader. It has no series while another replica leads."""

    def __init__(self, registry: CollectorRegistry, gpus: Gpus, clock: Clock) -> None:
        """Create the series and start without usage. gpus: the resources that count as a GPU."""
        self._gpus, self._clock = gpus, clock
        self._free_gpus: Callable[[], int] = int
        self._owner_label_of: Callable[[JobKey], str] = lambda _: ""
        self._policy_headroom: Mapping[str, int] = {}
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
        """Forget all sums, rates and owner labels, because another replica leads now. The sources stay."""
        self._rates: UsageRates | None = None
        self._pending: _Pending | None = None
        self._at_s = 0.0
        self._sums, self._period = UsageSums(), UsageSums()
        self._queues: Mapping[str, QueueShare] = {}
        self._pairs: set[Pair] = set()  # that are counted by name
        self._owner_labels: dict[JobKey, str] = {}
        self._quarter: float | None = None  # number of the last period since 1970
        self._reclaims = Reclaims()
        self._reclaim_s.clear()

    def set_sources(
        self, free_gpus: Callable[[], int], owner_label_of: Callable[[JobKey], str], policy_headroom: Mapping[str, int]
    ) -> None:
        """Set the sources of what an observation does not contain. Without this call there are no free GPUs, owner
        labels and headroom.

        free_gpus: returns how many GPUs of ready nodes are free. owner_label_of: returns the value of a job's label
        that `--owner-label` names, "" without one. policy_headroom: `Policy.headroom`, an amount for each resource.
        """
        self._free_gpus, self._owner_label_of, self._policy_headroom = free_gpus, owner_label_of, policy_headroom

    def record_decision(self, observation: Observation, steps: Sequence[Step]) -> None:
        """Add usage for the time since the last decision, at the rates of that decision; use the new rates from now on.

        steps: one for each job. Also observe how long jobs have waited for workers to leave. Rates are computed at most
        every RATES_INTERVAL_S; until then the decision is stored, and a later one replaces it.
        """
        now_s = self._clock.monotonic()
        self.add_elapsed()
        self._queues = observation.queues
        for queue, seconds in self._reclaims.update(observation.jobs, steps, now_s):
            self._reclaim_s.labels(queue).observe(seconds)
        since_s = now_s if self._pending is None else self._pending.since_s
        decision = _Pending(since_s, observation, steps, self._free_gpus())
        if self._rates is None:
            self._at_s = now_s
            self._apply_rates(decision)
        else:
            self._pending = decision

    def add_elapsed(self, min_age_s: float = RATES_INTERVAL_S) -> None:
        """Add the time since the last addition by the current rates.

        min_age_s: age of a stored decision from which its rates are computed and used, in seconds; 0 for at once.
        """
        now_s = self._clock.monotonic()
        if self._pending is not None and now_s - self._pending.since_s >= min_age_s:
            pending, self._pending = self._pending, None
            self._add_until(pending.since_s)
            self._apply_rates(pending)
        self._add_until(now_s)

    def _add_until(self, until_s: float) -> None:
        """Add the time up to a moment of the monotonic clock by the current rates; nothing without rates, or if it
        is counted.
        """
        if self._rates is not None and until_s > self._at_s:
            self._period.add(self._rates, until_s - self._at_s)
            shown_rates = UsageRates(lent=self._rates.lent, idle=self._rates.idle)  # jobs would be remembered for ever
            self._sums.add(shown_rates, until_s - self._at_s)
            self._at_s = until_s

    def _apply_rates(self, decision: _Pending) -> None:
        """Compute the rates of a decision, and use them from now on. Begin the series that they need at 0."""
        observation, free_gpus = decision.observation, decision.free_gpus
        rates = usage_rates(
            observation, decision.steps, free_gpus, self._gpus, self._policy_headroom, self._owner_label
        )
        self._rates = rates = replace(rates, lent=bound_pairs(rates.lent, self._pairs))
        for pair in rates.lent:
            self._sums.lent[pair] += 0.0
            self._sums.returned[pair] += 0.0
        for queue in (*(name for name, _ in leaf_queues(observation.queues)), OTHER):
            for reason in IdleReason:
                self._sums.idle[queue, reason.value] += 0.0
            self._reclaim_s.labels(queue)

    def count_resize(self, state: JobState, step: Step, beneficiary_queue: str, cost_s: float) -> None:
        """Count a written change of size, with its cost and, for a shrink, the GPUs that the lenders get back.

        state: of the resized job before the change. step: the change. beneficiary_queue: of the job for which workers
        leave; "" for none, then the GPUs are split among the lenders. cost_s: assumed cost of a restart for each worker
        that stays.
        """
        queue, worker_gpus = state.job.queue, gpus_of(state.job.shape, self._gpus)
        cost = worker_gpus * min(state.bound_workers, step.target) * cost_s
        returned = worker_gpus * max(0, step.current - step.target)
        parts: Mapping[str, float] = {beneficiary_queue: returned}
        if not beneficiary_queue:
            parts = split_return(queue, returned, self._queues, self._gpus)
        pairs = bound_pairs({(source, queue): part for source, part in parts.items() if part}, self._pairs)
        self._period.cost[queue] += cost
        for pair, part in pairs.items():
            self._period.returned[pair] += part
            self._sums.returned[pair] += part

    def due_lines(self, now_s: float) -> list[UsageLine]:
        """Return the usage lines of a period that has ended since the last call; [] if none has, and at the first call.

        The lines reach up to now. now_s: seconds since 1970.
        """
        quarter = now_s // PERIOD_S
        if quarter == self._quarter:
            return []
        before, self._quarter = self._quarter, quarter
        return self.take_lines(now_s) if before is not None else []

    def take_lines(self, now_s: float) -> list[UsageLine]:
        """Return the usage lines of the period up to now, and begin a new period. [] if nothing was used. now_s:
        seconds since 1970.
        """
        self.add_elapsed(0.0)
        period, self._period = self._period, UsageSums()
        jobs = {holder.job for holder in self._rates.held_gpus} if self._rates is not None else ()
        self._owner_labels = {key: owner for key, owner in self._owner_labels.items() if str(key) in jobs}
        return usage_lines(period, now_s)

    def _owner_label(self, key: JobKey) -> str:
        """Return the owner label of a job, as it was when it was first asked for; later changes of the label do not
        count.
        """
        if (owner := self._owner_labels.get(key)) is None:
            owner = self._owner_labels[key] = self._owner_label_of(key)
        return owner

    def collect(self) -> Iterator[Metric]:
        """Yield the counters of idle, lent and returned GPUs as they are now."""
        self.add_elapsed()
        idle_text = "Time for which GPUs of ready nodes were idle, by the queue whose share they are and by reason."
        lent_text = "Time for which elastic workers of the borrower used GPUs of the lender's share."
        returned_text = "GPUs that elastic workers of the borrower gave back to the lender."
        yield _counter_family("idle_gpu_seconds", idle_text, ("queue", "reason"), self._sums.idle)
        yield _counter_family("lent_gpu_seconds", lent_text, ("lender", "borrower"), self._sums.lent)
        yield _counter_family("returned_gpus", returned_text, ("lender", "borrower"), self._sums.returned)


def _counter_family(
    name: str, text: str, labels: Iterable[str], amounts: Mapping[tuple[str, str], float]
) -> CounterMetricFamily:
    """Return the counter turnout_`name` with one sample for each entry of `amounts`, whose keys are the values of the
    labels.

    text: its help.
    """
    family = CounterMetricFamily(f"turnout_{name}", text, labels=tuple(labels))
    for values, amount in amounts.items():
        family.add_metric(values, amount)
    return family
