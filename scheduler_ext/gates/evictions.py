"""Choose who leaves so that a gang behind our gates can start: the cheapest domain, and there no pod too many.

The domain is chosen as for the `preempt` verb (planner/seats.py). A gang that cannot go on after what it loses is
evicted whole: what would be left of it would hold hosts for nothing. Nothing is chosen while pods still leave the hosts
of a gang. When evictions are sent, and for how long hosts are held, is settled in runtime/evictor.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.gates.model import GatedGang, Preemption
from turnout.scheduler_ext.model import EventReason, Evict
from turnout.scheduler_ext.planner.placing.model import planned_members
from turnout.scheduler_ext.planner.plan_cache import Plans
from turnout.scheduler_ext.planner.seats import plan_with_preemption

PodsToPlace = list[tuple[int, PodShape]]  # (row, shape) of each pod to come


def may_preempt(gated_gang: GatedGang, gang: Gang) -> bool:
    """True if pods may have to leave for a gang: it could start, lacks room alone, and can be nominated whole.

    A started gang lets its members go instead, so that the scheduler preempts for them.
    """
    if (
        gated_gang.has_started
        or gated_gang.hosts
        or gated_gang.shortfall is None
        or gated_gang.shortfall.reason is not EventReason.NO_ROOM
    ):
        return False
    if any(m.is_waiting and m.never_preempts for m in gang.members.values()):
        return False
    planned = [pod for pod in gated_gang.gated_pods if pod.uid in gated_gang.planned_uids]
    return bool(planned) and all(
        not pod.other_gates
        and pod.uid in gated_gang.nominable_uids
        and (not pod.nominated or pod.uid in gated_gang.nominated_by_us)
        for pod in planned
    )


def plan_preemption(
    plans: Plans, gang: Gang, previous_hosts: Mapping[str, str], evicted_uids: Collection[str], wall_s: float
) -> Preemption | None:
    """Choose the hosts of a gang that may preempt and the victims on them; None where preemption would not help.

    previous_hosts: uid -> node for which pods were evicted before, empty for none. evicted_uids: uids of evicted pods,
    which the watch may still show as running.
    """
    view = plans.view
    members = [m for m in planned_members(gang) if m.is_waiting]
    lowest_member = min(members, key=lambda m: (m.priority, m.uid))
    nominated_hosts = {m.uid: node for m in members if (node := view.our_nomination(m)) in view.snapshot.row_of}
    for hosts in (
        previous_hosts,
        nominated_hosts,
    ):  # what is nominated shows to whoever takes over for whom pods are leaving
        if hosts.keys() != {m.uid for m in members} or any(node not in view.snapshot.row_of for node in hosts.values()):
            continue
        pods = [(view.snapshot.row_of[hosts[m.uid]], m.shape) for m in members]
        leaving = sum(
            1 for m in lower_pods(view, pods, lowest_member.priority) if m.terminating or m.uid in evicted_uids
        )
        if leaving:
            return Preemption(hosts, (), leaving)
        chosen = (
            choose_victims(view, gang.key, pods, lowest_member.priority, evicted_uids, wall_s)
            if hosts is previous_hosts
            else None
        )
        if chosen:
            return Preemption(hosts, _evictions(gang, chosen), 0)
    plan = plan_with_preemption(plans, gang, lowest_member, wall_s)
    if plan.refusal is not None or plan.hosts.keys() != {m.uid for m in members}:
        return None
    pods = plan.reserved_pods()
    if _is_planned_by_others(plans, gang, {row for row, _ in pods}):
        return None
    chosen = choose_victims(view, gang.key, pods, lowest_member.priority, evicted_uids, wall_s)
    if chosen is None:
        return None
    leaving = sum(1 for m in lower_pods(view, pods, lowest_member.priority) if m.terminating or m.uid in evicted_uids)
    if not chosen and not leaving:
        return None
    hosts = {uid: view.fabric.hosts[row] for uid, row in sorted(plan.hosts.items())}
    return Preemption(hosts, _evictions(gang, chosen), leaving)


def choose_victims(
    view: ClusterView, own_key: GangKey, pods: PodsToPlace, priority: int, evicted_uids: Collection[str], wall_s: float
) -> tuple[Member, ...] | None:
    """Choose the pods below a priority that leave so that `pods` fits; None where no choice is enough.

    Nobody can be taken from the answer: the dearest gangs are spared first, then single pods above a min. Pods that no
    host of ours needs leave first, so that a process that dies amid the evictions leaves no gang in parts elsewhere.
    """
    rows = {row for row, _ in pods}
    lower = [m for m in lower_pods(view, pods, priority) if m.membership.key != own_key]
    leaving_uids = {m.uid for m in lower if m.terminating or m.uid in evicted_uids}
    ledger = _RoomLedger(view, pods, lower)
    victim_uids = {m.uid for m in lower if m.node}
    if not ledger.fits(victim_uids | leaving_uids):
        return None
    victim_uids -= leaving_uids
    by_gang: dict[GangKey, list[Member]] = {}
    for member in lower:
        if member.uid in victim_uids:
            by_gang.setdefault(_gang_of(view, member), []).append(member)
    dearest = sorted(
        by_gang, key=lambda key: (-max(m.priority for m in by_gang[key]), -_lost_gpu_s(view, key, wall_s), key)
    )
    for key in dearest:
        fewer_uids = victim_uids - {m.uid for m in by_gang[key]}
        victim_uids = fewer_uids if ledger.fits(fewer_uids | leaving_uids) else victim_uids
    for key in dearest:
        for member in sorted(by_gang[key], key=lambda m: (-m.priority, m.created, m.uid)):
            if (
                member.uid in victim_uids
                and not _is_below_min(view, key, victim_uids | leaving_uids)
                and ledger.fits(victim_uids - {member.uid} | leaving_uids)
            ):
                victim_uids.discard(member.uid)
    chosen = [m for m in lower if m.uid in victim_uids]
    for key in dearest:
        if any(m.uid in victim_uids for m in by_gang[key]) and _is_below_min(view, key, victim_uids | leaving_uids):
            chosen += [m for m in _remaining_members(view, key, priority) if m.uid not in victim_uids | leaving_uids]
    row_of = view.snapshot.row_of
    return tuple(sorted(chosen, key=lambda m: (row_of.get(m.node) in rows, m.namespace, m.name)))


class _RoomLedger:
    """The room on the hosts of a plan, in vectors of the resources."""

    def __init__(self, view: ClusterView, pods: PodsToPlace, lower_pods: Sequence[Member]) -> None:
        snapshot = view.snapshot
        for shape in {shape for _, shape in pods}:
            snapshot.vector(shape)  # a resource that is new makes all vectors longer
        self._shortage: dict[int, NDArray[np.int64]] = {}
        for row, shape in pods:
            self._shortage[row] = self._shortage.get(row, -snapshot.free_at(row)) + snapshot.vector(shape)
        requested = np.logical_or.reduce([snapshot.vector(shape) > 0 for _, shape in pods])
        self._shortage = {row: np.where(requested, short, 0) for row, short in self._shortage.items()}
        self._vectors = {
            m.uid: (snapshot.row_of[snapshot.charges[m.uid].node], snapshot.vector(m.shape)) for m in lower_pods
        }

    def fits(self, removed_uids: Iterable[str]) -> bool:
        """True if all takes fit once these are out."""
        short = {row: left.copy() for row, left in self._shortage.items()}
        for uid in removed_uids:
            row, vector = self._vectors[uid]
            short[row] -= vector
        return all(bool((left <= 0).all()) for left in short.values())


def lower_pods(view: ClusterView, pods: PodsToPlace, priority: int) -> list[Member]:
    """Return the pods below a priority that are charged to the hosts, by uid."""
    found: list[Member] = []
    for row in sorted({row for row, _ in pods}):
        for uid in sorted(view.snapshot.pods_on(view.snapshot.order[row])):
            member = view.pods.get(uid)
            if member is not None and view.snapshot.charges[uid].priority < priority:
                found.append(member)
    return found


def _gang_of(view: ClusterView, member: Member) -> GangKey:
    """Return a pod's gang; one of its own where nobody has to start with it."""
    key = member.membership.key
    return key if key in view.gangs else GangKey(member.namespace, member.uid, key.dialect)


