"""Find the seats of a plan that a gang keeps or gives up together.

Pods of a host come in multiples, ranks in whole runs, and some groups start whole or not at all. If a gang gave up one
such seat alone, the rest would wait for it on a host where it may never fit. So the seats of one unit have the same
place in the order, and are given up together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup, rank_sort_key
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.planner.request import GangPlan

PlacedMembers = Iterable[tuple[GangMember, int]]  # members that hold a host, with the id of the host
# Pods of one shape and group on one host, which come in multiples: (shape, group, host id).
HostGroupShape = tuple[PodShape, GangGroup | None, int]


@dataclass(slots=True)
class SeatUnits:
    """The seats of a plan by unit. A seat without a unit is kept or given up alone."""

    unit_of: dict[str, int] = field(default_factory=dict)  # uid of the seat's member -> number of the unit
    begun: set[int] = field(default_factory=set)  # units of which running members hold a part already

    def has_begun(self, uid: str) -> bool:
        """Return True if running members hold a part of a seat's unit."""
        return self.unit_of.get(uid, -1) in self.begun

    def with_partners(self, seats: Collection[str | int]) -> set[str | int]:
        """Return these seats and all other seats of their units.

        seats: uids of members, and ranks of open seats, which have no unit.
        """
        units = {unit for uid, unit in self.unit_of.items() if uid in seats}
        return {*seats, *(uid for uid, unit in self.unit_of.items() if unit in units)}


def has_units(gang: Gang) -> bool:
    """Return True if a gang has multiples on a host, runs of ranks, or groups that start whole."""
    return gang.multiple > 1 or bool(gang.layers) or any(rule.all_or_nothing for rule in gang.terms.group_rules)


def seat_units(gang: Gang, plan: GangPlan, placed_members: PlacedMembers, *, only_multiples: bool = False) -> SeatUnits:
    """Return the units of a plan: sets of seats that the gang keeps or gives up together. Empty if each seat stands
    alone.

    placed_members: members that hold a host already. only_multiples: True to make units of the multiples on one host
    only, not of runs of ranks or of all-or-nothing groups.
    """
    found = SeatUnits()
    if not has_units(gang):
        return found
    placed_members, group_of = list(placed_members), gang.groups_by_uid()
    seats_of: dict[int, list[str]] = {}  # the seats of each unit
    find_parts = _parts_of_hosts if only_multiples else _parts
    for number, (seats, is_begun) in enumerate(find_parts(gang, plan, placed_members, group_of)):
        overlapping = {found.unit_of[seat] for seat in seats if seat in found.unit_of}
        merged = {*seats, *(seat for unit in overlapping for seat in seats_of.pop(unit))}
        seats_of[number] = list(merged)
        found.unit_of.update(dict.fromkeys(merged, number))
        if is_begun or not overlapping.isdisjoint(found.begun):
            found.begun.add(number)
    return found


def begun_pods(gang: Gang, waiting: Sequence[GangMember], placed_members: PlacedMembers) -> int:
    """Return how many waiting members complete a group or a multiple that running members have begun.

    Groups and multiples are counted apart, and the larger count is returned; 0 if the gang has no such units. waiting:
    members without a host. placed_members: those that hold a host.
    """
    if not has_units(gang) or not waiting:
        return 0
    placed_members, group_of = list(placed_members), gang.groups_by_uid()
    begun_groups = {group_of[member.uid] for member, _ in placed_members if member.uid in group_of}
    of_groups = sum(
        group in begun_groups and group.all_or_nothing
        for member in waiting
        if (group := group_of.get(member.uid)) is not None
    )
    gaps = Counter[tuple[PodShape, GangGroup | None]]()
    for (shape, group, _), pods in gaps_of_multiples(gang, placed_members, group_of).items():
        gaps[shape, group] += pods
    of_hosts = Counter((member.shape, group_of.get(member.uid)) for member in waiting) & gaps
    return max(of_groups, of_hosts.total())


def gaps_of_multiples(
    gang: Gang, placed_members: PlacedMembers, group_of: Mapping[str, GangGroup]
) -> dict[HostGroupShape, int]:
    """Return how many pods a full multiple still needs, for each (shape, group, host) on which members run.

    Hosts without a gap are absent. The remainder of all pods of a shape and group may run on one host: that host has no
    gap. group_of: uid -> group.
    """
    multiple = gang.multiple
    if multiple == 1:
        return {}
    running = Counter((member.shape, group_of.get(member.uid), host) for member, host in placed_members)
    rests = Counter((member.shape, group_of.get(member.uid)) for member in gang.living())
    gaps: dict[HostGroupShape, int] = {}
    for host_group_shape, pods in sorted(running.items(), key=lambda entry: entry[0][2]):
        if (odd := pods % multiple) == 0:
            continue
        if odd == rests[host_group_shape[:2]] % multiple:
            rests[host_group_shape[:2]] -= odd  # the remainder runs here
        else:
            gaps[host_group_shape] = multiple - odd
    return gaps


def _parts(
    gang: Gang, plan: GangPlan, placed_members: Sequence[tuple[GangMember, int]], group_of: Mapping[str, GangGroup]
) -> Iterator[tuple[list[str], bool]]:
    """Yield (uids of seats that belong together, True if running members have begun that unit).

    Parts may overlap: the caller joins them. placed_members: (member, host id). group_of: uid -> group.
    """
    yield from _parts_of_hosts(gang, plan, placed_members, group_of)
    if gang.layers and not gang.terms.group_rules:
        size, by_run = gang.layers[-1][1], defaultdict[int, list[str]](list)
        for uid in plan.hosts:
            by_run[plan.ranks[uid] // size].append(uid)
        for seats in by_run.values():
            yield seats, False
    begun = {group_of[member.uid] for member, _ in placed_members if member.uid in group_of}
    by_group: dict[GangGroup, list[str]] = {}
    for uid in plan.hosts:
        if (group := group_of.get(uid)) is not None and group.all_or_nothing:
            by_group.setdefault(group, []).append(uid)
    yield from ((seats, group in begun) for group, seats in by_group.items())


def _parts_of_hosts(
    gang: Gang, plan: GangPlan, placed_members: Sequence[tuple[GangMember, int]], group_of: Mapping[str, GangGroup]
) -> Iterator[tuple[list[str], bool]]:
    """Yield (uids of seats, True if they complete a begun multiple).

    For each host, the seats that complete a begun multiple come first, then the others, one multiple at a time. The
    remainder of a host comes last. Yields nothing if pods need not come in multiples. placed_members: (member, host
    id). group_of: uid -> group.
    """
    if gang.multiple == 1:
        return
    gaps = gaps_of_multiples(gang, placed_members, group_of)
    by_host: dict[HostGroupShape, list[str]] = {}
    for member in sorted((gang.members[uid] for uid in plan.hosts), key=rank_sort_key):
        host_group_shape = (plan.shapes[member.uid], group_of.get(member.uid), plan.hosts[member.uid])
        by_host.setdefault(host_group_shape, []).append(member.uid)
    for host_group_shape, seats in by_host.items():
        gap = gaps.get(host_group_shape, 0)
        if gap:
            yield seats[:gap], True
        for first in range(gap, len(seats), gang.multiple):
            yield seats[first : first + gang.multiple], False
