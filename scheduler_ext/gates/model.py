"""The nouns of gates: a gang with gated pods, and the room that evictions make for it.

Every field is read from the API server's objects, so a process that restarts knows as much as the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.scheduler_ext.model import EventReason, Evict, GatedPod


@dataclass(frozen=True, slots=True)
class Preemption:
    """The room that is made for a gang: who leaves for it, and where its members are nominated meanwhile."""

    hosts: Mapping[str, str]  # uid -> node
    victims: tuple[Evict, ...]  # to be evicted, in this order
    terminating_pods: int  # pods that leave already
    refusal_detail: str = ""  # why the last eviction was not done


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a gang stays behind its gates."""

    reason: EventReason
    detail: str


@dataclass(frozen=True, slots=True)
class GatedGang:
    """A gang of which members are behind our gate, and what the planner says of it.

    gated: in the order of their ranks.
    """

    gated_pods: tuple[GatedPod, ...]
    min_pods: int  # how many must start together
    startable_pods: int  # members that exist and wait for no gate of somebody else
    ungated_pods: int  # those among them that are not behind our gate
    has_started: bool  # True if a member runs, or was let go before
    requires_level: bool  # True if the gang must stay within a tier
    hosts: Mapping[str, str] = field(default_factory=dict)  # uid -> planned node
    planned_uids: frozenset[str] = frozenset()  # uids of the members whose place the plan decides
    nominable_uids: frozenset[str] = frozenset()
    nominated_by_us: frozenset[str] = frozenset()  # uids of gated members whose nomination is ours
    unknown_size: Wait | None = None  # why nobody can say how many must start together
    preemption: Preemption | None = None  # room, by evictions
    shortfall: Wait | None = None  # why not every member has a place in the plan
