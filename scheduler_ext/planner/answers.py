"""The planner's answers about one pod: the node of its plan, scores of nodes, and nodes for a preemption.

An answer looks up the plan of the pod's gang and compares it with the nodes that the scheduler offers. With `filter`
come the node to assume for the pod and the notice for its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import compress, islice

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import Dialect, GangKey
from turnout.scheduler_ext.cluster.gang import Gang, waiting_gangs
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Answer, EventReason, Rules, Victims
from turnout.scheduler_ext.planner.order import has_started
from turnout.scheduler_ext.planner.plan_preemption import plan_with_preemption
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.planner.request import (
    AbsentMembers,
    GangPlan,
    counts_for_tier,
    is_planned,
    planned_members,
)
from turnout.scheduler_ext.planner.reservations import add_reservation
from turnout.topology.fabric import scores
from turnout.topology.model import DistanceRule, Refusal, RefusalReason
from turnout.topology.place import anchors_refusal

NO_OPINION = Answer()
PLANNED_ELSEWHERE = Answer(nodes=())  # the scheduler named the nominated node alone; it asks about all nodes next
NO_ROOM_LEFT = Refusal(RefusalReason.NO_ROOM, "no room is left for this member")


def answer_filter(plans: Plans, member: GangMember, names: Sequence[str], rules: Rules, now_s: float) -> Answer:
    """Narrow the nodes of a pod to one, or say why there is none.

    names: nodes that passed every earlier filter; the answer keeps only such nodes. now_s: by the monotonic clock.
    rules: with `hold_incomplete` members of an incomplete gang are refused.

    A member of a gang gets its planned node. If that node is not in `names`, it gets another of them, or is refused if
    the gang has a required level or no other node has room. If the only name is the node for which the member is
    nominated, the name is kept if it is the planned node; if not, the answer is PLANNED_ELSEWHERE. A pod without a gang
    gets the node on which it leaves the least room; if it fits on none, it gets all nodes that are not reserved for
    others, and is refused if all are reserved. No opinion for pods that the planner does not place (`is_planned`), and
    without a map for all pods but those of gangs with a required level, which are refused.
    """
    view = plans.view
    gang = view.gangs.get(member.membership.key)
    if gang is None or not is_planned(member, gang):
        return NO_OPINION
    view.settle(now_s)
    if (answer := _answer_without_plan(plans, gang, member, names, rules, now_s)) is not None:
        return answer
    plan = plans.plan_of(gang.key, now_s)
    node = view.node_of(member) or _planned_node(plans, plan, member)
    if len(names) == 1 and names[0] == member.nominated:
        return _keep(node) if node in names else PLANNED_ELSEWHERE
    if node not in names and view.assumed_pods.node_of(member.uid):
        view.forget_assumed(member)
        plan = plans.plan_of(gang.key, now_s)
        node = _planned_node(plans, plan, member)
    if gang.terms.requires_level:
        return _answer_in_level(plans, gang, member, names, plan, now_s)
    if node and node not in names:
        return _seat_among(plans, gang, member, names, plan)
    return _keep(node) if node else _no_room(plans, gang, member, names, _refusal_of(plan))


def _answer_without_plan(
    plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], rules: Rules, now_s: float
) -> Answer | None:
    """Answer for an incomplete gang (if rules.hold_incomplete), without a map, or for a pod without a gang; None if the
    gang's plan decides.

    names: the nodes of the request. now_s: by the monotonic clock.
    """
    is_single = gang.key.dialect == Dialect.ALONE.value
    if rules.hold_incomplete and not is_single and len(gang.living()) < gang.min_pods:
        return _refuse(EventReason.GANG_INCOMPLETE, f"{len(gang.living())} of {gang.min_pods} members exist")
    if not plans.view.fabric.mapped_count:
        required = "a topology tier is required and the map names no host"
        return _refuse(EventReason.NO_MAP, required) if gang.terms.requires_level else NO_OPINION
    return _seat_alone(plans, gang, member, names, now_s) if is_single else None


def _answer_in_level(
    plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], plan: GangPlan | None, now_s: float
) -> Answer:
    """Answer for a member of a gang that must stay within a level: no other node replaces the planned node.

    names: the nodes of the request. The refusal asks for a retry while planned hosts are missing among them for the
    first time. now_s: by the monotonic clock.
    """
    if _awaits_missing_hosts(plans, gang, member, names, plan, now_s):
        node = plans.view.node_of(member) or _planned_node(plans, plan, member)
        return _refuse(EventReason.PLANNED_HOST_MISSING, _missing_host_detail(node, names), retry=True)
    plan = plans.plan_of(gang.key, now_s)
    node = plans.view.node_of(member) or _planned_node(plans, plan, member)
    if node in names:
        return _keep(node)
    if not node:
        return _no_room(plans, gang, member, names, _refusal_of(plan))
    return _refuse(EventReason.PLANNED_HOST_MISSING, _missing_host_detail(node, names))


def _refusal_of(plan: GangPlan | None) -> Refusal:
    """Return why a member has no place: the refusal of the gang's plan, else NO_ROOM_LEFT."""
    return (plan.refusal if plan is not None else None) or NO_ROOM_LEFT


