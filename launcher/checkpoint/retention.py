"""Which committed steps may be removed from storage. What a person asked to be kept is kept, and the newest always.

All is asked of what lies there now, so that nothing is forgotten by a restart and nothing is counted twice.
Source: docs/facts/dlrover.md 6.3 and §6.6, defect 8; DL-50
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Latest:
    """So many of the newest, at least 1."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the latest {self.count} checkpoints: at least 1 is kept")


@dataclass(frozen=True, slots=True)
class Every:
    """Those whose step is a multiple of the interval, at least 1."""

    interval: int

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"every {self.interval} steps: an interval of at least 1 is needed")


@dataclass(frozen=True, slots=True)
class All:
    """Every one: old checkpoints are the user's to remove."""


@dataclass(frozen=True, slots=True)
class Both:
    """What either of the two rules keeps."""

    latest: Latest
    every: Every


Keep: TypeAlias = Latest | Every | All | Both


def rule(keep: int = 0, every: int = 0) -> Keep:
    """The rule that two numbers of a frame mean: 0 for one that is not asked for. Raises ValueError below 0."""
    if keep and every:
        return Both(Latest(keep), Every(every))
    return Latest(keep) if keep else Every(every) if every else All()


def doomed(
    steps_committed: Iterable[int], keep: Keep, reading: frozenset[int] = frozenset(), just: int | None = None
) -> tuple[int, ...]:
    """The steps to remove, oldest first.

    steps_committed: in any order; a step committed twice is one. reading: steps that somebody reads now. just: the
    step that was committed right now, if one was: after a rollback it may be below others. Neither that one, nor the
    newest, nor one that is read is ever among the doomed.
    """
    steps = sorted({*steps_committed})
    stay = {*_kept(steps, keep), *steps[-1:], *reading, just}
    return tuple(step for step in steps if step not in stay)


def _kept(steps: list[int], keep: Keep) -> set[int]:
    match keep:
        case Latest(count):
            return {*steps[-count:]}
        case Every(interval):
            return {step for step in steps if step % interval == 0}
        case Both(latest, every):
            return _kept(steps, latest) | _kept(steps, every)
        case _:
            return {*steps}
