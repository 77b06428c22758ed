"""Streams of gangs on a real kube-scheduler that asks our extender, held against best fit in memory.

Each gang's pods are created together or some milliseconds apart, in the order of their ranks or shuffled, as no job
controller promises an order; the next gang comes when all are bound.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hack.bench.gates.stream import APART_S, send
from hack.bench.placement import baselines, streams
from hack.bench.placement.baselines import Hosts, Room
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.topology.distance import cost
from turnout.topology.fabric import Fabric

ORDERS = {"in order": False, "shuffled": True}
_ROOM = 8  # nodes of a leaf


@dataclass(frozen=True, slots=True)
class Row:
    """One way to create pods: what best fit pays in memory, and what was paid, a gang.

    leaves: used over the fewest that could hold the gang. wider: gangs whose ring crosses more than it spans.
    """

    way: str
    best_fit: float
    paid: float
    best_fit_leaves: float
    leaves: float
    wider: int
    failed: int


def run(scale: Scale) -> Outcome:
    """Send the first gangs of the streams through real schedulers; unless in full: one seed, fewer gangs, shuffled."""
    seeds, gangs = scale.pick((tuple(streams.SEEDS)[:10], 40), ((1,), 10), ((1,), 4))
    ways = [(apart, order) for apart in APART_S for order in ORDERS if scale is Scale.FULL or ORDERS[order]]
    rows = [_measured(seeds, gangs, apart, order) for apart, order in ways]
    lines = [
        (row.way, f"{row.best_fit:.3f}", f"{row.paid:.3f}", f"{row.best_fit_leaves:.3f}", f"{row.leaves:.3f}",
         str(row.wider), str(row.failed))
        for row in rows
    ]  # fmt: skip
    columns = ("pods", "best fit", "ours", "leaves to fewest: best fit", "ours", "wider than its span", "failed")
    title = f"ring crossings a gang, {gangs} gangs, {len(seeds)} seeds"
    return Outcome(
        title="stream: gangs on a real kube-scheduler that asks us",
        tables=(Table(title, columns, lines),),
        figures={f"{row.way}: {name}": getattr(row, name) for row in rows
                 for name in ("best_fit", "paid", "best_fit_leaves", "leaves", "wider", "failed")},
        targets=(
            Target("crossings to best fit's in memory, worst way", max(r.paid / r.best_fit for r in rows), "<=", 1.02),
            Target("leaves to best fit's, worst way", max(r.leaves / r.best_fit_leaves for r in rows), "<=", 1.01),
            Target("gangs whose ring crosses more than it spans", sum(row.wider for row in rows), "<=", 0),
            Target("gangs that failed", sum(row.failed for row in rows), "<=", 0),
        ),
    )  # fmt: skip


def _measured(seeds: Sequence[int], gangs: int, apart: str, order: str) -> Row:
    """Send every seed's stream with pods created in one way."""
    tree = streams.fabric()
    crossings: list[int] = []
    of_best: list[int] = []
    leaves: list[float] = []
    leaves_of_best: list[float] = []
    wider = failed = 0
    for seed in seeds:
        print(f"{apart}, {order}: seed {seed}", file=sys.stderr, flush=True)
        events = streams.first(streams.committed()[seed], gangs)
        sent = asyncio.run(send(events, seed if ORDERS[order] else None, APART_S[apart], gated=False, asks=True))
        best: list[Hosts] = []

        def best_fit(fabric: Fabric, room: Room, pods: int, best: list[Hosts] = best) -> Hosts | None:
            hosts = baselines.best_fit(fabric, room, pods)
            best.append(list(hosts or ()))
            return hosts

        of_best += streams.replay(tree, events, best_fit).total
        leaves_of_best += [_over_fewest(tree, hosts) for hosts in best]
        crossings += sent.crossings
        leaves += [_over_fewest(tree, hosts) for hosts in sent.hosts]
        wider += sum(_is_wider(tree, hosts) for hosts in sent.hosts)
        failed += sent.failed
    return Row(
        f"{apart}, {order}",
        statistics.fmean(of_best),
        statistics.fmean(crossings),
        statistics.fmean(leaves_of_best),
        statistics.fmean(leaves),
        wider,
        failed,
    )


def _over_fewest(tree: Fabric, hosts: Sequence[int]) -> float:
    """Return how many leaves some hosts are under, over the fewest that could have held as many."""
    return len({int(tree.switch_of[1][host]) for host in hosts}) / math.ceil(len(hosts) / _ROOM)


def _is_wider(tree: Fabric, hosts: Sequence[int]) -> bool:
    """True if a ring leaves switches of some tier more often than a ring over as many of them must."""
    paid = cost(tree, hosts)
    return any(crossed > (used if used > 1 else 0) for crossed, used in zip(paid.crossings, paid.switches, strict=True))
