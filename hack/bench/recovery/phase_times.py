"""The end of each phase of a restart, from what the training processes wrote down.

All times are seconds of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WORDS = ("started", "imported", "met", "loaded", "stepped")
PHASES = ("detected", "stopped", *WORDS)


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """A process came to the end of a phase. restart: its RESTART_COUNT."""

    pid: int
    rank: int
    restart: int
    word: str
    at_s: float

    @classmethod
    def read(cls, line: str) -> PhaseMark:
        """Parse a line that `written` returned."""
        pid, rank, restart, word, at_s = line.split()
        return cls(int(pid), int(rank), int(restart), word, float(at_s))

    def written(self) -> str:
        """Return the mark as a line."""
        return f"{self.pid} {self.rank} {self.restart} {self.word} {self.at_s:.6f}\n"


@dataclass(frozen=True, slots=True)
class KillResult:
    """One kill. after_s: from it to the end of each phase, in every process that went on; nan where nobody could tell.

    burned: how many restarts it cost.
    """

    after_s: Mapping[str, float]
    burned: int

    @property
    def took_s(self) -> float:
        """Return the seconds until every process had made a step; infinite if that never happened."""
        return self.after_s.get("stepped", math.inf)


LOST = KillResult({}, 0)


def stepped(marks: Iterable[PhaseMark], old: Collection[int]) -> dict[int, PhaseMark]:
    """Return, by rank, the first step in a process that did not exist before. Of several processes the newest counts.

    old: pids of the processes before. marks: of all processes so far.
    """
    new = sorted((mark for mark in marks if mark.word == "stepped" and mark.pid not in old), key=lambda mark: mark.at_s)
    return {mark.rank: mark for mark in new}


def fault(
    marks: Sequence[PhaseMark], old: Collection[int], ranks: int, killed_s: float, ended_s: Mapping[str, float]
) -> KillResult | None:
    """Return what a kill cost; None until `ranks` ranks have made a step again.

    old: pids before the kill. killed_s: its time. ended_s: when phases ended that no process records, by phase. marks:
    of all processes so far.
    """
    last = stepped(marks, old)
    if len(last) < ranks:
        return None
    going = {mark.pid for mark in last.values()}
    after = {name: at_s - killed_s for name, at_s in ended_s.items()}
    for word in WORDS:
        after[word] = max(mark.at_s for mark in marks if mark.pid in going and mark.word == word) - killed_s
    before = max((mark.restart for mark in marks if mark.pid in old), default=0)
    return KillResult(after, max(mark.restart for mark in last.values()) - before)


def middle(faults: Sequence[KillResult]) -> dict[str, float]:
    """Return the median end of each phase, over the faults that the jobs survived, in seconds; NaN if nobody
    recorded it.
    """
    lived = [fault for fault in faults if fault.after_s]
    times_of = {
        phase: [each for fault in lived if not math.isnan(each := fault.after_s.get(phase, math.nan))]
        for phase in PHASES
    }
    return {phase: median(times) if times else math.nan for phase, times in times_of.items()}
