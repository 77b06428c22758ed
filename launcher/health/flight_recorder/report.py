"""Writes the analysis of Flight Recorder records as lines for people and as JSON. Sets of ranks are folded text."""

from __future__ import annotations

from typing import Any

from turnout.launcher.health.flight_recorder.analysis import By, Numbers, Waits
from turnout.launcher.health.rank_sets import folded

MOST_TOLD = 8  # calls in the text report; the JSON has more
MOST_OPS = 4  # operations listed for one call
_BY = {
    By.BEHIND: "the others wait in a call that is not begun there",
    By.DIFFERS: "something else is called there than by the others",
    By.CROSSED: "each waits in another group for the others, and they for it",
}


def named(numbers: Numbers) -> list[str]:
    """Return the lines that name the ranks suspect by their collectives; empty if there are none."""
    if numbers.by is None:
        return []
    return [f"by its calls {_ranks(numbers.apart)} {_stand(numbers.apart)} apart: {_BY[numbers.by]}"]


def lines(numbers: Numbers) -> list[str]:
    """Say which ranks wait where, and for whom, the most informative call first."""
    said = list[str]()
    for waits in numbers.waits[:MOST_TOLD]:
        said += _told(waits)
    if len(numbers.waits) > MOST_TOLD:
        said.append(f"and ranks wait in {len(numbers.waits) - MOST_TOLD} more calls")
    return said


def unknown(numbers: Numbers) -> list[str]:
    """Say which ranks have no record, and why."""
    return [f"{_ranks(ranks)}: no calls on record: {reason}" for reason, ranks in numbers.why[:MOST_TOLD]]


def _told(waits: Waits) -> list[str]:
    call = f"call {waits.number} of group {waits.group}"
    what, waiting = f"{call}, {waits.op}", f"{_ranks(waits.waiting)} {_wait(waits.waiting)}"
    late, other, unknown, said = waits.behind & ~waits.elsewhere, waits.elsewhere, waits.unknown, list[str]()
    if late:
        said.append(f"{_ranks(late)} {_have(late)} not begun {what}, in which {waiting}")
    if other:
        said.append(f"{_ranks(other)} {_have(other)} not begun {what}, in which {waiting}, but {_wait(other)} too")
    if waits.ops:
        ops = ", ".join(f"{op} to {_ranks(ranks)}" for op, ranks in waits.ops[:MOST_OPS])
        said.append(f"{call} is not the same to all: {ops}")
    if not said and unknown:
        said.append(f"{waiting} in {what}: it is not known whether {_ranks(unknown)} {_have(unknown)} begun it")
    elif not said:
        said.append(f"{waiting} in {what}, which all of its ranks have begun")
    return said


def as_json(numbers: Numbers) -> dict[str, Any]:
    """Return the whole analysis as far as it is kept, as JSON values."""
    return {
        "apart": folded(numbers.apart),
        "by": numbers.by or "",
        "known": folded(numbers.known),
        "why_unknown": {reason: folded(ranks) for reason, ranks in numbers.why},
        "waits": [_waits(each) for each in numbers.waits],
    }


def _waits(waits: Waits) -> dict[str, Any]:
    return {
        "group": waits.group,
        "number": waits.number,
        "op": waits.op,
        "waiting": folded(waits.waiting),
        "waited_s": round(waits.waited_s, 1),
        "behind": folded(waits.behind),
        "waits_elsewhere": folded(waits.elsewhere),
        "unknown": folded(waits.unknown),
        "ops": {op: folded(ranks) for op, ranks in waits.ops},
    }


def _ranks(ranks: int) -> str:
    return f"{'rank' if ranks.bit_count() == 1 else 'ranks'} {folded(ranks)}"


def _stand(ranks: int) -> str:
    return "stands" if ranks.bit_count() == 1 else "stand"


def _have(ranks: int) -> str:
    return "has" if ranks.bit_count() == 1 else "have"


def _wait(ranks: int) -> str:
    return "waits" if ranks.bit_count() == 1 else "wait"