def scores_of(
    plans: Plans, member: GangMember, names: Sequence[str], rules: Rules, now_s: float, max_scores: int
) -> list[tuple[str, int]]:
    """Score the named nodes: 10 for the planned node, and less with every tier away from the gang.

    Returns at most `max_scores` pairs (name, score 1..10), the best first; nodes with score 0 are left out. For a pod
    without a gang only one node has a score: its own place; or, if it fits on no named node and some named nodes are
    reserved for others, the first of the other named nodes. [] if there is no map, if the planner has no opinion about
    the pod, or if no named node has a score. now_s: by the monotonic clock. names: the nodes of the request. rules:
    with `leaf_only` only nodes under the leaves of the gang have a score.
    """
    view = plans.view
    gang = view.gangs.get(member.membership.key)
    if gang is None or not is_planned(member, gang):
        return []
    view.settle(now_s)
    if not view.fabric.mapped_count:
        return []
    if gang.key.dialect == Dialect.ALONE.value:
        answer = _seat_alone(plans, gang, member, names, now_s)
        return [(answer.nodes[0], 10)] if answer.nodes else []
    plan = plans.plan_of(gang.key, now_s)
    planned = view.snapshot.row_of.get(view.node_of(member) or _planned_node(plans, plan, member))
    gang_hosts = [host for m in planned_members(gang) if (host := view.host_of(m)) is not None]
    gang_hosts += plan.used_hosts if plan is not None else ()
    rule = DistanceRule.LEAF_ONLY if rules.leaf_only else DistanceRule.ALL_TIERS
    scored = scores(view.fabric, [] if planned is None else [planned], gang_hosts, rule)
    requested = set(names)
    rows = np.flatnonzero(scored)
    rows = rows[np.argsort(-scored[rows], kind="stable")]
    best = ((view.fabric.hosts[row], int(scored[row])) for row in rows.tolist())
    return list(islice(((name, score) for name, score in best if name in requested), max_scores))


def preemptible_nodes(plans: Plans, member: GangMember, names: Iterable[str], now_s: float, wall_s: float) -> list[str]:
    """Return those of the named nodes on which the scheduler may preempt for this member, in their order.

    If the plan with preemption places the member on a named node, only this node; else the named nodes that the plan
    uses. [] if the gang finds no plan even with preemption. All names if the planner has no opinion, or there is no
    map; for a pod without a gang, all but the nodes reserved for others. wall_s: seconds since 1970. now_s: by the
    monotonic clock.
    """
    view, names = plans.view, list(names)
    gang = view.gangs.get(member.membership.key)
    if gang is None or not is_planned(member, gang):
        return names
    plans.sync(now_s)
    if gang.key.dialect == Dialect.ALONE.value:
        reserved = plans.reservations.nodes_against(gang.key, gang.priority)
        return [name for name in names if name not in reserved] if reserved else names
    if not view.fabric.mapped_count:
        return names
    plan = plan_with_preemption(plans, gang, member, wall_s)
    if plan.refusal is not None:
        return []
    own = _planned_node(plans, plan, member)
    if own in names:
        return [own]
    used_nodes = {view.fabric.hosts[host] for host in plan.used_hosts}
    return [name for name in names if name in used_nodes]


def partial_gangs(plans: Plans) -> list[Gang]:
    """Return the started gangs with a waiting member and fewer members on hosts than must start together.

    Pods without a gang are left out.
    """
    found = []
    for gang in waiting_gangs(plans.view.gangs.values()):
        placed_count = sum(1 for m in gang.living() if m.node or plans.view.host_of(m) is not None)
        if gang.key.dialect != Dialect.ALONE.value and has_started(plans.view, gang) and placed_count < gang.min_pods:
            found.append(gang)
    return found


class GangRule(Enum):
    """A rule that bound pods of a gang can break. The values are those of the label `rule`."""

    TIER = "tier"  # the gang lies within its tier
    WHOLE = "whole"  # the gang has its min, where incomplete gangs are refused


