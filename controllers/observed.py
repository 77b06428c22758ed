"""Objects of the API server as the job controllers read them: jobs, their pods and their other children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from turnout.controllers.kind import Kind
from turnout.controllers.model import ChildKey, ChildState, Phase, PodState
from turnout.kube.objects import ObjectMeta, Struct
from turnout.kube.times import unix_s

_LAST_WORDS = 2_048  # characters of a failed container's log, as many as the kubelet keeps
_WAITS = 1_024  # characters of a scheduler's reasons


class Terminated(Struct):
    """How a container has ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None  # the API server says null for what the kubelet has not
    finished_at: str | None = None


class ContainerState(Struct):
    """The state of a container: its end as far as it decides something, the others as they are."""

    terminated: Terminated | None = None
    running: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(Struct):
    """A container of a pod."""

    name: str = ""
    restart_count: int = 0
    ready: bool = False
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodCondition(Struct):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    message: str = ""


class PodStatus(Struct):
    """The part of a pod's status that decides what becomes of it."""

    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodSpec(Struct):
    """The part of a pod's spec that its controller needs."""

    node_name: str = ""


class OwnedPod(Struct):
    """A pod as its controller needs it."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class OwnedStatus(Struct):
    """The part of a PodGroup's status that its job waits for."""

    phase: str = ""


class Owned(Struct):
    """A child that is no pod. data: of a ConfigMap."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    data: dict[str, Any] | None = None
    status: OwnedStatus = msgspec.field(default_factory=OwnedStatus)


class JobObject(Struct):
    """A job of any kind."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


def place_of(kind: Kind, meta: ObjectMeta) -> tuple[str, int]:
    """Return the role and index that a child's labels say; -1 for a child of the whole job."""
    labels, words = meta.labels or {}, kind.child_labels
    index = labels.get(words.index, "")
    return labels.get(words.role, ""), int(index) if index.isascii() and index.isdigit() and len(index) < 8 else -1


def pod_state(kind: Kind, obj: OwnedPod) -> PodState:
    """Return a pod as decisions have it."""
    role, index = place_of(kind, obj.metadata)
    status = obj.status
    try:
        phase = Phase(status.phase or "Pending")
    except ValueError:
        phase = Phase.UNKNOWN
    statuses = status.container_statuses or ()
    mine = [each.state.terminated for each in statuses if kind.container in ("", each.name)]
    ended = [each for each in mine if each is not None]
    ended.sort(key=lambda each: not each.exit_code)  # the one that failed speaks for a pod of any containers
    return PodState(
        obj.metadata.name,
        obj.metadata.uid,
        role,
        index,
        phase,
        obj.metadata.deletion_timestamp is not None,
        ended[0].exit_code if ended else None,
        sum(each.restart_count for each in statuses),
        any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        status.reason or (ended[0].reason if ended else ""),
        obj.spec.node_name,
        ended[0].message[-_LAST_WORDS:] if ended else "",
        (obj.metadata.labels or {}).get(kind.child_labels.mode, ""),
        msgspec.to_builtins(statuses) if kind.tells_containers else (),
        unix_s((ended[0].started_at if ended else None) or status.start_time),
        unix_s(ended[0].finished_at) if ended else None,
        _scheduler_message(obj),
        _since_s(obj.metadata, ended),
    )


def _scheduler_message(obj: OwnedPod) -> str:
    """Return why a pod has no node, in its scheduler's words."""
    conditions = (
        each for each in obj.status.conditions or () if each.type == "PodScheduled" and each.status == "False"
    )
    return "" if obj.spec.node_name else next((each.message[:_WAITS] for each in conditions), "")


def child_state(kind: Kind, child_kind: str, obj: Owned) -> ChildState:
    """Return a child that is no pod as decisions have it. child_kind: what it is."""
    role, index = place_of(kind, obj.metadata)
    key, data, phase = ChildKey(child_kind, obj.metadata.name), obj.data or {}, obj.status.phase
    data = data if child_kind == "ConfigMap" else {}
    return ChildState(key, obj.metadata.uid, role, index, obj.spec, data, phase)


def _since_s(meta: ObjectMeta, ended: Sequence[Terminated]) -> float:
    if meta.deletion_timestamp is not None:
        return unix_s(meta.deletion_timestamp) or 0.0
    last_s = max((unix_s(each.finished_at) or 0.0 for each in ended), default=0.0)
    return last_s or unix_s(meta.creation_timestamp) or 0.0
