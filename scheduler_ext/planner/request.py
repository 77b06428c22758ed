"""The planner's request for one gang, the plan that answers it, and which members a plan decides on."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey, Remedy
from turnout.jobs.wishes.model import Level
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup, rank_order
from turnout.scheduler_ext.cluster.levels import LabelDomains
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.topology.fabric import Fabric, ring_cost
from turnout.topology.model import DistanceRule, Refusal

PodsOnRows = Sequence[tuple[int, PodShape]]  # (row, shape), one entry a pod


RoomOf = Callable[[PodShape, PodsOnRows], Rows]  # pods that each row holds beside some pods, as a new table
Merits = tuple[NDArray[np.signedinteger], ...]  # as the field of an Ask
FreeOf = Callable[[PodsOnRows], NDArray[np.int64]]  # how much each row has free beside some pods, in one number


class HardTerm(StrEnum):
    """A term that no plan gives up. Log, metric, refusal and test use the same word."""

    CAPACITY = "capacity"  # no resource of a node is taken twice
    MIN_PODS = "min_pods"  # as many as must start together have a place
    MIN_BY_ROLE = "min_by_role"  # and as many of each role
    LEVEL = "level"  # all members are under one switch of the gang's level
    GROUP_LEVEL = "group_level"  # all members of a group are under one switch of the group's level
    GROUP_EXCLUSIVE = "group_exclusive"  # an exclusive group shares its switch with no other group
    GROUP_WHOLE = "group_whole"  # a group that starts whole has a place for all of its waiting members
    SLICE = "slice"  # each run of ranks is under one switch
    MULTIPLE = "multiple"  # the pods of one host come in multiples
    BARRED_HOST = "barred_host"  # no host that is reserved against the gang, or that a filter or a level rules out


class SoftTerm(StrEnum):
    """A term that a plan gives up where it cannot be kept. `steps.py` says in which order."""

    GROWTH_SEATS = "growth_seats"  # seats for members above the min that are not created yet
    CPU_ANCHORS = "cpu_anchors"  # nearness to members without accelerators that hold a host
    NEIGHBOURS = "neighbours"  # the leaf of the neighbours in the ring or mesh
    NOMINATIONS = "nominations"  # the hosts for which members are nominated, or which the last plan gave them
    # at most as many pods on a host as a hard spread constraint allows while another host has none; the scheduler's
    # own filter decides about more
    EVEN_SPREAD = "even_spread"


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang and the known places of its members. Only planned members are in `waiting` and `placed_members`."""

    gang: Gang
    waiting: tuple[GangMember, ...]  # members to place, in rank order
    placed_members: tuple[tuple[GangMember, int], ...] = ()  # (member, host) of members that hold a host
    # uid -> host for which our nominator nominated a waiting member; kept while the host has room
    nominated_hosts: Mapping[str, int] = field(default_factory=dict)
    missing_pods: int = 0  # members not created yet that the min needs
    growth_pods: int = 0  # members not created yet above the min; seated only where all of them fit
    lost_pods: int = 0  # deleted members that the min needs: room for them must exist, but none is reserved
    distance_rule: DistanceRule = DistanceRule.ALL_TIERS
    # shape -> marks of the rows that another filter of the scheduler refuses
    rejected_rows: Mapping[PodShape, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    # shape -> score of each row by soft preferences; shapes without preferences are absent
    preferences: Mapping[PodShape, Rows] = field(default_factory=dict, compare=False)
    # decides among equally good rows: those with less free come first; None where nothing is known beside the room
    free_of: FreeOf | None = field(default=None, compare=False, repr=False)
    # marks of rows that the gang must not use
    excluded_rows: NDArray[np.bool_] | None = field(default=None, compare=False)
    # index of a group rule, None for the whole gang -> marks of rows in no domain of the required level
    rows_outside_level: Mapping[int | None, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    # domains of levels that only node labels know; tried where no switch of the gang's tier holds the gang
    label_domains: LabelDomains | None = field(default=None, compare=False)
    spread_evenly: bool = True  # spread constraints count: no host gets more than they allow while another is empty
    beside_neighbours: bool = True  # members go under the leaf of their neighbours in the ring or mesh, if it has room

    def merits_of(self, shape: PodShape, besides: PodsOnRows) -> Merits:
        """Return the tables that decide among equally good rows: what the pods of a shape like, then the tightest fit.

        besides: pods of the gang that have a place already.
        """
        liking = self.preferences.get(shape)
        likings = () if liking is None else (liking,)
        return likings if self.free_of is None else (*likings, -self.free_of(besides))


@dataclass(frozen=True, slots=True)
class Seat:
    """A place reserved for a member that does not exist yet."""

    host: int
    shape: PodShape
    rank: int  # the number of the member that fits this place best in the ring


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The plan of one gang."""

    key: GangKey
    hosts: Mapping[str, int] = field(default_factory=dict)  # uid -> host id of waiting members that have a place
    open_seats: tuple[Seat, ...] = ()  # the seats of members still to be created
    used_hosts: tuple[int, ...] = ()  # the hosts of the plan; hosts of placed members come first
    tier: int = 0
    # why no member, or not every member, has a place; members above the min may have no place
    refusal: Refusal | None = None
    shapes: Mapping[str, PodShape] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)  # uid -> rank, of the members in hosts
    bases: Mapping[str, int] = field(default_factory=dict)  # role -> the rank of its index 0
    broken_terms: tuple[HardTerm, ...] = ()  # hard terms that the refused plan broke; a fault of the planner
    released_terms: tuple[SoftTerm, ...] = ()  # soft terms that were given up, in order

    def reserved_pods(self) -> list[tuple[int, PodShape]]:
        """Return one (host id, shape) for each pod for which the plan reserves room."""
        return [(host, self.shapes[uid]) for uid, host in self.hosts.items()] + [
            (s.host, s.shape) for s in self.open_seats
        ]


def drop_seats(plan: GangPlan, lost: Container[str | int]) -> GangPlan:
    """Return a plan without some seats: lost holds uids of members, and ranks of open seats."""
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
    used = ring_cost(fabric, list(plan.hosts.values())).switches
    return plan.refusal is not None, -len(plan.hosts), sum(used)


def is_planned(member: GangMember, gang: Gang) -> bool:
    """Return True if the plan of its gang states where this member goes.

    In a gang with accelerators, a member without one is planned only if it has a wish or the gang has a required level.
    """
    return _is_planned(member, gang.has_accelerators, gang.places_all_members, gang.has_any_level)


def planned_members(gang: Gang) -> list[GangMember]:
    """Return the members whose place the plan decides, including members that are being deleted."""
    accelerated, binds, has_level = gang.has_accelerators, gang.places_all_members, gang.has_any_level
    return [m for m in gang.members.values() if _is_planned(m, accelerated, binds, has_level)]


def _is_planned(member: GangMember, accelerated: bool, binds_all: bool, held_to_level: bool) -> bool:
    """Return True if a member's place is planned here.

    accelerated: the gang uses GPUs. binds_all: all of its members must be placed together. held_to_level: a required
    topology level applies to it.
    """
    if member.no_opinion_reason == "LeftAlone" and not held_to_level:
        return False
    if member.no_opinion_reason not in ("", "LeftAlone"):
        return member.no_opinion_reason == "NoGpu" and accelerated and binds_all
    return bool(member.gpus or member.membership.wish.source) or not accelerated or binds_all


def counts_for_tier(member: GangMember, gang: Gang) -> bool:
    """Return True if the gang's tier includes this member's host: not if only other members have GPUs.

    A scheduler may ask us only about pods with GPUs, so other members may run anywhere.
    """
    return bool(member.gpus) or not gang.has_accelerators


@dataclass(frozen=True, slots=True)
class PodBatch:
    """The waiting members of one shape, and of one group where the gang has groups."""

    shape: PodShape
    members: tuple[GangMember, ...]
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
    """Return how many members do not exist yet: the members that the min needs, and those above the min if not too
    many.
    """
    missing = 0 if gang.group_rules else view.missing_pods(gang)
    needed = min(missing, max(0, gang.min_pods - len(gang.living())))
    return needed, missing - needed if missing - needed <= max_growth else 0


def count_lost(view: ClusterView, gang: Gang, needed: int) -> int:
    """Return how many deleted members the min needs, of a gang that is moved or given up if its min is lost.

    Such a gang takes no place in which it cannot reach its min. Otherwise new members would return to the places of the
    members that are evicted, or the gang would start as a part. A gang that never ran has lost no member. needed:
    members that do not exist yet.
    """
    runs = gang.started_s is not None or any(view.host_of(member) is not None for member in gang.living())
    if gang.repair.remedy is Remedy.WAIT or not runs:
        return 0
    return max(0, gang.min_pods - len(gang.living()) - needed)


def build_request(view: ClusterView, gang: Gang, without: Container[str]) -> GangRequest:
    """Return the request without members that do not exist yet. without: uids of members whose place is ignored."""
    waiting: list[GangMember] = []
    placed_members: list[tuple[GangMember, int]] = []
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
        label_domains=view.levels.label_domains(gang.required_levels),
    )


def _rows_outside_levels(view: ClusterView, gang: Gang) -> dict[int | None, NDArray[np.bool_]]:
    """Mark the rows in no domain of the levels that the gang requires, and of the levels that its groups require."""
    levels: dict[int | None, tuple[Level, ...]] = {None: gang.levels}
    levels |= {at: (rule.level,) for at, rule in enumerate(gang.group_rules) if rule.level is not None}
    found = ((rule, view.levels.rows_outside(theirs)) for rule, theirs in levels.items())
    return {rule: marks for rule, marks in found if marks is not None}


def exclusive_rows(
    view: ClusterView, gang: Gang, planned: Callable[[GangKey], Iterable[int]]
) -> NDArray[np.bool_] | None:
    """Mark the rows of domains that the gang may not use; None if it shares domains.

    planned: the hosts in the plan of a gang that comes before this gang. A set is within one namespace.
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
    """Return the room that hard spread constraints by host leave beside the gang's placed members."""
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
    """Return the room without the rows that a filter rejects for a shape, or that the whole gang must not use."""

    def room_without(shape: PodShape, besides: PodsOnRows) -> Rows:
        """Return the room of each row for a shape, with 0 on rejected and excluded rows.

        besides: pods counted as present.
        """
        room = room_of(shape, besides)
        for marks in (rejected_rows.get(shape), *excluded_rows):
            if marks is not None:
                room[marks] = 0
        return room

    return room_without


def restrict_to_domain(room_of: RoomOf, first: int, end: int) -> RoomOf:
    """Return the room of the hosts [first, end) only."""

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
