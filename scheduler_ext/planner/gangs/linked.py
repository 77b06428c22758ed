"""Find the gangs that are placed with a gang, all or none: those of its namespace that say the same name."""

from __future__ import annotations

from collections.abc import Callable

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.placing.model import GangPlan, judged_members
from turnout.topology.model import Reason, Refusal

MOST_LINKED = 16


def linked(view: GangView, gang: Gang) -> list[Gang]:
    """Return all gangs of its set, itself among them, the oldest first; nothing where it is in none.

    A gang that comes after MOST_LINKED others is placed by itself.
    """
    name = gang.together
    if not name:
        return []
    theirs = [other for key, other in view.gangs.items() if key.namespace == gang.key.namespace]
    found = sorted((other for other in theirs if other.together == name), key=lambda other: (other.age, other.key))
    return found[:MOST_LINKED] if gang in found[:MOST_LINKED] else []


def begun(view: GangView, gang: Gang) -> bool:
    """True if a judged member of the gang holds a host."""
    return any(view.host_of(member) is not None for member in judged_members(gang))


def lacking(together: list[Gang], goes: Callable[[Gang], bool]) -> str:
    """Return the gang for which the others of a set wait, "" for none: it cannot go, or is listed and not shown yet."""
    if not together:
        return ""
    listed = [name for name in together[0].together.split(",") if "/" in name]
    shown = {str(gang.key) for gang in together}
    blocked = (str(gang.key) for gang in together if not goes(gang))
    return next(blocked, "") or next((name for name in listed if name not in shown), "")


def refused(key: GangKey, waits_for: str) -> GangPlan:
    """Return the plan of a gang that fits and must wait for another."""
    return GangPlan(key, refusal=Refusal(Reason.NO_ROOM, f"it starts together with {waits_for}, which cannot start"))
