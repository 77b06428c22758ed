"""Shows what the time of a job, or of a queue, was spent on: `turnout goodput`.

Its source is the totals that turnout-run writes to its log, read by cli/verb_support/job_goodput.py. The kinds of time
are TimeKind of launcher/goodput/job_time.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from turnout.cli.views.listing import Column, Listing
from turnout.launcher.goodput.job_time import KINDS, TimeKind

_PLAIN = re.compile(r"\d\d:\d\d:\d\d info +(\w+) ")
_FIELD = re.compile(r"(\w+)=(\S+)")
_NAMED = 5  # jobs that a note names
_MAX_REASON = 64  # characters
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of one line of a log, since the job began."""

    until_s: float  # end of the measured time, in seconds since 1970
    wall_s: float
    undecided_s: float = 0.0
    kinds_s: Mapping[str, float] = field(default_factory=dict)  # wall time by kind
    gpu_s: Mapping[str, float] = field(default_factory=dict)  # GPU-seconds by kind
    steps_reported: bool = True
    round: int | None = None  # the round that ended with this line; None for a line within a round
    reason: str = ""  # why that round ended, a word of the launcher


@dataclass(frozen=True, slots=True)
class GoodputRow:
    """The time spent on one kind."""

    kind: str  # a word of TimeKind, or "undecided"
    seconds: float
    share: float  # of the wall time of a job, or of the GPU time of a queue, 0 to 1
    gpu_hours: float


def read_totals(lines: Iterable[str]) -> list[Totals]:
    """Return the totals of all lines of a log that have some, in their order. Other lines are ignored."""
    return [totals for line in lines if (totals := _totals(fields_of(line, "goodput"))) is not None]


def fields_of(line: str, event: str) -> Mapping[str, object]:
    """Return the fields of the launcher's log line of this event, in its plain or JSON format; {} for another line."""
    if (plain := _PLAIN.search(line)) is not None and plain[1] == event:
        return dict(_FIELD.findall(line))
    if f'"event": "{event}"' not in line:
        return {}
    try:
        found = json.loads(line[line.index("{") :])
    except ValueError:  # a process has written into the middle of the line
        return {}
    return found if isinstance(found, dict) else {}


def _totals(fields: Mapping[str, object]) -> Totals | None:
    """Return the totals of a log line's fields; None if a required number is missing."""
    until_s, wall_s, undecided_s = (number(fields.get(name)) for name in ("until_s", "wall_s", "undecided_s"))
    if until_s is None or wall_s is None or undecided_s is None:
        return None
    kinds_s = {kind.value: number(fields.get(f"{kind}_s")) or 0.0 for kind in KINDS}
    gpu_s = {kind.value: number(fields.get(f"{kind}_gpu_s")) or 0.0 for kind in KINDS}
    reason, round_ = str(fields.get("reason") or "")[:_MAX_REASON], number(fields.get("round"))
    ended = int(round_) if reason and round_ is not None else None
    return Totals(until_s, wall_s, undecided_s, kinds_s, gpu_s, fields.get("steps") == "reported", ended, reason)


def number(value: object) -> float | None:
    """Return `value` as a float if it is a finite number that is not negative, or the text of one; else None."""
    found = float(value) if isinstance(value, str | int | float) and _NUMBER.fullmatch(str(value)) else math.nan
    return found if math.isfinite(found) else None


def period(totals: Sequence[Totals], since_s: float | None) -> tuple[Totals, Totals | None]:
    """Return the newest totals, and those from which to count: the newest ones at or before `since_s`.

    totals: at least one, in any order. since_s: since 1970. The second result is None, for the job's begin, if
    `since_s` is None or no totals are that old. Both results are the same totals if none are newer than `since_s`.
    """
    newest = max(totals, key=lambda each: (each.until_s, each.wall_s))
    earlier = [each for each in totals if since_s is not None and each.until_s <= since_s]
    return newest, max(earlier, key=lambda each: each.until_s, default=None)


