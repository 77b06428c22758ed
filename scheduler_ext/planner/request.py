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
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup, rank_sort_key
from turnout.scheduler_ext.cluster.levels import LabelDomains
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.topology.fabric import Fabric, ring_cost
from turnout.topology.model import DistanceRule, Refusal

PodsOnRows = Sequence[tuple[int, PodShape]]  # (row, shape), one entry a pod

# Returns how many pods of a shape fit on each row when the given pods are there too. The result is a new array.
RoomOf = Callable[[PodShape, PodsOnRows], Rows]
# Arrays by row that decide between equally good rows: `PlacementRequest.host_preferences` of topology/model.py.
HostPreferences = tuple[NDArray[np.signedinteger], ...]
# Returns the free room of each row as one number when the given pods are there too.
FreeOf = Callable[[PodsOnRows], NDArray[np.int64]]


class HardTerm(StrEnum):
    """A term that no plan gives up. Log, metric, refusal and test use the same word."""

    CAPACITY = "capacity"  # no node is used beyond its capacity
    MIN_PODS = "min_pods"  # as many as must start together have a place
    MIN_BY_ROLE = "min_by_role"  # each role has a place for its own min
    LEVEL = "level"  # all members are under one switch of the gang's level
    GROUP_LEVEL = "group_level"  # all members of a group are under one switch of the group's level
    GROUP_EXCLUSIVE = "group_exclusive"  # an exclusive group shares its switch with no other group
    GROUP_WHOLE = "group_whole"  # an all-or-nothing group has a place for every waiting member, or for none
    RUN_OF_RANKS = "slice"  # each run of ranks (Kueue: podset slice) is under one switch
    MULTIPLE = "multiple"  # pods on a host come in multiples; the remainder of all pods may be on one host
    # no member is on a host that is reserved for others, rejected by a filter, or outside the level
    BARRED_HOST = "barred_host"


PLANNING_FAILED = "planning_failed"  # counted beside the hard terms: the planner raised an exception for a gang


class SoftTerm(StrEnum):
    """A term that a plan gives up if it cannot be kept. `place_gang.py` states the order."""

    GROWTH_SEATS = "growth_seats"  # seats for members above the min that are not created yet
    CPU_ANCHORS = "cpu_anchors"  # the plan is near placed members without accelerators
    NEIGHBOURS = "neighbours"  # members are under the leaf of their neighbours in the ring or mesh
    NOMINATIONS = "nominations"  # members keep the nominated host, or the host of the last plan
    # hard spread constraints are respected while a host is empty; the scheduler's own filter decides on further pods
    EVEN_SPREAD = "even_spread"


