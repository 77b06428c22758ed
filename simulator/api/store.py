"""Store the objects of the embedded API, and the history of their changes, under the rules of writes:
versions, conflicts (writes/admission.py, check_update), finalizers, subresources.

Objects are plain dicts and never change once stored: a write stores a new one. server/ has HTTP, writes/ the details of
each write, garbage_collector.py the garbage collection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from turnout.simulator.api.kinds.catalogue import (
    BUDGETS,
    DEFINITIONS,
    NAMESPACES,
    PODS,
    PRIORITIES,
    QUOTAS,
    Catalogue,
    established_status,
    kind_of,
)
from turnout.simulator.api.kinds.schema import check_change, check_metadata, check_object
from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, not_found, refuse_malformed
from turnout.simulator.api.selectors import ObjectPredicate
from turnout.simulator.api.writes import deletion
from turnout.simulator.api.writes.admission import (
    as_kind,
    bind_pod,
    check_budgets,
    check_quotas,
    check_update,
    validated,
    with_disruption_condition,
    with_priority,
    with_status,
    without_empty_fields,
)
from turnout.simulator.api.writes.deletion import terminating_namespace
from turnout.simulator.api.writes.patch import managed_fields

_KEPT_CHANGES = 10_000
DEFAULT_DELETE_OPTIONS = deletion.DeleteOptions()
_FIXED_METADATA = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


class Store:
    """Every object, its version and its history."""

    def __init__(
        self, now: Callable[[float], str], new_uid: Callable[[], str], kept_changes: int = _KEPT_CHANGES
    ) -> None:
        """Make an empty store.

        now: returns the time that many seconds from now, as RFC 3339. new_uid: returns a fresh uid. kept_changes:
        changes of each kind that are kept for watches.
        """
        self.catalogue = Catalogue()
        self.version = 1
        self.owner_index = OwnerIndex()
        self._now, self._new_uid, self._kept_changes = now, new_uid, kept_changes
        self._objects: dict[str, dict[Key, Stored]] = {}
        self._journals: dict[str, WatchHistory] = {}
        self._encoder = msgspec.json.Encoder()

    # Reading.

    def journal(self, kind: ResourceKind) -> WatchHistory:
        """Return the history of a kind, for a watch to read. It is the store's own, and empty for a kind without
        writes.
        """
        return self._journals.setdefault(kind.resource, WatchHistory(self._kept_changes))

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Stored:
        """Return one object, which nobody may change. Raises ApiRefusal (404) if there is none.

        namespace: "" for a cluster-scoped kind.
        """
        stored = self._objects_of(kind).get((namespace, name))
        if stored is None:
            raise not_found(kind.resource, name)
        return stored

    def find(self, kind: ResourceKind, namespace: str, selection: ObjectPredicate) -> list[Stored]:
        """Return all objects of a kind that match a selection, sorted by (namespace, name). A new list.

        namespace: "" for every namespace.
        """
        objects = self._objects_of(kind)
        return [
            objects[key]
            for key in sorted(objects)
            if (not namespace or key[0] == namespace) and selection(objects[key].obj)
        ]

    def page(
        self, kind: ResourceKind, namespace: str, selection: ObjectPredicate, limit: int, after: Key | None, at: int = 0
    ) -> StorePage:
        """Return one page of a list, sorted by (namespace, name).

        namespace: "" for every namespace. selection: chooses the objects. limit: the most objects, 0 for no bound.
        after: the key after which the page begins, None for the first page. at: the version to show, 0 for the current
        version. Raises ApiRefusal (410) if changes after this version are forgotten.
        """
        objects = self._objects_of(kind) if not at or at == self.version else self._objects_at(kind, at)
        keys = _keys_of_page(objects, namespace, after)
        matching = [key for key in keys if selection(objects[key].obj)]
        shown = matching[:limit] if limit else matching
        rest = shown[-1] if len(shown) < len(matching) else None
        return StorePage(tuple(objects[key] for key in shown), at or self.version, rest, len(matching) - len(shown))

    def dependents(self, uid: str) -> list[tuple[ResourceKind, Stored]]:
        """Return (kind, object) of each object that names this uid as an owner, in no order."""
        return [(kind, self.get(kind, namespace, name)) for kind, namespace, name in self.owner_index.dependents(uid)]

    def waits_for_dependents(self, uid: str) -> bool:
        """Return True if the object with this uid is being deleted and waits until its dependents are deleted.

        False if there is no such object.
        """
        place = self.owner_index.place(uid)
        if place is None:
            return False
        meta = self.get(*place).obj["metadata"]
        return bool(meta.get("deletionTimestamp")) and deletion.FOREGROUND in (meta.get("finalizers") or ())

    # Writing.

    def _named(self, kind: ResourceKind, namespace: str, meta: dict[str, Any]) -> dict[str, Any]:
        """Complete a new object's metadata in place, and return it: a generated name if it has only generateName, and
        the namespace.

        A namespace in the metadata stays. namespace: of the URL.
        """
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + self._new_uid()[:5]
        if kind.namespaced:
            meta["namespace"] = meta.get("namespace") or namespace
        return meta

    def create(self, kind: ResourceKind, namespace: str, obj: Object, manager: str = "unknown") -> Stored:
        """Store a new object with defaults, uid and version, and return it.

        namespace: of the URL, "" for a cluster-scoped kind. obj: with metadata; its nested values are stored, not
        copied, and may get defaults. manager: the writer, for managedFields. Raises ApiRefusal: 400 for a wrong kind,
        apiVersion or namespace, or a label that is no string; 409 for a name in use; 422 for an invalid object; 404 for
        an unknown namespace; 403 if a quota or a namespace that is being deleted forbids it, or for an unknown
        PriorityClass; 500 for an object with a resourceVersion; 501 for a CRD that the embedded API cannot serve.
        """
        obj = as_kind(kind, obj)
        meta = obj["metadata"] = self._named(kind, namespace, without_empty_fields(obj.get("metadata") or {}))
        check_metadata(kind, meta, namespace)
        self._check_namespace(kind, namespace)
        if (namespace, meta["name"]) in self._objects_of(kind):
            raise ApiRefusal("AlreadyExists", f'{kind.resource} "{meta["name"]}" already exists')
        if meta.get("resourceVersion"):
            raise ApiRefusal("", "resourceVersion should not be set on objects to be created")
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields", "generation"):
            meta.pop(key, None)
        meta.update(
            uid=self._new_uid(),
            creationTimestamp=self._now(0),
            **({"generation": 1} if kind.counts_generations else {}),
        )
        if kind.status and not kind.keeps_created_status:
            obj.pop("status", None)
        with refuse_malformed(kind.kind, meta["name"]):
            obj = self._admit(kind, namespace, obj)
        if kind is DEFINITIONS:
            self.catalogue.put(kind_of(obj))
            obj["status"] = established_status(obj, self._now(0))
        return self._store_state(kind, obj, None, manager)

    def update(
        self, kind: ResourceKind, namespace: str, name: str, obj: Object, part: str = "", manager: str = "unknown"
    ) -> Stored:
        """Replace an object, or with part "status" only its status. Return the stored state, or the last state of an
        object that is removed.

        Without `part`, the stored status stays if the kind has a status subresource. Part "scale" only names the
        subresource in managedFields: `obj` is the whole object. With part "status", `obj` also replaces labels,
        annotations and finalizers of a built-in kind: pass the whole object. manager: the writer, for managedFields. An
        update without a change writes nothing. If the object is being deleted and has no finalizer and no grace period
        left, it is removed. Raises ApiRefusal: 400 for another name, kind or apiVersion, 404, 409 Conflict for a stale
        resourceVersion or another uid, 422 for an invalid object or a missing resourceVersion that the kind requires,
        501 for a CRD that the embedded API cannot serve.
        """
        old = self.get(kind, namespace, name)
        new = as_kind(kind, obj)
        meta = dict(new.get("metadata") or {})
        old_meta = old.obj["metadata"]
        check_update(kind, old_meta, meta)
        if part == "status":
            new = with_status(kind, old.obj, new)
            meta = new["metadata"]
        elif kind.status:
            new.pop("status", None)
            if "status" in old.obj:
                new["status"] = old.obj["status"]
        for key in _FIXED_METADATA:
            if key in old_meta:
                meta[key] = old_meta[key]
            else:
                meta.pop(key, None)
        new["metadata"] = meta = without_empty_fields(meta)
        with refuse_malformed(kind.kind, name):
            new = validated(kind, new)
            if part != "status":
                check_metadata(kind, meta, namespace)
                check_object(kind, new)
            check_change(kind, name, old.obj, new)
        if kind is DEFINITIONS:
            self.catalogue.put(kind_of(new))
        return self._replace(kind, old, new, manager, part)

    def patch_metadata(self, kind: ResourceKind, stored: Stored, change: dict[str, Any]) -> Stored:
        """Change fields of an object's metadata in the name of the garbage collector. Return the stored state, or the
        last state of an object that is removed.

        stored: its present state. change: the new values of fields; other fields stay, and an empty list or map is left
        out. An object that is being deleted and has no finalizer and no grace period left is removed.
        """
        new = {**stored.obj, "metadata": without_empty_fields({**stored.obj["metadata"], **change})}
        return self._replace(kind, stored, new, "garbage-collector", "")

    def bind(self, kind: ResourceKind, namespace: str, name: str, node: str, manager: str = "unknown") -> Stored:
        """Set the node of a pod that has none, and return the pod.

        kind, namespace, name: of the pod. node: the name of the node, which need not exist. manager: the writer, for
        managedFields. Raises ApiRefusal: 404 if there is no such pod, or 409 if the pod has a node or is being deleted.
        """
        old = self.get(kind, namespace, name)
        return self._store_state(kind, bind_pod(old.obj, node, self._now(0)), old, manager, "binding")

    def evict(self, kind: ResourceKind, namespace: str, name: str, options: deletion.DeleteOptions) -> Stored:
        """Delete a pod unless a PodDisruptionBudget forbids it. Return what delete() returns.

        If a grace period follows, the condition DisruptionTarget is written first. options: those of the deletion.
        Raises ApiRefusal: 404, 409 if the pod does not meet the preconditions, 429 if a budget forbids it, 500 if two
        budgets select the pod.
        """
        pod = self.get(kind, namespace, name)
        deletion.check_preconditions(kind, pod.obj, options)
        pods = [each.obj for each in self.find(kind, namespace, lambda obj: True)]
        budgets = [each.obj for each in self.find(BUDGETS, namespace, lambda obj: True)]
        check_budgets(pod.obj, pods, budgets)
        if deletion.grace_period_s(kind, pod.obj, options):
            self._store_state(kind, with_disruption_condition(pod.obj, self._now(0)), pod)
        # They were met by the pod before the condition, which gave it another version.
        return self.delete(kind, namespace, name, replace(options, only_if=()))

    def delete(
        self, kind: ResourceKind, namespace: str, name: str, options: deletion.DeleteOptions = DEFAULT_DELETE_OPTIONS
    ) -> Stored:
        """Delete an object, or mark it for deletion if finalizers or a grace period delay it. Return its new state, or
        its last state if it is removed.

        A namespace is only marked; finish_deletion() removes it. An object that is marked already is returned as it is
        if nothing changes. options: preconditions, grace period and the policy for dependents. Raises ApiRefusal: 404,
        409 if it does not meet the preconditions.
        """
        old = self.get(kind, namespace, name)
        deletion.check_preconditions(kind, old.obj, options)
        later = self._now(deletion.grace_period_s(kind, old.obj, options))
        if kind is NAMESPACES:
            return (
                old
                if old.obj["metadata"].get("deletionTimestamp")
                else self._store_state(kind, terminating_namespace(old.obj, later), old)
            )
        marked_obj = deletion.mark_for_deletion(kind, old.obj, options, self._now(0), later)
        if marked_obj is None:
            return self._remove_object(kind, old, deletion.final_state(kind, old.obj, self._now(0)))
        if marked_obj == old.obj:
            return old
        if kind.counts_generations and not old.obj["metadata"].get("deletionTimestamp"):
            marked_obj["metadata"]["generation"] = marked_obj["metadata"].get("generation", 1) + 1
        return self._store_state(kind, marked_obj, old)

    def contents(self, namespace: str) -> list[tuple[ResourceKind, Key]]:
        """Return (kind, (namespace, name)) of every object in a namespace, of all served kinds, in no order."""
        return [(kind, key) for kind in self.catalogue.kinds() for key in self._objects_of(kind) if key[0] == namespace]

    def finish_deletion(self, kind: ResourceKind, stored: Stored) -> None:
        """Remove an object whose deletion had to wait, such as a namespace that is empty now."""
        self._remove_object(kind, stored, deletion.final_state(kind, stored.obj, self._now(0)))

    # Internal.

    def _objects_of(self, kind: ResourceKind) -> dict[Key, Stored]:
        """Return the objects of a kind by key; the mapping is the store's own."""
        return self._objects.setdefault(kind.resource, {})

    def _objects_at(self, kind: ResourceKind, version: int) -> dict[Key, Stored]:
        """Return the objects of a kind at an earlier version, reconstructed from its history. A new mapping.

        Raises ApiRefusal (410) if changes after this version are forgotten.
        """
        journal = self.journal(kind)
        objects = dict(self._objects_of(kind))
        for change in reversed(journal.since(journal.after(version))):
            meta = change.now.obj["metadata"]
            key = (meta.get("namespace", ""), meta["name"])
            if change.before is None:
                objects.pop(key, None)
            else:
                objects[key] = change.before
        return objects

    def _admit(self, kind: ResourceKind, namespace: str, obj: Object) -> Object:
        """Return a new object as it is to be stored: pruned, with its defaults, and checked. Parts of `obj` may be
        changed.

        namespace: of the object. Raises ApiRefusal: 422 for an invalid object, 403 for a quota or an unknown
        PriorityClass.
        """
        obj = validated(kind, obj)
        if kind is PODS:
            obj = with_priority(obj, [each.obj for each in self._objects_of(PRIORITIES).values()])
        kind.defaults(obj)
        check_object(kind, obj)
        if kind is PODS and (quotas := self.find(QUOTAS, namespace, lambda obj: True)):
            pods = [each.obj for each in self.find(PODS, namespace, lambda obj: True)]
            check_quotas(obj, pods, [each.obj for each in quotas])
        return obj

    def _check_namespace(self, kind: ResourceKind, namespace: str) -> None:
        """Check that objects of a kind may be created in a namespace.

        Raises ApiRefusal: 404 if it does not exist, 403 while it is being deleted. Nothing is checked for cluster-
        scoped kinds, nor in a store without any Namespace object.
        """
        if not kind.namespaced or not (known := self._objects_of(NAMESPACES)):
            return
        stored = known.get(("", namespace))
        if stored is None:
            raise not_found("namespaces", namespace)
        if stored.obj["metadata"].get("deletionTimestamp"):
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiRefusal("Forbidden", f"{kind.resource} is forbidden: {message}")

    def _replace(self, kind: ResourceKind, old: Stored, new: Object, manager: str, part: str) -> Stored:
        """Store the next state of an object, and return it. `new` is changed.

        An update without a change writes nothing and returns `old`. An object that is being deleted, without a
        finalizer and grace period left, is removed instead, and its last state is returned. manager: the writer. part:
        the subresource, "" for the object.
        """
        meta = new["metadata"]
        meta["resourceVersion"] = str(old.version)
        if (owners := old.obj["metadata"].get("managedFields")) is not None:
            meta["managedFields"] = owners
        if new == old.obj:
            return old
        changed = {key for key in new.keys() | old.obj.keys() if new.get(key) != old.obj.get(key)}
        if kind.counts_generations and changed - {"metadata", "status"}:
            meta["generation"] = meta.get("generation", 1) + 1
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            return self._remove_object(kind, old, new)
        return self._store_state(kind, new, old, manager, part)

    def _store_state(
        self, kind: ResourceKind, obj: Object, before: Stored | None, manager: str = "", part: str = ""
    ) -> Stored:
        """Store the new state of an object under a new version, add it to the history, and wake the watches. Return the
        stored state.

        obj: is changed: it gets the version. before: None for a creation. manager: the writer, "" to leave
        managedFields unchanged. part: the subresource, "" for the object.
        """
        meta = obj["metadata"]
        if manager:
            meta["managedFields"] = managed_fields(before.obj if before else None, obj, manager, part, self._now(0))
        now = self._with_new_version(obj)
        self._objects_of(kind)[(meta.get("namespace", ""), meta["name"])] = now
        self.owner_index.record_write(kind, before.obj if before else None, obj)
        self.journal(kind).write(StoreChange(now.version, now, before))
        return now

    def _remove_object(self, kind: ResourceKind, old: Stored, last: Object) -> Stored:
        """Remove an object, add its deletion to the history, and return its last state.

        last: that state, which gets the version of the deletion. The objects of a deleted CRD's kind are deleted, too.
        """
        meta = last["metadata"]
        del self._objects_of(kind)[(meta.get("namespace", ""), meta["name"])]
        now = self._with_new_version(last)
        self.owner_index.record_write(kind, old.obj, None)
        self.journal(kind).write(StoreChange(now.version, now, old, deleted=True))
        self._drop_custom_kind(kind, meta["name"])
        around = self._objects_of(NAMESPACES).get(("", meta.get("namespace", "")))
        if around is not None and around.obj["metadata"].get("deletionTimestamp"):
            self.owner_index.to_check.add((NAMESPACES, "", around.obj["metadata"]["name"]))
        return now

    def _drop_custom_kind(self, kind: ResourceKind, name: str) -> None:
        """If the deleted object was a CRD, delete all objects of its kind, and stop serving that kind.

        kind, name: of the deleted object.
        """
        if kind is DEFINITIONS:
            for custom in [kind for kind in self.catalogue.kinds() if kind.resource == name]:
                for key in list(self._objects_of(custom)):
                    self.delete(custom, *key)
            self.catalogue.drop(name)

    def _with_new_version(self, obj: Object) -> Stored:
        """Give an object the next resourceVersion, and encode it. The object is changed."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        return Stored(obj, self._encoder.encode(obj), self.version)


Where = tuple[ResourceKind, str, str]  # kind, namespace, name


class OwnerIndex:
    """Owners and dependents by uid. `to_check` holds the objects whose owners, dependents or finalizers changed."""

    def __init__(self) -> None:
        self.to_check: set[Where] = set()
        self._where: dict[str, Where] = {}
        self._owned: dict[str, set[Where]] = {}

    def place(self, uid: str) -> Where | None:
        """Return (kind, namespace, name) of the object with this uid; None if there is none."""
        return self._where.get(uid)

    def dependents(self, uid: str) -> list[Where]:
        """Return (kind, namespace, name) of each object that names this uid as an owner, in no order. A new list."""
        return list(self._owned.get(uid, ()))

    def record_write(self, kind: ResourceKind, before: Object | None, now: Object | None) -> None:
        """Record one write: who owns the object now, and which objects the garbage collector must check.

        before: the state before it, None for a creation. now: the new state, None for a deletion.
        """
        meta = (now or before or {})["metadata"]
        dependent: Where = (kind, meta.get("namespace", ""), meta["name"])
        was, named = _owners(before), _owners(now)
        for uid in was - named:
            self._owned[uid].discard(dependent)
            if not self._owned[uid]:
                del self._owned[uid]
            if uid in self._where:
                self.to_check.add(self._where[uid])  # it may have waited for this dependent
        for uid in named - was:
            self._owned.setdefault(uid, set()).add(dependent)
        if now is None:
            self._where.pop(meta["uid"], None)
            self.to_check |= self._owned.get(meta["uid"], set())
            return
        self._where[meta["uid"]] = dependent
        if named or meta.get("deletionTimestamp"):
            self.to_check.add(dependent)


def _owners(obj: Object | None) -> set[str]:
    """Return the uids of the owners of an object, empty for None."""
    references: Iterable[dict[str, Any]] = (obj or {}).get("metadata", {}).get("ownerReferences") or ()
    return {each["uid"] for each in references}


_SLACK = 8  # old changes are forgotten in batches of 1/_SLACK of `keep`
Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in the store."""

    obj: Object  # decoded; it never changes
    raw: bytes  # its JSON, encoded once for every list and watch
    version: int  # its resourceVersion


