"""One gang's plan: which waiting member goes to which host, given the room that is left for it.

A gang may hold several shapes: the heaviest is placed first, the others beside it. Members without an accelerator in
a gang that has some are nobody's business here: they count towards its min and get no opinion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jobs.gang import GangKey
from kube.shape import PodShape
from kube.snapshot import Rows
from scheduler_ext.gang import Gang, rank_order
from scheduler_ext.member import Member
from topology.fabric import Fabric
from topology.model import Ask, Placement, Reason, Refusal, Rule
from topology.order import assign
from topology.plan import plan

RoomOf = Callable[[PodShape, Mapping[int, NDArray[np.int64]]], Rows]  # room of a shape less what is taken besides
Vector = Callable[[PodShape], NDArray[np.int64]]
DOMAINS_TRIED = 64  # where several shapes must share a domain, how many domains are tried before "no"


@dataclass(frozen=True, slots=True)
class Request:
    """A gang and what is known of its members' places.

    waiting: members to place, in rank order. wished: uid -> host where our nominator already sent a waiting member;
    kept while the host has room. held: (member, host) that hold a host. missing: members not created yet.
    """

    gang: Gang
    waiting: tuple[Member, ...]
    held: tuple[tuple[Member, int], ...] = ()
    wished: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0
    rule: Rule = Rule.ALL_TIERS


@dataclass(frozen=True, slots=True)
class GangPlan:
    """hosts: uid -> host id of waiting members that have a place. spare: (host id, shape) of members still to come.

    wanted: the hosts of the plan, members that hold one first. refusal: why nobody, or not everybody, has a place.
    """

    key: GangKey
    hosts: Mapping[str, int] = field(default_factory=dict)
    spare: tuple[tuple[int, PodShape], ...] = ()
    wanted: tuple[int, ...] = ()
    tier: int = 0
    refusal: Refusal | None = None
    shapes: Mapping[str, PodShape] = field(default_factory=dict)

    def takes(self) -> list[tuple[int, PodShape]]:
        """One (host id, shape) for each pod that the plan keeps room for."""
        return [(host, self.shapes[uid]) for uid, host in self.hosts.items()] + list(self.spare)


def place(fabric: Fabric, request: Request, room_of: RoomOf, vector: Vector) -> GangPlan:
    """Plan a gang whole. room_of: room left for others than this gang; vector: what one pod of a shape takes.

    Returns a plan with a refusal and no hosts when its min finds no place. Raises nothing.
    """
    groups = _groups(request)
    plan_ = _place_groups(fabric, request, groups, room_of, vector)
    if plan_.refusal is None or len(groups) < 2 or request.gang.tier is None:
        return plan_
    tier = min(request.gang.tier, fabric.tiers)
    for switch in range(min(len(fabric.starts[tier]), DOMAINS_TRIED)):
        first, end = fabric.span(tier, switch)
        inside = _place_groups(fabric, request, groups, _within(room_of, first, end), vector)
        if inside.refusal is None:
            return inside
    return plan_


def judged(member: Member, gang: Gang) -> bool:
    """Does the plan of its gang say where this member goes? Not for one without an accelerator beside some with."""
    if member.silence:
        return False
    return bool(member.shape.gpus()) or not any(m.shape.gpus() for m in gang.members.values())


@dataclass(frozen=True, slots=True)
class _Group:
    """Waiting members of one shape. missing: still to be created, counted with the heaviest shape."""

    shape: PodShape
    members: tuple[Member, ...]
    missing: int = 0


def _groups(request: Request) -> list[_Group]:
    by_shape: dict[PodShape, list[Member]] = {}
    for member in request.waiting:
        if judged(member, request.gang):
            by_shape.setdefault(member.shape, []).append(member)
    if not by_shape and request.missing:
        shapes = [m.shape for m, _ in request.held if judged(m, request.gang)]
        by_shape = {max(shapes, key=lambda s: (s.gpus(), s.requests)): []} if shapes else {}
    ordered = sorted(by_shape, key=lambda s: (-s.gpus(), -len(by_shape[s]), s.requests))
    return [
        _Group(shape, tuple(by_shape[shape]), request.missing if at == 0 else 0) for at, shape in enumerate(ordered)
    ]


def _place_groups(
    fabric: Fabric, request: Request, groups: Sequence[_Group], room_of: RoomOf, vector: Vector
) -> GangPlan:
    gang = request.gang
    counted = sum(1 for m in gang.living() if not (m.waits and judged(m, gang)))  # hold a host, or are not judged
    to_come = sum(len(g.members) + g.missing for g in groups)
    taken: dict[int, NDArray[np.int64]] = {}
    anchors = [host for _, host in request.held]
    hosts: dict[str, int] = {}
    spare: list[tuple[int, PodShape]] = []
    refusal: Refusal | None = None
    tier = 0
    for group in groups:
        pods = len(group.members) + group.missing
        to_come -= pods
        least = min(pods, max(0, gang.least - counted - len(hosts) - len(spare) - to_come))
        answer = _place_group(fabric, request, group, least, anchors, room_of(group.shape, taken))
        if isinstance(answer, Refusal):
            refusal = answer
            if least:
                return GangPlan(gang.key, refusal=answer, wanted=tuple(anchors))
            continue
        slots, tier = answer
        one = vector(group.shape)
        for host in slots:
            taken[host] = taken[host] + one if host in taken else one
        placed = _seat(fabric, request, group, slots)
        hosts.update(placed)
        left = list(slots)
        for host in placed.values():
            left.remove(host)
        spare.extend((host, group.shape) for host in left)
        anchors.extend(slots)
    shapes = {m.uid: m.shape for m in request.waiting if m.uid in hosts}
    partial = refusal if refusal is not None and not hosts and not spare else None
    return GangPlan(gang.key, hosts, tuple(spare), tuple(dict.fromkeys(anchors)), tier, partial, shapes)


def _place_group(
    fabric: Fabric, request: Request, group: _Group, least: int, anchors: Sequence[int], room: Rows
) -> tuple[list[int], int] | Refusal:
    """Hosts for one shape, one entry a pod, in rank order; those already wished for first keep theirs."""
    gang = request.gang
    kept = _kept_wishes(request, group, room)
    pods = len(group.members) + group.missing - len(kept)
    if pods == 0:
        return list(kept.values()), 0
    if kept:
        room = room.copy()
        for host in kept.values():
            room[host] -= 1
    counts: dict[int, int] = {}
    for host in (*anchors, *kept.values()):
        counts[host] = counts.get(host, 0) + 1
    ask = Ask(
        pods=pods,
        least=max(0, least - len(kept)),
        most=pods + max(0, gang.most - gang.total),
        multiple=gang.multiple if pods % gang.multiple == 0 else 1,
        widest_tier=gang.tier,
        anchors=tuple(sorted(counts.items())),
        rule=request.rule,
    )
    answer = plan(fabric, room, ask)
    if isinstance(answer, Refusal):
        if kept and answer.reason is Reason.NO_ROOM and ask.least == 0:
            return list(kept.values()), 0
        return answer
    return [*kept.values(), *_flat(answer)], answer.tier


def _flat(placement: Placement) -> list[int]:
    return [host for host, pods in placement.slots for _ in range(pods)]


def _kept_wishes(request: Request, group: _Group, room: Rows) -> dict[str, int]:
    kept: dict[str, int] = {}
    used: dict[int, int] = {}
    for member in group.members:
        host = request.wished.get(member.uid)
        if host is not None and used.get(host, 0) < room[host]:
            used[host] = used.get(host, 0) + 1
            kept[member.uid] = host
    return kept


def _seat(fabric: Fabric, request: Request, group: _Group, slots: Sequence[int]) -> dict[str, int]:
    """Which member gets which slot: wishes first, the rest so that neighbouring ranks are neighbours."""
    ranks = _ranks(request)
    seats: dict[str, int] = {}
    free = list(slots)
    for member in group.members:
        host = request.wished.get(member.uid)
        if host is not None and host in free:
            free.remove(host)
            seats[member.uid] = host
    open_members = [m for m in group.members if m.uid not in seats]
    fixed = {ranks[m.uid]: host for m, host in request.held if m.uid in ranks}
    fixed.update({ranks[uid]: host for uid, host in seats.items()})
    free_ranks = sorted([ranks[m.uid] for m in open_members] + _missing_ranks(ranks, group.missing))
    given = assign(fabric, sorted(Counter(free).items()), free_ranks[: len(free)], fixed)
    seats.update({m.uid: given[ranks[m.uid]] for m in open_members if ranks[m.uid] in given})
    return seats


def _ranks(request: Request) -> dict[str, int]:
    """Each member's rank in the whole gang: its own index where these are distinct, else its place in rank order."""
    members = [*request.waiting, *(m for m, _ in request.held)]
    own = [m.belongs.rank for m in members]
    if len({m.belongs.role for m in members}) == 1 and None not in own and len(set(own)) == len(own):
        return {m.uid: m.belongs.rank for m in members if m.belongs.rank is not None}
    return {m.uid: at for at, m in enumerate(sorted(members, key=rank_order))}


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
    def inside(shape: PodShape, taken: Mapping[int, NDArray[np.int64]]) -> Rows:
        room = np.zeros_like(whole := room_of(shape, taken))
        room[first:end] = whole[first:end]
        return room

    return inside
