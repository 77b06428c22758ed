"""Read a line of the autoscaler's log as a decision of the story."""

from __future__ import annotations

import json
from collections.abc import Sequence

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import LoggedDecision, Player

_DECIDED, _RESIZED = "decided", "resized"


def decision(line: str, players: Sequence[Player]) -> LoggedDecision | None:
    """The decision that a line tells of; None for a line about anything else."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.get("event") not in (_DECIDED, _RESIZED):
        return None
    letters = {player.name: player.letter for player in players}
    letter = letters.get(_name(fields["job"]))
    if letter is None:
        return None
    return LoggedDecision(
        letter,
        workers_before=fields["workers_before"],
        workers=fields["workers"],
        reason=Reason(fields["reason"]),
        detail=fields.get("detail", ""),
        for_=letters.get(_name(fields.get("for_job", "")), ""),
        is_written=fields["event"] == _RESIZED,
    )


def _name(job: str) -> str:
    """Give the last part of a job's full name, kind/namespace/name."""
    return job.rpartition("/")[2]
