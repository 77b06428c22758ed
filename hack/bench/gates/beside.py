"""Kueue's manager beside ours on the same streams: what is measured of it, and how the two are shown.

Ours, and default scheduling, are the cells that the benchmark has measured in the same run, over the peer's seeds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hack.bench.gates import kueue
from hack.bench.gates.cells import Cell
from hack.bench.gates.kueue import NotRun, Peer
from hack.bench.gates.stream import APART_S
from hack.bench.placement import baselines, streams
from hack.bench.support.outcome import Table

SEEDS = 3  # the first of the benchmark's: Kueue takes more than a second for each gang
WAY = "kueue"


@dataclass(frozen=True, slots=True)
class Beside:
    """A line about Kueue, and tables and figures where its manager ran."""

    note: str
    tables: tuple[Table, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


def run(environ: Mapping[str, str], ours: Sequence[Cell], seeds: Sequence[int], gangs: int) -> Beside:
    """Measure Kueue where the environment names its manager, with the scheduler of the first of our cells."""
    peer = kueue.find(environ)
    if isinstance(peer, NotRun):
        return Beside(f"Kueue's manager is not run: {peer.reason}.")
    version, peers = _measured(peer, seeds, gangs, ours[0].kubernetes)
    cells, least = cells_beside(ours, peers), [best_fit((seed,), gangs) for seed in seeds]
    note = f"Kueue's manager {version} is run over {len(seeds)} seeds, ours beside it over the same."
    return Beside(note, (table(version, least, cells, gangs),), figures(least, cells))


def _measured(peer: Peer, seeds: Sequence[int], gangs: int, kubernetes: str) -> tuple[str, list[Cell]]:
    """Send the streams to Kueue. Return its version, and a cell for each spacing."""
    version, cells = "", []
    for apart, apart_s in APART_S.items():
        sent = []
        for seed in seeds:
            events = streams.first(streams.committed()[seed], gangs)
            version, one = asyncio.run(kueue.send(peer, events, seed, apart_s))
            sent.append(one)
            crossings = statistics.fmean(one.crossings or [float("nan")])
            line = f"{kubernetes}, Kueue {version}, {apart}, seed {seed}: {crossings:.3f}, {one.failed} failed"
            print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
        cells.append(Cell(WAY, apart, kubernetes, tuple(sent)))
    return version, cells


def best_fit(seeds: Sequence[int], gangs: int) -> float:
    """Compute the crossings a gang of best fit by level in memory, over the same streams."""
    kept, tree = streams.committed(), streams.fabric()
    return statistics.fmean(
        crossed
        for seed in seeds
        for crossed in streams.replay(tree, streams.first(kept[seed], gangs), baselines.best_fit).total
    )


def cells_beside(ours: Sequence[Cell], peers: Sequence[Cell]) -> list[Cell]:
    """Put each spacing of a peer after what the same scheduler's binary did without it, over as many seeds."""
    found = []
    for peer in peers:
        alike = (each for each in ours if (each.apart, each.kubernetes) == (peer.apart, peer.kubernetes))
        found += [*(each.first(len(peer.sent)) for each in alike), peer]
    return found


def figures(least: Sequence[float], cells: Sequence[Cell]) -> dict[str, float]:
    """Name every figure of the comparison by its seeds, way and spacing; least: best fit's crossings, by seed."""
    over = f"seeds 1-{len(cells[0].sent)}"
    found = {f"{over} best_fit crossings": statistics.fmean(least)}
    for cell in cells:
        key = f"{over} {cell.way}/{cell.apart}"
        found |= {
            f"{key} crossings": cell.crossings,
            f"{key} failed": cell.failed,
            f"{key} bound p50 s": cell.bound_s(0.5),
            f"{key} bound p99 s": cell.bound_s(0.99),
            f"{key} patches a pod": cell.patches,
        }
    return found


def table(version: str, least: Sequence[float], cells: Sequence[Cell], gangs: int) -> Table:
    """Show them below each other; least: as in figures."""
    columns = ("pods, way", "crossings a gang", "by seed", "failed", "bound p50 s", "p99 s", "patches a pod")
    rows = [("best fit in memory", f"{statistics.fmean(least):.3f}", _spread(least), *("-",) * 4)]
    for cell in cells:
        times = (f"{cell.bound_s(0.5):.3f}", f"{cell.bound_s(0.99):.3f}")
        by_seed = _spread([cell.of_seed(at) for at in range(len(cell.sent))])
        way = f"Kueue {version}" if cell.way == WAY else cell.way
        told = (f"{cell.crossings:.3f}", by_seed, str(cell.failed), *times, f"{cell.patches:.2f}")
        rows.append((f"{cell.apart}, {way}", *told))
    return Table(f"Kueue beside: {gangs} gangs a seed, {len(cells[0].sent)} seeds, 128 nodes", columns, rows)


def _spread(by_seed: Sequence[float]) -> str:
    return " ".join(f"{each:.3f}" for each in by_seed)
