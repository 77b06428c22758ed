"""Gangs on a real kube-scheduler that knows no extender: behind our gates, and as it schedules them itself.

Crossings of a gang's ring are held against best fit by level in memory, which sees each gang whole. Both ways meet the
same streams in one run. Source: docs/managed-clusters.md
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time

from hack.bench.gates import beside
from hack.bench.gates.beside import Beside
from hack.bench.gates.cells import Cell
from hack.bench.gates.crowd import Crowd, crowd
from hack.bench.gates.rates import Rate, rates
from hack.bench.gates.stream import APART_S, send
from hack.bench.gates.takeover import takeovers
from hack.bench.placement import streams
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank
from hack.controlplane.tools import cache
from hack.controlplane.tools.parts import NEXT

GANGS = 40
WAYS = {"default": False, "gates": True}
RELEASES = ("", NEXT)
TAKEOVER_S = 5.0  # within which a replica takes over


def run(scale: Scale) -> Outcome:
    """Measure. Quick: one seed of 15 gangs, 256 nodes; in full: ten seeds of 40 gangs, 1,000 and 5,000 nodes.

    Kueue runs beside where the environment names its manager, over the first three seeds.
    """
    quick = scale is not Scale.FULL
    seeds, gangs = scale.pick((tuple(range(1, 11)), GANGS), ((1,), 15), ((1,), 4))
    least = beside.best_fit(seeds, gangs)
    cells = [
        _cell(way, apart, seeds, gangs, release)
        for release in RELEASES
        for apart in APART_S
        for way in WAYS
        if not (quick and release and (way, apart) != ("gates", "together"))
    ]
    kueue = beside.run(os.environ, cells, seeds[: beside.SEEDS], gangs)
    speed = asyncio.run(rates(scale.pick([(1000, 1000, 3), (5000, 800, 1)], [(256, 256, 1)], [(192, 16, 1)])))
    waiting = asyncio.run(crowd(scale.pick(500, 20, 20)))
    killed = asyncio.run(takeovers(scale.pick(10, 1, 1)))
    return _told(least, cells, kueue, speed, waiting, killed, gangs)


def _events(seed: int, gangs: int) -> list[int]:
    return streams.first(streams.committed()[seed], gangs)


def _cell(way: str, apart: str, seeds: tuple[int, ...], gangs: int, release: str) -> Cell:
    kubernetes, sent = _version(release), []
    for seed in seeds:
        sent.append(asyncio.run(send(_events(seed, gangs), seed, APART_S[apart], WAYS[way], release)))
        crossings = statistics.fmean(sent[-1].crossings or [float("nan")])
        print(
            f"{time.strftime('%H:%M:%S')} {kubernetes}, {way}, {apart}, seed {seed}: {crossings:.3f}",
            file=sys.stderr,
            flush=True,
        )
    return Cell(way, apart, kubernetes, tuple(sent))


def _version(release: str) -> str:
    """Ask a kube-scheduler for its version."""
    argv = [str(cache.binary(f"kube-scheduler{release}")), "--version"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    return said.split()[-1].removeprefix("v")


def _told(
    least: float,
    cells: list[Cell],
    kueue: Beside,
    speed: list[Rate],
    waiting: Crowd,
    killed: list[float],
    gangs: int,
) -> Outcome:
    figures, targets = _of_streams(least, cells)
    figures |= kueue.figures
    for rate in speed:
        late = nearest_rank(rate.bound_s, 0.99)
        figures |= {f"{rate.nodes} nodes {way} pods/s": value for way, value in rate.pods_s.items()}
        figures |= {f"{rate.nodes} nodes ratio": rate.ratio, f"{rate.nodes} nodes ratio to every node": rate.to_every}
        figures[f"{rate.nodes} nodes bound p99 s"] = late
        targets += _speed_targets(rate, late)
    figures |= {"waiting pods": waiting.pods, "waiting MiB": waiting.mib, "freed domain bound s": waiting.used_s}
    figures |= {"killed leader to all bound, median s": statistics.median(killed)}
    targets += [
        Target(f"{waiting.pods:,} gated pods: MiB of the nominator", waiting.mib, "<=", 150),
        Target("a freed domain is bound again, s", waiting.used_s, "<=", 1.0),
        Target("gangs that went out of their order", waiting.out_of_order, "<=", 0),
        Target("killed leader to all bound, the slowest, s", max(killed), "<=", TAKEOVER_S),
    ]
    versions = list(dict.fromkeys(cell.kubernetes for cell in cells))
    return Outcome(
        title=f"gates: gangs on a kube-scheduler {' and '.join(versions)} that knows no extender",
        tables=(_stream_table(least, cells, gangs), *kueue.tables, _rate_table(speed)),
        figures=figures,
        targets=targets,
        notes=(f"Rates, the crowd and takeovers: {versions[0]}.", kueue.note),
    )


def _of_streams(least: float, cells: list[Cell]) -> tuple[dict[str, float], list[Target]]:
    figures = {"best_fit": least}
    targets: list[Target] = []
    for cell in cells:
        key = f"{cell.kubernetes} {cell.way}/{cell.apart}"
        where = f"{cell.kubernetes}, {cell.apart}"
        figures |= {
            f"{key} crossings": cell.crossings,
            f"{key} failed": cell.failed,
            f"{key} bound p50 s": cell.bound_s(0.5),
            f"{key} bound p99 s": cell.bound_s(0.99),
            f"{key} obeyed": cell.obeyed,
            f"{key} patches a pod": cell.patches,
        }
        if cell.way == "gates":
            targets += [
                Target(f"{where}: crossings to best fit's in memory", cell.crossings / least, "<=", 1.02),
                Target(f"{where}: gangs that failed", cell.failed, "<=", 0),
                Target(f"{where}: nominations obeyed", cell.obeyed, ">=", 0.999),
                Target(f"{where}: last pod created to last bound, p99 s", cell.bound_s(0.99), "<=", 0.25),
                Target(f"{where}: patches a pod", cell.patches, "<=", 2.0),
            ]
    return figures, targets


def _speed_targets(rate: Rate, late_s: float) -> list[Target]:
    where = f"{rate.nodes:,} nodes"
    return [
        Target(f"{where}: last pod created to last bound, p99 s", late_s, "<=", 0.5),
        Target(f"{where}: pods/s to default scheduling's", rate.ratio, ">=", 2.0 if rate.nodes >= 5000 else 1.0),
    ]


def _stream_table(least: float, cells: list[Cell], gangs: int) -> Table:
    columns = ("pods, way", "crossings a gang", "failed", "obeyed", "bound p50 s", "p99 s", "patches a pod")
    rows = [("best fit in memory", f"{least:.3f}", "-", "-", "-", "-", "-")]
    for cell in cells:
        times = (f"{cell.bound_s(0.5):.3f}", f"{cell.bound_s(0.99):.3f}")
        told = (f"{cell.crossings:.3f}", str(cell.failed), f"{cell.obeyed:.4f}", *times, f"{cell.patches:.2f}")
        rows.append((f"{cell.kubernetes}, {cell.apart}, {cell.way}", *told))
    return Table(f"{gangs} gangs a seed, {len(cells[0].sent)} seeds, 128 nodes", columns, rows)


def _rate_table(speed: list[Rate]) -> Table:
    rows = [
        (
            f"{rate.nodes:,} nodes",
            *(f"{each:.0f}" for each in rate.pods_s.values()),
            f"{rate.ratio:.2f}",
            f"{rate.to_every:.2f}",
            f"{nearest_rank(rate.bound_s, 0.99):.3f}",
        )
        for rate in speed
    ]
    columns = ("", *speed[0].pods_s, "to default", "to every node", "a gang alone, p99 s")
    return Table("pods/s from the first creation to the last binding, median", columns, rows)
