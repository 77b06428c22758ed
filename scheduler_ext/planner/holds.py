"""Check a plan against every hard term of its gang, whoever made the plan and however.

This module shares no function with `steps.py`, `pack.py` and the packing of `topology/`: a fault there cannot hide
here. It looks only at the request, at the hosts of the plan and at the tables of the fabric. Capacity is checked where
a plan takes its seats (`plans.py`): the sums of the reserved resources may not exceed what is free on a row.

Members that run may break a term already: another scheduler bound them, or the map has changed. Such a term is not
checked, because no plan can mend it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from turnout.scheduler_ext.cluster.gang import GangGroup
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.planner.request import GangPlan, GangRequest, HardTerm
from turnout.topology.fabric import Fabric


@dataclass(frozen=True, slots=True)
class Violation:
    """A hard term that a plan does not keep."""

    term: HardTerm
    pods: int  # members that break it, at least 1
    observed: int  # what the plan has: switches, hosts or pods, as the term counts
    allowed: int  # the most of it that the term allows; for a min the least

    def __str__(self) -> str:
        return f"{self.term}: {self.observed} where {self.allowed} is the limit, {self.pods} pods"


@dataclass(frozen=True, slots=True)
class _Case:
    """A plan beside the places of the members that run."""

    fabric: Fabric
    request: GangRequest
    plan: GangPlan
    planned_hosts: Sequence[int]  # one entry for each pod with a place in the plan, open seats included
    # (member, host) of the running members that a level counts: in a gang with accelerators, those that have some
    anchors: Sequence[tuple[GangMember, int]]

    def switches(self, tier: int, hosts: Collection[int]) -> int:
        """Return under how many switches of a tier some hosts are. A host that the map does not name is one itself."""
        row = self.fabric.switch_of[min(tier, self.fabric.tiers)]
        count, mapped = self.fabric.mapped_count, {host for host in hosts if host < self.fabric.mapped_count}
        return len({int(row[host]) for host in mapped}) + len({host for host in hosts if host >= count})


def holds(fabric: Fabric, request: GangRequest, plan: GangPlan) -> tuple[Violation, ...]:
    """Return the hard terms that a plan breaks; nothing for a plan without a place for anybody."""
    if not plan.hosts and not plan.open_seats:
        return ()
    has_accelerators = request.gang.has_accelerators
    anchors = [(member, host) for member, host in request.placed_members if member.gpus or not has_accelerators]
    hosts = [*plan.hosts.values(), *(seat.host for seat in plan.open_seats)]
    case = _Case(fabric, request, plan, hosts, anchors)
    return tuple(violation for check in _CHECKS for violation in check(case))


def _min_pods(case: _Case) -> Iterator[Violation]:
    """Check the min. Members that do not exist and that the plan does not wait for are not required."""
    request, gang = case.request, case.request.gang
    living = len(gang.living())
    present = living - len(request.waiting) + len(case.planned_hosts) + request.lost_pods
    needed = min(gang.min_pods, living + request.missing_pods + request.lost_pods)
    if present < needed:
        yield Violation(HardTerm.MIN_PODS, needed - present, present, needed)


def _min_by_role(case: _Case) -> Iterator[Violation]:
    """Check the min of each role, where all members exist."""
    request, gang = case.request, case.request.gang
    if not gang.min_by_role or case.plan.open_seats or request.placed_members:
        return
    without_place = Counter(member.membership.role for member in request.waiting if member.uid not in case.plan.hosts)
    roles = Counter(member.membership.role for member in gang.living())
    for role, needed in gang.min_by_role:
        present = roles[role] - without_place[role]
        if present < min(needed, roles[role]):
            yield Violation(HardTerm.MIN_BY_ROLE, needed - present, present, needed)


def _level(case: _Case) -> Iterator[Violation]:
    """Check the gang's own level."""
    tier = case.request.gang.tier
    anchor_hosts = {host for _, host in case.anchors}
    if tier is None or case.switches(tier, anchor_hosts) > 1:
        return
    found = case.switches(tier, {*case.planned_hosts, *anchor_hosts})
    off_map = sum(host >= case.fabric.mapped_count for host in case.planned_hosts)
    if found > 1 or off_map:
        yield Violation(HardTerm.LEVEL, max(off_map, len(case.planned_hosts)), max(found, 2), 1)


def _groups(case: _Case) -> Iterator[Violation]:
    """Check the terms of groups: level, whole, exclusive."""
    gang = case.request.gang
    if not gang.group_rules:
        return
    group_of = gang.groups_by_uid()
    running: dict[GangGroup, set[int]] = {}
    for member, host in case.anchors:
        if (group := group_of.get(member.uid)) is not None:
            running.setdefault(group, set()).add(host)
    planned: dict[GangGroup, set[int]] = {}
    for uid, host in case.plan.hosts.items():
        if (group := group_of.get(uid)) is not None:
            planned.setdefault(group, set()).add(host)
    for group, hosts in planned.items():
        if group.tier is None or case.switches(group.tier, running.get(group, ())) > 1:
            continue
        if (found := case.switches(group.tier, hosts | running.get(group, set()))) > 1:
            yield Violation(HardTerm.GROUP_LEVEL, len(hosts), found, 1)
    yield from _whole_groups(case, group_of)
    if any(group.exclusive for group in planned.keys() | running.keys()):
        yield from _exclusive_groups(case, planned, running)