@dataclass(frozen=True, slots=True)
class AbsentMembers:
    """How many members of a gang do not exist, and why a plan considers them."""

    missing: int = 0  # members that the min needs and that do not exist yet
    growth: int = 0  # members above the min that do not exist yet; they get seats only if all of them fit
    lost: int = 0  # deleted members that the min needs: their room must exist, but it is not reserved


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang and the known places of its members. Only planned members are in `waiting` and `placed_members`."""

    gang: Gang
    waiting: tuple[GangMember, ...]  # members to place, in rank order
    placed_members: tuple[tuple[GangMember, int], ...] = ()  # (member, host) of members that hold a host
    # uid -> host for which our nominator nominated a waiting member; kept while the host has room
    nominated_hosts: Mapping[str, int] = field(default_factory=dict)
    absent: AbsentMembers = AbsentMembers()  # members that do not exist
    distance_rule: DistanceRule = DistanceRule.ALL_TIERS
    # shape -> marks of the rows that another filter of the scheduler refuses
    rejected_rows: Mapping[PodShape, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    # shape -> score of each row by soft preferences; shapes without preferences are absent
    preferences: Mapping[PodShape, Rows] = field(default_factory=dict, compare=False)
    # of equally good rows the one with the least free room comes first; None if only the room in pods is known
    free_of: FreeOf | None = field(default=None, compare=False, repr=False)
    # marks of rows that the gang must not use
    excluded_rows: NDArray[np.bool_] | None = field(default=None, compare=False)
    # index of a group rule, None for the whole gang -> marks of rows in no domain of the required level
    rows_outside_level: Mapping[int | None, NDArray[np.bool_]] = field(default_factory=dict, compare=False)
    # domains of levels that only node labels define; tried if no switch of the gang's tier holds the gang
    label_domains: LabelDomains | None = field(default=None, compare=False)
    spread_evenly: bool = True  # False: hard spread constraints are not considered
    beside_neighbours: bool = True  # False: members need not be under the leaf of their neighbours

    def host_preferences_of(self, shape: PodShape, present_pods: PodsOnRows) -> HostPreferences:
        """Return the arrays by row that decide between equally good rows: preferences of the shape, then the tightest
        fit. A larger value is better.

        present_pods: pods of the gang that have a place already. () if there are neither preferences nor a measure of
        free room.
        """
        preference = self.preferences.get(shape)
        preferences = () if preference is None else (preference,)
        return preferences if self.free_of is None else (*preferences, -self.free_of(present_pods))


@dataclass(frozen=True, slots=True)
class Seat:
    """A place reserved for a member that does not exist yet."""

    host: int  # id of the host
    shape: PodShape
    rank: int  # the ring rank of the member that the seat is planned for


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The hosts that the members of a gang are to get, and the seats for members that do not exist yet; or why too few
    have a place.
    """

    key: GangKey
    hosts: Mapping[str, int] = field(default_factory=dict)  # uid -> host id of waiting members that have a place
    open_seats: tuple[Seat, ...] = ()  # the seats of members still to be created
    used_hosts: tuple[int, ...] = ()  # distinct hosts of placed and planned members, of the placed members first
    tier: int = 0  # the lowest tier whose switch holds all members; 0 for one host
    # why no member, or not every member, has a place; members above the min may have no place
    refusal: Refusal | None = None
    shapes: Mapping[str, PodShape] = field(default_factory=dict)  # uid -> shape, of the members in hosts
    ranks: Mapping[str, int] = field(default_factory=dict)  # uid -> rank, of the members in hosts
    bases: Mapping[str, int] = field(default_factory=dict)  # role -> the rank of its index 0
    # Hard terms that the plan broke, a fault of the planner; it is then refused.
    broken_terms: tuple[HardTerm, ...] = ()
    released_terms: tuple[SoftTerm, ...] = ()  # soft terms that were given up, in order

    def reserved_pods(self) -> list[tuple[int, PodShape]]:
        """Return one (host id, shape) for each pod for which the plan reserves room."""
        return [(host, self.shapes[uid]) for uid, host in self.hosts.items()] + [
            (s.host, s.shape) for s in self.open_seats
        ]


def drop_seats(plan: GangPlan, lost: Container[str | int]) -> GangPlan:
    """Return a plan without some seats.

    lost: uids of members, and ranks of open seats; others are ignored. `used_hosts`, `tier`, `bases` and the refusal
    stay as they were.
    """
    remaining_hosts = {uid: host for uid, host in plan.hosts.items() if uid not in lost}
    return replace(
        plan,
        hosts=remaining_hosts,
        open_seats=tuple(seat for seat in plan.open_seats if seat.rank not in lost),
        shapes={uid: plan.shapes[uid] for uid in remaining_hosts},
        ranks={uid: plan.ranks[uid] for uid in remaining_hosts},
    )


def plan_sort_key(fabric: Fabric, plan: GangPlan) -> tuple[bool, int, int]:
    """Return a sort key by which the best plan of a gang is the smallest: no refusal before a refusal, then more
    members with a host, then fewer switches, summed over all tiers.
    """
    used = ring_cost(fabric, list(plan.hosts.values())).switches
    return plan.refusal is not None, -len(plan.hosts), sum(used)


def is_planned(member: GangMember, gang: Gang) -> bool:
    """Return True if the plan of its gang decides where this member goes.

    In a gang with accelerators, a member without an accelerator is planned only if it has a wish, or if the gang or a
    group of it has a required level. Of members with a `no_opinion_reason` two kinds may be planned: LeftAlone in a
    gang that must stay within a level, and NoGpu in a gang with accelerators where the gang or a group has a required
    level.
    """
    return _is_planned(member, gang.has_accelerators, gang.terms.places_all_members, gang.has_any_level)


def planned_members(gang: Gang) -> list[GangMember]:
    """Return the members whose place the plan decides, including members that are being deleted."""
    has_accelerators, places_all, has_level = gang.has_accelerators, gang.terms.places_all_members, gang.has_any_level
    return [m for m in gang.members.values() if _is_planned(m, has_accelerators, places_all, has_level)]


