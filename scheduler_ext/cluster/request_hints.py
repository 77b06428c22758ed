"""Facts that the requests of a scheduler reveal before the watches show them.

A scheduler and an extender watch the same objects over different connections, in any order. A scheduler that offers a
full host has seen a pod leave before our watch showed it. A refusal from our older view would then stand for minutes,
because the scheduler asks again only after another change.

A PodGroup may be shown after its pods. A pod that is placed before its PodGroup is known is placed without the groups,
the tier and the min of the PodGroup, and the room that it takes cannot be moved later.

A host with room that the scheduler does not offer is refused by another filter, or a member that another replica placed
is on its way there. So a host counts as rejected only if it is missing twice, CONFIRM_S apart. It stays rejected until
the scheduler offers it again, or for FORGET_S after it was last missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView

CATCH_UP_S = 10.0  # a difference that lasts longer is no delay of a watch


def offers_unknown_room(view: ClusterView, member: GangMember, names: Sequence[str]) -> bool:
    """Return True if the scheduler names a node that no watch has shown, or on which this pod does not fit by our view.

    names: the nodes of the request. The view must be up to date (`view.settle`), as it is after a question to the
    planner.
    """
    rows = np.fromiter(map(view.snapshot.row_of.get, names, repeat(-1)), np.int64, len(names))
    return bool((rows < 0).any() or (view.snapshot.room(member.shape)[rows] <= 0).any())


class LaggingView:
    """The time since when each refused pod is offered more room than the view knows."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def should_retry(self, view: ClusterView, member: GangMember, names: Sequence[str], now_s: float) -> bool:
        """Return True if the scheduler should ask about this pod again, because a watch may soon show the missing room.

        The first call for a pod that is offered unknown room starts a time of CATCH_UP_S, after which the answer is
        False. A call in which no unknown room is offered ends that time. names: the nodes of the request. now_s: by the
        monotonic clock.
        """
        if not offers_unknown_room(view, member, names):
            self._since_s.pop(member.uid, None)
            return False
        return now_s - self._since_s.setdefault(member.uid, now_s) < CATCH_UP_S

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._since_s.pop(uid, None)


# A pod of an unknown PodGroup waits at most this long, from the first question about its gang. Watches lag by less.
POD_GROUP_WAIT_S = 10.0
MAX_WAITING_GANGS = 256  # gangs of one namespace at a time; further ones do not wait


class PodGroupState(Enum):
    """The state of the PodGroup that a gang names."""

    KNOWN = "known"  # or not needed
    AWAITED = "awaited"
    NEVER_CAME = "never came"  # the gang is placed without it


class PodGroupWaits:
    """The time since when the PodGroup of each gang is awaited. A PodGroup that never comes delays its gang once."""

    def __init__(self) -> None:
        self._since_s: dict[GangKey, float] = {}
        self._waiting: dict[str, dict[GangKey, float]] = {}  # namespace -> gang -> until when it waits, in that order

    def state_of(self, gang: Gang, now_s: float) -> PodGroupState:
        """Return whether a gang waits for its PodGroup.

        KNOWN if no PodGroup that it names is missing. Else the first call for the gang starts a wait of
        POD_GROUP_WAIT_S: AWAITED during it, NEVER_CAME after it. NEVER_CAME at once if MAX_WAITING_GANGS gangs of the
        namespace wait. A gang waits once: it does not wait again if its PodGroup is deleted later. now_s: by the
        monotonic clock.
        """
        if not gang.names_missing_pod_group:
            self._waiting.get(gang.key.namespace, {}).pop(gang.key, None)
            return PodGroupState.KNOWN
        if gang.key not in self._since_s:
            self._begin(gang.key, now_s)
        return PodGroupState.AWAITED if now_s < self._since_s[gang.key] + POD_GROUP_WAIT_S else PodGroupState.NEVER_CAME

    def waits_s(self, key: GangKey, now_s: float) -> float:
        """Return the seconds since a gang's wait for its PodGroup began, also after the wait; 0 if it never began.

        At least POD_GROUP_WAIT_S for a gang that could not wait, because too many gangs waited. now_s: by the monotonic
        clock.
        """
        return now_s - self._since_s.get(key, now_s)

    def _begin(self, key: GangKey, now_s: float) -> None:
        """Begin the wait for a gang's PodGroup.

        If MAX_WAITING_GANGS gangs of its namespace wait already, the wait of this gang counts as over at once. now_s:
        by the monotonic clock.
        """
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
        """Drop the waits of gangs that do not exist any more, and free the places of waits that are over.

        gangs: all gangs that exist.

        A deleted gang still counts against MAX_WAITING_GANGS until its wait would end, so deleting pods frees no place
        early. now_s: by the monotonic clock.
        """
        self._since_s = {key: since_s for key, since_s in self._since_s.items() if key in gangs}
        for waiting in self._waiting.values():
            for key in [key for key, until_s in waiting.items() if until_s <= now_s]:
                del waiting[key]
        self._waiting = {namespace: waiting for namespace, waiting in self._waiting.items() if waiting}


