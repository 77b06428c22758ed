"""Answer filter, prioritize and preempt with plain functions of the cached state.

An answer only looks up the pod's plan and compares it with the nodes that the scheduler names. The function returns
what follows from it as `Advice`: the node to assume for the pod from now on, and what to tell its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import Dialect
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import rfc3339_micro
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.model import Answer, Notice, Rules, Victims, Word
from turnout.scheduler_ext.planner.node_reservations import Pods
from turnout.scheduler_ext.planner.place_gang import GangPlan, judged, judged_members, place
from turnout.scheduler_ext.planner.plan_cache import PlanCache
from turnout.scheduler_ext.planner.work import Work
from turnout.topology.distance import common_tier
from turnout.topology.host_score import scores
from turnout.topology.model import Reason, Refusal, Rule

LONG_LIST = 1024  # names; a refusal of more than these explains itself on the first FEW only
FEW = 64
MOST_SCORES = 256  # a long answer is what an extender costs (docs/facts/extender.md 1.9)


@dataclass(frozen=True, slots=True)
class Advice:
    """An answer to the scheduler and what follows from it."""

    answer: Answer
    node: str = ""  # where the pod now goes; "" when that is open
    notice: Notice | None = None  # for the pod's owner


NO_OPINION = Advice(Answer(kept=(), all_kept=True))
NO_ROOM_LEFT = Refusal(Reason.NO_ROOM, "no room is left for this member")


def fit(plan_cache: PlanCache, member: Member, names: Sequence[str], rules: Rules, now_s: float) -> Advice:
    """Answer filter: narrow the nodes to the one that the gang's plan names, or say why there is none. Never raises.

    names: nodes that passed every earlier filter; the answer keeps only such nodes.
    """
    view = plan_cache.view
    gang = view.gangs.get(member.belongs.key)
    if gang is None or not judged(member, gang):
        return NO_OPINION
    view.settle(now_s)
    alone = gang.key.dialect == Dialect.ALONE.value
    if rules.hold_incomplete and not alone and len(gang.living()) < gang.least:
        detail = f"{len(gang.living())} of {gang.least} members exist"
        return _refuse_all(member, names, Word.GANG_INCOMPLETE, detail)
    if not view.fabric.mapped_count:
        if gang.required:
            return _refuse_all(member, names, Word.NO_MAP, "a topology tier is required and the map names no host")
        return NO_OPINION
    if alone:
        return _fit_alone(plan_cache, gang, member, names, now_s)
    plan = plan_cache.plan_of(gang.key, now_s)
    node = view.place_of(member) or _planned(plan_cache, plan, member)
    if node in names:
        return Advice(Answer(kept=(node,)), node)
    if len(names) == 1 and names[0] == member.nominated:
        return Advice(Answer((), {}, {names[0]: "planned elsewhere"}))  # the scheduler asks about all nodes next
    if view.assumed_pods.node_of(member.uid):
        view.disbelieve(member)
        plan = plan_cache.plan_of(gang.key, now_s)
        node = _planned(plan_cache, plan, member)
        if node in names:
            return Advice(Answer(kept=(node,)), node)
    if not node:
        lacking = (plan.refusal if plan is not None else None) or NO_ROOM_LEFT
        return _refuse(plan_cache, gang, member, names, lacking)
    if gang.required:
        detail = f"planned host {node} is not among the {len(names)} candidates"
        return _refuse_all(member, names, Word.PLANNED_HOST_MISSING, f"{detail}; is percentageOfNodesToScore 100?")
    return _fit_among(plan_cache, gang, member, names, plan)


def not_yet(why: Notice, names: Sequence[str], wall_s: float, pause_s: float) -> Answer:
    """Refuse until the pod is asked about again: the watched state may be old, and newer state may allow the pod.

    wall_s: time of this answer. pause_s: how long the answer is kept back, since an idle scheduler asks again at once.

    kube-scheduler writes the reason into the pod's status, and tries a refused pod again when its status changes. So
    the time in the text makes every answer different. All nodes are forbidden, so that nothing is preempted on old
    state. An error would not do: an ignorable extender that fails is skipped, and a part of the gang would start.
    """
    text = f"{Word.OLD_VIEW.value} at {rfc3339_micro(wall_s)}: {why.word.value}: {why.detail}"
    return Answer((), forbidden=dict.fromkeys(names[:FEW], text), pause_s=pause_s)


def rank(
    plan_cache: PlanCache, member: Member, names: Sequence[str], rules: Rules, now_s: float
) -> list[tuple[str, int]]:
    """Answer prioritize: 10 for the planned node, and less with every tier away from the gang. Never raises.

    Returns at most MOST_SCORES names, the best first, with integers 1..10; zeros are left out.
    """
    view = plan_cache.view
    gang = view.gangs.get(member.belongs.key)
    if gang is None or not judged(member, gang):
        return []
    view.settle(now_s)
    if not view.fabric.mapped_count:
        return []
    if gang.key.dialect == Dialect.ALONE.value:
        advice = _fit_alone(plan_cache, gang, member, names, now_s)
        return [(advice.node, 10)] if advice.node else []
    plan = plan_cache.plan_of(gang.key, now_s)
    node = view.place_of(member) or _planned(plan_cache, plan, member)
    planned = view.snapshot.row_of.get(node)
    near = [host for m in judged_members(gang) if (host := view.host_of(m)) is not None]
    near += plan.wanted if plan is not None else ()
    wanted = [planned] if planned is not None else []
    scored = scores(view.fabric, wanted, near, Rule.LEAF_ONLY if rules.leaf_only else Rule.ALL_TIERS)
    asked = set(names)
    rows = np.flatnonzero(scored)
    rows = rows[np.argsort(-scored[rows], kind="stable")]
    found: list[tuple[str, int]] = []
    for row in rows.tolist():
        name = view.fabric.hosts[row]
        if name in asked:
            found.append((name, int(scored[row])))
            if len(found) == MOST_SCORES:
                break
    return found


def yield_to(
    plan_cache: PlanCache, member: Member, victims: Mapping[str, Victims], now_s: float
) -> Mapping[str, Victims]:
    """Answer preempt: keep only nodes on which the whole gang could run once less important pods have left.

    An empty answer stops a preemption that would not let the gang start.
    """
    view = plan_cache.view
    gang = view.gangs.get(member.belongs.key)
    if gang is None or gang.key.dialect == Dialect.ALONE.value or not judged(member, gang):
        return victims
    plan_cache.sync(now_s)
    if not view.fabric.mapped_count:
        return victims
    plan = plan_by_force(plan_cache, gang, member)
    if plan.refusal is not None:
        return {}
    first = plan.hosts.get(member.uid)
    own = view.fabric.hosts[first] if first is not None else ""
    if own in victims:
        return {own: victims[own]}
    wanted = {view.fabric.hosts[host] for host in plan.wanted}
    return {node: who for node, who in victims.items() if node in wanted}


def plan_by_force(plan_cache: PlanCache, gang: Gang, member: Member) -> GangPlan:
    """Return the plan that the gang would get if every pod of a lower priority left. The plan is not kept."""
    view, work = plan_cache.view, Work()

    def room_of(shape: PodShape, besides: Pods) -> Rows:
        work.spend(len(view.snapshot.charges) // 2)
        return view.snapshot.room_above(shape, member.priority, besides)

    return place(view.fabric, replace(plan_cache.request_of(gang), hoped=0), room_of, work)


def partial_gangs(plan_cache: PlanCache) -> list[Gang]:
    """Return gangs of which some members, but fewer than must start together, hold a host while others wait."""
    found = []
    for gang in plan_cache.view.waiting_gangs():
        placed = sum(1 for m in gang.living() if m.node or plan_cache.view.host_of(m) is not None)
        if gang.key.dialect != Dialect.ALONE.value and plan_cache.started(gang) and placed < gang.least:
            found.append(gang)
    return found


def unenforced_pods(plan_cache: PlanCache, rules: Rules) -> int:
    """Count the bound pods that break a rule by now.

    A required gang may have come to span more than its tier, or a held gang may have lost members. Nothing enforces
    either rule while the extender is down, or when members leave later.
    """
    view, count = plan_cache.view, 0
    for gang in view.gangs.values():
        bound = [m for m in judged_members(gang) if m.node and not m.leaving]
        if not bound or gang.key.dialect == Dialect.ALONE.value:
            continue
        hosts = [row for m in bound if (row := view.snapshot.row_of.get(m.node)) is not None]
        wide = gang.tier is not None and (
            not view.fabric.mapped[hosts].all() or common_tier(view.fabric, hosts) > gang.tier
        )
        if wide or (rules.hold_incomplete and len(gang.living()) < gang.least):
            count += len(bound)
    return count


def _fit_alone(plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], now_s: float) -> Advice:
    """Send a pod without a gang where it fits tightest, so that large holes stay free.

    Where it fits nowhere, the answer leaves the choice to the scheduler.
    """
    plan_cache.plan_of(gang.key, now_s)  # of those ahead of it
    node = plan_cache.view.place_of(member)
    if node in names:
        return Advice(Answer(kept=(node,)), node)
    request = plan_cache.request_of(gang, without=(member.uid,))
    node = _planned(plan_cache, plan_cache.try_place(request), member)
    if node and node not in names:
        node = _planned(plan_cache, plan_cache.try_place(request, _rows(plan_cache, names)), member)
    return Advice(Answer(kept=(node,)), node) if node else NO_OPINION


def _fit_among(
    plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], plan: GangPlan | None
) -> Advice:
    """Choose another node when the planned host is not among the candidates.

    Another host of the plan comes first, then a new plan of the whole gang among the candidates. The last choice is the
    host nearest to the rest of the gang. The planned host may be taken by a member that another replica answered for,
    which is not seen yet. Then the gang stands on the plan's other hosts, and a new plan would look for room that the
    gang has taken itself.
    """
    among, hosts = _rows(plan_cache, names), plan.hosts if plan else {}
    request = plan_cache.request_of(gang, without=(member.uid,))
    held = (*request.held, *((m, hosts[m.uid]) for m in gang.members.values() if m.uid in hosts and m is not member))
    single = replace(request, waiting=(member,), held=held, wished={}, missing=0, hoped=0)
    seats = {row for row, shape in plan.takes() if shape == member.shape} if plan else set()
    node = _planned(plan_cache, plan_cache.try_place(single, seats.intersection(among)), member)
    if not node:
        again = plan_cache.try_place(request, among)
        node = _planned(plan_cache, again, member) if again.refusal is None else ""
        node = node or _planned(plan_cache, plan_cache.try_place(single, among), member)
    if node:
        return Advice(Answer(kept=(node,)), node)
    detail = f"the gang finds no room among the {len(names)} candidates"
    return _refuse(plan_cache, gang, member, names, Refusal(Reason.NO_ROOM, detail))


def _planned(plan_cache: PlanCache, plan: GangPlan | None, member: Member) -> str:
    host = plan.hosts.get(member.uid) if plan is not None else None
    return plan_cache.view.fabric.hosts[host] if host is not None else ""


def _rows(plan_cache: PlanCache, names: Iterable[str]) -> list[int]:
    rows = plan_cache.view.snapshot.row_of
    return [rows[name] for name in names if name in rows]


def _refuse(plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], refusal: Refusal) -> Advice:
    """Refuse every node: "no room" where the tier would allow the gang, "forbidden" where nothing helps."""
    word = Word.GANG_PARTIAL if plan_cache.started(gang) else Word(refusal.reason.value)
    text = f"{word.value}: {refusal.detail}"
    if gang.tier is None:
        no_room: Mapping[str, str] = dict.fromkeys(names, text)
        forbidden: Mapping[str, str] = {}
    else:
        able = _able(plan_cache, gang, member)
        rows = plan_cache.view.snapshot.row_of
        inside = {name for name in names if (row := rows.get(name)) is not None and able[row]}
        no_room = {name: text for name in names if name in inside}
        forbidden = {name: text for name in _explained(names) if name not in inside}
    return Advice(Answer((), no_room, forbidden), notice=_notice(word, member, refusal.detail))


def _able(plan_cache: PlanCache, gang: Gang, member: Member) -> NDArray[np.bool_]:
    """Mark the hosts in a domain of the allowed tier that could hold the whole gang if it were empty."""
    view, fabric = plan_cache.view, plan_cache.view.fabric
    tier = min(gang.tier or fabric.tiers, fabric.tiers)
    could = view.snapshot.capacity(member.shape).copy()
    could[~fabric.mapped] = 0
    switches = fabric.switch_of[tier]
    enough = np.add.reduceat(could, fabric.starts[tier]) >= gang.least
    held = {int(switches[h]) for m in judged_members(gang) if (h := view.host_of(m)) is not None}
    if held:
        only = np.zeros(len(enough), bool)
        only[list(held)] = len(held) == 1
        enough &= only
    able: NDArray[np.bool_] = enough[switches] & fabric.mapped
    return able


def _refuse_all(member: Member, names: Sequence[str], word: Word, detail: str) -> Advice:
    forbidden = dict.fromkeys(_explained(names), f"{word.value}: {detail}")
    return Advice(Answer((), {}, forbidden), notice=_notice(word, member, detail))


def _explained(names: Sequence[str]) -> Sequence[str]:
    """Return the names that need an explanation. A node in neither failure map counts as unresolvable, too."""
    return names if len(names) <= LONG_LIST else names[:FEW]


def _notice(word: Word, member: Member, detail: str) -> Notice:
    return Notice(word, member.namespace, member.name, member.uid, detail[:500])
