"""Decides when a training process hangs: it makes no progress for much longer than its own steps took.

Step times are counted in buckets, each 4.4 % wider than the last: small enough for shared memory, precise enough for a
limit. A training process counts, and its agent reads the counts. The limit is 2.5 times the 99.9th percentile of the
step time. The limit is higher before enough steps are counted, in a named phase, and if the script does not mark its
steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

PER_OCTAVE = 16  # buckets in which the step time doubles
OCTAVES = 24  # from SHORTEST_S to 4.5 hours
BUCKETS = PER_OCTAVE * OCTAVES
SHORTEST_S = 2.0**-10  # seconds; a shorter step counts as this long
WIDTH = 2 ** (1 / PER_OCTAVE)  # ratio of the upper edges of two neighbouring buckets
MAX_COUNTED = 32_768  # sum of all counts, above which all counts are halved


def bucket_of(took_s: float) -> int:
    """Return the bucket for a step that took `took_s` seconds: 0 for the shortest, BUCKETS - 1 for hours."""
    if took_s <= SHORTEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(PER_OCTAVE * math.log2(took_s / SHORTEST_S)))


def edge_s(bucket: int) -> float:
    """Return the longest step time of this bucket in seconds."""
    return SHORTEST_S * 2 ** (bucket / PER_OCTAVE)


def halve_counts(counts: Sequence[int]) -> list[int]:
    """Return all counts halved and rounded up: a count of one stays, since the limit depends on rare steps."""
    return [(count + 1) // 2 for count in counts]


def quantile_s(counts: Sequence[int], share: float) -> float:
    """Return the time in seconds within which `share` (0 to 1) of the steps ended; 0 without steps.

    It is the upper edge of a bucket, so up to 4.4 % too long.
    """
    remaining = math.ceil(share * sum(counts))
    if remaining <= 0:
        return 0.0
    for bucket, count in enumerate(counts):
        remaining -= count
        if remaining <= 0:
            return edge_s(bucket)
    return edge_s(BUCKETS - 1)


LIMIT_QUANTILE = 0.999  # of the step times, on which the limit is based
RELIABLE_STEPS = 1_000  # steps after which that quantile is reliable


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
    patient_s: float = 1_800.0  # the limit before known_steps steps are counted, and in a named phase
    at_most_s: float | None = None  # the highest limit after the first step, None for none (XPU_TIMER_HANG_TIMEOUT)
    known_steps: int = 20  # steps after which the limit follows the step times
    look_s: float = 0.25  # between two observations of a process


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one process at one moment."""

    beats: int = 0  # completed steps: marked by the script, or steps of an optimizer
    beat_s: float = 0.0  # when the last step ended, time.monotonic()
    phase: str = ""  # the named phase, "" while the script trains
    turns: int = 0  # how often the phase has changed
    turn_s: float = 0.0  # when it changed last, time.monotonic()
    marked: bool = False  # the script marks its steps
    counts: Sequence[int] = ()  # number of steps by bucket of step time


@dataclass(frozen=True, slots=True)
class Hang:
    """A process has made no progress for longer than its limit."""

    waited_s: float  # without progress
    limit_s: float
    phase: str = ""  # the named phase in which it stands, "" for a step

    def __str__(self) -> str:
        where = f"in {self.phase!r}" if self.phase else "in one step"
        return f"no progress for {self.waited_s:.1f} s {where}, the limit is {self.limit_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Resumed:
    """A hanging process has resumed."""

    after_s: float  # observed time without progress


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """The detector's memory of a process between two observations."""

    looked_s: float | None = None  # time of the last observation, None before the first
    beats: int = 0  # as in Progress, at the last observation
    turns: int = 0  # as in Progress, at the last observation
    waited_s: float = 0.0  # observed time since the last progress
    hangs: bool = False  # a hang was reported


def hang_limit_s(progress: Progress, limits: HangLimits) -> float:
    """Return for how many seconds the process may make no progress now before it counts as hung.

    The limit is higher the fewer steps are counted.
    """
    step_count = sum(progress.counts)
    if progress.phase or progress.beats == 0:
        return limits.patient_s
    if step_count < limits.known_steps:
        limit_s = limits.patient_s
    else:
        usual_s = quantile_s(progress.counts, LIMIT_QUANTILE)
        uncertainty = math.sqrt(
            max(1.0, RELIABLE_STEPS / step_count)
        )  # after few steps, the rare long ones are not known yet
        floor_s = limits.floor_s if progress.marked else limits.unmarked_floor_s
        well_s = limits.factor * usual_s
        limit_s = max(floor_s, min(well_s * uncertainty, max(well_s, limits.patient_s)))
    return limit_s if limits.at_most_s is None else min(limit_s, limits.at_most_s)


def observe(
    watch: ProgressWatch, progress: Progress, limits: HangLimits, now_s: float
) -> tuple[ProgressWatch, Hang | Resumed | None]:
    """Compare the progress of a process with the last observation. Return the new watch, and a hang or its end once.

    now_s: time.monotonic(), like the times in `progress`. At most four times `look_s` counts as time since the last
    observation, since a longer gap means that this process or the machine was suspended.
    """
    passed_s = 0.0 if watch.looked_s is None else min(max(0.0, now_s - watch.looked_s), 4 * limits.look_s)
    if watch.looked_s is None or (progress.beats, progress.turns) != (watch.beats, watch.turns):
        since_s = max(progress.beat_s, progress.turn_s)
        fresh = ProgressWatch(now_s, progress.beats, progress.turns, min(max(0.0, now_s - since_s), passed_s))
        return fresh, Resumed(watch.waited_s) if watch.hangs else None
    waited_s, limit_s = watch.waited_s + passed_s, hang_limit_s(progress, limits)
    later = replace(watch, looked_s=now_s, waited_s=waited_s)
    if watch.hangs or waited_s <= limit_s:
        return later, None
    return replace(later, hangs=True), Hang(waited_s, limit_s, progress.phase)
