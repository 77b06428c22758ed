"""Keep what the watches and our own writes have shown: jobs, their children, and the resources of nodes.

The answer to a write counts at once, so no child is created twice while its watch lags behind (the purpose of
expectations in other controllers). Older versions of an object, and answers about deleted objects, are ignored. If an
object is known only from the answer to our write and a later list does not contain it, it was deleted before the watch
saw it, and is dropped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.controllers.conditions import job_phase
from turnout.controllers.model import (
    ChildKey,
    ChildState,
    ControlledKind,
    JobKey,
    JobPhase,
    Object,
    OwnedObjects,
    PodPhase,
    PodState,
    TrainingContainer,
)
from turnout.controllers.role_pods import extended_resources
from turnout.kube.objects import ObjectMeta, Struct
from turnout.kube.times import unix_s
from turnout.kube.watch_events import Key

_Owner = tuple[str, str]  # namespace and uid of a job: an object of another namespace that names the uid is not its own
_MAX_DELETED = 20_000  # uids of deleted objects that are remembered


@dataclass(frozen=True, slots=True)
class _CachedJob:
    """A job as JSON, which takes a fifth of the memory of its dicts."""

    uid: str
    version: int  # resourceVersion
    raw: bytes  # JSON of the object
    phase: JobPhase


@dataclass(frozen=True, slots=True)
class _CachedChild:
    """The version of a child that was seen last."""

    owner: _Owner
    uid: str
    version: int  # the highest resourceVersion so far
    watch: str | None  # label of the watch that has not shown the child yet; None once a watch has shown it


class ChildCache:
    """The jobs and their children.

    changed: called with each job that has to be reconciled. kinds: by the path of their group, as in a JobKey.
    """

    def __init__(self, changed: Callable[[JobKey], None], kinds: Mapping[str, ControlledKind]) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._changed = changed
        self.nodes = NodeResources()
        self._pods_unreadable = False  # pods cannot be read
        self._kinds = kinds
        self._jobs: dict[JobKey, _CachedJob] = {}
        self._keys: dict[_Owner, JobKey] = {}
        self._pods: dict[_Owner, dict[str, PodState]] = {}  # by the pod's name
        self._others: dict[_Owner, dict[ChildKey, ChildState]] = {}
        self._known: dict[tuple[str, str, str], _CachedChild] = {}  # by kind, namespace and name
        self._deleted_uids: OrderedDict[str, None] = OrderedDict()

    def put_job(self, api: str, kind: str, obj: JobObject, *, from_own_write: bool = False) -> None:
        """Store a job and report it as changed. Ignored if this version or a newer one is known.

        The answer to a write of ours about a deleted job is ignored, too. api: the path of its group, as in a JobKey.
        from_own_write: True for the answer to a write of ours, False for a watch.
        """
        meta, version = obj.metadata, _version(obj.metadata)
        if not from_own_write:
            self._deleted_uids.pop(meta.uid, None)  # an API server that was restored from a backup has it again
        key = JobKey(api, meta.namespace, meta.name)
        before = self._jobs.get(key)
        if meta.uid in self._deleted_uids or (
            before is not None and before.uid == meta.uid and before.version >= version
        ):
            return
        if before is not None and before.uid != meta.uid:
            self._keys.pop((key.namespace, before.uid), None)
        raw = {
            "apiVersion": api.removeprefix("/apis/"),
            "kind": kind,
            "metadata": meta,
            "spec": obj.spec or {},
            "status": obj.status or {},
        }
        phase = job_phase(self._kinds[api], obj.status or {})
        self._jobs[key] = _CachedJob(meta.uid, version, msgspec.json.encode(raw), phase)
        self._keys[meta.namespace, meta.uid] = key
        self._changed(key)

    def drop_job(self, api: str, key_of_job: Key) -> None:
        """Drop a deleted job. A newer job of the same name stays. api: the path of its group, as in a JobKey.

        Its children stay until their watches show that the API server has deleted them.
        """
        _note_deleted(self._deleted_uids, key_of_job.uid)
        key = JobKey(api, key_of_job.namespace, key_of_job.name)
        if (cached := self._jobs.get(key)) is not None and cached.uid == key_of_job.uid:
            del self._jobs[key]
            self._keys.pop((key_of_job.namespace, key_of_job.uid), None)

    def put_pod(self, obj: OwnedPod, *, from_own_write: bool = False) -> None:
        """Store a pod of a job, and report its job as changed.

        Ignored if a newer version is known, if it belongs to no job of our kinds, or if it is an answer about a deleted
        pod. from_own_write: True for the answer to a write of ours, False for a watch.
        """
        if (ownership := self._store_version("Pod", obj.metadata, from_own_write)) is None:
            return
        owner, kind = ownership
        self._pods.setdefault(owner, {})[obj.metadata.name] = pod_state(kind, obj)
        _note_changed(self._keys, self._changed, owner)

    def put_other(self, kind: str, obj: Owned, *, from_own_write: bool = False) -> None:
        """Store a child that is not a pod, and report its job as changed. Ignored in the same cases as in `put_pod`.

        kind: of the child. from_own_write: True for the answer to a write of ours, False for a watch.
        """
        if (ownership := self._store_version(kind, obj.metadata, from_own_write)) is None:
            return
        owner, owners_kind = ownership
        child = child_state(owners_kind, kind, obj)
        self._others.setdefault(owner, {})[child.key] = child
        _note_changed(self._keys, self._changed, owner)

    def drop_child(self, kind: str, child_key: Key) -> None:
        """Drop a deleted child, and report its job as changed.

        Answers to earlier writes about it are ignored from now on. Another object with its name is left alone. Nothing
        is reported for a child that is not in the cache. kind: of the child.
        """
        _note_deleted(self._deleted_uids, child_key.uid)
        known = self._known.get((kind, child_key.namespace, child_key.name))
        if known is None or known.uid != child_key.uid:
            return
        del self._known[kind, child_key.namespace, child_key.name]
        owner = known.owner
        siblings: dict[Any, Any] = self._pods.get(owner, {}) if kind == "Pod" else self._others.get(owner, {})
        siblings.pop(child_key.name if kind == "Pod" else ChildKey(kind, child_key.name), None)
        if not siblings:
            (self._pods if kind == "Pod" else self._others).pop(owner, None)
        _note_changed(self._keys, self._changed, owner)

    def drop_unlisted(self, kind: str, label: str, version: str) -> None:
        """Drop the children that are known only from the answer to a write of ours, and are missing in a later list.

        They were deleted before the watch showed them. Children that a watch has shown stay. kind: of the children.
        label: the labelSelector of the list, "" for none. version: resourceVersion of the list; newer children stay.
        """
        list_version = int(version) if version.isascii() and version.isdigit() else 0
        deleted = [
            Key(namespace, name, child.uid)
            for (known_kind, namespace, name), child in self._known.items()
            if known_kind == kind
            and child.watch is not None
            and label in ("", child.watch)
            and child.version <= list_version
        ]
        for each in deleted:
            self.drop_child(kind, each)

    def job(self, key: JobKey) -> tuple[Object, OwnedObjects] | None:
        """Return a new copy of a job's object and the objects that it owns; None for a job that is not in the cache."""
        if (cached := self._jobs.get(key)) is None:
            return None
        owner = key.namespace, cached.uid
        pods, others = self._pods.get(owner, {}), self._others.get(owner, {})
        return msgspec.json.decode(cached.raw), OwnedObjects(
            tuple(pods.values()), dict(others), self.nodes.offered, self._pods_unreadable
        )

    def set_pods_readable(self, *, readable: bool) -> None:
        """Store whether pods can be read. Does nothing if the value does not change.

        When pods become readable, every job is reconciled. When they become unreadable, only jobs whose status lists
        container statuses are reconciled.
        """
        if self._pods_unreadable is not readable:
            return
        self._pods_unreadable = not readable
        for key in self._jobs:
            kind = self._kinds.get(key.api)
            if readable or (kind is not None and kind.status.reports_containers):
                self._changed(key)

    def jobs(self) -> Mapping[JobKey, object]:
        """Return a mapping whose keys are the existing jobs."""
        return self._jobs

    def count_by_phase(self) -> Mapping[tuple[str, JobPhase], int]:
        """Return the number of jobs by the full name of their kind and by phase."""
        return Counter((self._kinds[key.api].full_name, job.phase) for key, job in self._jobs.items())

    def _store_version(self, kind: str, meta: ObjectMeta, from_own_write: bool) -> tuple[_Owner, ControlledKind] | None:
        """Store the version of a child, and return its owner and the owner's kind; None if the child is to be ignored.

        Ignored are a child of no job of our kinds, an old version, and the answer to a write of ours about a child that
        was deleted meanwhile. What a watch shows counts also after a deletion: an API server restored from a backup has
        the child again. from_own_write: True for the answer to a write of ours.
        """
        if (ownership := _owner_of(self._kinds, meta)) is None:
            return None
        owner, owners_kind = ownership
        if not from_own_write:
            self._deleted_uids.pop(meta.uid, None)
        if meta.uid in self._deleted_uids:
            return None
        child, version = (kind, meta.namespace, meta.name), _version(meta)
        known = self._known.get(child)
        if known is not None and known.uid != meta.uid:
            known = None
        is_watched = not from_own_write or (known is not None and known.watch is None)
        newest = version if known is None else max(version, known.version)
        self._known[child] = _CachedChild(
            owner, meta.uid, newest, None if is_watched else owners_kind.children.label_keys.job
        )
        return None if newest > version else (owner, owners_kind)


