"""Choose what becomes of a gang that is below its min, holds hosts, and finds no room for the rest near them.

Its owner says so on its pods (jobs/repair.py). Nobody but its own members leaves. When evictions are sent, and how long
a gang was so before, is settled in runtime/repairer.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from turnout.jobs.gang import Dialect
from turnout.jobs.repair import Remedy
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.gates.model import Evict
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.planner.placing.model import judged_members
from turnout.scheduler_ext.planner.plan_cache import PlanCache


@dataclass(frozen=True, slots=True)
class Stuck:
    """A gang that cannot get whole where it is. running: its members with a host. lacking: why the rest has none."""

    running: int
    least: int
    lacking: str

    def __str__(self) -> str:
        return f"{self.running} of the {self.least} that must run together have a host, and for the rest {self.lacking}"


@dataclass(frozen=True, slots=True)
class Remedied:
    """The end of a gang's places: who leaves, and what its owner is told."""

    word: EventReason
    detail: str
    victims: tuple[Evict, ...]


def stuck(plan_cache: PlanCache, gang: Gang, now_s: float) -> Stuck | None:
    """Tell how a gang is stuck; None while it is whole, is still to get its places, or none of it holds a host."""
    running = sum(1 for m in gang.living() if m.node)
    if gang.key.dialect == Dialect.ALONE.value or not 0 < running < gang.least:
        return None
    plan = plan_cache.plan_of(gang.key, now_s)
    if plan is None or plan.refusal is None or not plan_cache.started(gang):
        return None
    return Stuck(running, gang.least, plan.refusal.detail)


def remedy(plan_cache: PlanCache, gang: Gang, how: Stuck) -> Remedied | None:
    """Choose who leaves for the remedy that the gang's owner has named; None where it is to wait.

    A gang is moved only if all of it fits beside what it holds now, so that it never gives up places for none.
    """
    wish = gang.repair.remedy
    if wish is Remedy.WAIT or (wish is Remedy.MOVE and not _fits_elsewhere(plan_cache, gang)):
        return None
    moved = wish is Remedy.MOVE
    word = EventReason.GANG_MOVED if moved else EventReason.GANG_GIVEN_UP
    then = "all of it fits elsewhere" if moved else "it waits whole, and others get its places"
    detail = f"{how}: what is left is evicted, {then}"
    leaving = sorted((m for m in gang.living() if m.node), key=lambda m: m.name)
    return Remedied(word, detail, tuple(Evict(m.uid, m.namespace, m.name, detail) for m in leaving))


def _fits_elsewhere(plan_cache: PlanCache, gang: Gang) -> bool:
    """True if all of the gang would fit beside every plan and every pod that is there, its own included."""
    members = tuple(sorted((m for m in judged_members(gang) if not m.leaving), key=rank_order))
    lacking = max(0, gang.least - len(members))
    request = replace(
        plan_cache.request_of(gang), waiting=members, held=(), wished={}, missing=lacking, hoped=0, lost=0, liking={}
    )
    return plan_cache.try_place(request).refusal is None
