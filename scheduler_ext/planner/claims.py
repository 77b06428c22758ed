"""Order the seats of all plans: up to its minimum a gang goes by its place among all, above it after every min.

A claim is one seat of a plan with its place in that order. place_gang.py decides which seats a plan has, and
plan_cache.py which gang has to give way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum, auto

from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.gangs.linked import linked_gangs
from turnout.scheduler_ext.planner.placing.model import GangPlan, planned_members
from turnout.scheduler_ext.planner.placing.ranks import seating_order

# (level, -priority, above the min, not nominated, created, version, uid): the smaller, the earlier.
Order = tuple[int, int, bool, bool, str, int, str]


class SeatClass(IntEnum):
    """The class of a claim, in their order. It counts before priority and age."""

    STARTED = auto()  # a part of the gang holds hosts, and its min is not reached: half a gang helps nobody
    WAITING = auto()
    GROWTH = auto()  # above the min and not even created: such a seat stands in nobody's way


@dataclass(frozen=True, slots=True)
class OrderedSeat:
    """One seat of a plan with its place in the order."""

    order: Order
    host: int
    shape: PodShape
    uid: str = ""  # of the member that the seat is for; "" while that member is still to be created
    rank: int = 0


@dataclass(frozen=True, slots=True)
class GangPosition:
    """The place of a gang among all gangs."""

    needed_pods: int  # how many more members need a host to reach its min
    first_order: Order  # of the first seat that the gang asks for
    last_order: Order  # of the last seat for a member that exists: every gang up to this order is planned before


def position_of(view: ClusterView, gang: Gang) -> GangPosition:
    """Find a gang's place among all.

    Where no min is stated, as for plain Jobs, every member that exists counts as needed.
    """
    members = planned_members(gang)
    without_host = [m for m in members if view.host_of(m) is None]
    waiting = sum(1 for m in without_host if m.is_waiting)
    started = len(without_host) < len(members)
    nominated = any(m.is_waiting and view.our_nomination(m) for m in gang.members.values())
    min_pods = gang.min_pods_to_finish if started else gang.min_pods
    needed_pods = max(0, min_pods - (len(gang.living()) - waiting)) if min_pods else waiting
    if gang.min_by_role:
        present_roles = Counter(m.membership.role for m in gang.living()) - Counter(
            m.membership.role for m in without_host if m.is_waiting
        )
        needed_pods = max(needed_pods, sum(max(0, count - present_roles[role]) for role, count in gang.min_by_role))
    level = SeatClass.STARTED if started and min_pods and needed_pods else SeatClass.WAITING
    priority, age = gang.priority, gang.age
    if partners := linked_gangs(
        view, gang
    ):  # one place for all, which lifts none: the least important and the youngest
        priority, age = min(other.priority for other in partners), partners[-1].age
    first = (int(level), -priority, False, not nominated, *age)
    above = (int(SeatClass.WAITING), -priority, True, not nominated, *age)
    if (
        not waiting and not needed_pods
    ):  # it asks for hoped seats alone, which stand in nobody's way: all look at them first
        first = above = (int(SeatClass.STARTED), *first[1:])
    return GangPosition(needed_pods, first if needed_pods else above, above if waiting > needed_pods else first)


def order_seats(gang: Gang, plan: GangPlan, position: GangPosition) -> list[OrderedSeat]:
    """Return a plan's seats in order: those of existing members in turn, then those of members to come by rank."""
    above = (int(SeatClass.WAITING), position.first_order[1], True, *position.first_order[3:])
    growth = (int(SeatClass.GROWTH), *above[1:])
    seats: list[OrderedSeat] = []
    bound_members = [member for member in gang.living() if member.node] if gang.min_by_role else []
    for member in seating_order([gang.members[uid] for uid in plan.hosts], gang.min_by_role, bound_members):
        order = position.first_order if len(seats) < position.needed_pods else above
        seats.append(OrderedSeat(order, plan.hosts[member.uid], plan.shapes[member.uid], member.uid))
    for seat in sorted(plan.open_seats, key=lambda seat: seat.rank):
        order = position.first_order if len(seats) < position.needed_pods else growth
        seats.append(OrderedSeat(order, seat.host, seat.shape, "", seat.rank))
    return seats
