"""Build the planner's request for a gang: who waits, who holds a host, where members were sent."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.repair import Remedy
from turnout.jobs.wishes.model import Level
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.model import GangRequest, planned_members


def count_missing(view: ClusterView, gang: Gang, max_growth: int) -> tuple[int, int]:
    """Return how many members are not created yet: those that its min needs, and those above it if not too many."""
    missing = 0 if gang.group_rules else view.missing_pods(gang)
    needed = min(missing, max(0, gang.min_pods - len(gang.living())))
    return needed, missing - needed if missing - needed <= max_growth else 0


def count_lost(view: ClusterView, gang: Gang, needed: int) -> int:
    """Return how many members are gone that the min needs, of a gang that is to be moved or given up then.

    Such a gang takes no place in which it cannot get whole: while what is left of it is evicted, and once that is gone,
    those that come anew would go back beside those that still run, or start as a part. One that never ran has lost
    nobody. needed: members that are still to be created.
    """
    runs = gang.started_s is not None or any(view.host_of(member) is not None for member in gang.living())
    if gang.repair.remedy is Remedy.WAIT or not runs:
        return 0
    return max(0, gang.min_pods - len(gang.living()) - needed)


def build_request(view: ClusterView, gang: Gang, without: Container[str]) -> GangRequest:
    """Return the request without members to come. without: uids of members whose place is ignored."""
    waiting: list[Member] = []
    placed_members: list[tuple[Member, int]] = []
    nominated: dict[str, int] = {}
    for member in planned_members(gang):
        if member.terminating:
            continue
        host = None if member.uid in without else view.host_of(member)
        if host is not None:
            placed_members.append((member, host))
            continue
        if not member.is_waiting:
            continue
        waiting.append(member)
        if (node := view.our_nomination(member)) and member.uid not in without:
            row = view.snapshot.row_of.get(node)
            if row is not None:
                nominated[member.uid] = row
    waiting.sort(key=rank_order)
    placed_members.sort(key=lambda each: rank_order(each[0]))
    prefer = {member.shape: view.preferences.of(member) for member in reversed(waiting)}
    liking = {shape: rows for shape, rows in prefer.items() if rows is not None}
    return GangRequest(
        gang,
        tuple(waiting),
        tuple(placed_members),
        nominated,
        preferences=liking,
        rows_outside_level=_rows_outside_levels(view, gang),
    )


def _rows_outside_levels(view: ClusterView, gang: Gang) -> dict[int | None, NDArray[np.bool_]]:
    """Mark the rows in no domain of the levels that the gang must keep to, and of those that its groups must."""
    levels: dict[int | None, tuple[Level, ...]] = {None: gang.levels}
    levels |= {at: (rule.level,) for at, rule in enumerate(gang.group_rules) if rule.level is not None}
    found = ((rule, view.levels.rows_outside(theirs)) for rule, theirs in levels.items())
    return {rule: marks for rule, marks in found if marks is not None}
