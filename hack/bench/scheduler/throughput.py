"""One run: a configuration, a workload, and how fast a real kube-scheduler bound it.

Everything shares this machine's cores: etcd, API server, scheduler, our programs and the load.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hack.bench.scheduler import noop
from hack.bench.scheduler.cluster import (
    PODS,
    build,
    generated_switches,
    pod,
    start_extender,
    start_nominator,
    start_scheduler,
)
from hack.bench.support.measure import cpu_s
from hack.controlplane.plane import ControlPlane

GIVE_UP_S = 240.0
Gangs = list[list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SchedulerSetup:
    """A configuration of the scheduler and of the programs beside it."""

    name: str
    verbs: tuple[str, ...] = ()  # of the extender in the scheduler's configuration
    program: str = ""  # answers the verbs: "ours" or "noop"
    nominate: bool = False  # our nominator runs too
    gates: bool = False  # pods come behind our gate, which the nominator lifts


NONE = SchedulerSetup("no extender")
NOOP = SchedulerSetup("no-op extender, full answers", ("filter", "prioritize"), "noop")
PRIORITIZE = SchedulerSetup("ours, prioritize only", ("prioritize",), "ours")
BOTH = SchedulerSetup("ours, both verbs", ("filter", "prioritize"), "ours")
GATES = SchedulerSetup("no extender, our gates", nominate=True, gates=True)
NOMINATING = SchedulerSetup("ours, nominating", ("filter", "prioritize"), "ours", nominate=True)


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """The speed of one run."""

    rate: float  # pods a second from the first creation, in `run_nominated` from the first binding, to the last binding
    middle: float  # the same over the middle 80 % of the bindings
    bound: int
    cpu_s: dict[str, float] = field(default_factory=dict)  # by program


class _Meta(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, rename="camel"):
    nominated_node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


_event = msgspec.json.Decoder(_Event)


class Cluster:
    """A control plane with `count` GPU nodes and their map; runs come one after another."""

    def __init__(self, plane: ControlPlane, count: int) -> None:
        self.plane, self.count = plane, count

    async def build(self) -> None:
        """Create nodes and map."""
        async with self.plane.api() as api:
            await build(api, generated_switches(self.count, hosts_per_leaf=8))

    async def run(self, setup: SchedulerSetup, pods: Gangs, percentage: int | None) -> ThroughputResult:
        """Start the scheduler, then create all pods, and measure until all are bound.

        percentage: percentageOfNodesToScore; None for the scheduler's default. All pods are deleted at the end. setup:
        of the scheduler and the programs beside it.
        """
        programs = self._start_programs(setup)
        start_scheduler(self.plane, programs.get("extender"), percentage, setup.verbs)
        try:
            bindings = asyncio.create_task(self._bindings(pods))
            await asyncio.sleep(0.5)  # the watch is open before the first pod is
            before, began_s = self._cpu(programs), time.monotonic()
            await self._create(pods)
            return self._result(began_s, await bindings, before, programs)
        finally:
            await self._stop(programs)

    async def run_nominated(self, pods: Gangs, percentage: int, nominate: bool) -> ThroughputResult:
        """Create all pods, then start the scheduler without an extender, and measure until all are bound.

        nominate: our nominator nominates a node for each pod before the scheduler starts. All pods are deleted at the
        end. percentage: percentageOfNodesToScore.
        """
        programs = self._start_programs(SchedulerSetup("", nominate=nominate))
        try:
            nominations = asyncio.create_task(self._nominations(pods)) if nominate else None
            await self._create(pods)
            if nominations is not None:
                await nominations
                await asyncio.to_thread(self.plane.stop_program, "nominator")
                programs.pop("nominator")
            bindings = asyncio.create_task(self._bindings(pods))
            start_scheduler(self.plane, None, percentage)
            before = self._cpu(programs)
            times = await bindings
            return self._result(times[0], times, before, programs)
        finally:
            await self._stop(programs)

    def _start_programs(self, setup: SchedulerSetup) -> dict[str, int]:
        """Start the extender and the nominator if the setup has them.

        Returns the port of each started program by its name; 0 for the nominator, which serves no verbs.
        """
        started: dict[str, int] = {}
        if setup.program:
            # The no-op is started by its path: hack is no installed package.
            other = [sys.executable, noop.__file__] if setup.program == "noop" else []
            started["extender"] = start_extender(self.plane, other)
        if setup.nominate:  # with a Lease of its own: no earlier one has to run out
            flags = [f"--lease=default/nominator-{time.monotonic_ns()}", *(["--gates"] if setup.gates else [])]
            start_nominator(self.plane, *flags)
            started["nominator"] = 0
        return started

    async def _create(self, pods: Gangs) -> None:
        """Create the pods of all gangs, in order."""
        async with self.plane.api() as api:
            await api.create_all([each for gang in pods for each in gang])

    async def _stop(self, programs: dict[str, int]) -> None:
        """Stop the scheduler and the started programs, delete all pods, and wait until they are gone.

        programs: as `_start_programs` returned them; only the names are used. Raises TimeoutError if pods are left
        after GIVE_UP_S.
        """
        for name in ("kube-scheduler", *programs):
            await asyncio.to_thread(self.plane.stop_program, name)
        async with self.plane.api() as api:
            await api.delete(PODS)
            await api.until(PODS, lambda left: not left, GIVE_UP_S)

    async def _bindings(self, pods: Gangs) -> list[float]:
        """Return when each pod was seen with a node, in ascending seconds. Raises TimeoutError after GIVE_UP_S."""
        return await self._watch("fieldSelector=spec.nodeName!%3D&", pods, lambda each: bool(each.spec.node_name))

    async def _nominations(self, pods: Gangs) -> list[float]:
        """Return when each pod was seen with a nominated node, in ascending seconds.

        Raises TimeoutError after GIVE_UP_S.
        """
        return await self._watch("", pods, lambda each: bool(each.status.nominated_node_name))

    async def _watch(self, query: str, pods: Gangs, is_due: Callable[[_Pod], bool]) -> list[float]:
        """Return when the watch first showed each pod for which `is_due` is true, in ascending monotonic seconds.

        query: field selector of the watch, ending with "&", or "". Returns as soon as all pods were seen.
        """
        seen_s: dict[str, float] = {}
        total = sum(map(len, pods))
        async with asyncio.timeout(GIVE_UP_S), self.plane.api() as api:
            while len(seen_s) < total:  # if the server ends the watch, a new one shows all objects again
                async with aclosing(api.events(f"{PODS}?{query}watch=1&resourceVersion=0")) as events:
                    async for line, now_s in events:
                        each = _event.decode(line).object
                        if is_due(each):
                            seen_s.setdefault(each.metadata.name, now_s)
                        if len(seen_s) >= total:
                            break
        return sorted(seen_s.values())

    def _cpu(self, programs: dict[str, int]) -> dict[str, float]:
        """Return the CPU seconds so far of the API server, the scheduler and the started programs, by name."""
        return {name: cpu_s(self.plane.pid(name)) for name in ("kube-apiserver", "kube-scheduler", *programs)}

    def _result(
        self, began_s: float, times: Sequence[float], before: dict[str, float], programs: dict[str, int]
    ) -> ThroughputResult:
        """Return the speed of a run. began_s: its start; times: ascending binding times; before: CPU seconds at its
        start.

        The middle rate leaves out the first and the last tenth of the bindings. programs: whose CPU time counts, by
        name.
        """
        after = self._cpu(programs)
        edge = len(times) // 10
        low, high = times[edge], times[-1 - edge]
        return ThroughputResult(
            rate=len(times) / max(times[-1] - began_s, 1e-9),  # a few pods may all be seen at once
            middle=(len(times) - 2 * edge - 1) / max(high - low, 1e-9),
            bound=len(times),
            cpu_s={name: after[name] - before.get(name, 0.0) for name in after},
        )


def singles(count: int, gated: bool = False) -> Gangs:
    """Return `count` pods of one GPU, each a gang of its own. gated: they have our scheduling gate."""
    objects = [pod("", at, 1, gated, gpus=1) for at in range(count)]
    return [
        [{**each, "metadata": {"name": f"single-{at:05d}", "namespace": "default"}}] for at, each in enumerate(objects)
    ]


def gangs(count: int, gated: bool = False, size: int = 8) -> Gangs:
    """Return gangs of `size` pods of one GPU, `count` pods in total. gated: they have our scheduling gate."""
    return [
        [pod(f"gang-{gang:04d}", rank, size, gated, gpus=1) for rank in range(size)] for gang in range(count // size)
    ]
