"""Parse traces, and draw random streams of jobs: rows of jobs, and speeds as curves. trace_files.py opens the files.

Traces: Microsoft ITP 2021, of ElasticFlow (ASPLOS'23); speeds: of the same work. No trace says which job is elastic:
that is labelled in this module, too.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from turnout.simulator.replay.model import Submission

Table = tuple[tuple[int, float], ...]  # (GPUs, speed), ascending; of a speed only the ratios count


@dataclass(frozen=True, slots=True, order=True)
class TraceRow:
    """One job of a trace: when it came, how many GPUs it held, and for how long."""

    at_s: float  # time of submission, in seconds
    name: str
    gpus: int  # > 0
    took_s: float  # run time, > 0


class BadTrace(Exception):
    """A file that is no trace. The message names the fault."""


def rows_of(text: str) -> tuple[TraceRow, ...]:
    """Return the jobs of a trace (CSV), in the order of their submission. Jobs without GPUs or duration are left out.

    Raises BadTrace for another text.
    """
    try:
        rows = [
            TraceRow(float(line["submission_time"]), f"job-{number:06}", int(line["num_gpu"]), float(line["duration"]))
            for number, line in enumerate(_lines(text))
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"not a trace: {error!r}") from error
    return tuple(sorted(row for row in rows if row.gpus > 0 and row.took_s > 0))


def tables_of(text: str) -> tuple[Table, ...]:
    """Return one table for each batch size of a model (CSV): (GPUs, speed), ascending.

    Tables with fewer than two sizes are left out. Raises BadTrace for another text.
    """
    try:
        found = [
            tuple(
                sorted(
                    (int(gpus), float(speed)) for gpus, speed in line.items() if gpus.isdigit() and _has_speed(speed)
                )
            )
            for line in _lines(text)
        ]
    except (AttributeError, ValueError) as error:
        raise BadTrace(f"not a table of speeds: {error!r}") from error
    return tuple(table for table in found if len(table) > 1)


def _lines(text: str) -> Iterable[dict[str, str]]:
    """Return the lines of a CSV text with a head, as mappings from the names of the columns."""
    return csv.DictReader(text.splitlines())


def _has_speed(speed: str | None) -> bool:
    """Return True for a speed above 0; False for None and "". Raises ValueError for a text that is no number."""
    return bool(speed) and float(speed or 0) > 0


_SIZES = ((1, 60), (2, 8), (4, 10), (8, 18), (16, 3), (32, 1))  # GPUs, how often: roughly those of the traces
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class JobProperties:
    """The properties of jobs that no trace states."""

    elastic: float = 1.0  # the share of jobs that are elastic
    factor: int = 4  # max over min; the min is what the job asked for
    per_node: int = 8  # GPUs of the largest worker; a job that asked for more has several workers
    tables: Sequence[Table] = ()  # measured speeds, of which each job gets one; none: the usual curve


def submissions_of(rows: Iterable[TraceRow], properties: JobProperties, rng: Random) -> tuple[Submission, ...]:
    """Return submissions of the rows, with random sizes and curves, in the order of their time; the first is at 0.

    properties: the shares and curves to draw. rng: equal states give equal submissions.
    """
    ordered = sorted(rows)
    began_s = ordered[0].at_s if ordered else 0.0
    return tuple(_to_submission(row, began_s, properties, rng) for row in ordered)


def _to_submission(row: TraceRow, began_s: float, properties: JobProperties, rng: Random) -> Submission:
    """Convert a row of a trace to a submission.

    Whether it is elastic, and its speed curve, are drawn at random. began_s: time of the first row, in seconds.
    """
    gpus = row.gpus if row.gpus <= properties.per_node else math.gcd(row.gpus, properties.per_node)
    minimum = row.gpus // gpus
    maximum = minimum * properties.factor if rng.random() < properties.elastic else minimum
    curve = _curve(rng.choice(properties.tables), gpus) if properties.tables else ()
    return Submission(row.name, row.at_s - began_s, row.took_s, minimum, maximum, gpus, curve=curve)


def _curve(table: Table, gpus: int) -> Table:
    """Return a speed table by workers of `gpus` GPUs: (workers, speed). Only measured numbers of GPUs that they
    divide count.
    """
    return tuple((at // gpus, speed) for at, speed in table if at % gpus == 0)


def draw_trace(jobs: int, gpus: int, load: float, rng: Random) -> tuple[TraceRow, ...]:
    """Draw a random stream of jobs: days and nights, many short and few long jobs.

    jobs: their number. gpus: of the cluster, >= 1. load: the share of the cluster's GPU time that the jobs need, > 0.
    The rows are in the order of their submission; equal states of `rng` give equal rows.
    """
    sizes = [size for size, _ in _SIZES if size <= gpus // 2 or size == 1]
    often = [count for size, count in _SIZES if size in sizes]
    rows = []
    for _ in range(jobs):
        took_s = min(10 * _DAY_S, 300 + rng.lognormvariate(7.5, 1.4))
        rows.append((rng.choices(sizes, often)[0], took_s))
    requested_gpu_s = sum(size * took_s for size, took_s in rows)
    times = _times(jobs, requested_gpu_s / (gpus * load), rng)
    return tuple(
        TraceRow(at_s, f"job-{number:06}", size, took_s)
        for number, (at_s, (size, took_s)) in enumerate(zip(times, rows, strict=True))
    )


def _times(jobs: int, span_s: float, rng: Random) -> Iterator[float]:
    """Return an iterator of ascending random times in a span; by day three times as many as by night.

    jobs: the number of times. span_s: seconds from 0.
    """
    found: list[float] = []
    while len(found) < jobs:
        at_s = rng.random() * span_s
        if rng.random() < 0.5 - 0.25 * math.cos(2 * math.pi * at_s / _DAY_S):
            found.append(at_s)
    return iter(sorted(found))
