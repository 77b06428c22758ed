"""The nouns of rules: alerts with their runbooks, recorded series, and ratios whose budget an alert watches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from hack.codegen.grafana.model import JOB_LABELS

WINDOWS = ("5m", "30m", "1h", "6h")  # over which ratios are recorded
MIN_EVENTS = 10  # bad events in six hours, below which a ratio says nothing
JOB_QUEUE = "turnout:job_queue:info"  # 1 for each job with its queue


class Severity(Enum):
    """How soon somebody has to act. The value is that of the label `severity`; `word` begins the urgency."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def word(self) -> str:
        """Return the first words of the runbook's urgency."""
        return {Severity.CRITICAL: "Now", Severity.WARNING: "Today", Severity.INFO: "This week"}[self]


@dataclass(frozen=True, slots=True)
class Record:
    """A series that Prometheus records."""

    name: str
    expr: str
    about: str = ""  # why it is as it is; a comment in the file


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert and its runbook. Texts are one line each."""

    name: str  # without "Turnout"
    expr: str  # PromQL; JOB stands for the labels of a job
    severity: Severity
    summary: str  # names the object; a template of Prometheus
    meaning: str
    look: str  # where to look
    do: str
    urgency: str = ""  # what else decides how urgent it is
    wait: str = ""  # for how long the expression has to hold
    labels: Mapping[str, str] = field(default_factory=dict)  # beside severity; templates of Prometheus
    has_runbook: bool = True  # False for a second rule of one name

    @property
    def full_name(self) -> str:
        """Return the name as Prometheus shows it."""
        return f"Turnout{self.name}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A share of bad events among all."""

    name: str
    by: str  # labels of the ratio
    bad: str  # PromQL of the rate of bad events, with WINDOW in place of the range
    all: str  # PromQL of the rate of all events, likewise

    def records(self) -> Iterator[Record]:
        """Yield the ratio over each window, and the number of bad events in six hours."""
        for window in WINDOWS:
            bad, total = (text.replace("WINDOW", window) for text in (self.bad, self.all))
            yield Record(f"turnout:{self.name}:ratio{window}", f"{_sum(self.by, bad)} / {_sum(self.by, total)}")
        yield Record(f"turnout:{self.name}:increase6h", f"6 * 3600 * {_sum(self.by, self.bad.replace('WINDOW', '6h'))}")

    def burn_condition(self, budget: float) -> str:
        """Return the condition that the budget of bad events burns fast: 2 % of a month's in an hour, 5 % in six.

        Its value is the number of bad events in six hours.
        """
        name, fast, slow = f"turnout:{self.name}", f"{14.4 * budget:g}", f"{6 * budget:g}"
        return (
            f"{name}:increase6h >= {MIN_EVENTS}"
            f" and (({name}:ratio1h > {fast} and {name}:ratio5m > {fast})"
            f" or ({name}:ratio6h > {slow} and {name}:ratio30m > {slow}))"
        )


def _sum(by: str, expr: str) -> str:
    return f"sum by ({by}) ({expr})"


def slow_share(histogram: str, limit: str) -> tuple[str, str]:
    """Return PromQL of the rates of slow events and of all events, with WINDOW in place of the range.

    limit: upper bound of a bucket of the histogram in seconds, as Prometheus writes it.
    """
    count, fast = f"rate({histogram}_count[WINDOW])", f'rate({histogram}_bucket{{le="{limit}"}}[WINDOW])'
    return f"{count} - ignoring (le) {fast}", count


@dataclass(frozen=True, slots=True)
class Group:
    """The rules of one part, which are loaded where the part is installed."""

    name: str  # without "turnout-"
    records: tuple[Record, ...]
    alerts: tuple[Alert, ...]
    interval: str = ""  # between evaluations; that of Prometheus if empty
    about: str = ""


def expand(expr: str) -> str:
    """Return a query with JOB replaced by the labels of a job."""
    return re.sub(r"\bJOB\b", JOB_LABELS, expr)


def with_queue(expr: str) -> str:
    """Return a query of jobs whose series get the label `queue`. A job that no autoscaler knows gets none."""
    on = "on (cluster, JOB)"
    return f"({expr}) * {on} group_left (queue) {JOB_QUEUE} or ({expr}) unless {on} {JOB_QUEUE}"


def absent_in_cluster(series: str) -> str:
    """Return PromQL that holds for each cluster that had the series within the last day and where no value is above 0
    now.

    If the series exists nowhere, it holds once, without labels.
    """
    return (
        f"(group by (cluster) (last_over_time({series}[1d])) unless on (cluster) sum by (cluster) ({series}) > 0)"
        f" or absent({series})"
    )
