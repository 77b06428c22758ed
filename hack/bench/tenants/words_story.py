"""Minutes in memory of what a tenant has others told: lies about nodes, and objects that are told of without end.

Nodes: the taint policy decides by what pods say. Events: the recorder that all programs share writes five a second.
Time goes by seconds of the story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from turnout.autoscaler.node_faults.model import FaultClaim, NodeEntry, NodeObservation, TaintRules
from turnout.autoscaler.node_faults.taint_policy import judge
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.node_health import CheckResult, NodeReport, utc_datetime

NODES, LOOK_S, SECONDS, FAULT_S = 100, 10, 1_800, 300
FAULTY = ("n90", "n91")  # really, from FAULT_S on
GREEDY, HONEST = "greedy", "vision"
START_S = 1_767_225_600.0
FLOOD_EACH_S, TOLD_EACH_S = 50, 10  # Events: of greedy a second, and seconds between two of the honest tenant


@dataclass(slots=True)
class Told:
    """wait_s: until what an honest tenant has said came to something, each. share: of sound nodes that stay in use.

    lost: how often it came to nothing.
    """

    wait_s: list[float] = field(default_factory=list)
    share: float = 1.0
    lost: int = 0


def verdicts(lies: bool) -> Told:
    """Have a tenant with a pod on every node say that all are faulty, and those fine that really are not."""
    nodes = {f"n{at}": NodeEntry(f"uid-{at}", gpus=True) for at in range(NODES)}
    told, sound, waits = Told(), 0, dict.fromkeys(FAULTY, float(SECONDS - FAULT_S))
    for second in range(0, SECONDS, LOOK_S):
        claims = [*_greedys(second, lies), *_honest(second)]
        tainted = sum(each.tainted for each in nodes.values())
        plan = judge(NodeObservation(nodes, tuple(claims), NODES, tainted), TaintRules(), START_S + second)
        for step in plan.steps:
            nodes[step.node] = replace(nodes[step.node], tainted=step.taints, record=step.record)
        for name in FAULTY:
            if second >= FAULT_S and nodes[name].tainted:
                waits[name] = min(waits[name], float(second - FAULT_S))
        sound += sum(not each.tainted for name, each in nodes.items() if name not in FAULTY)
    told.wait_s = list(waits.values())
    told.lost = sum(not nodes[name].tainted for name in FAULTY)
    told.share = sound / ((NODES - len(FAULTY)) * len(range(0, SECONDS, LOOK_S)))
    return told


def _greedys(second: int, lies: bool) -> Iterator[FaultClaim]:
    for at in range(NODES):
        kind = CheckResult.FAULTY if lies and f"n{at}" not in FAULTY else CheckResult.FINE
        yield _claim(GREEDY, f"n{at}", kind, second)


def _honest(second: int) -> Iterator[FaultClaim]:
    for name in FAULTY if second >= FAULT_S else ():
        yield _claim(HONEST, name, CheckResult.FAULTY, second - second % 60)


def _claim(who: str, node: str, kind: CheckResult, second: int) -> FaultClaim:
    verdict = NodeReport(kind, utc_datetime(START_S + second), 1, f"{who}-{node}", 2, cause="compute", why="slow")
    return FaultClaim(f"{who}/p-{node}", f"{who}-{node}", f"{who}-{node}", node, verdict)


class _Over(Exception):
    """The story has come to its end."""


class _Clock:
    """The story's time, by which both tenants are told of while the recorder waits for its turn."""

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
        """Advance the clock, and emit the Events of each second that passes. Raises _Over after SECONDS."""
        until_s = self.now_s + seconds
        while self._second <= until_s:
            self.now_s = max(self.now_s, float(self._second))
            self._emit(self._second)
            self._second += 1
        self.now_s = until_s
        if self.now_s >= SECONDS:
            raise _Over

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


def events(flood: bool) -> Told:
    """Have a tenant's objects told of fifty times a second, each time in other words."""
    return asyncio.run(_events(flood))


async def _events(flood: bool) -> Told:
    """Run the recorder of Events until SECONDS. Return how long honest Events waited. flood: a greedy tenant floods."""
    clock = _Clock(flood)
    store = _Store(clock)
    clock.recorder = EventRecorder(store, "turnout-bench", "one", clock=clock)
    with suppress(_Over):
        while True:
            await clock.recorder.flush()
            await clock.sleep(0.2)
    late = [at_s for at_s in clock.emitted.values() if at_s < SECONDS - 2 * TOLD_EACH_S]
    return Told(store.wait_s, 1.0, len(late))
