"""The nouns of tainted nodes: the record on a node, pods' reports, the changes of nodes and their reasons.

The record, an annotation of the node, is the only memory. The next leader reads it there. Annotations, reasons and
metrics call a pod's report a verdict. A proof is the part of a report that the record keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.node_health import CheckResult, Count, Moment, Name, NodeReport, Text

MAX_PROOFS = 8  # proofs in one record, the first of each namespace
MAX_NAMESPACES = 16  # namespaces in one record whose last report is remembered
MAX_RECORD_BYTES = 16 << 10  # a larger annotation counts as unreadable


class FaultState(StrEnum):
    """The state of a node on which a fault was reported."""

    SUSPECTED = "suspected"  # fewer namespaces than are needed have reported
    TAINTED = "tainted"
    ON_TRIAL = "on_trial"  # its taint has expired: the next failure taints it for twice as long
    CLEARED = "cleared"  # passed a check, or untainted by hand; only the times of reports are remembered


class NodeReason(StrEnum):
    """Why a node was changed, or a report passed over. The same word stands in log, metric and Event."""

    # Changes of a node.
    TAINTED = "NodeTainted"  # enough namespaces have reported a fault
    TAINTED_AGAIN = "NodeTaintedAgain"  # a fault on trial
    SUSPECTED = "NodeSuspected"  # fewer reports than are needed
    STILL_FAULTY = "NodeStillFaulty"  # a further report on a tainted node
    EXPIRED = "TaintExpired"  # the time of the taint is over
    RECOVERED = "NodeRecovered"  # a check has passed
    FREED = "FreedByHand"  # somebody has removed our taint
    FORGOTTEN = "RecordForgotten"  # no further reports
    # Reports without effect.
    SHARE_REACHED = "ShareReached"  # as many nodes are tainted as may be
    BY_HAND = "TaintedByHand"  # somebody else has tainted the node
    BAD_VERDICT = "BadVerdict"  # the report cannot be read
    OTHER_NODE = "OtherNode"  # the report is on a node that its pod does not run on
    UNKNOWN_NODE = "UnknownNode"  # there is no such node
    NO_GPUS = "NodeWithoutGpus"  # the node offers no GPUs
    STALE = "StaleVerdict"  # the report is too old, or ahead of time
    ONLY_SLOW = "OnlySlow"  # the node is slow, and slow nodes are not tainted
    ONLY_A_LINK = "OnlyALink"  # a link between two nodes failed
    ALONE = "CheckedAlone"  # a check of one node does not prove its network
    OTHERS_PROVED = "OthersHaveProven"  # only the namespaces that reported the fault take it back


@dataclass(frozen=True, slots=True)
class TaintRules:
    """When a node is tainted, and for how long."""

    key: str = labels.FAULTY  # of the taint
    share: float = 0.1  # of the GPU nodes that may be tainted, 0 to 1; one node in any case
    min_namespaces: int = 1  # namespaces whose pods have to report a fault before the first taint
    taint_s: float = 3600.0  # after which the first taint expires; each further one lasts twice as long
    longest_s: float = 7 * 86_400.0  # the longest duration
    fresh_s: float = 600.0  # the age above which a report is stale
    ahead_s: float = 5.0  # a report that is ahead of now by at most this waits until its time has come
    slow: bool = False  # slow nodes are tainted, too

    def max_tainted(self, gpu_nodes: int) -> int:
        """Return how many nodes may be tainted at once, >= 1: the share, rounded down. gpu_nodes: number of GPU
        nodes.
        """
        return max(1, int(self.share * gpu_nodes + 1e-9))

    def max_by_one_namespace(self, gpu_nodes: int) -> int:
        """Return how many nodes the reports of one namespace may taint: half of `max_tainted`, rounded up.

        gpu_nodes: number of GPU nodes.
        """
        return (self.max_tainted(gpu_nodes) + 1) // 2

    def duration_s(self, times: int) -> float:
        """Return how long a taint lasts, in seconds: twice as long each time, up to `longest_s`, or `taint_s` if that
        is longer.

        times: 1 for the first taint of a node, 2 for the next.
        """
        return min(self.taint_s * 2.0 ** min(times - 1, 64), max(self.longest_s, self.taint_s))


class Proof(msgspec.Struct, frozen=True, omit_defaults=True):
    """One report that proved a node faulty."""

    pod: Annotated[str, msgspec.Meta(max_length=507)]  # namespace/name
    owner: Name  # uid of the pod's owner, or of the pod without one
    at: Moment  # time of the report
    kind: CheckResult = CheckResult.FAULTY
    cause: Name = ""  # of the fault, "" if unknown
    why: Text = ""  # for a person
    by: Name = ""  # the member that judged the measurements
    round: Count = 0  # the rendezvous round before which the check ran


def namespace_of(pod: str) -> str:
    """Return the namespace of a pod, given as namespace/name.

    All pods of a namespace count as one report towards `min_namespaces`.
    """
    return pod.partition("/")[0]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record in a node's annotation."""

    state: FaultState
    since: Moment  # when the state began
    handled_until: Moment = msgspec.field(name="heard")  # reports up to then are handled
    until: Moment | None = None  # when the state ends by itself
    times: Count = 0  # how often the node was tainted
    proofs: Annotated[tuple[Proof, ...], msgspec.Meta(max_length=MAX_PROOFS)] = ()  # the oldest first
    # `handled_until` of single namespaces, the oldest first.
    handled_by_namespace: Annotated[tuple[tuple[Name, Moment], ...], msgspec.Meta(max_length=MAX_NAMESPACES)] = (
        msgspec.field(name="told", default=())
    )

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces whose pods have proven the node faulty."""
        return frozenset(namespace_of(proof.pod) for proof in self.proofs)

    def handled_until_of(self, namespace: str) -> datetime:
        """Return the time up to which reports of a namespace are handled: its own, or that of all namespaces if it
        is later.
        """
        return max([self.handled_until, *(at for name, at in self.handled_by_namespace if name == namespace)])

    @property
    def last(self) -> datetime:
        """The time of the newest handled report."""
        return max([self.handled_until, *(at for _, at in self.handled_by_namespace)])

    def with_handled(self, namespace: str, at: datetime) -> Record:
        """Return a copy in which the reports of a namespace up to `at` are handled. No time goes back: an earlier `at`
        has no effect.

        Beyond MAX_NAMESPACES the namespaces with the oldest times are left out, and `handled_until` rises to their time
        for all namespaces.
        """
        handled = sorted(
            ({**dict(self.handled_by_namespace), namespace: max(at, self.handled_until_of(namespace))}).items(),
            key=_time_order,
        )
        oldest, newest = handled[:-MAX_NAMESPACES], handled[-MAX_NAMESPACES:]
        return msgspec.structs.replace(
            self, handled_by_namespace=tuple(newest), handled_until=max([self.handled_until, *(at for _, at in oldest)])
        )


def _time_order(entry: tuple[str, datetime]) -> tuple[datetime, str]:
    """Return a sort key: the time of an entry, then its namespace."""
    return entry[1], entry[0]


class BadNodeRecord(KubeError):
    """A node's annotation that is no record, because somebody has edited it. Treat the node as one without a record."""


