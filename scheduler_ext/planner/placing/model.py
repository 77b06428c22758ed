"""Define a request to the planner about one gang, the plan that answers it, and which members it is about."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.node_reservations import PodsOnRows
from turnout.topology.cost import cost
from turnout.topology.fabric import Fabric
from turnout.topology.model import DistanceRule, Refusal

RoomOf = Callable[[PodShape, PodsOnRows], Rows]  # room beside some pods: a table of its own


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang, and the known places of its members. Members in `waiting` and `held` are judged ones only."""

    gang: Gang
    waiting: tuple[Member, ...]  # members to place, in rank order
    placed_members: tuple[tuple[Member, int], ...] = ()  # (member, host) that hold a host
    # uid -> host where our nominator already sent a waiting member; kept while the host has room
    nominated_hosts: Mapping[str, int] = field(default_factory=dict)
    missing_pods: int = 0  # members not created yet that the min needs
    growth_pods: int = 0  # members not created yet above the min; seated only where all of them fit
    lost_pods: int = 0  # members that are gone and that the min needs: room for them must be there, and none is kept
    distance_rule: DistanceRule = DistanceRule.ALL_TIERS
    # shape -> marks of the rows that another filter of the scheduler refuses
    rejected_rows: Mapping[PodShape, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    # shape -> how gladly its pods go to each row; shapes to whom all are alike are absent
    preferences: Mapping[PodShape, Rows] = field(default_factory=dict, compare=False)
    # marks of rows in domains of gangs from which it stays away
    excluded_rows: NDArray[np.bool_] | None = field(default=None, compare=False)
    # rule of a group, None for the whole gang -> marks of rows in no domain of a level that it must keep to
    rows_outside_level: Mapping[int | None, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    spread_evenly: bool = True  # spread constraints count: no host gets more than they allow while another is empty


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
    open_seats: tuple[Seat, ...] = ()  # the seats of members still to be created
    used_hosts: tuple[int, ...] = ()  # the hosts of the plan; hosts of members that hold one come first
    tier: int = 0
    # why no member, or not every member, has a place; members above the min may be left over
    refusal: Refusal | None = None
    shapes: Mapping[str, PodShape] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)  # uid -> rank, of the members in hosts
    bases: Mapping[str, int] = field(default_factory=dict)  # role -> the rank of its index 0

    def reserved_pods(self) -> list[tuple[int, PodShape]]:
        """Return one (host id, shape) for each pod that the plan keeps room for."""
        return [(host, self.shapes[uid]) for uid, host in self.hosts.items()] + [
            (s.host, s.shape) for s in self.open_seats
        ]


def drop_seats(plan: GangPlan, lost: Container[str | int]) -> GangPlan:
    """Return a plan without some seats: those of members, named by uid, and those of members to come, named by rank."""
    left = {uid: host for uid, host in plan.hosts.items() if uid not in lost}
    return replace(
        plan,
        hosts=left,
        open_seats=tuple(seat for seat in plan.open_seats if seat.rank not in lost),
        shapes={uid: plan.shapes[uid] for uid in left},
        ranks={uid: plan.ranks[uid] for uid in left},
    )


def plan_sort_key(fabric: Fabric, plan: GangPlan) -> tuple[bool, int, int]:
    """Return the sort key of a gang's plans, the best first: whole, with most members, on the fewest switches."""
    used = cost(fabric, list(plan.hosts.values())).switches
    return plan.refusal is not None, -len(plan.hosts), sum(used)


def is_planned(member: Member, gang: Gang) -> bool:
    """True if the plan of its gang says where this member goes.

    In a gang with accelerators, a member without one is judged only if it, or the gang, must have its place.
    """
    return _is_planned(member, gang.has_accelerators, gang.places_all_members, gang.has_any_level)


def planned_members(gang: Gang) -> list[Member]:
    """Return the members whose place the plan decides, members being deleted included."""
    accelerated, binds, has_level = gang.has_accelerators, gang.places_all_members, gang.has_any_level
    return [m for m in gang.members.values() if _is_planned(m, accelerated, binds, has_level)]


def _is_planned(member: Member, accelerated: bool, binds_all: bool, held_to_level: bool) -> bool:
    if member.no_opinion_reason == "LeftAlone" and not held_to_level:
        return False
    if member.no_opinion_reason not in ("", "LeftAlone"):
        return member.no_opinion_reason == "NoGpu" and accelerated and binds_all
    return bool(member.gpus or member.membership.wish.source) or not accelerated or binds_all


def counts_for_tier(member: Member, gang: Gang) -> bool:
    """True if the gang's tier counts from this member's host: not for one without a GPU in a gang that has some.

    A scheduler may ask us about pods with GPUs alone, so that such a member may be anywhere.
    """
    return bool(member.gpus) or not gang.has_accelerators
