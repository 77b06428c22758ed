"""When a training process hangs: it has made no progress for much longer than its own steps ever took.

The limit follows the steps: two and a half times the longest but the rarest thousandth. It is patient where little is
known: before steps are counted, in a phase that the script has named, and where the script marks no steps at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from turnout.launcher.health.step_times import quantile_s

RARE = 0.999
KNOWN_WELL = 1_000  # steps after which the rarest thousandth is more than a guess


class Act(StrEnum):
    """What becomes of a round in which a process hangs, once the stacks of all are there."""

    ASK = "ask"  # nothing ends: who is to go is told once, and a person decides
    RESTART = "restart"  # as if the process had failed: the round ends, and a restart is charged
    REPLACE = "replace"  # the same, and the worker whose rank stands apart does not come back


@dataclass(frozen=True, slots=True)
class Hangs:
    """What one agent is told of hangs. at_most_s: as in Limits. folder: for stacks, "" for a temporary one."""

    at_most_s: float | None = None
    act: Act = Act.ASK
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too long. Times in seconds.

    factor: of the longest usual step. floor_s: never less, for a machine may be busy with something else for a moment.
    unmarked_floor_s: the same where steps are guessed from the optimizer, and an evaluation looks like a long step.
    patient_s: before `known_steps` steps are counted, and in a phase. at_most_s: once a step is done never more, None =
    no such bound (XPU_TIMER_HANG_TIMEOUT). look_s: between looks.
    Source: docs/facts/launcher.md 9 row 17; DL-113
    """

    factor: float = 2.5
    floor_s: float = 5.0
    unmarked_floor_s: float = 300.0
    patient_s: float = 1_800.0
    at_most_s: float | None = None
    known_steps: int = 20
    look_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """One process at one moment. beats: steps that it has done, whoever counted; beat_s: when the last one was.

    phase: what the script says it does besides steps, "" for steps; turns: how often that has changed; turn_s: when.
    marked: the script itself tells its steps. counts: of launcher/health/step_times.py.
    """

    beats: int = 0
    beat_s: float = 0.0
    phase: str = ""
    turns: int = 0
    turn_s: float = 0.0
    marked: bool = False
    counts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Hang:
    """It has stood still for so long, and this was the limit. phase: in which it stands, "" for a step."""

    waited_s: float
    limit_s: float
    phase: str = ""

    def __str__(self) -> str:
        where = f"in {self.phase!r}" if self.phase else "in one step"
        return f"no progress for {self.waited_s:.1f} s {where}, the limit is {self.limit_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Moved:
    """It goes on after all. after_s: how long it stood, as far as was seen."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Watch:
    """What is kept of a process between looks. waited_s: since it last moved. hangs: that was told already."""

    looked_s: float | None = None
    beats: int = 0
    turns: int = 0
    waited_s: float = 0.0
    hangs: bool = False


def limit_s(seen: Seen, limits: Limits) -> float:
    """How long a process may stand still now."""
    known = sum(seen.counts)
    if seen.phase or seen.beats == 0:
        return limits.patient_s
    if known < limits.known_steps:
        found = limits.patient_s
    else:
        usual_s = quantile_s(seen.counts, RARE)
        guess = math.sqrt(max(1.0, KNOWN_WELL / known))  # few steps say little about the rare ones
        floor_s = limits.floor_s if seen.marked else limits.unmarked_floor_s
        well_s = limits.factor * usual_s
        found = max(floor_s, min(well_s * guess, max(well_s, limits.patient_s)))
    return found if limits.at_most_s is None else min(found, limits.at_most_s)


def look(watch: Watch, seen: Seen, limits: Limits, now_s: float) -> tuple[Watch, Hang | Moved | None]:
    """Look once. A hang is told once, and so is its end.

    now_s: by the clock of `seen`. Looks that are far apart mean that the machine, and not the process, stood still: of
    the time between two looks no more than four times `look_s` counts.
    """
    passed_s = 0.0 if watch.looked_s is None else min(max(0.0, now_s - watch.looked_s), 4 * limits.look_s)
    if watch.looked_s is None or (seen.beats, seen.turns) != (watch.beats, watch.turns):
        since_s = max(seen.beat_s, seen.turn_s)
        fresh = Watch(now_s, seen.beats, seen.turns, min(max(0.0, now_s - since_s), passed_s))
        return fresh, Moved(watch.waited_s) if watch.hangs else None
    waited_s, most_s = watch.waited_s + passed_s, limit_s(seen, limits)
    later = replace(watch, looked_s=now_s, waited_s=waited_s)
    if watch.hangs or waited_s <= most_s:
        return later, None
    return replace(later, hangs=True), Hang(waited_s, most_s, seen.phase)