class GangState(Enum):
    """The state of a gang. The values are those of the label `state`."""

    PLACED = "placed"  # no member waits
    WAITING = "waiting"  # a member waits
    PARTIAL = "partial"  # some members hold a host, but fewer than must start together, and the others wait


def gang_states(plans: Plans) -> Mapping[GangState, int]:
    """Return state -> number of gangs in it; each state is a key.

    Not counted are pods without a gang, and gangs whose members are all being deleted.
    """
    partial = {gang.key for gang in partial_gangs(plans)}
    counts = dict.fromkeys(GangState, 0)
    for key, gang in plans.view.gangs.items():
        if key.dialect == Dialect.ALONE.value or not gang.living():
            continue
        is_waiting = any(member.is_waiting for member in gang.members.values())
        counts[GangState.PARTIAL if key in partial else GangState.WAITING if is_waiting else GangState.PLACED] += 1
    return counts


def broken_rules(plans: Plans, rules: Rules) -> Mapping[GangKey, tuple[GangRule, int]]:
    """Return gang -> (broken rule, number of its bound pods that count for the tier) for gangs that break a rule now.

    WHOLE is checked only if the admin holds incomplete gangs, and counts for a gang that breaks both. Pods without a
    gang are left out. Such gangs occur while the extender is down, or when members leave later.
    """
    found = {}
    for key, gang in plans.view.gangs.items():
        bound = [m for m in planned_members(gang) if m.node and not m.terminating and counts_for_tier(m, gang)]
        if not bound or key.dialect == Dialect.ALONE.value:
            continue
        if rules.hold_incomplete and len(gang.living()) < gang.min_pods:
            found[key] = GangRule.WHOLE, len(bound)
        elif _leaves_level(plans.view, gang, bound):
            found[key] = GangRule.TIER, len(bound)
    return found


def _leaves_level(view: ClusterView, gang: Gang, bound: Sequence[GangMember]) -> bool:
    """Return True if bound members are in more than one domain of their gang's level, or outside of every such domain.

    Members on nodes that are not in the tables do not count.
    """
    hosts = [row for m in bound if (row := view.snapshot.row_of.get(m.node)) is not None]
    rows_outside = view.levels.rows_outside(gang.terms.levels)
    domains = view.levels.label_domains(gang.terms.required_levels)
    if domains is not None and hosts:
        gang = replace(gang, label_tiers=domains.tiers)
        if domains.number_of(hosts) < 0:
            return True
    return anchors_refusal(view.fabric, gang.tier, hosts) is not None or bool(
        rows_outside is not None and rows_outside[hosts].any()
    )


def _seat_alone(plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], now_s: float) -> Answer:
    """Choose for a pod without a gang the named node that has the least free room besides it, so that large holes stay
    free.

    If it fits on no named node, the scheduler chooses among the named nodes that are not reserved for others. now_s: by
    the monotonic clock. names: the nodes of the request.
    """
    plans.plan_of(gang.key, now_s)  # plans the gangs ahead of it
    node = plans.view.node_of(member)
    if node in names:
        return _keep(node)
    request = plans.request_of(gang, unplaced_uids=(member.uid,))
    node = _planned_node(plans, plans.try_place(request), member)
    if node and node not in names:
        node = _planned_node(plans, plans.try_place(request, _rows(plans, names)), member)
    return _keep(node) if node else _keep_unreserved(plans, gang, names)


def _keep_unreserved(plans: Plans, gang: Gang, names: Sequence[str]) -> Answer:
    """Return the named nodes that are not reserved for another gang; no opinion if none is reserved, a refusal if all
    are.

    names: the nodes of the request; kept in their order.
    """
    reserved = plans.reservations.nodes_against(gang.key, gang.priority)
    nodes = [name for name in names if name not in reserved] if reserved else names
    if len(nodes) == len(names):
        return NO_OPINION
    if nodes:
        return Answer(nodes=nodes)
    detail = add_reservation(plans.reservation_against(gang), gang, NO_ROOM_LEFT.detail)
    return Answer((), Refusal(EventReason.NO_ROOM, detail))


