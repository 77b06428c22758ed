"""The lender's metrics page: every queue always, jobs only as counts, so that it stays small on any cluster."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from autoscaler.model import Observation, Seen, Step
from kube.shape import PodShape

_DECIDE_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """One page. gpu: the resource that counts as a GPU."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"turnout_{name}", text, labels, registry=self.registry)

        self._gpus = gauge("queue_gpus", "GPUs of a queue: its limit, its own (deserved), used, free.", "queue", "what")
        self._jobs = gauge("queue_jobs", "Jobs of a queue that run, and that wait for their min.", "queue", "state")
        self._workers = gauge(
            "queue_worker_gpus", "GPUs of running workers up to the min, and above it.", "queue", "part"
        )
        self._reasons = gauge("queue_reasons", "Jobs of a queue by the reason of the last decision.", "queue", "reason")
        self.leading = gauge("lender_leading", "1 while this replica decides.")
        self.age_s = gauge("lender_sight_age_seconds", "How long ago nodes or pods were last heard of.")
        self.changes = Counter(
            "turnout_lender_changes",
            "Changes of size, by reason and outcome.",
            ["reason", "outcome"],
            registry=self.registry,
        )
        self.decide_s = Histogram(
            "turnout_lender_decide_seconds", "Time for one decision.", buckets=_DECIDE_S, registry=self.registry
        )

    def seen(self, seen: Observation, steps: Iterable[Step]) -> None:
        """What was seen, and what was decided on it."""
        of = {each.job.key: each.job.queue for each in seen.jobs}
        self.age_s.set(seen.age_s)
        for each in (self._gpus, self._jobs, self._workers, self._reasons):
            each.clear()
        for name, queue in seen.queues.items():
            used = queue.used.get(self._gpu, 0)
            told = {"used": used, "deserved": queue.deserved.get(self._gpu), "limit": queue.limit.get(self._gpu)}
            if told["limit"] is not None:
                told["free"] = max(0, told["limit"] - used)
            for what, amount in told.items():
                if amount is not None:
                    self._gpus.labels(name, what).set(amount)
        states, parts = Count[tuple[str, str]](), Count[tuple[str, str]]()
        for job in seen.jobs:
            states[job.job.queue, "waits" if job.waits else "runs"] += 1
            parts.update(self._parts(job))
        reasons = Count((of.get(step.key, ""), step.reason.value) for step in steps)
        for page, counts in ((self._jobs, states), (self._workers, parts), (self._reasons, reasons)):
            for labels, amount in counts.items():
                page.labels(*labels).set(amount)

    def became(self, step: Step, word: str) -> None:
        """What became of a change."""
        self.changes.labels(step.reason.value, word).inc()

    def page(self) -> bytes:
        """The page as Prometheus reads it."""
        return generate_latest(self.registry)

    def _parts(self, seen: Seen) -> Mapping[tuple[str, str], int]:
        gpus, least = _gpus(seen.job.shape, self._gpu), seen.job.bounds.least
        placed = seen.placed
        queue = seen.job.queue
        return {(queue, "min"): gpus * min(placed, least), (queue, "elastic"): gpus * max(0, placed - least)}


def _gpus(shape: PodShape, gpu: str) -> int:
    return next((amount for name, amount in shape.requests if name == gpu), 0)
