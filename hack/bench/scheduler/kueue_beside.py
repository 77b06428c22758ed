"""Kueue's manager beside ours on the same streams.

Ours, and default scheduling, are the cells that the benchmark has measured in the same run, over the peer's seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean

from hack.bench.scheduler import kueue
from hack.bench.scheduler.kueue import KueueRelease, MissingKueue
from hack.bench.scheduler.stream import APART_S, StreamCell, best_fit, events_of, mean
from hack.bench.support.measure import progress
from hack.bench.support.outcome import Outcome, Table

SEEDS = 3  # the first of the benchmark's: Kueue takes more than a second for each gang
WAY = "kueue"


def run(environ: Mapping[str, str], ours: Sequence[StreamCell], seeds: Sequence[int], gangs: int) -> Outcome:
    """Measure Kueue if the environment names its manager, and compare it with our cells of the same scheduler.

    seeds, gangs: of the streams. Without the manager, the outcome only has a note.
    """
    peer = kueue.find(environ)
    if isinstance(peer, MissingKueue):
        return Outcome("Kueue", (), notes=[f"Kueue's manager is not run: {peer.reason}."])
    version, peers = _measure_kueue(peer, seeds, gangs, ours[0].kubernetes)
    minimum = [best_fit((seed,), gangs) for seed in seeds]
    note = f"Kueue's manager {version} is run over {len(seeds)} seeds, ours beside it over the same."
    return Outcome("Kueue", [table(version, minimum, cells_beside(ours, peers), gangs)], notes=[note])


def _measure_kueue(
    peer: KueueRelease, seeds: Sequence[int], gangs: int, kubernetes: str
) -> tuple[str, list[StreamCell]]:
    """Send one stream per seed to Kueue, for each distance between arrivals in APART_S.

    Return (Kueue's version, one cell per distance). gangs: per stream, >= 1. kubernetes: version of the scheduler, for
    the cells.
    """
    version, cells = "", []
    for spacing, apart_s in APART_S.items():
        sent = []
        for seed in seeds:
            version, one = asyncio.run(kueue.send(peer, events_of(seed, gangs), seed, apart_s))
            sent.append(one)
            progress(f"Kueue {version}, {spacing}, seed {seed}: {mean(one.crossings):.3f}, {one.failed_gangs} failed")
        cells.append(StreamCell(WAY, spacing, kubernetes, tuple(sent)))
    return version, cells


def cells_beside(ours: Sequence[StreamCell], peers: Sequence[StreamCell]) -> list[StreamCell]:
    """Return, for each cell of a peer (Kueue), first our cells of the same spacing and Kubernetes version, then the
    peer's.

    Our cells are cut to as many seeds as the peer's.
    """
    found = []
    for peer in peers:
        alike = (each for each in ours if (each.spacing, each.kubernetes) == (peer.spacing, peer.kubernetes))
        found += [*(each.with_first_seeds(len(peer.sent)) for each in alike), peer]
    return found


def table(version: str, minimum: Sequence[float], cells: Sequence[StreamCell], gangs: int) -> Table:
    """Return the table of these cells. version: of Kueue. minimum: crossings of best fit in memory, by seed.

    gangs: of each stream, named in the title.
    """
    columns = {"pods, way": "", "crossings a gang": ".3f", "by seed": "", "failed": "d"}
    columns |= {"bound p50 s": ".3f", "p99 s": ".3f", "patches a pod": ".2f"}
    rows = [("best fit in memory", fmean(minimum), _spread(minimum), *["-"] * 4)]
    for cell in cells:
        way = f"Kueue {version}" if cell.way == WAY else cell.way
        by_seed = _spread([mean(one.crossings) for one in cell.sent])
        times = cell.bound_s(0.5), cell.bound_s(0.99)
        rows.append((f"{cell.spacing}, {way}", cell.crossings, by_seed, cell.failed_gangs, *times, cell.patches))
    seeds = f"{len(minimum)} seeds"
    return Table(
        f"Kueue beside: {gangs} gangs a seed, {seeds}, 128 nodes", columns, rows, key=f"Kueue beside, {seeds}:"
    )


def _spread(by_seed: Sequence[float]) -> str:
    return " ".join(f"{each:.3f}" for each in by_seed)
