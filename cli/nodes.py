"""`turnout nodes`: rows of nodes that were found faulty, and the patch that removes a taint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.autoscaler.node_faults import model
from turnout.autoscaler.node_faults.model import BadNodeRecord, FaultState, Record
from turnout.cli.views.listing import Column, Listing
from turnout.kube import labels, node_health
from turnout.kube.node_health import utc_datetime
from turnout.kube.times import rfc3339

BY_HAND = "tainted by hand"


class NotTainted(ValueError):
    """The node does not have the taint. The caller prints the message and ends with code 1."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node."""

    node: str
    state: str  # a word of FaultState, or BY_HAND
    tainted: bool
    since: str = ""  # RFC 3339, "" if unknown
    until: str = ""  # RFC 3339, "" if unknown
    times: int = 0  # how often it was tainted
    reason: str = ""  # cause of the first finding
    evidence: str = ""  # its measurement
    pods: tuple[str, ...] = ()  # those that reported it
    by: tuple[str, ...] = ()  # the components that decided


def rows(nodes: Iterable[Mapping[str, Any]], key: str, everything: bool = False) -> list[NodeRow]:
    """Return rows of the nodes with a taint or a record, tainted ones first.

    key: of the taint. everything: also nodes whose taint was removed and whose record says so.
    """
    found = [row for node in nodes if (row := _row(node, key)) is not None]
    shown = [row for row in found if everything or row.tainted or row.state != FaultState.CLEARED.value]
    return sorted(shown, key=lambda row: (not row.tainted, row.node))


def _row(node: Mapping[str, Any], key: str) -> NodeRow | None:
    """Return the row of a node; None for a node with neither taint nor record. key: of the taint."""
    name, tainted = node["metadata"]["name"], node_health.has_taint(node, key)
    try:
        record = record_of(node)
    except BadNodeRecord as error:
        return NodeRow(
            name, BY_HAND if tainted else "unreadable", tainted, evidence=f"its record cannot be read: {error}"
        )
    if record is None:
        return NodeRow(name, BY_HAND, tainted) if tainted else None
    first = record.proofs[0] if record.proofs else None
    return NodeRow(
        name,
        _state(record, tainted),
        tainted,
        rfc3339(record.since.timestamp()),
        "" if record.until is None else rfc3339(record.until.timestamp()),
        record.times,
        "" if first is None else first.cause or first.kind.value,
        "" if first is None else first.why,
        tuple(proof.pod for proof in record.proofs),
        tuple(sorted({proof.by for proof in record.proofs})),
    )


def _state(record: Record, tainted: bool) -> str:
    """Return the state of a node with a record. tainted: the node has the taint now.

    If the taint contradicts the record, a person changed the taint: BY_HAND if it was added, cleared if it was removed.
    """
    if tainted and record.state is not FaultState.TAINTED:
        return BY_HAND
    if record.state is FaultState.TAINTED and not tainted:
        return FaultState.CLEARED.value  # the autoscaler will note it
    return record.state.value


def record_of(node: Mapping[str, Any]) -> Record | None:
    """Return the record on a raw node; None without one. Raises BadNodeRecord if it cannot be read."""
    text = (node["metadata"].get("annotations") or {}).get(labels.NODE_RECORD)
    return None if text is None else model.read_record(text)


def listing(node_rows: Sequence[NodeRow]) -> Listing[NodeRow]:
    """Return the nodes as a listing for all output formats."""
    return Listing(
        (
            Column("NODE", lambda row: row.node),
            Column("STATE", lambda row: row.state),
            Column("SINCE", lambda row: row.since),
            Column("UNTIL", lambda row: row.until),
            Column("TIMES", lambda row: str(row.times or "")),
            Column("WHY", _why),
        ),
        node_rows,
        lambda row: f"node/{row.node}",
        "no node is tainted, suspected or on trial",
    )


def _why(row: NodeRow) -> str:
    text = ": ".join(part for part in (row.reason, row.evidence) if part)
    who = f"reported by {', '.join(row.pods)}; decided by {', '.join(row.by)}" if row.pods else ""
    return " — ".join(part for part in (text, who) if part)


def without_taint(node: Mapping[str, Any], key: str, now_s: float) -> dict[str, Any]:
    """Return the patch that removes the taint with this key from a node, whoever set it.

    The patch also records that all reports until now are handled. node: its object. now_s: since 1970. Raises
    NotTainted if the node does not have it.
    """
    name = node["metadata"]["name"]
    try:
        record = record_of(node)
    except BadNodeRecord:
        record = None
    if not node_health.has_taint(node, key):
        state = f"; it is {record.state.value}" if record is not None and record.state is not FaultState.TAINTED else ""
        raise NotTainted(f"node {name} has no taint {key}{state}")
    now = utc_datetime(now_s)
    cleared = Record(FaultState.CLEARED, now, max(now, record.handled_until) if record is not None else now)
    return node_health.node_patch(
        node, {labels.NODE_RECORD: model.record_text(cleared)}, node_health.without_taint(node, key)
    )