def _seat_among(plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], plan: GangPlan | None) -> Answer:
    """Choose another node if the planned host is not among the candidates, which are `names`.

    Refuse the pod if none has room.

    Another host of the plan comes first, then a new plan of the whole gang among the candidates, then the host nearest
    to the rest of the gang. The planned host may be taken by a member that another replica placed and no watch has
    shown yet: a new plan would count the gang's own pods as those of others.
    """
    rows, hosts = _rows(plans, names), plan.hosts if plan else {}
    request = plans.request_of(gang, unplaced_uids=(member.uid,))
    placed_members = (
        *request.placed_members,
        *((m, hosts[m.uid]) for m in gang.members.values() if m.uid in hosts and m is not member),
    )
    absent = AbsentMembers(lost=request.absent.lost)
    single = replace(request, waiting=(member,), placed_members=placed_members, nominated_hosts={}, absent=absent)
    seats = {row for row, shape in plan.reserved_pods() if shape == member.shape} if plan else set()
    node = _planned_node(plans, plans.try_place(single, seats.intersection(rows)), member)
    if not node:
        second_plan = plans.try_place(request, rows)
        node = _planned_node(plans, second_plan, member) if second_plan.refusal is None else ""
        node = node or _planned_node(plans, plans.try_place(single, rows), member)
    if node:
        return _keep(node)
    detail = f"the gang finds no room among the {len(names)} candidates"
    return _no_room(plans, gang, member, names, Refusal(RefusalReason.NO_ROOM, detail))


def _keep(node: str) -> Answer:
    """Return the answer that keeps only this node. "" gives an answer without opinion."""
    return Answer(nodes=(node,)) if node else NO_OPINION


def _planned_node(plans: Plans, plan: GangPlan | None, member: GangMember) -> str:
    host = plan.hosts.get(member.uid) if plan is not None else None
    return plans.view.fabric.hosts[host] if host is not None else ""


def _rows(plans: Plans, names: Iterable[str]) -> list[int]:
    rows = plans.view.snapshot.row_of
    return [row for row in map(rows.get, names) if row is not None]


def _refuse(word: EventReason, detail: str, retry: bool = False) -> Answer:
    """Return the answer that refuses a pod on all nodes. The scheduler preempts for it on no node."""
    return Answer((), Refusal(word, detail), retry=retry)


def _missing_host_detail(node: str, names: Sequence[str]) -> str:
    which = f"planned host {node} is" if node and node not in names else "a host that the gang is planned on is"
    return f"{which} not among the {len(names)} nodes that the scheduler offered: set percentageOfNodesToScore to 100"


def _awaits_missing_hosts(
    plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], plan: GangPlan | None, now_s: float
) -> bool:
    """Return True while planned hosts are not offered and are not yet known as rejected: the scheduler should ask
    again.

    Notes the missing hosts. Once all of them count as rejected, the gang's plan is withdrawn, and the next plan leaves
    these hosts out until they are offered again. If a rejected host is offered again, a gang without places is planned
    again. names: the nodes of the request. plan: None if the gang has none. now_s: by the monotonic clock.
    """
    rejected, key, shape = plans.rejected_hosts, gang.key, member.shape
    if rejected.has_observation(key, shape) and rejected.note_offered(key, shape, _rows(plans, names)):
        if plan is None or plan.refusal is not None:
            plans.replan(key)
        return False
    absent = [] if plan is None else _absent_hosts(plans, gang, member, names, plan)
    if not absent:
        return False
    missing = plans.view.snapshot.room(shape) > 0
    missing[_rows(plans, names)] = False
    if not missing[absent].any():
        return False
    known_rejected = rejected.note_missing(key, shape, missing, now_s)
    if not known_rejected[absent].all():
        return True
    plans.replan(key)
    return False


def _absent_hosts(plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], plan: GangPlan) -> list[int]:
    """Return the ids of planned hosts that the scheduler does not offer; [] if all are offered, or none is planned.

    Until a member holds a host, the hosts of all members of this shape count, because the whole gang can still go
    elsewhere. Then only the member's own host counts. names: the nodes of the request.
    """
    if not plan.hosts:
        return []
    if has_started(plans.view, gang):
        needed_hosts = {plan.hosts[member.uid]} if member.uid in plan.hosts else set()
    else:
        needed_hosts = {host for host, other in plan.reserved_pods() if other == member.shape}
    hosts, requested = plans.view.fabric.hosts, set(names)
    return [host for host in needed_hosts if hosts[host] not in requested]