def _whole_groups(case: _Case, group_of: dict[str, GangGroup]) -> Iterator[Violation]:
    """Check that a group which starts whole has a place for all of its waiting members, or for none."""
    waiting, planned = Counter[GangGroup](), Counter[GangGroup]()
    for member in case.request.waiting:
        group = group_of.get(member.uid)
        if group is not None and group.all_or_nothing:
            waiting[group] += 1
            planned[group] += member.uid in case.plan.hosts
    for group, count in waiting.items():
        if 0 < planned[group] < count:
            yield Violation(HardTerm.GROUP_WHOLE, count - planned[group], planned[group], count)


def _exclusive_groups(
    case: _Case, planned: dict[GangGroup, set[int]], running: dict[GangGroup, set[int]]
) -> Iterator[Violation]:
    """Check that no switch takes an exclusive group beside another group."""
    fabric = case.fabric
    for group, hosts in planned.items():
        for other in planned.keys() | running.keys():
            tiers = [each.tier for each in (group, other) if each.exclusive and each.tier is not None]
            if other == group or not tiers:
                continue
            row = fabric.switch_of[min(max(tiers), fabric.tiers)]
            theirs = {int(row[host]) for host in planned.get(other, set()) | running.get(other, set())}
            if shared := {int(row[host]) for host in hosts} & theirs:
                yield Violation(HardTerm.GROUP_EXCLUSIVE, len(hosts), len(shared), 0)


def _slices(case: _Case) -> Iterator[Violation]:
    """Check the runs of ranks. A running member without an index is in no run; nor is any in a gang with groups."""
    gang, plan = case.request.gang, case.plan
    if not gang.layers or gang.group_rules:
        return
    for tier, size in gang.layers:
        running: dict[int, set[int]] = {}
        for member, host in case.request.placed_members:
            base, index = plan.bases.get(member.membership.role), member.membership.rank
            if base is not None and index is not None:
                running.setdefault((base + index) // size, set()).add(host)
        planned: dict[int, set[int]] = {}
        for uid, host in plan.hosts.items():
            planned.setdefault(plan.ranks[uid] // size, set()).add(host)
        for run, hosts in planned.items():
            if case.switches(tier, running.get(run, ())) > 1:
                continue
            if (found := case.switches(tier, hosts | running.get(run, set()))) > 1:
                yield Violation(HardTerm.SLICE, len(hosts), found, 1)


def _multiple(case: _Case) -> Iterator[Violation]:
    """Check the pods of one shape, and of one group, on each host. One host may have the remainder of them."""
    multiple = case.request.gang.multiple
    if multiple == 1:
        return
    group_of = case.request.gang.groups_by_uid()
    running = Counter((member.shape, group_of.get(member.uid), host) for member, host in case.request.placed_members)
    counts = running + Counter(
        (case.plan.shapes[uid], group_of.get(uid), host) for uid, host in case.plan.hosts.items()
    )
    counts += Counter((seat.shape, None, seat.host) for seat in case.plan.open_seats)
    total, odd_hosts, odd_before = Counter[object](), Counter[object](), Counter[object]()
    for (shape, group, host), pods in counts.items():
        total[shape, group] += pods
        odd_hosts[shape, group] += pods % multiple != 0
        odd_before[shape, group] += running[shape, group, host] % multiple != 0
    for member in case.request.waiting:  # the remainder is that of all pods, also of those without a place
        total[member.shape, group_of.get(member.uid)] += member.uid not in case.plan.hosts
    for cut, hosts in odd_hosts.items():
        allowed = max(int(total[cut] % multiple != 0), odd_before[cut])
        if hosts > allowed:
            yield Violation(HardTerm.MULTIPLE, total[cut] % multiple or multiple, hosts, allowed)


def _barred_hosts(case: _Case) -> Iterator[Violation]:
    """Check for hosts that are ruled out for the whole gang, for a shape, or for a group."""
    request, plan = case.request, case.plan
    pods = 0
    for marks in (request.excluded_rows, request.rows_outside_level.get(None)):
        if marks is not None:
            pods += int(marks[case.planned_hosts].sum())
    if request.rejected_rows:
        for uid, host in plan.hosts.items():
            rejected = request.rejected_rows.get(plan.shapes[uid])
            pods += rejected is not None and bool(rejected[host])
    if any(rule is not None for rule in request.rows_outside_level):
        for uid, group in request.gang.groups_by_uid().items():
            marks = request.rows_outside_level.get(group.rule)
            pods += marks is not None and uid in plan.hosts and bool(marks[plan.hosts[uid]])
    if pods:
        yield Violation(HardTerm.BARRED_HOST, pods, pods, 0)


_CHECKS: tuple[Callable[[_Case], Iterator[Violation]], ...] = (
    _min_pods,
    _min_by_role,
    _level,
    _groups,
    _slices,
    _multiple,
    _barred_hosts,
)
