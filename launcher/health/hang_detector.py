"""Decides when a training process hangs: it makes no progress for much longer than its own steps took.

Step times are counted in buckets of 4.4 %: small enough for shared memory, precise enough for a limit. A training
process counts, and its agent reads. The limit is 2.5 times the 99.9th percentile of the step time. The detector waits
longer while little is known: before enough steps are counted, in a named phase, and if the script does not mark its
steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

PER_OCTAVE = 16

OCTAVES = 24

BUCKETS = PER_OCTAVE * OCTAVES

SHORTEST_S = 2.0**-10  # shorter steps are counted as this long

WIDTH = 2 ** (1 / PER_OCTAVE)

MAX_COUNTED = 32_768  # then all counts are halved


def bucket_of(took_s: float) -> int:
    """Return the bucket for a step of this length: 0 for the shortest, BUCKETS - 1 for hours."""
    if took_s <= SHORTEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(PER_OCTAVE * math.log2(took_s / SHORTEST_S)))


def edge_s(bucket: int) -> float:
    """Return the longest step time of this bucket in seconds."""
    return SHORTEST_S * 2 ** (bucket / PER_OCTAVE)


def aged(counts: Sequence[int]) -> list[int]:
    """Halve all counts. A count of one stays, since a limit is about rare steps."""
    return [(count + 1) // 2 for count in counts]


def quantile_s(counts: Sequence[int], share: float) -> float:
    """Return the time within which `share` of the steps ended: the upper edge of a bucket, so up to 4.4 % too long. 0
    without steps.
    """
    left = math.ceil(share * sum(counts))
    if left <= 0:
        return 0.0
    for bucket, count in enumerate(counts):
        left -= count
        if left <= 0:
            return edge_s(bucket)
    return edge_s(BUCKETS - 1)


RARE = 0.999

KNOWN_WELL = 1_000  # steps after which the 99.9th percentile is more than a guess


class HangAction(StrEnum):
    """Says what happens to a round in which a process hangs, once all stack traces are collected."""

    ASK = "ask"  # end nothing: report the suspect once, and let a person decide
    RESTART = "restart"  # act as if the process had failed: end the round and charge a restart
    REPLACE = "replace"  # the same, and the suspect's worker does not come back


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """One agent's settings for hangs: the limit, the action, and the folder for stack traces."""

    at_most_s: float | None = None  # as in HangLimits
    act: HangAction = HangAction.ASK
    folder: str = ""  # for stack traces, "" for a temporary one


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Limits of the time that a process may stand still, in seconds. Source: docs/facts/launcher.md 9 row 17; DL-113"""

    factor: float = 2.5  # times the 99.9th percentile of the step time
    floor_s: float = 5.0  # lower bound of the limit, since a machine may be busy for a moment
    # The lower bound if steps are guessed from the optimizer: an evaluation then looks like a long step.
    unmarked_floor_s: float = 300.0
    patient_s: float = 1_800.0  # the limit before known_steps steps, and in a phase
    at_most_s: float | None = None  # the highest limit after the first step, None for none (XPU_TIMER_HANG_TIMEOUT)
    known_steps: int = 20
    look_s: float = 0.25  # between looks


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one process at one moment."""

    beats: int = 0  # steps done, marked or guessed
    beat_s: float = 0.0  # when the last step was done
    phase: str = ""  # what the script does besides steps, "" for steps
    turns: int = 0  # how often the phase has changed
    turn_s: float = 0.0  # when it changed last
    marked: bool = False  # the script marks its steps
    counts: Sequence[int] = ()  # as in launcher/health/hang_detector.py


@dataclass(frozen=True, slots=True)
class Hang:
    """A process stands still for longer than its limit. phase: where it stands, "" for a step."""

    waited_s: float
    limit_s: float
    phase: str = ""

    def __str__(self) -> str:
        where = f"in {self.phase!r}" if self.phase else "in one step"
        return f"no progress for {self.waited_s:.1f} s {where}, the limit is {self.limit_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Resumed:
    """A hanging process has resumed. after_s: how long it stood still, as far as seen."""

    after_s: float


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """The detector's memory of a process between looks."""

    looked_s: float | None = None
    beats: int = 0
    turns: int = 0
    waited_s: float = 0.0  # since it last moved
    hangs: bool = False  # a hang was reported


def hang_limit_s(progress: Progress, limits: HangLimits) -> float:
    """Return how long the process may stand still now before it counts as hung, in seconds."""
    known = sum(progress.counts)
    if progress.phase or progress.beats == 0:
        return limits.patient_s
    if known < limits.known_steps:
        found = limits.patient_s
    else:
        usual_s = quantile_s(progress.counts, RARE)
        guess = math.sqrt(max(1.0, KNOWN_WELL / known))  # after few steps, the rare long ones are not known yet
        floor_s = limits.floor_s if progress.marked else limits.unmarked_floor_s
        well_s = limits.factor * usual_s
        found = max(floor_s, min(well_s * guess, max(well_s, limits.patient_s)))
    return found if limits.at_most_s is None else min(found, limits.at_most_s)


def observe(
    watch: ProgressWatch, progress: Progress, limits: HangLimits, now_s: float
) -> tuple[ProgressWatch, Hang | Resumed | None]:
    """Look at a process once. A hang is returned once, and so is its end.

    now_s: by the clock of `progress`. At most four times `look_s` counts as time since the last look, since a longer
    gap means that the machine stood still.
    """
    passed_s = 0.0 if watch.looked_s is None else min(max(0.0, now_s - watch.looked_s), 4 * limits.look_s)
    if watch.looked_s is None or (progress.beats, progress.turns) != (watch.beats, watch.turns):
        since_s = max(progress.beat_s, progress.turn_s)
        fresh = ProgressWatch(now_s, progress.beats, progress.turns, min(max(0.0, now_s - since_s), passed_s))
        return fresh, Resumed(watch.waited_s) if watch.hangs else None
    waited_s, most_s = watch.waited_s + passed_s, hang_limit_s(progress, limits)
    later = replace(watch, looked_s=now_s, waited_s=waited_s)
    if watch.hangs or waited_s <= most_s:
        return later, None
    return replace(later, hangs=True), Hang(waited_s, most_s, progress.phase)
