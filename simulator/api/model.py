"""The kinds that the embedded API knows, as one table. A new kind is a new row.

What a kind does differently from the others is in its row; the code that reads the rows is in store.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.api.defaults import job_defaults, no_defaults, pod_defaults

Object = dict[str, Any]

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


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object. group: "" for core.

    status: has a status subresource, so that writes to the object leave the status alone and the other way round.
    status_at_birth: what a creation says of the status is kept. unconditional: an update may come without a
    resourceVersion. fields: what a fieldSelector may name, beside metadata.name and metadata.namespace.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    status: bool = False
    status_at_birth: bool = False
    unconditional: bool = True
    fields: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    defaults: Callable[[Object], None] = no_defaults
    custom: bool = False  # comes from a CRD: the API server does no strategic merge for it

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As error sentences name it: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _custom(group: str, version: str, kind: str, plural: str, namespaced: bool = True) -> Kind:
    return Kind(
        group, version, kind, plural, namespaced, status=True, status_at_birth=True, unconditional=False, custom=True
    )


KINDS: tuple[Kind, ...] = (
    Kind("", "v1", "Namespace", "namespaces", namespaced=False, status=True, short=("ns",)),
    Kind(
        "",
        "v1",
        "Node",
        "nodes",
        namespaced=False,
        status=True,
        status_at_birth=True,
        fields=("spec.unschedulable",),
        short=("no",),
    ),
    Kind("", "v1", "Pod", "pods", status=True, fields=_POD_FIELDS, short=("po",), defaults=pod_defaults),
    Kind("", "v1", "ConfigMap", "configmaps", short=("cm",)),
    Kind("", "v1", "Secret", "secrets", fields=("type",)),
    Kind("", "v1", "Service", "services", status=True, short=("svc",)),
    Kind("", "v1", "Event", "events", fields=_EVENT_FIELDS, short=("ev",)),
    Kind("coordination.k8s.io", "v1", "Lease", "leases", unconditional=False),
    Kind("batch", "v1", "Job", "jobs", status=True, fields=("status.successful",), defaults=job_defaults),
    Kind("apps", "v1", "StatefulSet", "statefulsets", status=True, short=("sts",)),
    Kind("apps", "v1", "ReplicaSet", "replicasets", status=True, short=("rs",)),
    _custom("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
    _custom("scheduling.volcano.sh", "v1beta1", "Queue", "queues", namespaced=False),
    _custom("scheduling.sigs.k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    _custom("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
)


def kind_named(group: str, version: str, plural: str) -> Kind | None:
    """The row of a resource path, or None when we do not have it."""
    return next((k for k in KINDS if (k.group, k.version, k.plural) == (group, version, plural)), None)
