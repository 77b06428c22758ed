"""A queue as its owner wrote it, and its share at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from turnout.jobs.fields import ObjectPart, read_count_in_text
from turnout.kube import labels

Object = Mapping[str, Any]  # a Kubernetes object as JSON
Amounts = Mapping[str, int]  # by resource, as turnout.kube.pod_shape counts them
NAMESPACE = "namespace/"  # prefix of the names of plain namespaces' queues
COHORT = "cohort/"  # prefix of the names of Kueue's cohorts
POOL = "elasticquotas/"  # name of the pool of all ElasticQuotas of scheduler-plugins
NOTHING: Amounts = {}


def bounds_several(name: str) -> bool:
    """Return True if the name belongs to a cohort or pool, which limits several queues and which no job can name."""
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

    name: str  # the name of the ResourceFlavor
    resource: str  # the name of the resource
    nominal: int = 0  # nominalQuota: its own quota
    lending: int | None = None  # lendingLimit: the part of its own quota that others may borrow; None for no limit
    borrowing: int | None = None  # borrowingLimit: the amount that it may borrow; None for no limit

    @cached_property
    def key(self) -> str:
        """Return the name of the resource in cohorts, FLAVOR/RESOURCE."""
        return f"{self.name}/{self.resource}"


@dataclass(frozen=True, slots=True)
class KueueTerms:
    """The terms that only a ClusterQueue or Cohort of Kueue has."""

    flavors: tuple[Flavor, ...] = ()  # its quotas
    preempts: str = ""  # the policy by which Kueue evicts whole jobs inside the queue, "" for never
    # True if reclaimWithinCohort is not Never: to give the queue its quota back, Kueue may evict jobs of other queues
    # of the cohort tree, each with all its pods.
    reclaims: bool = False


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a queue and others divide amounts that are not used."""

    weight: int = 1  # Volcano's weight, by which queues divide the amounts of all resources, >= 1
    weights: Amounts = field(default_factory=dict)  # koordinator's weights, by resource
    lends: bool = True  # True if others may use the unused part of its own amounts


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """The namespaces that use a queue."""

    namespaces: tuple[str, ...] = ()  # namespaces whose pods it pays for if they name no queue
    # The namespaces whose pods and jobs may name it; None for all, () if it cannot be named, such as a ClusterQueue.
    grants: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as its owner wrote it. A resource that is absent from the amounts is unspecified."""

    name: str  # unique in its dialect
    dialect: QueueDialect = QueueDialect.VOLCANO
    capability: Amounts = field(default_factory=dict)  # the limit of its use
    guarantee: Amounts = field(default_factory=dict)  # reserved for it alone
    deserved: Amounts = field(default_factory=dict)  # its own amounts; use beyond them is borrowed
    parent: str = ""  # the parent queue, or the cohort of Kueue; "" for none
    sharing: Sharing = Sharing()
    open: bool = True  # True if it accepts new jobs
    strict: bool = False  # True if no job starts before an older one
    access: QueueAccess = QueueAccess()
    headroom: Amounts = field(default_factory=dict)  # amounts that elastic workers leave free
    kueue: KueueTerms = KueueTerms()
    pool: Amounts | None = None  # the total that its own tree or the ElasticQuotas together divide; None for others
    source: str = ""  # namespace/name of the object, for a queue that several objects define
    # Fields that could not be read. Their amounts are missing, and nothing in the queue changes until they are correct.
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueShare:
    """The share of one queue at one moment: its limits and its use. A parent, cohort or pool has a share, too."""

    limit: Amounts = field(default_factory=dict)  # the largest use of all its pods together; absent for no limit
    deserved: Amounts = field(default_factory=dict)  # its own amounts; use beyond them is borrowed
    used: Amounts = field(default_factory=dict)  # the use of its pods and its subtree
    parent: str = ""  # the parent share, in which use beyond `guaranteed` counts; "" for none
    guaranteed: Amounts = field(default_factory=dict)  # reserved for it alone
    parent_resources: Mapping[str, str] = field(default_factory=dict)  # the names of its resources in the parent share
    open: bool = True  # True if it accepts new jobs
    headroom: Amounts = field(default_factory=dict)  # amounts that elastic workers leave free
    refused: str = ""  # why none of its jobs can be resized, "" if they can
    eviction_risk: str = ""  # why only jobs with Kueue's priority boost can be resized, "" if all can
    faults: tuple[str, ...] = ()  # why nothing in it may change, a sentence each
    strict: bool = False  # True if no job starts before an older one


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on the queues at one moment, by the name of the queue."""

    used: Mapping[str, Amounts] = field(default_factory=dict)  # the use of pods with a node, also of terminating pods
    # The need of a queue: the mins of its live jobs, and its pods without a job. If absent, its use counts as its need.
    needed: Mapping[str, Amounts] = field(default_factory=dict)
    total: Amounts = field(default_factory=dict)  # the amounts of all nodes

    def need_of(self, queue: str) -> Amounts:
        """Return the amounts that a queue needs at least; its use if its need is unknown, {} if both are."""
        need = self.needed.get(queue)
        return self.used.get(queue, NOTHING) if need is None else need


def headroom(meta: ObjectPart, *named: Amounts) -> dict[str, int]:
    """Return the amounts that our annotation keeps free in a queue, by GPU resource, in GPUs.

    {} if it is absent, 0 or unreadable. meta: the metadata of the queue's object. named: amounts of the queue. The
    headroom applies to the GPU resources in `named`, to all GPU resources if `named` has none. An unreadable value is a
    fault of `meta`.
    """
    annotations = meta.part("annotations")
    gpus = read_count_in_text(annotations, labels.HEADROOM, 0)
    if not gpus:
        return {}
    gpu_resources = [resource for resource in labels.GPU_RESOURCES if any(resource in each for each in named)]
    return dict.fromkeys(gpu_resources or labels.GPU_RESOURCES, gpus)
