"""A queue as its owner wrote it, and the share that is worked out for it at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Object = Mapping[str, Any]
Amounts = Mapping[str, int]  # by resource, as turnout.kube.pod_shape counts them
NAMESPACE = "namespace/"  # what the queue of a plain namespace is called by
COHORT = "cohort/"  # what a cohort of Kueue is called by, beside its ClusterQueues
POOL = "elasticquotas/"  # what the mins of all ElasticQuotas of scheduler-plugins make together
NOTHING: Amounts = {}


def bounds_several(name: str) -> bool:
    """Is it what several queues are held to together, and none that anybody submits to?"""
    return name.startswith((COHORT, POOL))


class Dialect(Enum):
    """Who holds the queue to its share."""

    VOLCANO = "volcano"
    NAMESPACE = "namespace"  # a ResourceQuota, or an ElasticQuota of scheduler-plugins
    KOORDINATOR = "koordinator"
    KUEUE = "kueue"


@dataclass(frozen=True, slots=True)
class Flavor:
    """What Kueue grants of one resource on one kind of node. None: no such limit."""

    name: str
    resource: str
    nominal: int = 0
    lending: int | None = None
    borrowing: int | None = None
    key: str = field(init=False)  # what cohorts count it by

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.name}/{self.resource}")


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue. An amount that is absent: nothing is said of it.

    capability: never more. guarantee: kept for it. deserved: its own; beyond it, it borrows. parent: of a tree, or
    the cohort of Kueue. weight, weights: its part of what others leave, of everything or by resource. lends: may others
    have what it leaves of its own? strict: does nobody start before an older one? namespaces: whose pods it pays for
    when they name no queue. headroom: kept free in it. preempts, reclaims: does Kueue evict whole jobs in it, and for
    it in others? pool: the whole that a tree of its own shares out. source: the object, for a queue that several
    objects make. faults: what could not be read; such an amount is left out, and nothing of the queue may be changed
    until its owner has mended it.
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


@dataclass(frozen=True, slots=True)
class Share:
    """What one queue may have now, or a parent or cohort that bounds several.

    limit: its pods together never more. deserved: its own. used: by its pods, and by all below it. within: the share
    above, which has to hold what goes beyond `kept`, there `called` so. headroom: room that elastic workers leave free.
    strict: nobody starts before an older one.
    refused: why no job of it can be resized. hazard: why none can but those that are lifted above others by Kueue's
    priority-boost. faults: why nothing of it may be changed at all.
    """

    limit: Amounts = field(default_factory=dict)
    deserved: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    within: str = ""
    kept: Amounts = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)
    open: bool = True
    headroom: Amounts = field(default_factory=dict)
    refused: str = ""
    hazard: str = ""
    faults: tuple[str, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of queues at one moment, by queue.

    used: by its pods that have a node, those that leave included. asked: what it cannot do without: the mins of its
    live jobs, running or waiting, and its pods that are of no job; what is used stands for a queue of which that is
    not told. total: of all nodes.
    """

    used: Mapping[str, Amounts] = field(default_factory=dict)
    asked: Mapping[str, Amounts] = field(default_factory=dict)
    total: Amounts = field(default_factory=dict)

    def of(self, queue: str) -> Amounts:
        """What a queue cannot do without."""
        told = self.asked.get(queue)
        return self.used.get(queue, NOTHING) if told is None else told
