"""Collect garbage: dependents are deleted after their last owner, or before an owner that waits for them.

store.py records what changed, and the handlers call `collect` soon after a write. So a caller sees the owner go first,
as in a cluster. Source: kube-controller-manager's garbage collector.
"""

from __future__ import annotations

from typing import Any

from turnout.simulator.api.kinds.catalogue import NAMESPACES
from turnout.simulator.api.model import ApiRefusal, ResourceKind
from turnout.simulator.api.objects import Key, Stored
from turnout.simulator.api.store import Store
from turnout.simulator.api.writes.deletion import FOREGROUND, ORPHAN, DeleteOptions


def collect(store: Store) -> int:
    """Collect garbage: check every object in `owner_index.to_check`, and those that are added to it meanwhile.

    Return the number of writes and deletions. Afterwards `to_check` is empty.
    """
    done = 0
    while store.objects.owner_index.to_check:
        kind, namespace, name = store.objects.owner_index.to_check.pop()
        try:
            stored = store.objects.get(kind, namespace, name)
        except ApiRefusal:
            continue
        done += _collect_object(store, kind, stored)
    return done


def _collect_object(store: Store, kind: ResourceKind, stored: Stored) -> int:
    """Do the next garbage collection step for one object: delete it, delete or release its dependents, or remove
    references to deleted owners.

    Return the number of writes and deletions.
    """
    if not stored.obj["metadata"].get("deletionTimestamp"):
        return 0 if kind is NAMESPACES else _collect_unowned(store, kind, stored)
    if kind is NAMESPACES:
        return _empty_namespace(store, stored)
    finalizers = stored.obj["metadata"].get("finalizers") or ()
    if ORPHAN in finalizers:
        return _orphan(store, kind, stored)
    return _delete_in_foreground(store, kind, stored) if FOREGROUND in finalizers else 0


def _collect_unowned(store: Store, kind: ResourceKind, stored: Stored) -> int:
    """Delete an object without a living owner, or remove its references to deleted owners.

    An owner that is being deleted in the foreground and waits for the object counts as deleted. Return the number of
    changes, 0 or 1. An object without owners stays.
    """
    meta = stored.obj["metadata"]
    owners = meta.get("ownerReferences")
    if not owners:
        return 0
    living = [owner for owner in owners if store.objects.owner_index.place(owner["uid"])]
    waiting = [o for o in living if o.get("blockOwnerDeletion") and store.objects.waits_for_dependents(o["uid"])]
    if len(waiting) == len(living):
        is_foreground = waiting and store.objects.dependents(meta["uid"])
        policy = DeleteOptions(policy="Foreground") if is_foreground else DeleteOptions()
        store.delete(kind, meta.get("namespace", ""), meta["name"], policy)
        return 1
    return _keep_owners(store, kind, stored, [owner for owner in living if owner not in waiting])


def _keep_owners(store: Store, kind: ResourceKind, stored: Stored, owners: list[dict[str, Any]]) -> int:
    """Remove an object's references to all other owners. Return the number of changes, 0 or 1.

    owners: the references that stay.
    """
    if len(owners) == len(stored.obj["metadata"]["ownerReferences"]):
        return 0
    store.patch_metadata(kind, stored, {"ownerReferences": owners})
    return 1


def _empty_namespace(store: Store, namespace: Stored) -> int:
    """Delete the objects in a namespace that is being deleted, and the namespace once it is empty.

    Objects that are being deleted already are waited for. Return the number of deletions.
    """
    name, done = namespace.obj["metadata"]["name"], 0
    for kind, key in _contents(store, name):
        try:
            inside = store.objects.get(kind, *key).obj["metadata"]
        except ApiRefusal:
            continue  # it went with another
        if not inside.get("deletionTimestamp"):
            store.delete(kind, *key)
            done += 1
    if not _contents(store, name):
        store.finish_deletion(NAMESPACES, namespace)
        done += 1
    return done


def _orphan(store: Store, kind: ResourceKind, stored: Stored) -> int:
    """Remove the references to an owner from its dependents, and the finalizer `orphan` from the owner.

    The owner is then removed, unless it has another finalizer. Return the number of changed objects, the owner
    included.
    """
    uid, done = stored.obj["metadata"]["uid"], 1
    for other, dependent in store.objects.dependents(uid):
        remaining_owners = [o for o in dependent.obj["metadata"]["ownerReferences"] if o["uid"] != uid]
        store.patch_metadata(other, dependent, {"ownerReferences": remaining_owners})
        done += 1
    _remove_finalizer(store, kind, stored, ORPHAN)
    return done


def _delete_in_foreground(store: Store, kind: ResourceKind, stored: Stored) -> int:
    """Remove the finalizer `foregroundDeletion` of an object if no dependent blocks its deletion; else mark the
    dependents.

    Return 1 if the finalizer was removed, else 0: then the dependents are in `owner_index.to_check`, and later steps
    delete them or remove their references to the object.
    """
    uid = stored.obj["metadata"]["uid"]
    dependents = store.objects.dependents(uid)
    blocking = [
        dependent
        for _, dependent in dependents
        if any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in dependent.obj["metadata"]["ownerReferences"])
    ]
    if not blocking:
        _remove_finalizer(store, kind, stored, FOREGROUND)
        return 1
    for other, dependent in dependents:
        meta = dependent.obj["metadata"]
        if not meta.get("deletionTimestamp"):
            store.objects.owner_index.to_check.add((other, meta.get("namespace", ""), meta["name"]))
    return 0


def _remove_finalizer(store: Store, kind: ResourceKind, stored: Stored, finalizer: str) -> None:
    """Remove one finalizer from an object that has it. The object is removed if it was the last one."""
    left = [each for each in stored.obj["metadata"]["finalizers"] if each != finalizer]
    store.patch_metadata(kind, stored, {"finalizers": left})


def _contents(store: Store, namespace: str) -> list[tuple[ResourceKind, Key]]:
    """Return (kind, (namespace, name)) of every object in a namespace, of all served kinds, in no order."""
    kinds = store.catalogue.kinds()
    return [(kind, key) for kind in kinds for key in store.objects.of(kind) if key[0] == namespace]
