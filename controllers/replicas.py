"""Remembers how often each replica of a role was made anew, and which numbers its pods have had.

What is remembered stands in the role's part of the job's status, so a controller that ends between counting a pod and
deleting it counts it once. Numbers are given upwards and never twice, as DLRover gives them. Source: DL-15, DL-94
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from turnout.controllers.model import Object, PodSeen, Replica, Role

_MOST = 2**31 - 1  # of a number or a count in a status


@dataclass(frozen=True, slots=True)
class Past:
    """The past of one role. uids: pods that are counted and may still be there. next: the first number never given.

    by_index: restarts of each index, kept where the role bounds them.
    """

    role: Role
    numbered: bool
    total: int
    uids: frozenset[str]
    by_index: Mapping[int, int]
    next: int

    @classmethod
    def read(cls, role: Role, before: Object, pods: Sequence[PodSeen], *, numbered: bool) -> Self:
        """Read it from the role's part of a status, and from the pods that are there."""
        uids = before.get("restartedPods")
        counted = frozenset(uids) if isinstance(uids, list) and all(isinstance(uid, str) for uid in uids) else ()
        by_index = before.get("restartCounts")
        indices = {
            int(index): _number(count)
            for index, count in (by_index.items() if isinstance(by_index, Mapping) else ())
            if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8 and _number(count)
        }
        given = max((_number_of(pod) + 1 for pod in pods), default=0) if numbered else 0
        next_ = max(_number(before.get("nextNumber")), given)
        return cls(role, numbered, _number(before.get("restarts")), frozenset(counted), indices, next_)

    def may(self, pod: PodSeen) -> bool:
        """True if this pod's index may be made anew once more, or is counted already."""
        most = self.role.most_restarts
        return most is None or pod.uid in self.uids or self.by_index.get(pod.index, 0) < most

    def counted(self, again: Iterable[PodSeen]) -> Past:
        """Return it with these pods counted, each once."""
        again = list(again)
        by_index = dict(self.by_index)
        fresh = [pod for pod in again if pod.uid not in self.uids]
        for pod in fresh if self.role.most_restarts is not None else ():
            by_index[pod.index] = by_index.get(pod.index, 0) + 1
        uids = frozenset(pod.uid for pod in again)
        return replace(self, total=self.total + len(fresh), uids=uids, by_index=by_index)

    def replica(self, index: int) -> tuple[Replica, Past]:
        """Return the replica that fills an index, and the past with its number given."""
        restarts = self.by_index.get(index, 0)
        if not self.numbered:
            return Replica(index, index, restarts), self
        number = max(index, self.next)
        return Replica(index, number, restarts), replace(self, next=number + 1)

    def kept(self) -> Object:
        """Return what the status has to remember."""
        found: dict[str, Any] = {"restarts": self.total, "restartedPods": sorted(self.uids)} if self.total else {}
        if self.by_index:
            found["restartCounts"] = {str(index): count for index, count in sorted(self.by_index.items())}
        return {**found, "nextNumber": self.next} if self.numbered and self.next else found


def _number_of(pod: PodSeen) -> int:
    tail = pod.name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 8 else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else 0
