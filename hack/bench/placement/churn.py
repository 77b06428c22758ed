"""Gangs that come and go on clusters of 128, 1,024 and 8,192 hosts, beside best fit by level and Kueue's rule.

Leaves of 8, 16 and 32 hosts, and as many leaves a spine. A gang takes 2 to 4 leaves' worth of hosts at most, small ones
more often. The next gang comes once the cluster is no fuller than 90 % with it, so every rule meets the same arrivals
and departures. All rules plan in memory, on the same tables of room.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hack.bench.placement import baselines
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.placement.streams import Policy
from hack.bench.support.outcome import Outcome, Table, Target
from turnout.topology.fabric import Fabric, build, ring_cost
from turnout.topology.model import MapEntry, Placement, PlacementRequest
from turnout.topology.place import plan

SEEDS = range(3_001, 3_004)
SIZES = ((8, 4), (16, 8), (32, 16))  # hosts of a leaf, leaves of a spine; there are as many spines as needed
HOSTS = (128, 1_024, 8_192)
GANGS = 1_000
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class _Figures:
    """The means of one rule over all gangs of all seeds."""

    leaf_crossings: float  # edges of a gang's ring that leave a leaf
    spine_crossings: float
    leaves_over_fewest: float  # leaves used over the fewest that would hold the gang in an empty cluster
    median_ms: float  # CPU of one plan
    p99_ms: float


def measure(seeds: Iterable[int], gangs: int, hosts: Sequence[int] = HOSTS) -> Outcome:
    """Replay streams of gangs on clusters of several sizes under each placement rule; return the table and the targets.

    seeds: one stream for each. gangs: number of gangs in a stream. hosts: sizes of the clusters, each one of HOSTS.
    Raises RuntimeError if a rule places a gang wrongly or not at all.
    """
    rules: dict[str, Policy] = {"ours": _ours, "best fit": baselines.best_fit, "Kueue": baselines.kueue}
    rows: list[tuple[str | float, ...]] = []
    targets: list[Target] = []
    for count in hosts:
        found = {name: _run(rule, count, seeds, gangs) for name, rule in rules.items()}
        for name, each in found.items():
            rows.append((f"{count:,} hosts, {name}", each.leaf_crossings, each.spine_crossings,
                         each.leaves_over_fewest, each.median_ms, each.p99_ms))  # fmt: skip
        turnout, kueue = found["ours"], found["Kueue"]
        scene = f"churn on {count:,} hosts"
        leaf = turnout.leaf_crossings / kueue.leaf_crossings
        targets.append(Target(f"{scene}: leaf crossings to Kueue's", leaf, "<=", 1.0))
        spine = turnout.spine_crossings - kueue.spine_crossings  # a difference, since Kueue's may be 0
        targets.append(Target(f"{scene}: spine crossings a gang above Kueue's", spine, "<=", 0.0))
        if count == 1_024:
            cpu = turnout.median_ms / found["best fit"].median_ms
            targets.append(Target(f"{scene}: CPU of a plan to best fit's, medians", cpu, "<=", 2.0))
    columns = {"rule": "", "leaf": ".3f", "spine": ".3f", "leaves/fewest": ".3f", "median ms": ".3f", "p99 ms": ".3f"}
    title = f"{gangs:,} gangs a stream that come and go, at most {_FULL:.0%} taken: ring crossings a gang"
    notes = (
        "A gang of ours takes the spine in which it uses the fewest leaves, Kueue's takes the tightest spine. So ours "
        "has fewer crossings in sum, and more large gangs find no spine that holds them.",
    )
    return Outcome("churn", (Table(title, columns, rows),), targets, notes)


def _ours(tree: Fabric, room: Room, pods: int) -> Hosts | None:
    answer = plan(tree, room, PlacementRequest(pods, pods, pods))
    return [host for host, count in answer.slots for _ in range(count)] if isinstance(answer, Placement) else None


def fabric(hosts: int) -> Fabric:
    """Return a fabric of `hosts` hosts, one of HOSTS. Their names are in another order than the hosts in the fabric."""
    leaf_hosts, leaves = SIZES[HOSTS.index(hosts)]
    names = list(range(hosts))
    random.Random(hosts).shuffle(names)
    return build(
        MapEntry(f"node{name}", (f"spine{at // (leaf_hosts * leaves)}", f"leaf{at // leaf_hosts % leaves}"), at + 1)
        for at, name in enumerate(names)
    )


def _run(rule: Policy, hosts: int, seeds: Iterable[int], gangs: int) -> _Figures:
    """Replay a stream of `gangs` gangs for each seed under one rule, and return the figures of all of them.

    hosts: of the cluster, one of HOSTS. Raises RuntimeError if the rule places a gang wrongly or not at all.
    """
    tree, leaf_hosts = fabric(hosts), SIZES[HOSTS.index(hosts)][0]
    leaf, spine, over, times_ms = [], [], [], []
    for seed in seeds:
        room, running = np.ones(hosts, np.int32), list[tuple[float, int, list[int]]]()
        rng, now, number = random.Random(seed), 0.0, 0
        largest = 4 * leaf_hosts
        weights = [1 / size for size in range(2, largest + 1)]
        while number < gangs:
            (size,) = rng.choices(range(2, largest + 1), weights)
            while hosts - int(room.sum()) + size > _FULL * hosts:
                now, _, released = heapq.heappop(running)
                room[released] += 1
            begun = time.process_time()
            placement = rule(tree, room, size)
            times_ms.append((time.process_time() - begun) * 1e3)
            if placement is None or len(set(placement)) != size or (room[placement] != 1).any():
                raise RuntimeError(f"a rule places a gang of {size} wrongly or not at all")
            room[placement] -= 1
            heapq.heappush(running, (now - math.log(1 - rng.random()), number, placement))
            paid, number = ring_cost(tree, placement), number + 1
            leaf.append(paid.crossings[0])
            spine.append(paid.crossings[1])
            over.append(len({int(tree.switch_of[1][host]) for host in placement}) / -(-size // leaf_hosts))
    return _Figures(
        leaf_crossings=statistics.fmean(leaf),
        spine_crossings=statistics.fmean(spine),
        leaves_over_fewest=statistics.fmean(over),
        median_ms=statistics.median(times_ms),
        p99_ms=float(np.percentile(times_ms, 99)),
    )
