"""The objects of the embedded API, their versions, owners and watch histories.

Objects are plain dicts and never change once stored: a write stores a new one. `store.py` has the rules of writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, not_found
from turnout.simulator.api.selectors import ObjectPredicate
from turnout.simulator.api.writes import deletion


class ObjectTable:
    """Every object of each kind, its version, its owners and the history of its changes."""

    def __init__(self, kept_changes: int) -> None:
        """Start without objects. kept_changes: changes of each kind that are kept for watches."""
        self.version = 1
        self.owner_index = OwnerIndex()
        self._kept_changes = kept_changes
        self._objects: dict[str, dict[Key, Stored]] = {}
        self._journals: dict[str, WatchHistory] = {}
        self._encoder = msgspec.json.Encoder()

    def of(self, kind: ResourceKind) -> dict[Key, Stored]:
        """Return the objects of a kind by (namespace, name). The mapping is the table's own."""
        return self._objects.setdefault(kind.resource, {})

    def at(self, kind: ResourceKind, version: int) -> dict[Key, Stored]:
        """Return the objects of a kind at an earlier version, reconstructed from its history. A new mapping.

        Raises ApiRefusal (410) if changes after this version are forgotten.
        """
        journal = self.journal(kind)
        objects = dict(self.of(kind))
        for change in reversed(journal.since(journal.after(version))):
            meta = change.now.obj["metadata"]
            key = (meta.get("namespace", ""), meta["name"])
            if change.before is None:
                objects.pop(key, None)
            else:
                objects[key] = change.before
        return objects

    def journal(self, kind: ResourceKind) -> WatchHistory:
        """Return the history of a kind, for a watch to read. It is the table's own, and empty for a kind without
        writes.
        """
        return self._journals.setdefault(kind.resource, WatchHistory(self._kept_changes))

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Stored:
        """Return one object, which nobody may change. Raises ApiRefusal (404) if there is none.

        namespace: "" for a cluster-scoped kind.
        """
        stored = self.of(kind).get((namespace, name))
        if stored is None:
            raise not_found(kind.resource, name)
        return stored

    def find(self, kind: ResourceKind, namespace: str, selection: ObjectPredicate) -> list[Stored]:
        """Return all objects of a kind that match a selection, sorted by (namespace, name). A new list.

        namespace: "" for every namespace.
        """
        objects = self.of(kind)
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
        objects = self.of(kind) if not at or at == self.version else self.at(kind, at)
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

    def write(self, kind: ResourceKind, obj: Object, before: Stored | None) -> Stored:
        """Store the new state of an object under a new version, add it to the history, and wake the watches. Return the
        stored state.

        obj: is changed: it gets the version. before: None for a creation.
        """
        meta = obj["metadata"]
        now = self._with_new_version(obj)
        self.of(kind)[(meta.get("namespace", ""), meta["name"])] = now
        self.owner_index.record_write(kind, before.obj if before else None, obj)
        self.journal(kind).write(StoreChange(now.version, now, before))
        return now

    def remove(self, kind: ResourceKind, old: Stored, last: Object) -> Stored:
        """Remove an object, add its deletion to the history, and return its last state.

        last: that state, which gets the version of the deletion.
        """
        meta = last["metadata"]
        del self.of(kind)[(meta.get("namespace", ""), meta["name"])]
        now = self._with_new_version(last)
        self.owner_index.record_write(kind, old.obj, None)
        self.journal(kind).write(StoreChange(now.version, now, old, deleted=True))
        return now

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
