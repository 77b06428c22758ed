"""Plan one gang: which waiting member goes to which host, in the room that is left for the gang.

The request has hard terms (`HardTerm`), which are never given up, and soft terms (`SoftTerm`). `RELAXATIONS` states in
which order soft terms are given up. After each relaxation the same strategies are tried to place the gang: one domain
after another, the lowest first. A relaxation whose term the request does not have is skipped. Which hosts of a domain
are the best is decided in turnout.topology.place: the fewest switches come before the fewest hosts.

In a gang with accelerators, members without accelerators are not placed here: they count towards the min of the gang.

The work for one question is limited by a count of steps, the same on every machine, fast, slow or busy. So every
replica makes the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.levels import LabelDomains
from turnout.scheduler_ext.planner.batches import (
    BATCH_STEPS,
    MAX_SHAPES_TOGETHER,
    SHAPES_STEPS,
    Work,
    place_batches,
)
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
)
from turnout.scheduler_ext.planner.plan_check import broken_hard_terms
from turnout.scheduler_ext.planner.refusals import refuse_incomplete, refuse_outside_level
from turnout.scheduler_ext.planner.request import (
    AbsentMembers,
    GangPlan,
    GangRequest,
    PodBatch,
    RoomOf,
    SoftTerm,
    counts_for_tier,
    exclude_rows,
    limit_by_spread,
    limit_per_host,
    plan_sort_key,
    restrict_to_domain,
    union_rows,
)
from turnout.scheduler_ext.planner.search import search_places
from turnout.topology.fabric import Fabric
from turnout.topology.model import Refusal, RefusalReason
from turnout.topology.place import anchors_refusal

PlacementStrategy = Callable[[Fabric, GangRequest, Sequence[PodBatch], RoomOf, Work], GangPlan | None]


def place(fabric: Fabric, request: GangRequest, room_of: RoomOf, work: Work | None = None) -> GangPlan:
    """Plan a whole gang, and check the plan against every hard term.

    room_of: gives the room that the gang may use. work: counts the steps of work, and limits them; None for the usual
    limit of one gang. If the min finds no place, the plan has a refusal and no hosts. A plan that breaks a hard term is
    a fault of the planner: it is replaced by such a refusal.
    """
    work = work or Work()
    plan = plan_or_rejection(fabric, request, _plan_with_relaxations(fabric, request, room_of, work))
    if plan.refusal is None or request.label_domains is None:
        return plan
    return _place_in_label_domain(fabric, request, request.label_domains, room_of, work, plan)


def _place_in_label_domain(
    fabric: Fabric, request: GangRequest, domains: LabelDomains, room_of: RoomOf, work: Work, refused: GangPlan
) -> GangPlan:
    """Place a gang that no switch of its tier holds whole in one domain of the node labels that it requires.

    The tightest domain that holds the gang is chosen. room_of: the room that the gang may use. refused: the plan within
    one switch; returned if no domain has a better plan. If nothing is placed because the tier is too narrow, the text
    of the refusal names the labels. Stops when the work is spent.
    """
    gang, best = replace(request.gang, label_tiers=domains.tiers), refused
    for number in label_domains_with_room(request, domains, room_of):
        if work.steps_left <= 0:
            break
        outside = domains.row_domains != number
        domain_request = replace(
            request, gang=gang, label_domains=None, excluded_rows=union_rows(request.excluded_rows, outside)
        )
        plan = plan_or_rejection(fabric, domain_request, _plan_with_relaxations(fabric, domain_request, room_of, work))
        if plan.refusal is None:
            return plan
        best = min(best, plan, key=partial(plan_sort_key, fabric))
    if best.hosts or best.refusal is None or best.refusal.reason is not RefusalReason.TIER_TOO_NARROW:
        return best
    names = ", ".join(str(level)[:80] for level in domains.levels)[:120]
    detail = f"no domain of {names} holds {max(1, request.gang.min_pods)} pods together"
    return replace(best, refusal=Refusal(RefusalReason.TIER_TOO_NARROW, detail, best.refusal.room))


def plan_or_rejection(fabric: Fabric, request: GangRequest, plan: GangPlan) -> GangPlan:
    """Return the plan if it keeps every hard term; else a plan with the refusal PLAN_REJECTED and the broken terms."""
    if not (broken := broken_hard_terms(fabric, request, plan)):
        return plan
    refusal = Refusal(RefusalReason.PLAN_REJECTED, "; ".join(map(str, broken))[:200])
    return GangPlan(request.gang.key, refusal=refusal, broken_terms=tuple(each.term for each in broken))


def _plan_with_relaxations(fabric: Fabric, request: GangRequest, room_of: RoomOf, work: Work) -> GangPlan:
    """Try the request as it is, then with ever more soft terms given up; return the first plan without a refusal.

    Else the plan that places most members is returned. If none places any, every assignment of a small gang is
    searched; if that finds no plan either, the one with all soft terms given up is returned, whose refusal names a hard
    term. A gang that is incomplete, or has a member outside its level, is refused first. room_of: the room that the
    gang may use. work: is spent; nothing is searched once it is used up.
    """
    if (refusal := refuse_incomplete(request) or refuse_outside_level(request)) is not None:
        return GangPlan(request.gang.key, refusal=refusal)
    outside = request.rows_outside_level.get(None)
    room_of = exclude_rows(room_of, request.rejected_rows, request.excluded_rows, outside)
    best: GangPlan | None = None
    for relaxed_request, released_terms in _relaxed_requests(_without_invalid_terms(fabric, request)):
        all_seats = _with_all_seats(relaxed_request)
        batches = split_into_batches(all_seats)
        plan = replace(_fit(fabric, all_seats, batches, room_of, work), released_terms=released_terms)
        if plan.refusal is None:
            best = plan
            break
        if relaxed_request.absent.growth:  # growth seats are reserved only where all of them fit
            continue
        best = _better(fabric, best, plan)
    assert best is not None  # the step without growth seats sets it
    if best.refusal is not None and not best.hosts:
        found = search_places(fabric, all_seats, batches, room_of, work)  # the last request has no soft term
        best = best if found is None else replace(found, released_terms=released_terms)
    return replace(best, open_seats=best.open_seats[: request.absent.missing]) if request.absent.lost else best


def _with_all_seats(request: GangRequest) -> GangRequest:
    """Return the request in which all absent members are counted as missing, so that each gets a seat."""
    absent = request.absent
    if not absent.lost and not absent.growth:
        return request
    return replace(request, absent=AbsentMembers(missing=absent.missing + absent.lost + absent.growth))


def _without_invalid_terms(fabric: Fabric, request: GangRequest) -> GangRequest:
    """Return the request without terms that cannot hold.

    Nominations are dropped if they leave a required level, and growth seats if the gang has lost members.
    """
    if request.nominated_hosts and nominations_leave_level(fabric, request):
        request = replace(request, nominated_hosts={})
    return replace(request, absent=replace(request.absent, growth=0)) if request.absent.lost else request


def _without_growth_seats(request: GangRequest) -> GangRequest | None:
    """Return the request without growth seats; None if it has none."""
    return replace(request, absent=replace(request.absent, growth=0)) if request.absent.growth else None


def _without_cpu_anchors(request: GangRequest) -> GangRequest | None:
    """Return the request without the placed members that do not count for the tier; None if it has none."""
    remaining = [(member, host) for member, host in request.placed_members if counts_for_tier(member, request.gang)]
    return None if len(remaining) == len(request.placed_members) else replace(request, placed_members=tuple(remaining))


def _without_neighbours(request: GangRequest) -> GangRequest | None:
    """Return the request without the wish for the leaf of neighbours; None if the wish has no effect on it."""
    is_used = request.gang.multiple == 1 and (request.placed_members or request.nominated_hosts)
    return replace(request, beside_neighbours=False) if is_used else None


def _without_nominations(request: GangRequest) -> GangRequest | None:
    """Return the request without nominated hosts; None if it has none."""
    return replace(request, nominated_hosts={}) if request.nominated_hosts else None


def _without_even_spread(request: GangRequest) -> GangRequest | None:
    """Return the request without the hard spread constraint; None if no waiting member has one."""
    has_spread = any(member.max_per_host for member in request.waiting)
    return replace(request, spread_evenly=False) if has_spread else None


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One soft term that is given up. RELAXATIONS states the order."""

    term: SoftTerm
    loss: str  # what the gang no longer gets; docs/wishes.md shows it
    give_up: Callable[[GangRequest], GangRequest | None]  # None: the request does not have the term


