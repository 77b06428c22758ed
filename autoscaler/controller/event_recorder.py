"""Report decisions: in the log, and as Events on jobs, pods and nodes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.gang_min_writer import GangMinReport
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.model import GangReason, Reason, Step
from turnout.autoscaler.node_faults.model import (
    FaultState,
    IneffectiveReport,
    NodeObservation,
    NodePlan,
    NodeReason,
    NodeStep,
    PodReport,
    TaintRules,
)
from turnout.autoscaler.reporting.decision_log import event_text, log_record
from turnout.jobs.annotations import unknown_names_text
from turnout.jobs.model import JobKey
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.times import rfc3339

log = logging.getLogger("turnout.autoscaler")

# Reasons that a job's owner gets as an Event; the rest is logged.
_EVENT_REASONS = frozenset(
    [
        Reason.WAITS_FOR_ROOM,
        Reason.NEEDS_MORE,
        Reason.OVER_QUOTA,
        Reason.UNSCHEDULABLE,
        Reason.REFUSED,
        Reason.QUEUE_CLOSED,
    ]
)
_MAX_REMEMBERED = 20_000  # outcomes, obstacles and ignored reports that are not reported again
UNKNOWN = "UnknownAnnotation"  # reason of the Event on unknown annotations
_MAX_POD_EVENTS = 16  # of one shrink; the job has one Event for all
_WARNINGS = frozenset([Reason.OVER_QUOTA, Reason.UNSCHEDULABLE, Reason.REFUSED])


class Refs:
    """References to the objects that Events and pod annotations are about, as the cache knows them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def job(self, key: JobKey) -> ObjectRef | None:
        """Return the reference to a job or unmanaged gang, for Events; None if it is deleted."""
        identity = self._cache.jobs.identity(key) or self._cache.unmanaged.about.get(key)
        if identity is None:
            return None
        kind, version, uid = identity
        return ObjectRef(kind, version, key.namespace, key.name, uid)

    def leaving(self, step: Step) -> Iterator[ObjectRef]:
        """Yield references to the pods that leave by a step; nothing if the job grows or is deleted."""
        uid = self._cache.jobs.uid(step.key)
        state = self._cache.states.by_uid.get(uid)
        names = {each.name for each in state.living if each.index >= step.target} if state is not None else ()
        for pod in self._cache.pods.of_job(uid):
            meta = pod.metadata
            if meta.name in names:
                yield ObjectRef("Pod", "v1", meta.namespace, meta.name, meta.uid)

    def annotations(self, key: JobKey) -> Mapping[str, Mapping[str, str]]:
        """Return pod name -> annotations of a job's pods; {} for an unknown job."""
        pods = self._cache.pods.of_job(self._cache.jobs.uid(key))
        return {pod.metadata.name: pod.metadata.annotations or {} for pod in pods}


