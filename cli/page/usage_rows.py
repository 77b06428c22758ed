"""The GPU-hours that the page shows: the rows of `turnout usage` that a viewer may see, filtered, sorted and paged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

from turnout.autoscaler.reporting.decision_log import JobUsage, UsageLine
from turnout.autoscaler.reporting.usage import OTHER
from turnout.cli.page.answers import BadQuery, Query, page_of
from turnout.cli.page.cluster_state import ClusterState, Rights, namespace_of
from turnout.cli.page.messages import UsageList
from turnout.cli.views.usage import REPORTS, Usage, fields, rows, values


@dataclass(frozen=True, slots=True)
class LogReading:
    """What is known of the decision log at one moment."""

    at_s: float = 0.0  # of the reading, since 1970
    number: int = 0  # rises with each reading
    error: str = ""  # why the newest reading failed, "" if it did not


FILTERS = ("by", "days", "queue", "job", "text")
MAX_DAYS = 31
NO_LOG = (
    "This page reads no decision log, so it knows no GPU-hours. An admin names one with --decision-log; "
    "turnout usage reads a copy of the log."
)


NO_LINES = "The decision log has no line about usage of that time. The autoscaler writes one every 15 minutes."


def visible_queues(state: ClusterState) -> frozenset[str]:
    """Return the queues of which a viewer sees more than the name. state: what the viewer may see."""
    return frozenset(queue.queue for queue in state.queues if not queue.hidden)


def without_log(state: ClusterState, query: Query) -> UsageList:
    """Return the answer of a page without a decision log: no rows. Raises BadQuery as `window_of` does."""
    report, days = window_of(query)
    return UsageList(
        observed_at_s=state.observed_at_s,
        version=state.version,
        total=0,
        missing=NO_LOG,
        by=report,
        days=days,
        columns=tuple(fields(report)),
    )


def window_of(query: Query) -> tuple[str, int]:
    """Return the report ("queue" by default) and the number of days (7 by default) that a request asks for.

    Raises BadQuery for an unknown report, or if the days are not from 1 to MAX_DAYS.
    """
    report, days = query.filters.get("by", "queue"), query.filters.get("days", "7")
    if report not in REPORTS:
        raise BadQuery(f"by is one of {', '.join(REPORTS)}, not {report[:20]!r}")
    if not days.isascii() or not days.isdecimal() or len(days) > 2 or not 1 <= int(days) <= MAX_DAYS:
        raise BadQuery(f"days is a number from 1 to {MAX_DAYS}, not {days[:20]!r}")
    return report, int(days)


def visible_usage(usage: Usage, state: ClusterState, rights: Rights) -> Usage:
    """Return the usage that a user may see.

    Only queues that the user sees now count. Of their jobs, those in namespaces that the user sees keep their names;
    the others are one sum without a name. Of two queues that lend to each other, one has to be visible.
    """
    if rights.all_namespaces:
        return usage
    queues = visible_queues(state)
    lines = (_visible_line(line, queues, rights) for line in usage.lines)
    return replace(usage, lines=tuple(line for line in lines if line is not None))


def _visible_line(line: UsageLine, queues: frozenset[str], rights: Rights) -> UsageLine | None:
    """Return a line of the log without what the user may not see; None if nothing is left.

    queues: that the user sees. Jobs in hidden namespaces become one sum without a name.
    """
    if line.queue not in queues:
        lent = {queue: amount for queue, amount in line.lent_gpu_s.items() if queue in queues}
        returned = {queue: amount for queue, amount in line.returned_gpus.items() if queue in queues}
        if not lent and not returned:
            return None
        return UsageLine(line.at, line.seconds, line.queue, lent_gpu_s=lent, returned_gpus=returned)
    named = [each for each in line.jobs if each.job and rights.sees(namespace_of(each.job))]
    others = [each for each in line.jobs if not (each.job and rights.sees(namespace_of(each.job)))]
    if others:
        hours = sum(each.gpu_s for each in others), sum(each.elastic_gpu_s for each in others)
        named.append(JobUsage("", OTHER, *hours))
    return _with_jobs(line, tuple(named))


def _with_jobs(line: UsageLine, jobs: tuple[JobUsage, ...]) -> UsageLine:
    """Return the line with these jobs in place of its own."""
    return UsageLine(
        line.at,
        line.seconds,
        line.queue,
        jobs,
        line.lent_gpu_s,
        line.returned_gpus,
        line.idle_gpu_s,
        line.won_gpu_s,
        line.cost_gpu_s,
    )


def filter_usage(usage: Usage, query: Query, report: str) -> Usage:
    """Return the usage of the queue and of the job that the query names; all of it if it names none.

    report: a word of REPORTS. The filter "queue" counts here only for "user" and "job": the other reports also need the
    lines of other queues, from which the queue borrows.
    """
    queue, job = query.filters.get("queue", ""), query.filters.get("job", "")
    lines = usage.lines
    if queue and report in ("user", "job"):
        lines = tuple(each for each in lines if each.queue == queue)
    if job:
        lines = tuple(
            UsageLine(each.at, each.seconds, each.queue, found)
            for each in lines
            if (found := tuple(one for one in each.jobs if one.job == job))
        )
    return replace(usage, lines=lines)


def usage_list(usage: Usage, state: ClusterState, rights: Rights, query: Query, reading: LogReading) -> UsageList:
    """Return one report with what the user may see, sorted and paged.

    usage: of the whole log. rights: of the user. query: its filters name the report. reading: state of the log. Raises
    BadQuery for an unknown report or sort key, and for an invalid number of days.
    """
    report, days = window_of(query)
    visible_part = visible_usage(usage, state, rights)
    report_rows = rows(report, filter_usage(visible_part, query, report))
    queue, text = query.filters.get("queue", ""), query.filters.get("text", "").lower()
    found: list[dict[str, str | float]] = [values(report, row) for row in report_rows]
    if report in ("queue", "day") and not rights.all_namespaces:
        queues = visible_queues(state)
        found = [row for row in found if row["queue"] in queues]
    if queue and report != "user":
        names = ("lender", "borrower") if report == "lending" else ("queue",)
        found = [row for row in found if queue in {row[name] for name in names}]
    if text:
        found = [row for row in found if any(text in each.lower() for each in row.values() if isinstance(each, str))]
    columns = tuple(fields(report))
    page, total, after = page_of(found, query, {name: itemgetter(name) for name in columns})
    return UsageList(
        observed_at_s=reading.at_s,
        version=reading.number,
        missing=reading.error or ("" if usage.lines else NO_LINES),
        total=total,
        next=after,
        by=report,
        days=days,
        measured_s=visible_part.measured_s,
        columns=columns,
        items=tuple(page),
    )
