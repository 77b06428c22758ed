"""Keeps what the watches and our own writes have shown: jobs, and what each of them owns.

An answer to a write counts at once, so that the next look does not write it again. Older versions of an object, and
answers on objects that are known to be gone, are passed over. What an answer told of and a later list does not hold is
gone, too: it went while no watch was there to see it come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.controllers.kind import Kind
from turnout.controllers.model import ChildKey, ChildState, JobKey, KnownChildren, Object, PodState
from turnout.controllers.observed import JobObject, Owned, OwnedPod, child_state, pod_state
from turnout.controllers.runtime.node_resources import NodeResources
from turnout.kube.objects import ObjectMeta
from turnout.kube.watch_events import Key

_Owner = tuple[str, str]  # the namespace and the uid of a job: an object elsewhere that names its uid is none of its
_REMEMBERED = 20_000  # uids of objects that are gone


@dataclass(frozen=True, slots=True)
class _CachedJob:
    """A job as bytes, which take a fifth of what its dicts do."""

    uid: str
    version: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class _CachedChild:
    """watch: the label of the watch that has yet to show it; None once one has."""

    owner: _Owner
    uid: str
    version: int
    watch: str | None


class Cache:
    """changed: called with each job that has to be looked at. kinds: by the path of their group, as a JobKey has it."""

    def __init__(self, changed: Callable[[JobKey], None], kinds: Mapping[str, Kind]) -> None:
        self._changed = changed
        self.nodes = NodeResources()
        self._unread = False
        self._kinds = kinds
        self._jobs: dict[JobKey, _CachedJob] = {}
        self._keys: dict[_Owner, JobKey] = {}
        self._pods: dict[_Owner, dict[str, PodState]] = {}  # by the pod's name
        self._others: dict[_Owner, dict[ChildKey, ChildState]] = {}
        self._known: dict[tuple[str, str, str], _CachedChild] = {}  # by kind, namespace and name
        self._deleted_uids: OrderedDict[str, None] = OrderedDict()

    def put_job(self, api: str, kind: str, obj: JobObject, *, answer: bool = False) -> None:
        """A job as it is now. answer: as a write of ours was answered; else as a watch shows it."""
        meta, version = obj.metadata, _version(obj.metadata)
        if not answer:
            self._deleted_uids.pop(meta.uid, None)  # an API server that was put back to an older state has it again
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
        self._jobs[key] = _CachedJob(meta.uid, version, msgspec.json.encode(raw))
        self._keys[meta.namespace, meta.uid] = key
        self._changed(key)

    def drop_job(self, api: str, key_of_job: Key) -> None:
        """A job is gone; the API server deletes what it owned."""
        self._forget(key_of_job.uid)
        key = JobKey(api, key_of_job.namespace, key_of_job.name)
        if (found := self._jobs.get(key)) is not None and found.uid == key_of_job.uid:
            del self._jobs[key]
            self._keys.pop((key_of_job.namespace, key_of_job.uid), None)

    def put_pod(self, obj: OwnedPod, *, answer: bool = False) -> None:
        """A pod as it is now. answer: as a write of ours was answered; else as a watch shows it."""
        if (found := self._note_child("Pod", obj.metadata, answer)) is None:
            return
        owner, kind = found
        self._pods.setdefault(owner, {})[obj.metadata.name] = pod_state(kind, obj)
        self._look_at(owner)

    def put_other(self, kind: str, obj: Owned, *, answer: bool = False) -> None:
        """A child that is no pod as it is now."""
        if (found := self._note_child(kind, obj.metadata, answer)) is None:
            return
        owner, owners_kind = found
        child = child_state(owners_kind, kind, obj)
        self._others.setdefault(owner, {})[child.key] = child
        self._look_at(owner)

    def drop_child(self, kind: str, child_key: Key) -> None:
        """A child is gone."""
        self._forget(child_key.uid)
        known = self._known.get((kind, child_key.namespace, child_key.name))
        if known is None or known.uid != child_key.uid:
            return
        del self._known[kind, child_key.namespace, child_key.name]
        owner = known.owner
        mine: dict[Any, Any] = self._pods.get(owner, {}) if kind == "Pod" else self._others.get(owner, {})
        mine.pop(child_key.name if kind == "Pod" else ChildKey(kind, child_key.name), None)
        if not mine:
            (self._pods if kind == "Pod" else self._others).pop(owner, None)
        self._look_at(owner)

    def listed(self, kind: str, label: str, version: str) -> None:
        """A whole list of children has been told. label: that they have, "" for none. version: of the list."""
        at = int(version) if version.isascii() and version.isdigit() else 0
        ended = [
            Key(namespace, name, child.uid)
            for (known_kind, namespace, name), child in self._known.items()
            if known_kind == kind and child.watch is not None and label in ("", child.watch) and child.version <= at
        ]
        for each in ended:
            self.drop_child(kind, each)

    def job(self, key: JobKey) -> tuple[Object, KnownChildren] | None:
        """Return a job's object and what it owns; None for one that is gone."""
        if (found := self._jobs.get(key)) is None:
            return None
        owner = key.namespace, found.uid
        pods, others = self._pods.get(owner, {}), self._others.get(owner, {})
        return msgspec.json.decode(found.raw), KnownChildren(
            tuple(pods.values()), dict(others), self.nodes.offered, self._unread
        )

    def pods_are_read(self, *, yes: bool) -> None:
        """Note whether pods can be read. All jobs are looked at once they can: nothing was decided in between.

        When they cannot, jobs are looked at whose status tells of each pod.
        """
        if self._unread is not yes:
            return
        self._unread = not yes
        for key in self._jobs:
            kind = self._kinds.get(key.api)
            if yes or (kind is not None and kind.tells_containers):
                self._changed(key)

    def jobs(self) -> Mapping[JobKey, object]:
        """Return the jobs that are there."""
        return self._jobs

    def _note_child(self, kind: str, meta: ObjectMeta, answer: bool) -> tuple[_Owner, Kind] | None:
        """Note a child, and return its owner and that one's kind.

        None for what no job of our kinds controls, what is gone, and what is older than what is known.
        """
        reference = next((each for each in meta.owner_references or () if each.controller), None)
        owners_kind = None if reference is None else self._kinds.get(f"/apis/{reference.api_version}")
        if reference is None or owners_kind is None or owners_kind.kind != reference.kind:
            return None
        if not answer:
            self._deleted_uids.pop(meta.uid, None)
        if meta.uid in self._deleted_uids:
            return None
        place, version, owner = (kind, meta.namespace, meta.name), _version(meta), (meta.namespace, reference.uid)
        known = self._known.get(place)
        if known is not None and known.uid != meta.uid:
            known = None
        shown = not answer or (known is not None and known.watch is None)
        newest = version if known is None else max(version, known.version)
        self._known[place] = _CachedChild(owner, meta.uid, newest, None if shown else owners_kind.child_labels.job)
        return None if newest > version else (owner, owners_kind)

    def _forget(self, uid: str) -> None:
        self._deleted_uids[uid] = None
        if len(self._deleted_uids) > _REMEMBERED:
            self._deleted_uids.popitem(last=False)

    def _look_at(self, owner: _Owner) -> None:
        if (key := self._keys.get(owner)) is not None:
            self._changed(key)


def _version(meta: ObjectMeta) -> int:
    return int(meta.resource_version) if meta.resource_version.isascii() and meta.resource_version.isdigit() else 0
