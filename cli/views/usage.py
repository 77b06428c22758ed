"""Sums the use of GPUs by user, job, queue, day or pair of queues: `turnout usage`.

Its source is the usage lines in the autoscaler's decision log, which docs/accounting.md describes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any

from turnout.autoscaler.reporting.decision_log import BadLine, JobUsage, UsageLine, is_usage, read_usage_line
from turnout.autoscaler.reporting.usage import OTHER, IdleReason
from turnout.cli.views.listing import Column, Listing
from turnout.kube.times import rfc3339, unix_s

MAX_JOBS_OF_DAY = 20_000  # of one queue that DailyUsage names; the others are summed
MAX_OWNERS = 200  # owners that are listed by name, those with most GPU-hours
NO_OWNER = "none"  # of jobs without the label, and of pods without a job
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage lines of a decision log since some moment."""

    lines: tuple[UsageLine, ...] = ()  # oldest first
    unread_lines: int = 0  # lines that cannot be read
    older_lines: int = 0  # lines of periods before that time

    @property
    def measured_s(self) -> float:
        """Seconds for which the log has usage.

        Time in which no autoscaler wrote is not counted. Each period counts once, though it has a line for each queue.
        """
        seconds: dict[str, float] = {}
        for line in self.lines:
            seconds[line.at] = max(seconds.get(line.at, 0.0), line.seconds)
        return sum(seconds.values())


def read_usage(lines: Iterable[bytes], since_s: float) -> Usage:
    """Return the usage lines of the periods that began at or after `since_s` (since 1970), sorted by time and queue.

    Unreadable and older lines are counted.
    """
    found, unread, older = list[UsageLine](), 0, 0
    for line in lines:
        if not is_usage(line):
            continue
        try:
            usage = read_usage_line(line)
        except BadLine:
            unread += 1
            continue
        if _begin_s(usage) < since_s:
            older += 1
        else:
            found.append(usage)
    return Usage(tuple(sorted(found, key=lambda each: (each.at, each.queue))), unread, older)


@dataclass(slots=True)
class _DaySums:
    """The use of one queue on one day. Amounts are those of UsageLine."""

    seconds: float = 0.0
    # By job and owner: GPU-seconds, and those of workers above the min.
    jobs: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    lent_gpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    returned_gpus: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    idle_gpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    won_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0

    def add(self, line: UsageLine) -> None:
        """Add the amounts of one period."""
        self.seconds += line.seconds
        self.won_gpu_s += line.won_gpu_s
        self.cost_gpu_s += line.cost_gpu_s
        for each in line.jobs:
            key = each.job, each.owner
            if key not in self.jobs and len(self.jobs) >= MAX_JOBS_OF_DAY:
                key = "", OTHER
            amounts = self.jobs.setdefault(key, [0.0, 0.0])
            amounts[0] += each.gpu_s
            amounts[1] += each.elastic_gpu_s
        for sums, part in (
            (self.lent_gpu_s, line.lent_gpu_s),
            (self.returned_gpus, line.returned_gpus),
            (self.idle_gpu_s, line.idle_gpu_s),
        ):
            for name, amount in part.items():
                sums[name] += amount

    def line(self, day: str, queue: str) -> UsageLine:
        """Return the day as one line of the queue. Its period begins with the day; its time is the period's end.

        day: YYYY-MM-DD, in UTC.
        """
        return UsageLine(
            rfc3339((unix_s(f"{day}T00:00:00Z") or 0.0) + ceil(self.seconds)),
            self.seconds,
            queue,
            tuple(JobUsage(job, owner, *amounts) for (job, owner), amounts in sorted(self.jobs.items())),
            dict(self.lent_gpu_s),
            dict(self.returned_gpus),
            dict(self.idle_gpu_s),
            self.won_gpu_s,
            self.cost_gpu_s,
        )


class DailyUsage:
    """The usage lines of a decision log, summed by queue and day, so that a month of them fits into memory."""

    def __init__(self) -> None:
        self._days: dict[str, dict[str, _DaySums]] = {}
        self._unread_lines = 0

    def add(self, line: bytes) -> None:
        """Add a line of the log. Lines about decisions are ignored; unreadable ones are counted."""
        if not is_usage(line):
            return
        try:
            usage = read_usage_line(line)
        except BadLine:
            self._unread_lines += 1
            return
        self._days.setdefault(day_of(usage), {}).setdefault(usage.queue, _DaySums()).add(usage)

    def drop_before(self, day: str) -> None:
        """Drop older days. day: YYYY-MM-DD in UTC."""
        self._days = {each: queues for each, queues in self._days.items() if each >= day}

    def usage(self, first_day: str) -> Usage:
        """Return the use from a day on, one line for each day and queue. first_day: YYYY-MM-DD in UTC."""
        lines = (
            sums.line(day, queue)
            for day, queues in sorted(self._days.items())
            for queue, sums in sorted(queues.items())
            if day >= first_day
        )
        return Usage(tuple(lines), self._unread_lines)


