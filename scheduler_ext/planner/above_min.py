"""Check the seats that a plan has above its gang's minimum against what other gangs need for theirs."""

from __future__ import annotations

from dataclasses import replace

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.claims import GangPosition, order_seats
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.placing.model import GangPlan, GangRequest, drop_seats
from turnout.scheduler_ext.planner.reservations import StandingPlans
from turnout.scheduler_ext.planner.work import Work
from turnout.topology.fabric import Fabric


def replace_lost_seats(
    fabric: Fabric,
    standing_plans: StandingPlans,
    request: GangRequest,
    plan: GangPlan,
    position: GangPosition,
    work: Work,
) -> GangPlan:
    """Take back seats above the min where others go first, and seat those members elsewhere.

    The plan was made for the whole gang, as if every seat had the rank of the gang's min. work: the steps spent on
    that.
    """
    lost = _lost_seats(standing_plans, request, plan, position)
    if not lost:
        return plan
    remaining = drop_seats(plan, lost)
    homeless = tuple(member for member in request.waiting if member.uid in lost)
    if not homeless:
        return remaining
    placed_members = (
        *request.placed_members,
        *((m, remaining.hosts[m.uid]) for m in request.waiting if m.uid in remaining.hosts),
    )
    lost_request = replace(
        request, waiting=homeless, placed_members=placed_members, nominated_hosts={}, missing_pods=0, growth_pods=0
    )
    second_plan = place(
        fabric,
        lost_request,
        standing_plans.room_beside_plans(
            standing_plans.pods_behind(position.last_order), extra_pods=remaining.reserved_pods()
        ),
        work,
    )
    return replace(
        remaining,
        hosts={**remaining.hosts, **second_plan.hosts},
        refusal=second_plan.refusal or remaining.refusal,
        shapes={**remaining.shapes, **second_plan.shapes},
        ranks={**remaining.ranks, **second_plan.ranks},
    )


def _lost_seats(
    standing_plans: StandingPlans, request: GangRequest, plan: GangPlan, position: GangPosition
) -> set[str | int]:
    """Return the seats for which others go first: uids of members, and ranks of seats for members to come."""
    seats = order_seats(request.gang, plan, position)
    certain_pods = [(seat.host, seat.shape) for seat in seats if seat.order == position.first_order]
    lost: set[str | int] = set()
    for order in sorted({seat.order for seat in seats if seat.order != position.first_order}):
        room_of = standing_plans.room_beside_plans(standing_plans.pods_behind(order), extra_pods=tuple(certain_pods))
        rooms: dict[PodShape, Rows] = {}
        for seat in (seat for seat in seats if seat.order == order):
            room = rooms[seat.shape] if seat.shape in rooms else room_of(seat.shape, ())
            rooms[seat.shape] = room
            if room[seat.host] > 0:
                room[seat.host] -= 1
                certain_pods.append((seat.host, seat.shape))
            else:
                lost.add(seat.uid or seat.rank)
    return lost