def _remaining_members(view: ClusterView, key: GangKey, priority: int) -> list[Member]:
    gang = view.gangs.get(key)
    return [m for m in gang.members.values() if m.node and m.priority < priority] if gang is not None else []


def _is_below_min(view: ClusterView, key: GangKey, removed_uids: Collection[str]) -> bool:
    """True if a gang has fewer members left than its min once these are out."""
    gang = view.gangs.get(key)
    if gang is None:
        return False
    left = sum(1 for m in gang.members.values() if m.node and not m.terminating and m.uid not in removed_uids)
    return left < gang.min_pods


def _lost_gpu_s(view: ClusterView, key: GangKey, wall_s: float) -> int:
    """Return what a gang has done so far, in GPU seconds."""
    gang = view.gangs.get(key)
    members = gang.members.values() if gang is not None else ()
    return sum(m.gpus * max(1, int(wall_s - (unix_s(m.created) or wall_s))) for m in members if m.node)


def _is_planned_by_others(plans: Plans, gang: Gang, rows: Collection[int]) -> bool:
    """True if a gang that does not go behind this one is planned on these hosts: it lands in a moment."""
    for plan in plans.current_plans():
        other = plans.view.gangs.get(plan.key)
        if other is None or plan.key == gang.key or other.priority < gang.priority:
            continue
        if any(row in rows for row, _ in plan.reserved_pods()):
            return True
    return False


def _evictions(gang: Gang, chosen: Iterable[Member]) -> tuple[Evict, ...]:
    why = f"evicted for {gang.key} of priority {gang.priority}"
    return tuple(Evict(m.uid, m.namespace, m.name, why) for m in chosen)


def reserve_hosts(plans: Plans, gang: Gang, nodes: Iterable[str]) -> None:
    """Hold these nodes for a gang, and plan those of a lower priority anew that counted on them."""
    view = plans.view
    rows = {row for node in nodes if (row := view.snapshot.row_of.get(node)) is not None}
    if not plans.reservations.reserve(gang, rows):
        return
    for plan in plans.current_plans():
        other = view.gangs.get(plan.key)
        if other is not None and other.priority < gang.priority and any(row in rows for row, _ in plan.reserved_pods()):
            plans.replan(plan.key)
