"""Index owners and dependents by ownerReferences, and note what the garbage collector must look at after a change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnout.simulator.api.model import Kind, Object

Where = tuple[Kind, str, str]  # kind, namespace, name


class Ties:
    """Owners and dependents by uid. `doubtful` holds the objects whose owners, dependents or finalizers changed."""

    def __init__(self) -> None:
        self.doubtful: set[Where] = set()
        self._where: dict[str, Where] = {}
        self._owned: dict[str, set[Where]] = {}

    def place(self, uid: str) -> Where | None:
        """Return the key of the object with this uid; None when there is none."""
        return self._where.get(uid)

    def dependents(self, uid: str) -> list[Where]:
        """Return the keys of the objects that name this uid as an owner."""
        return list(self._owned.get(uid, ()))

    def note(self, kind: Kind, before: Object | None, now: Object | None) -> None:
        """Record one write.

        before: None for a creation. now: None for a deletion.
        """
        meta = (now or before or {})["metadata"]
        dependent: Where = (kind, meta.get("namespace", ""), meta["name"])
        was, named = _owners(before), _owners(now)
        for uid in was - named:
            self._owned[uid].discard(dependent)
            if not self._owned[uid]:
                del self._owned[uid]
            if uid in self._where:
                self.doubtful.add(self._where[uid])  # it may have waited for this dependent
        for uid in named - was:
            self._owned.setdefault(uid, set()).add(dependent)
        if now is None:
            self._where.pop(meta["uid"], None)
            self.doubtful |= self._owned.get(meta["uid"], set())
            return
        self._where[meta["uid"]] = dependent
        if named or meta.get("deletionTimestamp"):
            self.doubtful.add(dependent)


def _owners(obj: Object | None) -> set[str]:
    references: Iterable[dict[str, Any]] = (obj or {}).get("metadata", {}).get("ownerReferences") or ()
    return {each["uid"] for each in references}
