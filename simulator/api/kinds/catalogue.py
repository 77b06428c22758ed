"""The kinds that the embedded API serves: the built-in ones as rows, and those that CRDs have added."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
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
    AGE,
    DEPLOYMENT,
    EVENT,
    JOB,
    LEASE,
    NAME,
    NAMESPACE,
    NODE,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    UNKNOWN,
    VOLCANO_GROUP,
    VOLCANO_JOB,
    time_since,
)
from turnout.simulator.api.model import (
    ApiRefusal,
    Object,
    PrinterColumn,
    ResourceKind,
    ScaleSubresource,
    Show,
    invalid,
    value_at,
)

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


def _preinstalled_kind(
    group: str, version: str, kind: str, plural: str, namespaced: bool = True, **fields: Any
) -> ResourceKind:
    """Return a kind of another project's CRD that is always served, without a schema.

    An applied CRD of the kind replaces it. group, version: of its API. plural: the name in paths. namespaced: False if
    it is cluster-scoped. fields: other fields of ResourceKind.
    """
    return ResourceKind(
        group,
        version,
        kind,
        plural,
        namespaced,
        status=True,
        keeps_created_status=True,
        allows_unversioned_update=False,
        counts_generations=True,
        custom=True,
        **fields,
    )


def _pod_set_kind(kind: str, plural: str, short: str, columns: tuple[PrinterColumn, ...]) -> ResourceKind:
    """Return a kind of the group apps that controls a set of pods, such as ReplicaSet.

    plural: the name in paths. short: kubectl's short name. columns: those that kubectl prints.
    """
    return ResourceKind(
        "apps",
        "v1",
        kind,
        plural,
        status=True,
        workload=True,
        counts_generations=True,
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
    keeps_created_status=True,
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
    counts_generations=True,
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
    counts_generations=True,
    fields=("status.successful",),
    defaults=job_defaults,
    columns=JOB,
)
VOLCANO_JOBS = _preinstalled_kind(
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
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", status=True, counts_generations=True, short=("pdb",)
)
QUOTAS = ResourceKind(
    "", "v1", "ResourceQuota", "resourcequotas", status=True, short=("quota",), defaults=quota_defaults
)
PRIORITIES = ResourceKind(
    "scheduling.k8s.io",
    "v1",
    "PriorityClass",
    "priorityclasses",
    namespaced=False,
    counts_generations=True,
    short=("pc",),
)
DEFINITIONS = ResourceKind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
    status=True,
    counts_generations=True,
    short=("crd", "crds"),
    defaults=definition_defaults,
)


def _stored_kind(group: str, kind: str, plural: str, namespaced: bool = False, **fields: Any) -> ResourceKind:
    """Return a kind of version v1 that is stored and served, but has no effect here, so that manifests of any program
    apply.

    group: of its API. plural: the name in paths. namespaced: False if it is cluster-scoped. fields: other fields of
    ResourceKind.
    """
    return ResourceKind(group, "v1", kind, plural, namespaced=namespaced, counts_generations=True, **fields)


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
    ResourceKind("coordination.k8s.io", "v1", "Lease", "leases", allows_unversioned_update=False, columns=LEASE),
    JOBS,
    _pod_set_kind("StatefulSet", "statefulsets", "sts", STATEFUL_SET),
    _pod_set_kind("ReplicaSet", "replicasets", "rs", REPLICA_SET),
    _pod_set_kind("Deployment", "deployments", "deploy", DEPLOYMENT),
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
    _preinstalled_kind(
        "scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups", short=("pg",), columns=VOLCANO_GROUP
    ),
    _preinstalled_kind("scheduling.volcano.sh", "v1beta1", "Queue", "queues", namespaced=False, short=("q",)),
    _preinstalled_kind("scheduling.sigs.k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    _preinstalled_kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    _preinstalled_kind("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"),
    _preinstalled_kind("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
    _preinstalled_kind("scheduling.k8s.io", "v1alpha3", "CompositePodGroup", "compositepodgroups"),
)


# One step of a simple JSONPath.
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\['?\"?([^'\"\]]+)'?\"?\]")


def kind_of(crd: Object) -> ResourceKind:
    """Return the kind that a CRD defines.

    Raises ApiRefusal: 422 for a CRD without a group, plural, kind or schema, or whose name is not PLURAL.GROUP; 501 for
    one with CEL rules, or that does not serve exactly one version. Raises KeyError, TypeError, ValueError or
    AttributeError for another malformed CRD.
    """
    version = _served_version(crd)
    spec, parts = crd["spec"], version.get("subresources") or {}
    names = spec["names"]
    return ResourceKind(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        spec.get("scope") == "Namespaced",
        status="status" in parts,
        allows_unversioned_update=False,
        counts_generations=True,
        short=tuple(names.get("shortNames") or ()),
        custom=True,
        scaling=_scaling(parts["scale"]) if "scale" in parts else None,
        columns=_columns(version.get("additionalPrinterColumns") or ()),
        schema=version["schema"]["openAPIV3Schema"],
        singular=names.get("singular", ""),
    )


def _served_version(crd: Object) -> dict[str, Any]:
    """Return the only version that a CRD serves, one entry of spec.versions.

    The errors are those of kind_of().
    """
    name = crd["metadata"]["name"]
    for path in (("group",), ("names", "plural"), ("names", "kind")):
        if not value_at(crd, "spec", *path):
            raise invalid("CustomResourceDefinition", name, f"spec.{'.'.join(path)}: Required value")
    if name != f"{crd['spec']['names']['plural']}.{crd['spec']['group']}":
        raise invalid("CustomResourceDefinition", name, 'metadata.name: must be spec.names.plural+"."+spec.group')
    served = [version for version in crd["spec"].get("versions") or () if version.get("served")]
    if len(served) != 1:
        raise ApiRefusal("NotImplemented", f"CRD {name} serves {len(served)} versions; the embedded API does one")
    version: dict[str, Any] = served[0]
    schema = value_at(version, "schema", "openAPIV3Schema")
    if schema is None:
        raise invalid("CustomResourceDefinition", name, "spec.versions[0].schema.openAPIV3Schema: Required value")
    if any(_has_rules(schema)):
        raise ApiRefusal("NotImplemented", f"CRD {name} has x-kubernetes-validations, which need a real API server")
    return version


def established_status(crd: Object, now: str) -> Object:
    """Return the status of a CRD whose kind is served: its conditions, names and stored versions. now: RFC 3339.

    crd: a valid one, as kind_of() accepts it.
    """
    names = crd["spec"]["names"]
    names = {**names, "singular": names.get("singular") or names["kind"].lower()}
    names["listKind"] = names.get("listKind") or f"{names['kind']}List"
    conditions = [
        {"type": word, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
        for word, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    return {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}


def _has_rules(schema: Any) -> Iterator[bool]:
    """Yield True or False for each part of a schema: whether it has CEL validation rules. schema: of any type."""
    if isinstance(schema, dict):
        yield "x-kubernetes-validations" in schema
        for each in schema.values():
            yield from _has_rules(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _has_rules(each)


def _scaling(subresource: dict[str, Any]) -> ScaleSubresource:
    """Return the paths of a CRD's scale subresource as tuples of keys; () for a path that is not set.

    subresource: the entry `scale` of the CRD's subresources.
    """

    def path(key: str) -> tuple[str, ...]:
        return tuple(step for step in str(subresource.get(key, "")).split(".") if step)

    return ScaleSubresource(path("specReplicasPath"), path("statusReplicasPath"), path("labelSelectorPath"))


def _columns(columns: Any) -> tuple[PrinterColumn, ...]:
    """Return kubectl's columns of a CRD: the name, then additionalPrinterColumns, or the age if there are none.

    columns: the CRD's additionalPrinterColumns.
    """
    printer_columns = [
        PrinterColumn(
            each["name"],
            _cell_printer(each),
            int(each.get("priority", 0)),
            "integer" if each.get("type") == "integer" else "string",
        )
        for each in columns
    ]
    return (NAME, *printer_columns) if printer_columns else (NAME, AGE)


def _cell_printer(column: dict[str, Any]) -> Show:
    """Return the function that prints a cell of a column: the value at its JSONPath, or the time since then for a date.

    Only simple paths work, such as `.status.phase` or `.metadata.labels['a.b/c']`.
    """
    steps = tuple(a or b for a, b in _STEP.findall(column.get("jsonPath", "")))
    if column.get("type") == "date":
        return time_since(*steps)

    def show(obj: Object, now_s: float) -> str | int:
        """Return the value at the column's JSONPath as kubectl prints it: "" if absent, UNKNOWN for a list or object.

        now_s: seconds since 1970.
        """
        value = value_at(obj, *steps)
        if isinstance(value, bool):
            return "true" if value else "false"
        return (
            ""
            if value is None
            else value
            if isinstance(value, int)
            else str(value)
            if not isinstance(value, dict | list)
            else UNKNOWN
        )

    return show


class Catalogue:
    """The served kinds by resource (plural.group), one version of each. A CRD adds a kind, or replaces one."""

    def __init__(self, rows: Iterable[ResourceKind] = ROWS) -> None:
        self._by_resource = {kind.resource: kind for kind in rows}
        self._preinstalled = dict(self._by_resource)

    def kinds(self) -> list[ResourceKind]:
        """Return all kinds, in the order in which they were added."""
        return list(self._by_resource.values())

    def find(self, group: str, version: str, plural: str) -> ResourceKind | None:
        """Return the kind with this group, version and plural; None if it is not served in this version.

        group: "" for the core group.
        """
        kind = self._by_resource.get(f"{plural}.{group}" if group else plural)
        return kind if kind is not None and kind.version == version else None

    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each served API group, by group. The core group is left out. A new mapping."""
        versions_of_group: dict[str, list[str]] = {}
        for kind in self._by_resource.values():
            if kind.group and kind.version not in (versions := versions_of_group.setdefault(kind.group, [])):
                versions.append(kind.version)
        return versions_of_group

    def put(self, kind: ResourceKind) -> None:
        """Serve the kind of a CRD, in place of a kind of the same resource.

        The defaults of a preinstalled kind stay.
        """
        first = self._preinstalled.get(kind.resource)
        self._by_resource[kind.resource] = replace(kind, defaults=first.defaults) if first else kind

    def drop(self, resource: str) -> None:
        """Stop serving a kind. A preinstalled kind of that resource is served again. Do nothing if it is not served.

        resource: ResourceKind.resource.
        """
        self._by_resource.pop(resource, None)
        if resource in self._preinstalled:
            self._by_resource[resource] = self._preinstalled[resource]
