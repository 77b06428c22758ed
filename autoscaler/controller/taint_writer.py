"""Taint nodes that pods have proven faulty, and remove these taints.

A dry run reports the plan and writes nothing. The Lease is checked before each write. A node is read just before it is
written, and the write is valid for that version only, so a taint that somebody else writes at the same time stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from turnout.autoscaler.controller.scale_writer import FIELD_MANAGER, RETRY_BACKOFF
from turnout.autoscaler.node_faults import model
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.node_faults.model import (
    BadNodeRecord,
    NodeEntry,
    NodeObservation,
    NodePlan,
    NodeReason,
    NodeStep,
    PodReport,
    Record,
    TaintRules,
)
from turnout.autoscaler.node_faults.taint_policy import plan_taints
from turnout.kube import labels, node_health
from turnout.kube.backoff import RetryPauses
from turnout.kube.client.apply import MERGE
from turnout.kube.client.clock import Clock, SteadyTime
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, NotFound, NotLeading
from turnout.kube.status import decode_json_object

log = logging.getLogger("turnout.autoscaler")

GATHER_S = 0.2  # pause after a decision, as the pods of a job report at the same time
LOOK_EACH_S = 5.0  # longest time between two decisions, as taints expire without any change
SHOWN_WITHIN_S = 30.0  # after which a write no longer counts as shown; the watch shows it long before
VALUE = "true"  # of the taint


class NodeReporter(Protocol):
    """A receiver of the outcome of each step on a node."""

    def report_plan(self, state: NodeObservation, faults: Mapping[str, str], plan: NodePlan) -> None:
        """Report a plan before it is carried out. state: on which it was made. faults: node -> why its record cannot
        be read.
        """

    def report_outcome(self, step: NodeStep, outcome: str) -> None:
        """Report the outcome of a step: Written, DryRun, NotLeading, Conflict or Refused."""


class TaintWriter:
    """The writer of taints. news: set when there is a new report or node. dry_run: report, but write nothing."""

    def __init__(
        self,
        nodes: Calls,
        fault_reports: FaultReportCache,
        rules: TaintRules,
        reporter: NodeReporter,
        clock: Clock,
        news: asyncio.Event,
        dry_run: bool = True,
        time: SteadyTime | None = None,
    ) -> None:
        """Prepare the writer; `run` starts it. time: the wall clock with its jumps; None for one of `clock`.

        reporter: receives each plan and outcome. The class docstring explains the other arguments.
        """
        self._nodes, self._fault_reports, self._rules, self._reporter = nodes, fault_reports, rules, reporter
        self._time = time or SteadyTime(clock)
        self._clock, self._news, self.dry_run = clock, news, dry_run
        # By node: the written step that the watch does not show yet, and when it was written, by the monotonic clock.
        self._written_steps: dict[str, tuple[NodeStep, float]] = {}
        self._pauses = RetryPauses[str](RETRY_BACKOFF)  # by node
        self._reported: dict[str, tuple[NodeReason, tuple[PodReport, ...]]] = {}  # by node, in a dry run

    async def run(self) -> None:
        """Decide and write until cancelled: after each news, and at least every LOOK_EACH_S."""
        while True:
            self._news.clear()
            await self.run_once()
            try:
                async with asyncio.timeout(LOOK_EACH_S):
                    await self._news.wait()
            except TimeoutError:
                continue
            await self._clock.sleep(GATHER_S)

    async def run_once(self) -> int:
        """Decide and write once, unless the wall clock has just jumped. Return the number of changed nodes."""
        moment = self._time.now()
        return 0 if moment.jumped_s else await self.look(moment.now_s)

    async def look(self, now_s: float) -> int:
        """Decide, report and write once. Return the number of changed nodes, 0 in a dry run. now_s: seconds since 1970.

        A node that pauses after a failure is left out. Stale reports are forgotten.
        """
        at_s = self._clock.monotonic()
        for name, (step, wrote_s) in list(self._written_steps.items()):
            if self._fault_reports.is_shown(step) or at_s - wrote_s > SHOWN_WITHIN_S:
                del self._written_steps[name]
        state = self._fault_reports.state({name: step for name, (step, _) in self._written_steps.items()})
        plan = plan_taints(state, self._rules, now_s)
        self._reporter.report_plan(state, self._fault_reports.faults, plan)
        self._fault_reports.forget(now_s - self._rules.fresh_s)
        changed_nodes = 0
        for step in plan.steps:
            if self._pauses.may_try(step.node, at_s):
                changed_nodes += await self._carry_out(step, state.nodes[step.node], at_s)
        return changed_nodes

    async def _carry_out(self, step: NodeStep, decided_on: NodeEntry, at_s: float) -> bool:
        """Carry out one step on a node, and report its outcome. Return True if the node was changed.

        decided_on: the node's state at the decision. at_s: now by the monotonic clock. A dry run only reports, each new
        plan once. After the outcome Refused the node pauses.
        """
        if self.dry_run:
            report = step.reason, step.reports
            if self._reported.get(step.node) != report:
                self._reported[step.node] = report
                self._reporter.report_outcome(step, "DryRun")
            return False
        try:
            await self._write(step, decided_on)
            outcome = "Written"
        except NotLeading:
            outcome = "NotLeading"
        except (Conflict, NotFound):
            outcome = "Conflict"  # the next decision uses the new version
        except CallError as error:
            self._pauses.note_failure(step.node, at_s, error.retry_after_s)
            log.warning("node_not_written", extra={"node": step.node, "why": str(error)})
            outcome = "Refused"
        self._reporter.report_outcome(step, outcome)
        if outcome == "Written":
            self._pauses.note_success(step.node)
            self._written_steps[step.node] = step, at_s
        return outcome == "Written"

    async def _write(self, step: NodeStep, decided_on: NodeEntry) -> None:
        """Write a step to the node.

        Raises Conflict, with nothing written, if the node is no longer as in `decided_on`, or if it changes between our
        read and our write; NotFound if it is deleted, and another CallError if a call fails. decided_on: the node's
        state at the decision.
        """
        path, key = f"/api/v1/nodes/{step.node}", self._rules.key
        node = decode_json_object(path, await self._nodes.get(path))
        is_tainted = node_health.has_taint(node, key)
        if (node["metadata"]["uid"], is_tainted, _read_record(node)) != (
            decided_on.uid,
            decided_on.tainted,
            decided_on.record,
        ):
            raise Conflict("PATCH", path, 409, "the node has changed since the decision")
        taints = node_health.with_taint(node, key, VALUE) if step.taints else node_health.without_taint(node, key)
        annotations = {labels.NODE_RECORD: None if step.record is None else model.record_text(step.record)}
        body = node_health.node_patch(node, annotations, None if is_tainted == step.taints else taints)
        await self._nodes.patch(path, body, MERGE, FIELD_MANAGER)


def _read_record(node: dict[str, Any]) -> Record | None:
    """Return the fault record in a node's annotation; None without one, or if it is invalid."""
    text = (node["metadata"].get("annotations") or {}).get(labels.NODE_RECORD)
    try:
        return None if text is None else model.read_record(text)
    except BadNodeRecord:
        return None
