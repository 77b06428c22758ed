"""The planner's request for one gang, the plan that answers it, and which members a plan decides on."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.jobs.repair import Remedy
from turnout.jobs.wishes.model import Level
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup, rank_order
from turnout.scheduler_ext.cluster.member import Member
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.topology.distance import cost
from turnout.topology.fabric import Fabric
from turnout.topology.model import DistanceRule, Refusal

PodsOnRows = Sequence[tuple[int, PodShape]]  # (row, shape), one entry a pod


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


@dataclass(frozen=True, slots=True)
class PodBatch:
    """The waiting members of one shape, and of one group where the gang has groups."""

    shape: PodShape
    members: tuple[Member, ...]
    missing_pods: int  # members that do not exist yet; counted with the heaviest shape
    gang_group: GangGroup | None = None
    ranks_a_pod: int = 1  # the accelerators of one pod, at least 1
    span: tuple[int, int] | None = None  # the host ids [first, end) of its switch; None for any

    @property
    def pods(self) -> int:
        """The number of pods that are to be placed."""
        return len(self.members) + self.missing_pods

    @property
    def is_whole(self) -> bool:
        """True if its group is placed whole or not at all."""
        return self.gang_group is not None and self.gang_group.all_or_nothing


def count_missing(view: ClusterView, gang: Gang, max_growth: int) -> tuple[int, int]:
    """Return how many members are not created yet: those that its min needs, and those above it if not too many."""
    missing = 0 if gang.group_rules else view.missing_pods(gang)
    needed = min(missing, max(0, gang.min_pods - len(gang.living())))
    return needed, missing - needed if missing - needed <= max_growth else 0


def count_lost(view: ClusterView, gang: Gang, needed: int) -> int:
    """Return how many members are gone that the min needs, of a gang that is to be moved or given up then.

    Such a gang takes no place in which it cannot get whole: while what is left of it is evicted, and once that is gone,
    those that come anew would go back beside those that still run, or start as a part. One that never ran has lost
    nobody. needed: members that are still to be created.
    """
    runs = gang.started_s is not None or any(view.host_of(member) is not None for member in gang.living())
    if gang.repair.remedy is Remedy.WAIT or not runs:
        return 0
    return max(0, gang.min_pods - len(gang.living()) - needed)


def build_request(view: ClusterView, gang: Gang, without: Container[str]) -> GangRequest:
    """Return the request without members to come. without: uids of members whose place is ignored."""
    waiting: list[Member] = []
    placed_members: list[tuple[Member, int]] = []
    nominated: dict[str, int] = {}
    for member in planned_members(gang):
        if member.terminating:
            continue
        host = None if member.uid in without else view.host_of(member)
        if host is not None:
            placed_members.append((member, host))
            continue
        if not member.is_waiting:
            continue
        waiting.append(member)
        if (node := view.our_nomination(member)) and member.uid not in without:
            row = view.snapshot.row_of.get(node)
            if row is not None:
                nominated[member.uid] = row
    waiting.sort(key=rank_order)
    placed_members.sort(key=lambda each: rank_order(each[0]))
    prefer = {member.shape: view.preferences.of(member) for member in reversed(waiting)}
    liking = {shape: rows for shape, rows in prefer.items() if rows is not None}
    return GangRequest(
        gang,
        tuple(waiting),
        tuple(placed_members),
        nominated,
        preferences=liking,
        rows_outside_level=_rows_outside_levels(view, gang),
    )


def _rows_outside_levels(view: ClusterView, gang: Gang) -> dict[int | None, NDArray[np.bool_]]:
    """Mark the rows in no domain of the levels that the gang must keep to, and of those that its groups must."""
    levels: dict[int | None, tuple[Level, ...]] = {None: gang.levels}
    levels |= {at: (rule.level,) for at, rule in enumerate(gang.group_rules) if rule.level is not None}
    found = ((rule, view.levels.rows_outside(theirs)) for rule, theirs in levels.items())
    return {rule: marks for rule, marks in found if marks is not None}


def exclusive_rows(
    view: ClusterView, gang: Gang, planned: Callable[[GangKey], Iterable[int]]
) -> NDArray[np.bool_] | None:
    """Mark the rows of domains that the gang may not use; None where it shares domains.

    planned: the hosts in the plan of a gang that goes before this one. Sets are bounded by their namespace.
    """
    tier = gang.exclusive_tier
    if tier is None:
        return None
    fabric, excluded = view.fabric, np.zeros(view.fabric.switch_of.shape[1], np.bool_)
    used_switches: dict[int, set[int]] = {}  # switches by tier
    for key, other in view.gangs.items():
        if key.namespace != gang.key.namespace or key == gang.key or other.exclusive_set != gang.exclusive_set:
            continue
        if other.exclusive_tier is None:
            continue
        wider = min(
            max(tier, other.exclusive_tier), fabric.tiers
        )  # neither may share a domain of its own tier with the other
        member_hosts = (view.host_of(member) for member in other.members.values())
        hosts = (host for host in (*member_hosts, *planned(key)) if host is not None)
        used_switches.setdefault(wider, set()).update(int(fabric.switch_of[wider][host]) for host in hosts)
    for wider, switches in used_switches.items():
        excluded |= np.isin(fabric.switch_of[wider], list(switches))
    return excluded


def union_rows(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Mark the rows that one of two tables marks; None marks none."""
    if one is None or other is None:
        return other if one is None else one
    both: NDArray[np.bool_] = one | other
    return both


def limit_by_spread(request: GangRequest, group: PodBatch, anchors: Sequence[int], room: Rows) -> Rows:
    """Return the room that hard spread constraints by host leave beside the gang's own members."""
    most = min((m.max_per_host for m in group.members if m.max_per_host), default=0)
    if not most or not request.spread_evenly:
        return room
    room = np.minimum(room, most)
    for host in anchors:
        room[host] = max(0, room[host] - 1)
    return room


def exclude_rows(
    room_of: RoomOf, rejected_rows: Mapping[PodShape, NDArray[np.bool_]], *excluded_rows: NDArray[np.bool_] | None
) -> RoomOf:
    """Return the room without rows that a filter refuses to a shape, or that are barred to the whole gang."""

    def room_without(shape: PodShape, besides: PodsOnRows) -> Rows:
        room = room_of(shape, besides)
        for marks in (rejected_rows.get(shape), *excluded_rows):
            if marks is not None:
                room[marks] = 0
        return room

    return room_without


def restrict_to_domain(room_of: RoomOf, first: int, end: int) -> RoomOf:
    def inside(shape: PodShape, besides: PodsOnRows) -> Rows:
        room = np.zeros_like(all_room := room_of(shape, besides))
        room[first:end] = all_room[first:end]
        return room

    return inside


def limit_per_host(room_of: RoomOf, shape: PodShape, most: Rows) -> RoomOf:
    """Return a room in which each host takes at most so many pods of a shape."""

    def at_most(other: PodShape, besides: PodsOnRows) -> Rows:
        room = room_of(other, besides)
        return np.minimum(room, most) if other == shape else room

    return at_most
