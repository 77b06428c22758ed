"""Streams of gangs on a real kube-scheduler that asks our extender, held against best fit in memory.

Each gang's pods are created together or some milliseconds apart, in the order of their ranks or shuffled, as no job
controller promises an order; the next gang comes when all are bound.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from statistics import fmean

from hack.bench.placement import baselines, streams
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.scheduler.stream import APART_S, events_of, send
from hack.bench.support.measure import progress
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.topology.fabric import Fabric, ring_cost

ORDERS = {"in order": False, "shuffled": True}
_ROOM = 8  # nodes of a leaf
COLUMNS = {
    "pods": "",
    "best fit": ".3f",
    "ours": ".3f",
    "leaves to fewest, best fit": ".3f",  # leaves used / the fewest that could hold the gang
    "leaves to fewest, ours": ".3f",
    "wider than its span": "d",  # gangs whose ring crosses switches more often than it must
    "failed": "d",
}


def measure(scale: Scale) -> Outcome:
    """Send the first gangs of the placement streams through a real scheduler, in several orders of pods, and return the
    table and the targets.

    Unless the scale is full: one seed, fewer gangs, and the shuffled order alone.
    """
    seeds, gangs = scale.pick((tuple(streams.SEEDS)[:10], 40), ((1,), 10), ((1,), 4))
    ways = [(spacing, order) for spacing in APART_S for order in ORDERS if scale is Scale.FULL or ORDERS[order]]
    rows = [_measure_row(seeds, gangs, spacing, order) for spacing, order in ways]
    _, fit, ours, fit_leaves, leaves, wider, failed = zip(*rows, strict=True)
    return Outcome(
        "streams that ask us",
        [Table(f"ring crossings a gang, {gangs} gangs, {len(seeds)} seeds, the scheduler asks us", COLUMNS, rows)],
        [
            Target("crossings to best fit's in memory, worst way", _worst(ours, fit), "<=", 1.02),
            Target("leaves to best fit's, worst way", _worst(leaves, fit_leaves), "<=", 1.01),
            Target("gangs whose ring crosses more than it spans", sum(wider), "<=", 0),
            Target("gangs that failed", sum(failed), "<=", 0),
        ],
    )


def _worst(ours: Sequence[float], base: Sequence[float]) -> float:
    """Return the largest ratio of our value to the base value. ours, base: in the same order, at least one each."""
    return max(one / other for one, other in zip(ours, base, strict=True))


def _measure_row(
    seeds: Sequence[int], gangs: int, spacing: str, order: str
) -> tuple[str, float, float, float, float, int, int]:
    """Send every seed's stream through kube-scheduler with our extender, and through best fit in memory. Return a row
    of the table.

    gangs: number of gangs of a stream. spacing: key of APART_S, the time between two pods. order: key of ORDERS. The
    row has the order of COLUMNS, after its name: means over all gangs of the ring crossings (best fit, ours) and of the
    leaves used divided by the fewest that could hold the gang (best fit, ours); then the number of our gangs whose ring
    crosses switches more often than it must, and the number of our gangs that were not bound in time.
    """
    tree = streams.fabric()
    crossings, of_best = list[int](), list[int]()
    hosts, hosts_of_best = list[Sequence[int]](), list[Sequence[int]]()
    failed = 0

    def best_fit(fabric: Fabric, room: Room, pods: int) -> Hosts | None:
        found = baselines.best_fit(fabric, room, pods)
        hosts_of_best.append(list(found or ()))
        return found

    for seed in seeds:
        progress(f"{spacing}, {order}: seed {seed}")
        events = events_of(seed, gangs)
        sent = asyncio.run(
            send(events, seed if ORDERS[order] else None, APART_S[spacing], gated=False, with_extender=True)
        )
        of_best += streams.replay(tree, events, best_fit).total
        crossings += sent.crossings
        hosts += sent.hosts
        failed += sent.failed_gangs
    best, ours = (fmean(_leaf_ratio(tree, each) for each in some) for some in (hosts_of_best, hosts))
    wider = sum(_is_wider(tree, each) for each in hosts)
    return f"{spacing}, {order}", fmean(of_best), fmean(crossings), best, ours, wider, failed


def _leaf_ratio(tree: Fabric, hosts: Sequence[int]) -> float:
    """Return the number of leaves that the hosts use, divided by the smallest number that can hold as many hosts."""
    return len({int(tree.switch_of[1][host]) for host in hosts}) / math.ceil(len(hosts) / _ROOM)


def _is_wider(tree: Fabric, hosts: Sequence[int]) -> bool:
    """Return True if a ring over the hosts crosses switches of some tier more often than their number requires."""
    paid = ring_cost(tree, hosts)
    return any(crossed > (used if used > 1 else 0) for crossed, used in zip(paid.crossings, paid.switches, strict=True))
