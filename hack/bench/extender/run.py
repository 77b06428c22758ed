"""How fast the extender answers: a stream of new gangs against a cluster that changes, at three sizes.

ours runs as it is shipped, in a process of its own, against the simulator's API; beside it the same server with
nothing to say answers the same bodies. handler = decode, plan and encode in the server; loopback = as the caller
sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hack.bench.extender import large_gang
from hack.bench.extender.large_gang import LargeGang
from hack.bench.extender.stream import SizeResult, StreamSize, measure
from hack.bench.support.measure import load_note, middle, middle_ratio
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank

FULL = (StreamSize(500, 2_000, 5, 1200), StreamSize(5_000, 20_000, 5, 1200), StreamSize(50_000, 20_000, 5, 400))
QUICK = (StreamSize(500, 2_000, 1, 300), StreamSize(5_000, 20_000, 3, 300), StreamSize(50_000, 20_000, 1, 100))
ENDS = ("handler", "loopback", "first of gang")
COLUMNS = {"names, server": "", **{f"{end} {share}": ".2f" for end in ENDS for share in ("p50", "p99")}}
LARGE_GANGS = (1_000, 10_000)  # pods
SMALLEST = (StreamSize(64, 128, 1, 40), StreamSize(96, 192, 1, 40), StreamSize(128, 256, 1, 40))


def run(scale: Scale) -> Outcome:
    """Measure every size of the scale, smallest first, and return the tables and the targets."""
    measured = [measure(size) for size in scale.pick(FULL, QUICK, SMALLEST)]
    large = [
        large_gang.measure(pods, scale.pick(200, 50, 8)) for pods in scale.pick(LARGE_GANGS, LARGE_GANGS, (64, 256))
    ]
    memory = [(f"{one.size.nodes:,}", one.size.pods, one.rss_mib, one.peak_mib, one.start_s) for one in measured]
    columns = {"the extender's process, nodes": "", "pods": ",d", "MiB": ".0f", "peak MiB": ".0f", "s to ready": ".1f"}
    tables = [
        Table("milliseconds, median of the runs", COLUMNS, [row for one in measured for row in _rows(one)]),
        Table("memory and start", columns, memory),
        Table("milliseconds of planning, one large gang", large_gang.COLUMNS, [one.row() for one in large]),
    ]
    return Outcome(
        "extender: time to answer", tables, [*_targets(measured), *_large_targets(large[-1])], _notes(measured)
    )


def _ms(one: SizeResult, who: str, end: str, share: float) -> float:
    """Return the median, over the runs, of a percentile of one server's times in ms; NaN without times.

    who: field of the run, "ours" or "noop". end: where the time was taken: "loopback", "handler" or "first of gang".
    share: the percentile, 0 to 1.
    """
    timed = [getattr(run, who) for run in one.runs]
    if end == "first of gang":
        series = [[each.handler_s[at] for at in each.gang_starts] for each in timed]
    else:
        series = [getattr(each, f"{end}_s") for each in timed]
    return middle(nearest_rank(seconds, share) * 1e3 for seconds in series)


def _rows(one: SizeResult) -> Iterator[tuple[object, ...]]:
    for who in ("ours", "noop"):
        ms = [_ms(one, who, end, share) for end in ENDS for share in (0.5, 0.99)]
        yield f"{one.size.nodes:,} names, {who}", *ms


def _targets(measured: Sequence[SizeResult]) -> Iterator[Target]:
    """Yield the targets that docs/extender.md promises, for the middle and the largest size."""
    for one, most_ms in zip(measured[1:], (10, 50), strict=True):
        yield Target(f"handler p99 at {one.size.nodes:,} names, ms", _ms(one, "ours", "handler", 0.99), "<=", most_ms)
    one = measured[1]
    ours, noop = ([nearest_rank(getattr(run, who).loopback_s, 0.5) for run in one.runs] for who in ("ours", "noop"))
    yield Target(f"p50 beside the no-op server at {one.size.nodes:,} names", middle_ratio(ours, noop), "<=", 2)
    yield Target(f"MiB at {one.size.nodes:,} nodes and {one.size.pods:,} pods", one.rss_mib, "<=", 250)


def _large_targets(one: LargeGang) -> Iterator[Target]:
    """Yield the targets that docs/extender.md promises for questions while a large gang is planned."""
    yield Target(f"worst further question, {one.pods:,} pods, ms", max(one.further_ms), "<=", one.limit_ms)
    yield Target(f"worst question of others after a binding, {one.pods:,} pods, ms", max(one.others_ms), "<=", 20)


def _notes(measured: Sequence[SizeResult]) -> tuple[str, ...]:
    """Return the notes about the requests of each size and how they were timed."""
    counts = ", ".join(
        f"{one.size.nodes:,}: {one.size.runs} runs of {len(one.runs[0].ours.loopback_s)} requests, "
        f"{sum(r.placed_gangs for r in one.runs)} gangs placed and {sum(r.refused_gangs for r in one.runs)} refused"
        for one in measured
    )
    return (
        f"{counts}.",
        f"{load_note()} Times are by the wall clock: what others take from the cores is in them.",
        "Every gang is new, names rotate, the watch brings 200 events/s beside the gangs' own; filter and prioritize "
        "are both asked for every pod. MiB is the most seen after any run, peak the kernel's high-water mark.",
    )
