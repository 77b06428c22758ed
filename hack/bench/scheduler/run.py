"""Gangs on a real kube-scheduler that asks us, or that has our gates, each beside default scheduling."""

from __future__ import annotations

from hack.bench.scheduler import gates, matrix, orders
from hack.bench.support.outcome import Outcome, Scale, combine


def run(scale: Scale) -> Outcome:
    """Measure what rings cost, how soon gangs are bound, and pods a second."""
    parts = (part.measure(scale) for part in (orders, gates, matrix))
    return combine("scheduler: gangs on a real kube-scheduler", *parts)
