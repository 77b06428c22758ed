"""Remembers how often each replica of a role was made anew, and which numbers its pods have had.

What is remembered stands in the role's part of the job's status, so a controller that ends between counting a pod and
deleting it counts it once. Numbers are given upwards and never twice, as DLRover gives them. Source: DL-15, DL-94
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from turnout.controllers.model import Object, PodState, Replica, Role

_MAX_NUMBER = 2**31 - 1  # of a number or a count in a status
_MOST_NODES = 16  # that are avoided, the newest
_STARVED = "OOMKilled"


@dataclass(frozen=True, slots=True)
class Past:
    """The past of one role. uids: pods that are counted and may still be there. next: the first number never given.

    by_index: restarts of each index, kept where the role bounds them. faulty: the exit code of a pod on a faulty node,
    None for a kind that does not know it. starved: how often each index lacked memory. nodes: the faulty ones.
    noted: the first number that the status does not know as given. taken: numbers of pods that are there or are made.
    """

    role: Role
    numbered: bool
    total: int
    uids: frozenset[str]
    by_index: Mapping[int, int]
    next: int
    faulty_node_exit_code: int | None = None
    starved: Mapping[int, int] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    noted: int = 0
    used_numbers: frozenset[int] = frozenset()

    @classmethod
    def read(
        cls,
        role: Role,
        before: Object,
        pods: Sequence[PodState],
        *,
        numbered: bool,
        faulty_node_exit_code: int | None = None,
    ) -> Self:
        """Read it from the role's part of a status, and from the pods that are there."""
        uids = before.get("restartedPods")
        counted = frozenset(uids) if isinstance(uids, list) and all(isinstance(uid, str) for uid in uids) else ()
        node_names = before.get("faultyNodes") if faulty_node_exit_code is not None else ()
        nodes = tuple(each for each in node_names if isinstance(each, str)) if isinstance(node_names, list) else ()
        used_numbers = frozenset(map(_number_of, pods)) if numbered else frozenset()
        noted = _number_or_zero(before.get("nextNumber"))
        next_ = max(noted, *(number + 1 for number in used_numbers), 0)
        indices, starved = _by_index(before.get("restartCounts")), _by_index(before.get("memoryKills"))
        total = _number_or_zero(before.get("restarts"))
        return cls(
            role,
            numbered,
            total,
            frozenset(counted),
            indices,
            next_,
            faulty_node_exit_code,
            starved,
            nodes,
            noted,
            used_numbers,
        )

    def may(self, pod: PodState) -> bool:
        """True if this pod's index may be made anew once more, or is counted already."""
        most = self.role.most_restarts
        return most is None or pod.uid in self.uids or self.by_index.get(pod.index, 0) < most

    def fresh(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return those of these pods that are not counted yet."""
        return [pod for pod in pods if pod.uid not in self.uids]

    def counted(self, pods: Iterable[PodState]) -> Past:
        """Return it with these pods counted, each once."""
        pods = list(pods)
        by_index = dict(self.by_index)
        fresh = self.fresh(pods)
        for pod in fresh if self.role.most_restarts is not None else ():
            by_index[pod.index] = by_index.get(pod.index, 0) + 1
        starved, nodes = dict(self.starved), list(self.nodes)
        for pod in fresh if self.faulty_node_exit_code is not None else ():
            if pod.reason == _STARVED:
                starved[pod.index] = starved.get(pod.index, 0) + 1
            if pod.exit_code == self.faulty_node_exit_code and pod.node:
                nodes = [*(each for each in nodes if each != pod.node), pod.node][-_MOST_NODES:]
        uids = frozenset(pod.uid for pod in pods)
        total = self.total + len(fresh)
        return replace(self, total=total, uids=uids, by_index=by_index, starved=starved, nodes=tuple(nodes))

    def replica(self, index: int) -> tuple[Replica, Past]:
        """Return the replica that fills an index, and the past with its number given.

        The first pod of an index has its number, though others were made before it: a quota may have refused it.
        """
        met = self.by_index.get(index, 0), self.starved.get(index, 0), self.nodes
        if not self.numbered:
            return Replica(index, index, *met), self
        first = index >= self.noted and index not in self.used_numbers
        number = index if first else max(index, self.next)
        return Replica(index, number, *met), replace(
            self, next=max(self.next, number + 1), used_numbers=self.used_numbers | {number}
        )

    def status_fields(self) -> Object:
        """Return what the status has to remember."""
        found: dict[str, Any] = {"restarts": self.total, "restartedPods": sorted(self.uids)} if self.total else {}
        for name, counts in (("restartCounts", self.by_index), ("memoryKills", self.starved)):
            if counts:
                found[name] = {str(index): count for index, count in sorted(counts.items())}
        if self.nodes:
            found["faultyNodes"] = list(self.nodes)
        return {**found, "nextNumber": self.next} if self.numbered and self.next else found


def _by_index(counts: Any) -> dict[int, int]:
    return {
        int(index): _number_or_zero(count)
        for index, count in (counts.items() if isinstance(counts, Mapping) else ())
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8 and _number_or_zero(count)
    }


def _number_of(pod: PodState) -> int:
    tail = pod.name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 8 else 0


def _number_or_zero(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER else 0
