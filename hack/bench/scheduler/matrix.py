"""Pods a second that a real kube-scheduler binds: without an extender, with a no-op one, with Turnout's, behind gates.

Pods a second end to end: from the first creation to the last binding, our patches included. Ratios are to "no
extender" of the same repetition, so that a slow hour of the machine hits both. Source: docs/facts/extender.md 1.9
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median

from hack.bench.scheduler.cluster import UNLIMITED, pod, start_nominator
from hack.bench.scheduler.stream import create_gang, warm
from hack.bench.scheduler.throughput import (
    BOTH,
    GATES,
    NOMINATING,
    NONE,
    NOOP,
    PRIORITIZE,
    Cluster,
    SchedulerSetup,
    ThroughputResult,
    gangs,
    singles,
)
from hack.bench.support.measure import middle_ratio, progress
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank
from hack.controlplane.plane import ControlPlane

SETUPS = (NONE, NOOP, PRIORITIZE, BOTH, NOMINATING)
WORKLOADS = {"singles": singles, "gangs of 8": gangs}
ALONE = SchedulerSetup("scheduler alone, all nominated", nominate=True)
ALONE_NONE = SchedulerSetup("scheduler alone, none nominated")
AT_ONCE, SIZE = 20, 8  # gangs of whole nodes that come one by one


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One place in the matrix."""

    nodes: int
    percentage: int | None  # of nodes to score; None for the scheduler's own sampling
    workload: str
    setup: SchedulerSetup

    @property
    def name(self) -> str:
        """The name of the cell's row."""
        return f"{self.nodes:,} nodes, {self.percentage or 'default'} %, {self.workload}: {self.setup.name}"


Results = Mapping[MatrixCell, Sequence[ThroughputResult]]


def measure(scale: Scale) -> Outcome:
    """Measure the throughput of kube-scheduler in several setups; return tables and targets.

    Quick: 1,000 nodes, 500 pods, five configurations, once; else the whole matrix, three times.
    """
    sizes = scale.pick([(256, 504, 3), (1000, 1000, 3), (5000, 800, 3)], [(1000, 500, 1)], [(16, 16, 1)])
    results, bound_s = asyncio.run(_measure_sizes(sizes, scale is Scale.FULL))
    every = {
        f"{nodes:,} nodes: gates to scoring every node": _ratio(
            results, cell, MatrixCell(nodes, 100, "gangs of 8", NONE)
        )
        for nodes, cell in ((cell.nodes, cell) for cell in results if cell.setup is GATES)
    }
    return Outcome(
        "throughput",
        [_table(results), _alone_table(bound_s)],
        [*_targets(results, scale is Scale.FULL), *_gate_targets(results, bound_s)],
        ["'scheduler alone' counts the middle 80 % of the bindings, pods created (and nominated) before it starts."],
        more=every,
    )


