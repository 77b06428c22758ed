"""Decide which pods are evicted for a gang behind our gates, and when a gang that lost its min is moved or given up.

The domain is chosen as for the `preempt` verb (`planner/preemption.py`). Nothing is chosen while pods still leave the
hosts of a gang. `writers/eviction_writer.py` decides when evictions are sent, and how long hosts stay reserved.

A gang below its min that holds hosts and finds no room near them is repaired if its owner asks for it on its pods
(`jobs/gang.py`). Only its own members leave then. The nodes to which a gang moves are reserved for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from turnout.jobs.gang import Dialect, Remedy
from turnout.jobs.reservation import Reservation, ReservationReason
from turnout.scheduler_ext.cluster.gang import Gang, rank_sort_key
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.gates.release import GatedGang, Preemption
from turnout.scheduler_ext.model import EventReason, Evict, GatedPod
from turnout.scheduler_ext.planner.order import has_started
from turnout.scheduler_ext.planner.plan_preemption import plan_with_preemption
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.planner.request import AbsentMembers, PodsOnRows, planned_members
from turnout.scheduler_ext.planner.victims import choose_victims, lower_pods

ABSENT_S = 60.0  # how long a gang that moves may be without pods: its controller makes new ones within seconds


def may_preempt(gated_gang: GatedGang, gang: Gang) -> bool:
    """Return True if pods may be evicted for a gang: it could start, lacks only room, and all of it can be nominated.

    False if a waiting member must not preempt (preemptionPolicy Never), or a member has a place in the plan. The
    members of a started gang lose their gates instead, so that the scheduler preempts for them.
    """
    lacks_room = gated_gang.shortfall is not None and gated_gang.shortfall.reason is EventReason.NO_ROOM
    if gated_gang.has_started or gated_gang.hosts or not lacks_room:
        return False
    if any(m.is_waiting and m.never_preempts for m in gang.members.values()):
        return False
    planned = [pod for pod in gated_gang.gated_pods if pod.uid in gated_gang.planned_uids]
    return bool(planned) and all(_can_be_nominated(gated_gang, pod) for pod in planned)


def _can_be_nominated(gated_gang: GatedGang, pod: GatedPod) -> bool:
    """Return True if a pod has no gate of others, and its nomination is ours to write."""
    is_ours = not pod.nominated or pod.uid in gated_gang.nominated_by_us
    return not pod.other_gates and pod.uid in gated_gang.nominable_uids and is_ours


def plan_preemption(
    plans: Plans, gang: Gang, previous_hosts: Mapping[str, str], evicted_uids: Collection[str], wall_s: float
) -> Preemption | None:
    """Choose the hosts of a gang that may preempt and the victims on them; None if preemption would not help.

    It does not help if not every waiting member finds a host, if no pod has to leave, or if a gang of the same or a
    higher priority is planned on hosts that are not chosen yet.

    Hosts are tried in this order: `previous_hosts`; the hosts for which all waiting members are nominated by us, if
    pods still leave them; new hosts. While pods still leave the hosts, the result has no victims.

    gang: with at least one waiting member. previous_hosts: uid -> node for which pods were evicted before, empty for
    none. evicted_uids: uids of evicted pods, which the watch may still show as running. wall_s: seconds since 1970.
    """
    view = plans.view
    members = [m for m in planned_members(gang) if m.is_waiting]
    priority = min(m.priority for m in members)
    # The nominations show a new leader for which hosts pods are being evicted.
    nominated_hosts = {m.uid: node for m in members if (node := view.our_nomination(m)) in view.snapshot.row_of}
    for hosts in (previous_hosts, nominated_hosts):
        if hosts.keys() != {m.uid for m in members} or any(node not in view.snapshot.row_of for node in hosts.values()):
            continue
        pods = [(view.snapshot.row_of[hosts[m.uid]], m.shape) for m in members]
        if leaving := _count_leaving(view, pods, priority, evicted_uids):
            return Preemption(hosts, (), leaving)
        if hosts is previous_hosts:
            chosen = choose_victims(view, gang.key, pods, priority, evicted_uids, wall_s)
            if chosen:
                return Preemption(hosts, _evictions(gang, chosen), 0)
    return _preempt_on_new_hosts(plans, gang, members, evicted_uids, wall_s)


def _preempt_on_new_hosts(
    plans: Plans, gang: Gang, members: Sequence[GangMember], evicted_uids: Collection[str], wall_s: float
) -> Preemption | None:
    """Choose the cheapest hosts for a gang and the victims on them.

    None if not every member finds a host, if no pod has to leave, or if a gang of the same or a higher priority is
    planned there. members: the waiting members. evicted_uids: uids of evicted pods, which the watch may still show as
    running. wall_s: seconds since 1970.
    """
    view = plans.view
    lowest_member = min(members, key=lambda m: (m.priority, m.uid))
    plan = plan_with_preemption(plans, gang, lowest_member, wall_s)
    if plan.refusal is not None or plan.hosts.keys() != {m.uid for m in members}:
        return None
    pods = plan.reserved_pods()
    if _is_planned_by_others(plans, gang, {row for row, _ in pods}):
        return None
    chosen = choose_victims(view, gang.key, pods, lowest_member.priority, evicted_uids, wall_s)
    if chosen is None:
        return None
    leaving = _count_leaving(view, pods, lowest_member.priority, evicted_uids)
    if not chosen and not leaving:
        return None
    hosts = {uid: view.fabric.hosts[row] for uid, row in sorted(plan.hosts.items())}
    return Preemption(hosts, _evictions(gang, chosen), leaving)


def _count_leaving(view: ClusterView, pods: PodsOnRows, priority: int, evicted_uids: Collection[str]) -> int:
    """Count the pods of a lower priority on the rows of `pods` that terminate or were evicted already."""
    return sum(1 for m in lower_pods(view, pods, priority) if m.terminating or m.uid in evicted_uids)


def _is_planned_by_others(plans: Plans, gang: Gang, rows: Collection[int]) -> bool:
    """Return True if another gang of the same or a higher priority is planned on these rows: its pods arrive soon."""
    for plan in plans.current_plans():
        other = plans.view.gangs.get(plan.key)
        if other is None or plan.key == gang.key or other.priority < gang.priority:
            continue
        if any(row in rows for row, _ in plan.reserved_pods()):
            return True
    return False


def _evictions(gang: Gang, chosen: Iterable[GangMember]) -> tuple[Evict, ...]:
    why = f"evicted for {gang.key} of priority {gang.priority}"
    return tuple(Evict(m.uid, m.namespace, m.name, why) for m in chosen)


@dataclass(frozen=True, slots=True)
class StuckGang:
    """A gang that cannot reach its min where it is."""

    running_pods: int  # members with a host
    min_pods: int  # members that must run together
    refusal_detail: str  # why the other members have no host

    def __str__(self) -> str:
        counts = f"{self.running_pods} of the {self.min_pods} that must run together have a host"
        return f"{counts}, and for the rest {self.refusal_detail}"


def find_stuck_gang(plans: Plans, gang: Gang, now_s: float) -> StuckGang | None:
    """Return how a gang is stuck: some members run, fewer than its min, and its plan finds no host for the rest.

    None for a pod without a gang, and if the gang has its min, has no member that runs, has no plan, or has a plan
    without a refusal, or if only members that the planner does not place have a host. now_s: by the monotonic clock.
    """
    running = count_running(gang)
    if gang.key.dialect == Dialect.ALONE.value or not 0 < running < gang.min_pods:
        return None
    plan = plans.plan_of(gang.key, now_s)
    if plan is None or plan.refusal is None or not has_started(plans.view, gang):
        return None
    return StuckGang(running, gang.min_pods, plan.refusal.detail)


@dataclass(frozen=True, slots=True)
class GangRepair:
    """The repair of a stuck gang that is due."""

    victims: tuple[Evict, ...]  # its members that have a host, at least one
    nodes: tuple[str, ...] = ()  # on which all of it fits, sorted; () if it is given up


def plan_repair(plans: Plans, gang: Gang, stuck_gang: StuckGang) -> GangRepair | None:
    """Choose the members that are evicted for the remedy that the gang's owner named.

    A gang is moved only if all of it fits on free room while its present pods still run, so it never loses its places
    without new ones. None if the remedy is to wait, or if it is to move and no such room exists. stuck_gang: how the
    gang is stuck, for the owner.
    """
    remedy = gang.repair.remedy
    moved = remedy is Remedy.MOVE
    nodes = _nodes_elsewhere(plans, gang) if moved else ()
    if remedy is Remedy.WAIT or (moved and not nodes):
        return None
    reason = EventReason.GANG_MOVED if moved else EventReason.GANG_GIVEN_UP
    then = "all of it fits elsewhere" if moved else "the gang waits until all of it fits"
    detail = f"{stuck_gang}: the remaining members are evicted, and {then}"
    leaving = sorted((m for m in gang.living() if m.node), key=lambda m: m.name)
    return GangRepair(tuple(Evict(m.uid, m.namespace, m.name, detail, reason) for m in leaving), nodes)


def _nodes_elsewhere(plans: Plans, gang: Gang) -> tuple[str, ...]:
    """Return the nodes on which the whole gang fits beside all plans and pods, its own pods included, sorted; () if
    none.
    """
    members = tuple(sorted((m for m in planned_members(gang) if not m.terminating), key=rank_sort_key))
    lacking = max(0, gang.min_pods - len(members))
    request = replace(
        plans.request_of(gang),
        waiting=members,
        placed_members=(),
        nominated_hosts={},
        absent=AbsentMembers(missing=lacking),
        preferences={},
    )
    plan = plans.try_place(request)
    if plan.refusal is not None:
        return ()
    return tuple(sorted({plans.view.fabric.hosts[row] for row, _ in plan.reserved_pods()}))


class ReservationEnd(StrEnum):
    """Why a reservation ended. Log, metric and test use the same word."""

    USED = "used"  # at least the gang's min of members has nodes, and no member waits
    EXPIRED = "expired"  # its time was over before that
    GANG_DELETED = "gang_deleted"  # the gang does not exist any more
    RELEASED = "released"  # it is not needed: the gang found other hosts, or no pod could be evicted


def end_of_reservation(
    reservation: Reservation, gang: Gang | None, absent_s: float, wall_s: float
) -> ReservationEnd | None:
    """Return why a reservation ends now; None while it goes on.

    It ends as USED when at least the holder's min of members has nodes and no member waits, as GANG_DELETED when the
    holder has no member (with reason REPAIR: when it has had none for ABSENT_S, since its controller makes new pods),
    else as EXPIRED when its time is over.

    gang: the holder, None if it has no member. absent_s: seconds since its last member went, 0 if it has one. wall_s:
    now, in seconds since 1970.
    """
    if gang is None:
        # All pods of a gang that moves may be deleted before its controller makes new ones.
        patience_s = ABSENT_S if reservation.reason is ReservationReason.REPAIR else 0.0
        if absent_s >= patience_s:
            return ReservationEnd.GANG_DELETED
    elif count_running(gang) >= gang.min_pods and not any(m.is_waiting for m in gang.living()):
        return ReservationEnd.USED
    return ReservationEnd.EXPIRED if reservation.until_s <= wall_s else None


def count_running(gang: Gang) -> int:
    """Count the members that have a host and do not terminate."""
    return sum(1 for m in gang.living() if m.node)
