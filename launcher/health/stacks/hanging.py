"""A hang as the coordinator has it: who hangs, whose stacks were asked for, and what is to become of it.

Nouns only. What one event makes of them is in gathering.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from turnout.launcher.health.frames import Stacks
from turnout.launcher.health.hangs import Act


class Stage(Enum):
    """How far one hang is."""

    QUIET = "quiet"  # nobody hangs
    ASKED = "asked"  # members take the stacks of their processes
    MERGED = "merged"  # all that came is being folded and written
    TOLD = "told"  # who stands apart is known, and has been acted upon


@dataclass(frozen=True, slots=True)
class Hanging:
    """How the hangs of a job are dealt with, and the one under way, if any.

    round: of that one. number: of the newest order to show stacks. hung: processes that hang now, as member id and
    local rank; first: the first of them, and why. asked: members whose stacks are waited for, until until_s.
    stacks: what has come, by rank. leaves: members that do not come back, and why: they stood apart.
    """

    act: Act = Act.ASK
    stage: Stage = Stage.QUIET
    round: int = 0
    number: int = 0
    hung: frozenset[tuple[str, int]] = frozenset()
    first: str = ""
    asked: frozenset[str] = frozenset()
    stacks: Mapping[int, Stacks] = field(default_factory=dict)
    until_s: float = 0.0
    leaves: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Merge:
    """An effect: fold the stacks of this world, write down what comes of it, and say Merged.

    stacks: packed, by rank. why: of some ranks there are none.
    """

    number: int
    world: int
    stacks: Mapping[int, bytes]
    why: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Merged:
    """An event: the stacks are folded. apart: ranks that stand apart, which the others wait for; () where nobody does.

    said: the same in words.
    """

    number: int
    apart: tuple[int, ...] = ()
    said: str = ""
