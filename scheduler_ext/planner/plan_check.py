"""Check a plan against every hard term of its gang, whoever made the plan and however.

This module shares no function with `place_gang.py`, `pack.py` and the packing of `topology/`: a fault there cannot hide
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
    allowed: int  # the limit: the largest allowed number, or for MIN_PODS and MIN_BY_ROLE the smallest

    def __str__(self) -> str:
        return f"{self.term}: {self.observed} where {self.allowed} is the limit, {self.pods} pods"


@dataclass(frozen=True, slots=True)
class _PlanToCheck:
    """The plan to check, with the hosts of the members that run."""

    fabric: Fabric
    request: GangRequest
    plan: GangPlan
    planned_hosts: Sequence[int]  # one entry for each pod with a place in the plan, open seats included
    # (member, host) of the running members that a level counts: in a gang with accelerators, those that have some
    running_members: Sequence[tuple[GangMember, int]]

    def switches(self, tier: int, hosts: Collection[int]) -> int:
        """Return the number of switches of a tier above some hosts.

        A host that the map does not name counts as a switch.
        """
        row = self.fabric.switch_of[min(tier, self.fabric.tiers)]
        count, mapped = self.fabric.mapped_count, {host for host in hosts if host < self.fabric.mapped_count}
        return len({int(row[host]) for host in mapped}) + len({host for host in hosts if host >= count})


def broken_hard_terms(fabric: Fabric, request: GangRequest, plan: GangPlan) -> tuple[Violation, ...]:
    """Return a Violation for each hard term that a plan breaks; () if it breaks none, or has a place for nobody.

    Terms that running members break already are not checked.
    """
    if not plan.hosts and not plan.open_seats:
        return ()
    has_accelerators = request.gang.has_accelerators
    running_members = [(member, host) for member, host in request.placed_members if member.gpus or not has_accelerators]
    hosts = [*plan.hosts.values(), *(seat.host for seat in plan.open_seats)]
    to_check = _PlanToCheck(fabric, request, plan, hosts, running_members)
    return tuple(violation for check in _CHECKS for violation in check(to_check))


def _min_pods(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation if fewer pods than the gang's min run or have a place.

    The min is at most the number of members that exist, that are awaited, or that are lost. Open seats and lost pods
    count as present.
    """
    request, gang = to_check.request, to_check.request.gang
    living = len(gang.living())
    present = living - len(request.waiting) + len(to_check.planned_hosts) + request.absent.lost
    needed = min(gang.min_pods, living + request.absent.missing + request.absent.lost)
    if present < needed:
        yield Violation(HardTerm.MIN_PODS, needed - present, present, needed)


