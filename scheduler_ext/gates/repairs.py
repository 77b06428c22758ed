"""Choose what becomes of a gang that is below its min, holds hosts, and finds no room for the rest near them.

Its owner says so on its pods (jobs/repair.py). Nobody but its own members leaves. When evictions are sent, and how long
a gang was so before, is settled in runtime/repairer.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from turnout.jobs.gang import Dialect
from turnout.jobs.repair import Remedy
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.model import EventReason, Evict
from turnout.scheduler_ext.planner.placing.model import planned_members
from turnout.scheduler_ext.planner.plan_cache import Plans


@dataclass(frozen=True, slots=True)
class StuckGang:
    """A gang that cannot get whole where it is. running: its members with a host. lacking: why the rest has none."""

    running_pods: int
    min_pods: int
    refusal_detail: str

    def __str__(self) -> str:
        counts = f"{self.running_pods} of the {self.min_pods} that must run together have a host"
        return f"{counts}, and for the rest {self.refusal_detail}"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The end of a gang's places: who leaves, and what its owner is told."""

    reason: EventReason
    detail: str
    victims: tuple[Evict, ...]


def find_stuck_gang(plans: Plans, gang: Gang, now_s: float) -> StuckGang | None:
    """Tell how a gang is stuck; None while it is whole, is still to get its places, or none of it holds a host."""
    running = sum(1 for m in gang.living() if m.node)
    if gang.key.dialect == Dialect.ALONE.value or not 0 < running < gang.min_pods:
        return None
    plan = plans.plan_of(gang.key, now_s)
    if plan is None or plan.refusal is None or not plans.has_started(gang):
        return None
    return StuckGang(running, gang.min_pods, plan.refusal.detail)


def plan_repair(plans: Plans, gang: Gang, stuck_gang: StuckGang) -> RepairPlan | None:
    """Choose who leaves for the remedy that the gang's owner has named; None where it is to wait.

    A gang is moved only if all of it fits beside what it holds now, so that it never gives up places for none.
    """
    remedy = gang.repair.remedy
    if remedy is Remedy.WAIT or (remedy is Remedy.MOVE and not _fits_elsewhere(plans, gang)):
        return None
    moved = remedy is Remedy.MOVE
    word = EventReason.GANG_MOVED if moved else EventReason.GANG_GIVEN_UP
    then = "all of it fits elsewhere" if moved else "it waits whole, and others get its places"
    detail = f"{stuck_gang}: what is left is evicted, {then}"
    leaving = sorted((m for m in gang.living() if m.node), key=lambda m: m.name)
    return RepairPlan(word, detail, tuple(Evict(m.uid, m.namespace, m.name, detail) for m in leaving))


def _fits_elsewhere(plans: Plans, gang: Gang) -> bool:
    """True if all of the gang would fit beside every plan and every pod that is there, its own included."""
    members = tuple(sorted((m for m in planned_members(gang) if not m.terminating), key=rank_order))
    lacking = max(0, gang.min_pods - len(members))
    request = replace(
        plans.request_of(gang),
        waiting=members,
        placed_members=(),
        nominated_hosts={},
        missing_pods=lacking,
        growth_pods=0,
        lost_pods=0,
        preferences={},
    )
    return plans.try_place(request).refusal is None
