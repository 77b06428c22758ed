"""Plan one gang: which waiting member goes to which host, given the room that is left for it.

A gang may hold several shapes: the heaviest is placed first, the others near it. In a gang with accelerators, members
without one are not placed here: they count towards its min and get no opinion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.node_reservations import Pods
from turnout.scheduler_ext.planner.placing.ranks import missing_ranks, ranks_of
from turnout.scheduler_ext.planner.placing.replacement import MOST_ABSENT, beside_neighbours
from turnout.scheduler_ext.planner.placing.together import MOST_ON_HOST, domains, shares
from turnout.scheduler_ext.planner.work import Work
from turnout.topology.distance import common_tier
from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Reason, Refusal, Rule
from turnout.topology.multiples import in_multiples, in_slices, topped_up
from turnout.topology.packing.smallest_holes import smallest_holes
from turnout.topology.rank_order import assign

RoomOf = Callable[[PodShape, Pods], Rows]  # room beside some pods: a table of its own
FEW_SHAPES = 8  # so many are looked at whatever work that is
_GROUP_STEPS = 200  # of one shape placed once: beside its hosts and pods, counted each for itself


@dataclass(frozen=True, slots=True)
class Request:
    """A gang, and the known places of its members. Members in `waiting` and `held` are judged ones only."""

    gang: Gang
    waiting: tuple[Member, ...]  # members to place, in rank order
    held: tuple[tuple[Member, int], ...] = ()  # (member, host) that hold a host
    # uid -> host where our nominator already sent a waiting member; kept while the host has room
    wished: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0  # members not created yet that the min needs
    hoped: int = 0  # members not created yet above the min; seated only where all of them fit
    rule: Rule = Rule.ALL_TIERS
    # shape -> marks of the rows that another filter of the scheduler refuses
    left_out: Mapping[PodShape, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    # shape -> how gladly its pods go to each row; shapes to whom all are alike are absent
    liking: Mapping[PodShape, Rows] = field(default_factory=dict, compare=False)
    # marks of rows in domains of gangs from which it stays away
    barred: NDArray[np.bool_] | None = field(default=None, compare=False)
    even: bool = True  # spread constraints count: no host gets more than they allow while another is empty


@dataclass(frozen=True, slots=True)
class Seat:
    """A place kept for a member that is still to be created."""

    host: int
    shape: PodShape
    rank: int  # the number of the member that fits this place best in the ring


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The plan of one gang."""

    key: GangKey
    hosts: Mapping[str, int] = field(default_factory=dict)  # uid -> host id of waiting members that have a place
    spare: tuple[Seat, ...] = ()  # the seats of members still to be created
    wanted: tuple[int, ...] = ()  # the hosts of the plan; hosts of members that hold one come first
    tier: int = 0
    # why no member, or not every member, has a place; members above the min may be left over
    refusal: Refusal | None = None
    shapes: Mapping[str, PodShape] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)  # uid -> rank, of the members in hosts
    bases: Mapping[str, int] = field(default_factory=dict)  # role -> the rank of its index 0

    def takes(self) -> list[tuple[int, PodShape]]:
        """Return one (host id, shape) for each pod that the plan keeps room for."""
        return [(host, self.shapes[uid]) for uid, host in self.hosts.items()] + [(s.host, s.shape) for s in self.spare]


def without_seats(plan: GangPlan, lost: Container[str | int]) -> GangPlan:
    """Return a plan without some seats: those of members, named by uid, and those of members to come, named by rank."""
    left = {uid: host for uid, host in plan.hosts.items() if uid not in lost}
    return replace(
        plan,
        hosts=left,
        spare=tuple(seat for seat in plan.spare if seat.rank not in lost),
        shapes={uid: plan.shapes[uid] for uid in left},
        ranks={uid: plan.ranks[uid] for uid in left},
    )


def place(fabric: Fabric, request: Request, room_of: RoomOf, work: Work | None = None) -> GangPlan:
    """Plan a whole gang. Raises nothing.

    room_of: gives the room that the gang may use. work: counts the steps spent, and limits them.

    When the min finds no place, the plan has a refusal and no hosts.
    """
    work = work or Work()
    if request.left_out or request.barred is not None:
        room_of = _without(room_of, request.left_out, request.barred)
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
    groups = _groups(request)
    if 1 < len(groups) <= FEW_SHAPES and not request.wished:
        together = _together(fabric, request, groups, room_of, work)
        if together is not None:
            return together
    plan_ = _place_groups(fabric, request, groups, room_of, work)
    if plan_.refusal is not None and not plan_.hosts and request.wished:  # wishes that came apart bind nobody
        return _place(fabric, replace(request, wished={}), room_of, work)
    if plan_.refusal is not None and len(groups) > FEW_SHAPES and request.gang.tier is not None and work.left > 0:
        return _together(fabric, request, groups, room_of, work) or plan_
    if plan_.refusal is not None and request.even and any(m.most_on_host for m in request.waiting):
        return _place(fabric, replace(request, even=False), room_of, work)  # more pods than hosts may still be even
    return plan_