def _no_room(plans: Plans, gang: Gang, member: GangMember, names: Sequence[str], refusal: Refusal) -> Answer:
    """Return the answer that refuses a pod for lack of room, with the hosts that are rejected or reserved in the
    detail.

    A preemption may help on all nodes, or for a gang with a level on the nodes in whose domain the gang would be
    allowed. names: the nodes of the request. refusal: why there is no place.
    """
    word = EventReason.GANG_PARTIAL if has_started(plans.view, gang) else EventReason(refusal.reason.value)
    count = sum(int(mask.sum()) for mask in plans.rejected_hosts.rows_by_shape(gang.key).values())
    if count:
        are = "host with room is" if count == 1 else "hosts with room are"
        refusal = Refusal(refusal.reason, f"{count} {are} not among the {len(names)} candidates, and {refusal.detail}")
        word = word if word is EventReason.GANG_PARTIAL else EventReason.PLANNED_HOST_MISSING
    refusal = Refusal(refusal.reason, add_reservation(plans.reservation_against(gang), gang, refusal.detail))
    if (tier := gang.tier) is None:
        return Answer((), Refusal(word, refusal.detail), None)
    able = _could_hold_gang(plans, gang, member, tier).tolist()  # a list: a numpy array is slow one by one
    helpful_nodes = frozenset(compress(plans.view.snapshot.order, able)).intersection(names)
    return Answer((), Refusal(word, refusal.detail), helpful_nodes)


def _could_hold_gang(plans: Plans, gang: Gang, member: GangMember, widest: int) -> NDArray[np.bool_]:
    """Return a mask of the rows in the domains that could hold the gang's min of pods like `member` if they were empty.

    If counted members hold hosts, only their domain is marked; if they are in several domains, no row is marked.
    widest: the highest tier that the gang allows.
    """
    view, fabric = plans.view, plans.view.fabric
    tier = min(widest, fabric.tiers)
    could = view.snapshot.room_when_empty(member.shape).copy()
    could[~fabric.mapped] = 0
    switches = fabric.switch_of[tier]
    enough = np.add.reduceat(could, fabric.starts[tier]) >= gang.min_pods
    counted_members = (m for m in planned_members(gang) if counts_for_tier(m, gang))
    gang_switches = {int(switches[h]) for m in counted_members if (h := view.host_of(m)) is not None}
    if gang_switches:
        own_switch = np.zeros(len(enough), bool)
        own_switch[list(gang_switches)] = len(gang_switches) == 1
        enough &= own_switch
    able: NDArray[np.bool_] = enough[switches] & fabric.mapped
    return able


MAX_SCORES = 256  # a long answer costs most (docs/facts/extender.md 1.9)


def refuse_everywhere(plans: Plans, member: GangMember, rules: Rules, now_s: float) -> Answer:
    """Answer about all nodes of the fabric: without a refusal if the pod can go to some node, or the planner has no
    opinion.

    now_s: by the monotonic clock. rules: as for answer_filter().
    """
    plans.view.settle(now_s)
    return answer_filter(plans, member, plans.view.fabric.hosts, rules, now_s)


def postpone(refusal: Refusal, wall_s: float, pause_s: float) -> Answer:
    """Return a refusal that makes the scheduler ask again: the watched state may be old, and newer state may allow the
    pod.

    refusal: the answer by this state. wall_s: time of the answer, in seconds since 1970. pause_s: how long the answer
    is held back, because an idle scheduler asks again at once.

    kube-scheduler writes the reason into the pod's status, and tries a refused pod again when its status changes. So
    the time in the text makes every answer different. No node is left for a preemption, so that nothing is preempted on
    old state. An error is no alternative: an ignorable extender that fails is skipped, and a part of the gang starts.
    """
    detail = f"{refusal.reason.value}: {refusal.detail}"
    return Answer((), Refusal(EventReason.OLD_VIEW, detail), refused_s=wall_s, pause_s=pause_s)


def answer_prioritize(
    plans: Plans, member: GangMember, names: Sequence[str], rules: Rules, now_s: float
) -> list[tuple[str, int]]:
    """Return at most MAX_SCORES pairs (name, score 1..10), the best first; nodes with score 0 are left out.

    [] if there is no map, or the planner has no opinion about the pod. names: the nodes of the request. rules, now_s:
    as for `scores_of`.
    """
    return scores_of(plans, member, names, rules, now_s, MAX_SCORES)


def answer_preempt(
    plans: Plans, member: GangMember, victims: Mapping[str, Victims], now_s: float, wall_s: float = 0.0
) -> Mapping[str, Victims]:
    """Return the entries of `victims` whose node may be used for a preemption. An empty answer stops the preemption.

    All entries if the planner has no opinion about the pod, or there is no map.

    victims: node -> the pods that would leave. wall_s: seconds since 1970, for the run time of other pods; 0 counts the
    same run time for all. now_s: by the monotonic clock.
    """
    return {node: victims[node] for node in preemptible_nodes(plans, member, victims, now_s, wall_s)}