def rows(newest: Totals, base: Totals | None) -> list[GoodputRow]:
    """Return a row for each kind with time, in the order of the kinds, and one for undecided time if there is any.

    base: totals at the begin of the period, None for the job's begin. Time that was undecided then and has been decided
    since counts for its kind, so undecided time may be negative.
    """
    wall_s = newest.wall_s - (base.wall_s if base is not None else 0.0)
    found = []
    for kind in KINDS:
        seconds, gpu_s = newest.kinds_s.get(kind, 0.0), newest.gpu_s.get(kind, 0.0)
        if base is not None:
            seconds, gpu_s = seconds - base.kinds_s.get(kind, 0.0), gpu_s - base.gpu_s.get(kind, 0.0)
        if seconds > 0:
            found.append(GoodputRow(kind.value, round(seconds, 3), _share(seconds, wall_s), round(gpu_s / 3600, 3)))
    undecided_s = newest.undecided_s - (base.undecided_s if base is not None else 0.0)
    if abs(undecided_s) >= 0.001:
        found.append(GoodputRow("undecided", round(undecided_s, 3), _share(undecided_s, wall_s), 0.0))
    return found


def _share(seconds: float, wall_s: float) -> float:
    return round(seconds / wall_s, 4) if wall_s > 0 else 0.0


def listing(job: str, newest: Totals, base: Totals | None) -> Listing[GoodputRow]:
    """Return the listing of a job's time. base: the totals at the begin of the period, None for the job's begin."""
    wall_s = newest.wall_s - (base.wall_s if base is not None else 0.0)
    found = rows(newest, base)
    productive = sum(row.share for row in found if row.kind == TimeKind.PRODUCTIVE)
    notes = [f"{job}: goodput {productive:.1%} of {wall_s:.1f} s"]
    if not newest.steps_reported:
        notes = [f"{job}: no steps are reported, so its goodput is unknown; see docs/goodput.md"]
    return Listing(COLUMNS, found, lambda row: row.kind, "no time was measured", notes)


COLUMNS: tuple[Column[GoodputRow], ...] = (
    Column("KIND", lambda row: row.kind),
    Column("SECONDS", lambda row: f"{row.seconds:.1f}", number=True),
    Column("SHARE", lambda row: f"{row.share:.1%}", number=True, share=lambda row: max(row.share, 0.0)),
    Column("GPU HOURS", lambda row: f"{row.gpu_hours:.2f}", number=True),
)


def sum_listing(
    owner: str, periods: Sequence[tuple[Totals, Totals | None]], silent: Sequence[str], unread: int
) -> Listing[GoodputRow]:
    """Return the listing of several jobs: seconds are summed over jobs, and shares are of their GPU time.

    owner: of the jobs, for the title. periods: of each job, as `period` returns them. silent: jobs without totals.
    unread: number of jobs whose logs were not read.
    """
    by_kind: dict[str, tuple[float, float]] = {}
    for newest, base in periods:
        for row in rows(newest, base):
            seconds, gpu_hours = by_kind.get(row.kind, (0.0, 0.0))
            by_kind[row.kind] = seconds + row.seconds, gpu_hours + row.gpu_hours
    total_hours = sum(gpu_hours for _, gpu_hours in by_kind.values())
    order = [*(kind.value for kind in KINDS), "undecided"]
    found = [
        GoodputRow(kind, round(by_kind[kind][0], 3), _share(by_kind[kind][1], total_hours), round(by_kind[kind][1], 3))
        for kind in order
        if kind in by_kind
    ]
    productive = sum(row.share for row in found if row.kind == TimeKind.PRODUCTIVE)
    notes = [f"{owner}: goodput {productive:.1%} of {total_hours:.2f} GPU hours of {len(periods)} jobs"]
    if unreported := sum(not newest.steps_reported for newest, _ in periods):
        notes.append(f"{unreported} of them report no steps, so their time counts as no goodput; see docs/goodput.md")
    if silent:
        more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
        notes.append(f"without totals in their logs: {', '.join(silent[:_NAMED])}{more}")
    if unread:
        notes.append(f"{unread} jobs that hold fewer GPUs were not read")
    return Listing(COLUMNS, found, lambda row: row.kind, "no time was measured", notes)
