"""The health of a node: the launcher's report, which is an annotation of its pod, and the taints of the node.

A report is bounded JSON with a schema. The reader takes the pod's node only from the API server. The node that the
report names is a claim: a wrong one makes the report invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from turnout.kube.errors import KubeError

MAX_REPORT_BYTES = 16 << 10  # of the JSON; a report within the bounds below is shorter, however JSON escapes it
TAINT_EFFECT = "NoSchedule"  # pods that run on the node stay

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Name = Annotated[str, msgspec.Meta(max_length=253)]
Text = Annotated[str, msgspec.Meta(max_length=512)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class CheckResult(StrEnum):
    """The result of a node's check."""

    FINE = "fine"  # the node is as fast as others
    FAULTY = "faulty"  # its own computation, its network, or the links of its switchbox
    SLOW = "slow"  # the node works, but is slower than others
    LINK = "link"  # two nodes are slow together and each is good with other nodes: neither node is at fault


class NodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The report of one check of a node."""

    kind: CheckResult  # the result of the check
    at: Moment  # when the report was written, by the clock of the node
    round: Count  # the rendezvous round before which the check ran
    by: Name  # the member that judged the measurements
    members: Count = 0  # the number of members that measured together
    run: Name = ""  # the run of the member in `by`
    node: Name = ""  # the node on which the writer believes to run, "" if unknown
    cause: Name = ""  # what was measured
    why: Text = ""  # the measurement and its bound
    compute_s: Seconds | None = None  # the node's last median; None if it was not measured
    collective_s: Seconds | None = None  # the node's last median; None if it was not measured

    @property
    def at_s(self) -> float:
        """Return the time of the report in seconds since 1970."""
        return self.at.timestamp()


class BadNodeReport(KubeError):
    """A pod's annotation that is not a valid report. Log it and ignore it."""


_decoder = msgspec.json.Decoder(NodeReport)


def decode_report(text: str) -> NodeReport:
    """Return the report in the text of an annotation.

    Raises BadNodeReport if it is above MAX_REPORT_BYTES, is no JSON, or breaks the schema or a bound of a field.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) > MAX_REPORT_BYTES:
        raise BadNodeReport(f"it has {len(raw)} bytes: {MAX_REPORT_BYTES} at most")
    try:
        report = _decoder.decode(raw)
        report.at_s  # noqa: B018  (raises for a year that cannot be converted)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise BadNodeReport(str(error)[:200]) from error
    return report


def encode_report(report: NodeReport) -> str:
    """Return a report as the text of an annotation. It has at most MAX_REPORT_BYTES if each field keeps its bound."""
    return msgspec.json.encode(report).decode()


def utc_datetime(wall_s: float) -> datetime:
    """Return seconds since 1970 as a UTC datetime."""
    return datetime.fromtimestamp(wall_s, UTC)


def has_taint(node: Mapping[str, Any], key: str) -> bool:
    """Return True if a node has a taint with this key and any effect. node: the JSON object."""
    return any(taint.get("key") == key for taint in _taints(node))


def with_taint(node: Mapping[str, Any], key: str, value: str) -> list[dict[str, Any]]:
    """Return a new list: the node's taints, then one taint of this key and value, with the effect TAINT_EFFECT.

    Earlier taints of this key, of any effect, are left out. node: the JSON object; it is not changed.
    """
    return [*without_taint(node, key), {"key": key, "value": value, "effect": TAINT_EFFECT}]


def without_taint(node: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the node's taints except those of this key. node: the JSON object."""
    return [dict(taint) for taint in _taints(node) if taint.get("key") != key]


def node_patch(
    node: Mapping[str, Any], annotations: Mapping[str, str | None], taints: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the merge patch that sets annotations and taints, valid only for this resourceVersion of the node.

    node: the JSON object. annotations: the value None removes an annotation. taints: the complete list, [] for no
    taints; None leaves the taints unchanged.
    """
    meta = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": dict(annotations)}
    return {"metadata": meta, **({} if taints is None else {"spec": {"taints": taints or None}})}


def _taints(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the taints of a node, [] for none."""
    return (node.get("spec") or {}).get("taints") or []
