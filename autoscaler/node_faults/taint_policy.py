"""Decide which nodes are tainted, and which no longer, by the reports of pods. Pure functions of one observation.

A report counts if its pod is bound to that node, and if it is neither stale nor handled before. Reports apply in the
order of time. A passed check removes only the proofs of its own namespace. At most a share of the GPU nodes is tainted
by us, and at most half of that share by one namespace. Source: DL-82, DL-97
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from turnout.autoscaler.node_faults.model import (
    MAX_PROOFS,
    FaultState,
    IneffectiveReport,
    NodeEntry,
    NodeObservation,
    NodePlan,
    NodeReason,
    NodeStep,
    PodReport,
    Proof,
    Record,
    TaintRules,
    namespace_of,
)
from turnout.kube.node_health import CheckResult, NodeReport, utc_datetime

_NETWORK = "network"  # prefix of the causes of faults of the network
# States of a record, None for no record, in which a taint on the node is not ours.
_STATES_WITHOUT_OUR_TAINT = (None, FaultState.CLEARED, FaultState.SUSPECTED, FaultState.ON_TRIAL)


def plan_taints(state: NodeObservation, rules: TaintRules, now_s: float) -> NodePlan:
    """Return the steps for nodes, and the reports without effect.

    Steps that leave a node without a taint come first, then the others; in each part by the time of the first failed
    check, then by name. A node without a change has no step. A report that would taint more nodes than the rules permit
    has no effect. A taint that the plan removes counts until the next plan, because its removal may fail. now_s:
    seconds since 1970.
    """
    reports, ineffective_reports = _reports_that_count(state, rules, now_s)
    changes = [_NodeChange(name, entry, rules, now_s) for name, entry in state.nodes.items()]
    for change in changes:
        change.apply_reports(sorted(reports.get(change.name, ()), key=_report_order))
    steps, taints = [], state.tainted
    namespaces = [_sole_namespace(change.entry.record) for change in changes if change.entry.tainted]
    tainted_by_namespace = Counter(filter(None, namespaces))
    for change in sorted(changes, key=lambda each: (each.taints, each.first_failure_s, each.name)):
        if not change.changed:
            continue
        if change.taints and not change.entry.tainted:
            namespace = _sole_namespace(change.record)
            if why := _over_share(state, rules, taints, namespace, tainted_by_namespace[namespace]):
                ineffective_reports += (
                    IneffectiveReport(pod_report, NodeReason.SHARE_REACHED, why)
                    for pod_report in change.applied_reports
                )
                continue
            taints += 1
            tainted_by_namespace[namespace] += 1
        steps.append(change.step())
    return NodePlan(tuple(steps), tuple(ineffective_reports))


def _reports_that_count(
    state: NodeObservation, rules: TaintRules, now_s: float
) -> tuple[dict[str, list[tuple[PodReport, NodeReport]]], list[IneffectiveReport]]:
    """Return (node -> [(pod report, its content)] of new reports on it, reports without effect).

    Neither has a report that was handled before, or one from after `now_s`, which counts later.
    """
    ineffective_reports: list[IneffectiveReport] = []
    reports = defaultdict[str, list[tuple[PodReport, NodeReport]]](list)
    for pod_report in state.pod_reports:
        if (reason := _without_effect(pod_report, state, rules, now_s)) is not None:
            ineffective_reports.append(reason)
        elif (report := pod_report.report) is None or report.at_s > now_s:
            continue
        elif not _is_handled(state.nodes[pod_report.node].record, pod_report, report):
            reports[pod_report.node].append((pod_report, report))
    return reports, ineffective_reports


def _over_share(state: NodeObservation, rules: TaintRules, taints: int, namespace: str, by_namespace: int) -> str:
    """Return why one more node must not be tainted, "" if it may.

    taints: GPU nodes that are tainted. namespace: the namespace whose reports alone accuse this node, "" for several.
    by_namespace: nodes that are tainted by reports of that namespace only.
    """
    max_tainted = rules.max_tainted(state.gpu_nodes)
    if taints >= max_tainted:
        return f"{taints} of {state.gpu_nodes} GPU nodes are tainted already, {max_tainted} may be"
    if namespace and by_namespace >= rules.max_by_one_namespace(state.gpu_nodes):
        return f"{by_namespace} nodes are tainted by reports of namespace {namespace} alone, as many as may be"
    return ""


def _report_order(report: tuple[PodReport, NodeReport]) -> tuple[float, str]:
    """Return a sort key: the time of a report, then the uid of its pod. report: (pod report, its content)."""
    return report[1].at_s, report[0].uid


def _is_handled(record: Record | None, pod_report: PodReport, report: NodeReport) -> bool:
    """Return True if a report, or a later one of its namespace, was handled before.

    record: of its node, None for a node without one. report: the content of `pod_report`.
    """
    return record is not None and report.at <= record.handled_until_of(namespace_of(pod_report.pod))


def _sole_namespace(record: Record | None) -> str:
    """Return the namespace whose reports alone taint a node; "" if several do, or if we do not taint it."""
    if record is None or record.state is not FaultState.TAINTED or len(record.namespaces) != 1:
        return ""
    return next(iter(record.namespaces))


def _without_effect(
    pod_report: PodReport, state: NodeObservation, rules: TaintRules, now_s: float
) -> IneffectiveReport | None:
    """Return the report with the reason why it must be reported as without effect; None if it need not.

    It need not if it has an effect, was handled before, or is a passed check of a node without a record. now_s: seconds
    since 1970.
    """
    report, entry = pod_report.report, state.nodes.get(pod_report.node)
    if report is None:
        return IneffectiveReport(pod_report, NodeReason.BAD_VERDICT, pod_report.fault)
    age_s = now_s - report.at_s
    if not pod_report.node or report.node not in ("", pod_report.node):
        why = f"it speaks of node {report.node!r}, and its pod is bound to {pod_report.node or 'none'!r}"
        return IneffectiveReport(pod_report, NodeReason.OTHER_NODE, why)
    if entry is None:
        return IneffectiveReport(pod_report, NodeReason.UNKNOWN_NODE, f"there is no node {pod_report.node!r}")
    if not -rules.ahead_s <= age_s <= rules.fresh_s:
        age_text = f"{age_s:.0f} s in the past" if age_s > 0 else f"{-age_s:.0f} s in the future"
        return IneffectiveReport(pod_report, NodeReason.STALE, f"its time is {age_text}")
    if _is_handled(entry.record, pod_report, report):
        return None
    if report.kind is CheckResult.FINE:
        reason = _pass_without_effect(namespace_of(pod_report.pod), report, entry.record)
    else:
        reason = _failure_without_effect(report, entry, rules)
    return None if reason is None else IneffectiveReport(pod_report, *reason)


def _pass_without_effect(namespace: str, report: NodeReport, record: Record | None) -> tuple[NodeReason, str] | None:
    """Return (reason, text) why a passed check must be reported as without effect; None if it need not.

    It need not if it has an effect, or if the node has no record. namespace: of its pod. report: of the check. record:
    None for a node without a record.
    """
    if record is None:
        return None
    if record.proofs and namespace not in record.namespaces:
        reporters = ", ".join(sorted(record.namespaces))
        why = f"the fault was reported by {reporters}: only a passed check of the same namespace removes a report"
        return NodeReason.OTHERS_PROVED, why
    if report.members < 2 and any(proof.cause.startswith(_NETWORK) for proof in record.proofs):
        return NodeReason.ALONE, "a check of the network needs two nodes, and the network of this node is in doubt"
    return None


def _failure_without_effect(report: NodeReport, entry: NodeEntry, rules: TaintRules) -> tuple[NodeReason, str] | None:
    """Return (reason, text) why a failed check has no effect; None if it has an effect.

    report: of the check. entry: the node of the report.
    """
    if report.kind is CheckResult.LINK:
        return NodeReason.ONLY_A_LINK, "neither end of a link between two nodes is to blame"
    if report.kind is CheckResult.SLOW and not rules.slow:
        return NodeReason.ONLY_SLOW, "slow nodes are not tainted here"
    if not entry.gpus:
        return NodeReason.NO_GPUS, "only nodes that offer GPUs are tainted"
    if entry.tainted and (entry.record.state if entry.record else None) in _STATES_WITHOUT_OUR_TAINT:
        return NodeReason.BY_HAND, "it has this taint, but not from us: whoever set it must remove it"
    return None


def _failure_text(report: NodeReport) -> str:
    """Return the cause of a failed check as text, with its explanation if it has one."""
    cause = report.cause or report.kind.value
    return f"{cause}: {report.why}" if report.why else cause


@dataclass(slots=True)
class _NodeChange:
    """The change of one node: its reports are applied in the order of time."""

    name: str
    entry: NodeEntry  # the node before the change
    rules: TaintRules
    now_s: float  # seconds since 1970
    record: Record | None = None  # the record after the change, None for none
    reason: NodeReason | None = None  # why the node changes; None if it does not
    detail: str = ""  # for a person
    first_failure_s: float = 0.0  # time of the first failed check that was applied, in seconds since 1970; 0 for none
    applied_reports: tuple[PodReport, ...] = ()  # the reports that were applied

    def apply_reports(self, reports: Sequence[tuple[PodReport, NodeReport]]) -> None:
        """Apply reports in their order, then expire the state if its time is up. Call it once.

        reports: (pod report, its content), sorted by time. Reports that were handled before are skipped. If somebody
        has removed our taint, the node is cleared first, and reports from before now are skipped.
        """
        self.record = self.entry.record
        if self._is_in(FaultState.TAINTED) and not self.entry.tainted:
            self._set_record(FaultState.CLEARED, NodeReason.FREED, "its taint was taken away by hand")
            self.record = (
                msgspec.structs.replace(self.record, handled_until=utc_datetime(self.now_s)) if self.record else None
            )
        before = self.record
        for pod_report, report in reports:
            if _is_handled(before, pod_report, report):
                continue
            self.applied_reports = (*self.applied_reports, pod_report)
            if report.kind is CheckResult.FINE:
                self._apply_pass(pod_report)
            else:
                self._apply_failure(pod_report, report)
            if self.record is not None:
                self.record = self.record.with_handled(namespace_of(pod_report.pod), report.at)
        self._expire()

    def _is_in(self, state: FaultState) -> bool:
        """Return True if the record has this state."""
        return self.record is not None and self.record.state is state

    def _apply_pass(self, pod_report: PodReport) -> None:
        """Apply a passed check: remove the proofs of its namespace. If no proof is left, the node recovers.

        A node without a record, a cleared node, and a node with proofs of other namespaces only do not change.
        """
        record = self.record
        if (
            record is None
            or self._is_in(FaultState.CLEARED)
            or (record.proofs and namespace_of(pod_report.pod) not in record.namespaces)
        ):
            return
        remaining = tuple(proof for proof in record.proofs if namespace_of(proof.pod) != namespace_of(pod_report.pod))
        if remaining:
            self.record = msgspec.structs.replace(record, proofs=remaining)
            self.reason, self.detail = (
                self.reason or NodeReason.STILL_FAULTY,
                f"{pod_report.pod} has passed a check, others failed here",
            )
        else:
            self._set_record(FaultState.CLEARED, NodeReason.RECOVERED, f"{pod_report.pod} has passed a check here")

    def _apply_failure(self, pod_report: PodReport, report: NodeReport) -> None:
        """Apply a failed check: the node is suspected with too few namespaces among its proofs, else tainted.

        A tainted node gets a further proof. A node on trial is tainted again, for twice as long, by one namespace
        alone.
        """
        record = self.record
        proofs = self._proofs_with(pod_report, report)
        why = f"{pod_report.pod} says {_failure_text(report)}"
        self.first_failure_s = self.first_failure_s or report.at_s
        if record is not None and record.state is FaultState.TAINTED:
            self.record = msgspec.structs.replace(record, proofs=proofs)
            self.reason, self.detail = self.reason or NodeReason.STILL_FAULTY, self.detail or why
            return
        times = record.times if record is not None and record.state is FaultState.ON_TRIAL else 0
        if times == 0 and len({namespace_of(each.pod) for each in proofs}) < self.rules.min_namespaces:
            text = f"{why}; reports of {self.rules.min_namespaces} namespaces are needed"
            self._set_record(FaultState.SUSPECTED, NodeReason.SUSPECTED, text, self.rules.taint_s, proofs)
            return
        reason = NodeReason.TAINTED_AGAIN if times else NodeReason.TAINTED
        self._set_record(FaultState.TAINTED, reason, why, self.rules.duration_s(times + 1), proofs, times + 1)

    def _proofs_with(self, pod_report: PodReport, report: NodeReport) -> tuple[Proof, ...]:
        """Return the proofs of the node with this report added, at most MAX_PROOFS, the oldest first.

        Only the first proof of each namespace is kept. Earlier proofs count only while the node is suspected or
        tainted. report: the content of `pod_report`.
        """
        is_accused = self._is_in(FaultState.SUSPECTED) or self._is_in(FaultState.TAINTED)
        proofs = self.record.proofs if self.record is not None and is_accused else ()
        if namespace_of(pod_report.pod) in {namespace_of(each.pod) for each in proofs}:
            return proofs
        proof = Proof(
            pod_report.pod, pod_report.owner, report.at, report.kind, report.cause, report.why, report.by, report.round
        )
        return (*proofs, proof)[:MAX_PROOFS]

    def _set_record(
        self,
        state: FaultState,
        reason: NodeReason,
        detail: str,
        lasts_s: float | None = None,
        proofs: tuple[Proof, ...] = (),
        times: int = 0,
    ) -> None:
        """Set a new state that begins now, with its reason. The times of handled reports stay.

        detail: the reason as text. lasts_s: time after which the state ends by itself, None for never. proofs: reports
        that count from now on. times: how often the node was tainted in a row.
        """
        until, record = None if lasts_s is None else utc_datetime(self.now_s + lasts_s), self.record
        handled_until, handled_by_namespace = (
            (utc_datetime(0), ()) if record is None else (record.handled_until, record.handled_by_namespace)
        )
        self.record = Record(state, utc_datetime(self.now_s), handled_until, until, times, proofs, handled_by_namespace)
        self.reason, self.detail = reason, detail

    def _expire(self) -> None:
        """End a state whose time is up. A taint becomes a trial. A suspicion or trial is cleared, or forgotten without
        recent reports. A cleared record is forgotten.

        A cleared record is kept as long as late reports from before its clearing may still come.
        """
        record = self.record
        if record is None:
            return
        is_over = record.until is not None and self.now_s >= record.until.timestamp()
        if record.state is FaultState.TAINTED and is_over:
            trial_end = utc_datetime(self.now_s + max(self.rules.longest_s, self.rules.taint_s))
            since = utc_datetime(self.now_s)
            self.record = msgspec.structs.replace(record, state=FaultState.ON_TRIAL, since=since, until=trial_end)
            self.reason, self.detail = NodeReason.EXPIRED, "the taint has expired: the next check on this node decides"
            return
        is_fresh = self.now_s - record.last.timestamp() <= self.rules.fresh_s + self.rules.ahead_s
        if record.state is FaultState.CLEARED and not is_fresh:
            self.record, self.reason, self.detail = None, NodeReason.FORGOTTEN, "no further report came"
        elif record.state in (FaultState.SUSPECTED, FaultState.ON_TRIAL) and is_over:
            cleared = Record(
                FaultState.CLEARED,
                utc_datetime(self.now_s),
                record.handled_until,
                handled_by_namespace=record.handled_by_namespace,
            )  # older reports no longer count
            self.record, self.reason, self.detail = (
                cleared if is_fresh else None,
                NodeReason.FORGOTTEN,
                "no further report came",
            )

    @property
    def changed(self) -> bool:
        """True if the node's record changes."""
        return self.reason is not None and self.record != self.entry.record

    @property
    def taints(self) -> bool:
        """True if the node has the taint after the change. A taint of somebody else stays."""
        ours = self.entry.record is not None and self.entry.record.state is FaultState.TAINTED
        return self._is_in(FaultState.TAINTED) or (self.entry.tainted and not ours)

    def step(self) -> NodeStep:
        """Return the step that writes the change. Call it only if `changed`."""
        assert self.reason is not None
        return NodeStep(
            self.name, self.entry.uid, self.reason, self.taints, self.record, self.detail, self.applied_reports
        )