def _is_planned(member: GangMember, has_accelerators: bool, places_all: bool, has_level: bool) -> bool:
    """Return True if the plan of its gang decides where a member goes.

    has_accelerators: the gang uses GPUs. places_all: the gang or a group of it requires a level, so that members
    without accelerators need a place, too. has_level: a required topology level applies to the gang.
    """
    if member.no_opinion_reason == "LeftAlone" and not has_level:
        return False
    if member.no_opinion_reason not in ("", "LeftAlone"):
        return member.no_opinion_reason == "NoGpu" and has_accelerators and places_all
    return bool(member.gpus or member.membership.wish.source) or not has_accelerators or places_all


def counts_for_tier(member: GangMember, gang: Gang) -> bool:
    """Return True if the member's host counts for the gang's tier: a host of GPUs, or any host of a gang without GPUs.

    A scheduler may ask us only about pods with GPUs, so other members may run anywhere.
    """
    return bool(member.gpus) or not gang.has_accelerators


@dataclass(frozen=True, slots=True)
class PodBatch:
    """The waiting members of one shape, and of one group where the gang has groups."""

    shape: PodShape
    members: tuple[GangMember, ...]  # the waiting members
    missing_pods: int  # members that do not exist yet and that this batch also places; 0 in all but the first
    gang_group: GangGroup | None = None  # None for members without a group
    ranks_per_pod: int = 1  # the accelerators of one pod, at least 1
    span: tuple[int, int] | None = None  # host ids [first, end) to which the batch is limited; None for no limit

    @property
    def pods(self) -> int:
        """The number of pods that are to be placed."""
        return len(self.members) + self.missing_pods

    @property
    def is_whole(self) -> bool:
        """True if its group is placed whole or not at all."""
        return self.gang_group is not None and self.gang_group.all_or_nothing


def count_missing(view: ClusterView, gang: Gang, max_growth: int) -> tuple[int, int]:
    """Return (members that the min needs, members above the min) that do not exist yet and for which room is reserved.

    The second number is 0 if it is larger than max_growth. Both are 0 for a gang with groups.
    """
    missing = 0 if gang.terms.group_rules else view.awaited_members.missing_pods(gang)
    needed = min(missing, max(0, gang.min_pods - len(gang.living())))
    return needed, missing - needed if missing - needed <= max_growth else 0


def count_lost(view: ClusterView, gang: Gang, needed: int) -> int:
    """Return how many members of its min a running gang has lost for good: they are not expected to be created again.

    Such a gang is moved or given up. Its plan must have room for these members, so that it does not return as a part. 0
    for a gang whose remedy is WAIT, and for a gang that never ran. needed: members that the min needs and that are
    expected.
    """
    runs = gang.started_s is not None or any(view.host_of(member) is not None for member in gang.living())
    if gang.repair.remedy is Remedy.WAIT or not runs:
        return 0
    return max(0, gang.min_pods - len(gang.living()) - needed)


def build_request(view: ClusterView, gang: Gang, unplaced_uids: Container[str]) -> GangRequest:
    """Return the gang's request for its existing members.

    Counts of pods that do not exist yet are 0: the caller adds them.

    unplaced_uids: members that count as if they had no host and no nomination.
    """
    waiting: list[GangMember] = []
    placed_members: list[tuple[GangMember, int]] = []
    nominated: dict[str, int] = {}
    for member in planned_members(gang):
        if member.terminating:
            continue
        host = None if member.uid in unplaced_uids else view.host_of(member)
        if host is not None:
            placed_members.append((member, host))
            continue
        if not member.is_waiting:
            continue
        waiting.append(member)
        if (node := view.our_nomination(member)) and member.uid not in unplaced_uids:
            row = view.snapshot.row_of.get(node)
            if row is not None:
                nominated[member.uid] = row
    waiting.sort(key=rank_sort_key)
    placed_members.sort(key=lambda each: rank_sort_key(each[0]))
    rows_by_shape = {member.shape: view.preferences.of(member) for member in reversed(waiting)}
    preferences = {shape: rows for shape, rows in rows_by_shape.items() if rows is not None}
    return GangRequest(
        gang,
        tuple(waiting),
        tuple(placed_members),
        nominated,
        preferences=preferences,
        rows_outside_level=_rows_outside_levels(view, gang),
        label_domains=view.levels.label_domains(gang.terms.required_levels),
    )


