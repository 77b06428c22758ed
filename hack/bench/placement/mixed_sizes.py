"""Pods of 1 to 8 GPUs that come and go at a load of 0.9: how many whole nodes stay free, beside best fit in memory.

Sizes are drawn alike, 3, 5 and 6 too. A pod that finds no node is rejected and does not return. The extender answers
each question in full; best fit takes the first node of those with the fewest GPUs free that hold the pod. Both meet the
same pods at the same times, and each keeps its own nodes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hack.bench.placement.simulated import GPUS, SimulatedCluster, pod
from hack.bench.support.measure import ratio
from hack.bench.support.outcome import Outcome, Table, Target
from turnout.topology.fabric import build
from turnout.topology.model import MapEntry

NODES = 64  # in 8 leaves of two spines
LOAD = 0.9  # GPUs that the pods ask for on average, to all GPUs
WARM_UP = 0.2  # the share of the pods that come before anything is counted

Choose = Callable[[int, int], int | None]  # the number and GPUs of a pod -> its node


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod of the stream."""

    at: float  # time, in mean lifetimes of a pod
    gpus: int  # 1 to GPUS
    until: float  # when it leaves if it finds a node, > at


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The figures of one policy on a stream, after the warm-up."""

    whole_nodes: float  # empty nodes, mean over time
    rejected: float  # pods of GPUS GPUs that found no node, to all of them, 0..1
    used: float  # GPUs in use, to all GPUs, mean over time, 0..1


def measure(seeds: Iterable[int], pods: int) -> Outcome:
    """Replay the stream of each seed by both policies, and return the table and the targets.

    pods: number of pods in a stream.
    """
    ours, best_fit = [], []
    for seed in seeds:
        stream = arrivals(seed, pods)
        cluster = _Cluster()
        ours.append(replay(stream, cluster.choose, cluster.leave))
        best_fit.append(replay(stream, *_best_fit()))
    (empty_share, rejected, used), (fit_whole, fit_rejected, fit_used) = _mean(ours), _mean(best_fit)
    columns = {"pods of 1 to 8 GPUs at a load of 0.9": "", "whole nodes free": ".3f", "8-GPU pods rejected": ".3%"}
    rows = [("ours", empty_share, rejected, used), ("best fit in memory", fit_whole, fit_rejected, fit_used)]
    return Outcome(
        "mixed sizes",
        (Table(f"{len(ours)} streams of {pods} pods on {NODES} nodes", {**columns, "GPUs in use": ".2%"}, rows),),
        (
            Target("mixed sizes: whole free nodes to best fit's", ratio(empty_share, fit_whole), ">=", 1.0),
            Target("mixed sizes: rejected 8-GPU pods to best fit's", ratio(rejected, fit_rejected), "<=", 1.0),
            Target("mixed sizes: GPUs in use to best fit's", ratio(used, fit_used), ">=", 1.0),
        ),
    )


def arrivals(seed: int, pods: int) -> list[Arrival]:
    """Draw the stream of a seed: exponential gaps and lifetimes, and equal shares of all sizes. The same arguments
    always give the same stream.

    pods: their number.
    """
    rng = random.Random(seed)
    rate = LOAD * NODES * GPUS / ((1 + GPUS) / 2)  # pods that come in one mean lifetime
    now, stream = 0.0, []
    for _ in range(pods):
        now += rng.expovariate(rate)
        stream.append(Arrival(now, rng.randint(1, GPUS), now + rng.expovariate(1.0)))
    return stream


def replay(stream: Sequence[Arrival], choose: Choose, leave: Callable[[int], None]) -> PolicyFigures:
    """Run a stream by one policy; return its figures after the warm-up. Raises RuntimeError if a node gets too many
    GPUs.

    stream: at least one pod. choose: returns the node of a pod, None for none. leave: called when a pod leaves.
    """
    free, begin = [GPUS] * NODES, stream[int(WARM_UP * len(stream))].at
    running: list[tuple[float, int, int, int]] = []  # end, number, node, GPUs
    now = empty_host_s = used = 0.0
    large, rejected = 0, 0

    def pass_time(until: float) -> None:
        """Advance the time to `until`, and add the empty nodes and the used GPUs of that span to the sums."""
        nonlocal now, empty_host_s, used
        span = max(0.0, until - max(now, begin))
        empty_host_s += span * free.count(GPUS)
        used += span * (NODES * GPUS - sum(free))
        now = until

    for number, each in enumerate(stream):
        while running and running[0][0] <= each.at:
            end, left, node, gpus = heapq.heappop(running)
            pass_time(end)
            free[node] += gpus
            leave(left)
        pass_time(each.at)
        place = choose(number, each.gpus)
        if each.gpus == GPUS and each.at >= begin:
            large, rejected = large + 1, rejected + (place is None)
        if place is not None:
            free[place] -= each.gpus
            if free[place] < 0:
                raise RuntimeError(f"a policy put too many GPUs on node {place}")
            heapq.heappush(running, (each.until, number, place, each.gpus))
    span = now - begin
    return PolicyFigures(empty_host_s / span, rejected / max(large, 1), used / span / (NODES * GPUS))


def _best_fit() -> tuple[Choose, Callable[[int], None]]:
    """Return the best-fit policy as a pair (choose, leave), which keeps the free GPUs of each node in memory."""
    free, places = [GPUS] * NODES, dict[int, tuple[int, int]]()

    def choose(number: int, gpus: int) -> int | None:
        """Return the node with the fewest free GPUs that has enough, and take them; None if no node has.

        number: of the pod, by which it leaves later. gpus: that it asks for.
        """
        fits = [node for node, left in enumerate(free) if left >= gpus]
        if not fits:
            return None
        node = min(fits, key=lambda node: (free[node], node))
        free[node] -= gpus
        places[number] = node, gpus
        return node

    def leave(number: int) -> None:
        node, gpus = places.pop(number)
        free[node] += gpus

    return choose, leave


class _Cluster:
    """The extender's answers about lone pods, each bound at once."""

    def __init__(self) -> None:
        paths = [(f"s{at // 32}", f"l{at // 8}") for at in range(NODES)]
        self._cluster = SimulatedCluster(build(MapEntry(f"n{at}", path, at + 1) for at, path in enumerate(paths)))
        self._free = {f"n{at}": GPUS for at in range(NODES)}
        self._places: dict[int, tuple[str, int]] = {}

    def choose(self, number: int, gpus: int) -> int | None:
        """Ask the extender for the node of a pod, among the nodes with enough free GPUs. Return the node's number; None
        if no node has room.

        number: of the pod. gpus: that it asks for.
        """
        fits = [name for name, left in self._free.items() if left >= gpus]
        if not fits:
            return None
        candidate = pod(f"p{number}", gpus)
        self._cluster.show(candidate)
        (name,) = self._cluster.filter(candidate, fits)
        self._free[name] -= gpus
        self._places[number] = name, gpus
        self._cluster.show({**candidate, "spec": {**candidate["spec"], "nodeName": name}})
        return int(name[1:])

    def leave(self, number: int) -> None:
        """Delete pod `number` from the simulated cluster."""
        name, gpus = self._places.pop(number)
        self._free[name] += gpus
        self._cluster.watches.drop_pod(f"p{number}")


def _mean(figures: Sequence[PolicyFigures]) -> tuple[float, float, float]:
    """Return (whole free nodes, rejected pods, used share), each as the mean of `figures`, at least one."""
    count = len(figures)
    return (
        sum(each.whole_nodes for each in figures) / count,
        sum(each.rejected for each in figures) / count,
        sum(each.used for each in figures) / count,
    )
