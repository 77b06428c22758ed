"""The streams of gangs with pods that arrive one by one: each is a request to the extender when it arrives.

A job controller makes its pods some milliseconds apart and in no order that a planner may count on. The extender is
the real one, from the bytes of a question to the bytes of its answer; only the clock and the API server are ours.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hack.bench.placement import streams
from hack.bench.placement.simulated import GPUS, SimulatedCluster, pod
from hack.bench.support.outcome import Table
from turnout.topology.fabric import Fabric, ring_cost

APART_S = 0.02  # between two pods of a gang


@dataclass(frozen=True, slots=True)
class TrickleCost:
    """One seed's first gangs: mean crossings a gang with pods together, in the order of ranks, and shuffled."""

    seed: int
    together: float
    in_order: float
    shuffled: float


def measure(together: streams.Policy, seeds: Iterable[int], gangs: int = 40) -> list[TrickleCost]:
    """Replay the committed streams with all pods of a gang at once, and with pods that come one by one.

    seeds: of the streams, each in streams.SEEDS. together: policy that places all pods of a gang at once, on the hosts
    that are free then. gangs: number of first gangs of each stream.
    """
    tree, instances, found = streams.fabric(), streams.read_committed(), []
    for seed in seeds:
        events = streams.first_gangs(instances[seed], gangs)
        runs = (streams.replay(tree, events, together), replay(tree, events, None), replay(tree, events, seed))
        found.append(TrickleCost(seed, *(statistics.fmean(run.total) for run in runs)))
    return found


def table(rows: Sequence[TrickleCost]) -> Table:
    """Return the table of mean ring crossings, a row for each seed."""
    columns = {"seed": "", **dict.fromkeys(("together", "in order", "shuffled"), ".3f")}
    lines = [(str(row.seed), row.together, row.in_order, row.shuffled) for row in rows]
    title = f"ring crossings a gang, its pods {APART_S * 1e3:.0f} ms apart and each asked about at once"
    return Table(title, columns, lines, key="trickling, seed")


class _Nodes:
    """An empty cluster of whole nodes, and which of them are free."""

    def __init__(self, tree: Fabric) -> None:
        self._cluster, self.free = SimulatedCluster(tree), set(tree.hosts)

    def come(self, number: int, size: int, order: Iterable[int]) -> list[str]:
        """Create a gang's pods in this order; each is placed and bound at once. Return their nodes by rank.

        number, size: of the gang.
        """
        nodes = [""] * size
        created = f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
        for index in order:
            self._cluster.clock.now_s += APART_S
            member = pod(f"gang-{number}-{index}", GPUS, f"gang-{number}", size, created=created)
            self._cluster.show(member)
            (nodes[index],) = self._cluster.filter(member, sorted(self.free))
            self.free.remove(nodes[index])
            self._cluster.show({**member, "spec": {**member["spec"], "nodeName": nodes[index]}})
        return nodes

    def leave(self, number: int, nodes: Sequence[str]) -> None:
        """Delete a gang's pods and free their nodes. number: of the gang. nodes: of its pods, by rank."""
        for index, node in enumerate(nodes):
            self._cluster.watches.drop_pod(f"gang-{number}-{index}")
            self.free.add(node)


def replay(tree: Fabric, events: Sequence[int], seed: int | None) -> streams.StreamCost:
    """Run one stream and return its costs. seed: of the order in which each gang's pods come; None for the order of
    ranks.

    Raises ValueError if a pod is not placed: every gang of a stream fits. tree: the fabric. events: as
    `streams.generate` returns them.
    """
    cluster, rng = _Nodes(tree), random.Random(seed)
    placements: list[list[str]] = []
    total, leaf, full = [], [], []
    for event in events:
        if event <= 0:
            cluster.leave(-event, placements[-event])
            continue
        order = list(range(event))
        if seed is not None:
            order.sort(key=lambda _: rng.random())
        placements.append(cluster.come(len(placements), event, order))
        full.append(1 - len(cluster.free) / len(tree.hosts))
        paid = ring_cost(tree, [tree.id_of_host[node] for node in placements[-1]])
        total.append(paid.total)
        leaf.append(paid.crossings[0])
    return streams.StreamCost(tuple(total), tuple(leaf), sum(full) / len(full))