def _begin_s(line: UsageLine) -> float:
    return (unix_s(line.at) or 0.0) - line.seconds


def day_of(line: UsageLine) -> str:
    """Return the day in UTC on which a period began."""
    return rfc3339(_begin_s(line))[:10]


@dataclass(frozen=True, slots=True)
class HolderRow:
    """The use of one user or job."""

    user: str  # the value of the owner's label, NO_OWNER, or OTHER
    job: str = ""  # KIND/NAMESPACE/NAME; "" for pods without a job, and in the row of a user
    queue: str = ""  # "" in the row of a user
    gpu_hours: float = 0.0
    elastic_gpu_hours: float = 0.0  # part of gpu_hours: workers above the min


@dataclass(frozen=True, slots=True)
class QueueUsageRow:
    """The use of one queue, in all or on one day. All amounts but returned_gpus are GPU-hours."""

    queue: str
    day: str = ""  # YYYY-MM-DD in UTC; "" for all days
    gpu_hours: float = 0.0  # used by its pods
    elastic_gpu_hours: float = 0.0  # idle hours that lending used, part of gpu_hours
    won_gpu_hours: float = 0.0  # what elastic workers were worth, in hours at the min
    cost_gpu_hours: float = 0.0  # what resizes are assumed to have cost
    borrowed_gpu_hours: float = 0.0  # from other queues
    lent_gpu_hours: float = 0.0  # of its share, to other queues
    returned_gpus: float = 0.0  # that came back to it
    idle_gpu_hours: Mapping[str, float] = field(default_factory=dict)  # of its share, by reason


@dataclass(frozen=True, slots=True)
class PairRow:
    """The GPUs that one queue lent to another one on one day."""

    day: str  # YYYY-MM-DD in UTC
    source: str  # the queue that lends, or OTHER
    borrower: str
    gpu_hours: float = 0.0
    returned_gpus: float = 0.0


def rows_by_user(usage: Usage) -> list[HolderRow]:
    """Return a row for each of the MAX_OWNERS users with most GPU-hours, then one for all others, if there are any."""
    sums = _sum_holders(usage, lambda user, _job, _queue: (user, "", ""))
    if len(sums) <= MAX_OWNERS:
        return sums
    rest = sums[MAX_OWNERS:]
    hours, elastic = (sum(getattr(row, name) for row in rest) for name in ("gpu_hours", "elastic_gpu_hours"))
    return [*sums[:MAX_OWNERS], HolderRow(OTHER, gpu_hours=hours, elastic_gpu_hours=elastic)]


def rows_by_job(usage: Usage) -> list[HolderRow]:
    """Return a row for each job, and one for the pods without a job of each queue and user, most GPU-hours first."""
    return _sum_holders(usage, lambda user, job, queue: (user, job, queue))


def _sum_holders(usage: Usage, key_of: Callable[[str, str, str], tuple[str, str, str]]) -> list[HolderRow]:
    """Return the use of jobs, summed by the key of a row, most GPU-hours first.

    key_of: user, job and queue of a job's use -> those of its row.
    """
    hours: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for line in usage.lines:
        for each in line.jobs:
            amounts = hours[key_of(each.owner or NO_OWNER, each.job, line.queue)]
            amounts[0] += each.gpu_s / _HOUR_S
            amounts[1] += each.elastic_gpu_s / _HOUR_S
    rows = (HolderRow(*key, *amounts) for key, amounts in hours.items())
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.queue, row.user, row.job))


def rows_by_queue(usage: Usage) -> list[QueueUsageRow]:
    """Return a row for each queue, by name."""
    return _sum_queues((line, "") for line in usage.lines)


def rows_by_day(usage: Usage) -> list[QueueUsageRow]:
    """Return a row for each queue and day, oldest first."""
    return _sum_queues((line, day_of(line)) for line in usage.lines)


def _sum_queues(lines: Iterable[tuple[UsageLine, str]]) -> list[QueueUsageRow]:
    """Return the use of queues, summed by queue and day, and sorted by day.

    lines: each with the day of its row, "" for all days in one.
    """
    rows: dict[tuple[str, str], QueueUsageRow] = {}

    def row(day: str, queue: str) -> QueueUsageRow:
        return rows.setdefault((day, queue), QueueUsageRow(queue, day))

    for line, day in lines:
        old = row(day, line.queue)
        idle = dict(old.idle_gpu_hours)
        for reason, gpu_s in line.idle_gpu_s.items():
            idle[reason] = idle.get(reason, 0.0) + gpu_s / _HOUR_S
        rows[day, line.queue] = replace(
            old,
            gpu_hours=old.gpu_hours + sum(each.gpu_s for each in line.jobs) / _HOUR_S,
            elastic_gpu_hours=old.elastic_gpu_hours + sum(each.elastic_gpu_s for each in line.jobs) / _HOUR_S,
            won_gpu_hours=old.won_gpu_hours + line.won_gpu_s / _HOUR_S,
            cost_gpu_hours=old.cost_gpu_hours + line.cost_gpu_s / _HOUR_S,
            lent_gpu_hours=old.lent_gpu_hours + sum(line.lent_gpu_s.values()) / _HOUR_S,
            returned_gpus=old.returned_gpus + sum(line.returned_gpus.values()),
            idle_gpu_hours=idle,
        )
        for borrower, gpu_s in line.lent_gpu_s.items():
            old = row(day, borrower)
            borrowed = old.borrowed_gpu_hours + gpu_s / _HOUR_S
            rows[day, borrower] = replace(old, borrowed_gpu_hours=borrowed)
    return [rows[key] for key in sorted(rows)]


