"""Read a line of the autoscaler's log as a decision of the story."""

from __future__ import annotations

import json
from collections.abc import Sequence

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import Player, Said

_DECIDED, _RESIZED = "decided", "resized"


def decision(line: str, players: Sequence[Player]) -> Said | None:
    """The decision that a line tells of; None for a line about anything else."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.get("event") not in (_DECIDED, _RESIZED):
        return None
    letters = {player.name: player.letter for player in players}
    letter = letters.get(_name(told["job"]))
    if letter is None:
        return None
    return Said(
        letter,
        was=told["workers_before"],
        workers=told["workers"],
        reason=Reason(told["reason"]),
        detail=told.get("detail", ""),
        for_=letters.get(_name(told.get("for_job", "")), ""),
        written=told["event"] == _RESIZED,
    )


def _name(job: str) -> str:
    """Give the last part of a job's full name, kind/namespace/name."""
    return job.rpartition("/")[2]
