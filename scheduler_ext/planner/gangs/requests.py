"""Build the planner's request for a gang: who waits, who holds a host, where members were sent."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.repair import Remedy
from turnout.jobs.wishes.model import Level
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.model import Request, judged_members


def to_come(view: GangView, gang: Gang, most_hoped: int) -> tuple[int, int]:
    """Return how many members are not created yet: those that its min needs, and those above it if not too many."""
    missing = 0 if gang.groups else view.missing(gang)
    needed = min(missing, max(0, gang.least - len(gang.living())))
    return needed, missing - needed if missing - needed <= most_hoped else 0


def lost(view: GangView, gang: Gang, needed: int) -> int:
    """Return how many members are gone that the min needs, of a gang that is to be moved or given up then.

    Such a gang takes no place in which it cannot get whole: while what is left of it is evicted, and once that is gone,
    those that come anew would go back beside those that still run, or start as a part. One that never ran has lost
    nobody. needed: members that are still to be created.
    """
    runs = gang.started_s is not None or any(view.host_of(member) is not None for member in gang.living())
    if gang.repair.remedy is Remedy.WAIT or not runs:
        return 0
    return max(0, gang.least - len(gang.living()) - needed)


def request_for(view: GangView, gang: Gang, dropped: Container[str]) -> Request:
    """Return the request without members to come. dropped: uids of members whose place is ignored."""
    waiting: list[Member] = []
    held: list[tuple[Member, int]] = []
    wished: dict[str, int] = {}
    for member in judged_members(gang):
        if member.leaving:
            continue
        host = None if member.uid in dropped else view.host_of(member)
        if host is not None:
            held.append((member, host))
            continue
        if not member.waits:
            continue
        waiting.append(member)
        if (wish := view.wish_of(member)) and member.uid not in dropped:
            at = view.snapshot.row_of.get(wish)
            if at is not None:
                wished[member.uid] = at
    waiting.sort(key=rank_order)
    held.sort(key=lambda each: rank_order(each[0]))
    prefer = {member.shape: view.preferences.of(member) for member in reversed(waiting)}
    liking = {shape: rows for shape, rows in prefer.items() if rows is not None}
    return Request(gang, tuple(waiting), tuple(held), wished, liking=liking, outside=_outside(view, gang))


def _outside(view: GangView, gang: Gang) -> dict[int | None, NDArray[np.bool_]]:
    """Mark the rows in no domain of the levels that the gang must keep to, and of those that its groups must."""
    levels: dict[int | None, tuple[Level, ...]] = {None: gang.levels}
    levels |= {at: (rule.level,) for at, rule in enumerate(gang.groups) if rule.level is not None}
    found = ((rule, view.levels.outside(theirs)) for rule, theirs in levels.items())
    return {rule: marks for rule, marks in found if marks is not None}
