"""The planner's answers about one pod: the node that its gang's plan gives it, what is near it, whom it may displace.

An answer looks the pod's plan up and compares it with the nodes that the scheduler names. It is a value of the planner;
scheduler_ext/verbs.py words it for the scheduler and for the pod's owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import Dialect
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.model import EventReason, Rules
from turnout.scheduler_ext.planner.node_reservations import Pods
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.placing.cheap_domain import cheap_hosts
from turnout.scheduler_ext.planner.placing.model import GangPlan, anchored, judged, judged_members
from turnout.scheduler_ext.planner.placing.rooms import limited
from turnout.scheduler_ext.planner.placing.strict_order import told_of
from turnout.scheduler_ext.planner.plan_cache import PlanCache
from turnout.scheduler_ext.planner.work import Work
from turnout.topology.host_score import scores
from turnout.topology.model import DistanceRule, Reason, Refusal
from turnout.topology.plan import beyond


@dataclass(frozen=True, slots=True)
class NoSeat:
    """Tells why a pod gets no node. may_help: the nodes on which it could run once others leave, None for all."""

    word: EventReason
    detail: str
    may_help: frozenset[str] | None = frozenset()
    again: bool = False  # not the last word: to be asked again at once


@dataclass(frozen=True, slots=True)
class Seat:
    """Names the node of a pod, or why it has none. With neither, the planner has no opinion: the scheduler chooses."""

    node: str = ""
    refused: NoSeat | None = None
    elsewhere: bool = False  # it is planned elsewhere; the scheduler, which named its nominated node only, asks again


NO_OPINION = Seat()
NO_ROOM_LEFT = Refusal(Reason.NO_ROOM, "no room is left for this member")


def seat_of(plan_cache: PlanCache, member: Member, names: Sequence[str], rules: Rules, now_s: float) -> Seat:
    """Return the pod's seat among the named nodes. names: nodes that passed every earlier filter. Never raises."""
    view = plan_cache.view
    gang = view.gangs.get(member.belongs.key)
    if gang is None or not judged(member, gang):
        return NO_OPINION
    view.settle(now_s)
    alone = gang.key.dialect == Dialect.ALONE.value
    if rules.hold_incomplete and not alone and len(gang.living()) < gang.least:
        return _none(EventReason.GANG_INCOMPLETE, f"{len(gang.living())} of {gang.least} members exist")
    if not view.fabric.mapped_count:
        required = "a topology tier is required and the map names no host"
        return _none(EventReason.NO_MAP, required) if gang.required else NO_OPINION
    if alone:
        return _seat_alone(plan_cache, gang, member, names, now_s)
    plan = plan_cache.plan_of(gang.key, now_s)
    node = view.place_of(member) or _planned(plan_cache, plan, member)
    if len(names) == 1 and names[0] == member.nominated:
        return Seat(node) if node in names else Seat(elsewhere=True)
    if node not in names and view.assumed_pods.node_of(member.uid):
        view.disbelieve(member)
        plan = plan_cache.plan_of(gang.key, now_s)
        node = _planned(plan_cache, plan, member)
    if gang.required and _doubtful(plan_cache, gang, member, names, plan, now_s):
        return _none(EventReason.PLANNED_HOST_MISSING, _missing(node, names), again=True)
    if gang.required:
        plan = plan_cache.plan_of(gang.key, now_s)
        node = view.place_of(member) or _planned(plan_cache, plan, member)
    if node in names:
        return Seat(node)
    if not node:
        lacking = (plan.refusal if plan is not None else None) or NO_ROOM_LEFT
        return _no_room(plan_cache, gang, member, names, lacking)
    if gang.required:
        return _none(EventReason.PLANNED_HOST_MISSING, _missing(node, names))
    return _seat_among(plan_cache, gang, member, names, plan)


