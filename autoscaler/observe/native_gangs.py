"""The native PodGroups of Kubernetes that pods of jobs name, and which minCount fits the pods of a resized job.

A name counts only where its writer may use it: a PodGroup is a job's own if it names the job among its owners, or if it
has no controller and only pods of that job name it. Annotations on the PodGroup hold what its owner stated, so that a
new leader, or another writer, finds it there. Source: KEP-4671; minCount may change from Kubernetes 1.37 on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnout.autoscaler.model import GangReason
from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect
from turnout.jobs.model import Job, JobKey
from turnout.jobs.wishes.merge import native_min
from turnout.kube import labels
from turnout.kube.objects import Pod

GroupName = tuple[str, str]  # namespace and name
MAX_GROUPS_OF_JOB = 16  # PodGroups of one job whose minCount is changed at one resize
MAX_PODS_CHECKED = 20_000  # pods of the PodGroups that are checked in one round
_MAX_NAME = 253  # characters of the name of a PodGroup
_MAX_OWNERS = 64  # owner references that are read
_OVER = ("Succeeded", "Failed")  # phases of pods that have ended


@dataclass(frozen=True, slots=True)
class NativeGroup:
    """A PodGroup of Kubernetes with a gang policy."""

    namespace: str
    name: str
    uid: str  # of the PodGroup
    version: str  # the resourceVersion
    min_count: int  # >= 1
    stated: int | None = None  # our annotation: the minCount that the owner stated, >= 1; None without one
    wrote: int | None = None  # our annotation: the minCount that we wrote last, >= 1; None without one
    owners: tuple[str, ...] = ()  # uids
    controller: str = ""  # the uid of the owner that is its controller, "" for none

    @property
    def is_ours(self) -> bool:
        """True if we have lowered the minCount, and nobody has changed it since."""
        return self.wrote == self.min_count and self.stated is not None and self.stated > self.min_count

    @property
    def stated_min(self) -> int:
        """The minCount that the owner states, >= 1. A number that somebody wrote after us is a new statement."""
        return self.stated if self.is_ours and self.stated is not None else self.min_count

    @property
    def path(self) -> str:
        """The path of the object at the API server."""
        version = POD_GROUP_VERSIONS[Dialect.NATIVE]
        return f"/apis/{version}/namespaces/{self.namespace}/podgroups/{self.name}"


def read_native_group(raw: Mapping[str, Any]) -> NativeGroup | None:
    """Return a native PodGroup; None if it has no gang policy, or its minCount cannot be read. raw: its object.

    An annotation of ours that cannot be read counts as missing.
    """
    meta, spec = raw["metadata"], raw.get("spec") or {}
    minimum = native_min(spec.get("schedulingPolicy"))
    if minimum is None:
        return None
    annotations, owner_references = meta.get("annotations") or {}, meta.get("ownerReferences") or []
    return NativeGroup(
        meta.get("namespace", ""),
        meta["name"],
        meta.get("uid", ""),
        meta.get("resourceVersion", ""),
        minimum,
        _read_count(annotations.get(labels.STATED_MIN_COUNT)),
        _read_count(annotations.get(labels.WROTE_MIN_COUNT)),
        tuple(str(ref.get("uid", "")) for ref in owner_references[:_MAX_OWNERS]),
        next((str(ref.get("uid", "")) for ref in owner_references if ref.get("controller")), ""),
    )


def _read_count(text: object) -> int | None:
    """Return the number >= 1 of an annotation; None if it is missing, or no such number."""
    return int(text) if isinstance(text, str) and re.fullmatch(r"[1-9][0-9]{0,6}", text) else None


def patch_of(group: NativeGroup, min_count: int) -> dict[str, Any]:
    """Return a merge patch that sets minCount to `min_count` (>= 1).

    The write fails with a conflict if the PodGroup has another version meanwhile. If `min_count` is below the owner's
    own minCount, the patch adds our annotations with both values; else it removes them. group: the PodGroup as it is
    now.
    """
    stated = group.stated_min
    is_lower = min_count < stated
    annotations = {
        labels.STATED_MIN_COUNT: str(stated) if is_lower else None,
        labels.WROTE_MIN_COUNT: str(min_count) if is_lower else None,
    }
    meta = {"resourceVersion": group.version, "uid": group.uid, "annotations": annotations}
    return {"metadata": meta, "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}}


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The pods of one job that name one PodGroup, at one size of the job."""

    group: NativeGroup
    pods: int  # pods that stay at this size: not over, not terminating; >= 0
    running: int  # the part of `pods` that runs
    obstacle: GangReason | None = None  # why the job may not have the PodGroup changed; None if it may


def min_of_shrink(use: GroupUse) -> int | None:
    """Return the minCount that has to be written before pods leave, >= 1; None if the present one fits.

    use: at the size after the shrink. A PodGroup that loses all of its pods keeps its minCount: its gang starts whole
    again, or ends.
    """
    return use.pods if 0 < use.pods < use.group.min_count else None


