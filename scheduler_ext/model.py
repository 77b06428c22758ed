"""The nouns of the extender: answers, notices, writes to gated pods, the admin's rules, and errors.

`wire` translates them from and to bytes. `planner` and `gates` decide on them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from turnout.kube.labels import GPU_RESOURCES
from turnout.kube.objects import NodeSelectorTerm
from turnout.topology.map_update import MapOutcome
from turnout.topology.model import Refusal


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about one pod: the nodes that it may use, or why it may use none.

    Without nodes and without a refusal there is no opinion: every node of the request stays.
    """

    nodes: Sequence[str] | None = (
        None  # in the order of the request; None: no opinion; (): no node, or planned elsewhere if there is no refusal
    )
    refusal: Refusal | None = None  # why the pod may use no node; None if it may, or if there is no opinion
    preemption_nodes: Collection[str] | None = ()  # nodes that the pod could use once others leave; None for all nodes
    retry: bool = False  # the refusal may be wrong: the scheduler should ask again at once
    refused_s: float | None = None  # when a view that may be old refused, in seconds since 1970; None for other answers
    pause_s: float = 0.0  # how long the answer is held back, in seconds

    @property
    def has_opinion(self) -> bool:
        """True unless every node of the request stays."""
        return self.nodes is not None or self.refusal is not None

    @property
    def may_preempt(self) -> bool:
        """True if the pod could use some node once pods of others have left."""
        return self.preemption_nodes is None or bool(self.preemption_nodes)


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that would have to leave for a preemptor."""

    uids: tuple[str, ...]  # of the pods
    pdb_violations: int = 0  # PodDisruptionBudgets that their eviction would violate, >= 0


class EventReason(Enum):
    """A reason to report. Log, metric, Event and test use the same word."""

    NO_MAP = "NoMap"
    NO_ROOM = "NoRoom"
    TIER_TOO_NARROW = "TierTooNarrow"
    OFF_MAP = "OffMap"
    PLAN_REJECTED = "PlanRejected"  # the plan breaks a hard term, or planning raised an error: a fault of the planner
    GANG_INCOMPLETE = "GangIncomplete"  # waits until as many members exist as must start together
    GANG_UNKNOWN = "GangUnknown"  # the PodGroup or owner that states the min does not exist
    GATE_WITHOUT_GANG = "GateWithoutGang"  # our gate was on a pod that belongs to no gang, and was lifted
    NOBODY_PLACES = "NobodyPlaces"  # behind our gate, and no process has held the nominator's Lease for a while
    PREEMPTING = "Preempting"  # behind our gate, and pods of a lower priority leave for it
    PREEMPTED = "Preempted"  # evicted for a gang of a higher priority
    EVICTION_REFUSED = "EvictionRefused"  # behind our gate, and a disruption budget protects the victims
    GANG_PARTIAL = "GangPartial"  # some members hold a host, the others find no host
    GANG_MOVED = "GangMoved"  # its remaining members are evicted, because all of it fits elsewhere
    GANG_MOVE_FAILED = "GangMoveFailed"  # the room that was reserved for its move was given back before all of it ran
    GANG_GIVEN_UP = "GangGivenUp"  # its remaining members are evicted, and all of it waits
    PLANNED_HOST_MISSING = "PlannedHostMissing"  # the scheduler did not offer the host that a required gang needs
    OLD_VIEW = "OldView"  # one of the refusals above, but from a view that may be old: the scheduler asks again
    BAD_ANNOTATION = "BadAnnotation"
    POD_UNREADABLE = "PodUnreadable"  # its requests or affinity cannot be read, so the extender ignores it
    WISH_NOT_KEPT = "WishNotKept"  # a term of any dialect for the gang's place is read and not kept
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
    namespace: str = ""  # of the object; "" when the map is meant, as for name and uid
    name: str = ""
    uid: str = ""
    detail: str = ""  # at most 500 characters
    kind: str = "Pod"  # of the object
    api_version: str = "v1"  # of the object


@dataclass(frozen=True, slots=True)
class Rules:
    """The choices of the admin."""

    hold_incomplete: bool = False  # refuse members until their gang's min exists; False beside a gang scheduler
    leaf_only: bool = False  # only membership of the leaf switch counts (DL-104)
    gpu_resources: tuple[str, ...] = GPU_RESOURCES  # names of the resources that count as a GPU
    strict_queues: frozenset[str] = frozenset()  # queues, or namespace/queue, in which the oldest gang keeps a domain
    gated_schedulers: frozenset[str] = frozenset(
        {"default-scheduler"}
    )  # names of the schedulers whose pods the webhook gates


class LiftReason(Enum):
    """A reason to lift a gate. Log and metric use the same word."""

    PLACED = "Placed"  # the pod has a seat in the plan of its gang
    NOT_JUDGED = "NotJudged"  # the plan has no seat for this pod: its gate is lifted with its gang's
    COMPLETING = "Completing"  # its gang has started and lacks it: the scheduler may find, or make, room for it
    NO_GANG = "NoGang"  # the pod belongs to no gang
    RELEASED = "Released"  # a person lifted all gates


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A waiting pod that carries our gate, as the API server showed it last."""

    uid: str
    namespace: str
    name: str
    version: str  # resourceVersion: a write for this version is refused once the pod has changed
    nominated: str = ""  # status.nominatedNodeName
    other_gates: tuple[str, ...] = ()  # the names of its other gates, which other programs lift
    required_terms: tuple[NodeSelectorTerm, ...] | None = None  # of its required node affinity; None when it has none
    created: str = ""  # RFC 3339


@dataclass(frozen=True, slots=True)
class Nominate:
    """One patch of a gated pod's status."""

    pod: GatedPod
    node: str  # for which the pod is nominated; "" clears our nomination


@dataclass(frozen=True, slots=True)
class Lift:
    """One patch that removes our gate from a pod."""

    pod: GatedPod
    reason: LiftReason
    node: str = ""  # the planned node, "" for none
    only_this_node: bool = False  # True to limit the pod to `node`


@dataclass(frozen=True, slots=True)
class Evict:
    """One eviction of a pod."""

    uid: str
    namespace: str
    name: str
    detail: str  # for the owner of the pod
    reason: EventReason = EventReason.PREEMPTED  # of the Event for the owner


class ExtenderError(Exception):
    """Base of all errors of this package."""


class BadRequest(ExtenderError):
    """A body that cannot be answered as written. Tell the caller; the text quotes nothing of the body."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault


class BadCertificate(ExtenderError):
    """A certificate, key or CA that cannot be used. Keep the one in use; without one, do not start."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault
