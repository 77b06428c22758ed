"""The nouns of gates: a pod behind our gate, what is written on it, and why a gang still waits.

Every one of them is read from what the API server shows, so a process that starts anew knows as much as the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import NodeSelectorTerm, Pod
from turnout.scheduler_ext.cache.pod_info import gates_of
from turnout.scheduler_ext.model import EventReason


class LiftReason(Enum):
    """A reason why a gate is lifted. Log and metric use the same word."""

    PLACED = "Placed"  # the pod has a seat in the plan of its gang
    NOT_JUDGED = "NotJudged"  # the plan says nothing of this pod: it goes with its gang
    COMPLETING = "Completing"  # its gang has started and lacks it: the scheduler may find, or make, room for it
    NO_GANG = "NoGang"  # nobody else has to start with it
    RELEASED = "Released"  # a person asked for it


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A waiting pod that carries our gate, as the API server showed it last."""

    uid: str
    namespace: str
    name: str
    version: str  # resourceVersion: a write for this version is refused once the pod has changed
    nominated: str = ""  # status.nominatedNodeName
    other_gates: tuple[str, ...] = ()  # the names of its other gates, which are not ours to lift
    required_terms: tuple[NodeSelectorTerm, ...] | None = None  # of its required node affinity; None when it has none
    created: str = ""  # RFC 3339


@dataclass(frozen=True, slots=True)
class Nominate:
    """One patch of a gated pod's status. node: "" clears our nomination."""

    pod: GatedPod
    node: str


@dataclass(frozen=True, slots=True)
class Lift:
    """One patch that takes our gate from a pod.

    node: where it is expected, "" when unknown. pinned: True if it may go nowhere else.
    """

    pod: GatedPod
    reason: LiftReason
    node: str = ""
    only_this_node: bool = False


@dataclass(frozen=True, slots=True)
class Evict:
    """One eviction of a pod of a lower priority. why: for its owner."""

    uid: str
    namespace: str
    name: str
    detail: str


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


def gated_pod(pod: Pod) -> GatedPod | None:
    """Read a pod; None when our gate is not on it, or when it will not be scheduled any more."""
    gates = gates_of(pod)
    if PLACEMENT_GATE not in gates or pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
        return None
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required if affinity else None
    return GatedPod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        version=pod.metadata.resource_version,
        nominated=pod.status.nominated_node_name,
        other_gates=tuple(sorted(gates - {PLACEMENT_GATE})),
        required_terms=None if required is None else tuple(required.node_selector_terms),
        created=pod.metadata.creation_timestamp or "",
    )