def _note_changed(keys: Mapping[_Owner, JobKey], changed: Callable[[JobKey], None], owner: _Owner) -> None:
    """Report that a job has to be reconciled. An unknown job is ignored."""
    if (key := keys.get(owner)) is not None:
        changed(key)


def _owner_of(kinds: Mapping[str, ControlledKind], meta: ObjectMeta) -> tuple[_Owner, ControlledKind] | None:
    """Return ((namespace, uid), kind) of the job that controls a child; None if no job of our kinds controls it."""
    reference = next((each for each in meta.owner_references or () if each.controller), None)
    kind = None if reference is None else kinds.get(f"/apis/{reference.api_version}")
    if reference is None or kind is None or kind.kind != reference.kind:
        return None
    return (meta.namespace, reference.uid), kind


def _note_deleted(deleted_uids: OrderedDict[str, None], uid: str) -> None:
    """Remember the uid of a deleted object, so that later answers about it are ignored.

    Above _MAX_DELETED uids the oldest is forgotten.
    """
    deleted_uids[uid] = None
    if len(deleted_uids) > _MAX_DELETED:
        deleted_uids.popitem(last=False)


def _version(meta: ObjectMeta) -> int:
    """Return the resourceVersion as a number, 0 if it is no number."""
    return int(meta.resource_version) if meta.resource_version.isascii() and meta.resource_version.isdigit() else 0


