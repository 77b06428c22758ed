"""The nouns of the extender: what the wire asks of it and what it says back.

The wire is in extender_v1.py, the thinking in verbs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from turnout.kube.labels import GPU_RESOURCES
from turnout.kube.objects import Pod
from turnout.topology.sources.accept import MapOutcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What filter says of the nodes it was asked about."""

    kept: Sequence[str]  # in the order asked; names only from the request
    no_room: Mapping[str, str] = field(default_factory=dict)  # name -> why; preemption may try these
    forbidden: Mapping[str, str] = field(default_factory=dict)  # name -> why; nothing that leaves would help
    all_kept: bool = False  # nothing narrowed: the request's list goes back as it came
    pause_s: float = 0.0  # how long to keep the answer back


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that would have to leave for a preemptor."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


class Word(Enum):
    """What the extender has to say besides an answer: one word in log, metric, Event and test."""

    NO_MAP = "NoMap"
    NO_ROOM = "NoRoom"
    TIER_TOO_NARROW = "TierTooNarrow"
    OFF_MAP = "OffMap"
    GANG_INCOMPLETE = "GangIncomplete"  # held until as many members exist as must start together
    GANG_PARTIAL = "GangPartial"  # some members hold a host, the rest finds none
    PLANNED_HOST_MISSING = "PlannedHostMissing"  # the scheduler did not offer the host that a required gang needs
    OLD_VIEW = "OldView"  # one of the refusals above, but from a view that may be old: to be asked again
    BAD_ANNOTATION = "BadAnnotation"
    MAP_APPLIED = MapOutcome.APPLIED.value
    MAP_REJECTED = MapOutcome.REJECTED.value
    MAP_MISSING = MapOutcome.MISSING.value
    MAP_CHANGED_MUCH = MapOutcome.CHANGED_MUCH.value
    MAP_HELD = MapOutcome.HELD.value


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell about a pod. uid "" when no pod is meant. detail: at most 500 characters."""

    word: Word
    namespace: str = ""
    name: str = ""
    uid: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The admin's choices. hold_incomplete: refuse members until their gang's min exists; off beside a real gang
    scheduler. leaf_only: only membership of the leaf switch counts (DL-104). gpu_resources: what counts as a GPU."""

    hold_incomplete: bool = False
    leaf_only: bool = False
    gpu_resources: tuple[str, ...] = GPU_RESOURCES


class ExtenderVerbs(Protocol):
    """What the HTTP rim asks. Synchronous: one request sees one world."""

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Say which of the named nodes the pod may go to."""
        ...

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Score the named nodes, 1..10; those that would get 0 are left out."""
        ...

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Say which of the nodes offered for preemption, and which of their victims, help the pod."""
        ...

    def unready(self) -> str | None:
        """Say why no answer can be given yet; None when it can."""
        ...

    def describe(self) -> dict[str, Any]:
        """Tell the current world for a person: JSON types only."""
        ...
