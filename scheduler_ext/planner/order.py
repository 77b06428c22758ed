"""Order the gangs and their seats, and update a plan when its gang changes.

Started gangs that lack members of their min come first. Then count priority, being nominated, creation,
resourceVersion and uid. Up to its min a gang has one place in this order. Seats above the min come after the min of
every gang.
Gangs of one set are placed all or none, and may share one domain. `place_gang.py` decides which seats a plan has, and
`plans.py` which gang gives way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from functools import partial

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang, Sizing, rank_sort_key
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.batches import Work
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.ranks import seating_order
from turnout.scheduler_ext.planner.request import (
    AbsentMembers,
    GangPlan,
    GangRequest,
    RoomOf,
    Seat,
    build_request,
    planned_members,
)
from turnout.scheduler_ext.planner.seat_units import PlacedMembers, SeatUnits, begun_pods, has_units, seat_units
from turnout.scheduler_ext.planner.trees import gangs_of_tree, start_delays
from turnout.topology.model import Refusal, RefusalReason

# (SeatClass, -priority, above the min, not nominated, created, version, uid): the smallest is planned first.
SeatOrder = tuple[int, int, bool, bool, str, int, str]


class SeatClass(IntEnum):
    """The class of a seat, the first to be planned first. It counts before priority and age."""

    STARTED = auto()  # a part of the gang holds hosts and its min is not reached: half a gang cannot run
    WAITING = auto()
    GROWTH = auto()  # above the min and for a pod that does not exist: such a seat gives way to every other


@dataclass(frozen=True, slots=True)
class OrderedSeat:
    """One seat of a plan with its place in the order."""

    order: SeatOrder
    host: int  # id of the host
    shape: PodShape
    uid: str = ""  # of the member that the seat is for; "" while that member is still to be created
    rank: int = 0  # in the gang, of an open seat; 0 if `uid` is set


@dataclass(frozen=True, slots=True)
class GangPosition:
    """The place of a gang among all gangs."""

    needed_pods: int  # how many more members need a host to reach its min
    first_needed_key: SeatOrder  # of all seats of the min; if the min is reached, of the first seat above it
    last_key: SeatOrder  # of the last seat for a member that exists: every gang up to this order is planned before


def position_of(view: ClusterView, gang: Gang) -> GangPosition:
    """Return a gang's place in the order of all gangs.

    If no min is stated, as for plain Jobs, every member that exists counts as needed. Gangs of one set share the lowest
    priority and the youngest age of the set.
    """
    members = planned_members(gang)
    host_by_member = [(m, view.host_of(m)) for m in members]
    with_host = [(m, host) for m, host in host_by_member if host is not None]
    waiting = [m for m, host in host_by_member if host is None and m.is_waiting]
    started = len(with_host) > 0
    min_pods = gang.min_pods_to_finish if started else gang.min_pods
    needed_pods = _needed_pods(gang, waiting, min_pods)
    is_urgent = started and min_pods and needed_pods
    if not is_urgent:  # pods that an owner adds to a running group come before no gang of a higher priority
        needed_pods = max(needed_pods, begun_pods(gang, waiting, with_host))
    seat_class = SeatClass.STARTED if is_urgent else SeatClass.WAITING
    nominated = any(m.is_waiting and view.our_nomination(m) for m in gang.members.values())
    priority, age = gang.priority, gang.age
    if partners := gangs_of_set(view, gang):  # gangs of one set share the place of the least important and the youngest
        priority, age = min(other.priority for other in partners), partners[-1].age
    first = (int(seat_class), -priority, False, not nominated, *age)
    above = (int(SeatClass.WAITING), -priority, True, not nominated, *age)
    if not waiting and not needed_pods:  # only growth seats: they give way to every other seat, so all may see them
        first = above = (int(SeatClass.STARTED), *first[1:])
    has_seats_above = len(waiting) > needed_pods
    return GangPosition(needed_pods, first if needed_pods else above, above if has_seats_above else first)


def position_after(
    view: ClusterView,
    gang: Gang,
    plan: GangPlan,
    position: GangPosition,
    changed_uids: AbstractSet[str],
    member_uids: AbstractSet[str],
) -> GangPosition | None:
    """Return a gang's place in the order after some members got their planned hosts.

    plan, position: as they were before. changed_uids: the members whose place has changed. member_uids: the members
    that existed when the plan was made. None if `position_of` must compute it anew: a member went elsewhere or has no
    host, the gang is complete, or its place depends on more than the number of its members.
    """
    seated_uids = changed_uids & plan.hosts.keys()
    for uid in changed_uids:
        member = gang.members.get(uid)
        host = None if member is None or member.terminating else view.host_of(member)
        if host is None or uid not in member_uids or plan.hosts.get(uid, host) != host:
            return None
    left = len(plan.hosts) - len(seated_uids)
    needed_pods = position.needed_pods and position.needed_pods - len(seated_uids)
    ends = left < 1 or (position.needed_pods > 0 and needed_pods < 1)
    may_have_begun_units = position.needed_pods < len(plan.hosts) and has_units(gang)
    if ends or may_have_begun_units or gang.terms.sets.together_name or gang.min_by_role:
        return None
    was_nominated = not position.first_needed_key[3]
    waiting_uids = (uid for uid in plan.hosts if uid not in seated_uids) if was_nominated else changed_uids
    is_nominated = any(gang.members[uid].is_waiting and view.our_nomination(gang.members[uid]) for uid in waiting_uids)
    if is_nominated != was_nominated:
        return None
    if len(member_uids) > len(plan.hosts):  # it had started before
        return replace(position, needed_pods=needed_pods)
    if position.first_needed_key != position.last_key or not needed_pods:
        return None
    order = (
        (int(SeatClass.STARTED), *position.first_needed_key[1:])
        if gang.min_pods_to_finish
        else position.first_needed_key
    )
    return GangPosition(needed_pods, order, order)


def _needed_pods(gang: Gang, waiting: Sequence[GangMember], min_pods: int) -> int:
    """Return how many more members need a host so that a gang reaches its min, and each role its own min.

    waiting: members without a host. min_pods: 0 if no min is stated; then all waiting members count.
    """
    needed = max(0, min_pods - (len(gang.living()) - len(waiting))) if min_pods else len(waiting)
    if not gang.min_by_role:
        return needed
    present_roles = Counter(m.membership.role for m in gang.living()) - Counter(m.membership.role for m in waiting)
    return max(needed, sum(max(0, count - present_roles[role]) for role, count in gang.min_by_role))


def hosted_members(view: ClusterView, gang: Gang) -> list[tuple[GangMember, int]]:
    """Return (member, host id) of the planned members that hold a host; [] for a gang whose seats have no units."""
    members = planned_members(gang) if has_units(gang) else []
    return [(member, host) for member in members if (host := view.host_of(member)) is not None]


def order_seats(gang: Gang, plan: GangPlan, position: GangPosition, placed_members: PlacedMembers) -> list[OrderedSeat]:
    """Return a plan's seats, the first to be served first: seats of existing members, then open seats by rank.

    Seats that complete what running members have begun come first. If the gang needs one seat of a unit
    (`seat_units.py`) for its min, it needs all of them. placed_members: those that hold a host.

    Of a gang that has started, two kinds of seats come before all other gangs: the seats of its min, and the seats that
    complete a multiple which running members have begun on a host. Min and multiple count as the gang stated them at
    its start, because its owner may raise them at any time. Only the seats of the min come first if the owner has
    raised the multiple, or if both kinds together are more than one multiple for each pod of the min: another scheduler
    may have spread the pods over many hosts.
    """
    has_started = position.first_needed_key[0] == SeatClass.STARTED
    units = seat_units(gang, plan, placed_members, only_multiples=has_started)
    seats = _rank_seats(gang, plan, position, SeatUnits() if has_started else units)
    needed = units.with_partners([seat.uid or seat.rank for seat in seats if seat.order == position.first_needed_key])
    if has_started:
        if gang.multiple > gang.multiple_at_start:
            return seats
        completed = needed | {uid for uid in plan.hosts if units.has_begun(uid)}
        if len(completed) <= gang.min_pods_to_finish * gang.multiple_at_start:
            needed = completed
    if len(needed) <= position.needed_pods:
        return seats
    first = position.first_needed_key
    return [replace(seat, order=first) if (seat.uid or seat.rank) in needed else seat for seat in seats]


def _rank_seats(gang: Gang, plan: GangPlan, position: GangPosition, units: SeatUnits) -> list[OrderedSeat]:
    """Return a plan's seats in order, each with its place in the order of all gangs: needed for the min, above it, or
    growth.

    units: seats of units that running members have begun come first.
    """
    above = (int(SeatClass.WAITING), position.first_needed_key[1], True, *position.first_needed_key[3:])
    growth = (int(SeatClass.GROWTH), *above[1:])
    seats: list[OrderedSeat] = []
    bound_members = [member for member in gang.living() if member.node] if gang.min_by_role else []
    members = seating_order([gang.members[uid] for uid in plan.hosts], gang.min_by_role, bound_members)
    for member in sorted(members, key=lambda member: not units.has_begun(member.uid)):
        order = position.first_needed_key if len(seats) < position.needed_pods else above
        seats.append(OrderedSeat(order, plan.hosts[member.uid], plan.shapes[member.uid], member.uid))
    for seat in sorted(plan.open_seats, key=lambda seat: seat.rank):
        order = position.first_needed_key if len(seats) < position.needed_pods else growth
        seats.append(OrderedSeat(order, seat.host, seat.shape, "", seat.rank))
    return seats


def gangs_of_set(view: ClusterView, gang: Gang) -> list[Gang]:
    """Return all gangs of a gang's set, itself included, the oldest first; [] if it is in no set.

    [] also for a gang that comes after MAX_TOGETHER older ones of its set, or after MAX_TREE_GANGS older ones of its
    tree: it is placed alone. The gangs of a tree that are below an invalid branch are left out. The list may be cached:
    do not change it.
    """
    name = gang.terms.sets.together_name
    if not name:
        return []
    if gang.terms.ancestors:
        return gangs_of_tree(view, gang)
    partners = view.sets.oldest_gangs(gang.key.namespace, name, view.gangs)
    return partners if any(other is gang for other in partners) else []


def has_started(view: ClusterView, gang: Gang) -> bool:
    """Return True if at least one planned member of the gang holds a host."""
    return any(view.host_of(member) is not None for member in planned_members(gang))


def waiting_partners(
    view: ClusterView, together: list[Gang], plan_of: Callable[[GangKey], GangPlan | None]
) -> Mapping[GangKey, str]:
    """Return gang -> why it cannot start, for gangs of a set: too many others have no place or do not exist; {} if all
    can start.

    In a tree, gangs that can start are absent; in another set, all gangs wait for the same reason. together: the gangs
    of the set. plan_of: returns the current plan of a gang.
    """
    if together and together[0].terms.ancestors:
        return start_delays(view, together, partial(can_start, view, plan_of))
    detail = missing_partner(view, together, plan_of)
    return {gang.key: detail for gang in together} if detail else {}


def can_start(view: ClusterView, plan_of: Callable[[GangKey], GangPlan | None], gang: Gang) -> bool:
    """Return True if a gang has started, or its plan has a place for a waiting member.

    plan_of: returns the current plan of a gang. Open seats alone do not count.
    """
    plan = plan_of(gang.key)
    return has_started(view, gang) or (plan is not None and bool(plan.hosts))


def missing_partner(view: ClusterView, together: list[Gang], plan_of: Callable[[GangKey], GangPlan | None]) -> str:
    """Return why the gangs of a set cannot start: one of them has no place or does not exist, or fewer than announced
    exist.

    "" if they can start, and for no gangs. together: the gangs of the set. plan_of: returns the current plan of a gang.
    The set contains the gangs that koordinator's groups list, and as many gangs as our own annotation states.
    """
    if not together:
        return ""
    if (refused := next((gang for gang in together if not can_start(view, plan_of, gang)), None)) is not None:
        return f"it starts together with {refused.key}, which cannot start"
    existing = {str(gang.key) for gang in together}
    names = together[0].terms.sets.together_name.split(",")
    if absent := [name for name in names if "/" in name and name not in existing]:
        return f"it starts together with {absent[0][:120]}, which does not exist"
    announced = max(gang.terms.sets.together_size for gang in together)
    return f"{len(together)} of the {announced} gangs of this set exist" if len(together) < announced else ""


def refuse_for_partner(key: GangKey, why: str) -> GangPlan:
    """Return a plan without places, with the refusal NO_ROOM, for a gang that must wait for another gang.

    why: the detail of the refusal.
    """
    return GangPlan(key, refusal=Refusal(RefusalReason.NO_ROOM, why))


def rows_outside_shared_domain(
    view: ClusterView, work: Work, gang: Gang, plan_of: Callable[[GangKey], GangPlan | None], room_of: RoomOf
) -> NDArray[np.bool_] | None:
    """Return a mask of the rows outside the domain that a gang shares with the other gangs of its set.

    None if the gang is in no set with another gang, or every row is allowed. If the gangs must have one domain and no
    domain has room, all rows are marked. work: counts the steps. plan_of: returns the current plan of another gang: its
    places count as taken by its members. room_of: the room that the gangs may use.
    """
    together = gangs_of_set(view, gang)
    if len(together) < 2:
        return None
    merged = _merge_gangs(gang, together)
    plans = {other.key: plan for other in together if other is not gang and (plan := plan_of(other.key)) is not None}
    plan = place(view.fabric, _merged_request(view, merged, together, plans), room_of, work)
    if plan.refusal is not None:
        return np.ones(len(view.fabric.hosts), np.bool_) if merged.tier is not None else None
    domains = view.levels.label_domains(merged.terms.required_levels)
    if domains is not None and plan.used_hosts and plan.tier > (merged.tier or 0):
        outside: NDArray[np.bool_] = domains.row_domains != domains.number_of(plan.used_hosts)
        return outside
    tier = max(plan.tier, merged.tier or 1)
    if tier > view.fabric.tiers or not plan.used_hosts:
        return None
    row = view.fabric.switch_of[tier]
    mask: NDArray[np.bool_] = row != row[plan.used_hosts[0]]
    return mask


def _merged_request(
    view: ClusterView, merged: Gang, together: Sequence[Gang], plans: Mapping[GangKey, GangPlan]
) -> GangRequest:
    """Return the request for all gangs of a set. plans: of the other gangs, whose planned members count as placed.

    merged: all gangs of the set as one gang. together: the gangs.
    """
    request = build_request(view, merged, ())
    planned = {uid: host for plan in plans.values() for uid, host in plan.hosts.items()}
    seated = tuple((member, planned[member.uid]) for member in request.waiting if member.uid in planned)
    waiting = tuple(member for member in request.waiting if member.uid not in planned)
    unplanned = [other for other in together if other.key not in plans or not plans[other.key].hosts]
    missing = sum(max(0, other.min_pods - len(other.living())) for other in unplanned)
    placed_members = (*request.placed_members, *seated)
    return replace(request, waiting=waiting, placed_members=placed_members, absent=AbsentMembers(missing))


def _merge_gangs(gang: Gang, together: list[Gang]) -> Gang:
    """Return one gang with the members of all gangs of a set, and with the strictest level of their PodGroups.

    together: the set, `gang` included. Its min is the sum of the pods with which the gangs start.
    """
    members = {uid: member for other in together for uid, member in other.members.items()}
    min_pods = sum(max(other.min_pods, len(other.living())) for other in together)
    owners = [other.sizing.wish for other in together if other.sizing and other.sizing.wish.source]
    tiers = [min((gang.known_tier(level) for level in wish.levels), default=math.inf) for wish in owners]
    strictest = owners[tiers.index(min(tiers))] if owners else None  # the strictest level of all
    sizing = Sizing(min_pods, None, "", "") if strictest is None else Sizing(min_pods, None, "", "", wish=strictest)
    return Gang(gang.key, gang.version, sizing, gang.tier_of, members)


def update_plan(view: ClusterView, gang: Gang, plan: GangPlan, member_uids: AbstractSet[str]) -> GangPlan | None:
    """Return the plan after a change of its gang; None if the gang has to be planned again.

    member_uids: uids of the members that existed when the plan was made. A new plan is needed if a member went
    elsewhere, lost its place or finds no seat. It is also needed if a member is deleted and no new member is expected.
    Seats of members that hold their planned hosts are removed from the plan. The seat of a deleted member is open for a
    new one, and new members take open seats. A gang with group rules is planned again after each such change.
    """
    members = [member for member in planned_members(gang) if not member.terminating]
    missing = view.awaited_members.missing_pods(gang)
    if _is_unchanged(view, members, plan, member_uids) and len(plan.open_seats) <= missing:
        return plan
    deleted_uids = member_uids - {member.uid for member in members}
    if gang.terms.group_rules or not deleted_uids <= plan.hosts.keys():
        return None  # the group of a new member is not known beforehand
    open_seats = {seat.rank: seat for seat in plan.open_seats}
    for uid in deleted_uids:
        open_seats[plan.ranks[uid]] = Seat(plan.hosts[uid], plan.shapes[uid], plan.ranks[uid])
    waiting_hosts = _waiting_hosts(view, [member for member in members if member.uid in member_uids], plan)
    if waiting_hosts is None:
        return None
    new_members = [member for member in members if member.uid not in member_uids]
    seats = _seat_new_members(view, gang, plan, new_members, open_seats, waiting_hosts)
    if seats is None or (deleted_uids and len(open_seats) > missing):
        return None
    shapes = {**plan.shapes, **{uid: seat.shape for uid, seat in seats.items()}}
    ranks = {**plan.ranks, **{uid: seat.rank for uid, seat in seats.items()}}
    return replace(
        plan,
        hosts=waiting_hosts,
        open_seats=tuple(open_seats[rank] for rank in sorted(open_seats)[:missing]),
        shapes={uid: shapes[uid] for uid in waiting_hosts},
        ranks={uid: ranks[uid] for uid in waiting_hosts},
    )


def _seat_new_members(
    view: ClusterView,
    gang: Gang,
    plan: GangPlan,
    members: Iterable[GangMember],
    open_seats: dict[int, Seat],
    waiting_hosts: dict[str, int],
) -> dict[str, Seat] | None:
    """Return uid -> seat of new members; None if one of them finds no open seat.

    Each seat is removed from `open_seats` (rank -> seat). The host of a member that still waits is added to
    `waiting_hosts` (uid -> host).
    """
    seats: dict[str, Seat] = {}
    for member in sorted(members, key=rank_sort_key):
        seat = _choose_seat(view, gang, member, plan, open_seats, waiting_hosts)
        if seat is None:
            return None
        del open_seats[seat.rank]
        seats[member.uid] = seat
        if view.host_of(member) is None:
            waiting_hosts[member.uid] = seat.host
    return seats


def _waiting_hosts(view: ClusterView, members: Iterable[GangMember], plan: GangPlan) -> dict[str, int] | None:
    """Return uid -> planned host of the members without a host.

    None if such a member has no planned host, or if another member holds another host than the planned one.
    """
    hosts: dict[str, int] = {}
    for member in members:
        holds, planned = view.host_of(member), plan.hosts.get(member.uid)
        if holds is None and planned is None:
            return None
        if holds is None and planned is not None:
            hosts[member.uid] = planned
        elif planned is not None and holds != planned:
            return None
    return hosts


def _is_unchanged(
    view: ClusterView, members: Sequence[GangMember], plan: GangPlan, member_uids: AbstractSet[str]
) -> bool:
    """Return True if no member is new or deleted, and exactly the members without a host have a seat in the plan.

    member_uids: uids of the members that existed when the plan was made.
    """
    if len(members) != len(member_uids) or not all(member.uid in member_uids for member in members):
        return False
    return all((view.host_of(member) is None) == (member.uid in plan.hosts) for member in members)


def _choose_seat(
    view: ClusterView,
    gang: Gang,
    member: GangMember,
    plan: GangPlan,
    open_seats: Mapping[int, Seat],
    waiting_hosts: Mapping[str, int],
) -> Seat | None:
    """Return the open seat for a new member: the seat of its rank, else the seat nearest to its ring neighbours.

    None if no open seat has its shape, or if the member holds a host on which there is no such seat. open_seats: rank
    -> seat. waiting_hosts: uid -> planned host of waiting members.
    """
    holds = view.host_of(member)
    fit = [seat for seat in open_seats.values() if seat.shape == member.shape and holds in (None, seat.host)]
    own = _rank_of(member, plan, gang)
    found = next((seat for seat in fit if seat.rank == own), None)
    if found is not None or not fit:
        return found
    around = _hosts_of_neighbours(member, gang.members.values(), waiting_hosts, view)
    between = view.fabric.tier_between
    return min(fit, key=lambda seat: (sum(between(seat.host, host) for host in around), seat.rank))


def _rank_of(member: GangMember, plan: GangPlan, gang: Gang) -> int | None:
    """Return the rank of a new member in the plan's numbering; None if its index or the plan's bases are unknown.

    The numbering is circular: the rank before the first rank is the last rank. A role that the plan does not know gets
    ranks before or after all others, by name; None if its name lies between theirs.
    """
    index, role = member.membership.rank, member.membership.role
    if index is None or not plan.bases:
        return None
    if role in plan.bases:
        return (plan.bases[role] + index) % gang.total
    if role < min(plan.bases):
        return (-1 - index) % gang.total
    last = max(plan.bases)
    behind = max((m.membership.rank or 0 for m in gang.members.values() if m.membership.role == last), default=0) + 1
    return (plan.bases[last] + behind + index) % gang.total if role > last else None


def _hosts_of_neighbours(
    member: GangMember, members: Iterable[GangMember], waiting_hosts: Mapping[str, int], view: ClusterView
) -> Sequence[int]:
    """Return the hosts of the ring neighbours of a member: of the members with a host, held or planned, the one before
    and the one after it.

    [] if no other member has a host. If only one has, its host is returned twice. waiting_hosts: uid -> planned host of
    waiting members.
    """
    ring_members = sorted(
        (m for m in members if m is member or m.uid in waiting_hosts or view.host_of(m) is not None), key=rank_sort_key
    )
    index = ring_members.index(member)
    ring = (ring_members[index - 1], ring_members[(index + 1) % len(ring_members)])
    hosts = (waiting_hosts.get(m.uid, view.host_of(m)) for m in ring if m is not member)
    return [host for host in hosts if host is not None]
