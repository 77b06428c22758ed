"""The rights that the autoscaler needs: to observe, for each kind that it resizes, for marks on pods and taints.

The page observes the same and writes nothing. The chart's roles and policies are written from here (`python -m
hack.codegen.rbac`). Reading is never split by kind: without the jobs of one kind, the use of every queue would be
incomplete, and the autoscaler would change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.jobs.kinds.registry import KINDS as JOB_KINDS
from turnout.kube import labels

READ = ("list", "watch")  # verbs
ANNOTATION_PREFIX = "turnout.dev/"  # prefix of our own annotations
# Annotations of pods that tell which pods may be evicted.
POD_NOTES = (labels.SAFE_TO_EVICT, labels.VOLCANO_PREEMPTABLE, labels.VOLCANO_TASK_PRIORITY)


@dataclass(frozen=True, slots=True)
class Rule:
    """Rights on resources of one API group."""

    group: str  # "" for the core
    resources: tuple[str, ...]  # plural names
    verbs: tuple[str, ...] = READ
    names: tuple[str, ...] = ()  # names of the only objects, () for all


@dataclass(frozen=True, slots=True)
class KindRights:
    """The rights that one kind of job needs."""

    group: str
    resource: str  # plural name
    sizes: tuple[str, ...] | None = None  # fields that a resize may change; None for a kind that is never resized
    creates: tuple[str, ...] = ()  # resources of which a resize creates an object

    @property
    def reads(self) -> Rule:
        """The rule to watch the kind's objects."""
        return Rule(self.group, (self.resource,))

    @property
    def writes(self) -> tuple[Rule, ...]:
        """The rules that resizing needs; empty for a kind that is never resized."""
        patched = () if self.sizes is None else (Rule(self.group, (self.resource,), ("patch",)),)
        return (*patched, *(Rule(self.group, (resource,), ("create",)) for resource in self.creates))


KINDS = {name: KindRights(kind.group, kind.plural, kind.sizes, kind.creates) for name, kind in JOB_KINDS.items()}

# To keep the minCount of a native PodGroup at or below the pods that a resized job runs.
GANG_MINS = KindRights("scheduling.k8s.io", "podgroups", ("spec.schedulingPolicy.gang.minCount",))

_QUEUES = (
    Rule("scheduling.volcano.sh", ("podgroups", "queues")),
    Rule("scheduling.sigs.k8s.io", ("elasticquotas", "podgroups")),
    Rule("scheduling.x-k8s.io", ("elasticquotas", "podgroups")),
    Rule("scheduling.run.ai", ("podgroups",)),
    Rule("kueue.x-k8s.io", ("clusterqueues", "cohorts", "localqueues")),
)

# Everywhere.
OBSERVE = (
    Rule("", ("nodes", "pods", "resourcequotas")),
    Rule("scheduling.k8s.io", ("podgroups", "priorityclasses")),
    *_QUEUES,
    Rule("autoscaling", ("horizontalpodautoscalers",)),
    *(kind.reads for kind in KINDS.values()),
    Rule("", ("events",), ("create", "patch")),
)
MARK_PODS_RULES = (Rule("", ("pods",), ("patch",)),)
TAINT_NODES = (Rule("", ("nodes",), ("get", "patch")),)

# In its own namespace.
CONFIGMAPS = ("node-topology-config", "turnout-autoscaler", "turnout-reservations")  # map, orders, reserved nodes
MEMORY = "turnout-autoscaler-memory"  # the ConfigMap of leader memory
NAMED_CONFIGMAPS = (Rule("", ("configmaps",), ("get", *READ), (*CONFIGMAPS,)),)
STATUS_RULES = (
    Rule("", ("configmaps",), ("create", "delete", "patch")),
    Rule("", ("configmaps",), ("get",), (MEMORY,)),
)
LEASE_RULES = (Rule("coordination.k8s.io", ("leases",), ("get", "patch"), ("turnout-autoscaler",)),)

# For a person: what `turnout check` looks at besides.
CHECKED = (
    Rule("", ("namespaces",), ("list",)),
    Rule("apps", ("deployments",), ("list",)),
    Rule("coordination.k8s.io", ("leases",), ("list",)),
    Rule("admissionregistration.k8s.io", ("mutatingadmissionpolicies", "mutatingwebhookconfigurations"), ("list",)),
)

# For the page: what its viewers may see is asked of the API server, and a landing is planned with the sizes of sets.
REVIEWED = (
    Rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    Rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
)
_TREES = Rule("scheduling.k8s.io", ("compositepodgroups",), ("list",))
LANDING_RULES = (Rule("apps", ("statefulsets",), ("list",)), _TREES)
