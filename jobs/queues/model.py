"""A queue as its owner wrote it, and its share at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from turnout.jobs.fields import ObjectPart
from turnout.kube import labels

Object = Mapping[str, Any]
Amounts = Mapping[str, int]  # by resource, as turnout.kube.pod_shape counts them
NAMESPACE = "namespace/"  # prefix of the names of plain namespaces' queues
COHORT = "cohort/"  # prefix of the names of Kueue's cohorts
POOL = "elasticquotas/"  # name of the pool of all ElasticQuotas of scheduler-plugins
NOTHING: Amounts = {}


def bounds_several(name: str) -> bool:
    """Return True if the name is of a limit on several queues together, which no job can name."""
    return name.startswith((COHORT, POOL))


class QueueDialect(Enum):
    """The system that enforces the share of a queue."""

    VOLCANO = "volcano"
    NAMESPACE = "namespace"  # a ResourceQuota, or an ElasticQuota of scheduler-plugins
    KOORDINATOR = "koordinator"
    KUEUE = "kueue"


@dataclass(frozen=True)
class Flavor:
    """The quota of Kueue for one resource on one kind of node."""

    name: str  # of the ResourceFlavor
    resource: str
    nominal: int = 0  # its own quota
    lending: int | None = None  # the most that it lends; None for no limit
    borrowing: int | None = None  # the most that it borrows; None for no limit

    @cached_property
    def key(self) -> str:
        """Return the name of the resource in cohorts."""
        return f"{self.name}/{self.resource}"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as its owner wrote it. An absent amount is unspecified."""

    name: str
    dialect: QueueDialect = QueueDialect.VOLCANO
    capability: Amounts = field(default_factory=dict)  # the limit of its use
    guarantee: Amounts = field(default_factory=dict)  # reserved for it alone
    deserved: Amounts = field(default_factory=dict)  # its own; beyond it, it borrows
    parent: str = ""  # the parent queue, or the cohort of Kueue; "" for none
    weight: int = 1  # its part of what others leave, for all resources
    weights: Amounts = field(default_factory=dict)  # its part of what others leave, by resource
    lends: bool = True  # others may use what it leaves of its own
    open: bool = True  # it accepts new jobs
    strict: bool = False  # no job starts before an older one
    namespaces: tuple[str, ...] = ()  # whose pods it pays for if they name no queue
    headroom: Amounts = field(default_factory=dict)  # kept free in it
    flavors: tuple[Flavor, ...] = ()  # of Kueue
    preempts: str = ""  # Kueue's policy by which it evicts whole jobs inside the queue, "" for never
    reclaims: bool = False  # Kueue may evict whole jobs of other queues for it
    pool: Amounts | None = None  # the total that a tree of its own divides; None for other queues
    source: str = ""  # namespace/name of the object, for a queue that several objects define
    # Fields that could not be read. Their amounts are missing, and nothing in the queue changes until they are correct.
    faults: tuple[str, ...] = ()
    # The namespaces whose pods and jobs may name it; None for all, () if it cannot be named, such as a ClusterQueue.
    grants: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """The limits and the use of one queue at one moment, or of a parent or cohort that limits several queues."""

    limit: Amounts = field(default_factory=dict)  # the most that its pods together may use
    deserved: Amounts = field(default_factory=dict)  # its own
    used: Amounts = field(default_factory=dict)  # by its pods and its subtree
    parent: str = ""  # the parent share, in which use beyond `guaranteed` counts; "" for none
    guaranteed: Amounts = field(default_factory=dict)  # reserved for it alone
    parent_resources: Mapping[str, str] = field(default_factory=dict)  # the names of its resources in the parent share
    open: bool = True
    headroom: Amounts = field(default_factory=dict)  # room that elastic workers leave free
    refused: str = ""  # why none of its jobs can be resized, "" if they can
    eviction_risk: str = ""  # why only jobs with Kueue's priority boost can be resized, "" if all can
    faults: tuple[str, ...] = ()  # why nothing in it may change
    strict: bool = False  # no job starts before an older one


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on the queues at one moment, by queue."""

    used: Mapping[str, Amounts] = field(default_factory=dict)  # by its pods that have a node, also terminating ones
    # Its need: the mins of its live jobs, and its pods without a job. If absent, its use counts as its need.
    needed: Mapping[str, Amounts] = field(default_factory=dict)
    total: Amounts = field(default_factory=dict)  # of all nodes

    def need_of(self, queue: str) -> Amounts:
        """Return the amounts that a queue needs at least; its use if its need is unknown."""
        need = self.needed.get(queue)
        return self.used.get(queue, NOTHING) if need is None else need


def headroom(meta: ObjectPart, *named: Amounts) -> dict[str, int]:
    """Return the GPUs that an owner keeps free in a queue, for the GPU resources that the queue names, else for all."""
    notes = meta.part("annotations")
    gpus = notes.count_in_text(labels.HEADROOM, 0)
    if not gpus:
        return {}
    ours = [what for what in labels.GPU_RESOURCES if any(what in each for each in named)]
    return dict.fromkeys(ours or labels.GPU_RESOURCES, gpus)
