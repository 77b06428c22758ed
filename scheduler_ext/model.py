"""The values of the extender: the requests of its HTTP handlers and its answers.

extender_v1.py translates them to JSON; verbs.py decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from turnout.kube.labels import GPU_RESOURCES
from turnout.kube.objects import Pod
from turnout.scheduler_ext.admission import Review
from turnout.topology.accept import MapOutcome


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to filter about the nodes in its request."""

    nodes: Sequence[str]  # in the order asked; names only from the request
    no_room: Mapping[str, str] = field(default_factory=dict)  # name -> why; preemption may try these
    forbidden: Mapping[str, str] = field(default_factory=dict)  # name -> why; nothing that leaves would help
    all_kept: bool = False  # nothing narrowed: the request's list goes back as it came
    pause_s: float = 0.0  # how long to keep the answer back


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that would have to leave for a preemptor."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


class EventReason(Enum):
    """A fact to report besides an answer. Log, metric, Event and test use the same word."""

    NO_MAP = "NoMap"
    NO_ROOM = "NoRoom"
    TIER_TOO_NARROW = "TierTooNarrow"
    OFF_MAP = "OffMap"
    GANG_INCOMPLETE = "GangIncomplete"  # held until as many members exist as must start together
    GANG_UNKNOWN = "GangUnknown"  # what says how many must start together is not there
    GATE_WITHOUT_GANG = "GateWithoutGang"  # our gate was on a pod that belongs to no gang, and was lifted
    NOBODY_PLACES = "NobodyPlaces"  # behind our gate, and nobody has held the nominator's Lease for a while
    PREEMPTING = "Preempting"  # behind our gate, and pods of a lower priority leave for it
    PREEMPTED = "Preempted"  # evicted for a gang of a higher priority
    EVICTION_REFUSED = "EvictionRefused"  # behind our gate, and a disruption budget keeps who would have to leave
    GANG_PARTIAL = "GangPartial"  # some members hold a host, the rest finds none
    GANG_MOVED = "GangMoved"  # what was left of it is evicted, since all of it fits elsewhere
    GANG_GIVEN_UP = "GangGivenUp"  # what was left of it is evicted, and all of it waits
    PLANNED_HOST_MISSING = "PlannedHostMissing"  # the scheduler did not offer the host that a required gang needs
    OLD_VIEW = "OldView"  # one of the refusals above, but from a view that may be old: to be asked again
    BAD_ANNOTATION = "BadAnnotation"
    POD_UNREADABLE = "PodUnreadable"  # its requests or its affinity: it takes no part
    WISH_NOT_KEPT = "WishNotKept"  # a part of a wish for the gang's place, in whatever words, is read and not kept
    PLACED = "Placed"  # the whole gang is bound; on the object that owns its pods
    MAP_APPLIED = MapOutcome.APPLIED.value
    MAP_REJECTED = MapOutcome.REJECTED.value
    MAP_MISSING = MapOutcome.MISSING.value
    MAP_CHANGED_MUCH = MapOutcome.CHANGED_MUCH.value
    MAP_HELD = MapOutcome.HELD.value


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact to report about a pod, the owner of pods, or the map when no object is meant."""

    reason: EventReason
    namespace: str = ""
    name: str = ""
    uid: str = ""  # "" when the map is meant
    detail: str = ""  # at most 500 characters
    kind: str = "Pod"
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Tells why a pod, or the first waiting pod of a gang, can go to no node at all."""

    reason: EventReason
    detail: str
    others_may_leave: bool  # True if it could go somewhere once pods of others have left


@dataclass(frozen=True, slots=True)
class Rules:
    """The choices of the admin."""

    hold_incomplete: bool = False  # refuse members until their gang's min exists; off beside a real gang scheduler
    leaf_only: bool = False  # only membership of the leaf switch counts (DL-104)
    gpu_resources: tuple[str, ...] = GPU_RESOURCES  # names of the resources that count as a GPU
    strict_queues: frozenset[str] = frozenset()  # queues, or namespace/queue, in which the oldest gang keeps a domain
    gated_schedulers: frozenset[str] = frozenset({"default-scheduler"})  # whose pods the webhook puts behind our gate


class ExtenderVerbs(Protocol):
    """The interface that the HTTP handlers call. Its methods never wait: one request sees one state of the cluster."""

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Return which of the named nodes the pod may go to, and why not to the others."""
        ...

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Score the named nodes 1..10. Nodes that would get 0 are left out."""
        ...

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Return which of the nodes offered for preemption, and which of their victims, help the pod."""
        ...

    def refusal_of_pod(self, pod: Pod) -> NoPlace | None:
        """Say why the pod can go to no node, whichever is offered; None if it can, or if that is not known."""
        ...

    def refusal_of_gang(self, namespace: str, name: str) -> NoPlace | None:
        """Say why the gang of a Volcano PodGroup cannot start; None if it can, or if that is not known."""
        ...

    def gates(self, review: Review) -> bool:
        """True if a pod that is being created is to wait behind our scheduling gate."""
        ...

    def unready(self) -> str | None:
        """Say why no answer can be given yet; None when answers can be given."""
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the current state for a person, in JSON types only."""
        ...
