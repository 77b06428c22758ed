"""Order the seats of all plans: up to its minimum a gang goes by its place among all, above it after every min.

A claim is one seat of a plan with its place in that order. place_gang.py decides which seats a plan has, and
plan_cache.py which gang has to give way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum, auto

from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.gangs.linked import linked
from turnout.scheduler_ext.planner.placing.model import GangPlan, judged_members
from turnout.scheduler_ext.planner.placing.ranks import in_turn

# (level, -priority, above the min, not nominated, created, version, uid): the smaller, the earlier.
Order = tuple[int, int, bool, bool, str, int, str]


class Level(IntEnum):
    """The class of a claim, in their order. It counts before priority and age."""

    STARTED = auto()  # a part of the gang holds hosts, and its min is not reached: half a gang helps nobody
    WAITS = auto()
    HOPED = auto()  # above the min and not even created: such a seat stands in nobody's way


@dataclass(frozen=True, slots=True)
class Claim:
    """One seat of a plan with its place in the order."""

    order: Order
    host: int
    shape: PodShape
    uid: str = ""  # of the member that the seat is for; "" while that member is still to be created
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a gang among all gangs."""

    needed: int  # how many more members need a host to reach its min
    order: Order  # of the first seat that the gang asks for
    last: Order  # of the last seat for a member that exists: every gang up to this order is planned before


def standing_of(view: GangView, gang: Gang) -> Standing:
    """Find a gang's place among all.

    Where no min is stated, as for plain Jobs, every member that exists counts as needed.
    """
    members = judged_members(gang)
    homeless = [m for m in members if view.host_of(m) is None]
    waiting = sum(1 for m in homeless if m.waits)
    started = len(homeless) < len(members)
    nominated = any(m.waits and view.wish_of(m) for m in gang.members.values())
    least = gang.least_to_finish if started else gang.least
    needed = max(0, least - (len(gang.living()) - waiting)) if least else waiting
    if gang.least_of:
        there = Counter(m.belongs.role for m in gang.living()) - Counter(m.belongs.role for m in homeless if m.waits)
        needed = max(needed, sum(max(0, count - there[role]) for role, count in gang.least_of))
    level = Level.STARTED if started and least and needed else Level.WAITS
    priority, age = gang.priority, gang.age
    if together := linked(view, gang):  # one place for all, which lifts none: the least important and the youngest
        priority, age = min(other.priority for other in together), together[-1].age
    first = (int(level), -priority, False, not nominated, *age)
    above = (int(Level.WAITS), -priority, True, not nominated, *age)
    if not waiting and not needed:  # it asks for hoped seats alone, which stand in nobody's way: all look at them first
        first = above = (int(Level.STARTED), *first[1:])
    return Standing(needed, first if needed else above, above if waiting > needed else first)


def claims_of(gang: Gang, plan: GangPlan, at: Standing) -> list[Claim]:
    """Return a plan's seats in order: those of existing members in turn, then those of members to come by rank."""
    above = (int(Level.WAITS), at.order[1], True, *at.order[3:])
    hoped = (int(Level.HOPED), *above[1:])
    claims: list[Claim] = []
    held = [member for member in gang.living() if member.node] if gang.least_of else []
    for member in in_turn([gang.members[uid] for uid in plan.hosts], gang.least_of, held):
        order = at.order if len(claims) < at.needed else above
        claims.append(Claim(order, plan.hosts[member.uid], plan.shapes[member.uid], member.uid))
    for seat in sorted(plan.spare, key=lambda seat: seat.rank):
        order = at.order if len(claims) < at.needed else hoped
        claims.append(Claim(order, seat.host, seat.shape, "", seat.rank))
    return claims
