"""Decide the next writes for a gang behind our gates: first every nomination, then every gate.

The decision depends only on the objects of the API server and on the plan. So a process that takes over after a crash
continues after the last write. Whether any process places gated pods is read from the nominator's Lease.
Source: docs/managed-clusters.md
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from turnout.kube.objects import Lease
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cluster.gang import Gang, rank_sort_key
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.model import EventReason, Evict, GatedPod, Lift, LiftReason, Nominate
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.planner.request import is_planned, planned_members
from turnout.scheduler_ext.planner.reservations import add_reservation
from turnout.topology.model import Refusal


@dataclass(frozen=True, slots=True)
class Preemption:
    """The preemption for a gang: the pods that leave, and the hosts for which its members are nominated meanwhile."""

    hosts: Mapping[str, str]  # uid -> node
    victims: tuple[Evict, ...]  # pods to evict, in this order
    terminating_pods: int  # pods that already leave
    refusal_detail: str = ""  # why the last eviction was refused; "" if it was not


@dataclass(frozen=True, slots=True)
class GatedGang:
    """A gang with members behind our gate, and the planner's answer about it."""

    gated_pods: tuple[GatedPod, ...]  # in the order of their ranks
    min_pods: int  # members that must start together
    startable_pods: int  # members that exist and have no gate of others
    ungated_pods: int  # members among them without our gate
    has_started: bool  # True if a member runs, or was let go before
    requires_level: bool  # True if the gang must stay within a tier
    hosts: Mapping[str, str] = field(default_factory=dict)  # uid -> planned node
    planned_uids: frozenset[str] = frozenset()  # uids of the members that the plan places
    nominable_uids: frozenset[str] = frozenset()  # uids of gated members that we may nominate
    nominated_by_us: frozenset[str] = frozenset()  # uids of gated members that we nominated
    unknown_size: Refusal | None = None  # why it is unknown how many must start together
    preemption: Preemption | None = None  # room, by evictions
    shortfall: Refusal | None = None  # why not every member has a place in the plan


_SIZED_BY_OWNER = ("Job/", "StatefulSet/")  # kinds that are watched; other owners state no size


def observe_gated_gang(
    plans: Plans,
    gang: Gang,
    gated_pods: Mapping[str, GatedPod],
    lifted_uids: Collection[str],
    schedulers: Collection[str],
    now_s: float,
    awaits_pod_group: bool = False,
) -> GatedGang:
    """Gather the facts that decide on a gang's gates.

    The planner is asked only if the gang has started or as many startable members exist as its min. gated_pods: uid ->
    pod as the API server showed it last. lifted_uids: uids whose gate is lifted, though the watch may not show it yet.
    schedulers: the names of the schedulers whose pods are nominated. awaits_pod_group: True while the gang's PodGroup
    is awaited, whose terms are not known. now_s: by the monotonic clock.
    """
    living = sorted(gang.living(), key=rank_sort_key)
    gated = [m for m in living if m.uid in gated_pods]
    ungated = [m for m in living if m.uid not in gated_pods and (not m.gated or m.uid in lifted_uids)]
    startable_pods = len(ungated) + sum(1 for m in gated if not gated_pods[m.uid].other_gates)
    has_started = any(_is_released(m, lifted_uids) and is_planned(m, gang) for m in ungated)
    unknown_size = _unknown_size(gang, awaits_pod_group)
    may_plan = unknown_size is None and (has_started or startable_pods >= gang.min_pods)
    hosts, shortfall = _planned_nodes(plans, gang, now_s) if may_plan else ({}, None)
    return GatedGang(
        gated_pods=tuple(gated_pods[m.uid] for m in gated),
        min_pods=gang.min_pods,
        startable_pods=startable_pods,
        ungated_pods=len(ungated),
        has_started=has_started,
        requires_level=gang.terms.requires_level,
        hosts=hosts,
        planned_uids=frozenset(m.uid for m in planned_members(gang)),
        nominable_uids=frozenset(m.uid for m in gated if not m.nomination_obstacle and m.scheduler in schedulers),
        nominated_by_us=frozenset(m.uid for m in gated if _is_ours(plans, m, gated_pods[m.uid])),
        unknown_size=unknown_size,
        shortfall=shortfall,
    )


def _is_released(member: GangMember, lifted_uids: Collection[str]) -> bool:
    """Return True if a member without a gate is bound, is nominated by us, or lost its gate through us.

    lifted_uids: of members whose gate we removed.
    """
    return bool(member.node) or member.nominated_by_us or member.uid in lifted_uids


