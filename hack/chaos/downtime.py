"""How long training stood still, by what was done to it: read from a history."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hack.chaos.fault_schedule import UNNOTICED, Fault
from hack.chaos.history import Record, Round, rounds_of

_WATCHED_S = 3.0  # after what nobody should notice
_IN_FLIGHT_S = 1.0  # for the others of a world to notice a death


@dataclass(frozen=True, slots=True)
class Row:
    """The times of one kind of fault. what: which times; each in seconds."""

    kind: str
    what: str
    times_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Half of them are shorter."""
        return statistics.median(self.times_s)

    @property
    def worst_s(self) -> float:
        """The longest."""
        return max(self.times_s)


def table(histories: Iterable[Sequence[Record]]) -> tuple[Row, ...]:
    """A row for each kind that there was: resizes, kills, and what training should not notice at all."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for records in histories:
        rounds = rounds_of(records)
        for key, time_s in (*_resizes(rounds), *_losses(records, rounds), *_pauses(records, rounds), *_waits(records)):
            found[key].append(time_s)
    return tuple(Row(kind, what, tuple(times)) for (kind, what), times in found.items())


def figures(rows: Iterable[Row]) -> Mapping[str, float]:
    """For machines: kind to the median and the worst."""
    said: dict[str, float] = {}
    for row in rows:
        word = row.kind.replace("'", "").replace(" ", "_")
        said |= {f"{word}_median_s": round(row.median_s, 3), f"{word}_worst_s": round(row.worst_s, 3)}
    return said


def _resizes(rounds: Sequence[Round]) -> Iterable[tuple[tuple[str, str], float]]:
    """From the last step before an agreed stop to the first of the next round."""
    for before, after in pairwise(each for each in rounds if each.steps_s):
        if any(record.why == "stop" for record in before.all("ended")):
            was, now = (each.records[0].world for each in (before, after))
            kind = "grows" if now > was else "shrinks" if now < was else "another worker"
            yield (kind, "last step to next"), after.steps_s[0] - before.steps_s[-1]


def _losses(records: Sequence[Record], rounds: Sequence[Round]) -> Iterable[tuple[tuple[str, str], float]]:
    """From a kill to the next step, where nothing else was done meanwhile."""
    hard = [r for r in records if r.event == "fault" and Fault[r.kind] not in UNNOTICED and r.who]
    ends_s = [record.at_s for record in hard[1:]] + [float("inf")] * bool(hard)
    for record, end_s in zip(hard, ends_s, strict=True):
        if any(
            record.at_s + _IN_FLIGHT_S < step_s
            for each in rounds
            for step_s in each.steps_s
            if each.number == record.round
        ):
            continue  # who was hit did not train: it was a spare, or had not joined yet
        back_s = min((each.steps_s[0] for each in rounds if each.number > record.round and each.steps_s), default=end_s)
        if Fault[record.kind] is not Fault.RIVAL and record.at_s < back_s < end_s:
            yield (Fault[record.kind].value, "kill to next step"), back_s - record.at_s


def _pauses(records: Sequence[Record], rounds: Sequence[Round]) -> Iterable[tuple[tuple[str, str], float]]:
    """The longest pause between two steps of one round, around what training should not notice."""
    for record in records:
        if record.event == "fault" and Fault[record.kind] in UNNOTICED and record.who:
            for each in rounds:
                if each.number == record.round:
                    near = [at_s for at_s in each.steps_s if record.at_s - 1 <= at_s <= record.at_s + _WATCHED_S]
                    if len(near) > 1:
                        longest_s = max(after - before for before, after in pairwise(near))
                        yield (Fault[record.kind].value, "longest pause between steps"), longest_s


def _waits(records: Sequence[Record]) -> Iterable[tuple[tuple[str, str], float]]:
    """From the submission of a rigid job to its start."""
    came_s = {r.who: r.at_s for r in records if r.event == "fault" and r.kind == Fault.RIVAL.name}
    for record in records:
        if record.event == "served" and record.who in came_s:
            yield (Fault.RIVAL.value, "submitted to started"), record.at_s - came_s[record.who]
