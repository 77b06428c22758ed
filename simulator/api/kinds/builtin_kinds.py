"""The built-in kinds as one table. A new kind is a new row."""

from __future__ import annotations

from typing import Any

from turnout.simulator.api.kinds import volcano
from turnout.simulator.api.kinds.defaults import (
    definition_defaults,
    job_defaults,
    namespace_defaults,
    node_defaults,
    pod_defaults,
    quota_defaults,
    replica_defaults,
    stateful_defaults,
)
from turnout.simulator.api.kinds.printer_columns import (
    DEPLOYMENT,
    EVENT,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    VOLCANO_GROUP,
    VOLCANO_JOB,
)
from turnout.simulator.api.model import PrinterColumn, ResourceKind, ScaleSubresource

_POD_FIELDS = (
    "spec.nodeName",
    "spec.schedulerName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "status.phase",
    "status.nominatedNodeName",
    "status.podIP",
)
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "reason",
    "type",
    "reportingComponent",
)


def _preinstalled(
    group: str, version: str, kind: str, plural: str, namespaced: bool = True, **more: Any
) -> ResourceKind:
    """Return a kind of a scheduler's CRD that is always served, without its schema. The applied CRD replaces it."""
    return ResourceKind(
        group,
        version,
        kind,
        plural,
        namespaced,
        status=True,
        status_at_birth=True,
        unconditional=False,
        counted=True,
        custom=True,
        **more,
    )


def _set(kind: str, plural: str, short: str, columns: tuple[PrinterColumn, ...]) -> ResourceKind:
    return ResourceKind(
        "apps",
        "v1",
        kind,
        plural,
        status=True,
        workload=True,
        counted=True,
        short=(short,),
        defaults=stateful_defaults if kind == "StatefulSet" else replica_defaults,
        scaling=ScaleSubresource(),
        columns=columns,
    )


NAMESPACES = ResourceKind(
    "",
    "v1",
    "Namespace",
    "namespaces",
    namespaced=False,
    status=True,
    short=("ns",),
    defaults=namespace_defaults,
    columns=NAMESPACE,
)
NODES = ResourceKind(
    "",
    "v1",
    "Node",
    "nodes",
    namespaced=False,
    status=True,
    status_at_birth=True,
    fields=("spec.unschedulable",),
    short=("no",),
    defaults=node_defaults,
    columns=NODE,
)
PODS = ResourceKind(
    "",
    "v1",
    "Pod",
    "pods",
    status=True,
    graceful=True,
    workload=True,
    counted=True,
    fields=_POD_FIELDS,
    short=("po",),
    defaults=pod_defaults,
    columns=POD,
)
EVENTS = ResourceKind("", "v1", "Event", "events", fields=_EVENT_FIELDS, short=("ev",), columns=EVENT)
JOBS = ResourceKind(
    "batch",
    "v1",
    "Job",
    "jobs",
    status=True,
    workload=True,
    counted=True,
    fields=("status.successful",),
    defaults=job_defaults,
    columns=JOB,
)
VOLCANO_JOBS = _preinstalled(
    "batch.volcano.sh",
    "v1alpha1",
    "Job",
    "jobs",
    short=("vcjob", "vj"),
    workload=True,
    defaults=volcano.job_defaults,
    columns=VOLCANO_JOB,
)
BUDGETS = ResourceKind(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", status=True, counted=True, short=("pdb",)
)
QUOTAS = ResourceKind(
    "", "v1", "ResourceQuota", "resourcequotas", status=True, short=("quota",), defaults=quota_defaults
)
PRIORITIES = ResourceKind(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False, counted=True, short=("pc",)
)
DEFINITIONS = ResourceKind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
    status=True,
    counted=True,
    short=("crd", "crds"),
    defaults=definition_defaults,
)


def _stored_kind(group: str, kind: str, plural: str, namespaced: bool = False, **more: Any) -> ResourceKind:
    """Return a kind that is stored and served and has no effect here, so that manifests of any program apply."""
    return ResourceKind(group, "v1", kind, plural, namespaced=namespaced, counted=True, **more)


_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"

ROWS: tuple[ResourceKind, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    ResourceKind("", "v1", "ConfigMap", "configmaps", short=("cm",)),
    ResourceKind("", "v1", "Secret", "secrets", fields=("type",)),
    ResourceKind("", "v1", "Service", "services", status=True, workload=True, short=("svc",)),
    ResourceKind("", "v1", "ServiceAccount", "serviceaccounts", short=("sa",)),
    EVENTS,
    ResourceKind("coordination.k8s.io", "v1", "Lease", "leases", unconditional=False, columns=LEASE),
    JOBS,
    _set("StatefulSet", "statefulsets", "sts", STATEFUL_SET),
    _set("ReplicaSet", "replicasets", "rs", REPLICA_SET),
    _set("Deployment", "deployments", "deploy", DEPLOYMENT),
    BUDGETS,
    QUOTAS,
    PRIORITIES,
    DEFINITIONS,
    _stored_kind(_RBAC, "Role", "roles", namespaced=True),
    _stored_kind(_RBAC, "RoleBinding", "rolebindings", namespaced=True),
    _stored_kind(_RBAC, "ClusterRole", "clusterroles"),
    _stored_kind(_RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    _stored_kind(_ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", status=True),
    _stored_kind(_ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    _stored_kind("networking.k8s.io", "NetworkPolicy", "networkpolicies", namespaced=True, short=("netpol",)),
    # Kept, too: the job controllers make one where a job's policy has metrics.
    ResourceKind(
        "autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", status=True, short=("hpa",)
    ),
    VOLCANO_JOBS,
    _preinstalled("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups", short=("pg",), columns=VOLCANO_GROUP),
    _preinstalled("scheduling.volcano.sh", "v1beta1", "Queue", "queues", namespaced=False, short=("q",)),
    _preinstalled("scheduling.sigs.k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    _preinstalled("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    _preinstalled("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"),
    _preinstalled("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
)
