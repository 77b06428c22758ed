"""Parse traces: jobs of a cluster as rows, and measured speeds as curves. trace_files.py opens the files.

Traces: Microsoft ITP 2021, of ElasticFlow (ASPLOS'23); speeds: of the same work. No trace says which job is elastic:
that is labelled in workload_streams.py.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

Table = tuple[tuple[int, float], ...]  # (GPUs, speed), ascending


@dataclass(frozen=True, slots=True, order=True)
class TraceRow:
    """One job of a trace: when it came, how many GPUs it held, and for how long."""

    at_s: float
    name: str
    gpus: int
    took_s: float


class BadTrace(Exception):
    """A file that is no trace. The message names the fault."""


def rows_of(text: str) -> tuple[TraceRow, ...]:
    """Return the jobs of a trace by their time. Raises BadTrace."""
    try:
        rows = [
            TraceRow(float(line["submission_time"]), f"job-{number:06}", int(line["num_gpu"]), float(line["duration"]))
            for number, line in enumerate(_lines(text))
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"not a trace: {error!r}") from error
    return tuple(sorted(row for row in rows if row.gpus > 0 and row.took_s > 0))


def tables_of(text: str) -> tuple[Table, ...]:
    """Return one table per batch size of a model: the speed for each number of GPUs. Raises BadTrace."""
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
    return csv.DictReader(text.splitlines())


def _has_speed(speed: str | None) -> bool:
    return bool(speed) and float(speed or 0) > 0
