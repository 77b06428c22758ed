"""Defines the coordinator's state of a hang: which processes hang, whose traces were requested, and what follows.

Only nouns. What an event changes in them is known in launcher/rendezvous/diagnosis/hang_collection.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.health.messages import Stacks


class HangStage(Enum):
    """The stage at which the coordinator is in handling a hang."""

    QUIET = "quiet"  # nobody hangs
    ASKED = "asked"  # members take the stacks of their processes
    MERGED = "merged"  # the received traces are being merged and written
    TOLD = "told"  # the suspects are known and acted upon


@dataclass(frozen=True, slots=True)
class HangState:
    """The policy for hangs, and the state of the current one."""

    act: HangAction = HangAction.ASK
    stage: HangStage = HangStage.QUIET
    round: int = 0  # of the hang
    number: int = 0  # of the newest request for traces
    hanging: frozenset[tuple[str, int]] = frozenset()  # processes that hang now: member id and local rank
    first: str = ""  # the first hanging process, and why
    awaited_members: frozenset[str] = frozenset()  # members whose traces are awaited until until_s
    stacks: Mapping[int, Stacks] = field(default_factory=dict)  # received traces by rank
    until_s: float = 0.0
    # members that must not return, and why: their ranks were suspect
    excluded: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergeStacks:
    """An effect: merge the traces of this world, write the result, and raise Merged."""

    number: int
    world: int
    stacks: Mapping[int, bytes]  # compressed, by rank
    why: Mapping[int, str]  # reasons for missing traces, by rank


@dataclass(frozen=True, slots=True)
class StacksMerged:
    """An event: the traces are merged."""

    number: int
    suspects: tuple[int, ...] = ()  # suspect ranks, for which the others wait; () for none
    verdict: str = ""  # the result in words
