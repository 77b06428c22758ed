"""Exports the job's time by kind on the metrics page of the coordinator's agent. docs/goodput.md

The labels of job, queue and namespace are those of the scraped target: nothing here says whose time it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from turnout.launcher.goodput.job_time import NS, JobTime

_COORDINATION_ENDS = ("stepped_down", "handed_over", "coordinator_moved")


class GoodputMetrics:
    """The newest totals, as long as this agent coordinates. run: the job's id, a label of the launcher's metrics."""

    def __init__(self, registry: CollectorRegistry, run: str) -> None:
        self._run = run
        self._record: JobTime | None = None
        self._step_s = 0.0  # seconds per step, from the newest two records with different steps
        registry.register(self)

    def count_event(self, event: str, fields: Mapping[str, object]) -> None:
        """Store the totals of an event "job_time_measured". Forget them when this agent stops to coordinate; ignore
        other events.
        """
        if event == "job_time_measured":
            record = fields["record"]
            assert isinstance(record, JobTime)
            self._step_s = step_seconds(self._record, record) or self._step_s
            self._record = record
        elif event in _COORDINATION_ENDS:  # another agent exports the totals from now on
            self._record = None

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of the newest totals; none without totals. The registry calls it for each
        scrape.
        """
        if (record := self._record) is None:
            return
        time_s = CounterMetricFamily("turnout_job_time_seconds", "Wall time of the job by kind.", labels=["kind"])
        gpu_s = CounterMetricFamily(
            "turnout_job_gpu_seconds", "The same times the GPUs of the job's world.", labels=["kind"]
        )
        for family, amounts in ((time_s, record.seconds()), (gpu_s, record.gpu_seconds())):
            for kind, amount_s in amounts.items():
                family.add_metric([kind], amount_s)
            yield family
        unsaved_text = "Time of steps that are not preserved, or of a start without a step. It is of no kind yet."
        yield GaugeMetricFamily("turnout_job_unsaved_seconds", unsaved_text, record.undecided_ns / NS)
        for name, text, value in (
            ("step", "The newest step that rank 0 has done, -1 for none.", record.step),
            ("step_seconds", "Wall time of a step between the last two reports, 0 if unknown.", self._step_s),
        ):
            gauge = GaugeMetricFamily(f"turnout_launcher_{name}", text, labels=["run"])
            gauge.add_metric([self._run], value)
            yield gauge


def step_seconds(before: JobTime | None, record: JobTime) -> float:
    """Return the wall time of a step between two records in seconds.

    0 if no step was done between them, and if the first record is missing (None) or has no step.
    """
    if before is None or before.step < 0 or record.step <= before.step:
        return 0.0
    return (record.until_ns - before.until_ns) / NS / (record.step - before.step)