def _unknown_size(gang: Gang, awaits_pod_group: bool) -> Refusal | None:
    """Return the refusal that names a missing PodGroup or owner, if only it states how many members must start.

    Also while the PodGroup is awaited. None if the size is known. awaits_pod_group: True while the PodGroup of the gang
    is awaited.
    """
    if gang.lacks_pod_group or awaits_pod_group:
        what = f"its PodGroup {gang.key.name}"
    elif gang.is_unsized and gang.key.name.startswith(_SIZED_BY_OWNER):
        what = gang.key.name
    else:
        return None
    unknown = (
        "no PodGroup, owner or annotation states how many members must start together"
        if gang.is_unsized
        else "its terms are not known"
    )
    return Refusal(EventReason.GANG_UNKNOWN, f"{what} does not exist yet: {unknown}")


def _planned_nodes(plans: Plans, gang: Gang, now_s: float) -> tuple[dict[str, str], Refusal | None]:
    """Return (uid -> node of the waiting members, refusal of the plan or None); ({}, None) without a plan.

    Members that are assumed or nominated elsewhere keep that node. Without a map a gang with a required level is
    refused. now_s: by the monotonic clock.
    """
    view = plans.view
    if not view.fabric.mapped_count and gang.terms.requires_level:
        return {}, Refusal(EventReason.NO_MAP, "a topology tier is required and the map names no host")
    plan = plans.plan_of(gang.key, now_s)
    if plan is None:
        return {}, None
    hosts = {uid: view.fabric.hosts[host] for uid, host in plan.hosts.items()}
    for member in gang.members.values():  # assumed to be on its way, or nominated by another program
        if member.is_waiting and member.uid not in hosts and (node := view.node_of(member)):
            hosts[member.uid] = node
    if plan.refusal is None:
        return hosts, None
    detail = add_reservation(plans.reservation_against(gang), gang, plan.refusal.detail)
    return hosts, Refusal(EventReason(plan.refusal.reason.value), detail)


def _is_ours(plans: Plans, member: GangMember, pod: GatedPod) -> bool:
    """Return True if we wrote the nomination of a gated pod, even if the watch does not show it yet."""
    return bool(pod.nominated) and plans.view.our_nomination(member) == pod.nominated


Writes = tuple[Nominate, ...] | tuple[Lift, ...] | tuple[Evict, ...]


def next_writes(gated_gang: GatedGang) -> tuple[Writes, Refusal | None]:
    """Decide the next writes for a gang. Returns (the writes, why the other members wait or None). Raises nothing.

    All writes are of one type: nominations first; lifts or evictions only once no nomination is left to write.
    Nominations and lifts may be sent at once. Evictions are sent one after the other, and none after a refused
    eviction. If no member may start and nothing is preempted, our nominations are cleared.
    """
    refusal = _start_refusal(gated_gang)
    lifts = () if refusal is not None else _lifts(gated_gang)
    if not lifts and gated_gang.preemption is not None:
        return _preemption_writes(gated_gang, gated_gang.preemption)
    if not lifts:
        taken_back = tuple(
            Nominate(pod, "")
            for pod in gated_gang.gated_pods
            if pod.uid in gated_gang.nominated_by_us and pod.nominated
        )
        return taken_back, refusal or gated_gang.shortfall
    due = tuple(Nominate(lift.pod, lift.node) for lift in lifts if _needs_nomination(gated_gang, lift))
    return due or lifts, gated_gang.shortfall


def _preemption_writes(gated_gang: GatedGang, preemption: Preemption) -> tuple[Writes, Refusal]:
    """Return (writes, why the gang waits).

    The writes are the nominations that are not written yet, for the hosts on which victims leave; the evictions once no
    nomination is missing. Nominations come first, so that the scheduler reserves the hosts for the gang. The gang waits
    as EVICTION_REFUSED if the last eviction was refused, else as PREEMPTING.
    """
    nominations = tuple(
        Nominate(pod, node)
        for pod in gated_gang.gated_pods
        if (node := preemption.hosts.get(pod.uid, "")) and pod.nominated != node
    )
    if preemption.refusal_detail:
        return nominations or preemption.victims, Refusal(EventReason.EVICTION_REFUSED, preemption.refusal_detail)
    leaving = len(preemption.victims) + preemption.terminating_pods
    pods = "1 pod of a lower priority leaves" if leaving == 1 else f"{leaving} pods of a lower priority leave"
    return nominations or preemption.victims, Refusal(EventReason.PREEMPTING, f"{pods} for it")


