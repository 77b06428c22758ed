"""The objects of the embedded API and the rules of writing them: versions, conflicts, finalizers, subresources.

Objects are plain dicts and are never changed once stored: a write stores a new one. HTTP is in shell/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from simulator.api.errors import ApiRefusal, conflict, invalid, not_found
from simulator.api.journal import Change, Journal, Stored
from simulator.api.model import Kind, Object
from simulator.api.rules import check_metadata, check_pod_update
from simulator.api.select import Question

Key = tuple[str, str]  # namespace, name
_KEPT_CHANGES = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. version: of the list. rest: the key after which to go on, None at the end."""

    items: tuple[Stored, ...]
    version: int
    rest: Key | None = None


class Store:
    """Every object, its version and its history. now: the time as RFC 3339. new_uid: a name for a new object."""

    def __init__(self, now: Callable[[], str], new_uid: Callable[[], str], kept_changes: int = _KEPT_CHANGES) -> None:
        self._now, self._new_uid, self._kept = now, new_uid, kept_changes
        self._objects: dict[Kind, dict[Key, Stored]] = {}
        self._journals: dict[Kind, Journal] = {}
        self._encoder = msgspec.json.Encoder()
        self.version = 1

    def journal(self, kind: Kind) -> Journal:
        """The history of a kind, for a watch to read."""
        return self._journals.setdefault(kind, Journal(self._kept))

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Raises ApiRefusal (404)."""
        stored = self._objects.get(kind, {}).get((namespace, name))
        if stored is None:
            raise not_found(kind.resource, name)
        return stored

    def find(self, kind: Kind, namespace: str, wanted: Question) -> list[Stored]:
        """All that match, in key order. namespace: "" for every one."""
        return [s for _, s in self._walk(kind, namespace) if wanted(s.obj)]

    def page(self, kind: Kind, namespace: str, wanted: Question, limit: int, after: Key | None) -> Page:
        """At most `limit` (0: no bound) that match, from `after` on.

        Later pages show the objects as they are now: with the version of the first page a watch makes up for it.
        """
        items: list[Stored] = []
        for key, stored in self._walk(kind, namespace):
            if (after is not None and key <= after) or not wanted(stored.obj):
                continue
            if limit and len(items) == limit:
                last = items[-1].obj["metadata"]
                return Page(tuple(items), self.version, (last.get("namespace", ""), last["name"]))
            items.append(stored)
        return Page(tuple(items), self.version)

    def _walk(self, kind: Kind, namespace: str) -> Iterable[tuple[Key, Stored]]:
        held = sorted(self._objects.get(kind, {}).items())
        return ((key, stored) for key, stored in held if not namespace or key[0] == namespace)

    def create(self, kind: Kind, namespace: str, obj: Object) -> Stored:
        """Store a new object. Raises ApiRefusal: 409 for a name that is taken, 422 for a bad one, 404 no namespace."""
        obj = _as_kind(kind, obj)
        meta = obj["metadata"] = dict(obj.get("metadata") or {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + self._new_uid()[:5]
        if kind.namespaced:
            meta.setdefault("namespace", namespace)
        check_metadata(kind, meta, namespace)
        self._check_namespace(kind, namespace)
        if (namespace, meta["name"]) in self._objects.get(kind, {}):
            raise ApiRefusal("AlreadyExists", f'{kind.resource} "{meta["name"]}" already exists')
        for key in ("deletionTimestamp", "selfLink", "managedFields"):
            meta.pop(key, None)
        meta.update(uid=self._new_uid(), creationTimestamp=self._now(), generation=1)
        if kind.status and not kind.status_at_birth:
            obj.pop("status", None)
        kind.defaults(obj)
        return self._keep(kind, obj, None)

    def _check_namespace(self, kind: Kind, namespace: str) -> None:
        known = [held for row, held in self._objects.items() if row.plural == "namespaces"]
        if kind.namespaced and known and ("", namespace) not in known[0]:
            raise not_found("namespaces", namespace)

    def update(self, kind: Kind, namespace: str, name: str, obj: Object, part: str = "") -> Stored:
        """Replace an object, or with part="status" only its status. Raises ApiRefusal: 404, 409, 422."""
        old = self.get(kind, namespace, name)
        new = _as_kind(kind, obj)
        meta = dict(new.get("metadata") or {})
        self._check_update(kind, old, meta)
        born = old.obj["metadata"]
        if part == "status":
            new = {**old.obj, "status": new.get("status", {})}
            meta = dict(born)
        elif kind.status:
            new.pop("status", None)
            if "status" in old.obj:
                new["status"] = old.obj["status"]
        for key in ("name", "namespace", "uid", "creationTimestamp", "generation", "deletionTimestamp"):
            if key in born:
                meta[key] = born[key]
            else:
                meta.pop(key, None)
        meta.pop("managedFields", None)
        new["metadata"] = meta
        if kind.plural == "pods" and not kind.group:
            check_pod_update(name, old.obj, new)
        return self._replace(kind, old, new)

    def _check_update(self, kind: Kind, old: Stored, meta: dict[str, Any]) -> None:
        born = old.obj["metadata"]
        name = born["name"]
        if meta.get("name", name) != name:
            raise ApiRefusal("BadRequest", f"the name of the object ({meta['name']}) does not match the URL ({name})")
        if meta.get("uid") not in (None, "", born["uid"]):
            raise conflict(kind.resource, name, f"Precondition failed: UID in object meta: {born['uid']}")
        version = meta.get("resourceVersion")
        if not version and not kind.unconditional:
            raise invalid(kind.kind, name, "metadata.resourceVersion: must be specified for an update")
        if version and version != str(old.version):
            raise conflict(
                kind.resource,
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            )

    def _replace(self, kind: Kind, old: Stored, new: Object) -> Stored:
        """Store the next state of an object; one that changes nothing is no write, as in Kubernetes."""
        meta = new["metadata"]
        meta["resourceVersion"] = str(old.version)
        if new == old.obj:
            return old
        if any(new.get(key) != old.obj.get(key) for key in (new.keys() | old.obj.keys()) - {"metadata", "status"}):
            meta["generation"] = meta.get("generation", 1) + 1
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            return self._forget(kind, old, new)
        return self._keep(kind, new, old)

    def bind(self, kind: Kind, namespace: str, name: str, node: str) -> Stored:
        """Give a pod its node, once. Raises ApiRefusal: 404, 409 when it has one."""
        old = self.get(kind, namespace, name)
        spec, status = old.obj["spec"], dict(old.obj.get("status") or {})
        if spec.get("nodeName"):
            raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
        if old.obj["metadata"].get("deletionTimestamp"):
            raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
        status.pop("nominatedNodeName", None)
        others = [c for c in status.get("conditions", ()) if c.get("type") != "PodScheduled"]
        status["conditions"] = [
            *others,
            {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": self._now()},
        ]
        bound = {
            **old.obj,
            "metadata": dict(old.obj["metadata"]),
            "spec": {**spec, "nodeName": node},
            "status": status,
        }
        return self._keep(kind, bound, old)

    def delete(self, kind: Kind, namespace: str, name: str, preconditions: dict[str, Any] | None = None) -> Stored:
        """Delete at once, without grace; an object with finalizers only gets its deletion time until they are gone."""
        old = self.get(kind, namespace, name)
        meta = old.obj["metadata"]
        for key in ("uid", "resourceVersion"):
            wanted = (preconditions or {}).get(key)
            if wanted and wanted != meta[key]:
                raise conflict(kind.resource, name, f"Precondition failed: {key} is {meta[key]}, not {wanted}")
        gone = {**old.obj, "metadata": dict(meta)}
        if not meta.get("finalizers"):
            return self._forget(kind, old, gone)
        if meta.get("deletionTimestamp"):
            return old
        gone["metadata"].update(deletionTimestamp=self._now(), deletionGracePeriodSeconds=0)
        return self._keep(kind, gone, old)

    def _keep(self, kind: Kind, obj: Object, before: Stored | None) -> Stored:
        now = self._stamp(obj)
        meta = obj["metadata"]
        self._objects.setdefault(kind, {})[(meta.get("namespace", ""), meta["name"])] = now
        self.journal(kind).write(Change(now.version, now, before))
        return now

    def _forget(self, kind: Kind, old: Stored, last: Object) -> Stored:
        meta = last["metadata"]
        del self._objects[kind][(meta.get("namespace", ""), meta["name"])]
        now = self._stamp(last)
        self.journal(kind).write(Change(now.version, now, old, gone=True))
        return now

    def _stamp(self, obj: Object) -> Stored:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        return Stored(obj, self._encoder.encode(obj), self.version)


def _as_kind(kind: Kind, obj: Object) -> Object:
    """The object with the kind and apiVersion of its path. Raises ApiRefusal (400) when it says another."""
    for key, ours in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if obj.get(key) not in (None, "", ours):
            raise ApiRefusal("BadRequest", f"the {key} of the object is {obj[key]!r}, the path is of {ours!r}")
    return {**obj, "kind": kind.kind, "apiVersion": kind.api_version}
