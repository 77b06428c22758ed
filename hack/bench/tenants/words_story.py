"""Simulates attacks by reports, in memory: false reports on nodes, and a flood of Events.

Nodes: the taint policy decides by what pods say. Events: the recorder that all programs share writes five a second.
Time goes by seconds of the story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from turnout.autoscaler.node_faults.model import NodeEntry, NodeObservation, PodReport, TaintRules
from turnout.autoscaler.node_faults.taint_policy import plan_taints
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.node_health import CheckResult, NodeReport, utc_datetime

NODES, LOOK_S, SECONDS, FAULT_S = 100, 10, 1_800, 300
FAULTY = ("n90", "n91")  # really, from FAULT_S on
GREEDY, HONEST = "greedy", "vision"
START_S = 1_767_225_600.0
FLOOD_EACH_S, TOLD_EACH_S = 50, 10  # Events: of greedy a second, and seconds between two of the honest tenant


@dataclass(slots=True)
class ReportMeasurements:
    """The measurements of the honest tenant's reports, and of sound nodes, in one run."""

    wait_s: list[float] = field(default_factory=list)  # of each report, until it had its effect
    share: float = 1.0  # of the sound nodes, averaged over time, that stayed in use
    lost: int = 0  # reports without an effect


def verdicts(lies: bool) -> ReportMeasurements:
    """Simulate reports on nodes. Return how long the honest tenant's true reports waited, and the share of sound nodes
    in use.

    lies: the greedy tenant, which has a pod on every node, reports each sound node as faulty and each faulty one as
    fine.
    """
    nodes = {f"n{at}": NodeEntry(f"uid-{at}", gpus=True) for at in range(NODES)}
    results, sound, wait_s = ReportMeasurements(), 0, dict.fromkeys(FAULTY, float(SECONDS - FAULT_S))
    for second in range(0, SECONDS, LOOK_S):
        pod_reports = [*_greedy_reports(second, lies), *_honest_reports(second)]
        tainted = sum(each.tainted for each in nodes.values())
        plan = plan_taints(NodeObservation(nodes, tuple(pod_reports), NODES, tainted), TaintRules(), START_S + second)
        for step in plan.steps:
            nodes[step.node] = replace(nodes[step.node], tainted=step.taints, record=step.record)
        for name in FAULTY:
            if second >= FAULT_S and nodes[name].tainted:
                wait_s[name] = min(wait_s[name], float(second - FAULT_S))
        sound += sum(not each.tainted for name, each in nodes.items() if name not in FAULTY)
    results.wait_s = list(wait_s.values())
    results.lost = sum(not nodes[name].tainted for name in FAULTY)
    results.share = sound / ((NODES - len(FAULTY)) * len(range(0, SECONDS, LOOK_S)))
    return results


def _greedy_reports(second: int, lies: bool) -> Iterator[PodReport]:
    """Yield the greedy tenant's report on each node. lies: as in `verdicts`."""
    for at in range(NODES):
        kind = CheckResult.FAULTY if lies and f"n{at}" not in FAULTY else CheckResult.FINE
        yield _claim(GREEDY, f"n{at}", kind, second)


def _honest_reports(second: int) -> Iterator[PodReport]:
    """Yield the honest tenant's reports on the faulty nodes, renewed each minute, from FAULT_S on."""
    for name in FAULTY if second >= FAULT_S else ():
        yield _claim(HONEST, name, CheckResult.FAULTY, second - second % 60)


def _claim(who: str, node: str, kind: CheckResult, second: int) -> PodReport:
    report = NodeReport(kind, utc_datetime(START_S + second), 1, f"{who}-{node}", 2, cause="compute", why="slow")
    return PodReport(f"{who}/p-{node}", f"{who}-{node}", f"{who}-{node}", node, report)


class _StoryEnded(Exception):
    """The story has come to its end."""


class _Clock:
    """The simulated clock. While the recorder sleeps, both tenants emit Events."""

    def __init__(self, flood: bool) -> None:
        self.now_s, self._flood, self._second = 0.0, flood, 0
        self.recorder: EventRecorder | None = None
        self.emitted: dict[str, float] = {}

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return START_S + self.now_s

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        raise AssertionError("nothing of the story has a time limit")

    async def sleep(self, seconds: float) -> None:
        """Advance the clock, and emit the Events of each second that passes. Raises _StoryEnded after SECONDS."""
        until_s = self.now_s + seconds
        while self._second <= until_s:
            self.now_s = max(self.now_s, float(self._second))
            self._emit(self._second)
            self._second += 1
        self.now_s = until_s
        if self.now_s >= SECONDS:
            raise _StoryEnded

    def _emit(self, second: int) -> None:
        """Emit one second's Events: the greedy tenant's flood, if it floods, and every TOLD_EACH_S seconds an honest
        one.
        """
        assert self.recorder is not None
        for number in range(FLOOD_EACH_S if self._flood else 0):
            self._tell(GREEDY, f"{second}.{number}")
        if second % TOLD_EACH_S == 0:
            self.emitted[str(second)] = self.now_s
            self._tell(HONEST, str(second))

    def _tell(self, who: str, text: str) -> None:
        assert self.recorder is not None
        ref = ObjectRef("Job", "batch/v1", who, f"job-{text}", text)
        self.recorder.emit(ref, "Warning", "Unschedulable", text, self.wall())


class _Store:
    """A place for Events."""

    def __init__(self, clock: _Clock) -> None:
        self._clock, self.wait_s = clock, list[float]()

    async def create(self, path: str, body: Mapping[str, Any], *, deadline_s: float) -> bytes:
        if f"/{HONEST}/" in path:
            self.wait_s.append(self._clock.now_s - self._clock.emitted.pop(body["involvedObject"]["uid"]))
        return b"{}"

    async def patch(self, path: str, body: Mapping[str, Any], *, deadline_s: float) -> bytes:
        return b"{}"


def events(flood: bool) -> ReportMeasurements:
    """Simulate the recorder of Events; return how long Events of the honest tenant waited, and how many were not
    written.

    flood: the greedy tenant emits FLOOD_EACH_S Events a second, each with another text.
    """
    return asyncio.run(_events(flood))


async def _events(flood: bool) -> ReportMeasurements:
    """Run the recorder until SECONDS of the simulated clock have passed. Arguments and result as of `events`."""
    clock = _Clock(flood)
    store = _Store(clock)
    clock.recorder = EventRecorder(store, "turnout-bench", "one", clock=clock)
    with suppress(_StoryEnded):
        while True:
            await clock.recorder.flush()
            await clock.sleep(0.2)
    late = [at_s for at_s in clock.emitted.values() if at_s < SECONDS - 2 * TOLD_EACH_S]
    return ReportMeasurements(store.wait_s, 1.0, len(late))
