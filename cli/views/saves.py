"""Reads the saves of a job from the logs of its pods: complete steps in storage, and saves that failed.

The launcher writes both lines (launcher/checkpoint/daemon/save_reports.py). Saves in memory alone have no lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turnout.cli.views.goodput import fields_of, number
from turnout.launcher.model import SaveOutcome, SaveTier

MAX_NUMBER = 1 << 53  # of a step, a rank or a time in a log: a browser reads larger ones as others


@dataclass(frozen=True, slots=True)
class LoggedSave:
    """The end of one save."""

    at_s: float  # in seconds since 1970
    step: int
    tier: SaveTier
    outcome: SaveOutcome  # DONE or FAILED
    rank: int | None = None  # of a save that failed; None for a whole step
    took_s: float | None = None  # since the training process asked for it; None if it did not


def read_saves(lines: Iterable[str]) -> list[LoggedSave]:
    """Return the saves in the lines of a log, in their order.

    Other lines, and those with invalid fields, are ignored.
    """
    found = []
    for line in lines:
        for event, outcome in (("step_saved", SaveOutcome.DONE), ("save_failed", SaveOutcome.FAILED)):
            if event in line and (save := _save(fields_of(line, event), outcome)) is not None:
                found.append(save)
    return found


def _save(fields: Mapping[str, object], outcome: SaveOutcome) -> LoggedSave | None:
    """Return the save in a log line's fields; None if a required field is missing or out of bounds."""
    at_s, step, rank, took_s = (number(fields.get(name)) for name in ("ended_s", "step", "rank", "took_s"))
    tier = str(fields.get("tier"))
    if at_s is None or step is None or tier not in set(SaveTier) or max(at_s, step, rank or 0) > MAX_NUMBER:
        return None
    return LoggedSave(at_s, int(step), SaveTier(tier), outcome, int(rank) if rank is not None else None, took_s)