# Each relaxation gives up its own term and those of the relaxations before it.
RELAXATIONS = (
    Relaxation(
        SoftTerm.GROWTH_SEATS,
        "seats for members above the minimum that are not created yet",
        _without_growth_seats,
    ),
    Relaxation(
        SoftTerm.CPU_ANCHORS,
        "nearness to members without GPUs that run already, in a gang with GPUs",
        _without_cpu_anchors,
    ),
    Relaxation(
        SoftTerm.NEIGHBOURS,
        "the leaf of the neighbours in the ring or mesh, for a member that returns or joins",
        _without_neighbours,
    ),
    Relaxation(
        SoftTerm.NOMINATIONS,
        "the nodes for which members are nominated, or which the last plan gave them",
        _without_nominations,
    ),
    Relaxation(
        SoftTerm.EVEN_SPREAD,
        "a hard spread constraint as the planner counts it: the scheduler's own filter still decides",
        _without_even_spread,
    ),
)


def _relaxed_requests(request: GangRequest) -> Iterator[tuple[GangRequest, tuple[SoftTerm, ...]]]:
    """Yield (request, soft terms given up): first with all soft terms and (), then with one term fewer each time.

    The terms are given up in the order of RELAXATIONS; the tuple has all that are given up so far. Terms that the
    request does not have are skipped.
    """
    released: tuple[SoftTerm, ...] = ()
    yield request, released
    for relaxation in RELAXATIONS:
        if (fewer := relaxation.give_up(request)) is not None:
            request, released = fewer, (*released, relaxation.term)
            yield request, released


