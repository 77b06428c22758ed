"""Update a plan when its gang changes: members reach their hosts, and new members take the seats kept for them.

A seat has a rank, so the ring lies as planned in whatever order the members come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.model import GangPlan, Seat, judged_members


def carried_on(view: GangView, gang: Gang, plan: GangPlan, known: AbstractSet[str]) -> GangPlan | None:
    """Return what is left of a plan; None when the gang has to be planned again.

    known: uids of the members that existed when the plan was made.

    A new plan is needed when a member went elsewhere, lost its place or finds no seat. It is also needed when a member
    is gone and no other is expected in its place.
    """
    members = [member for member in judged_members(gang) if not member.leaving]
    if _as_planned(view, members, plan, known) and len(plan.spare) <= view.missing(gang):
        return plan
    if gang.groups:
        return None  # nobody knows beforehand in which group a member will be
    free = {seat.rank: seat for seat in plan.spare}
    gone = known - {member.uid for member in members}
    if not gone <= plan.hosts.keys():
        return None
    for uid in gone:
        free[plan.ranks[uid]] = Seat(plan.hosts[uid], plan.shapes[uid], plan.ranks[uid])
    left = _left(view, [member for member in members if member.uid in known], plan)
    if left is None:
        return None
    shapes, ranks = dict(plan.shapes), dict(plan.ranks)
    for member in sorted((member for member in members if member.uid not in known), key=rank_order):
        seat = _seat_of(view, gang, member, plan, free, left)
        if seat is None:
            return None
        del free[seat.rank]
        shapes[member.uid], ranks[member.uid] = seat.shape, seat.rank
        if view.host_of(member) is None:
            left[member.uid] = seat.host
    missing = view.missing(gang)
    if gone and len(free) > missing:
        return None
    spare = tuple(free[rank] for rank in sorted(free)[:missing])
    left_shapes = {uid: shapes[uid] for uid in left}
    return replace(plan, hosts=left, spare=spare, shapes=left_shapes, ranks={uid: ranks[uid] for uid in left})


def _left(view: GangView, members: Iterable[Member], plan: GangPlan) -> dict[str, int] | None:
    """Return which member still waits for which host; None when one went elsewhere or has no place any more."""
    left: dict[str, int] = {}
    for member in members:
        holds, planned = view.host_of(member), plan.hosts.get(member.uid)
        if holds is None and planned is None:
            return None
        if holds is None and planned is not None:
            left[member.uid] = planned
        elif planned is not None and holds != planned:
            return None
    return left


def _as_planned(view: GangView, members: Sequence[Member], plan: GangPlan, known: AbstractSet[str]) -> bool:
    """True if no member is new or gone, and no member that has a seat holds a host already."""
    if len(members) != len(known) or not all(member.uid in known for member in members):
        return False
    return all((view.host_of(member) is None) == (member.uid in plan.hosts) for member in members)


def _seat_of(
    view: GangView, gang: Gang, member: Member, plan: GangPlan, free: Mapping[int, Seat], left: Mapping[str, int]
) -> Seat | None:
    """Find the seat of a new member: that of its own rank, else the one nearest to its neighbours in the ring."""
    holds = view.host_of(member)
    fit = [seat for seat in free.values() if seat.shape == member.shape and holds in (None, seat.host)]
    own = _rank_of(member, plan, gang)
    found = next((seat for seat in fit if seat.rank == own), None)
    if found is not None or not fit:
        return found
    around = _around(member, gang.members.values(), left, view)
    between = view.fabric.tier_between
    return min(fit, key=lambda seat: (sum(between(seat.host, host) for host in around), seat.rank))


def _rank_of(member: Member, plan: GangPlan, gang: Gang) -> int | None:
    """Return the rank of a new member in the plan's numbering; None when its index or the plan's bases are unknown.

    The numbering is circular: a rank before the first one comes after the last one.
    """
    index, role = member.belongs.rank, member.belongs.role
    if index is None or not plan.bases:
        return None
    if role in plan.bases:
        return (plan.bases[role] + index) % gang.total
    if role < min(plan.bases):
        return (-1 - index) % gang.total
    last = max(plan.bases)
    behind = max((m.belongs.rank or 0 for m in gang.members.values() if m.belongs.role == last), default=0) + 1
    return (plan.bases[last] + behind + index) % gang.total if role > last else None


def _around(member: Member, members: Iterable[Member], left: Mapping[str, int], view: GangView) -> Sequence[int]:
    """Return the hosts of the members before and after a member, among those that have a host."""
    placed = sorted((m for m in members if m is member or m.uid in left or view.host_of(m) is not None), key=rank_order)
    at = placed.index(member)
    ring = (placed[at - 1], placed[(at + 1) % len(placed)])
    hosts = (left.get(m.uid, view.host_of(m)) for m in ring if m is not member)
    return [host for host in hosts if host is not None]
