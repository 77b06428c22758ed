"""Pods a second, end to end: default scheduling, and the same pods behind our gates. Our patches are counted in."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from hack.bench.gates.stream import come, pod, start_nominator, warm
from hack.bench.throughput.trials import BENCH_FLAGS, GATES, NONE, Cluster, gangs
from hack.controlplane.plane import ControlPlane
from turnout.kube import labels

WAYS = ("default", "every node", "gates")
GANGS, SIZE = 20, 8  # that come one by one


@dataclass(frozen=True, slots=True)
class Rate:
    """Pods a second by way, and the median of the ratios of each repetition.

    ratio: gates to default scheduling, which looks at a sample of the nodes. to_every: to one that looks at all nodes.
    bound_s: for each of some gangs that come one by one, from the last pod created to the last bound.
    """

    nodes: int
    pods_s: Mapping[str, float]
    ratio: float
    to_every: float
    bound_s: Sequence[float]


async def rates(sizes: Iterable[tuple[int, int, int]]) -> list[Rate]:
    """Measure. sizes: (nodes, pods, repetitions)."""
    found = []
    for nodes, pods, times in sizes:
        plane = ControlPlane(apiserver_flags=BENCH_FLAGS).start()
        try:
            cluster = Cluster(plane, nodes)
            await cluster.build()
            seen: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(times):
                seen["default"].append((await cluster.run(NONE, gangs(pods), None)).rate)
                seen["every node"].append((await cluster.run(NONE, gangs(pods), 100)).rate)
                seen["gates"].append((await cluster.run(GATES, behind_gates(gangs(pods)), None)).rate)
                line = ", ".join(f"{way} {rates_[-1]:.0f} pods/s" for way, rates_ in seen.items())
                print(f"{time.strftime('%H:%M:%S')} {nodes} nodes: {line}", file=sys.stderr, flush=True)
            bound_s = await _one_by_one(plane)
        finally:
            plane.stop()
        to_default, to_every = (_ratio(seen["gates"], seen[way]) for way in WAYS[:2])
        found.append(Rate(nodes, {way: median(seen[way]) for way in WAYS}, to_default, to_every, bound_s))
    return found


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return median(one / other for one, other in zip(ours, theirs, strict=True))


async def _one_by_one(plane: ControlPlane) -> list[float]:
    """Let gangs of eight whole nodes come, each when the one before is bound."""
    plane.start_scheduler()
    start_nominator(plane)
    async with plane.api() as api:
        await warm(api, gated=True)
        dice = random.Random(1)
        gated = partial(pod, gated=True)
        return [(await come(api, f"alone-{at}", SIZE, dice, 0.0, gated))[1] for at in range(GANGS)]


def behind_gates(made: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Put our gate on every pod."""
    for gang in made:
        for each in gang:
            each["spec"]["schedulingGates"] = [{"name": labels.PLACEMENT_GATE}]
    return made