def _min_by_role(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation for each role with fewer pods that run or have a place than its min.

    Nothing is checked if a member holds a host already, or the plan has open seats.
    """
    request, gang = to_check.request, to_check.request.gang
    if not gang.min_by_role or to_check.plan.open_seats or request.placed_members:
        return
    without_place = Counter(
        member.membership.role for member in request.waiting if member.uid not in to_check.plan.hosts
    )
    roles = Counter(member.membership.role for member in gang.living())
    for role, needed in gang.min_by_role:
        present = roles[role] - without_place[role]
        if present < min(needed, roles[role]):
            yield Violation(HardTerm.MIN_BY_ROLE, needed - present, present, needed)


def _level(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation if the members are under more than one switch of the gang's level, or planned members are off
    the map.

    Nothing is checked without a level, or if the running members alone break it.
    """
    tier = to_check.request.gang.tier
    running_hosts = {host for _, host in to_check.running_members}
    if tier is None or to_check.switches(tier, running_hosts) > 1:
        return
    found = to_check.switches(tier, {*to_check.planned_hosts, *running_hosts})
    off_map = sum(host >= to_check.fabric.mapped_count for host in to_check.planned_hosts)
    if found > 1 or off_map:
        yield Violation(HardTerm.LEVEL, max(off_map, len(to_check.planned_hosts)), max(found, 2), 1)


def _group_terms(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation for each group that is under more than one switch of its level, for each all-or-nothing group
    of which only some waiting members have a place, and for each two groups that share an exclusive domain.

    The level of a group whose running members already use several switches is not checked.
    """
    gang = to_check.request.gang
    if not gang.terms.group_rules:
        return
    group_of = gang.groups_by_uid()
    running: dict[GangGroup, set[int]] = {}
    for member, host in to_check.running_members:
        if (group := group_of.get(member.uid)) is not None:
            running.setdefault(group, set()).add(host)
    planned: dict[GangGroup, set[int]] = {}
    for uid, host in to_check.plan.hosts.items():
        if (group := group_of.get(uid)) is not None:
            planned.setdefault(group, set()).add(host)
    for group, hosts in planned.items():
        if group.tier is None or to_check.switches(group.tier, running.get(group, ())) > 1:
            continue
        if (found := to_check.switches(group.tier, hosts | running.get(group, set()))) > 1:
            yield Violation(HardTerm.GROUP_LEVEL, len(hosts), found, 1)
    yield from _whole_groups(to_check, group_of)
    if any(group.exclusive for group in planned.keys() | running.keys()):
        yield from _exclusive_groups(to_check, planned, running)


def _whole_groups(to_check: _PlanToCheck, group_of: dict[str, GangGroup]) -> Iterator[Violation]:
    """Yield a Violation for each all-or-nothing group of which some, but not all waiting members have a place.

    group_of: uid -> group.
    """
    waiting, planned = Counter[GangGroup](), Counter[GangGroup]()
    for member in to_check.request.waiting:
        group = group_of.get(member.uid)
        if group is not None and group.all_or_nothing:
            waiting[group] += 1
            planned[group] += member.uid in to_check.plan.hosts
    for group, count in waiting.items():
        if 0 < planned[group] < count:
            yield Violation(HardTerm.GROUP_WHOLE, count - planned[group], planned[group], count)


def _exclusive_groups(
    to_check: _PlanToCheck, planned: dict[GangGroup, set[int]], running: dict[GangGroup, set[int]]
) -> Iterator[Violation]:
    """Yield a Violation for each planned group and other group that share a switch, if one of them is exclusive.

    planned, running: group -> hosts of its planned members, of its running members.
    """
    fabric = to_check.fabric
    for group, hosts in planned.items():
        for other in planned.keys() | running.keys():
            tiers = [each.tier for each in (group, other) if each.exclusive and each.tier is not None]
            if other == group or not tiers:
                continue
            row = fabric.switch_of[min(max(tiers), fabric.tiers)]
            theirs = {int(row[host]) for host in planned.get(other, set()) | running.get(other, set())}
            if shared := {int(row[host]) for host in hosts} & theirs:
                yield Violation(HardTerm.GROUP_EXCLUSIVE, len(hosts), len(shared), 0)


def _rank_runs(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation for each run of ranks (a block of consecutive ranks) that is under more than one switch.

    Running members without an index are ignored, and so is a run that running members alone have split over switches. A
    gang with groups has no runs.
    """
    gang, plan = to_check.request.gang, to_check.plan
    if not gang.layers or gang.terms.group_rules:
        return
    for tier, size in gang.layers:
        running: dict[int, set[int]] = {}
        for member, host in to_check.request.placed_members:
            base, index = plan.bases.get(member.membership.role), member.membership.rank
            if base is not None and index is not None:
                running.setdefault((base + index) // size, set()).add(host)
        planned: dict[int, set[int]] = {}
        for uid, host in plan.hosts.items():
            planned.setdefault(plan.ranks[uid] // size, set()).add(host)
        for run, hosts in planned.items():
            if to_check.switches(tier, running.get(run, ())) > 1:
                continue
            if (found := to_check.switches(tier, hosts | running.get(run, set()))) > 1:
                yield Violation(HardTerm.RUN_OF_RANKS, len(hosts), found, 1)


def _multiple(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation for each shape and group that has too many hosts on which the number of pods is no multiple.

    One such host is allowed for the remainder; if running members have caused more, their number is allowed.
    """
    multiple = to_check.request.gang.multiple
    if multiple == 1:
        return
    group_of = to_check.request.gang.groups_by_uid()
    running = Counter(
        (member.shape, group_of.get(member.uid), host) for member, host in to_check.request.placed_members
    )
    counts = running + Counter(
        (to_check.plan.shapes[uid], group_of.get(uid), host) for uid, host in to_check.plan.hosts.items()
    )
    counts += Counter((seat.shape, None, seat.host) for seat in to_check.plan.open_seats)
    total, odd_hosts, odd_before = Counter[object](), Counter[object](), Counter[object]()
    for (shape, group, host), pods in counts.items():
        total[shape, group] += pods
        odd_hosts[shape, group] += pods % multiple != 0
        odd_before[shape, group] += running[shape, group, host] % multiple != 0
    for member in to_check.request.waiting:  # the remainder is that of all pods, also of those without a place
        total[member.shape, group_of.get(member.uid)] += member.uid not in to_check.plan.hosts
    for cut, hosts in odd_hosts.items():
        allowed = max(int(total[cut] % multiple != 0), odd_before[cut])
        if hosts > allowed:
            yield Violation(HardTerm.MULTIPLE, total[cut] % multiple or multiple, hosts, allowed)


def _barred_hosts(to_check: _PlanToCheck) -> Iterator[Violation]:
    """Yield a Violation if planned pods are on hosts that are ruled out for the gang, for their shape, or for their
    group.
    """
    request, plan = to_check.request, to_check.plan
    pods = 0
    for mask in (request.excluded_rows, request.rows_outside_level.get(None)):
        if mask is not None:
            pods += int(mask[to_check.planned_hosts].sum())
    if request.rejected_rows:
        for uid, host in plan.hosts.items():
            rejected = request.rejected_rows.get(plan.shapes[uid])
            pods += rejected is not None and bool(rejected[host])
    if any(rule is not None for rule in request.rows_outside_level):
        for uid, group in request.gang.groups_by_uid().items():
            mask = request.rows_outside_level.get(group.rule)
            pods += mask is not None and uid in plan.hosts and bool(mask[plan.hosts[uid]])
    if pods:
        yield Violation(HardTerm.BARRED_HOST, pods, pods, 0)


_CHECKS: tuple[Callable[[_PlanToCheck], Iterator[Violation]], ...] = (
    _min_pods,
    _min_by_role,
    _level,
    _group_terms,
    _rank_runs,
    _multiple,
    _barred_hosts,
)
