"""Update a plan when its gang changes: members reach their hosts, and new members take the seats kept for them.

A seat has a rank, so the ring lies as planned in whatever order the members come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.model import GangPlan, Seat, planned_members


def update_plan(view: ClusterView, gang: Gang, plan: GangPlan, member_uids: AbstractSet[str]) -> GangPlan | None:
    """Return what is left of a plan; None when the gang has to be planned again.

    member_uids: uids of the members that existed when the plan was made.

    A new plan is needed when a member went elsewhere, lost its place or finds no seat. It is also needed when a member
    is gone and no other is expected in its place.
    """
    members = [member for member in planned_members(gang) if not member.terminating]
    if _is_unchanged(view, members, plan, member_uids) and len(plan.open_seats) <= view.missing_pods(gang):
        return plan
    if gang.group_rules:
        return None  # nobody knows beforehand in which group a member will be
    open_seats = {seat.rank: seat for seat in plan.open_seats}
    deleted_uids = member_uids - {member.uid for member in members}
    if not deleted_uids <= plan.hosts.keys():
        return None
    for uid in deleted_uids:
        open_seats[plan.ranks[uid]] = Seat(plan.hosts[uid], plan.shapes[uid], plan.ranks[uid])
    waiting_hosts = _waiting_hosts(view, [member for member in members if member.uid in member_uids], plan)
    if waiting_hosts is None:
        return None
    shapes, ranks = dict(plan.shapes), dict(plan.ranks)
    for member in sorted((member for member in members if member.uid not in member_uids), key=rank_order):
        seat = _choose_seat(view, gang, member, plan, open_seats, waiting_hosts)
        if seat is None:
            return None
        del open_seats[seat.rank]
        shapes[member.uid], ranks[member.uid] = seat.shape, seat.rank
        if view.host_of(member) is None:
            waiting_hosts[member.uid] = seat.host
    missing = view.missing_pods(gang)
    if deleted_uids and len(open_seats) > missing:
        return None
    spare = tuple(open_seats[rank] for rank in sorted(open_seats)[:missing])
    waiting_shapes = {uid: shapes[uid] for uid in waiting_hosts}
    return replace(
        plan,
        hosts=waiting_hosts,
        open_seats=spare,
        shapes=waiting_shapes,
        ranks={uid: ranks[uid] for uid in waiting_hosts},
    )


def _waiting_hosts(view: ClusterView, members: Iterable[Member], plan: GangPlan) -> dict[str, int] | None:
    """Return which member still waits for which host; None when one went elsewhere or has no place any more."""
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


def _is_unchanged(view: ClusterView, members: Sequence[Member], plan: GangPlan, member_uids: AbstractSet[str]) -> bool:
    """True if no member is new or gone, and no member that has a seat holds a host already."""
    if len(members) != len(member_uids) or not all(member.uid in member_uids for member in members):
        return False
    return all((view.host_of(member) is None) == (member.uid in plan.hosts) for member in members)


def _choose_seat(
    view: ClusterView,
    gang: Gang,
    member: Member,
    plan: GangPlan,
    open_seats: Mapping[int, Seat],
    waiting_hosts: Mapping[str, int],
) -> Seat | None:
    """Find the seat of a new member: that of its own rank, else the one nearest to its neighbours in the ring."""
    holds = view.host_of(member)
    fit = [seat for seat in open_seats.values() if seat.shape == member.shape and holds in (None, seat.host)]
    own = _rank_of(member, plan, gang)
    found = next((seat for seat in fit if seat.rank == own), None)
    if found is not None or not fit:
        return found
    around = _hosts_of_neighbours(member, gang.members.values(), waiting_hosts, view)
    between = view.fabric.tier_between
    return min(fit, key=lambda seat: (sum(between(seat.host, host) for host in around), seat.rank))


def _rank_of(member: Member, plan: GangPlan, gang: Gang) -> int | None:
    """Return the rank of a new member in the plan's numbering; None when its index or the plan's bases are unknown.

    The numbering is circular: a rank before the first one comes after the last one.
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
    member: Member, members: Iterable[Member], waiting_hosts: Mapping[str, int], view: ClusterView
) -> Sequence[int]:
    """Return the hosts of the members before and after a member, among those that have a host."""
    ring_members = sorted(
        (m for m in members if m is member or m.uid in waiting_hosts or view.host_of(m) is not None), key=rank_order
    )
    index = ring_members.index(member)
    ring = (ring_members[index - 1], ring_members[(index + 1) % len(ring_members)])
    hosts = (waiting_hosts.get(m.uid, view.host_of(m)) for m in ring if m is not member)
    return [host for host in hosts if host is not None]
