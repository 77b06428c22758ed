"""Plan one gang: which waiting member goes to which host, given the room that is left for it.

A gang may hold several shapes: the heaviest is placed first, the others near it. In a gang with accelerators, members
without one are not placed here: they count towards its min and get no opinion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.parts import Part
from turnout.scheduler_ext.planner.placing.groups import Group, came_apart, groups_of, kept_wishes, mesh_pulls, seat
from turnout.scheduler_ext.planner.placing.model import GangPlan, Request, RoomOf, Seat, anchored, price
from turnout.scheduler_ext.planner.placing.near import answer
from turnout.scheduler_ext.planner.placing.ranks import missing_ranks, ranks_of
from turnout.scheduler_ext.planner.placing.replacement import MOST_ABSENT, beside_neighbours
from turnout.scheduler_ext.planner.placing.rooms import even, limited, within, without
from turnout.scheduler_ext.planner.placing.together import MOST_ON_HOST, domains, domains_of_level, shares
from turnout.scheduler_ext.planner.placing.within import fitted
from turnout.scheduler_ext.planner.work import SHAPES_STEPS, Work
from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Reason, Refusal
from turnout.topology.multiples import topped_up
from turnout.topology.plan import beyond

FEW_SHAPES = 8  # so many are looked at whatever work that is
_GROUP_STEPS = 200  # of one shape placed once: beside its hosts and pods, counted each for itself


def place(fabric: Fabric, request: Request, room_of: RoomOf, work: Work | None = None) -> GangPlan:
    """Plan a whole gang. Raises nothing.

    room_of: gives the room that the gang may use. work: counts the steps spent, and limits them.

    When the min finds no place, the plan has a refusal and no hosts.
    """
    work = work or Work()
    if request.lost:
        plan_ = place(fabric, replace(request, missing=request.missing + request.lost, lost=0, hoped=0), room_of, work)
        return replace(plan_, spare=plan_.spare[: request.missing])
    if request.wished and came_apart(fabric, request):
        request = replace(request, wished={})
    if request.left_out or request.barred is not None or request.outside:
        room_of = without(room_of, request.left_out, request.barred, request.outside.get(None))
    if request.hoped:
        whole = replace(request, missing=request.missing + request.hoped, hoped=0)
        if (plan_ := _place(fabric, whole, room_of, work)).refusal is None:
            return plan_
    plan_ = _place(fabric, request, room_of, work)
    anchors = tuple((member, host) for member, host in request.held if anchored(member, request.gang))
    if plan_.refusal is None or len(anchors) == len(request.held):
        return plan_
    return _place(fabric, replace(request, held=anchors), room_of, work)  # a leader elsewhere holds nobody back


def _place(fabric: Fabric, request: Request, room_of: RoomOf, work: Work) -> GangPlan:
    if (why := _unformed(request) or _runs_outside(request)) is not None:
        return GangPlan(request.gang.key, refusal=why)
    groups = groups_of(request)
    if any(group.part is not None for group in groups):
        return _in_parts(fabric, request, groups, room_of, work)
    if 1 < len(groups) <= FEW_SHAPES and not request.wished:
        together = _together(fabric, request, groups, room_of, work)
        if together is not None:
            return together
    plan_ = _place_groups(fabric, request, groups, room_of, work)
    if plan_.refusal is not None and not plan_.hosts and request.wished:  # wishes that came apart bind nobody
        return _place(fabric, replace(request, wished={}), room_of, work)
    if plan_.refusal is not None and len(groups) > FEW_SHAPES and request.gang.tier is not None and work.left > 0:
        work.limit(SHAPES_STEPS)
        return _together(fabric, request, groups, room_of, work) or plan_
    if plan_.refusal is not None and request.even and any(m.most_on_host for m in request.waiting):
        return _place(fabric, replace(request, even=False), room_of, work)  # more pods than hosts may still be even
    return plan_


def _together(
    fabric: Fabric, request: Request, groups: Sequence[Group], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Place all shapes in the lowest domain that holds them all; None where none does, or the work is spent."""
    held = [host for _, host in request.held]
    counts = [group.pods for group in groups]
    rooms = [even(request, group, held, room_of(group.shape, ())) for group in groups[:FEW_SHAPES]]
    work.spend(len(rooms) * (_GROUP_STEPS + len(fabric.hosts) // 4))
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    for first, end in domains(fabric, rooms, counts[:FEW_SHAPES], held, widest):
        if work.left <= 0:
            break
        inside = within(room_of, first, end)
        found = _place_groups(fabric, request, groups, inside, work)
        if found.refusal is None:
            return found
        share = shares([group.shape for group in groups], counts, rooms, inside, (first, end))
        if share is not None and request.gang.multiple == 1:
            work.spend(8 * (end - first) * min(counts[0], MOST_ON_HOST))
            found = _place_groups(fabric, request, groups, limited(inside, groups[0].shape, share), work)
            if found.refusal is None:
                return found
    return None


def _unformed(request: Request) -> Refusal | None:
    """Refuse a gang whose PodGroup cuts it into groups, until as many pods exist as start: who is in which is unknown.

    So is one that has pods enough, and of some role too few.
    Groups that pods say themselves are not waited for: a LeaderWorkerSet may create its workers after its leader runs.
    """
    gang, there = request.gang, len(request.gang.living())
    if gang.sizing is None or request.held:
        return None
    roles = Counter(member.belongs.role for member in gang.living())
    if there >= gang.least:
        few = next(((role, least) for role, least in gang.least_of if roles[role] < least), None)
        if few is None:
            return None
        return Refusal(Reason.NO_ROOM, f"of its pods {few[0]} {roles[few[0]]} are there, {few[1]} must start together")
    if not gang.sizing.wish.groups:
        return None
    return Refusal(Reason.NO_ROOM, f"its groups are formed once all are there: {there} of {gang.least} pods")


def _runs_outside(request: Request) -> Refusal | None:
    """Refuse a gang of which a member runs on a host that is in no domain of the required level."""
    marks = request.outside.get(None)
    if marks is None or not any(marks[host] for member, host in request.held if anchored(member, request.gang)):
        return None
    return Refusal(Reason.OFF_MAP, "members run on hosts that have no label of the required level")


def _in_parts(fabric: Fabric, request: Request, groups: Sequence[Group], room_of: RoomOf, work: Work) -> GangPlan:
    """Place the parts of a gang, each in a domain of its own tier, in the lowest domain that holds them all."""
    held = [host for member, host in request.held if anchored(member, request.gang)]
    counts = [group.pods for group in groups]
    rooms = [room_of(group.shape, ()) for group in groups[:FEW_SHAPES]]
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    for first, end in domains(fabric, rooms, counts[:FEW_SHAPES], held, widest):
        if work.left <= 0:
            break
        if sum(counts) > int(rooms[0][first:end].sum()) and len({group.shape for group in groups}) == 1:
            continue
        inside = within(room_of, first, end)
        found = _place_groups(fabric, request, groups, inside, work)
        if found.refusal is None:
            return found
        with_spans = fitted(fabric, request, groups, inside, (first, end))
        if with_spans is not None:
            found = _place_groups(fabric, request, with_spans, inside, work)
            if found.refusal is None:
                return found
    if request.gang.tier is None:
        plan_ = _place_groups(fabric, request, groups, room_of, work)
    else:
        plan_ = _in_own_level(fabric, request, groups, room_of, work)
    if plan_.refusal is not None and request.wished:  # wishes that came apart bind nobody
        return _in_parts(fabric, replace(request, wished={}), groups, room_of, work)
    return plan_


def _in_own_level(fabric: Fabric, request: Request, groups: Sequence[Group], room_of: RoomOf, work: Work) -> GangPlan:
    """Place as many parts as one domain of the gang's own level holds, at least its min; else refuse the gang."""
    gang, held = request.gang, [host for _, host in request.held]
    least = max(1, gang.least - (len(gang.living()) - len(request.waiting)))
    rooms = {group.shape: room_of(group.shape, ()) for group in groups[:FEW_SHAPES]}
    total: NDArray[np.int64] = np.stack(list(rooms.values())).sum(axis=0, dtype=np.int64)
    best: GangPlan | None = None
    for first, end in domains_of_level(fabric, gang.tier or 0, held, total, least):
        if best is not None and work.left <= 0:
            break
        found = _place_groups(fabric, request, groups, within(room_of, first, end), work)
        best = found if best is None else min(best, found, key=partial(price, fabric))
    if best is not None and best.hosts:
        return best
    refusal = beyond(fabric, gang.tier, held)
    if refusal is None:
        detail = f"no switch of tier {gang.tier} or below holds the groups that must start together"
        refusal = Refusal(Reason.TIER_TOO_NARROW, detail, int(total.sum()))
    return GangPlan(gang.key, refusal=refusal, wanted=tuple(dict.fromkeys(held)))


def whole_ask(request: Request) -> object:
    """Return everything but the room that decides whether a new gang fits. Gangs of equal values fit the same rooms."""
    gang = request.gang
    groups = tuple((g.shape, g.pods, g.part, tuple(sorted(Counter(m.belongs.role for m in g.members).items())))
                   for g in groups_of(request))  # fmt: skip
    least = gang.least - (len(gang.living()) - len(request.waiting))
    wishes = gang.tier, gang.multiple, gang.layers, gang.mesh, gang.balanced, gang.fills, gang.groups
    return groups, least, gang.least_of, wishes, request.rule


@dataclass(slots=True)
class _Placed:
    """The members of a gang that have their places so far."""

    anchors: list[int]  # the hosts of all its members
    of_part: dict[Part | None, list[int]]
    roles: Counter[str]  # members that hold a host, have a place or are not judged
    taken: list[tuple[int, PodShape]] = field(default_factory=list)
    hosts: dict[str, int] = field(default_factory=dict)
    spare: list[Seat] = field(default_factory=list)


def _begun(request: Request) -> _Placed:
    parts, waiting = request.gang.parts(), {member.uid for member in request.waiting}
    of_part: dict[Part | None, list[int]] = {}
    for member, host in request.held:
        of_part.setdefault(parts.get(member.uid), []).append(host)
    roles = Counter(member.belongs.role for member in request.gang.living() if member.uid not in waiting)
    return _Placed([host for _, host in request.held], of_part, roles)


def _place_groups(fabric: Fabric, request: Request, groups: Sequence[Group], room_of: RoomOf, work: Work) -> GangPlan:
    gang = request.gang
    to_come = sum(group.pods for group in groups)
    counted = len(gang.living()) - sum(len(g.members) for g in groups)  # hold a host, or are not judged
    placed, held = _begun(request), tuple(dict.fromkeys(host for _, host in request.held))
    refusal: Refusal | None = None
    ranks, bases = ranks_of([*request.waiting, *(m for m, _ in request.held)])
    full = Counter[Part | None]()  # how many shapes of a part found room for all
    halved: set[Part | None] = set()
    for at, group in enumerate(groups):
        if at >= FEW_SHAPES and work.left <= 0:
            return GangPlan(gang.key, refusal=_too_many_shapes(groups, at), wanted=held)
        work.spend(_GROUP_STEPS + len(fabric.hosts) // 4 + 4 * (len(placed.taken) + len(group.members)))
        to_come -= group.pods
        if group.part is not None and group.part.whole and group.part in halved:
            continue  # no part of a part
        least = min(group.pods, max(0, gang.least - counted - len(placed.taken) - to_come))
        least = max(least, _least_of_roles(request, group, placed.roles))
        slots = _place_group(fabric, request, group, least, placed, room_of, ranks)
        if isinstance(slots, Refusal):
            refusal = refusal or slots
            halved.add(group.part)
            if least:
                return GangPlan(gang.key, refusal=slots, wanted=held)
            continue
        if len(slots) < group.pods:
            found = f"{len(slots)} of {group.pods} pods find room"
            refusal = refusal or Refusal(Reason.NO_ROOM, found, len(slots))
        else:
            full[group.part] += 1
        work.spend(8 * len(slots))
        _take(fabric, request, group, slots, ranks, placed)
    if (few := _too_few_parts(request, groups, full)) is not None:
        return GangPlan(gang.key, refusal=few, wanted=held)
    hosts, tier = placed.hosts, common_tier(fabric, placed.anchors)
    shapes = {m.uid: m.shape for m in request.waiting if m.uid in hosts}
    wanted, numbers = tuple(dict.fromkeys(placed.anchors)), {uid: ranks[uid] for uid in hosts}
    return GangPlan(gang.key, hosts, tuple(placed.spare), wanted, tier, refusal, shapes, numbers, bases)


def _take(
    fabric: Fabric, request: Request, group: Group, slots: Sequence[int], ranks: Mapping[str, int], placed: _Placed
) -> None:
    """Seat the members of a group on its places."""
    placed.taken.extend((host, group.shape) for host in slots)
    seated, seats = seat(fabric, request, group, slots, ranks)
    placed.hosts.update(seated)
    placed.spare.extend(seats)
    placed.anchors.extend(slots)
    placed.of_part.setdefault(group.part, []).extend(slots)
    placed.roles.update(member.belongs.role for member in group.members if member.uid in seated)


def _least_of_roles(request: Request, group: Group, there: Counter[str]) -> int:
    """Return how many of a group must find a host so that each of its roles has as many as must start."""
    if not request.gang.least_of:
        return 0
    own = Counter(member.belongs.role for member in group.members)
    return sum(min(own[role], max(0, least - there[role])) for role, least in request.gang.least_of)


def _too_few_parts(request: Request, groups: Sequence[Group], full: Counter[Part | None]) -> Refusal | None:
    """Refuse a gang of which fewer groups than its rules say find their place, while none of it runs."""
    if request.held or not any(rule.least for rule in request.gang.groups):
        return None
    shapes, pods = Counter(group.part for group in groups), Counter(request.gang.parts().values())
    for at, rule in enumerate(request.gang.groups):
        asked = [part for part in shapes if part is not None and part.rule == at]
        whole = sum(full[part] == shapes[part] and pods[part] >= rule.pods for part in asked)
        if whole < (rule.least if rule.pods else min(rule.least, len(asked))):
            return Refusal(Reason.NO_ROOM, f"{rule.least} groups {rule.name} must start together, {whole} find room")
    return None


def _too_many_shapes(groups: Sequence[Group], placed: int) -> Refusal:
    return Refusal(Reason.NO_ROOM, f"its pods are of {len(groups)} shapes, and planning stopped after {placed}")


def _place_group(
    fabric: Fabric,
    request: Request,
    group: Group,
    least: int,
    placed: _Placed,
    room_of: RoomOf,
    ranks: Mapping[str, int],
) -> list[int] | Refusal:
    """Return hosts for one group, one entry per pod, in rank order.

    Members with a wish keep their host, if it has room. A part is placed whole or not at all, unless its rule asks for
    less.
    """
    gang = request.gang
    anchors = placed.anchors if group.part is None else placed.of_part.get(group.part, [])
    room = even(request, group, anchors, room_of(group.shape, placed.taken))
    _narrow(fabric, request, group, placed, room)
    kept = kept_wishes(request, group, room)
    pods = group.pods - len(kept)
    if pods == 0:
        return list(kept.values())
    begun = [host for member, host in request.held if member.shape == group.shape]
    if gang.multiple == 1:
        topped = _beside_neighbours(fabric, request, group, kept, room, ranks)
    else:
        topped = topped_up([*begun, *kept.values()], gang.multiple, pods, room)
    first = [*kept.values(), *topped]
    pods -= len(topped)
    if pods == 0:
        return first
    least = pods if group.part is not None and group.part.whole else max(0, least - len(first))
    ask = _ask(request, group, pods, least, [*anchors, *first])
    found = answer(fabric, room, ask, gang, group.ranks_a_pod)
    if isinstance(found, Refusal):
        return first if first and found.reason is Reason.NO_ROOM and not least else found
    return [*first, *(host for host, count in found.slots for _ in range(count))]


def _ask(request: Request, group: Group, pods: int, least: int, near: Sequence[int]) -> Ask:
    """Ask for places of some pods of a group. near: hosts of the members beside which they go."""
    gang, there = request.gang, tuple(sorted(Counter(near).items()))
    most = pods
    if not there or least:  # enough of it run: whoever else finds room joins them
        most += max(0, gang.most - len(gang.living()) - request.missing)
    tiers = [tier for tier in (gang.tier, group.part.tier if group.part is not None else None) if tier is not None]
    liking = request.liking.get(group.shape)
    return Ask(pods, least, most, gang.multiple, min(tiers, default=None), there, request.rule, liking=liking)


def _narrow(fabric: Fabric, request: Request, group: Group, placed: _Placed, room: Rows) -> None:
    """Take from `room` what a part may not use: hosts outside its span or level, and domains of parts kept apart."""
    part = group.part
    if group.span is not None:
        room[: group.span[0]] = room[group.span[1] :] = 0
    if part is None:
        return
    if (marks := request.outside.get(part.rule)) is not None:
        room[marks] = 0
    for other, hosts in placed.of_part.items():
        if other is None or other == part or not (part.apart or other.apart):
            continue
        tier = max(one.tier for one in (part, other) if one.apart and one.tier is not None)
        for switch in {int(fabric.switch_of[min(tier, fabric.tiers)][host]) for host in hosts}:
            room[slice(*fabric.span(min(tier, fabric.tiers), switch))] = 0


def _beside_neighbours(
    fabric: Fabric, request: Request, group: Group, kept: Mapping[str, int], room: Rows, ranks: Mapping[str, int]
) -> list[int]:
    """Return hosts for those of a shape's pods that find room under the leaf of their neighbours in the ring."""
    gang = request.gang
    if gang.fills or gang.layers or group.part is not None:
        return []
    placed = {ranks[member.uid]: host for member, host in request.held}
    placed.update({ranks[uid]: host for uid, host in kept.items()})
    if not placed:
        return []
    wanted = [ranks[member.uid] for member in group.members if member.uid not in kept]
    to_come = missing_ranks(ranks, min(max(group.missing, gang.total - len(ranks)), MOST_ABSENT))
    others = [ranks[member.uid] for member in request.waiting if member.shape != group.shape]
    seats = [*wanted, *to_come[: group.missing]]
    pulls = mesh_pulls(gang, group)
    return beside_neighbours(fabric, room, seats, [*to_come, *others], placed, gang.tier, pulls)
