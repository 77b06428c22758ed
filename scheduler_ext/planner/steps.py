"""Plan one gang: which waiting member goes to which host, in the room that is left for the gang.

A gang may have several shapes: the heaviest shape is placed first, the others near it. In a gang with accelerators,
members without accelerators are not placed here: they count towards the min of the gang.

The work for one question is limited in steps, which are equal on every machine, fast, slow or busy. So every replica
makes the same plan.
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
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup
from turnout.scheduler_ext.cluster.levels import LabelDomains
from turnout.scheduler_ext.planner.holds import holds
from turnout.scheduler_ext.planner.pack import (
    MAX_PODS_PER_HOST,
    domains_of_level,
    domains_with_room,
    fit_batches,
    label_domains_with_room,
    nominations_leave_level,
    share_domain,
    share_hosts,
    split_into_batches,
    take_nominated_hosts,
)
from turnout.scheduler_ext.planner.ranks import (
    MAX_ABSENT_RANKS,
    hosts_beside_neighbours,
    mesh_pulls,
    missing_ranks,
    ranks_of,
    seat_batch,
)
from turnout.scheduler_ext.planner.refusals import (
    refuse_incomplete,
    refuse_outside_level,
    refuse_places,
    refuse_too_few_groups,
    refuse_too_many_shapes,
)
from turnout.scheduler_ext.planner.request import (
    GangPlan,
    GangRequest,
    PodBatch,
    RoomOf,
    Seat,
    counts_for_tier,
    exclude_rows,
    limit_by_spread,
    limit_per_host,
    plan_sort_key,
    restrict_to_domain,
    union_rows,
)
from turnout.topology.fabric import Fabric, common_tier
from turnout.topology.mesh import is_complete, place_mesh
from turnout.topology.model import Ask, Placement, Refusal, RefusalReason
from turnout.topology.place import balanced, beyond, in_multiples, smallest_holes, topped_up
from turnout.topology.slices import in_layers

QUESTION_STEPS = 15_000  # for the gangs ahead of the gang in question; add HOST_STEPS for each host
HOST_STEPS = 4
GANG_STEPS = 50_000  # for one gang; then no further domain and no further shape is tried
SHAPES_STEPS = 20_000  # for a gang of more than MAX_SHAPES_TOGETHER shapes; then no further domain is tried
ALL_STEPS = 1 << 60


@dataclass(slots=True)
class Work:
    """A number of steps to spend, each of about a microsecond. A part that has begun is finished, so the sum may exceed
    it.
    """

    max_steps: int = GANG_STEPS
    spent_steps: int = 0

    def limit(self, most: int) -> None:
        """Lower the limit to this number of steps in all."""
        self.max_steps = min(self.max_steps, most)

    def spend(self, steps: int) -> None:
        """Count some steps."""
        self.spent_steps += steps

    @property
    def steps_left(self) -> int:
        """The number of steps left. At 0 or less no further part begins."""
        return self.max_steps - self.spent_steps


def place_shape(fabric: Fabric, room: Rows, ask: Ask, gang: Gang, ranks_a_pod: int) -> Placement | Refusal:
    """Place the pods of one shape as their gang wishes: in holes, as a mesh, in layers, evenly or in multiples.

    room: as for `topology/place.py`. ranks_a_pod: the accelerators of one pod.
    """
    if gang.fills_holes:
        return smallest_holes(fabric, room, ask)
    if gang.mesh and not ask.anchors and is_complete(gang.mesh, ask.pods, ranks_a_pod):
        return place_mesh(fabric, room, replace(ask, layers=gang.layers), gang.mesh, ranks_a_pod)
    if gang.layers:
        return in_layers(fabric, room, replace(ask, layers=gang.layers))
    return balanced(fabric, room, ask) if gang.balanced else in_multiples(fabric, room, ask)


MAX_SHAPES_TOGETHER = 8  # shapes that are placed at any number of steps
_BATCH_STEPS = 200  # for one batch; its hosts and pods count in addition


def place(fabric: Fabric, request: GangRequest, room_of: RoomOf, work: Work | None = None) -> GangPlan:
    """Plan a whole gang, and check the plan against every hard term. Raises nothing.

    room_of: gives the room that the gang may use. work: counts the steps spent, and limits them.

    When the min finds no place, the plan has a refusal and no hosts. So has a plan that breaks a hard term: this is a
    fault of the planner, and nobody is bound by it.
    """
    work = work or Work()
    plan = checked(fabric, request, _place_request(fabric, request, room_of, work))
    if plan.refusal is None or request.label_domains is None:
        return plan
    return _place_in_label_domain(fabric, request, request.label_domains, room_of, work, plan)


def _place_in_label_domain(
    fabric: Fabric, request: GangRequest, domains: LabelDomains, room_of: RoomOf, work: Work, refused: GangPlan
) -> GangPlan:
    """Place a gang that no switch of its tier holds whole in one domain of the node labels that it requires.

    The tightest domain that holds the gang is chosen. refused: the plan within one switch, which is kept where no
    domain holds more members.
    """
    gang, best = replace(request.gang, label_tiers=domains.tiers), refused
    for number in label_domains_with_room(request, domains, room_of):
        if work.steps_left <= 0:
            break
        outside = domains.row_domains != number
        inside = replace(
            request, gang=gang, label_domains=None, excluded_rows=union_rows(request.excluded_rows, outside)
        )
        plan = checked(fabric, inside, _place_request(fabric, inside, room_of, work))
        if plan.refusal is None:
            return plan
        best = min(best, plan, key=partial(plan_sort_key, fabric))
    if best.hosts or best.refusal is None or best.refusal.reason is not RefusalReason.TIER_TOO_NARROW:
        return best
    names = ", ".join(str(level)[:80] for level in domains.levels)[:120]
    detail = f"no domain of {names} holds {max(1, request.gang.min_pods)} pods together"
    return replace(best, refusal=Refusal(RefusalReason.TIER_TOO_NARROW, detail, best.refusal.room))


def checked(fabric: Fabric, request: GangRequest, plan: GangPlan) -> GangPlan:
    """Return a plan that keeps every hard term as it is, and a refusal in the place of any other."""
    if not (broken := holds(fabric, request, plan)):
        return plan
    refusal = Refusal(RefusalReason.PLAN_REJECTED, "; ".join(map(str, broken))[:200])
    return GangPlan(request.gang.key, refusal=refusal, broken_terms=tuple(each.term for each in broken))


def _place_request(fabric: Fabric, request: GangRequest, room_of: RoomOf, work: Work) -> GangPlan:
    """Plan a gang with seats to grow, then without them, then without regard to where its pods without GPUs run."""
    if request.lost_pods:
        missing_pods = request.missing_pods + request.lost_pods
        with_lost = replace(request, missing_pods=missing_pods, lost_pods=0, growth_pods=0)
        plan = _place_request(fabric, with_lost, room_of, work)
        return replace(plan, open_seats=plan.open_seats[: request.missing_pods])
    if request.nominated_hosts and nominations_leave_level(fabric, request):
        request = replace(request, nominated_hosts={})
    outside = request.rows_outside_level.get(None)
    room_of = exclude_rows(room_of, request.rejected_rows, request.excluded_rows, outside)
    if request.growth_pods:
        with_growth = replace(request, missing_pods=request.missing_pods + request.growth_pods, growth_pods=0)
        if (plan := _place(fabric, with_growth, room_of, work)).refusal is None:
            return plan
    plan = _place(fabric, request, room_of, work)
    anchors = tuple((member, host) for member, host in request.placed_members if counts_for_tier(member, request.gang))
    if plan.refusal is None or len(anchors) == len(request.placed_members):
        return plan
    # Members without an accelerator that run elsewhere do not hold the others back.
    return _place(fabric, replace(request, placed_members=anchors), room_of, work)


def _place(fabric: Fabric, request: GangRequest, room_of: RoomOf, work: Work) -> GangPlan:
    """Place a gang by groups, in one domain, or shape by shape; if that is refused, with fewer pods above the min."""
    if (refusal := refuse_incomplete(request) or refuse_outside_level(request)) is not None:
        return GangPlan(request.gang.key, refusal=refusal)
    batches = split_into_batches(request)
    if any(batch.gang_group is not None for batch in batches):
        return _place_by_groups(fabric, request, batches, room_of, work)
    if 1 < len(batches) <= MAX_SHAPES_TOGETHER and not request.nominated_hosts:
        plan_in_domain = _place_in_one_domain(fabric, request, batches, room_of, work)
        if plan_in_domain is not None:
            return plan_in_domain
    plan = _place_batches(fabric, request, batches, room_of, work)
    return plan if plan.refusal is None else _place_with_less(fabric, request, batches, room_of, work, plan)


def _place_with_less(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work, refused: GangPlan
) -> GangPlan:
    """Place a refused gang without its nominations, else in one domain, else without even spread."""
    if not refused.hosts and request.nominated_hosts:
        return _place(fabric, replace(request, nominated_hosts={}), room_of, work)
    has_many_shapes = len(batches) > MAX_SHAPES_TOGETHER
    if has_many_shapes and request.gang.tier is not None and work.steps_left > 0:
        work.limit(SHAPES_STEPS)
        return _place_in_one_domain(fabric, request, batches, room_of, work) or refused
    if request.spread_evenly and any(m.max_per_host for m in request.waiting):
        # More pods than hosts may still be spread evenly.
        return _place(fabric, replace(request, spread_evenly=False), room_of, work)
    return refused


def _place_in_one_domain(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Place all shapes in the lowest domain that holds them all; None where none does, or the work is spent."""
    placed_hosts = [host for _, host in request.placed_members]
    counts = [batch.pods for batch in batches]
    rooms = [
        limit_by_spread(request, batch, placed_hosts, room_of(batch.shape, ()))
        for batch in batches[:MAX_SHAPES_TOGETHER]
    ]
    work.spend(len(rooms) * (_BATCH_STEPS + len(fabric.hosts) // 4))
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    for first, end in domains_with_room(fabric, rooms, counts[:MAX_SHAPES_TOGETHER], placed_hosts, widest):
        if work.steps_left <= 0:
            break
        inside = restrict_to_domain(room_of, first, end)
        plan = _place_batches(fabric, request, batches, inside, work)
        if plan.refusal is None:
            return plan
        limits = _limits_of_shapes(request, batches, rooms, inside, (first, end), work)
        for shape, most in limits:
            inside = limit_per_host(inside, shape, most)
        plan = _place_batches(fabric, request, batches, inside, work) if limits else plan
        if plan.refusal is None:
            return plan
    return None


def _limits_of_shapes(
    request: GangRequest,
    batches: Sequence[PodBatch],
    rooms: Sequence[Rows],
    inside: RoomOf,
    span: tuple[int, int],
    work: Work,
) -> list[tuple[PodShape, Rows]]:
    """Return the most pods of each shape on each host of a domain with which all shapes fit; nothing where none do.

    For two shapes the limits of one are enough. Of more shapes, half of the gang's work goes into such limits at most,
    so that every domain is tried in the order of shapes.
    """
    shapes, counts = [batch.shape for batch in batches], [batch.pods for batch in batches]
    if request.gang.multiple > 1 or len(batches) > MAX_SHAPES_TOGETHER:
        return []
    if len(batches) == 2:
        share = share_domain(shapes, counts, rooms, inside, span)
        if share is None:
            return []
        work.spend(8 * (span[1] - span[0]) * min(counts[0], MAX_PODS_PER_HOST))
        return [(shapes[0], share)]
    limits = share_hosts(shapes, counts, inside, span, work.spend, work.steps_left - work.max_steps // 2)
    return [] if limits is None else list(zip(shapes, limits, strict=True))


def _place_by_groups(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan:
    """Place the groups of a gang, each in a domain of its own tier, in the lowest domain that holds all of them."""
    plan = _place_groups_in_one_domain(fabric, request, batches, room_of, work)
    if plan is not None:
        return plan
    if request.gang.tier is None:
        plan = _place_batches(fabric, request, batches, room_of, work)
    else:
        plan = _place_in_gang_level(fabric, request, batches, room_of, work)
    if plan.refusal is not None and request.nominated_hosts:
        return _place_by_groups(fabric, replace(request, nominated_hosts={}), batches, room_of, work)
    return plan


def _place_groups_in_one_domain(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Place all groups in the lowest domain that holds them; None where no domain does, or the work is spent."""
    placed_hosts = [host for member, host in request.placed_members if counts_for_tier(member, request.gang)]
    counts = [batch.pods for batch in batches]
    rooms = [room_of(batch.shape, ()) for batch in batches[:MAX_SHAPES_TOGETHER]]
    has_one_shape = len({batch.shape for batch in batches}) == 1
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    for first, end in domains_with_room(fabric, rooms, counts[:MAX_SHAPES_TOGETHER], placed_hosts, widest):
        if work.steps_left <= 0:
            break
        if has_one_shape and sum(counts) > int(rooms[0][first:end].sum()):
            continue
        inside = restrict_to_domain(room_of, first, end)
        plan = _place_batches(fabric, request, batches, inside, work)
        if plan.refusal is None:
            return plan
        with_spans = fit_batches(fabric, request, batches, inside, (first, end))
        if with_spans is not None:
            plan = _place_batches(fabric, request, with_spans, inside, work)
            if plan.refusal is None:
                return plan
    return None


def _place_in_gang_level(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan:
    """Place as many groups as one domain of the gang's own level holds, at least its min; else refuse the gang."""
    gang, placed_hosts = request.gang, [host for _, host in request.placed_members]
    min_pods = max(1, gang.min_pods - (len(gang.living()) - len(request.waiting)))
    rooms = {batch.shape: room_of(batch.shape, ()) for batch in batches[:MAX_SHAPES_TOGETHER]}
    total: NDArray[np.int64] = np.stack(list(rooms.values())).sum(axis=0, dtype=np.int64)
    best: GangPlan | None = None
    for first, end in domains_of_level(fabric, gang.tier or 0, placed_hosts, total, min_pods):
        if best is not None and work.steps_left <= 0:
            break
        plan = _place_batches(fabric, request, batches, restrict_to_domain(room_of, first, end), work)
        best = plan if best is None else min(best, plan, key=partial(plan_sort_key, fabric))
    if best is not None and best.hosts:
        return best
    refusal = beyond(fabric, gang.tier, placed_hosts)
    if refusal is None:
        detail = f"no switch of tier {gang.tier} or below holds the groups that must start together"
        refusal = Refusal(RefusalReason.TIER_TOO_NARROW, detail, int(total.sum()))
    return GangPlan(gang.key, refusal=refusal, used_hosts=tuple(dict.fromkeys(placed_hosts)))


def request_signature(request: GangRequest) -> object:
    """Return everything but the room that decides whether a new gang fits. Gangs of equal values fit the same rooms."""
    gang = request.gang
    batches = tuple(
        (
            batch.shape,
            batch.pods,
            batch.gang_group,
            tuple(sorted(Counter(m.membership.role for m in batch.members).items())),
        )
        for batch in split_into_batches(request)
    )
    min_pods = gang.min_pods - (len(gang.living()) - len(request.waiting))
    wishes = gang.tier, gang.multiple, gang.layers, gang.mesh, gang.balanced, gang.fills_holes, gang.group_rules
    labels = None if request.label_domains is None else request.label_domains.levels
    return batches, min_pods, gang.min_by_role, wishes, labels, request.distance_rule


@dataclass(slots=True)
class _Progress:
    """The members of a gang that have a place so far."""

    anchors: list[int]  # the hosts of all members with a place
    hosts_by_group: dict[GangGroup | None, list[int]]
    roles: Counter[str]  # roles of members that hold a host, have a place or are not planned
    used_rooms: list[tuple[int, PodShape]] = field(default_factory=list)
    hosts: dict[str, int] = field(default_factory=dict)
    open_seats: list[Seat] = field(default_factory=list)


def _start_progress(request: GangRequest) -> _Progress:
    """Return the places of the members that hold a host already."""
    group_of, waiting = request.gang.groups_by_uid(), {member.uid for member in request.waiting}
    hosts_by_group: dict[GangGroup | None, list[int]] = {}
    for member, host in request.placed_members:
        hosts_by_group.setdefault(group_of.get(member.uid), []).append(host)
    roles = Counter(member.membership.role for member in request.gang.living() if member.uid not in waiting)
    return _Progress([host for _, host in request.placed_members], hosts_by_group, roles)


def _place_batches(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan:
    """Place the batches one after another; refuse the gang where a batch of its min finds no place."""
    gang = request.gang
    pods_after = sum(batch.pods for batch in batches)
    # Members that hold a host, or that are not planned.
    counted = len(gang.living()) - sum(len(batch.members) for batch in batches)
    progress, placed_hosts = _start_progress(request), tuple(dict.fromkeys(host for _, host in request.placed_members))
    refusal: Refusal | None = None
    ranks, bases = ranks_of([*request.waiting, *(m for m, _ in request.placed_members)])
    full_batches = Counter[GangGroup | None]()  # how many shapes of a group found room for all pods
    incomplete_groups: set[GangGroup | None] = set()
    for at, batch in enumerate(batches):
        if at >= MAX_SHAPES_TOGETHER and work.steps_left <= 0:
            return GangPlan(gang.key, refusal=refuse_too_many_shapes(batches, at), used_hosts=placed_hosts)
        work.spend(_BATCH_STEPS + len(fabric.hosts) // 4 + 4 * (len(progress.used_rooms) + len(batch.members)))
        pods_after -= batch.pods
        if batch.is_whole and batch.gang_group in incomplete_groups:
            continue
        min_pods = min(batch.pods, max(0, gang.min_pods - counted - len(progress.used_rooms) - pods_after))
        min_pods = max(min_pods, _min_for_roles(request, batch, progress.roles))
        slots = _place_batch(fabric, request, batch, min_pods, progress, room_of, ranks)
        if isinstance(slots, Refusal):
            if min_pods:
                return GangPlan(gang.key, refusal=slots, used_hosts=placed_hosts)
            refusal = refusal or slots
            incomplete_groups.add(batch.gang_group)
            continue
        full_batches[batch.gang_group] += len(slots) == batch.pods
        if len(slots) < batch.pods:
            detail = f"{len(slots)} of {batch.pods} pods find room"
            refusal = refusal or Refusal(RefusalReason.NO_ROOM, detail, len(slots))
        work.spend(8 * len(slots))
        _seat_members(fabric, request, batch, slots, ranks, progress)
    refused = refuse_too_few_groups(request, batches, full_batches)
    refused = refused or refuse_places(fabric, request, batches, progress.hosts, progress.open_seats, ranks)
    if refused is not None:
        return GangPlan(gang.key, refusal=refused, used_hosts=placed_hosts)
    return _finished_plan(fabric, request, progress, refusal, ranks, bases)


def _finished_plan(
    fabric: Fabric,
    request: GangRequest,
    progress: _Progress,
    refusal: Refusal | None,
    ranks: Mapping[str, int],
    bases: Mapping[str, int],
) -> GangPlan:
    """Return the plan of all members that found a place. refusal: why others found none."""
    hosts = progress.hosts
    return GangPlan(
        request.gang.key,
        hosts,
        tuple(progress.open_seats),
        tuple(dict.fromkeys(progress.anchors)),
        common_tier(fabric, progress.anchors),
        refusal,
        shapes={m.uid: m.shape for m in request.waiting if m.uid in hosts},
        ranks={uid: ranks[uid] for uid in hosts},
        bases=bases,
    )


def _seat_members(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    slots: Sequence[int],
    ranks: Mapping[str, int],
    progress: _Progress,
) -> None:
    """Seat the members of a batch on its slots."""
    progress.used_rooms.extend((host, batch.shape) for host in slots)
    seated, seats = seat_batch(fabric, request, batch, slots, ranks)
    progress.hosts.update(seated)
    progress.open_seats.extend(seats)
    progress.anchors.extend(slots)
    progress.hosts_by_group.setdefault(batch.gang_group, []).extend(slots)
    progress.roles.update(member.membership.role for member in batch.members if member.uid in seated)


def _min_for_roles(request: GangRequest, batch: PodBatch, present_roles: Counter[str]) -> int:
    """Return how many pods of a batch must find a host so that each of its roles reaches its min."""
    if not request.gang.min_by_role:
        return 0
    own = Counter(member.membership.role for member in batch.members)
    return sum(min(own[role], max(0, min_pods - present_roles[role])) for role, min_pods in request.gang.min_by_role)


def _place_batch(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    min_pods: int,
    progress: _Progress,
    room_of: RoomOf,
    ranks: Mapping[str, int],
) -> list[int] | Refusal:
    """Return hosts for one batch, one entry per pod, in rank order.

    Nominated members keep their host if it has room. A group is placed whole or not at all, unless its rule allows
    less.
    """
    anchors = progress.anchors if batch.gang_group is None else progress.hosts_by_group.get(batch.gang_group, [])
    room = limit_by_spread(request, batch, anchors, room_of(batch.shape, progress.used_rooms))
    _exclude_for_group(fabric, request, batch, progress, room)
    nominated = take_nominated_hosts(request, batch, room)
    first = list(nominated.values())
    if len(first) < batch.pods:
        first += _hosts_beside_members(fabric, request, batch, nominated, room, ranks)
    pods = batch.pods - len(first)
    if pods == 0:
        return first
    min_pods = pods if batch.is_whole else max(0, min_pods - len(first))
    ask = _shape_request(request, batch, pods, min_pods, [*anchors, *first])
    found = place_shape(fabric, room, ask, request.gang, batch.ranks_a_pod)
    if isinstance(found, Refusal):
        return first if first and found.reason is RefusalReason.NO_ROOM and not min_pods else found
    return [*first, *(host for host, count in found.slots for _ in range(count))]


def _hosts_beside_members(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    nominated: Mapping[str, int],
    room: Rows,
    ranks: Mapping[str, int],
) -> list[int]:
    """Return hosts that complete a multiple, or that are under the leaf of neighbours. Takes their room from `room`."""
    if request.gang.multiple == 1:
        return _hosts_beside_neighbours(fabric, request, batch, nominated, room, ranks)
    group_of = request.gang.groups_by_uid()
    running = [
        host
        for member, host in request.placed_members
        if member.shape == batch.shape and group_of.get(member.uid) == batch.gang_group
    ]
    pods = batch.pods - len(nominated)
    return topped_up([*running, *nominated.values()], request.gang.multiple, pods, room)


def _shape_request(request: GangRequest, batch: PodBatch, pods: int, min_pods: int, anchor_hosts: Sequence[int]) -> Ask:
    """Return the request for places of some pods of a batch. anchor_hosts: hosts of the members that they stay near."""
    gang, anchors = request.gang, tuple(sorted(Counter(anchor_hosts).items()))
    max_pods = pods
    if not anchors or min_pods:  # a gang whose min runs already needs no domain with room to grow
        max_pods += max(0, gang.max_pods - len(gang.living()) - request.missing_pods)
    group_tier = None if batch.gang_group is None else batch.gang_group.tier
    widest = min((tier for tier in (gang.tier, group_tier) if tier is not None), default=None)
    liking = request.preferences.get(batch.shape)
    return Ask(pods, min_pods, max_pods, gang.multiple, widest, anchors, request.distance_rule, preference=liking)


def _exclude_for_group(fabric: Fabric, request: GangRequest, batch: PodBatch, progress: _Progress, room: Rows) -> None:
    """Remove the room that a group may not use: outside its span or level, and in domains of exclusive groups."""
    group = batch.gang_group
    if batch.span is not None:
        room[: batch.span[0]] = room[batch.span[1] :] = 0
    if group is None:
        return
    if (marks := request.rows_outside_level.get(group.rule)) is not None:
        room[marks] = 0
    for other, hosts in progress.hosts_by_group.items():
        if other is None or other == group or not (group.exclusive or other.exclusive):
            continue
        tier = min(_separating_tier(group, other), fabric.tiers)
        for switch in {int(fabric.switch_of[tier][host]) for host in hosts}:
            room[slice(*fabric.span(tier, switch))] = 0


def _separating_tier(one: GangGroup, other: GangGroup) -> int:
    """Return the tier of the domains that two groups do not share. At least one of them is exclusive."""
    return max(each.tier for each in (one, other) if each.exclusive and each.tier is not None)


def _hosts_beside_neighbours(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    nominated: Mapping[str, int],
    room: Rows,
    ranks: Mapping[str, int],
) -> list[int]:
    """Return hosts for the pods of a batch that find room under the leaf of their neighbours in the ring."""
    gang = request.gang
    if gang.fills_holes or gang.layers or batch.gang_group is not None:
        return []
    host_of_rank = {ranks[member.uid]: host for member, host in request.placed_members}
    host_of_rank.update({ranks[uid]: host for uid, host in nominated.items()})
    if not host_of_rank:
        return []
    waiting_ranks = [ranks[member.uid] for member in batch.members if member.uid not in nominated]
    to_come = missing_ranks(ranks, min(max(batch.missing_pods, gang.total - len(ranks)), MAX_ABSENT_RANKS))
    others = [ranks[member.uid] for member in request.waiting if member.shape != batch.shape]
    seats = [*waiting_ranks, *to_come[: batch.missing_pods]]
    pulls = mesh_pulls(gang, batch)
    return hosts_beside_neighbours(fabric, room, seats, [*to_come, *others], host_of_rank, gang.tier, pulls)
