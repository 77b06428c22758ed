"""A training job that is resized or hit by faults: how soon and at what cost it goes on, beside torchrun."""

from __future__ import annotations

from hack.bench.recovery import events, restarts, survival
from hack.bench.support.measure import load_note
from hack.bench.support.outcome import Outcome, Scale, combine


def run(scale: Scale) -> Outcome:
    """Kill processes, cause each event, and count jobs that are lost."""
    parts = [part.measure(scale) for part in (restarts, events, survival)]
    title = "recovery: a job is resized, a process of it killed, a node lost"
    return combine(title, *parts, Outcome("", (), notes=[load_note()]))