def _start_refusal(gated_gang: GatedGang) -> Refusal | None:
    """Return why no member may start now; None if members may start.

    An unknown size of the gang is a reason, also for a started gang. Else a started gang has no reason; for another
    gang the reason is that fewer members than its min exist or have a place.
    """
    if gated_gang.unknown_size is not None:
        return gated_gang.unknown_size
    # The min counts for the start only: a member that runs, or has ended well, does not wait for the others again.
    if gated_gang.has_started:
        return None
    if gated_gang.startable_pods < gated_gang.min_pods:
        return Refusal(
            EventReason.GANG_INCOMPLETE, f"{gated_gang.startable_pods} of {gated_gang.min_pods} members exist"
        )
    seated = sum(
        1
        for pod in gated_gang.gated_pods
        if not pod.other_gates and (pod.uid in gated_gang.hosts or pod.uid not in gated_gang.planned_uids)
    )
    if gated_gang.ungated_pods + seated >= gated_gang.min_pods:
        return None
    return gated_gang.shortfall or Refusal(
        EventReason.NO_ROOM, f"{gated_gang.ungated_pods + seated} of {gated_gang.min_pods} members have a place"
    )


def _lifts(gated_gang: GatedGang) -> tuple[Lift, ...]:
    """Return the lifts for the members that may start, in rank order, those without a seat last. Members with a gate of
    another program are left out.

    If a gang has started, members without a seat are lifted, too, until its min is reached. Not in a gang with a
    required level, because such a member could land on any node.
    """
    lifts: list[Lift] = []
    missing_pods = gated_gang.min_pods - gated_gang.ungated_pods
    without_seat: list[GatedPod] = []
    for pod in gated_gang.gated_pods:
        if pod.other_gates:
            continue
        node = gated_gang.hosts.get(pod.uid, "")
        if node:
            lifts.append(Lift(pod, LiftReason.PLACED, node, only_this_node=gated_gang.requires_level))
        elif pod.uid not in gated_gang.planned_uids:
            lifts.append(Lift(pod, LiftReason.NOT_JUDGED))
        else:
            without_seat.append(pod)
    if gated_gang.has_started and not gated_gang.requires_level:
        lifts += [Lift(pod, LiftReason.COMPLETING) for pod in without_seat[: max(0, missing_pods - len(lifts))]]
    return tuple(lifts)


def _needs_nomination(gated_gang: GatedGang, lift: Lift) -> bool:
    """Return True if the pod's nomination must be written, or cleared if the lift has no node, before the gate is
    lifted.

    False if the pod has this nomination or one of another program, which stays, and if the pod must not be nominated
    (`nominable_uids`).
    """
    pod = lift.pod
    if pod.nominated == lift.node or (pod.nominated and pod.uid not in gated_gang.nominated_by_us):
        return False
    return bool(pod.nominated) if not lift.node else pod.uid in gated_gang.nominable_uids


_TERMS = 3  # terms of the Lease without a renewal: another replica would have taken it long before
_MAX_TERM_S = 60.0  # longer terms in a Lease are ignored


class PlacerState(Enum):
    """Whether a process places gated pods, by the Lease."""

    PLACED = "Placed"  # a process holds it
    SILENT = "Silent"  # its holder is late to renew it, and the bound is not reached
    GONE = "Gone"  # its last renewal is older than the bound


def silence_s(lease: Lease | None, wall_s: float) -> float:
    """Return the seconds since the holder renewed a Lease; infinite if there is no Lease or no time in it.

    wall_s: seconds since 1970. A holder whose clock is ahead of ours is not silent (0).
    """
    renewed_s = unix_s(lease.spec.renew_time or "") if lease is not None else None
    return math.inf if renewed_s is None else max(0.0, wall_s - renewed_s)


def placer_state(lease: Lease | None, bound_s: float, wall_s: float) -> PlacerState:
    """Return whether a process places gated pods, by the nominator's Lease.

    PLACED while the last renewal is at most _TERMS terms of the Lease old; a term counts as 1 s to _MAX_TERM_S. Then
    SILENT, and GONE once it is older than `bound_s`. lease: None if it does not exist: GONE, unless bound_s is
    infinite. bound_s: seconds. wall_s: seconds since 1970.
    """
    silent_s = silence_s(lease, wall_s)
    term_s = min(_MAX_TERM_S, max(1.0, float((lease.spec.lease_duration_seconds if lease else 0) or 0)))
    if silent_s <= _TERMS * term_s:
        return PlacerState.PLACED
    return PlacerState.GONE if silent_s > bound_s else PlacerState.SILENT
