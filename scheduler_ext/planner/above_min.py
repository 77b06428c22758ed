"""Check the seats that a plan has above its gang's minimum against what other gangs need for theirs."""

from __future__ import annotations

from dataclasses import replace

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.claims import Standing, claims_of
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.placing.model import GangPlan, Request, without_seats
from turnout.scheduler_ext.planner.reservations import Reservations
from turnout.scheduler_ext.planner.work import Work
from turnout.topology.fabric import Fabric


def beside_others(
    fabric: Fabric, kept: Reservations, request: Request, plan: GangPlan, at: Standing, work: Work
) -> GangPlan:
    """Take back seats above the min where others go first, and seat those members elsewhere.

    The plan was made for the whole gang, as if every seat had the rank of the gang's min. work: the steps spent on
    that.
    """
    lost = _lost(kept, request, plan, at)
    if not lost:
        return plan
    rest = without_seats(plan, lost)
    homeless = tuple(member for member in request.waiting if member.uid in lost)
    if not homeless:
        return rest
    held = (*request.held, *((m, rest.hosts[m.uid]) for m in request.waiting if m.uid in rest.hosts))
    theirs = replace(request, waiting=homeless, held=held, wished={}, missing=0, hoped=0)
    again = place(fabric, theirs, kept.room(kept.open_to(at.last), beside=rest.takes()), work)
    return replace(
        rest,
        hosts={**rest.hosts, **again.hosts},
        refusal=again.refusal or rest.refusal,
        shapes={**rest.shapes, **again.shapes},
        ranks={**rest.ranks, **again.ranks},
    )


def _lost(kept: Reservations, request: Request, plan: GangPlan, at: Standing) -> set[str | int]:
    """Return the seats for which others go first: uids of members, and ranks of seats for members to come."""
    claims = claims_of(request.gang, plan, at)
    sure = [(claim.host, claim.shape) for claim in claims if claim.order == at.order]
    lost: set[str | int] = set()
    for order in sorted({claim.order for claim in claims if claim.order != at.order}):
        room_of = kept.room(kept.open_to(order), beside=tuple(sure))
        rooms: dict[PodShape, Rows] = {}
        for claim in (claim for claim in claims if claim.order == order):
            room = rooms[claim.shape] if claim.shape in rooms else room_of(claim.shape, ())
            rooms[claim.shape] = room
            if room[claim.host] > 0:
                room[claim.host] -= 1
                sure.append((claim.host, claim.shape))
            else:
                lost.add(claim.uid or claim.rank)
    return lost
