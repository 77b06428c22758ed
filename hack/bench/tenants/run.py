"""Measure how soon the gangs of honest tenants run, their share of GPUs and the time of a question, by attack.

Each run plays some minutes in memory through the real handlers of the extender, once alone and once beside each attack.
Ratios: waiting time without the attacker over with it, and GPU seconds with the attacker over without. A ratio of 1
means that the attack changes nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

from hack.bench.support.outcome import Outcome, Table, Target
from hack.bench.tenants.attacks import ATTACKS, Named
from hack.bench.tenants.story import TENANTS, Size, Told, tell

FULL = Size(nodes=1_000, seconds=900, every_s=2, quick=False)
QUICK = Size(nodes=200, seconds=600, every_s=12, quick=True)
LEAST_RATIO, MOST_P99_MS = 0.98, 100.0
COLUMNS = ("attack", "wait s", "soonness", "least share", "filter p50 ms", "p99 ms", "neutral", "fair share says")


def run(quick: bool) -> Outcome:
    """Play the story alone and beside each attack."""
    size = QUICK if quick else FULL
    alone = tell(size, None)
    found = []
    for named in ATTACKS:
        print(named.name, file=sys.stderr, flush=True)
        found.append((named, tell(size, named.attack)))
    rows = [_row("none", alone, alone, ""), *(_row(named.name, alone, told, named.fair) for named, told in found)]
    figures = {"alone_wait_s": _wait_s(alone), "alone_p99_ms": _quantile_ms(alone, 0.99), "gangs": float(alone.whole)}
    for named, told in found:
        figures |= {f"{key}_{_word(named)}": value for key, value in _figures(alone, told).items()}
    notes = (
        f"{size.nodes:,} nodes, {size.seconds} s, {alone.whole} gangs of three tenants whole without an attacker. "
        "Times of a question are of this thread's processor, so that others on the machine do not count.",
    )
    table = Table("honest tenants, by attack", COLUMNS, rows)
    return Outcome("tenants: kept apart", (table,), figures, tuple(_targets(figures, found)), notes)


def _figures(alone: Told, told: Told) -> dict[str, float]:
    return {
        "soonness": (1.0 + _wait_s(alone)) / (1.0 + _wait_s(told)),
        "share": min(told.gpu_seconds[who] / alone.gpu_seconds[who] for who in TENANTS),
        "p99_ms": _quantile_ms(told, 0.99),
        "neutral": float(told.neutral),
    }


def _row(name: str, alone: Told, told: Told, fair: str) -> tuple[str, ...]:
    of = _figures(alone, told)
    times = f"{_quantile_ms(told, 0.5):.1f}", f"{of['p99_ms']:.1f}"
    return name, f"{_wait_s(told):.2f}", f"{of['soonness']:.3f}", f"{of['share']:.3f}", *times, f"{told.neutral}", fair


def _targets(figures: dict[str, float], found: list[tuple[Named, Told]]) -> Iterator[Target]:
    for named, _ in found:
        word = _word(named)
        if not named.fair:
            yield Target(f"soonness beside {named.name}", figures[f"soonness_{word}"], ">=", LEAST_RATIO)
            yield Target(f"share beside {named.name}", figures[f"share_{word}"], ">=", LEAST_RATIO)
        yield Target(f"filter p99 ms beside {named.name}", figures[f"p99_ms_{word}"], "<=", MOST_P99_MS)
        yield Target(f"answers without opinion beside {named.name}", figures[f"neutral_{word}"], "<=", 0)


def _word(named: Named) -> str:
    return named.name.replace(",", "").replace(" ", "_")


def _wait_s(told: Told) -> float:
    return statistics.fmean(told.wait_s)


def _quantile_ms(told: Told, share: float) -> float:
    ordered = sorted(told.filter_s)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3
