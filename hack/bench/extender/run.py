"""How fast the extender answers: a stream of new gangs against a cluster that changes, at three sizes.

ours runs as it is shipped, in a process of its own, against the simulator's API; beside it the same server with
nothing to say answers the same bodies. handler = decode, plan and encode in the server; loopback = as the caller
sees it.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence

from hack.bench.extender.stream import Measured, Run, Size, Timed, measure
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import rank_above

FULL = (Size(500, 2_000, 5, 1200), Size(5_000, 20_000, 5, 1200), Size(50_000, 20_000, 5, 400))
QUICK = (Size(500, 2_000, 1, 300), Size(5_000, 20_000, 3, 300), Size(50_000, 20_000, 1, 100))
COLUMNS = ("names", "server", "handler p50", "handler p99", "loopback p50", "loopback p99", "first of gang p50", "p99")
SMALLEST = (Size(64, 128, 1, 40), Size(96, 192, 1, 40), Size(128, 256, 1, 40))


def run(scale: Scale) -> Outcome:
    """Measure every size, smallest first."""
    measured = [measure(size) for size in scale.pick(FULL, QUICK, SMALLEST)]
    figures = {key: value for one in measured for key, value in _figures(one)}
    rows = [row for one in measured for row in _rows(one, figures)]
    memory = [
        (f"{one.size.nodes:,}", f"{one.size.pods:,}", f"{one.rss_mib:.0f}", f"{one.peak_mib:.0f}", f"{one.start_s:.1f}")
        for one in measured
    ]
    tables = (
        Table("milliseconds, median of the runs", COLUMNS, rows),
        Table("the extender's process", ("nodes", "pods", "MiB", "peak MiB", "s to ready"), memory),
    )
    return Outcome("extender: time to answer", tables, figures, _targets(figures, measured), _notes(measured))


def _figures(one: Measured) -> Iterator[tuple[str, float]]:
    names = one.size.nodes
    for who, of, ends in (("ours", _ours, ENDS), ("noop", _noop, ENDS[:2])):
        for end, times in ends:
            series = [times(of(run)) for run in one.runs]
            for share in (50, 99):
                value = statistics.median(rank_above(seconds, share / 100) for seconds in series)
                yield f"{who}_{end}_p{share}_ms_{names}", value * 1e3
    for end, times in ENDS[:2]:
        ratios = [rank_above(times(run.ours), 0.5) / rank_above(times(run.noop), 0.5) for run in one.runs]
        yield f"{end}_p50_ratio_{names}", statistics.median(ratios)
    yield f"rss_mib_{names}", one.rss_mib
    yield f"peak_mib_{names}", one.peak_mib
    yield f"ready_s_{names}", one.start_s
    yield f"gangs_placed_{names}", sum(run.placed for run in one.runs)
    yield f"gangs_refused_{names}", sum(run.refused for run in one.runs)


def _ours(run: Run) -> Timed:
    return run.ours


def _noop(run: Run) -> Timed:
    return run.noop


def _handler(timed: Timed) -> Sequence[float]:
    return timed.handler_s


def _loopback(timed: Timed) -> Sequence[float]:
    return timed.loopback_s


def _first(timed: Timed) -> Sequence[float]:
    return [timed.handler_s[at] for at in timed.first]


ENDS: tuple[tuple[str, Callable[[Timed], Sequence[float]]], ...] = (
    ("handler", _handler),
    ("loopback", _loopback),
    ("first", _first),
)


def _rows(one: Measured, figures: dict[str, float]) -> Iterator[tuple[str, ...]]:
    for who in ("ours", "noop"):
        ends = [
            f"{figures[f'{who}_{end}_p{share}_ms_{one.size.nodes}']:.2f}"
            for end in ("handler", "loopback", "first")
            for share in (50, 99)
            if who == "ours" or end != "first"
        ]
        yield (f"{one.size.nodes:,}", who, *ends, *[""] * (6 - len(ends)))


def _targets(figures: dict[str, float], measured: Sequence[Measured]) -> tuple[Target, ...]:
    """Give what docs/extender.md promises, of the middle and the largest size."""
    _, middle, large = (one.size for one in measured)
    names = f"{middle.nodes:,} names"
    return (
        Target(f"handler p99 at {names}, ms", figures[f"ours_handler_p99_ms_{middle.nodes}"], "<=", 10),
        Target(f"handler p99 at {large.nodes:,} names, ms", figures[f"ours_handler_p99_ms_{large.nodes}"], "<=", 50),
        Target(f"p50 beside the no-op server at {names}", figures[f"loopback_p50_ratio_{middle.nodes}"], "<=", 2),
        Target(
            f"MiB at {middle.nodes:,} nodes and {middle.pods:,} pods", figures[f"rss_mib_{middle.nodes}"], "<=", 250
        ),
    )


def _notes(measured: Sequence[Measured]) -> tuple[str, ...]:
    counts = ", ".join(
        f"{one.size.nodes:,}: {one.size.runs} runs of {len(one.runs[0].ours.loopback_s)} requests, "
        f"{sum(r.placed for r in one.runs)} gangs placed and {sum(r.refused for r in one.runs)} refused"
        for one in measured
    )
    return (
        f"{counts}.",
        f"Load of the machine over the last 1, 5 and 15 minutes: {', '.join(f'{n:.1f}' for n in os.getloadavg())} on "
        f"{os.cpu_count()} cores. Times are by the wall clock: what others take from the cores is in them.",
        "Every gang is new, names rotate, the watch brings 200 events/s beside the gangs' own; filter and prioritize "
        "are both asked for every pod. MiB is the most seen after any run, peak the kernel's high-water mark.",
    )