def _fit(fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work) -> GangPlan:
    """Try the strategies to place a request one after another; return the first plan without a refusal, else the best
    plan.

    batches: of the request. room_of: the room that the gang may use. work: counts the steps, and limits them.
    """
    best: GangPlan | None = None
    for strategy in _strategies(request, batches):
        plan = strategy(fabric, request, batches, room_of, work)
        if plan is not None and plan.refusal is None:
            return plan
        best = best if plan is None else _better(fabric, best, plan)
    assert best is not None  # at least one strategy gives a plan
    return best


def _better(fabric: Fabric, best: GangPlan | None, plan: GangPlan) -> GangPlan:
    """Return the better of two plans with a refusal: more members with a host come first, then fewer switches.

    best: None for no plan yet. If it has no hosts, `plan` is returned.
    """
    is_better = best is None or not best.hosts or plan_sort_key(fabric, plan) < plan_sort_key(fabric, best)
    return plan if best is None or is_better else best


def _strategies(request: GangRequest, batches: Sequence[PodBatch]) -> tuple[PlacementStrategy, ...]:
    """Return the functions that may place these batches, in the order in which they are tried.

    All keep every hard term.
    """
    if any(batch.gang_group is not None for batch in batches):
        return _place_groups_in_one_domain, place_batches if request.gang.tier is None else _place_in_gang_level
    if len(batches) > MAX_SHAPES_TOGETHER:
        return (place_batches,) if request.gang.tier is None else (place_batches, _place_many_shapes_in_one_domain)
    return (
        (_place_in_one_domain, place_batches) if len(batches) > 1 and not request.nominated_hosts else (place_batches,)
    )