async def _measure_sizes(
    sizes: Sequence[tuple[int, int, int]], full: bool
) -> tuple[dict[MatrixCell, list[ThroughputResult]], dict[int, list[float]]]:
    """Measure all cells of each size. Return the results by cell, and for each number of nodes the seconds of the gangs
    that were sent one by one.

    sizes: (nodes, pods, repetitions). full: the whole matrix.
    """
    found: dict[MatrixCell, list[ThroughputResult]] = {}
    bound_s: dict[int, list[float]] = {}
    for nodes, pods, times in sizes:
        plane = ControlPlane(apiserver_flags=UNLIMITED).start()
        try:
            cluster = Cluster(plane, nodes)
            await cluster.build()
            for turn, cell in product(range(times), list(_cells(nodes, full))):
                result = await _run_cell(cluster, cell, pods)
                found.setdefault(cell, []).append(result)
                progress(f"{cell.name} #{turn + 1}: {result.rate:.0f} pods/s, {result.middle:.0f} in the middle")
            if nodes >= 1000 or not full:
                bound_s[nodes] = await _time_single_gangs(plane, min(AT_ONCE, nodes // SIZE))
        finally:
            plane.stop()
    return found, bound_s


def _cells(nodes: int, full: bool) -> Iterator[MatrixCell]:
    """Yield the cells of one number of nodes. full: the whole matrix."""
    if full:
        for percentage, workload, setup in product((100, None), WORKLOADS, SETUPS):
            yield MatrixCell(nodes, percentage, workload, setup)
        for setup in (ALONE_NONE, ALONE):
            yield MatrixCell(nodes, 100, "singles", setup)
    else:
        for percentage, setup in ((100, NONE), (100, BOTH), (100, NOMINATING), (None, NONE)):
            yield MatrixCell(nodes, percentage, "gangs of 8", setup)
    if nodes >= 1000 or not full:
        yield MatrixCell(nodes, None, "gangs of 8", GATES)


async def _run_cell(cluster: Cluster, cell: MatrixCell, pods: int) -> ThroughputResult:
    """Run one cell once with `pods` pods. Return the result."""
    pods_ = WORKLOADS[cell.workload](pods, cell.setup.gates)
    if cell.setup in (ALONE, ALONE_NONE):
        return await cluster.run_nominated(pods_, 100, nominate=cell.setup.nominate)
    return await cluster.run(cell.setup, pods_, cell.percentage)


async def _time_single_gangs(plane: ControlPlane, count: int) -> list[float]:
    """Create `count` gangs of eight whole nodes behind gates, each when the gang before it is bound.

    Returns the seconds of each, from the creation of its last pod until all its pods are bound.
    """
    plane.start_scheduler()
    start_nominator(plane, "--gates")
    async with plane.api() as api:
        await warm(api, gated=True)
        rng, gated = random.Random(1), partial(pod, gated=True)
        return [(await create_gang(api, f"alone-{at}", SIZE, rng, 0.0, gated))[1] for at in range(count)]


def _ratio(results: Results, cell: MatrixCell, to: MatrixCell) -> float:
    """Return the median over the repetitions of the rate of `cell` divided by the rate of `to` in the same repetition;
    NaN if one of them was not measured.

    If `cell` is of the setup ALONE, both rates are those of the middle bindings.
    """
    if cell not in results or to not in results:
        return float("nan")
    return middle_ratio(
        *([each.middle if cell.setup is ALONE else each.rate for each in results[one]] for one in (cell, to))
    )


def _base(cell: MatrixCell) -> MatrixCell:
    return MatrixCell(cell.nodes, cell.percentage, cell.workload, ALONE_NONE if cell.setup is ALONE else NONE)


def _table(results: Results) -> Table:
    """Return the table of all cells: median rate in pods/s, its ratio to the cell without an extender, and CPU time.

    The spread is the lowest and the highest rate.
    """
    rows = []
    for cell, found in results.items():
        rates = [each.middle if cell.setup in (ALONE, ALONE_NONE) else each.rate for each in found]
        cpu = ", ".join(
            f"{name.removeprefix('kube-')} {median(each.cpu_s.get(name, 0.0) for each in found):.1f}"
            for name in found[0].cpu_s
        )
        spread = f"{min(rates):.0f}..{max(rates):.0f}"
        rows.append((cell.name, median(rates), spread, _ratio(results, cell, _base(cell)), cpu))
    columns = {"cluster and load: configuration": "", "pods/s": ".0f", "spread": "", "to none": ".2f", "CPU s": ""}
    return Table("pods/s from the first creation to the last binding, median of the repetitions", columns, rows)


def _alone_table(bound_s: Mapping[int, Sequence[float]]) -> Table:
    rows = [(f"{nodes:,} nodes", len(times), nearest_rank(times, 0.99)) for nodes, times in bound_s.items()]
    columns = {"gangs of 8 whole nodes behind gates, one by one": "", "gangs": "d", "p99 s": ".3f"}
    return Table("from the last pod created to the last one bound", columns, rows)


def _targets(results: Results, full: bool) -> Iterator[Target]:
    """Yield the targets of throughput. full: yield also those of cells that only the whole matrix has."""

    def to_none(nodes: int, setup: SchedulerSetup, load: str) -> float:
        return _ratio(results, MatrixCell(nodes, 100, load, setup), MatrixCell(nodes, 100, load, NONE))

    if not full:
        for setup, words, minimum in ((BOTH, "both verbs", 0.95), (NOMINATING, "nominating", 1.25)):
            yield Target(f"1,000 nodes, gangs: {words} to none", to_none(1000, setup, "gangs of 8"), ">=", minimum)
        return
    for load, (nodes, minimum) in product(WORKLOADS, ((256, 0.95), (1000, 0.95), (5000, 1.2))):
        yield Target(f"{nodes:,} nodes, {load}: both verbs to none", to_none(nodes, BOTH, load), ">=", minimum)
    for load, wide in (("gangs of 8", 3.5), ("singles", 3.0)):
        for nodes, minimum in ((1000, 1.25), (5000, wide)):
            yield Target(
                f"{nodes:,} nodes, {load}: nominating to none", to_none(nodes, NOMINATING, load), ">=", minimum
            )
    against = _ratio(
        results, MatrixCell(5000, 100, "gangs of 8", NOMINATING), MatrixCell(5000, None, "gangs of 8", NONE)
    )
    yield Target("5,000 nodes, gangs of 8: nominating at 100 % to none at default sampling", against, ">=", 1.0)
    for nodes, minimum in ((1000, 2.0), (5000, 8.0)):
        ratio = _ratio(results, *(MatrixCell(nodes, 100, "singles", setup) for setup in (ALONE, ALONE_NONE)))
        yield Target(f"{nodes:,} nodes: scheduler alone, all nominated, to none nominated", ratio, ">=", minimum)


def _gate_targets(results: Results, bound_s: Mapping[int, Sequence[float]]) -> Iterator[Target]:
    """Yield the targets for gangs behind scheduling gates.

    bound_s: by number of nodes, the seconds from the creation of each gang's last pod until its last pod was bound.
    """
    for nodes, times in bound_s.items():
        where = f"{nodes:,} nodes behind gates"
        cell = MatrixCell(nodes, None, "gangs of 8", GATES)
        minimum = 2.0 if nodes >= 5000 else 1.0
        yield Target(f"{where}: last pod created to last bound, p99 s", nearest_rank(times, 0.99), "<=", 0.5)
        yield Target(f"{where}: pods/s to default scheduling's", _ratio(results, cell, _base(cell)), ">=", minimum)