def min_after_resize(use: GroupUse) -> int | None:
    """Return the minCount to write for a job whose pods all run, >= 1; None if nothing has to be written.

    None means that the present minCount fits, that some pod does not run, that there are no pods, or that somebody else
    wrote another minCount after us.
    """
    group = use.group
    if use.running < use.pods or not use.pods:
        return None
    if group.is_ours:
        fitting = min(group.stated_min, use.pods)
    elif group.wrote is None:
        fitting = min(group.min_count, use.pods)
    else:  # somebody has written another number after us: the next shrink takes it into account
        return None
    return fitting if fitting != group.min_count else None


def group_name_of(pod: Pod) -> GroupName | None:
    """Return the native PodGroup that a pod names; None if it names none, or if the name is too long."""
    named = pod.spec.scheduling_group
    name = named.get("podGroupName") if isinstance(named, dict) else None
    return (pod.metadata.namespace, name) if isinstance(name, str) and 0 < len(name) <= _MAX_NAME else None


def is_alive(pod: Pod) -> bool:
    """Return True for a pod that is not over and does not terminate."""
    return pod.status.phase not in _OVER and not pod.metadata.deletion_timestamp


class NativeGangs:
    """The native PodGroups, and the uids of the living pods that name each of them."""

    def __init__(self) -> None:
        """Start empty."""
        self._groups: dict[GroupName, NativeGroup] = {}
        self._pods: dict[GroupName, dict[str, None]] = {}  # uids
        self._named: dict[str, GroupName] = {}  # uid of a pod -> its PodGroup
        self._to_check: dict[GroupName, None] = {}  # PodGroups to check, the oldest change first

    def put_group(self, raw: Mapping[str, Any]) -> None:
        """Store a PodGroup, and mark it to be checked. One without a readable gang policy is dropped instead. raw:
        its object.
        """
        meta = raw["metadata"]
        name, group = (meta.get("namespace", ""), meta["name"]), read_native_group(raw)
        if group is None:
            self.drop_group(*name)
            return
        self._groups[name] = group
        self._to_check[name] = None

    def drop_group(self, namespace: str, name: str) -> None:
        """Drop a deleted PodGroup. An unknown one is ignored. The pods that name it stay."""
        self._groups.pop((namespace, name), None)
        self._to_check.pop((namespace, name), None)

    def put_pod(self, pod: Pod) -> None:
        """Store a pod under the PodGroup that it names, and mark that PodGroup to be checked.

        A pod that names none, is over or terminates is dropped instead.
        """
        uid, name = pod.metadata.uid, group_name_of(pod)
        if name is None or not is_alive(pod):
            self.drop_pod(uid)
            return
        if self._named.get(uid, name) != name:
            self.drop_pod(uid)
        self._named[uid] = name
        self._pods.setdefault(name, {})[uid] = None
        self._note_change(name)

    def drop_pod(self, uid: str) -> None:
        """Drop a pod by its uid, and mark its PodGroup to be checked. An unknown pod is ignored."""
        if (name := self._named.pop(uid, None)) is None:
            return
        pods = self._pods[name]
        del pods[uid]
        if not pods:
            del self._pods[name]
        self._note_change(name)

    def _note_change(self, name: GroupName) -> None:
        """Mark a known PodGroup to be checked again."""
        if name in self._groups:
            self._to_check[name] = None

    def group(self, name: GroupName) -> NativeGroup | None:
        """Return a PodGroup with a gang policy; None if it is not known."""
        return self._groups.get(name)

    def uids(self) -> set[str]:
        """Return the uids of all PodGroups."""
        return {group.uid for group in self._groups.values()}

    def pods(self, name: GroupName) -> Collection[str]:
        """Return the uids of the living pods that name a PodGroup, also an unknown one. A view: later changes show
        in it.
        """
        return self._pods.get(name, {}).keys()

    def take_groups_to_check(self) -> list[GroupName]:
        """Remove and return the PodGroups to check, the oldest change first, until they have MAX_PODS_CHECKED pods
        together.

        At least one is returned if any is marked. The caller marks a PodGroup again by `check_again` if its pods do not
        all run yet.
        """
        names: list[GroupName] = []
        pods = 0
        for name in self._to_check:
            if pods >= MAX_PODS_CHECKED:
                break
            pods += 1 + len(self._pods.get(name, ()))
            names.append(name)
        for name in names:
            del self._to_check[name]
        return names

    def check_again(self, names: Iterable[GroupName]) -> None:
        """Mark PodGroups to be checked again, because their pods do not all run yet. Unknown ones are ignored."""
        for name in names:
            self._note_change(name)


def obstacle_of(group: NativeGroup, job: Job, owners: Iterable[JobKey | None]) -> GangReason | None:
    """Return why the autoscaler must not change a PodGroup for a job; None if it may.

    It may if the job, or the object that the job is a part of, owns the PodGroup; else if it has no controller and only
    pods of the job name it. owners: the jobs of all living pods that name the PodGroup, None for a pod of no job.
    """
    if job.uid in group.owners or (job.part_of and job.part_of in group.owners):
        return None
    if group.controller:
        return GangReason.NOT_OWNED
    return GangReason.SHARED if any(owner != job.key for owner in owners) else None