def _place_in_one_domain(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Return a plan without refusal whose pods are all in one domain of the lowest possible tier.

    None if no domain holds all batches, or the work is spent. room_of: the room that the gang may use.
    """
    placed_hosts = [host for _, host in request.placed_members]
    counts = [batch.pods for batch in batches]
    rooms = [
        limit_by_spread(request, batch, placed_hosts, room_of(batch.shape, ()))
        for batch in batches[:MAX_SHAPES_TOGETHER]
    ]
    work.spend(len(rooms) * (BATCH_STEPS + len(fabric.hosts) // 4))
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    free_sizes = None if request.free_of is None else request.free_of(())
    domains = domains_with_room(fabric, rooms, counts[:MAX_SHAPES_TOGETHER], placed_hosts, widest, free_sizes)
    for first, end in domains:
        if work.steps_left <= 0:
            break
        room_of_domain = restrict_to_domain(room_of, first, end)
        plan = place_batches(fabric, request, batches, room_of_domain, work)
        if plan.refusal is None:
            return plan
        limits = _limits_of_shapes(request, batches, rooms, room_of_domain, (first, end), work)
        for shape, max_pods in limits:
            room_of_domain = limit_per_host(room_of_domain, shape, max_pods)
        plan = place_batches(fabric, request, batches, room_of_domain, work) if limits else plan
        if plan.refusal is None:
            return plan
    return None


def _limits_of_shapes(
    request: GangRequest,
    batches: Sequence[PodBatch],
    rooms: Sequence[Rows],
    room_of_domain: RoomOf,
    span: tuple[int, int],
    work: Work,
) -> list[tuple[PodShape, Rows]]:
    """Return for each shape an upper limit of pods on each host, so that together all batches fit in the domain.

    [] if no such limits are found, if the gang has a multiple, or for more than MAX_SHAPES_TOGETHER batches. For two
    shapes, limits of the first are enough. For more shapes, at most half of the gang's work goes into such limits, so
    that every domain is tried in the order of shapes. rooms: for each batch, how many pods fit on each host.
    room_of_domain: the room as a function, for hosts of this domain. span: host ids [first, end) of the domain. work:
    is charged for the search.
    """
    shapes, counts = [batch.shape for batch in batches], [batch.pods for batch in batches]
    if request.gang.multiple > 1 or len(batches) > MAX_SHAPES_TOGETHER:
        return []
    if len(batches) == 2:
        share = share_domain(shapes, counts, rooms, room_of_domain, span)
        if share is None:
            return []
        work.spend(8 * (span[1] - span[0]) * min(counts[0], MAX_PODS_PER_HOST))
        return [(shapes[0], share)]
    limits = share_hosts(shapes, counts, room_of_domain, span, work.spend, work.steps_left - work.max_steps // 2)
    return [] if limits is None else list(zip(shapes, limits, strict=True))


def _place_many_shapes_in_one_domain(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Place more than MAX_SHAPES_TOGETHER shapes in one domain.

    None if no domain is found in at most SHAPES_STEPS steps, or if `work` is spent already. Lowers the limit of `work`.
    batches: of the request. room_of: the room that the gang may use.
    """
    if work.steps_left <= 0:
        return None
    work.limit(SHAPES_STEPS)
    return _place_in_one_domain(fabric, request, batches, room_of, work)


def _place_groups_in_one_domain(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan | None:
    """Return a plan without refusal that has all groups in one domain of the lowest possible tier.

    None if no domain holds all groups, or the work is spent. room_of: the room that the gang may use.
    """
    placed_hosts = [host for member, host in request.placed_members if counts_for_tier(member, request.gang)]
    counts = [batch.pods for batch in batches]
    rooms = [room_of(batch.shape, ()) for batch in batches[:MAX_SHAPES_TOGETHER]]
    has_one_shape = len({batch.shape for batch in batches}) == 1
    widest = fabric.tiers if request.gang.tier is None else min(request.gang.tier, fabric.tiers)
    free_sizes = None if request.free_of is None else request.free_of(())
    domains = domains_with_room(fabric, rooms, counts[:MAX_SHAPES_TOGETHER], placed_hosts, widest, free_sizes)
    for first, end in domains:
        if work.steps_left <= 0:
            break
        if has_one_shape and sum(counts) > int(rooms[0][first:end].sum()):
            continue
        room_of_domain = restrict_to_domain(room_of, first, end)
        plan = place_batches(fabric, request, batches, room_of_domain, work)
        if plan.refusal is None:
            return plan
        with_spans = fit_batches(fabric, request, batches, room_of_domain, (first, end))
        if with_spans is not None:
            plan = place_batches(fabric, request, with_spans, room_of_domain, work)
            if plan.refusal is None:
                return plan
    return None


def _place_in_gang_level(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan:
    """Place as many groups as one domain of the gang's own level holds, at least its min; else return a plan with a
    refusal.

    batches: of the request. room_of: the room that the gang may use. work: once it is spent, the best plan so far
    counts.
    """
    gang, placed_hosts = request.gang, [host for _, host in request.placed_members]
    min_pods = max(1, gang.min_pods - (len(gang.living()) - len(request.waiting)))
    rooms = {batch.shape: room_of(batch.shape, ()) for batch in batches[:MAX_SHAPES_TOGETHER]}
    total: NDArray[np.int64] = np.stack(list(rooms.values())).sum(axis=0, dtype=np.int64)
    best: GangPlan | None = None
    for first, end in domains_of_level(fabric, gang.tier or 0, placed_hosts, total, min_pods):
        if best is not None and work.steps_left <= 0:
            break
        plan = place_batches(fabric, request, batches, restrict_to_domain(room_of, first, end), work)
        best = plan if best is None else min(best, plan, key=partial(plan_sort_key, fabric))
    if best is not None and best.hosts:
        return best
    refusal = anchors_refusal(fabric, gang.tier, placed_hosts)
    if refusal is None:
        detail = f"no switch of tier {gang.tier} or below holds the groups that must start together"
        refusal = Refusal(RefusalReason.TIER_TOO_NARROW, detail, int(total.sum()))
    return GangPlan(gang.key, refusal=refusal, used_hosts=tuple(dict.fromkeys(placed_hosts)))


def request_signature(request: GangRequest) -> object:
    """Return a hashable key of everything but the room that decides whether a new gang fits.

    Gangs with equal keys fit the same rooms.
    """
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
    terms = gang.terms
    wishes = gang.tier, gang.multiple, gang.layers, gang.mesh, terms.balanced, gang.fills_holes, terms.group_rules
    labels = None if request.label_domains is None else request.label_domains.levels
    return batches, min_pods, gang.min_by_role, wishes, labels, request.distance_rule