_decoder = msgspec.json.Decoder(Record)


def read_record(text: str) -> Record:
    """Return the record of an annotation's text. Raises BadNodeRecord if it is too large or invalid."""
    raw = text.encode("utf-8", "replace")
    if len(raw) > MAX_RECORD_BYTES:
        raise BadNodeRecord(f"it has {len(raw)} bytes: {MAX_RECORD_BYTES} at most")
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise BadNodeRecord(str(error)[:200]) from error


def record_text(record: Record) -> str:
    """Return a record as the text of the annotation."""
    return msgspec.json.encode(record).decode()


@dataclass(frozen=True, slots=True)
class PodReport:
    """A pod's report on the node that the API server has bound it to, as decoded from the annotation NODE_VERDICT."""

    pod: str  # namespace/name
    uid: str  # as the API server has it
    owner: str  # uid of the pod's controller, of the pod itself without one, as the API server has it
    node: str  # name of the node that the pod is bound to, "" for none
    report: NodeReport | None  # None if the annotation cannot be read
    fault: str = ""  # why it cannot be read


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node."""

    uid: str
    gpus: bool  # it offers, or offered, GPUs
    tainted: bool = False  # it has a taint with our key, also of somebody else
    record: Record | None = None  # None for none


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """All that the taint policy decides on."""

    nodes: Mapping[str, NodeEntry]  # nodes with our taint, a record or a report, by name
    pod_reports: tuple[PodReport, ...]  # reports, also of deleted pods
    gpu_nodes: int  # number of nodes with GPUs
    tainted: int  # number of tainted nodes


@dataclass(frozen=True, slots=True)
class NodeStep:
    """The change of one node."""

    node: str  # its name
    uid: str  # of the node
    reason: NodeReason
    taints: bool  # the node has the taint after the change
    record: Record | None  # the record after the change, None for none
    why: str  # for a person
    reports: tuple[PodReport, ...] = ()  # that caused it


@dataclass(frozen=True, slots=True)
class IneffectiveReport:
    """A report without effect."""

    pod_report: PodReport
    reason: NodeReason
    why: str  # for a person


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The decision on all nodes."""

    steps: tuple[NodeStep, ...]  # at most one for each node
    ineffective_reports: tuple[IneffectiveReport, ...]
