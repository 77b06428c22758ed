"""The autoscaler: how long it takes to decide and to react, and `turnout why`, which decides once more."""

from __future__ import annotations

from hack.bench.autoscaler import decide, reaction, why
from hack.bench.support.measure import load_note
from hack.bench.support.outcome import Outcome, Scale, combine


def run(scale: Scale) -> Outcome:
    """Measure decisions in memory, then the program and the command on a real API server."""
    parts = [part.measure(scale) for part in (decide, reaction, why)]
    note = Outcome("", (), notes=[load_note()])
    return combine("autoscaler: time to decide, to react and to explain", *parts, note)
