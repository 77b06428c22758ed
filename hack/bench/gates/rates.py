"""Pods a second, end to end: default scheduling, and the same pods behind our gates. Our patches are counted in."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hack.bench.gates.stream import come, start_nominator, warm
from hack.bench.throughput.trials import BENCH_FLAGS, GATES, NONE, Cluster, gangs
from hack.controlplane.plane import ControlPlane
from turnout.kube import labels

GANGS, SIZE = 20, 8  # that come one by one


@dataclass(frozen=True, slots=True)
class Rate:
    """Pods a second by way, and the median of the ratios of each repetition.

    bound_s: for each of some gangs that come one by one, from the last pod created to the last bound.
    """

    nodes: int
    pods_s: Mapping[str, float]
    ratio: float
    bound_s: Sequence[float]


async def rates(sizes: Iterable[tuple[int, int, int]]) -> list[Rate]:
    """Measure. sizes: (nodes, pods, repetitions)."""
    found = []
    for nodes, pods, times in sizes:
        plane = ControlPlane(apiserver_flags=BENCH_FLAGS).start()
        try:
            cluster = Cluster(plane, nodes)
            await cluster.build()
            plain: list[float] = []
            gated: list[float] = []
            for _ in range(times):
                plain.append((await cluster.run(NONE, gangs(pods), None)).rate)
                gated.append((await cluster.run(GATES, behind_gates(gangs(pods)), None)).rate)
                line = f"{time.strftime('%H:%M:%S')} {nodes} nodes: {plain[-1]:.0f} pods/s, gates {gated[-1]:.0f}"
                print(line, file=sys.stderr, flush=True)
            bound_s = await _one_by_one(plane)
        finally:
            plane.stop()
        ratio = median(ours / theirs for ours, theirs in zip(gated, plain, strict=True))
        found.append(Rate(nodes, {"default": median(plain), "gates": median(gated)}, ratio, bound_s))
    return found


async def _one_by_one(plane: ControlPlane) -> list[float]:
    """Let gangs of eight whole nodes come, each when the one before is bound."""
    plane.start_scheduler()
    start_nominator(plane)
    async with plane.api() as api:
        await warm(api, gated=True)
        dice = random.Random(1)
        return [(await come(api, f"alone-{at}", SIZE, dice, 0.0, gated=True))[1] for at in range(GANGS)]


def behind_gates(made: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Put our gate on every pod."""
    for gang in made:
        for pod in gang:
            pod["spec"]["schedulingGates"] = [{"name": labels.PLACEMENT_GATE}]
    return made