@dataclass(frozen=True, slots=True)
class StorePage:
    """One page of a list."""

    items: tuple[Stored, ...]  # sorted by (namespace, name)
    version: int  # of the list
    rest: Key | None = None  # the key after which to continue, None at the end
    left: int = 0  # how many objects follow this page


@dataclass(frozen=True, slots=True)
class StoreChange:
    """One write."""

    version: int  # the resourceVersion of the write
    now: Stored  # the last state, when `deleted`
    before: Stored | None  # None for a creation
    deleted: bool = False  # True: the object was deleted


class WatchHistory:
    """The last changes of a kind. A watch from a version before the oldest kept change gets 410."""

    def __init__(self, keep: int) -> None:
        """Make an empty history. keep: how many changes are kept at least."""
        self._keep = keep
        self._changes: list[StoreChange] = []
        self._first = 0  # how many changes were forgotten
        self._forgotten = 0  # the version of the last one forgotten
        self.wake_callbacks: set[Callable[[], None]] = set()

    def write(self, change: StoreChange) -> None:
        """Add a change and wake the watches. Changes beyond `keep` are forgotten in batches, the oldest first."""
        self._changes.append(change)
        if len(self._changes) > self._keep + self._keep // _SLACK:
            surplus = len(self._changes) - self._keep
            self._forgotten = self._changes[surplus - 1].version
            del self._changes[:surplus]
            self._first += surplus
        for wake in self.wake_callbacks:
            wake()

    def end(self) -> int:
        """Return the position after the last change. A position counts all changes of the kind, forgotten ones too."""
        return self._first + len(self._changes)

    def after(self, version: int) -> int:
        """Return the position of the first change after `version`.

        Raises ApiRefusal (410) if a change after `version` may be forgotten.
        """
        if version < self._forgotten:
            raise ApiRefusal("Expired", f"too old resource version: {version} ({self._forgotten + 1})")
        return self._first + bisect_right(self._changes, version, key=lambda change: change.version)

    def since(self, position: int) -> Sequence[StoreChange]:
        """Return the changes from a position on, the oldest first; [] at the end. Raises ApiRefusal (410) if some are
        forgotten.
        """
        if position < self._first:
            raise ApiRefusal("Expired", "the watch was too slow: changes it has not read are forgotten")
        return self._changes[position - self._first :]


