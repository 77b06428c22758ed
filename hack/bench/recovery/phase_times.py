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
class Mark:
    """A process came to the end of a phase. restart: its RESTART_COUNT."""

    pid: int
    rank: int
    restart: int
    word: str
    at_s: float

    @classmethod
    def read(cls, line: str) -> Mark:
        """Read a line that `written` made."""
        pid, rank, restart, word, at_s = line.split()
        return cls(int(pid), int(rank), int(restart), word, float(at_s))

    def written(self) -> str:
        """Write the mark as a line."""
        return f"{self.pid} {self.rank} {self.restart} {self.word} {self.at_s:.6f}\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kill. after_s: from it to the end of each phase, in every process that went on; nan where nobody could tell.

    burned: how many restarts it cost.
    """

    after_s: Mapping[str, float]
    burned: int

    @property
    def took_s(self) -> float:
        """Until every process had made a step; infinite when they never did."""
        return self.after_s.get("stepped", math.inf)


LOST = Fault({}, 0)


def stepped(marks: Iterable[Mark], old: Collection[int]) -> dict[int, Mark]:
    """Return the first step of each rank in a process that was not there before; the newest process counts. By rank."""
    new = sorted((mark for mark in marks if mark.word == "stepped" and mark.pid not in old), key=lambda mark: mark.at_s)
    return {mark.rank: mark for mark in new}


def fault(
    marks: Sequence[Mark], old: Collection[int], ranks: int, killed_s: float, told_s: Mapping[str, float]
) -> Fault | None:
    """Measure what a kill cost, once all ranks have made a step again; None before.

    old: the processes of before. told_s: when phases ended that are seen from outside.
    """
    last = stepped(marks, old)
    if len(last) < ranks:
        return None
    going = {mark.pid for mark in last.values()}
    after = {name: at_s - killed_s for name, at_s in told_s.items()}
    for word in WORDS:
        after[word] = max(mark.at_s for mark in marks if mark.pid in going and mark.word == word) - killed_s
    before = max((mark.restart for mark in marks if mark.pid in old), default=0)
    return Fault(after, max(mark.restart for mark in last.values()) - before)


def middle(faults: Sequence[Fault]) -> dict[str, float]:
    """Return the median of each phase's end over the faults that the jobs survived."""
    lived = [fault for fault in faults if fault.after_s]
    told = {
        phase: [each for fault in lived if not math.isnan(each := fault.after_s.get(phase, math.nan))]
        for phase in PHASES
    }
    return {phase: median(times) if times else math.nan for phase, times in told.items()}
