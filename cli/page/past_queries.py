"""The queries to Prometheus about the time before the page started, and the decoding of the answers.

The series are those of the autoscaler (docs/autoscaler.md), and those of launchers for jobs that it does not list.
`prometheus.py` sends the queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

import msgspec

from turnout.cli.page.cluster_state import MAX_SUM_GPUS
from turnout.cli.page.messages import JobItem, QueueSample, SizeSample

MAX_POINTS = 720  # of one series of an answer
MAX_SERIES = 16  # of one answer
RATE_S = 300.0  # over which lent GPU-seconds become GPUs, at least
MAX_CHANGES = 500  # of a job's size; older changes are left out
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PastSamples(Generic[T]):
    """Samples from Prometheus, oldest first."""

    samples: tuple[T, ...] = ()
    note: str = ""  # why there are none, or only those of an older answer; "" if Prometheus has answered with some


class BadAnswer(ValueError):
    """An invalid answer of Prometheus.

    The message is shown after "Prometheus has no data from before this page started:".
    """


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Series]


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""


_decoder = msgspec.json.Decoder(_Answer)
TimeSeries = Mapping[float, float]  # seconds since 1970 -> value
NO_SAMPLES: TimeSeries = {}


def read_series(body: bytes, label: str) -> dict[str, TimeSeries]:
    """Return the series of an answer to a range query, by the value of one label; "" for a series without it.

    body: of the answer. label: its name. Of several series with one value the last counts. Raises BadAnswer if the
    answer is no valid one, reports an error, or is too large.
    """
    try:
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"its answer is not that of a Prometheus: {error}") from error
    if answer.status != "success" or answer.data is None:
        raise BadAnswer(f"it rejected the query: {answer.error[:200] or answer.status[:50]}")
    if answer.data.result_type != "matrix":
        raise BadAnswer(f"its answer is a {answer.data.result_type[:50]}, not a matrix")
    if len(answer.data.result) > MAX_SERIES or any(len(each.values) > MAX_POINTS for each in answer.data.result):
        raise BadAnswer(f"its answer has more than {MAX_SERIES} series of {MAX_POINTS} points")
    return {each.metric.get(label, ""): _parse_series(each.values) for each in answer.data.result}


def _parse_series(values: Iterable[tuple[float, str]]) -> TimeSeries:
    """Return the samples of one series as a mapping: seconds since 1970 -> value.

    values: (seconds since 1970, value as text). Values that cannot be a number of GPUs or workers (negative, not
    finite, too large) are left out. Raises BadAnswer for text that is no number.
    """
    series = {}
    for at_s, text in values:
        try:
            value = float(text)
        except ValueError as error:
            raise BadAnswer(f"its answer has a value that is not a number: {text[:20]!r}") from error
        if isfinite(value) and 0 <= value <= MAX_SUM_GPUS:
            series[at_s] = value
    return series


def quoted(text: str) -> str:
    """Return a text as a string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _selector(labels: Mapping[str, str], cluster: str) -> str:
    chosen = {**labels, **({"cluster": cluster} if cluster else {})}
    return "{" + ",".join(f"{name}={quoted(value)}" for name, value in chosen.items()) + "}"


def queue_queries(queue: str, cluster: str, step_s: float) -> tuple[tuple[str, str], ...]:
    """Return the queries about one queue, each as (PromQL, the label that distinguishes its series).

    cluster: label of the cluster's series, "" for none. step_s: seconds between two samples.
    """
    own, lends = _selector({"queue": queue}, cluster), _selector({"lender": queue}, cluster)
    window_s = round(max(RATE_S, step_s))
    return (
        (f"max by (type) (turnout_queue_gpus{own})", "type"),
        (f"max by (part) (turnout_queue_worker_gpus{own})", "part"),
        (f"sum(rate(turnout_lent_gpu_seconds_total{lends}[{window_s}s]))", ""),
    )


def queue_samples(lines: Mapping[str, TimeSeries], step_s: float) -> tuple[QueueSample, ...]:
    """Return the samples of a queue, oldest first. Times without its use are left out.

    lines: the series of all `queue_queries`, by type and by part; "" for what it lends. step_s: seconds between
    samples. A gap becomes one sample without amounts, so that no line is drawn across it. Only the newest
    2 * MAX_POINTS samples are returned.
    """
    used_line, min_line, elastic_line = (lines.get(name, NO_SAMPLES) for name in ("used", "min", "elastic"))
    samples: list[QueueSample] = []
    for at_s in sorted({*used_line, *min_line}):
        if samples and at_s - samples[-1].at_s > 1.5 * step_s:
            samples.append(QueueSample(samples[-1].at_s + step_s, None, None, None, None, None, None))
        elastic = elastic_line.get(at_s, 0.0)
        used = used_line.get(at_s, min_line.get(at_s, 0.0) + elastic)
        share, lent = lines.get("deserved", NO_SAMPLES).get(at_s), lines.get("", NO_SAMPLES).get(at_s, 0.0)
        samples.append(_sample(at_s, round(used), round(elastic), None if share is None else round(share), round(lent)))
    return tuple(samples[-2 * MAX_POINTS :])


def _sample(at_s: float, used: int, elastic: int, quota: int | None, lent: int) -> QueueSample:
    """Return a sample with the parts of a queue's use and of its quota, as cluster_state.py divides them for the
    present.

    at_s: since 1970. used, elastic, lent: GPUs; `elastic` counts up to `used`, `lent` up to the unused part of the
    quota. The rest of the unused part is idle, and use above the quota is borrowed. quota: GPUs, None for none.
    """
    unused, elastic = max(0, (quota or 0) - used), min(elastic, used)
    lent, borrowed = min(lent, unused), 0 if quota is None else max(0, used - quota)
    return QueueSample(at_s, quota, used - elastic, elastic, lent, unused - lent, borrowed)


def size_query(job: JobItem, cluster: str) -> str:
    """Return the query about the number of workers of a job. cluster: label of the cluster's series, "" for none.

    The autoscaler exports the GPUs of the jobs that it lists; the launcher of any job exports its world size.
    """
    of_job = _selector({"job_namespace": job.namespace, "job_kind": job.kind, "job_name": job.name}, cluster)
    workers = f"sum(max by (part) (turnout_job_gpus{of_job})) / {max(1, job.gpus_per_worker)}"
    return f"{workers} or max(turnout_launcher_members{of_job})"


def size_samples(workers: TimeSeries) -> tuple[SizeSample, ...]:
    """Return the first sample and those at which a job's number of workers changed, oldest first.

    workers: the answer to `size_query`. Only the newest MAX_CHANGES samples are returned.
    """
    samples: list[SizeSample] = []
    for at_s in sorted(workers):
        size = round(workers[at_s])
        if not samples or samples[-1].workers != size:
            samples.append(SizeSample(at_s, size))
    return tuple(samples[-MAX_CHANGES:])
