"""The end of each phase of a restart, from what the training processes wrote down.

All times are seconds of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

MARKED_PHASES = ("started", "imported", "met", "loaded", "stepped")
PHASES = ("detected", "stopped", *MARKED_PHASES)


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """A process came to the end of a phase."""

    pid: int
    rank: int
    restart: int  # RESTART_COUNT of the process
    word: str  # one of MARKED_PHASES
    at_s: float

    @classmethod
    def read(cls, line: str) -> PhaseMark:
        """Parse a line that `line` returned. Raises ValueError for another line."""
        pid, rank, restart, word, at_s = line.split()
        return cls(int(pid), int(rank), int(restart), word, float(at_s))

    def line(self) -> str:
        """Return the mark as a line."""
        return f"{self.pid} {self.rank} {self.restart} {self.word} {self.at_s:.6f}\n"


@dataclass(frozen=True, slots=True)
class KillResult:
    """The cost of one kill."""

    # Seconds from the kill until every surviving or restarted process had ended the phase, by phase. Phases that nobody
    # recorded are left out; empty if the job was lost.
    after_s: Mapping[str, float]
    restarts_used: int  # of the job's restart budget

    @property
    def took_s(self) -> float:
        """Return the seconds until every process had made a step; infinite if that never happened."""
        return self.after_s.get("stepped", math.inf)


LOST = KillResult({}, 0)


def first_steps(marks: Iterable[PhaseMark], old: Collection[int]) -> dict[int, PhaseMark]:
    """Return, by rank, the first step in a process that did not exist before. Of several processes the newest counts.

    old: pids of the processes before. marks: of all processes so far.
    """
    new = sorted((mark for mark in marks if mark.word == "stepped" and mark.pid not in old), key=lambda mark: mark.at_s)
    return {mark.rank: mark for mark in new}


def kill_result(
    marks: Sequence[PhaseMark], old: Collection[int], ranks: int, killed_s: float, ended_s: Mapping[str, float]
) -> KillResult | None:
    """Return what a kill cost; None until processes that are newer than the kill have made a step as `ranks` ranks.

    marks: of all processes so far. old: pids before the kill. killed_s: its time. ended_s: when phases ended that no
    process records, by phase.
    """
    last = first_steps(marks, old)
    if len(last) < ranks:
        return None
    going = {mark.pid for mark in last.values()}
    after = {name: at_s - killed_s for name, at_s in ended_s.items()}
    for word in MARKED_PHASES:
        after[word] = max(mark.at_s for mark in marks if mark.pid in going and mark.word == word) - killed_s
    before = max((mark.restart for mark in marks if mark.pid in old), default=0)
    return KillResult(after, max(mark.restart for mark in last.values()) - before)


def median_phase_ends(kills: Sequence[KillResult]) -> dict[str, float]:
    """Return the median seconds from a kill to the end of each phase, by phase, over the kills that the jobs survived.

    NaN for a phase that was recorded after none of them.
    """
    lived = [kill for kill in kills if kill.after_s]
    times_of = {
        phase: [each for kill in lived if not math.isnan(each := kill.after_s.get(phase, math.nan))] for phase in PHASES
    }
    return {phase: median(times) if times else math.nan for phase, times in times_of.items()}