def scores_of(
    plan_cache: PlanCache, member: Member, names: Sequence[str], rules: Rules, now_s: float, most: int
) -> list[tuple[str, int]]:
    """Score the named nodes: 10 for the planned one, and less with every tier away from the gang. Never raises.

    Returns at most `most` names, the best first, with integers 1..10; zeros are left out.
    """
    view = plan_cache.view
    gang = view.gangs.get(member.belongs.key)
    if gang is None or not judged(member, gang):
        return []
    view.settle(now_s)
    if not view.fabric.mapped_count:
        return []
    if gang.key.dialect == Dialect.ALONE.value:
        seat = _seat_alone(plan_cache, gang, member, names, now_s)
        return [(seat.node, 10)] if seat.node else []
    plan = plan_cache.plan_of(gang.key, now_s)
    node = view.place_of(member) or _planned(plan_cache, plan, member)
    planned = view.snapshot.row_of.get(node)
    near = [host for m in judged_members(gang) if (host := view.host_of(m)) is not None]
    near += plan.wanted if plan is not None else ()
    wanted = [planned] if planned is not None else []
    scored = scores(view.fabric, wanted, near, DistanceRule.LEAF_ONLY if rules.leaf_only else DistanceRule.ALL_TIERS)
    asked = set(names)
    rows = np.flatnonzero(scored)
    rows = rows[np.argsort(-scored[rows], kind="stable")]
    found: list[tuple[str, int]] = []
    for row in rows.tolist():
        name = view.fabric.hosts[row]
        if name in asked:
            found.append((name, int(scored[row])))
            if len(found) == most:
                break
    return found


def preemptible_nodes(
    plan_cache: PlanCache, member: Member, names: Iterable[str], now_s: float, wall_s: float
) -> list[str]:
    """Return the named nodes on which the whole gang could run once less important pods have left, in their order.

    All of them where the planner has no opinion; none where the gang would not start whatever leaves.
    """
    view, names = plan_cache.view, list(names)
    gang = view.gangs.get(member.belongs.key)
    if gang is None or gang.key.dialect == Dialect.ALONE.value or not judged(member, gang):
        return names
    plan_cache.sync(now_s)
    if not view.fabric.mapped_count:
        return names
    plan = plan_with_preemption(plan_cache, gang, member, wall_s)
    if plan.refusal is not None:
        return []
    own = _planned(plan_cache, plan, member)
    if own in names:
        return [own]
    wanted = {view.fabric.hosts[host] for host in plan.wanted}
    return [name for name in names if name in wanted]


def plan_with_preemption(plan_cache: PlanCache, gang: Gang, member: Member, wall_s: float) -> GangPlan:
    """Return the plan that the gang would get if pods of a lower priority left. The plan is not kept.

    Of the domains of the lowest tier that could hold the gang, others lose least in the one that is chosen.
    """
    view, work = plan_cache.view, Work()

    def room_of(shape: PodShape, besides: Pods) -> Rows:
        work.spend(len(view.snapshot.charges) // 2)
        return view.snapshot.room_above(shape, member.priority, besides)

    request = replace(plan_cache.request_of(gang), hoped=0, left_out={})
    if {each.shape for each in request.waiting} == {member.shape} and member.shape.requests:
        held, need = [host for _, host in request.held], len(request.waiting) + request.missing
        room = room_of(member.shape, ())
        for marks in (request.barred, request.outside.get(None)):
            room = room if marks is None else np.where(marks, 0, room)
        most = cheap_hosts(view, member, need, room, held, gang.tier, wall_s)
        if most is not None:
            cheap = place(view.fabric, replace(request, wished={}), limited(room_of, member.shape, most), work)
            if cheap.refusal is None:
                return cheap
    return place(view.fabric, request, room_of, work)


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
        bound = [m for m in judged_members(gang) if m.node and not m.leaving and anchored(m, gang)]
        if not bound or gang.key.dialect == Dialect.ALONE.value:
            continue
        hosts = [row for m in bound if (row := view.snapshot.row_of.get(m.node)) is not None]
        outside = view.levels.outside(gang.levels)
        wide = beyond(view.fabric, gang.tier, hosts) is not None or (outside is not None and outside[hosts].any())
        if wide or (rules.hold_incomplete and len(gang.living()) < gang.least):
            count += len(bound)
    return count


def _seat_alone(plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], now_s: float) -> Seat:
    """Send a pod without a gang where it fits tightest, so that large holes stay free.

    Where it fits nowhere, the choice is the scheduler's.
    """
    plan_cache.plan_of(gang.key, now_s)  # of those ahead of it
    node = plan_cache.view.place_of(member)
    if node in names:
        return Seat(node)
    request = plan_cache.request_of(gang, without=(member.uid,))
    node = _planned(plan_cache, plan_cache.try_place(request), member)
    if node and node not in names:
        node = _planned(plan_cache, plan_cache.try_place(request, _rows(plan_cache, names)), member)
    return Seat(node)


def _seat_among(plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], plan: GangPlan | None) -> Seat:
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
        return Seat(node)
    detail = f"the gang finds no room among the {len(names)} candidates"
    return _no_room(plan_cache, gang, member, names, Refusal(Reason.NO_ROOM, detail))


