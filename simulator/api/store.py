"""Write the objects of the embedded API under the rules of writes: versions, conflicts (writes/admission.py,
check_update), finalizers, subresources.

`objects.py` has the objects and the history of their changes. server/ has HTTP, writes/ the details of each write,
garbage_collector.py the garbage collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

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
from turnout.simulator.api.objects import Key, ObjectTable, Stored
from turnout.simulator.api.writes import deletion
from turnout.simulator.api.writes.admission import (
    as_kind,
    bind_pod,
    check_budgets,
    check_quotas,
    check_update,
    normalize_object,
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
    """The writes of objects. Read them from `objects`."""

    def __init__(
        self, now: Callable[[float], str], new_uid: Callable[[], str], kept_changes: int = _KEPT_CHANGES
    ) -> None:
        """Make an empty store.

        now: returns the time that many seconds from now, as RFC 3339. new_uid: returns a fresh uid. kept_changes:
        changes of each kind that are kept for watches.
        """
        self.catalogue = Catalogue()
        self.objects = ObjectTable(kept_changes)
        self._now, self._new_uid = now, new_uid

    def create(self, kind: ResourceKind, namespace: str, obj: Object, manager: str = "unknown") -> Stored:
        """Store a new object with defaults, uid and version, and return it.

        namespace: of the URL, "" for a cluster-scoped kind. obj: with metadata; its nested values are stored, not
        copied, and may get defaults. manager: the writer, for managedFields. Raises ApiRefusal: 400 for a wrong kind,
        apiVersion or namespace, or a label that is no string; 409 for a name in use; 422 for an invalid object; 404 for
        an unknown namespace; 403 if a quota or a namespace that is being deleted forbids it, or for an unknown
        PriorityClass; 500 for an object with a resourceVersion; 501 for a CRD that the embedded API cannot serve.
        """
        obj = as_kind(kind, obj)
        meta = obj["metadata"] = _complete_metadata(
            kind, namespace, without_empty_fields(obj.get("metadata") or {}), self._new_uid
        )
        with refuse_malformed(kind.kind, str(meta.get("name", ""))):
            check_metadata(kind, meta, namespace)
        _check_namespace(kind, namespace, self.objects.of(NAMESPACES))
        if (namespace, meta["name"]) in self.objects.of(kind):
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
                custom_kind, obj["status"] = kind_of(obj), established_status(obj, self._now(0))
                self.catalogue.put(custom_kind)
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
        left, it is removed. Raises ApiRefusal: 400 for another name, kind or apiVersion, or a label that is no string;
        404; 409 Conflict for a stale resourceVersion or another uid; 422 for an invalid object or a missing
        resourceVersion that the kind requires; 501 for a CRD that the embedded API cannot serve.
        """
        old = self.objects.get(kind, namespace, name)
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
            new = normalize_object(kind, new)
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
        old = self.objects.get(kind, namespace, name)
        return self._store_state(kind, bind_pod(old.obj, node, self._now(0)), old, manager, "binding")

    def evict(self, kind: ResourceKind, namespace: str, name: str, options: deletion.DeleteOptions) -> Stored:
        """Delete a pod unless a PodDisruptionBudget forbids it. Return what delete() returns.

        If a grace period follows, the condition DisruptionTarget is written first. options: those of the deletion.
        Raises ApiRefusal: 404, 409 if the pod does not meet the preconditions, 429 if a budget forbids it, 500 if two
        budgets select the pod. Raises ValueError for a budget with a malformed number.
        """
        pod = self.objects.get(kind, namespace, name)
        deletion.check_preconditions(kind, pod.obj, options)
        pods = [each.obj for each in self.objects.find(kind, namespace, lambda obj: True)]
        budgets = [each.obj for each in self.objects.find(BUDGETS, namespace, lambda obj: True)]
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
        old = self.objects.get(kind, namespace, name)
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

    def finish_deletion(self, kind: ResourceKind, stored: Stored) -> None:
        """Remove an object whose deletion had to wait, such as a namespace that is empty now."""
        self._remove_object(kind, stored, deletion.final_state(kind, stored.obj, self._now(0)))

    def _admit(self, kind: ResourceKind, namespace: str, obj: Object) -> Object:
        """Return a new object as it is to be stored: pruned, with its defaults, and checked. Parts of `obj` may be
        changed.

        namespace: of the object. Raises ApiRefusal: 422 for an invalid object, 403 for a quota or an unknown
        PriorityClass.
        """
        obj = normalize_object(kind, obj)
        if kind is PODS:
            obj = with_priority(obj, [each.obj for each in self.objects.of(PRIORITIES).values()])
        kind.defaults(obj)
        check_object(kind, obj)
        if kind is PODS and (quotas := self.objects.find(QUOTAS, namespace, lambda obj: True)):
            pods = [each.obj for each in self.objects.find(PODS, namespace, lambda obj: True)]
            check_quotas(obj, pods, [each.obj for each in quotas])
        return obj

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
        return self.objects.write(kind, obj, before)

    def _remove_object(self, kind: ResourceKind, old: Stored, last: Object) -> Stored:
        """Remove an object, add its deletion to the history, and return its last state.

        last: that state, which gets the version of the deletion. The objects of a deleted CRD's kind are deleted, too.
        That kind is not served any more, or is served as before the CRD if it is preinstalled.
        """
        now = self.objects.remove(kind, old, last)
        meta = last["metadata"]
        if kind is DEFINITIONS:
            for custom in [kind for kind in self.catalogue.kinds() if kind.resource == meta["name"]]:
                for key in list(self.objects.of(custom)):
                    self.delete(custom, *key)
            self.catalogue.drop(meta["name"])
        around = self.objects.of(NAMESPACES).get(("", meta.get("namespace", "")))
        if around is not None and around.obj["metadata"].get("deletionTimestamp"):
            self.objects.owner_index.to_check.add((NAMESPACES, "", around.obj["metadata"]["name"]))
        return now


def _complete_metadata(
    kind: ResourceKind, namespace: str, meta: dict[str, Any], new_uid: Callable[[], str]
) -> dict[str, Any]:
    """Complete a new object's metadata in place, and return it: a generated name if it has only generateName, and
    the namespace.

    A namespace in the metadata stays. namespace: of the URL.
    """
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"] + new_uid()[:5]
    if kind.namespaced:
        meta["namespace"] = meta.get("namespace") or namespace
    return meta


def _check_namespace(kind: ResourceKind, namespace: str, namespaces: Mapping[Key, Stored]) -> None:
    """Check that objects of a kind may be created in a namespace. namespaces: all Namespace objects.

    Raises ApiRefusal: 404 if it does not exist, 403 while it is being deleted. Nothing is checked for cluster-
    scoped kinds, nor in a store without any Namespace object.
    """
    if not kind.namespaced or not namespaces:
        return
    stored = namespaces.get(("", namespace))
    if stored is None:
        raise not_found("namespaces", namespace)
    if stored.obj["metadata"].get("deletionTimestamp"):
        message = f"unable to create new content in namespace {namespace} because it is being terminated"
        raise ApiRefusal("Forbidden", f"{kind.resource} is forbidden: {message}")
