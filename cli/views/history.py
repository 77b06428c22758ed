"""Shows what was decided on a job, oldest first: `turnout history`.

Its sources are Events on the job and on its pods, the annotations that the autoscaler writes on it, and a decision log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.autoscaler.reporting.decision_log import BadLine, is_usage, read_line
from turnout.cli.views.cluster_events import read_event
from turnout.cli.views.listing import Column, Listing
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.reasons import AUTOSCALER, without_pointer
from turnout.kube.times import rfc3339, unix_s

Object = Mapping[str, Any]
# Components whose Events on a job's pods are decisions on the job.
OURS = frozenset(["turnout-autoscaler", "turnout-extender", "turnout-controller"])
_LASTING = (  # annotations that hold until somebody takes them away
    (labels.PAUSED, "Paused", "its size is left alone"),
    (labels.WISH_WORKERS, "Wish", "workers at most, by a person's hand"),
    (labels.SUSPENDED, "Suspended", "its pods are taken away"),
)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One decision."""

    at: str  # RFC 3339, when it was last reported
    source: str  # a component, "annotation", or "decision-log"
    reason: str
    object: str  # what it is about
    text: str
    times: int = 1  # how often it was reported
    since: str = ""  # RFC 3339, when it was first reported; "" if unknown


def rows_of_events(events: Iterable[Object], pods: frozenset[str], kind: str, name: str) -> list[HistoryRow]:
    """Return the rows of Events about an object, and of Events that Turnout's components wrote about its pods.

    events: of the object's namespace; the rows keep their order. pods: names of its pods. kind: as in Events. name: of
    the object.
    """
    found = []
    for event in map(read_event, events):
        is_of_pod = event.kind == "Pod" and event.name in pods and event.component in OURS
        if is_of_pod or (event.kind, event.name) == (kind, name):
            about, text = f"{event.kind}/{event.name}", without_pointer(event.message, event.reason)
            last, first = _rfc3339(event.last_s), _rfc3339(event.first_s)
            found.append(HistoryRow(last, event.component, event.reason, about, text, event.count, first))
    return found


def rows_of_annotations(raw: Object, kind: str) -> list[HistoryRow]:
    """Return the rows of a job's history that its annotations contain: the last resize, a pause, a wish, a suspension.

    Only the resize has a time. raw: the job's object. kind: of the job.
    """
    meta = raw.get("metadata") or {}
    notes, about = meta.get("annotations") or {}, f"{kind}/{meta.get('name')}"
    found = []
    if (size := notes.get(labels.WROTE_WORKERS)) and (at := notes.get(labels.RESIZED_AT)):
        text = f"to {size} workers"
        if submitted := notes.get(labels.SUBMITTED_WORKERS):
            text += f", submitted with {submitted}"
        if gained := notes.get(labels.GAINED):
            text += f"; lending had won it {gained} s"
        found.append(HistoryRow(_rfc3339(unix_s(at)), "annotation", "Resized", about, text))
    for key, word, means in _LASTING:
        if (value := notes.get(key)) and value != "false":
            found.append(HistoryRow("", "annotation", word, about, f"{key}={value}: {means}"))
    return found


def rows_of_log(lines: Iterable[bytes], key: JobKey) -> tuple[list[HistoryRow], int]:
    """Return the changed decisions on a job in a decision log, in its order, and the number of unreadable lines.

    A decision that repeats the last one on the job is left out. key: of the job.
    """
    job, rows, unread = str(key), list[HistoryRow](), 0
    before: tuple[str, int] | None = None  # a new file and a new leader tell a decision again
    for line in lines:
        if not line.strip() or is_usage(line):
            continue
        try:
            decision = read_line(line)
        except BadLine:
            unread += 1
            continue
        if decision.job != job or (decision.reason, decision.workers) == before:
            continue
        before = decision.reason, decision.workers
        means = AUTOSCALER[decision.reason].means if decision.reason in AUTOSCALER else ""
        figures = f" ({decision.detail})" if decision.detail else ""
        text = f"{decision.workers} workers{figures}. {means}"
        rows.append(HistoryRow(_rfc3339(unix_s(decision.at)), "decision-log", decision.reason, job, text))
    return rows, unread


def in_order(history_rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    """Return the rows sorted by time, then by source and reason. Rows without a time, which hold now, come last."""
    return sorted(history_rows, key=lambda row: (not row.at, row.at, row.source, row.reason))


def listing(history_rows: Sequence[HistoryRow], notes: Sequence[str] = ()) -> Listing[HistoryRow]:
    """Return the decisions as a listing for all output formats."""
    return Listing(
        (
            Column("AT", lambda row: row.at or "now"),
            Column("SINCE", lambda row: row.since, wide=True),
            Column("TIMES", lambda row: str(row.times), number=True),
            Column("BY", lambda row: row.source),
            Column("DECISION", lambda row: row.reason),
            Column("ON", lambda row: row.object, wide=True),
            Column("TEXT", lambda row: row.text),
        ),
        history_rows,
        lambda row: "/".join(("decision", row.source, row.reason, row.object, row.since or row.at)),
        "nothing was told of it: Events live for an hour, and it bears no annotation of a change",
        notes,
    )


def _rfc3339(at_s: float | None) -> str:
    """Write a time to the second, in UTC; "" for None. at_s: since 1970."""
    return "" if at_s is None else rfc3339(at_s)