_MAX_MESSAGE = 2_048  # characters of a failed container's log that are kept, as many as by the kubelet
_MAX_SCHEDULER_MESSAGE = 1_024  # characters


class Terminated(Struct):
    """How a container has ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None  # null if the kubelet has not reported it
    finished_at: str | None = None


class ContainerState(Struct):
    """The state of a container: the fields of its end on which decisions depend, and its other states unchanged."""

    terminated: Terminated | None = None
    running: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(Struct):
    """A container of a pod."""

    name: str = ""
    restart_count: int = 0
    ready: bool = False
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class ChildPodCondition(Struct):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    message: str = ""


class ChildPodStatus(Struct):
    """The fields of a pod's status on which decisions depend."""

    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    conditions: list[ChildPodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class ChildPodSpec(Struct):
    """The part of a pod's spec that its controller needs."""

    node_name: str = ""


class OwnedPod(Struct):
    """A pod as its controller needs it."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ChildPodSpec = msgspec.field(default_factory=ChildPodSpec)
    status: ChildPodStatus = msgspec.field(default_factory=ChildPodStatus)


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


def role_and_index(kind: ControlledKind, meta: ObjectMeta) -> tuple[str, int]:
    """Return (role, index) in a child's labels; "" and -1 for a label that is missing or unreadable. kind: of its
    job.
    """
    labels, words = meta.labels or {}, kind.children.label_keys
    index = labels.get(words.index, "")
    return labels.get(words.role, ""), int(index) if index.isascii() and index.isdigit() and len(index) < 8 else -1


def pod_state(kind: ControlledKind, obj: OwnedPod) -> PodState:
    """Convert a pod to the PodState on which decisions are made. kind: the kind of the job that owns the pod.

    A missing role label gives role "", a missing or unreadable index label gives index -1.
    """
    role, index = role_and_index(kind, obj.metadata)
    status, statuses = obj.status, obj.status.container_statuses or ()
    terminations = _terminations(kind, statuses)
    termination = terminations[0] if terminations else Terminated()
    return PodState(
        obj.metadata.name,
        obj.metadata.uid,
        role,
        index,
        _phase(status.phase),
        obj.metadata.deletion_timestamp is not None,
        TrainingContainer(
            termination.exit_code if terminations else None,
            termination.message[-_MAX_MESSAGE:],
            unix_s(termination.started_at or status.start_time),
            unix_s(termination.finished_at),
        ),
        sum(each.restart_count for each in statuses),
        any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        status.reason or termination.reason,
        obj.spec.node_name,
        (obj.metadata.labels or {}).get(kind.children.label_keys.mode, ""),
        msgspec.to_builtins(statuses) if kind.status.reports_containers else (),
        _scheduler_message(obj),
        _state_since_s(obj.metadata, terminations),
    )


def _phase(text: str) -> PodPhase:
    """Return the phase of a pod by its text; PENDING for "", UNKNOWN for an unknown text."""
    try:
        return PodPhase(text or "Pending")
    except ValueError:
        return PodPhase.UNKNOWN


def _terminations(kind: ControlledKind, statuses: Sequence[ContainerStatus]) -> list[Terminated]:
    """Return the end of the container that the kind names, in a list of at most one; [] while it runs.

    If the kind names no container, return the ends of all containers that have ended. Failures come first.
    """
    terminated = [each.state.terminated for each in statuses if kind.container in ("", each.name)]
    terminations = [each for each in terminated if each is not None]
    return sorted(terminations, key=lambda each: not each.exit_code)


def _scheduler_message(obj: OwnedPod) -> str:
    """Return why a pod has no node, as its scheduler states; "" for a pod with a node, or without a message.

    At most _MAX_SCHEDULER_MESSAGE characters.
    """
    conditions = (
        each for each in obj.status.conditions or () if each.type == "PodScheduled" and each.status == "False"
    )
    return "" if obj.spec.node_name else next((each.message[:_MAX_SCHEDULER_MESSAGE] for each in conditions), "")


def child_state(kind: ControlledKind, child_kind: str, obj: Owned) -> ChildState:
    """Convert a child that is not a pod to the ChildState on which decisions are made.

    kind: the kind of the job that owns the child. child_kind: of the child. A missing role label gives role "", a
    missing or unreadable index label gives index -1.
    """
    role, index = role_and_index(kind, obj.metadata)
    key, data, phase = ChildKey(child_kind, obj.metadata.name), obj.data or {}, obj.status.phase
    data = data if child_kind == "ConfigMap" else {}
    return ChildState(key, obj.metadata.uid, role, index, obj.spec, data, phase)


def _state_since_s(meta: ObjectMeta, terminations: Sequence[Terminated]) -> float:
    """Return when a pod's state began, in seconds since 1970; 0 if unknown.

    That is the time of its deletion, else of the last end of a container, else of its creation.
    """
    if meta.deletion_timestamp is not None:
        return unix_s(meta.deletion_timestamp) or 0.0
    last_s = max((unix_s(each.finished_at) or 0.0 for each in terminations), default=0.0)
    return last_s or unix_s(meta.creation_timestamp) or 0.0


NODES_PATH = "/api/v1/nodes"


class OfferedStatus(Struct):
    """The part of a node's status that states its resources."""

    allocatable: dict[str, Any] | None = None


class OfferingNode(Struct):
    """The part of a node that states its resources."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: OfferedStatus = msgspec.field(default_factory=OfferedStatus)


class NodeResources:
    """The extended resources of all nodes, fed by their watch. offered: their names, None until nodes are listed."""

    def __init__(self) -> None:
        self._by_node: dict[str, frozenset[str]] = {}
        self._nodes: Counter[str] = Counter()  # resource -> number of nodes that offer it
        self.offered: frozenset[str] | None = None

    def put(self, node: OfferingNode) -> None:
        """Store a node."""
        self._set(node.metadata.name, extended_resources(node.status.allocatable))

    def drop(self, key: Key) -> None:
        """Drop a deleted node."""
        self._set(key.name, frozenset())
        self._by_node.pop(key.name, None)

    def synced(self, version: str) -> None:
        """Set `offered`, since all nodes have been listed. version: not used."""
        self.offered = frozenset(self._nodes)

    def _set(self, name: str, resources: frozenset[str]) -> None:
        """Store the extended resources that a node offers, and update `offered` once nodes have been listed.

        name: of the node. resources: all that it offers now; empty for a deleted node.
        """
        before = self._by_node.get(name, frozenset())
        if before == resources:
            return
        self._by_node[name] = resources
        self._nodes.update(resources - before)
        self._nodes.subtract(before - resources)
        self._nodes = +self._nodes
        if self.offered is not None:
            self.offered = frozenset(self._nodes)
