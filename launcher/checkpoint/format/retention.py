"""Chooses the committed steps that may be removed from storage. The newest is always kept, and all that the user's rule
keeps.

It decides from what is in storage now, so a restart forgets nothing and counts nothing twice. Source:
docs/facts/dlrover.md 6.3 and §6.6, defect 8; DL-50
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Latest:
    """Keeps the newest `count` checkpoints, at least 1."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the latest {self.count} checkpoints: at least 1 is kept")


@dataclass(frozen=True, slots=True)
class Every:
    """Keeps steps that are multiples of the interval, at least 1."""

    interval: int

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"every {self.interval} steps: an interval of at least 1 is needed")


@dataclass(frozen=True, slots=True)
class All:
    """Keeps every checkpoint; the user removes old ones."""


@dataclass(frozen=True, slots=True)
class Both:
    """Keeps every step that either of its two rules keeps."""

    latest: Latest
    every: Every


Keep: TypeAlias = Latest | Every | All | Both


def rule(keep: int = 0, every: int = 0) -> Keep:
    """Make the rule from two numbers, 0 for a rule not asked for. Raises ValueError below 0."""
    if keep and every:
        return Both(Latest(keep), Every(every))
    return Latest(keep) if keep else Every(every) if every else All()


def steps_to_remove(
    steps_committed: Iterable[int], keep: Keep, reading: frozenset[int] = frozenset(), just_committed: int | None = None
) -> tuple[int, ...]:
    """List the steps to remove, oldest first.

    steps_committed: in any order, duplicates allowed. reading: steps that are being read, which stay.
    just_committed: the step committed now, if any. It stays, even if it is below others after a rollback. The newest
    stays too.
    """
    steps = sorted({*steps_committed})
    kept_steps = {*_kept_steps(steps, keep), *steps[-1:], *reading, just_committed}
    return tuple(step for step in steps if step not in kept_steps)


def _kept_steps(steps: list[int], keep: Keep) -> set[int]:
    match keep:
        case Latest(count):
            return {*steps[-count:]}
        case Every(interval):
            return {step for step in steps if step % interval == 0}
        case Both(latest, every):
            return _kept_steps(steps, latest) | _kept_steps(steps, every)
        case _:
            return {*steps}