def _rows_outside_levels(view: ClusterView, gang: Gang) -> dict[int | None, NDArray[np.bool_]]:
    """Return marks of the mapped rows that lack the label of a required level, by index of the group rule; None: of the
    whole gang.

    Absent if no row lacks the label, if no mapped row has it, and for levels that are tiers.
    """
    levels: dict[int | None, tuple[Level, ...]] = {None: gang.terms.levels}
    levels |= {at: (rule.level,) for at, rule in enumerate(gang.terms.group_rules) if rule.level is not None}
    marks_by_rule = {rule: view.levels.rows_outside(levels_of_rule) for rule, levels_of_rule in levels.items()}
    return {rule: mask for rule, mask in marks_by_rule.items() if mask is not None}


def exclusive_rows(
    view: ClusterView, gang: Gang, planned: Callable[[GangKey], Iterable[int]]
) -> NDArray[np.bool_] | None:
    """Return a mask of the rows in domains that other gangs of the same exclusive set use.

    None if the gang is in no exclusive set, or has no exclusive level.

    planned: returns the host ids in the plan of a gang, nothing for a gang that comes after this one. Only gangs of the
    same namespace that have an exclusive level, too, count.
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
        # a switch of the wider of both tiers may hold only one of the two gangs
        wider = min(max(tier, other.exclusive_tier), fabric.tiers)
        member_hosts = (view.host_of(member) for member in other.members.values())
        hosts = (host for host in (*member_hosts, *planned(key)) if host is not None)
        used_switches.setdefault(wider, set()).update(int(fabric.switch_of[wider][host]) for host in hosts)
    for wider, switches in used_switches.items():
        excluded |= np.isin(fabric.switch_of[wider], list(switches))
    return excluded


def union_rows(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return the rows that are marked in at least one of two masks; None, which counts as no marks, if both are None.

    With one None the other mask itself is returned: do not change it.
    """
    if one is None or other is None:
        return other if one is None else one
    both: NDArray[np.bool_] = one | other
    return both


def limit_by_spread(request: GangRequest, batch: PodBatch, placed_hosts: Sequence[int], room: Rows) -> Rows:
    """Return how many pods of a batch each host may take under its hard spread constraint.

    That is the room, but with the members that have a place on the host at most `max_per_host` pods. The smallest
    `max_per_host` of the batch's members counts. placed_hosts: host ids of the members with a place that count, one
    entry for each member. room: without these members; it is not changed, and returned itself if no member has a limit
    or if `request.spread_evenly` is False.
    """
    max_per_host = min((m.max_per_host for m in batch.members if m.max_per_host), default=0)
    if not max_per_host or not request.spread_evenly:
        return room
    placed_pods = np.bincount(np.asarray(placed_hosts, dtype=np.intp), minlength=len(room))
    limited: Rows = np.minimum(room, np.maximum(0, max_per_host - placed_pods))
    return limited


def exclude_rows(
    room_of: RoomOf, rejected_rows: Mapping[PodShape, NDArray[np.bool_]], *excluded_rows: NDArray[np.bool_] | None
) -> RoomOf:
    """Return a room function that gives 0 on the rows rejected for a shape, and on rows excluded for the gang.

    room_of: gives the room of the other rows; its result is changed. rejected_rows: shape -> marks. excluded_rows:
    marks for all shapes; None for no row.
    """

    def room_without(shape: PodShape, present_pods: PodsOnRows) -> Rows:
        """Return the room of each row for a shape, with 0 on rejected and excluded rows.

        present_pods: pods counted as present.
        """
        room = room_of(shape, present_pods)
        for mask in (rejected_rows.get(shape), *excluded_rows):
            if mask is not None:
                room[mask] = 0
        return room

    return room_without


def restrict_to_domain(room_of: RoomOf, first: int, end: int) -> RoomOf:
    """Return a room function that gives 0 outside of the host ids [first, end), and elsewhere the room of `room_of`."""

    def room_inside(shape: PodShape, present_pods: PodsOnRows) -> Rows:
        room = np.zeros_like(all_room := room_of(shape, present_pods))
        room[first:end] = all_room[first:end]
        return room

    return room_inside


def limit_per_host(room_of: RoomOf, shape: PodShape, max_pods: Rows) -> RoomOf:
    """Return a room function that limits each host to so many pods of one shape; other shapes are not limited.

    room_of: gives the room without the limit. max_pods: by host id.
    """

    def at_most(other: PodShape, present_pods: PodsOnRows) -> Rows:
        room = room_of(other, present_pods)
        return np.minimum(room, max_pods) if other == shape else room

    return at_most
