"""Find the gangs that are placed with a gang, all or none: those of its namespace that say the same name."""

from __future__ import annotations

from collections.abc import Callable

from turnout.jobs.gang import GangKey
from turnout.jobs.wishes.model import MAX_TOGETHER
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.placing.model import GangPlan, planned_members
from turnout.topology.model import Reason, Refusal


def linked_gangs(view: ClusterView, gang: Gang) -> list[Gang]:
    """Return all gangs of its set, itself among them, the oldest first; nothing where it is in none.

    A gang that comes after MOST_TOGETHER others is placed by itself.
    """
    name = gang.together_name
    if not name:
        return []
    theirs = [other for key, other in view.gangs.items() if key.namespace == gang.key.namespace]
    found = sorted((other for other in theirs if other.together_name == name), key=lambda other: (other.age, other.key))
    return found[:MAX_TOGETHER] if gang in found[:MAX_TOGETHER] else []


def has_started(view: ClusterView, gang: Gang) -> bool:
    """True if a judged member of the gang holds a host."""
    return any(view.host_of(member) is not None for member in planned_members(gang))


def missing_partner(view: ClusterView, together: list[Gang], plan_of: Callable[[GangKey], GangPlan | None]) -> str:
    """Say why the gangs of a set cannot start: one of them has no place, or is announced and not there; "" if they can.

    Announced are those that koordinator's groups list, and as many as our own name says.
    """
    if not together:
        return ""
    for gang in together:
        if has_started(view, gang) or ((plan := plan_of(gang.key)) is not None and plan.hosts):
            continue
        return f"it starts together with {gang.key}, which cannot start"
    shown = {str(gang.key) for gang in together}
    if absent := [name for name in together[0].together_name.split(",") if "/" in name and name not in shown]:
        return f"it starts together with {absent[0][:120]}, which is not there"
    announced = max(gang.together_size for gang in together)
    if len(together) < announced:
        return f"of {announced} gangs of this name {len(together)} are there"
    return ""


def refuse_for_partner(key: GangKey, why: str) -> GangPlan:
    """Return the plan of a gang that fits and must wait for another."""
    return GangPlan(key, refusal=Refusal(Reason.NO_ROOM, why))
