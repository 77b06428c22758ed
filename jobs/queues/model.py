"""A queue as its owner wrote it, and the share that is worked out for it at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

Object = Mapping[str, Any]
Amounts = Mapping[str, int]  # by resource, as turnout.kube.pod_shape counts them
NAMESPACE = "namespace/"  # what the queue of a plain namespace is called by
COHORT = "cohort/"  # what a cohort of Kueue is called by, beside its ClusterQueues
POOL = "elasticquotas/"  # what the mins of all ElasticQuotas of scheduler-plugins make together
NOTHING: Amounts = {}


def bounds_several(name: str) -> bool:
    """True if the name is of a bound on several queues together, to which nobody submits."""
    return name.startswith((COHORT, POOL))


class Dialect(Enum):
    """The system that holds a queue to its share."""

    VOLCANO = "volcano"
    NAMESPACE = "namespace"  # a ResourceQuota, or an ElasticQuota of scheduler-plugins
    KOORDINATOR = "koordinator"
    KUEUE = "kueue"


@dataclass(frozen=True)
class Flavor:
    """The quota that Kueue grants for one resource on one kind of node. None: no such limit."""

    name: str
    resource: str
    nominal: int = 0
    lending: int | None = None
    borrowing: int | None = None

    @cached_property
    def key(self) -> str:
        """Give the name that cohorts count it by."""
        return f"{self.name}/{self.resource}"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue. An amount that is absent: nothing is said of it.

    capability: never more. guarantee: kept for it. deserved: its own; beyond it, it borrows. parent: of a tree, or
    the cohort of Kueue. weight, weights: its part of what others leave, of everything or by resource. lends: may others
    have what it leaves of its own? strict: does nobody start before an older one? namespaces: whose pods it pays for
    when they name no queue. headroom: kept free in it. preempts, reclaims: does Kueue evict whole jobs in it, and for
    it in others? pool: the whole that a tree of its own shares out. source: the object, for a queue that several
    objects make. faults: what could not be read; such an amount is left out, and nothing of the queue may be changed
    until its owner has mended it. grants: the namespaces whose pods and jobs may name it, None for all; nobody names
    what is reached otherwise, such as a ClusterQueue.
    """

    name: str
    dialect: Dialect = Dialect.VOLCANO
    capability: Amounts = field(default_factory=dict)
    guarantee: Amounts = field(default_factory=dict)
    deserved: Amounts = field(default_factory=dict)
    parent: str = ""
    weight: int = 1
    weights: Amounts = field(default_factory=dict)
    lends: bool = True
    open: bool = True
    strict: bool = False
    namespaces: tuple[str, ...] = ()
    headroom: Amounts = field(default_factory=dict)
    flavors: tuple[Flavor, ...] = ()
    preempts: str = ""
    reclaims: bool = False
    pool: Amounts | None = None
    source: str = ""
    faults: tuple[str, ...] = ()
    grants: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one queue at one moment, or of a parent or cohort that bounds several queues."""

    limit: Amounts = field(default_factory=dict)  # the most that its pods together may use
    deserved: Amounts = field(default_factory=dict)  # its own
    used: Amounts = field(default_factory=dict)  # by its pods, and by all below it
    within: str = ""  # the share above, which has to hold what is beyond `kept`
    kept: Amounts = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)  # the resources' names in the share above
    open: bool = True
    headroom: Amounts = field(default_factory=dict)  # room that elastic workers leave free
    refused: str = ""  # why no job of it can be resized
    hazard: str = ""  # why none can but jobs lifted above others by Kueue's priority-boost
    faults: tuple[str, ...] = ()  # why nothing of it may be changed at all
    strict: bool = False  # nobody starts before an older job


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on queues at one moment, by queue."""

    used: Mapping[str, Amounts] = field(default_factory=dict)  # by its pods that have a node, those that leave included
    # What it cannot do without: the mins of its live jobs, and its pods of no job; absent: what is used stands for it.
    asked: Mapping[str, Amounts] = field(default_factory=dict)
    total: Amounts = field(default_factory=dict)  # of all nodes

    def of(self, queue: str) -> Amounts:
        """Return what a queue cannot do without; where that is not told, what it uses."""
        told = self.asked.get(queue)
        return self.used.get(queue, NOTHING) if told is None else told
