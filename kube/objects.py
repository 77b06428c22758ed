"""Kubernetes objects as partial msgspec structs, decoded from raw bytes. They have only the fields that we read.

Unknown fields are skipped and absent fields get a default, so that a newer server never breaks a list. Quantities stay
text here; pod_shape.py reads them.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Struct(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """Base of all partial objects: camelCase on the wire, a default for each absent field."""


class OwnerReference(Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    managed_fields: list[ManagedField] | None = None


class ManagedField(Struct):
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: msgspec.Raw = msgspec.field(name="fieldsV1", default=msgspec.Raw(b"{}"))


class EnvVar(Struct):
    name: str = ""
    value: str | None = None


class ContainerPort(Struct):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Resources(Struct):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None
    claims: list[Any] | None = None


class Container(Struct):
    name: str = ""
    resources: Resources | None = None
    ports: list[ContainerPort] | None = None
    env: list[EnvVar] | None = None
    restart_policy: str | None = None  # "Always" on an init container makes it a sidecar


class Toleration(Struct):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Struct):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None  # pod-level resources
    resource_claims: list[Any] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[Any] | None = None
    volumes: list[dict[str, Any]] | None = None
    scheduling_gates: list[Any] | None = None
    scheduling_group: Any = None  # of Kubernetes 1.37: {"podGroupName": ...}
    host_network: bool = False
    termination_grace_period_seconds: int | None = None


class NodeSelectorRequirement(Struct):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(Struct):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(Struct):
    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Struct):
    weight: int = 0
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(Struct):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredSchedulingTerm] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(Struct):
    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class PodCondition(Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Struct):
    phase: str = ""
    nominated_node_name: str = ""
    conditions: list[PodCondition] | None = None
    pod_ip: str = msgspec.field(name="podIP", default="")
    start_time: str | None = None


class Pod(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(Struct):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(Struct):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeAddress(Struct):
    type: str = ""
    address: str = ""


class NodeCondition(Struct):
    type: str = ""
    status: str = ""


class NodeStatus(Struct):
    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None


class Node(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class ConfigMap(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    data: dict[str, str] | None = None


class PodGroupSpec(Struct):
    min_member: int | None = None
    min_task_member: Any = None  # of Volcano: {task: how many of its pods must start}
    schedule_timeout_seconds: int | None = None
    queue: str = ""
    priority_class_name: str = ""
    network_topology: Any = None  # of Volcano, as its user wrote it
    sub_group_policy: Any = None
    scheduling_policy: Any = None  # of Kubernetes 1.37: {"gang": {"minCount": 4}}
    scheduling_constraints: Any = None
    parent_composite_pod_group_name: Any = None
    min_sub_group: Any = None  # of KAI
    sub_groups: Any = None
    topology_constraint: Any = None


class PodGroup(Struct):
    """A PodGroup of any dialect: Volcano, koordinator, scheduler-plugins agree on `spec.minMember`.

    Kubernetes' own says `spec.schedulingPolicy.gang.minCount`; KAI's subgroups say their own minimums. A
    CompositePodGroup of Kubernetes has the same shape: its policy counts child groups.
    """

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class OwnerSpec(Struct):
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = ""
    replicas: int | None = None


class Owner(Struct):
    """A batch/v1 Job or apps/v1 StatefulSet, with only the fields that tell how many pods it will have."""

    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: OwnerSpec = msgspec.field(default_factory=OwnerSpec)


class LeaseSpec(Struct):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class FullObject(Struct):
    """An object with its whole spec and status, for readers that no partial struct serves."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None

    def raw(self) -> dict[str, Any]:
        """Return the object as plain JSON values."""
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return values