def _planned(plan_cache: PlanCache, plan: GangPlan | None, member: Member) -> str:
    host = plan.hosts.get(member.uid) if plan is not None else None
    return plan_cache.view.fabric.hosts[host] if host is not None else ""


def _rows(plan_cache: PlanCache, names: Iterable[str]) -> list[int]:
    rows = plan_cache.view.snapshot.row_of
    return [rows[name] for name in names if name in rows]


def _none(word: EventReason, detail: str, again: bool = False) -> Seat:
    """Refuse where nothing that leaves a node would help."""
    return Seat(refused=NoSeat(word, detail, again=again))


def _missing(node: str, names: Sequence[str]) -> str:
    which = f"planned host {node} is" if node and node not in names else "a host that the gang is planned on is"
    return f"{which} not among the {len(names)} candidates; is percentageOfNodesToScore 100?"


def _doubtful(
    plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], plan: GangPlan | None, now_s: float
) -> bool:
    """True while hosts of a plan are not offered, and may be refused or only taken by members that nobody saw yet.

    Until a member holds a host, those of all members count: the gang can still go elsewhere whole. Once it is sure, the
    gang is planned without the hosts that are left out, until they are offered again.
    """
    left_out, key, shape = plan_cache.left_out, gang.key, member.shape
    if left_out.knows(key, shape) and left_out.offered(key, shape, _rows(plan_cache, names)):
        if plan is None or plan.refusal is not None:
            plan_cache.replan(key)
        return False
    if plan is None or not plan.hosts:
        return False
    own = plan.hosts.get(member.uid)
    if plan_cache.started(gang):
        wanted = set() if own is None else {own}
    else:
        wanted = {host for host, other in plan.takes() if other == shape}
    hosts, named = plan_cache.view.fabric.hosts, set(names)
    absent = [host for host in wanted if hosts[host] not in named]
    if not absent:
        return False
    missing = plan_cache.view.snapshot.room(shape) > 0
    missing[_rows(plan_cache, names)] = False
    if not missing[absent].any():
        return False
    believed = left_out.note(key, shape, missing, now_s)
    if not believed[absent].all():
        return True
    plan_cache.replan(key)
    return False


def _no_room(plan_cache: PlanCache, gang: Gang, member: Member, names: Sequence[str], refusal: Refusal) -> Seat:
    """Refuse for want of room. Nodes where the tier would allow the gang may help once others leave them."""
    word = EventReason.GANG_PARTIAL if plan_cache.started(gang) else EventReason(refusal.reason.value)
    count = sum(int(marks.sum()) for marks in plan_cache.left_out.of(gang.key).values())
    if count:
        are = "host with room is" if count == 1 else "hosts with room are"
        refusal = Refusal(refusal.reason, f"{count} {are} not among the {len(names)} candidates, and {refusal.detail}")
        word = word if word is EventReason.GANG_PARTIAL else EventReason.PLANNED_HOST_MISSING
    refusal = Refusal(refusal.reason, told_of(plan_cache.kept_against(gang), refusal.detail))
    if (tier := gang.tier) is None:
        return Seat(refused=NoSeat(word, refusal.detail, None))
    able = _able(plan_cache, gang, member, tier)
    rows = plan_cache.view.snapshot.row_of
    inside = frozenset(name for name in names if (row := rows.get(name)) is not None and able[row])
    return Seat(refused=NoSeat(word, refusal.detail, inside))


def _able(plan_cache: PlanCache, gang: Gang, member: Member, widest: int) -> NDArray[np.bool_]:
    """Mark the hosts in a domain of the allowed tier that could hold the whole gang if it were empty."""
    view, fabric = plan_cache.view, plan_cache.view.fabric
    tier = min(widest, fabric.tiers)
    could = view.snapshot.capacity(member.shape).copy()
    could[~fabric.mapped] = 0
    switches = fabric.switch_of[tier]
    enough = np.add.reduceat(could, fabric.starts[tier]) >= gang.least
    anchors = (m for m in judged_members(gang) if anchored(m, gang))
    held = {int(switches[h]) for m in anchors if (h := view.host_of(m)) is not None}
    if held:
        only = np.zeros(len(enough), bool)
        only[list(held)] = len(held) == 1
        enough &= only
    able: NDArray[np.bool_] = enough[switches] & fabric.mapped
    return able