CONFIRM_S = 1.0
FORGET_S = 300.0
MAX_OBSERVATIONS = 256  # pairs of gang and shape; the oldest pair is forgotten first

Marks = NDArray[np.bool_]  # one mark a row


@dataclass(slots=True)
class _Observation:
    """The rows that were missing for the pods of one gang and shape."""

    since_s: float  # when `missing` was stored, by the monotonic clock
    last_s: float  # when note_missing() was called last, by the same clock
    missing: Marks  # rows that had room and were not offered at `since_s`
    rejected: Marks  # rows that count as rejected


class RejectedHosts:
    """The hosts that the scheduler does not offer, by gang and shape. Clear them when rows change their meaning."""

    def __init__(self) -> None:
        self._observations: dict[tuple[GangKey, PodShape], _Observation] = {}

    def rows_by_shape(self, key: GangKey) -> Mapping[PodShape, Marks]:
        """Return shape -> marks of the rows that count as rejected for a gang. Shapes without such rows are absent.

        The marks are the stored ones: do not change them.
        """
        return {
            shape: observation.rejected
            for (gang, shape), observation in self._observations.items()
            if gang == key and observation.rejected.any()
        }

    def note_missing(self, key: GangKey, shape: PodShape, missing: Marks, now_s: float) -> Marks:
        """Note which rows the scheduler did not offer, and return the marks of the rows that count as rejected.

        missing: marks of the rows that have room and were not offered. A row counts as rejected once it is missing in
        two calls that are at least CONFIRM_S apart. A rejected row that is not in `missing` of such a later call counts
        as rejected no longer. The returned marks are the stored ones. now_s: by the monotonic clock. shape: of the pod
        that was asked about.
        """
        observation = self._observations.pop((key, shape), None)
        if observation is None:
            observation = _Observation(now_s, now_s, missing, np.zeros_like(missing))
        elif now_s - observation.since_s >= CONFIRM_S:
            observation.rejected = (observation.rejected | observation.missing) & missing
            observation.since_s, observation.missing = now_s, missing
        observation.last_s = now_s
        self._observations[key, shape] = observation
        while len(self._observations) > MAX_OBSERVATIONS:
            del self._observations[next(iter(self._observations))]
        return observation.rejected

    def note_offered(self, key: GangKey, shape: PodShape, rows: list[int]) -> bool:
        """Note that the scheduler offers these rows, so they are not rejected.

        Return True if one of them counted as rejected before. shape: of the pod that was asked about.
        """
        observation = self._observations.get((key, shape))
        if observation is None:
            return False
        was_rejected = bool(observation.rejected[rows].any())
        observation.rejected[rows] = observation.missing[rows] = False
        if not observation.missing.any():
            del self._observations[key, shape]
        return was_rejected

    def has_observation(self, key: GangKey, shape: PodShape) -> bool:
        """Return True if missing hosts are noted for pods of this gang and shape, rejected or not."""
        return (key, shape) in self._observations

    def expire(self, now_s: float) -> list[GangKey]:
        """Forget pairs of gang and shape without a call of `note_missing` for FORGET_S.

        Returns the gangs of the forgotten pairs that had rejected hosts; a gang with several such shapes occurs again.
        now_s: by the clock of `note_missing`.
        """
        old = [entry for entry, observation in self._observations.items() if now_s - observation.last_s >= FORGET_S]
        return [entry[0] for entry in old if self._observations.pop(entry).rejected.any()]

    def drop(self, key: GangKey) -> None:
        """Forget a deleted gang."""
        for each in [each for each in self._observations if each[0] == key]:
            del self._observations[each]

    def clear(self) -> None:
        """Forget everything."""
        self._observations.clear()
