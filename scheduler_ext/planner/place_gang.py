"""One gang's plan: which waiting member goes to which host, given the room that is left for it.

A gang may hold several shapes: the heaviest is placed first, the others beside it. Members without an accelerator in
a gang that has some are nobody's business here: they count towards its min and get no opinion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from turnout.jobs.gang import GangKey
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.gang import Gang, rank_order
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.node_reservations import Pods
from turnout.topology.add_workers import grow
from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Reason, Refusal, Rule
from turnout.topology.plan import plan
from turnout.topology.rank_order import assign

RoomOf = Callable[[PodShape, Pods], Rows]  # room beside some pods: a table of its own
DOMAINS_TRIED = 64  # where several shapes must share a domain, how many domains are tried before "no"


@dataclass(frozen=True, slots=True)
class Request:
    """A gang and what is known of its members' places.

    waiting: members to place, in rank order; only such as are judged, here and in held. wished: uid -> host where our
    nominator already sent a waiting member; kept while the host has room. held: (member, host) that hold a host.
    missing: members not created yet that its min takes. hoped: those above it, seated only where all of them fit.
    """

    gang: Gang
    waiting: tuple[Member, ...]
    held: tuple[tuple[Member, int], ...] = ()
    wished: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0
    hoped: int = 0
    rule: Rule = Rule.ALL_TIERS


@dataclass(frozen=True, slots=True)
class Seat:
    """A place kept for a member still to come. rank: the number of the member that it fits best in the ring."""

    host: int
    shape: PodShape
    rank: int


@dataclass(frozen=True, slots=True)
class GangPlan:
    """hosts: uid -> host id of waiting members that have a place. spare: the seats of members still to come.

    wanted: the hosts of the plan, members that hold one first. refusal: why nobody, or not everybody, has a place;
    members above the min may be left over. ranks: of the members in hosts. bases: role -> the rank of its index 0.
    """

    key: GangKey
    hosts: Mapping[str, int] = field(default_factory=dict)
    spare: tuple[Seat, ...] = ()
    wanted: tuple[int, ...] = ()
    tier: int = 0
    refusal: Refusal | None = None
    shapes: Mapping[str, PodShape] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    bases: Mapping[str, int] = field(default_factory=dict)

    def takes(self) -> list[tuple[int, PodShape]]:
        """One (host id, shape) for each pod that the plan keeps room for."""
        return [(host, self.shapes[uid]) for uid, host in self.hosts.items()] + [(s.host, s.shape) for s in self.spare]


def without_seats(plan: GangPlan, lost: Container[str | int]) -> GangPlan:
    """Return a plan without the seats of some members, told by uid, and of some to come, told by rank."""
    left = {uid: host for uid, host in plan.hosts.items() if uid not in lost}
    return replace(
        plan,
        hosts=left,
        spare=tuple(seat for seat in plan.spare if seat.rank not in lost),
        shapes={uid: plan.shapes[uid] for uid in left},
        ranks={uid: plan.ranks[uid] for uid in left},
    )


def place(fabric: Fabric, request: Request, room_of: RoomOf) -> GangPlan:
    """Plan a gang whole. room_of: the room that it may use.

    Returns a plan with a refusal and no hosts when its min finds no place. Raises nothing.
    """
    if request.hoped:
        whole = replace(request, missing=request.missing + request.hoped, hoped=0)
        if (plan_ := _place(fabric, whole, room_of)).refusal is None:
            return plan_
    return _place(fabric, request, room_of)


def _place(fabric: Fabric, request: Request, room_of: RoomOf) -> GangPlan:
    groups = _groups(request)
    plan_ = _place_groups(fabric, request, groups, room_of)
    if plan_.refusal is not None and not plan_.hosts and request.wished:  # wishes that came apart bind nobody
        return _place(fabric, replace(request, wished={}), room_of)
    if plan_.refusal is None or len(groups) < 2 or request.gang.tier is None:
        return plan_
    tier = min(request.gang.tier, fabric.tiers)
    for switch in range(min(len(fabric.starts[tier]), DOMAINS_TRIED)):
        first, end = fabric.span(tier, switch)
        inside = _place_groups(fabric, request, groups, _within(room_of, first, end))
        if inside.refusal is None:
            return inside
    return plan_


def judged(member: Member, gang: Gang) -> bool:
    """Does the plan of its gang say where this member goes? Not for one without an accelerator beside some with."""
    return not member.silence and (bool(member.gpus) or not gang.accelerated)


def judged_members(gang: Gang) -> list[Member]:
    """The members whose place the plan says, leaving ones too."""
    accelerated = gang.accelerated
    return [m for m in gang.members.values() if not m.silence and (m.gpus or not accelerated)]


def whole_ask(request: Request) -> object:
    """All that decides whether a fresh gang fits, room apart: two gangs of one ask fit the same room, or neither."""
    gang = request.gang
    groups = tuple((g.shape, len(g.members) + g.missing) for g in _groups(request))
    least = gang.least - (len(gang.living()) - len(request.waiting))
    return groups, least, gang.tier, gang.multiple, request.rule


@dataclass(frozen=True, slots=True)
class _Group:
    """Waiting members of one shape. missing: still to be created, counted with the heaviest shape."""

    shape: PodShape
    members: tuple[Member, ...]
    missing: int = 0


def _groups(request: Request) -> list[_Group]:
    by_shape: dict[PodShape, list[Member]] = {}
    for member in request.waiting:
        by_shape.setdefault(member.shape, []).append(member)
    gpus = {m.shape: m.gpus for m in (*request.waiting, *(m for m, _ in request.held))}
    if not by_shape and request.missing and gpus:
        by_shape = {max(gpus, key=lambda s: (gpus[s], s.requests)): []}
    ordered = sorted(by_shape, key=lambda s: (-gpus[s], -len(by_shape[s]), s.requests))
    return [
        _Group(shape, tuple(by_shape[shape]), request.missing if at == 0 else 0) for at, shape in enumerate(ordered)
    ]


def _place_groups(fabric: Fabric, request: Request, groups: Sequence[_Group], room_of: RoomOf) -> GangPlan:
    gang = request.gang
    to_come = sum(len(g.members) + g.missing for g in groups)
    counted = len(gang.living()) - sum(len(g.members) for g in groups)  # hold a host, or are not judged
    held = [host for _, host in request.held]
    anchors = list(held)
    taken: list[tuple[int, PodShape]] = []
    hosts: dict[str, int] = {}
    spare: list[Seat] = []
    refusal: Refusal | None = None
    ranks, bases = ranks_of([*request.waiting, *(m for m, _ in request.held)])
    for group in groups:
        pods = len(group.members) + group.missing
        to_come -= pods
        least = min(pods, max(0, gang.least - counted - len(taken) - to_come))
        slots = _place_group(fabric, request, group, least, anchors, room_of(group.shape, taken))
        if isinstance(slots, Refusal):
            refusal = refusal or slots
            if least:
                return GangPlan(gang.key, refusal=slots, wanted=tuple(dict.fromkeys(held)))
            continue
        if len(slots) < pods:
            found = f"{len(slots)} of {pods} pods find room"
            refusal = refusal or Refusal(Reason.NO_ROOM, found, len(slots))
        taken.extend((host, group.shape) for host in slots)
        placed, seats = _seat(fabric, request, group, slots, ranks)
        hosts.update(placed)
        spare.extend(seats)
        anchors.extend(slots)
    shapes = {m.uid: m.shape for m in request.waiting if m.uid in hosts}
    tier = common_tier(fabric, anchors)
    wanted = tuple(dict.fromkeys(anchors))
    return GangPlan(gang.key, hosts, tuple(spare), wanted, tier, refusal, shapes, {u: ranks[u] for u in hosts}, bases)


def _place_group(
    fabric: Fabric, request: Request, group: _Group, least: int, anchors: Sequence[int], room: Rows
) -> list[int] | Refusal:
    """Hosts for one shape, one entry a pod, in rank order; those already wished for first keep theirs."""
    gang = request.gang
    kept = _kept_wishes(request, group, room)
    pods = len(group.members) + group.missing - len(kept)
    if pods == 0:
        return list(kept.values())
    least = max(0, least - len(kept))
    multiple = gang.multiple if pods % gang.multiple == 0 else 1
    there = tuple(sorted(Counter([*anchors, *kept.values()]).items()))
    if there and not least:  # enough of it run: whoever else finds room joins them
        answer = grow(fabric, room, there, pods, multiple, gang.tier, request.rule)
    else:
        most = pods + max(0, gang.most - len(gang.living()) - request.missing)
        answer = plan(fabric, room, Ask(pods, least, most, multiple, gang.tier, there, request.rule))
    if isinstance(answer, Refusal):
        return list(kept.values()) if kept and answer.reason is Reason.NO_ROOM and not least else answer
    return [*kept.values(), *_flat(answer)]


def _flat(placement: Placement) -> list[int]:
    return [host for host, pods in placement.slots for _ in range(pods)]


def _kept_wishes(request: Request, group: _Group, room: Rows) -> dict[str, int]:
    """Return who is sent to a host already that has room. room: a table of its own, from which it is taken."""
    kept: dict[str, int] = {}
    for member in group.members:
        host = request.wished.get(member.uid)
        if host is not None and room[host] > 0:
            room[host] -= 1
            kept[member.uid] = host
    return kept


def _seat(
    fabric: Fabric, request: Request, group: _Group, slots: Sequence[int], ranks: Mapping[str, int]
) -> tuple[dict[str, int], list[Seat]]:
    """Which member gets which slot: wishes first, the rest so that neighbouring ranks are neighbours."""
    seats: dict[str, int] = {}
    free = list(slots)
    for member in group.members:
        host = request.wished.get(member.uid)
        if host is not None and host in free:
            free.remove(host)
            seats[member.uid] = host
    fixed = {ranks[m.uid]: host for m, host in request.held if m.uid in ranks}
    fixed.update({ranks[uid]: host for uid, host in seats.items()})
    left = sorted(ranks[m.uid] for m in group.members if m.uid not in seats)[: len(free)]
    to_come = _missing_ranks(ranks, min(group.missing, len(free) - len(left)))
    given = assign(fabric, sorted(Counter(free).items()), sorted([*left, *to_come]), fixed)
    seats.update({m.uid: given[ranks[m.uid]] for m in group.members if m.uid not in seats and ranks[m.uid] in given})
    return seats, [Seat(given[rank], group.shape, rank) for rank in to_come if rank in given]


def ranks_of(members: Sequence[Member]) -> tuple[dict[str, int], dict[str, int]]:
    """Return uid -> rank in the whole gang, and role -> the rank of its index 0.

    A member's rank is its own index behind those of the roles before its own. Where an index is unknown or given
    twice it is the place in rank order, and no role has a base.
    """
    top = Counter[str]()
    for member in members:
        if member.belongs.rank is not None:
            top[member.belongs.role] = max(top[member.belongs.role], member.belongs.rank + 1)
    bases: dict[str, int] = {}
    for role in sorted(top):
        bases[role] = sum(top[other] for other in bases)
    own = {(m.belongs.role, m.belongs.rank) for m in members if m.belongs.rank is not None}
    if len(own) == len(members):
        return {m.uid: bases[m.belongs.role] + (m.belongs.rank or 0) for m in members}, bases
    return {m.uid: at for at, m in enumerate(sorted(members, key=rank_order))}, {}


def _missing_ranks(ranks: Mapping[str, int], missing: int) -> list[int]:
    """The lowest numbers that nobody has: what the members still to come will be called."""
    had = set(ranks.values())
    found: list[int] = []
    at = 0
    while len(found) < missing:
        if at not in had:
            found.append(at)
        at += 1
    return found


def _within(room_of: RoomOf, first: int, end: int) -> RoomOf:
    def inside(shape: PodShape, besides: Pods) -> Rows:
        room = np.zeros_like(whole := room_of(shape, besides))
        room[first:end] = whole[first:end]
        return room

    return inside
