"""The plots of a simulation: how full the cluster was, how long jobs waited, what each job won, what harm was done."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turnout.cli.simulate.model import Simulated
from turnout.cli.simulate.svg import Plot, Tick, round_ticks
from turnout.cli.why import lasting

_SPANS = ((60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (36_000.0, "10 h"), (86_400.0, "1 day"))
_LONG = ((864_000.0, "10 days"), (8_640_000.0, "100 days"))
_SHORTEST_S = 10.0  # a shorter wait stands at the left edge
_MOST_BARS = 600


def utilisation(told: Simulated) -> str:
    """Draw the GPUs that jobs held, over time, with lending and without."""
    end_s, gpus = told.end_s, told.compared.lent.rules.gpus
    unit_s, unit = _unit(end_s)
    plot = Plot("GPUs in use over time, with lending and without", (0.0, end_s / unit_s), (0.0, float(gpus)))
    plot.axes(
        [Tick(each, f"{each:g}") for each in round_ticks(0, end_s / unit_s, 8)],
        [*(Tick(each, f"{each:g}") for each in round_ticks(0, gpus * 0.92, 5)), Tick(gpus, f"{gpus}")],
        f"{unit} since the first submission",
        "GPUs held",
    )
    after = [(at_s / unit_s, held) for at_s, held, _ in told.held.buckets(end_s)]
    before = [(at_s / unit_s, held) for at_s, held, _ in told.held_without.buckets(end_s)]
    plot.area(after, "with")
    plot.line(after, "with")
    plot.line(before, "without")
    return plot.drawn()


def _unit(s: float) -> tuple[float, str]:
    return (86_400.0, "days") if s > 3 * 86_400 else (3600.0, "hours") if s > 3 * 3600 else (60.0, "minutes")


def waits(told: Simulated) -> str:
    """Draw which share of jobs had started after how long a wait."""
    before, after = ([ran.waited_s for ran in tape.ran] for tape in (told.compared.without, told.compared.lent))
    longest_s = max(60.0, *before, *after) * 1.05
    plot = Plot("Share of jobs that had started, by wait", (_SHORTEST_S, longest_s), (0.0, 1.0), log_x=True)
    ticks = [Tick(_SHORTEST_S, "≤ 10 s"), *(Tick(s, text) for s, text in (*_SPANS, *_LONG) if s < longest_s)]
    shares = [Tick(each / 4, f"{each * 25} %") for each in range(5)]
    plot.axes(ticks, shares, "waited no longer than", "of jobs")
    for values, style in ((after, "with"), (before, "without")):
        plot.steps(_shares(values, longest_s), style)
    return plot.drawn()


def _shares(values: Sequence[float], longest_s: float) -> list[tuple[float, float]]:
    """Return (wait, share of jobs that waited no longer), a few hundred points at most."""
    ordered = sorted(max(_SHORTEST_S, each) for each in values)
    every = max(1, len(ordered) // 400)
    points = [(wait_s, (at + 1) / len(ordered)) for at, wait_s in enumerate(ordered) if at % every == 0]
    return [*points, (ordered[-1], 1.0), (longest_s, 1.0)]


def gains(told: Simulated) -> str:
    """Draw the speed-up of each job, the largest first: doublings upwards for gain, downwards for harm."""
    ratios = sorted(_ratios(told), reverse=True)
    highest = max(1.0, math.ceil(max(each for each, _ in ratios)))
    lowest = min(-0.5, math.floor(2 * min(each for each, _ in ratios)) / 2)
    plot = Plot("Completion without lending over with it, job by job", (0.0, float(len(ratios))), (lowest, highest))
    doublings = [Tick(each, f"{2.0**each:.3g}x") for each in round_ticks(lowest, highest, 6)]
    plot.axes(
        [Tick(each, f"{each:,.0f}") for each in round_ticks(0, len(ratios), 6)],
        doublings,
        "jobs, the one that won most first",
        "times as fast",
    )
    for first, last, height, text in _bars(ratios):
        plot.bar(first, last, height, "gain" if height >= 0 else "harm", text)
    plot.rule(0.0)
    return plot.drawn()


def harms(told: Simulated) -> str:
    """Draw how much later each job ended that ended later, beside what lending may cost one; "" where none did."""
    compared = told.compared
    lost = [
        (loss_s, f"{ran.submitted.name}: {later(loss_s)} later")
        for loss_s, ran in zip(compared.losses_s, compared.lent.ran, strict=True)
        if loss_s > 1
    ]
    if not lost:
        return ""
    bound_s = told.most_harm_s
    highest = max(bound_s, max(lost)[0]) * 1.08
    plot = Plot("How much later each job ended that ended later", (0.0, float(len(lost))), (0.0, highest))
    plot.axes(
        [Tick(each, f"{each:,.0f}") for each in round_ticks(0, len(lost), 6) if each == round(each)],
        [Tick(each, later(each)) for each in round_ticks(0, highest, 5)],
        "jobs that ended later, the one that lost most first",
        "later",
    )
    for first, last, loss_s, text in _bars([(-loss_s, text) for loss_s, text in sorted(lost, reverse=True)]):
        plot.bar(first, last, -loss_s, "harm", text)
    plot.rule(bound_s)
    return plot.drawn()


def later(s: float) -> str:
    """Write a delay: in seconds up to ten minutes."""
    return f"{s:.0f} s" if s <= 600 else lasting(s)


def _ratios(told: Simulated) -> list[tuple[float, str]]:
    """Return the doublings of each job's speed from submission to end, with a sentence on it."""
    found = []
    for before, after in zip(told.compared.without.ran, told.compared.lent.ran, strict=True):
        said = f"{before.submitted.name}: {lasting(before.took_s)} without, {lasting(after.took_s)} with lending"
        found.append((math.log2(before.took_s / after.took_s), said))
    return found


def _bars(ratios: Sequence[tuple[float, str]]) -> list[tuple[float, float, float, str]]:
    """Return a bar a job; of neighbours the least favourable where there are more jobs than bars."""
    every = max(1, -(-len(ratios) // _MOST_BARS))
    found = []
    for at in range(0, len(ratios), every):
        height, said = min(ratios[at : at + every])
        found.append((float(at), float(min(at + every, len(ratios))), height, said))
    return found
