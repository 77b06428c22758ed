"""A gang's turn, gathered from the view and the planner: who is behind our gate, who has a seat, what is lacking."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.gates.model import GatedGang, Wait
from turnout.scheduler_ext.model import EventReason, GatedPod
from turnout.scheduler_ext.planner.placing.model import is_planned, planned_members
from turnout.scheduler_ext.planner.placing.strict_order import add_kept_domain
from turnout.scheduler_ext.planner.plan_cache import Plans

_SIZED_BY_OWNER = ("Job/", "StatefulSet/")  # kinds that are watched: others say nothing of a size


def observe_gated_gang(
    plans: Plans,
    gang: Gang,
    gated_pods: Mapping[str, GatedPod],
    lifted_uids: Collection[str],
    schedulers: Collection[str],
    now_s: float,
) -> GatedGang:
    """Gather the facts that decide on a gang's gates. The planner is asked only once the gang's min exists.

    gated_pods: by uid, as the API server showed them last. lifted_uids: uids whose gate is lifted, though the watch may
    not show it yet. schedulers: the names of the schedulers whose pods are nominated.
    """
    living = sorted(gang.living(), key=rank_order)
    gated_members = [m for m in living if m.uid in gated_pods]
    ungated_members = [m for m in living if m.uid not in gated_pods and (not m.gated or m.uid in lifted_uids)]
    startable_pods = len(ungated_members) + sum(1 for m in gated_members if not gated_pods[m.uid].other_gates)
    has_started = any(
        m.node or m.nominated_by_us or m.uid in lifted_uids for m in ungated_members if is_planned(m, gang)
    )
    unknown_size = _unknown_size(gang)
    hosts: dict[str, str] = {}
    shortfall = None
    if unknown_size is None and (has_started or startable_pods >= gang.min_pods):
        hosts, shortfall = _planned_nodes(plans, gang, now_s)
    return GatedGang(
        gated_pods=tuple(gated_pods[m.uid] for m in gated_members),
        min_pods=gang.min_pods,
        startable_pods=startable_pods,
        ungated_pods=len(ungated_members),
        has_started=has_started,
        requires_level=gang.requires_level,
        hosts=hosts,
        planned_uids=frozenset(m.uid for m in planned_members(gang)),
        nominable_uids=frozenset(
            m.uid for m in gated_members if not m.nomination_obstacle and m.scheduler in schedulers
        ),
        nominated_by_us=frozenset(m.uid for m in gated_members if _is_ours(plans, m, gated_pods[m.uid])),
        unknown_size=unknown_size,
        shortfall=shortfall,
    )


def _unknown_size(gang: Gang) -> Wait | None:
    """Return what is missing where only a PodGroup or an owner can say how many must start, and nobody shows it."""
    if gang.lacks_pod_group:
        what = f"its PodGroup {gang.key.name}"
    elif gang.is_unsized and gang.key.name.startswith(_SIZED_BY_OWNER):
        what = gang.key.name
    else:
        return None
    return Wait(EventReason.GANG_UNKNOWN, f"{what} is not there: nobody says how many members must start together")


def _planned_nodes(plans: Plans, gang: Gang, now_s: float) -> tuple[dict[str, str], Wait | None]:
    """Return uid -> node for the waiting members of a gang, and why some of them have none."""
    view = plans.view
    if not view.fabric.mapped_count and gang.requires_level:
        return {}, Wait(EventReason.NO_MAP, "a topology tier is required and the map names no host")
    plan = plans.plan_of(gang.key, now_s)
    if plan is None:
        return {}, None
    hosts = {uid: view.fabric.hosts[host] for uid, host in plan.hosts.items()}
    for member in gang.members.values():  # assumed to be on its way, or nominated by somebody else
        if member.is_waiting and member.uid not in hosts and (node := view.node_of(member)):
            hosts[member.uid] = node
    if plan.refusal is None:
        return hosts, None
    detail = add_kept_domain(plans.domain_kept_against(gang), plan.refusal.detail)
    return hosts, Wait(EventReason(plan.refusal.reason.value), detail)


def _is_ours(plans: Plans, member: Member, pod: GatedPod) -> bool:
    """True if a gated pod's nomination is ours, as the view has it or as we wrote it a moment ago."""
    return bool(pod.nominated) and plans.view.our_nomination(member) == pod.nominated
