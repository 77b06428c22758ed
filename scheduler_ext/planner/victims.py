"""Choose the pods that leave so that the seats of a plan are free, and the loss of a pod that leaves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.request import PodsOnRows


def choose_victims(
    view: ClusterView, own_key: GangKey, pods: PodsOnRows, priority: int, evicted_uids: Collection[str], wall_s: float
) -> tuple[GangMember, ...] | None:
    """Choose the pods below a priority that leave so that `pods` fit.

    Returns (): the pods that leave already are enough. Returns None: no choice makes enough room.

    own_key: the gang for which they leave. evicted_uids: pods that leave already, though the watch may still show them.
    wall_s: seconds since 1970. Victims that turn out to be unnecessary are spared: gangs of the highest priority and
    loss first, then single pods above a min. A gang that would fall below its min loses all its pods below the
    priority, because the others would hold hosts for nothing. Pods on other hosts leave first, so no gang is left in
    parts elsewhere if this process dies between two evictions.
    """
    rows = {row for row, _ in pods}
    lower = [m for m in lower_pods(view, pods, priority) if m.membership.key != own_key]
    leaving_uids = {m.uid for m in lower if m.terminating or m.uid in evicted_uids}
    ledger = _RoomLedger(view, pods, lower)
    victim_uids = {m.uid for m in lower if m.node}
    if not ledger.fits(victim_uids | leaving_uids):
        return None
    by_gang: dict[GangKey, list[GangMember]] = {}
    for member in lower:
        if member.node and member.uid not in leaving_uids:
            by_gang.setdefault(_gang_of(view, member), []).append(member)
    most_expensive_first = sorted(
        by_gang, key=lambda key: (-max(m.priority for m in by_gang[key]), -_lost_gpu_s(view, key, wall_s), key)
    )
    victim_uids = _needed_victims(view, ledger, {key: by_gang[key] for key in most_expensive_first}, leaving_uids)
    chosen = [m for m in lower if m.uid in victim_uids]
    removed_uids = victim_uids | leaving_uids
    for key in most_expensive_first:
        if any(m.uid in victim_uids for m in by_gang[key]) and _is_below_min(view, key, removed_uids):
            chosen += [m for m in _remaining_members(view, key, priority) if m.uid not in removed_uids]
    row_of = view.snapshot.row_of
    return tuple(sorted(chosen, key=lambda m: (row_of.get(m.node) in rows, m.namespace, m.name)))


def _needed_victims(
    view: ClusterView,
    ledger: _RoomLedger,
    by_gang: Mapping[GangKey, Sequence[GangMember]],
    leaving_uids: Collection[str],
) -> set[str]:
    """Return the uids of the victims that are needed: whole gangs are spared first, then single pods above a min.

    by_gang: the pods that may leave, the most expensive gang first. leaving_uids: pods that leave in any case, not in
    the result. ledger: the room that the new pods need. All pods of `by_gang` if even these make too little room.
    """
    leaving = set(leaving_uids)
    victim_uids = {m.uid for members in by_gang.values() for m in members}
    for members in by_gang.values():
        fewer_uids = victim_uids - {m.uid for m in members}
        victim_uids = fewer_uids if ledger.fits(fewer_uids | leaving) else victim_uids
    for key, members in by_gang.items():
        for member in sorted(members, key=lambda m: (-m.priority, m.created, m.uid)):
            if member.uid not in victim_uids or _is_below_min(view, key, victim_uids | leaving):
                continue
            if ledger.fits(victim_uids - {member.uid} | leaving):
                victim_uids.discard(member.uid)
    return victim_uids


class _RoomLedger:
    """The room on the hosts of a plan, in vectors of the resources."""

    def __init__(self, view: ClusterView, pods: PodsOnRows, lower_pods: Sequence[GangMember]) -> None:
        """Compute what each row lacks for `pods`. lower_pods: the pods that may leave; `fits` accepts no other uid."""
        snapshot, resources = view.snapshot, view.snapshot.resources
        for shape in {shape for _, shape in pods}:
            resources.pod_amounts(shape)  # a resource that is new makes all vectors longer
        self._shortage: dict[int, NDArray[np.int64]] = {}
        for row, shape in pods:
            self._shortage[row] = self._shortage.get(row, -resources.free_at(row)) + resources.pod_amounts(shape)
        requested = np.logical_or.reduce([resources.pod_amounts(shape) > 0 for _, shape in pods])
        self._shortage = {row: np.where(requested, short, 0) for row, short in self._shortage.items()}
        self._vectors = {
            m.uid: (snapshot.row_of[snapshot.charges[m.uid].node], resources.pod_amounts(m.shape)) for m in lower_pods
        }

    def fits(self, removed_uids: Iterable[str]) -> bool:
        """Return True if all pods to be placed fit once these victims have left.

        Raises KeyError for a uid that is not among the lower pods.
        """
        short = {row: left.copy() for row, left in self._shortage.items()}
        for uid in removed_uids:
            row, vector = self._vectors[uid]
            short[row] -= vector
        return all(bool((left <= 0).all()) for left in short.values())


def lower_pods(view: ClusterView, pods: PodsOnRows, priority: int) -> list[GangMember]:
    """Return the pods below a priority that are charged to the rows of `pods`, by row, then by uid. Pods that the view
    does not know are left out.
    """
    found: list[GangMember] = []
    for row in sorted({row for row, _ in pods}):
        for uid in sorted(view.snapshot.pods.on_node(view.snapshot.order[row])):
            member = view.pods.get(uid)
            if member is not None and view.snapshot.charges[uid].priority < priority:
                found.append(member)
    return found


def _gang_of(view: ClusterView, member: GangMember) -> GangKey:
    """Return the gang of a pod; a gang of its own for a pod without a gang."""
    key = member.membership.key
    return key if key in view.gangs else GangKey(member.namespace, member.uid, key.dialect)


def _remaining_members(view: ClusterView, key: GangKey, priority: int) -> list[GangMember]:
    gang = view.gangs.get(key)
    return [m for m in gang.members.values() if m.node and m.priority < priority] if gang is not None else []


def _is_below_min(view: ClusterView, key: GangKey, removed_uids: Collection[str]) -> bool:
    """Return True if a gang has fewer running members than its min once these pods have left.

    False for an unknown gang. removed_uids: the pods that leave.
    """
    gang = view.gangs.get(key)
    if gang is None:
        return False
    left = sum(1 for m in gang.members.values() if m.node and not m.terminating and m.uid not in removed_uids)
    return left < gang.min_pods


def _lost_gpu_s(view: ClusterView, key: GangKey, wall_s: float) -> int:
    """Return the run time so far of a gang's pods with a node, in GPU seconds; 0 for an unknown gang."""
    gang = view.gangs.get(key)
    return sum(m.gpus * run_time_s(m, wall_s) for m in gang.members.values() if m.node) if gang is not None else 0


def run_time_s(pod: GangMember, wall_s: float) -> int:
    """Return the whole seconds since a pod was created, at least 1; 1 if that time is unknown. wall_s: seconds since
    1970.
    """
    return max(1, int(wall_s - (unix_s(pod.created) or wall_s)))