class DecisionEvents:
    """A writer of Events about jobs.

    about: returns the object of an Event on a job, None for a deleted job. leaving: returns the pods that leave by a
    step.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        about: Callable[[JobKey], ObjectRef | None],
        leaving: Callable[[Step], Iterable[ObjectRef]],
        metrics: Metrics,
    ) -> None:
        """Start with nothing reported. The class docstring explains the arguments."""
        self._recorder, self._about, self._leaving, self._metrics = recorder, about, leaving, metrics
        self._last_outcomes: dict[JobKey, tuple[Step, str]] = {}
        self._obstacles: dict[tuple[JobKey, str, GangReason], None] = {}  # reported, with the uid of the PodGroup

    def report_decision(self, step: Step) -> None:
        """Log a new decision on a job. Some reasons also become an Event on the job. The caller leaves out repeated
        decisions.
        """
        log.info("decided", extra=log_record(step))
        if step.reason in _EVENT_REASONS:
            self._emit(step, "Warning" if step.reason in _WARNINGS else "Normal")

    def report_unknown_annotations(self, key: JobKey, names: tuple[str, ...]) -> None:
        """Report annotations with our prefix that nobody reads, by log and Event: most often a typing error. names: of
        them.
        """
        text = unknown_names_text(names)
        log.warning("annotation_unknown", extra={"job": str(key), "why": text})
        if (ref := self._about(key)) is not None:
            self._recorder.emit(ref, "Warning", UNKNOWN, text, time.time())

    def report_outcome(self, step: Step, outcome: str) -> None:
        """Report the outcome of a change: Written, DryRun, NotLeading, Conflict or Refused.

        Each outcome is counted. The same outcome of the same step is logged only the first time in a row. A written
        change gets an Event on the job, and one on each of the first _MAX_POD_EVENTS pods that leave; a repeated one
        gets none.
        """
        self._metrics.count_outcome(step, outcome)
        if self._last_outcomes.get(step.key) == (step, outcome):
            return
        self._last_outcomes[step.key] = step, outcome
        while len(self._last_outcomes) > _MAX_REMEMBERED:
            del self._last_outcomes[next(iter(self._last_outcomes))]
        log.info("resized" if outcome == "Written" else "not_resized", extra={**log_record(step), "outcome": outcome})
        if outcome != "Written":
            return
        self._emit(step, "Normal")
        if step.target < step.current:
            for pod in islice(self._leaving(step), _MAX_POD_EVENTS):
                self._recorder.emit(pod, "Normal", step.reason.value, f"leaves: {event_text(step)}", time.time())

    def report_gang_min(self, report: GangMinReport) -> None:
        """Report the outcome of a write of a minCount, by metric and log. An obstacle is reported once.

        A change, an obstacle and a lasting refusal also become an Event on the job.
        """
        if report.outcome == "Skipped":
            topic = report.key, report.uid, report.reason
            if topic in self._obstacles:
                return
            self._obstacles[topic] = None
            while len(self._obstacles) > _MAX_REMEMBERED:
                del self._obstacles[next(iter(self._obstacles))]
        self._metrics.count_gang_min(report.reason, report.outcome)
        is_written = report.outcome == "Written"
        fields = {"job": str(report.key), "group": report.group, "reason": report.reason.value}
        fields |= {"detail": report.detail, "outcome": report.outcome}
        log.info("gang_min_changed" if is_written else "gang_min_not_changed", extra=fields)
        has_event = is_written or report.outcome == "Skipped" or report.reason is GangReason.REFUSED
        if has_event and (ref := self._about(report.key)) is not None:
            text = f"PodGroup {report.group}: {report.detail}"
            self._recorder.emit(ref, "Normal" if is_written else "Warning", report.reason.value, text, time.time())

    def _emit(self, step: Step, type_: str) -> None:
        """Emit an Event about a step on its job, if the job exists. type_: Normal or Warning."""
        if (ref := self._about(step.key)) is not None:
            self._recorder.emit(ref, type_, step.reason.value, event_text(step), time.time())


_NODE_WARNINGS = frozenset(
    [NodeReason.TAINTED, NodeReason.TAINTED_AGAIN, NodeReason.SUSPECTED, NodeReason.STILL_FAULTY]
)
# Logged for debugging only, without Events: a pod keeps its report for as long as it exists.
_DEBUG_REASONS = frozenset([NodeReason.STALE, NodeReason.FORGOTTEN])


class NodeEvents:
    """A writer of Events about nodes, and about the pods that have reported on a node."""

    def __init__(self, recorder: EventRecorder, rules: TaintRules, metrics: Metrics) -> None:
        self._recorder, self._rules, self._metrics = recorder, rules, metrics.nodes
        self._reported: dict[tuple[str, NodeReason, object], None] = {}
        self._faults: dict[str, str] = {}

    def report_plan(self, node_state: NodeObservation, faults: Mapping[str, str], plan: NodePlan) -> None:
        """Set the metrics of nodes, report each report without effect once, and log each unreadable record once.

        node_state: on which the plan was made. faults: node -> why its record cannot be read.
        """
        states = Counter(each.record.state for each in node_state.nodes.values() if each.record is not None)
        counts = {state.value: states[state] for state in (FaultState.SUSPECTED, FaultState.ON_TRIAL)}
        limit = self._rules.max_tainted(node_state.gpu_nodes)
        self._metrics.set_counts({**counts, "tainted": node_state.tainted, "all": node_state.gpu_nodes}, limit)
        for each in plan.ineffective_reports:
            self._report_without_effect(each)
        for node, why in faults.items():
            if self._faults.get(node) != why:
                log.warning("node_record_unreadable", extra={"node": node, "why": why})
        self._faults = dict(faults)

    def report_outcome(self, step: NodeStep, outcome: str) -> None:
        """Count and log the outcome of a step on a node: Written, DryRun, NotLeading, Conflict or Refused.

        A written change gets Events on the node and on the pods that reported. A record that is only forgotten gets
        none.
        """
        self._metrics.count_outcome(step.reason.value, outcome)
        fields = {"node": step.node, "reason": step.reason.value, "detail": step.why, "outcome": outcome}
        until = step.record.until if step.record is not None else None
        log.log(
            logging.DEBUG if step.reason in _DEBUG_REASONS else logging.INFO,
            "node_changed" if outcome == "Written" else "node_not_changed",
            extra={
                **fields,
                "pods": [pod_report.pod for pod_report in step.reports],
                "until": until.isoformat() if until else "",
            },
        )
        if outcome != "Written" or step.reason in _DEBUG_REASONS:
            return
        type_ = "Warning" if step.reason in _NODE_WARNINGS else "Normal"
        text = f"{step.why}{f' (until {rfc3339(until.timestamp())})' if until else ''}"
        about = ObjectRef("Node", "v1", "", step.node, step.uid)
        for ref in (about, *map(_pod_ref, step.reports)):
            self._recorder.emit(ref, type_, step.reason.value, f"{step.node}: {text}", time.time())

    def _report_without_effect(self, each: IneffectiveReport) -> None:
        """Report a pod's report without effect once: by metric, in the log, and as an Event on its pod unless it is
        only stale.

        each: the report with the reason. It is reported again if the pod reports again.
        """
        pod_report = each.pod_report
        topic = pod_report.uid, each.reason, pod_report.report.at if pod_report.report is not None else pod_report.fault
        if topic in self._reported:
            return
        self._reported[topic] = None
        while len(self._reported) > _MAX_REMEMBERED:
            del self._reported[next(iter(self._reported))]
        self._metrics.count_skipped(each.reason.value)
        fields = {"node": pod_report.node, "pod": pod_report.pod, "reason": each.reason.value, "detail": each.why}
        log.log(logging.DEBUG if each.reason in _DEBUG_REASONS else logging.INFO, "report_without_effect", extra=fields)
        if each.reason not in _DEBUG_REASONS:
            self._recorder.emit(
                _pod_ref(pod_report), "Warning", each.reason.value, f"{pod_report.node}: {each.why}", time.time()
            )


def _pod_ref(pod_report: PodReport) -> ObjectRef:
    """Return the reference to the pod of a report."""
    namespace, _, name = pod_report.pod.partition("/")
    return ObjectRef("Pod", "v1", namespace, name, pod_report.uid)
