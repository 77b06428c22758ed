"""Pods a second that a real kube-scheduler binds: without an extender, with a no-op one, and with Turnout's.

Pods a second end to end: from the first creation to the last binding, our patches included. Ratios are to "no
extender" of the same repetition, so that a slow hour of the machine hits both. Source: docs/facts/extender.md 1.9
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.throughput.trials import (
    BENCH_FLAGS,
    BOTH,
    NOMINATING,
    NONE,
    NOOP,
    PRIORITIZE,
    Cluster,
    Result,
    Setup,
    gangs,
    singles,
)
from hack.controlplane.plane import ControlPlane

SETUPS = (NONE, NOOP, PRIORITIZE, BOTH, NOMINATING)
WORKLOADS: dict[str, Callable[[int], list[list[dict[str, object]]]]] = {"singles": singles, "gangs of 8": gangs}


@dataclass(frozen=True, slots=True)
class Cell:
    """One place in the matrix. percentage: of nodes to score; None = the scheduler's own sampling."""

    nodes: int
    percentage: int | None
    workload: str
    setup: str

    def key(self) -> str:
        return f"{self.nodes}/{self.percentage or 'default'}/{self.workload}/{self.setup}"


ALONE = "scheduler alone, all nominated"
ALONE_NONE = "scheduler alone, none nominated"


def run(scale: Scale) -> Outcome:
    """Measure. Quick: 1,000 nodes, 500 pods, three configurations, once; else the whole matrix, three times."""
    results = asyncio.run(_measure(scale))
    return _told(results, scale is not Scale.FULL)


def _sizes(scale: Scale) -> list[tuple[int, int, int]]:
    """(nodes, pods, repetitions)"""
    return scale.pick([(256, 504, 3), (1000, 1000, 3), (5000, 800, 3)], [(1000, 500, 1)], [(16, 16, 1)])


async def _measure(scale: Scale) -> dict[Cell, list[Result]]:
    found: dict[Cell, list[Result]] = {}
    for nodes, pods, times in _sizes(scale):
        plane = ControlPlane(apiserver_flags=BENCH_FLAGS).start()
        try:
            cluster = Cluster(plane, nodes)
            await cluster.build()
            for again in range(times):
                for cell, setup in _cells(nodes, scale is not Scale.FULL):
                    result = await _one(cluster, cell, setup, pods)
                    found.setdefault(cell, []).append(result)
                    _progress(cell, again, result)
        finally:
            plane.stop()
    return found


def _cells(nodes: int, quick: bool) -> Iterator[tuple[Cell, Setup | None]]:
    if quick:
        for setup in (NONE, BOTH, NOMINATING):
            yield Cell(nodes, 100, "gangs of 8", setup.name), setup
        return
    for percentage in (100, None):
        for workload in WORKLOADS:
            for setup in SETUPS:
                yield Cell(nodes, percentage, workload, setup.name), setup
    yield Cell(nodes, 100, "singles", ALONE_NONE), None
    yield Cell(nodes, 100, "singles", ALONE), None


async def _one(cluster: Cluster, cell: Cell, setup: Setup | None, pods: int) -> Result:
    made = WORKLOADS[cell.workload](pods)
    if setup is None:
        return await cluster.run_nominated(made, 100, nominate=cell.setup == ALONE)
    return await cluster.run(setup, made, cell.percentage)


def _progress(cell: Cell, again: int, result: Result) -> None:
    cpu = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.cpu_s.items())
    rates = f"{result.rate:.0f} pods/s, {result.middle:.0f} in the middle"
    print(f"{time.strftime('%H:%M:%S')} {cell.key()} #{again + 1}: {rates}; CPU {cpu}", file=sys.stderr, flush=True)


