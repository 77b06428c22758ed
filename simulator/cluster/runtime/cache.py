"""Cache the objects that a controller has seen, its own writes included, and index pods by owner and PodGroup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from turnout.simulator.cluster.controllers.model import amounts_of, is_over
from turnout.simulator.cluster.controllers.volcano_job import GROUP

Object = dict[str, Any]
PODS, NODES = "pods", "nodes"


def _tags(pod: Object) -> list[str]:
    meta = pod["metadata"]
    group = (meta.get("annotations") or {}).get(GROUP)
    return [owner["uid"] for owner in meta.get("ownerReferences") or ()] + (
        [f"{meta['namespace']}/{group}"] if group else []
    )


class ObjectCache:
    """Objects by plural and uid. A write of the controller itself is added at once, so its next look sees it."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._deleted_uids: dict[
            str, None
        ] = {}  # uids of what was deleted, so that an old event does not bring it back
        self._tagged: dict[str, set[str]] = {}  # uid of an owner, or namespace/name of a PodGroup -> uids of pods
        self._owned: dict[tuple[str, str], set[str]] = {}  # plural, uid of an owner -> uids of what is no pod
        self._requested: Counter[str] = Counter()
        self._shares: dict[str, dict[str, int]] = {}  # uid of a bound pod or a node -> what it takes or gives

    def put(self, plural: str, obj: Object) -> bool:
        """Add an object. False when a newer version is known, or the object is gone."""
        meta = obj["metadata"]
        uid, objects = meta["uid"], self._objects.setdefault(plural, {})
        known = objects.get(uid)
        if uid in self._deleted_uids or (
            known and int(known["metadata"]["resourceVersion"]) >= int(meta["resourceVersion"])
        ):
            return False
        objects[uid] = obj
        if plural == PODS:
            for tag in _tags(obj):
                self._tagged.setdefault(tag, set()).add(uid)
        else:
            for tag in _tags(obj):
                self._owned.setdefault((plural, tag), set()).add(uid)
        self._weigh(plural, uid, obj)
        return True

    def drop(self, plural: str, uid: str) -> Object | None:
        """Remove an object, and return its last state."""
        self._deleted_uids[uid] = None
        if len(self._deleted_uids) > 10_000:
            del self._deleted_uids[next(iter(self._deleted_uids))]
        obj = self._objects.get(plural, {}).pop(uid, None)
        for tag in _tags(obj) if obj else ():
            of = self._tagged.get(tag) if plural == PODS else self._owned.get((plural, tag))
            (of or set()).discard(uid)
        self._weigh(plural, uid, None)
        return obj

    def get(self, plural: str, uid: str) -> Object | None:
        """Return one object, or None."""
        return self._objects.get(plural, {}).get(uid)

    def all(self, plural: str) -> Iterator[Object]:
        """Yield all objects of a kind."""
        return iter(list(self._objects.get(plural, {}).values()))

    def pods_of(self, tag: str) -> list[Object]:
        """Return the pods of an owner (its uid) or of a PodGroup (namespace/name), by name."""
        pods = self._objects.get(PODS, {})
        found = [pods[each] for each in self._tagged.get(tag, ()) if each in pods]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def owned(self, plural: str, uid: str) -> list[Object]:
        """Return the objects of a kind, other than pods, that this uid owns, by name."""
        objects = self._objects.get(plural, {})
        found = [objects[each] for each in self._owned.get((plural, uid), ()) if each in objects]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def free(self) -> Mapping[str, int]:
        """Return what all nodes together have free, in thousandths."""
        return self._requested

    def _weigh(self, plural: str, uid: str, obj: Object | None) -> None:
        """Update the sum of what nodes offer and bound pods take."""
        if plural not in (PODS, NODES):
            return
        self._requested.subtract(self._shares.pop(uid, {}))
        if obj is None:
            return
        share: Counter[str] = Counter()
        if plural == NODES:
            share.update(amounts_of((obj.get("status") or {}).get("allocatable") or {}))
        elif obj["spec"].get("nodeName") and not is_over(obj):
            for container in obj["spec"]["containers"]:
                share.subtract(amounts_of((container.get("resources") or {}).get("requests") or {}))
        self._shares[uid] = share
        self._requested.update(share)
