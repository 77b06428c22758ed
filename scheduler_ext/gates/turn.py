"""A gang's turn, gathered from the view and the planner: who is behind our gate, who has a seat, what is lacking."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.gates.model import GatedPod, Turn, Wait
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.planner.placing.model import judged, judged_members
from turnout.scheduler_ext.planner.placing.strict_order import told_of
from turnout.scheduler_ext.planner.plan_cache import PlanCache

_SIZED_BY_OWNER = ("Job/", "StatefulSet/")  # kinds that are watched: others say nothing of a size


def turn_of(
    plan_cache: PlanCache,
    gang: Gang,
    gated: Mapping[str, GatedPod],
    lifted: Collection[str],
    schedulers: Collection[str],
    now_s: float,
) -> Turn:
    """Gather what decides on a gang's gates. The planner is asked only once the gang's min exists.

    gated: by uid, as the API server showed them last. lifted: uids whose gate is lifted, though the watch may not show
    it yet. schedulers: whose pods are nominated.
    """
    living = sorted(gang.living(), key=rank_order)
    behind = [m for m in living if m.uid in gated]
    free = [m for m in living if m.uid not in gated and (not m.gated or m.uid in lifted)]
    able = len(free) + sum(1 for m in behind if not gated[m.uid].others)
    begun = any(m.node or m.ours or m.uid in lifted for m in free if judged(m, gang))
    unknown = _unknown(gang)
    hosts: dict[str, str] = {}
    lacking = None
    if unknown is None and (begun or able >= gang.least):
        hosts, lacking = _planned(plan_cache, gang, now_s)
    return Turn(
        gated=tuple(gated[m.uid] for m in behind),
        least=gang.least,
        able=able,
        open=len(free),
        begun=begun,
        required=gang.required,
        hosts=hosts,
        judged=frozenset(m.uid for m in judged_members(gang)),
        may_nominate=frozenset(m.uid for m in behind if not m.pinned and m.scheduler in schedulers),
        ours=frozenset(m.uid for m in behind if _is_ours(plan_cache, m, gated[m.uid])),
        unknown=unknown,
        lacking=lacking,
    )


def _unknown(gang: Gang) -> Wait | None:
    """Return what is missing where only a PodGroup or an owner can say how many must start, and nobody shows it."""
    if gang.lacks_group:
        what = f"its PodGroup {gang.key.name}"
    elif gang.unsized and gang.key.name.startswith(_SIZED_BY_OWNER):
        what = gang.key.name
    else:
        return None
    return Wait(EventReason.GANG_UNKNOWN, f"{what} is not there: nobody says how many members must start together")


def _planned(plan_cache: PlanCache, gang: Gang, now_s: float) -> tuple[dict[str, str], Wait | None]:
    """Return uid -> node for the waiting members of a gang, and why some of them have none."""
    view = plan_cache.view
    if not view.fabric.mapped_count and gang.required:
        return {}, Wait(EventReason.NO_MAP, "a topology tier is required and the map names no host")
    plan = plan_cache.plan_of(gang.key, now_s)
    if plan is None:
        return {}, None
    hosts = {uid: view.fabric.hosts[host] for uid, host in plan.hosts.items()}
    for member in gang.members.values():  # assumed to be on its way, or nominated by somebody else
        if member.waits and member.uid not in hosts and (node := view.place_of(member)):
            hosts[member.uid] = node
    if plan.refusal is None:
        return hosts, None
    told = told_of(plan_cache.kept_against(gang), plan.refusal.detail)
    return hosts, Wait(EventReason(plan.refusal.reason.value), told)


def _is_ours(plan_cache: PlanCache, member: Member, pod: GatedPod) -> bool:
    """True if a gated pod's nomination is ours, as the view has it or as we wrote it a moment ago."""
    return bool(pod.nominated) and plan_cache.view.wish_of(member) == pod.nominated