def _ratio(results: dict[Cell, list[Result]], cell: Cell, to: Cell, middle: bool = False) -> float:
    """The median, over the repetitions, of the ratio within each."""
    if cell not in results or to not in results:
        return float("nan")
    pairs = zip(results[cell], results[to], strict=True)
    return median((a.middle / b.middle) if middle else (a.rate / b.rate) for a, b in pairs)


def _told(results: dict[Cell, list[Result]], quick: bool) -> Outcome:
    rows, figures = [], {}
    for cell, found in results.items():
        base = Cell(cell.nodes, cell.percentage, cell.workload, ALONE_NONE if cell.setup == ALONE else NONE.name)
        alone = cell.setup in (ALONE, ALONE_NONE)
        rates = [each.middle if alone else each.rate for each in found]
        ratio = _ratio(results, cell, base, alone)
        figures[f"{cell.key()} pods/s"] = median(rates)
        figures[f"{cell.key()} ratio"] = ratio
        where = f"{cell.nodes} nodes, {cell.percentage or 'default'} %, {cell.workload}"
        spread = f"{min(rates):.0f}..{max(rates):.0f}"
        cpu = ", ".join(
            f"{name.removeprefix('kube-')} {median(r.cpu_s.get(name, 0.0) for r in found):.1f}"
            for name in found[0].cpu_s
        )
        rows.append((where, cell.setup, f"{median(rates):.0f}", spread, f"{ratio:.2f}", cpu))
    columns = ("cluster and load", "configuration", "pods/s", "spread", "to none", "CPU s")
    return Outcome(
        title="throughput: pods a second that a real kube-scheduler binds",
        tables=[Table("median of the repetitions, end to end", columns, rows)],
        figures=figures,
        targets=_targets(results, quick),
        notes=[
            "'scheduler alone' counts the middle 80 % of the bindings, pods created (and nominated) before it starts"
        ],
    )


def _targets(results: dict[Cell, list[Result]], quick: bool) -> list[Target]:
    def cell(nodes: int, setup: str, load: str, percentage: int | None = 100) -> Cell:
        return Cell(nodes, percentage, load, setup)

    def end_to_end(nodes: int, setup: Setup, load: str) -> float:
        return _ratio(results, cell(nodes, setup.name, load), cell(nodes, NONE.name, load))

    if quick:
        return [
            Target("1,000 nodes, gangs: both verbs to none", end_to_end(1000, BOTH, "gangs of 8"), ">=", 0.95),
            Target("1,000 nodes, gangs: nominating to none", end_to_end(1000, NOMINATING, "gangs of 8"), ">=", 1.25),
        ]
    found = []
    for load in WORKLOADS:
        found.append(Target(f"256 nodes, {load}: both verbs to none", end_to_end(256, BOTH, load), ">=", 0.95))
        found.append(Target(f"1,000 nodes, {load}: both verbs to none", end_to_end(1000, BOTH, load), ">=", 0.95))
        found.append(Target(f"5,000 nodes, {load}: both verbs to none", end_to_end(5000, BOTH, load), ">=", 1.2))
    for load, wide in (("gangs of 8", 3.5), ("singles", 3.0)):
        found.append(Target(f"1,000 nodes, {load}: nominating to none", end_to_end(1000, NOMINATING, load), ">=", 1.25))
        found.append(Target(f"5,000 nodes, {load}: nominating to none", end_to_end(5000, NOMINATING, load), ">=", wide))
    sampled = cell(5000, NONE.name, "gangs of 8", None)
    against = _ratio(results, cell(5000, NOMINATING.name, "gangs of 8"), sampled)
    found.append(Target("5,000 nodes, gangs of 8: nominating at 100 % to none at default sampling", against, ">=", 1.0))
    for nodes, least in ((1000, 2.0), (5000, 8.0)):
        alone = _ratio(results, cell(nodes, ALONE, "singles"), cell(nodes, ALONE_NONE, "singles"), middle=True)
        found.append(Target(f"{nodes:,} nodes: scheduler alone, all nominated, to none nominated", alone, ">=", least))
    return found
