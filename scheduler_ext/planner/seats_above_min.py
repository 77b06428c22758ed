"""Place a gang beside the standing plans, and move members above its min to other seats if other gangs have priority.

A plan is made as if every seat had the place of the gang's min in the order. Seats above the min come after the min of
all other gangs, so some of them may have to go elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.batches import Work
from turnout.scheduler_ext.planner.order import GangPosition, order_seats
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.request import AbsentMembers, GangPlan, GangRequest, PodsOnRows, drop_seats
from turnout.scheduler_ext.planner.reserved_room import StandingPlans, free_beside_plans, room_beside_plans
from turnout.scheduler_ext.planner.seat_units import seat_units
from turnout.topology.fabric import Fabric


def place_beside_plans(
    fabric: Fabric,
    standing_plans: StandingPlans,
    request: GangRequest,
    work: Work,
    without: PodsOnRows,
    rows: Sequence[int] | None = None,
    extra_pods: PodsOnRows = (),
) -> GangPlan:
    """Place a gang in the room beside the standing plans, and return its plan, which is not stored.

    without: reserved pods whose room may be used. rows: the only rows to use; None for all. extra_pods: pods that count
    as placed. work: counts the steps, and limits them. standing_plans: are not changed.
    """
    request = replace(request, free_of=free_beside_plans(standing_plans.room, without, extra_pods))
    return place(fabric, request, room_beside_plans(standing_plans.room, without, rows, extra_pods), work)


def replace_lost_seats(
    fabric: Fabric,
    standing_plans: StandingPlans,
    request: GangRequest,
    plan: GangPlan,
    position: GangPosition,
    work: Work,
) -> GangPlan:
    """Return the plan without those seats above the min whose room is needed by gangs that come before such seats.

    The members that had them get other seats; a member for which none is found has no place, and an open seat is
    dropped. The plan itself is returned if no seat is lost. It was made as if every seat had the place of the gang's
    min in the order. position: the gang's place. work: counts the steps.
    """
    lost = _lost_seats(standing_plans, request, plan, position)
    if not lost:
        return plan
    remaining = drop_seats(plan, lost)
    waiting = tuple(member for member in request.waiting if member.uid in lost)
    if not waiting:
        return remaining
    seated = [(m, remaining.hosts[m.uid]) for m in request.waiting if m.uid in remaining.hosts]
    lost_request = replace(
        request,
        waiting=waiting,
        placed_members=(*request.placed_members, *seated),
        nominated_hosts={},
        absent=AbsentMembers(lost=request.absent.lost),
    )
    behind = standing_plans.pods_behind(position.last_key)
    extra_pods = remaining.reserved_pods()
    second_plan = place_beside_plans(fabric, standing_plans, lost_request, work, behind, extra_pods=extra_pods)
    return replace(
        remaining,
        broken_terms=second_plan.broken_terms,
        hosts={**remaining.hosts, **second_plan.hosts},
        refusal=second_plan.refusal or remaining.refusal,
        shapes={**remaining.shapes, **second_plan.shapes},
        ranks={**remaining.ranks, **second_plan.ranks},
    )


def _lost_seats(
    standing_plans: StandingPlans, request: GangRequest, plan: GangPlan, position: GangPosition
) -> set[str | int]:
    """Return the seats above the min for which other gangs go first: uids of members, and ranks of open seats.

    Other seats of their units are included, but no seat of the min.
    """
    seats = order_seats(request.gang, plan, position, request.placed_members)
    certain_pods = [(seat.host, seat.shape) for seat in seats if seat.order == position.first_needed_key]
    lost: set[str | int] = set()
    for order in sorted({seat.order for seat in seats if seat.order != position.first_needed_key}):
        behind = standing_plans.pods_behind(order)
        room_of = room_beside_plans(standing_plans.room, behind, extra_pods=tuple(certain_pods))
        rooms: dict[PodShape, Rows] = {}
        for seat in (seat for seat in seats if seat.order == order):
            room = rooms[seat.shape] if seat.shape in rooms else room_of(seat.shape, ())
            rooms[seat.shape] = room
            if room[seat.host] > 0:
                room[seat.host] -= 1
                certain_pods.append((seat.host, seat.shape))
            else:
                lost.add(seat.uid or seat.rank)
    if not lost:
        return lost
    needed = {seat.uid or seat.rank for seat in seats if seat.order == position.first_needed_key}
    return seat_units(request.gang, plan, request.placed_members).with_partners(lost) - needed
