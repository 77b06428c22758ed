"""Find the domain that gangs share which ask for one: that in which all of them, taken for one gang, are placed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang, Sizing
from turnout.scheduler_ext.planner.gangs.linked import linked_gangs
from turnout.scheduler_ext.planner.gangs.requests import build_request
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.placing.model import GangPlan, RoomOf


def rows_outside_shared_domain(
    view: ClusterView, gang: Gang, plan_of: Callable[[GangKey], GangPlan | None], room_of: RoomOf
) -> NDArray[np.bool_] | None:
    """Mark the rows outside the domain that a gang shares with others; None where nobody is there, or all rows will do.

    plan_of: gives the plan of another gang as it stands: its places count as taken by its members. Where they must have
    one domain and none has room, all rows are marked.
    """
    together = linked_gangs(view, gang)
    if len(together) < 2:
        return None
    every = _merge_gangs(gang, together)
    request = build_request(view, every, ())
    plans = {other.key: plan for other in together if other is not gang and (plan := plan_of(other.key)) is not None}
    planned = {uid: host for plan in plans.values() for uid, host in plan.hosts.items()}
    seated = tuple((member, planned[member.uid]) for member in request.waiting if member.uid in planned)
    waiting = tuple(member for member in request.waiting if member.uid not in planned)
    unplanned = [other for other in together if other.key not in plans or not plans[other.key].hosts]
    missing = sum([max(0, other.min_pods - len(other.living())) for other in unplanned])
    request = replace(request, waiting=waiting, placed_members=(*request.placed_members, *seated), missing_pods=missing)
    plan = place(view.fabric, request, room_of)
    if plan.refusal is not None:
        return np.ones(len(view.fabric.hosts), np.bool_) if every.tier is not None else None
    tier = max(plan.tier, every.tier or 1)
    if tier > view.fabric.tiers or not plan.used_hosts:
        return None
    row = view.fabric.switch_of[tier]
    marks: NDArray[np.bool_] = row != row[plan.used_hosts[0]]
    return marks


def _merge_gangs(gang: Gang, together: list[Gang]) -> Gang:
    """Return one gang of all members, of which as many start as of the gangs by themselves."""
    members = {uid: member for other in together for uid, member in other.members.items()}
    min_pods = sum(max(other.min_pods, len(other.living())) for other in together)
    owners = [other.sizing.wish for other in together if other.sizing and other.sizing.wish.source]
    tiers = [min((gang.known_tier(level) for level in wish.levels), default=math.inf) for wish in owners]
    strictest = owners[tiers.index(min(tiers))] if owners else None  # the strictest level of all
    sizing = Sizing(min_pods, None, "", "") if strictest is None else Sizing(min_pods, None, "", "", wish=strictest)
    return Gang(gang.key, gang.version, sizing, gang.tier_of, members)
