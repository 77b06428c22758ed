"""The order of claims, seat by seat: up to its minimum a gang goes by its rank among all, above it behind everybody.

A claim is one seat of a plan with its place in that order. Which seats a plan has is settled in place_gang.py,
who has to give way to whom in plan_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto

from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.planner.place_gang import GangPlan, judged_members

# (level, -priority, above the min, not nominated, created, version, uid): the smaller, the earlier.
Order = tuple[int, int, bool, bool, str, int, str]


class Level(IntEnum):
    """The class of a claim, in their order; it comes before priority and age."""

    STARTED = auto()  # a part of the gang holds hosts, and its min is not reached: half a gang helps nobody
    WAITS = auto()
    HOPED = auto()  # above the min and not even created: such a seat stands in nobody's way


@dataclass(frozen=True, slots=True)
class Claim:
    """One seat of a plan. uid: of the member that it is for, "" while that is still to come."""

    order: Order
    host: int
    shape: PodShape
    uid: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a gang among all.

    needed: how many more members with a host its min takes. order: of the first seat that it asks for. last: of the
    last seat for a member that exists, by which everybody is planned who goes before it.
    """

    needed: int
    order: Order
    last: Order


def standing_of(view: GangView, gang: Gang) -> Standing:
    """Find a gang's place. Where nobody states a min, as for plain Jobs, each member that exists is as good as one."""
    members = judged_members(gang)
    waiting = sum(1 for m in members if m.waits and view.host_of(m) is None)
    started = any(view.host_of(m) is not None for m in members)
    nominated = any(m.waits and view.wish_of(m) for m in gang.members.values())
    least = gang.least
    needed = max(0, least - (len(gang.living()) - waiting)) if least else waiting
    level = Level.STARTED if started and least and needed else Level.WAITS
    first = (int(level), -gang.priority, False, not nominated, *gang.age)
    above = (int(Level.WAITS), -gang.priority, True, not nominated, *gang.age)
    return Standing(needed, first if needed else above, above if waiting > needed else first)


def claims_of(gang: Gang, plan: GangPlan, at: Standing) -> list[Claim]:
    """Return a plan's seats in order: of members that exist by rank, then of those to come by rank."""
    above = (int(Level.WAITS), at.order[1], True, *at.order[3:])
    hoped = (int(Level.HOPED), *above[1:])
    claims: list[Claim] = []
    for member in sorted((gang.members[uid] for uid in plan.hosts), key=rank_order):
        order = at.order if len(claims) < at.needed else above
        claims.append(Claim(order, plan.hosts[member.uid], plan.shapes[member.uid], member.uid))
    for seat in sorted(plan.spare, key=lambda seat: seat.rank):
        order = at.order if len(claims) < at.needed else hoped
        claims.append(Claim(order, seat.host, seat.shape, "", seat.rank))
    return claims