def _together(
    fabric: Fabric, request: Request, groups: Sequence[_Group], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Place all shapes in the lowest domain that holds them all; None where none does, or the work is spent."""
    held = [host for _, host in request.held]
    counts = [len(group.members) + group.missing for group in groups]
    rooms = [_even(request, group, held, room_of(group.shape, ())) for group in groups[:FEW_SHAPES]]
    work.spend(len(rooms) * (_GROUP_STEPS + len(fabric.hosts) // 4))
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    for first, end in domains(fabric, rooms, counts[:FEW_SHAPES], held, widest):
        if work.left <= 0:
            break
        inside = _within(room_of, first, end)
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


def judged(member: Member, gang: Gang) -> bool:
    """True if the plan of its gang says where this member goes.

    In a gang with accelerators, a member without one is judged only if it, or the gang, must have its place.
    """
    return _judges(member, gang.accelerated, gang.binds_all)


def judged_members(gang: Gang) -> list[Member]:
    """Return the members whose place the plan decides, members being deleted included."""
    accelerated, binds = gang.accelerated, gang.binds_all
    return [m for m in gang.members.values() if _judges(m, accelerated, binds)]


def _judges(member: Member, accelerated: bool, binds_all: bool) -> bool:
    if member.silence:
        return member.silence == "NoGpu" and accelerated and binds_all
    return bool(member.gpus or member.belongs.wish.source) or not accelerated or binds_all


def anchored(member: Member, gang: Gang) -> bool:
    """True if the gang's tier counts from this member's host: not for one without a GPU in a gang that has some.

    A scheduler may ask us about pods with GPUs alone, so that such a member may be anywhere.
    """
    return bool(member.gpus) or not gang.accelerated


def whole_ask(request: Request) -> object:
    """Return everything but the room that decides whether a new gang fits. Gangs of equal values fit the same rooms."""
    gang = request.gang
    groups = tuple((g.shape, len(g.members) + g.missing) for g in _groups(request))
    least = gang.least - (len(gang.living()) - len(request.waiting))
    return groups, least, gang.tier, gang.multiple, gang.slices, gang.fills, request.rule


@dataclass(frozen=True, slots=True)
class _Group:
    """The waiting members of one shape."""

    shape: PodShape
    members: tuple[Member, ...]
    missing: int = 0  # members still to be created; counted with the heaviest shape


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


def _place_groups(fabric: Fabric, request: Request, groups: Sequence[_Group], room_of: RoomOf, work: Work) -> GangPlan:
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
    for at, group in enumerate(groups):
        if at >= FEW_SHAPES and work.left <= 0:
            return GangPlan(gang.key, refusal=_too_many_shapes(groups, at), wanted=tuple(dict.fromkeys(held)))
        pods = len(group.members) + group.missing
        work.spend(_GROUP_STEPS + len(fabric.hosts) // 4 + 4 * (len(taken) + len(group.members)))
        to_come -= pods
        least = min(pods, max(0, gang.least - counted - len(taken) - to_come))
        room = _even(request, group, anchors, room_of(group.shape, taken))
        slots = _place_group(fabric, request, group, least, anchors, room, ranks)
        if isinstance(slots, Refusal):
            refusal = refusal or slots
            if least:
                return GangPlan(gang.key, refusal=slots, wanted=tuple(dict.fromkeys(held)))
            continue
        if len(slots) < pods:
            found = f"{len(slots)} of {pods} pods find room"
            refusal = refusal or Refusal(Reason.NO_ROOM, found, len(slots))
        work.spend(8 * len(slots))
        taken.extend((host, group.shape) for host in slots)
        placed, seats = _seat(fabric, request, group, slots, ranks)
        hosts.update(placed)
        spare.extend(seats)
        anchors.extend(slots)
    shapes = {m.uid: m.shape for m in request.waiting if m.uid in hosts}
    tier = common_tier(fabric, anchors)
    wanted = tuple(dict.fromkeys(anchors))
    return GangPlan(gang.key, hosts, tuple(spare), wanted, tier, refusal, shapes, {u: ranks[u] for u in hosts}, bases)


def _too_many_shapes(groups: Sequence[_Group], placed: int) -> Refusal:
    return Refusal(Reason.NO_ROOM, f"its pods are of {len(groups)} shapes, and planning stopped after {placed}")


def _place_group(
    fabric: Fabric,
    request: Request,
    group: _Group,
    least: int,
    anchors: Sequence[int],
    room: Rows,
    ranks: Mapping[str, int],
) -> list[int] | Refusal:
    """Return hosts for one shape, one entry per pod, in rank order.

    Members with a wish keep their host, if it has room.
    """
    gang = request.gang
    kept = _kept_wishes(request, group, room)
    pods = len(group.members) + group.missing - len(kept)
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
    least = max(0, least - len(first))
    there = tuple(sorted(Counter([*anchors, *first]).items()))
    liking = request.liking.get(group.shape)
    if there and not least:  # enough of it run: whoever else finds room joins them
        ask = Ask(pods, 0, pods, gang.multiple, gang.tier, there, request.rule, liking)
    else:
        most = pods + max(0, gang.most - len(gang.living()) - request.missing)
        ask = Ask(pods, least, most, gang.multiple, gang.tier, there, request.rule, liking)
    answer = _answer(fabric, room, ask, gang)
    if isinstance(answer, Refusal):
        return first if first and answer.reason is Reason.NO_ROOM and not least else answer
    return [*first, *_flat(answer)]


def _beside_neighbours(
    fabric: Fabric, request: Request, group: _Group, kept: Mapping[str, int], room: Rows, ranks: Mapping[str, int]
) -> list[int]:
    """Return hosts for those of a shape's pods that find room under the leaf of their neighbours in the ring."""
    gang = request.gang
    if gang.fills or gang.slices is not None:
        return []
    placed = {ranks[member.uid]: host for member, host in request.held}
    placed.update({ranks[uid]: host for uid, host in kept.items()})
    wanted = [ranks[member.uid] for member in group.members if member.uid not in kept]
    to_come = missing_ranks(ranks, min(max(group.missing, gang.total - len(ranks)), MOST_ABSENT))
    others = [ranks[member.uid] for member in request.waiting if member.shape != group.shape]
    seats = [*wanted, *to_come[: group.missing]]
    return beside_neighbours(fabric, room, seats, [*to_come, *others], placed, gang.tier)


def _answer(fabric: Fabric, room: Rows, ask: Ask, gang: Gang) -> Placement | Refusal:
    if gang.fills:
        return smallest_holes(fabric, room, ask)
    return in_multiples(fabric, room, ask) if gang.slices is None else in_slices(fabric, room, ask, *gang.slices)


def _even(request: Request, group: _Group, anchors: Sequence[int], room: Rows) -> Rows:
    """Return the room that hard spread constraints by host leave beside the gang's own members."""
    most = min((m.most_on_host for m in group.members if m.most_on_host), default=0)
    if not most or not request.even:
        return room
    room = np.minimum(room, most)
    for host in anchors:
        room[host] = max(0, room[host] - 1)
    return room


def _flat(placement: Placement) -> list[int]:
    return [host for host, pods in placement.slots for _ in range(pods)]


def _kept_wishes(request: Request, group: _Group, room: Rows) -> dict[str, int]:
    """Return the members that keep the host to which they were sent. Takes their room from `room`, which it changes."""
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
    """Decide which member gets which slot: wishes first, then neighbours in rank become neighbours in the fabric."""
    seats: dict[str, int] = {}
    free = Counter(slots)
    for member in group.members:
        host = request.wished.get(member.uid)
        if host is not None and free[host] > 0:
            free[host] -= 1
            seats[member.uid] = host
    fixed = {ranks[m.uid]: host for m, host in request.held if m.uid in ranks}
    fixed.update({ranks[uid]: host for uid, host in seats.items()})
    left = sorted(ranks[m.uid] for m in group.members if m.uid not in seats)[: free.total()]
    to_come = missing_ranks(ranks, min(group.missing, free.total() - len(left)))
    given = assign(fabric, sorted((+free).items()), sorted([*left, *to_come]), fixed)
    seats.update({m.uid: given[ranks[m.uid]] for m in group.members if m.uid not in seats and ranks[m.uid] in given})
    return seats, [Seat(given[rank], group.shape, rank) for rank in to_come if rank in given]


def _without(
    room_of: RoomOf, left_out: Mapping[PodShape, NDArray[np.bool_]], barred: NDArray[np.bool_] | None
) -> RoomOf:
    def beside(shape: PodShape, besides: Pods) -> Rows:
        room = room_of(shape, besides)
        for marks in (left_out.get(shape), barred):
            if marks is not None:
                room[marks] = 0
        return room

    return beside


def _within(room_of: RoomOf, first: int, end: int) -> RoomOf:
    def inside(shape: PodShape, besides: Pods) -> Rows:
        room = np.zeros_like(whole := room_of(shape, besides))
        room[first:end] = whole[first:end]
        return room

    return inside


def limited(room_of: RoomOf, shape: PodShape, most: Rows) -> RoomOf:
    """Return a room in which each host takes at most so many pods of a shape."""

    def at_most(other: PodShape, besides: Pods) -> Rows:
        room = room_of(other, besides)
        return np.minimum(room, most) if other == shape else room

    return at_most
