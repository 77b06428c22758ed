"""Gangs on a real kube-scheduler that knows no extender: behind our gates, and as it schedules them itself.

The ring crossings are compared with a best fit by level that is computed in memory and knows the whole gang. Both ways
get the same streams in one run. Source: docs/managed-clusters.md
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence

from hack.bench.scheduler import kueue_beside
from hack.bench.scheduler.crowd import measure_waiting_gangs
from hack.bench.scheduler.stream import APART_S, StreamCell, best_fit, events_of, mean, send
from hack.bench.scheduler.takeover import time_takeovers
from hack.bench.support.measure import progress
from hack.bench.support.outcome import Outcome, Scale, Table, Target, combine
from hack.controlplane.tools import cache
from hack.controlplane.tools.parts import NEXT

WAYS = {"default": False, "gates": True}
RELEASES = ("", NEXT)
TAKEOVER_S = 5.0  # within which a replica takes over


def measure(scale: Scale) -> Outcome:
    """Measure our nominator with real schedulers, and Kueue if the environment names its manager.

    Smallest: one seed of 4 gangs. Quick: one seed of 15 gangs. In full: ten seeds of 40 gangs; Kueue runs over the
    first three of them. The crowd has 500 waiting gangs in full, else 20.
    """
    seeds, gangs = scale.pick((tuple(range(1, 11)), 40), ((1,), 15), ((1,), 4))
    cells = [
        _cell(way, spacing, seeds, gangs, release)
        for release in RELEASES
        for spacing in APART_S
        for way in WAYS
        if scale is Scale.FULL or not release or (way, spacing) == ("gates", "together")
    ]
    best_fit_crossings = best_fit(seeds, gangs)
    return combine(
        f"gates, kube-scheduler {' and '.join(dict.fromkeys(cell.kubernetes for cell in cells))}",
        Outcome("streams", [_table(best_fit_crossings, cells, gangs)], list(_targets(best_fit_crossings, cells))),
        kueue_beside.run(os.environ, cells, seeds[: kueue_beside.SEEDS], gangs),
        _measure_crowd(scale.pick(500, 20, 20), scale.pick(10, 1, 1)),
    )


def _cell(way: str, spacing: str, seeds: Sequence[int], gangs: int, release: str) -> StreamCell:
    """Send the streams of all seeds in one way, and return the results.

    way: key of WAYS. spacing: key of APART_S, the time between two pods. gangs: of each stream. release: of Kubernetes,
    "" for the default.
    """
    kubernetes, sent = _version(release), []
    for seed in seeds:
        sent.append(asyncio.run(send(events_of(seed, gangs), seed, APART_S[spacing], WAYS[way], release)))
        progress(f"{kubernetes}, {way}, {spacing}, seed {seed}: {mean(sent[-1].crossings):.3f}")
    return StreamCell(way, spacing, kubernetes, tuple(sent))


def _version(release: str) -> str:
    """Return the version of kube-scheduler of this release, by running it."""
    argv = [str(cache.binary(f"kube-scheduler{release}")), "--version"]
    output = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    return output.split()[-1].removeprefix("v")


def _table(best_fit_crossings: float, cells: Sequence[StreamCell], gangs: int) -> Table:
    """Return the table of all cells.

    best_fit_crossings: mean ring crossings of a gang by best fit in memory. gangs: their number, named in the title.
    """
    columns = {"behind gates: pods, way": "", "crossings a gang": ".3f", "failed": "d", "obeyed": ".4f"}
    columns |= {"bound p50 s": ".3f", "p99 s": ".3f", "patches a pod": ".2f"}
    rows = [
        (f"{cell.kubernetes}, {cell.spacing}, {cell.way}", *(cell.crossings, cell.failed_gangs, cell.obeyed),
         *(cell.bound_s(0.5), cell.bound_s(0.99), cell.patches))
        for cell in cells
    ]  # fmt: skip
    title = f"{gangs} gangs a seed, {len(cells[0].sent)} seeds, 128 nodes"
    return Table(title, columns, [("best fit in memory", best_fit_crossings, *["-"] * 5), *rows])


def _targets(best_fit_crossings: float, cells: Sequence[StreamCell]) -> Iterator[Target]:
    """Yield five targets for each cell whose way is "gates"; other cells have none.

    best_fit_crossings: mean ring crossings of a gang by best fit in memory, not 0.
    """
    for cell in cells:
        if cell.way == "gates":
            where = f"{cell.kubernetes}, {cell.spacing}"
            yield Target(f"{where}: crossings to best fit's in memory", cell.crossings / best_fit_crossings, "<=", 1.02)
            yield Target(f"{where}: gangs that failed", cell.failed_gangs, "<=", 0)
            yield Target(f"{where}: nominations obeyed", cell.obeyed, ">=", 0.999)
            yield Target(f"{where}: last pod created to last bound, p99 s", cell.bound_s(0.99), "<=", 0.25)
            yield Target(f"{where}: patches a pod", cell.patches, "<=", 2.0)


def _measure_crowd(gangs: int, times: int) -> Outcome:
    """Measure a crowd of `gangs` gangs behind gates, and `times` leaders that are killed. Return table and targets."""
    waiting = asyncio.run(measure_waiting_gangs(gangs))
    killed = asyncio.run(time_takeovers(times))
    rows = [
        (f"{waiting.pods:,} gated pods: MiB of the nominator", waiting.mib),
        ("a freed domain is bound again, s", waiting.used_s),
        ("gangs that went out of their order", waiting.out_of_order),
        ("killed leader to all bound, median s", statistics.median(killed)),
        ("killed leader to all bound, the slowest, s", max(killed)),
    ]
    limits = (150, 1.0, 0, None, TAKEOVER_S)
    targets = [
        Target(name, value, "<=", maximum)
        for (name, value), maximum in zip(rows, limits, strict=True)
        if maximum is not None
    ]
    return Outcome("waiting", [Table("gangs that wait behind gates", {"what": "", "": ".2f"}, rows)], targets)