def raw(stored: Stored) -> bytes:
    """Return an object's JSON as it is stored."""
    return stored.raw


def event(change: StoreChange, selection: ObjectPredicate, show: Callable[[Stored], bytes] = raw) -> bytes | None:
    """Return the watch line of a change; None if neither its old nor its new state matches.

    show: encodes the object.
    """
    change_for_selector = event_for(change, selection)
    return line(change_for_selector[0], show(change_for_selector[1])) if change_for_selector is not None else None


def event_for(change: StoreChange, selection: ObjectPredicate) -> tuple[str, Stored] | None:
    """Return (ADDED, MODIFIED or DELETED; the object) for a change as a watch with a selection sees it.

    An object that no longer matches is DELETED, with the state before the change. A deleted object has its last state,
    also if only the state before it matches. None if neither state matches.
    """
    was = change.before is not None and selection(change.before.obj)
    fits = selection(change.now.obj)
    if change.deleted:
        return ("DELETED", change.now) if was or fits else None
    if fits:
        return ("MODIFIED" if was else "ADDED", change.now)
    return ("DELETED", _last_matching(change)) if was else None


def _last_matching(change: StoreChange) -> Stored:
    """Return the state of an object before a change, with the version of the change."""
    before = change.before or change.now
    meta = {**before.obj["metadata"], "resourceVersion": str(change.version)}
    obj = {**before.obj, "metadata": meta}
    return Stored(obj, msgspec.json.encode(obj), change.version)


def line(event_type: str, shown: bytes) -> bytes:
    """Return one line of a watch. event_type: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR. shown: an object's JSON."""
    return b'{"type":"' + event_type.encode() + b'","object":' + shown + b"}\n"


def _keys_of_page(keys: Iterable[Key], namespace: str, after: Key | None) -> list[Key]:
    """Return, sorted, the keys of a namespace after a key. namespace: "" for all. after: None for all."""
    return [key for key in sorted(keys) if (not namespace or key[0] == namespace) and (after is None or key > after)]