def rows_by_pair(usage: Usage) -> list[PairRow]:
    """Return a row for each pair of lending and borrowing queue and each day, oldest first."""
    rows: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for line in usage.lines:
        for at, amounts in enumerate((line.lent_gpu_s, line.returned_gpus)):
            for borrower, amount in amounts.items():
                rows[day_of(line), line.queue, borrower][at] += amount
    return [PairRow(*key, lent_gpu_s / _HOUR_S, gpus) for key, (lent_gpu_s, gpus) in sorted(rows.items())]


# -- output

Row = HolderRow | QueueUsageRow | PairRow
REPORTS: Mapping[str, Callable[[Usage], Sequence[Row]]] = {
    "user": rows_by_user,
    "job": rows_by_job,
    "queue": rows_by_queue,
    "day": rows_by_day,
    "lending": rows_by_pair,
}
_FIELDS: Mapping[str, Sequence[str]] = {
    "user": ("user", "gpu_hours", "elastic_gpu_hours"),
    "job": ("job", "user", "queue", "gpu_hours", "elastic_gpu_hours"),
    "lending": ("day", "lender", "borrower", "gpu_hours", "returned_gpus"),
}
_OF_QUEUE = tuple(QueueUsageRow.__dataclass_fields__)[2:-1]
_DECIMALS = 6  # of GPU-hours in CSV and JSON: 0.0036 GPU-seconds


def rows(report: str, usage: Usage) -> Sequence[Row]:
    """Return the rows of a report. report: a word of REPORTS."""
    return REPORTS[report](usage)


def fields(report: str) -> Sequence[str]:
    """Return the names of the fields of a report, in order. report: a word of REPORTS."""
    if report in _FIELDS:
        return _FIELDS[report]
    idle = (f"idle_{reason.value}_gpu_hours" for reason in IdleReason)
    return (*(("day",) if report == "day" else ()), "queue", *_OF_QUEUE, *idle)


def values(report: str, row: Row) -> dict[str, Any]:
    """Return the fields of a row by name, in the order of `fields(report)`, with rounded numbers, for CSV and JSON."""
    found = asdict(row)
    if isinstance(row, PairRow):
        found["lender"] = row.source
    if isinstance(row, QueueUsageRow):
        idle = row.idle_gpu_hours
        found |= {f"idle_{reason.value}_gpu_hours": idle.get(reason.value, 0.0) for reason in IdleReason}
    return {
        name: round(found[name], _DECIMALS) if isinstance(found[name], float) else found[name]
        for name in fields(report)
    }


def usage_listing(report: str, usage: Usage) -> Listing[Row]:
    """Return a report as a listing for all output formats. report: a key of REPORTS.

    Columns about idle GPUs that are zero in all rows are left out. The notes give the measured time and the number of
    unreadable lines.
    """
    found = rows(report, usage)
    names = [name for name in fields(report) if _is_shown(name, report, found)]
    columns = tuple(Column(_head(name), _cell(report, name), number=_is_number(name)) for name in names)
    notes = [f"measured: {usage.measured_s / _HOUR_S:.2f} h in {len(usage.lines)} lines"]
    if usage.unread_lines:
        notes.append(f"{usage.unread_lines} lines cannot be read")
    return Listing(
        columns,
        found,
        lambda row: "/".join(str(value) for value in values(report, row).values() if isinstance(value, str)),
        "the log has no line about usage of that time",
        notes,
        lambda row: values(report, row),
    )


def _is_shown(name: str, report: str, rows: Sequence[Row]) -> bool:
    """Return True for a column that a table shows: all but the idle reasons that are zero in every row.

    name: of the column. report: the kind of report. rows: all of it.
    """
    return not name.startswith("idle_") or any(values(report, row)[name] for row in rows)


def _is_number(name: str) -> bool:
    """Return True if the field `name` holds a number: GPU-hours or GPUs."""
    return name.endswith(("_hours", "_gpus"))


def _head(name: str) -> str:
    """Return a column's heading, from its field's name."""
    return name.removesuffix("_gpu_hours").replace("_", " ").upper() if name != "gpu_hours" else "GPU HOURS"


def _cell(report: str, name: str) -> Callable[[Row], str]:
    """Return the function that returns a row's text in the column `name`: numbers with two digits after the point."""
    return lambda row: f"{values(report, row)[name]:.2f}" if _is_number(name) else str(values(report, row)[name])
