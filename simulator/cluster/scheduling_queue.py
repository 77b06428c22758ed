"""Queue the pods that wait: which one is next, and which are tried again when something changes.

Source: docs/facts/extender.md 1.5, 1.6: back-off from 1 to 10 s, and any change wakes a pod that an extender refused.
Gated pods are not put here (runtime/scheduler_loop.py).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from turnout.jobs.gang import POD_GROUP_PATHS, Dialect, GangKey, Membership
from turnout.simulator.cluster.cluster import PodInfo


@dataclass(slots=True)
class _Waiter:
    pod_info: PodInfo
    since: int  # arrival, counted
    tries: int = 0  # failed tries so far
    not_before_s: float = 0.0  # end of its pause
    unschedulable: bool = False  # refused, and nothing has changed since

    @property
    def turn(self) -> tuple[int, int]:
        """The sort key: the pod with the lowest is next."""
        return -self.pod_info.priority, self.since


class WaitingPods:
    """The waiting pods by priority, then by arrival.

    One heap has the pods that may be tried, another those whose pause is not over. An entry is ignored if its pod has
    changed since.
    """

    def __init__(self, backoff_s: tuple[float, float] = (1.0, 10.0)) -> None:
        """Make an empty queue. backoff_s: (first, longest) pause after a failed try, in seconds."""
        self._first_s, self._longest_s = backoff_s
        self._waiters: dict[str, _Waiter] = {}
        self._ready: list[tuple[tuple[int, int], str]] = []
        self._backoff_queue: list[tuple[float, str]] = []
        self._unschedulable: set[str] = set()
        self._arrivals = 0

    def put(self, pod_info: PodInfo) -> None:
        """Add a waiting pod, or update it. Do nothing if it is known and equal.

        A changed pod may be tried once its pause is over, without waiting for a change of the cluster.
        """
        known = self._waiters.get(pod_info.uid)
        if known is None:
            self._arrivals += 1
            known = self._waiters[pod_info.uid] = _Waiter(pod_info, self._arrivals)
        elif known.pod_info == pod_info:
            return
        known.pod_info = pod_info
        self._queue(pod_info.uid, known)

    def drop(self, uid: str) -> None:
        """Remove a pod that waits no longer. Do nothing for an unknown pod."""
        self._waiters.pop(uid, None)
        self._unschedulable.discard(uid)

    def pod_info(self, uid: str) -> PodInfo | None:
        """Return the waiting pod with this uid; None if no pod with this uid waits."""
        waiter = self._waiters.get(uid)
        return waiter.pod_info if waiter is not None else None

    def next(self, now_s: float) -> PodInfo | None:
        """Return the pod to try now, which stays in the queue; None if no pod may be tried yet.

        now_s: on any monotonic clock.
        """
        while self._backoff_queue and self._backoff_queue[0][0] <= now_s:
            _, uid = heapq.heappop(self._backoff_queue)
            waiter = self._waiters.get(uid)
            if waiter is not None and not waiter.unschedulable and waiter.not_before_s <= now_s:
                heapq.heappush(self._ready, (waiter.turn, uid))
        while self._ready:
            turn, uid = self._ready[0]
            waiter = self._waiters.get(uid)
            if waiter is not None and waiter.turn == turn and not waiter.unschedulable and waiter.not_before_s <= now_s:
                return waiter.pod_info
            heapq.heappop(self._ready)
        return None

    def note_failed_try(self, uid: str, now_s: float, until_change: bool) -> None:
        """Record that a try failed: the pod waits for a pause, which doubles with each failure up to the longest one.

        Do nothing for an unknown pod. now_s: by the clock of `next`. until_change: True if the pod must also wait until
        wake() is called.
        """
        waiter = self._waiters.get(uid)
        if waiter is None:
            return
        waiter.not_before_s = now_s + min(self._first_s * 2 ** min(waiter.tries, 32), self._longest_s)
        waiter.tries += 1
        waiter.unschedulable = until_change
        if until_change:
            self._unschedulable.add(uid)
        else:
            heapq.heappush(self._backoff_queue, (waiter.not_before_s, uid))

    def wake(self) -> None:
        """Let pods that wait for a change be tried again once their pause is over. Call it when something changes in
        the cluster.
        """
        for uid in self._unschedulable:
            waiter = self._waiters[uid]
            waiter.unschedulable = False
            heapq.heappush(self._backoff_queue, (waiter.not_before_s, uid))
        self._unschedulable.clear()

    def next_try_in_s(self, now_s: float) -> float | None:
        """Return the seconds until some pod may be tried, 0 for now; None if only a change of the cluster helps.

        now_s: by the clock of `next`.
        """
        if self.next(now_s) is not None:
            return 0.0
        while self._backoff_queue:
            at_s, uid = self._backoff_queue[0]
            waiter = self._waiters.get(uid)
            if waiter is not None and not waiter.unschedulable and waiter.not_before_s == at_s:
                return max(0.0, at_s - now_s)
            heapq.heappop(self._backoff_queue)
        return None

    def _queue(self, uid: str, waiter: _Waiter) -> None:
        """Move a waiter to the back-off queue, also from the unschedulable pods."""
        waiter.unschedulable = False
        self._unschedulable.discard(uid)
        heapq.heappush(self._backoff_queue, (waiter.not_before_s, uid))

    def __len__(self) -> int:
        return len(self._waiters)


# The PodGroups that are held here. Kubernetes' own are left to kube-scheduler itself, whose gang scheduling is not
# simulated.
HELD_GROUP_PATHS = {dialect: path for dialect, path in POD_GROUP_PATHS.items() if dialect is not Dialect.NATIVE}


class Gangs:
    """The members of every held gang, as their pods and PodGroups state them."""

    def __init__(self) -> None:
        self._min_by_gang: dict[GangKey, int] = {}
        self._membership_by_uid: dict[str, Membership] = {}
        self._bound_by_gang: dict[GangKey, dict[str, bool]] = {}  # uid -> True if it has a node

    def put_group(self, dialect: Dialect, namespace: str, name: str, minimum: int) -> None:
        """Add or update a PodGroup. minimum: its minMember; 0 if it was deleted or states none, so that the pods'
        own min counts.
        """
        self._min_by_gang[GangKey(namespace, name, dialect.value)] = minimum

    def put_pod(self, uid: str, member: Membership, bound: bool) -> None:
        """Add or update a pod that has not ended. A pod whose gang is not held here (HELD_GROUP_PATHS) is not stored.

        member: the pod's gang, role and rank. bound: True if it has a node.
        """
        before = self._membership_by_uid.get(uid)
        if before is not None and before.key != member.key:
            self.drop_pod(uid)
        if any(member.key.dialect == each.value for each in HELD_GROUP_PATHS):
            self._membership_by_uid[uid] = member
            self._bound_by_gang.setdefault(member.key, {})[uid] = bound

    def bind(self, uid: str, bound: bool) -> None:
        """Record at once, before the watch shows it, whether a member has a node. Do nothing for an unknown pod."""
        if (member := self._membership_by_uid.get(uid)) is not None:
            self._bound_by_gang[member.key][uid] = bound

    def drop_pod(self, uid: str) -> None:
        """Remove a pod that is deleted or has ended. Do nothing for an unknown pod."""
        member = self._membership_by_uid.pop(uid, None)
        if member is not None:
            members = self._bound_by_gang[member.key]
            members.pop(uid, None)
            if not members:
                del self._bound_by_gang[member.key]

    def pods_to_try(self, uid: str) -> list[str]:
        """Return the uids of the members without a node to try together with this pod, itself included, by role and
        rank.

        Only this pod itself if it may start alone, or if it is of no gang.
        """
        member = self._membership_by_uid.get(uid)
        if member is None or self.missing_members(uid) <= 1:
            return [uid]
        waiting = [each for each, bound in self._bound_by_gang[member.key].items() if not bound]
        return sorted(
            waiting,
            key=lambda each: (self._membership_by_uid[each].role, self._membership_by_uid[each].rank or 0, each),
        )

    def missing_members(self, uid: str) -> int:
        """Return the gang's min minus its bound members, which may be negative; 0 for a pod without a gang or a min.

        uid: of the pod. The pod may start alone if the result is at most 1.
        """
        member = self._membership_by_uid.get(uid)
        if member is None:
            return 0
        minimum = self._min_by_gang.get(member.key) or member.min_members or 0
        return minimum - sum(self._bound_by_gang[member.key].values())

    def name(self, uid: str) -> str:
        """Return the gang's name for messages. Raises KeyError for a pod without a held gang. uid: of the pod."""
        return str(self._membership_by_uid[uid].key)
