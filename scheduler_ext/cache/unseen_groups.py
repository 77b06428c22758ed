"""Wait a moment for a PodGroup that pods name and that no watch has shown yet.

Pods and PodGroups come over different watches, in any order. A pod that is placed before its PodGroup is known is
placed without the groups, the tier and the min which that states, and what it takes cannot be moved later.
"""

from __future__ import annotations

from enum import Enum

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.gang import Gang

POD_GROUP_WAIT_S = 1.0  # since a pod of the gang was first asked about: a watch lags by less
MAX_WAITING_GANGS = 32  # gangs of one namespace at a time; further ones do not wait


class PodGroupState(Enum):
    """Tells how far the PodGroup is that a gang names."""

    KNOWN = "known"  # or not needed
    AWAITED = "awaited"
    NEVER_CAME = "never came"  # the gang is placed without it


class PodGroupWaits:
    """Remembers since when the PodGroup of each gang is awaited. A PodGroup that never comes holds its gang up once."""

    def __init__(self) -> None:
        self._since_s: dict[GangKey, float] = {}
        self._waiting: dict[str, dict[GangKey, float]] = {}  # namespace -> gang -> until when it waits, in that order

    def state_of(self, gang: Gang, now_s: float) -> PodGroupState:
        """Say whether a gang is to wait for its PodGroup. Its first look begins the wait."""
        if not gang.lacks_pod_group:
            return PodGroupState.KNOWN
        if gang.key not in self._since_s:
            self._begin(gang.key, now_s)
        return PodGroupState.AWAITED if now_s < self._since_s[gang.key] + POD_GROUP_WAIT_S else PodGroupState.NEVER_CAME

    def _begin(self, key: GangKey, now_s: float) -> None:
        waiting = self._waiting.setdefault(key.namespace, {})
        while waiting and (first := next(iter(waiting))) and waiting[first] <= now_s:
            del waiting[first]
        if len(waiting) >= MAX_WAITING_GANGS:
            self._since_s[key] = now_s - POD_GROUP_WAIT_S
            return
        self._since_s[key] = now_s
        waiting.pop(key, None)
        waiting[key] = now_s + POD_GROUP_WAIT_S

    def retain(self, gangs: dict[GangKey, Gang], now_s: float) -> None:
        """Forget what is not among these gangs. A wait that is not over counts on, so nobody gains by deleting pods."""
        self._since_s = {key: since_s for key, since_s in self._since_s.items() if key in gangs}
        for waiting in self._waiting.values():
            for key in [key for key, until_s in waiting.items() if until_s <= now_s]:
                del waiting[key]
        self._waiting = {namespace: waiting for namespace, waiting in self._waiting.items() if waiting}
