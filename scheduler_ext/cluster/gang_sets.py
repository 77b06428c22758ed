"""The gangs that name a set and start together (`turnout.dev/together`), by the name of their set."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from turnout.jobs.gang import GangKey
from turnout.jobs.wishes.model import MAX_TOGETHER
from turnout.scheduler_ext.cluster.gang import Gang

_SetName = tuple[str, str]  # namespace and name of a set


class GangSets:
    """The sets of all namespaces. A question costs the gangs of its set once, and nothing until one of them changes."""

    def __init__(self) -> None:
        self._set_of: dict[GangKey, _SetName] = {}
        self._keys: dict[_SetName, dict[GangKey, None]] = {}
        self._oldest: dict[_SetName, list[Gang]] = {}  # the oldest gangs of a set, until one of its gangs changes

    def update(self, key: GangKey, gang: Gang | None) -> None:
        """Store to which set a changed gang belongs, and forget the cached order of its old and its new set.

        gang: None for a deleted gang, which is removed from its set, as is a gang that names no set any more.
        """
        together_name = gang.terms.sets.together_name if gang is not None else ""
        name = (key.namespace, together_name) if together_name else None
        before = self._set_of.pop(key, None)
        if before is not None:
            self._oldest.pop(before, None)
            self._keys[before].pop(key)
            if not self._keys[before]:
                del self._keys[before]
        if name is not None:
            self._set_of[key] = name
            self._keys.setdefault(name, {})[key] = None
            self._oldest.pop(name, None)

    def oldest_gangs(self, namespace: str, name: str, gangs: Mapping[GangKey, Gang]) -> list[Gang]:
        """Return the gangs of a set, the oldest first, at most MAX_TOGETHER; [] for an unknown set.

        gangs: all gangs of the cluster. The list is cached until a gang of the set changes: do not change it.
        """
        key = namespace, name
        if key not in self._oldest:
            members = [gang for other in self._keys.get(key, ()) if (gang := gangs.get(other)) is not None]
            self._oldest[key] = nsmallest(MAX_TOGETHER, members, key=lambda gang: (gang.age, gang.key))
        return self._oldest[key]
