"""Gangs in a tree of PodGroups: how many of them must start together, and the domain that they share at each level.

The gangs of a tree are one set (`order.py`). A level of the tree is required of each gang below it, too. Here is
decided that they get the same domain of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.jobs.wishes.model import MAX_GROUPS, NOTHING, Ancestor, GroupRule, Level, Wish
from turnout.scheduler_ext.cluster.composites import MAX_DEPTH, MAX_TREE_GANGS
from turnout.scheduler_ext.cluster.gang import Gang, Sizing
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.batches import Work
from turnout.scheduler_ext.planner.request import GangPlan, RoomOf, build_request, union_rows
from turnout.scheduler_ext.planner.steps import place

PlanOf = Callable[[GangKey], GangPlan | None]
_CHILD, _KIND = "child", "kind"  # marks of members while a domain is chosen for a part of a tree


def gangs_of_tree(view: ClusterView, gang: Gang) -> list[Gang]:
    """Return the gangs of a gang's tree, itself included, the oldest first; an empty list beyond MAX_TREE_GANGS.

    A gang below a part of the tree that is not valid is left out.
    """
    keys = view.composites.tree(gang.key.namespace, gang.ancestors[0].name)
    if gang.key not in keys:
        return []
    return [other for key in keys if (other := view.gangs.get(key)) is not None and other.ancestors]


def beyond_limit(gang: Gang, together: Sequence[Gang]) -> str:
    """Return why a gang of a tree is not planned, "" if it is. together: the gangs of its tree that are planned."""
    if not gang.ancestors or together:
        return ""
    name = gang.ancestors[0].name[:80]
    return f"CompositePodGroup {name} has more than {MAX_TREE_GANGS} PodGroups, and the oldest of them come first"


def held_back(view: ClusterView, together: Sequence[Gang], can_start: Callable[[Gang], bool]) -> dict[GangKey, str]:
    """Return why gangs of a tree may not start: too few groups of one of their ancestors can start."""
    namespace = together[0].key.namespace
    startable = {gang.key for gang in together if can_start(gang)}
    counts: dict[str, int] = {}

    def count(name: str, depth: int) -> int:
        """Count the groups below a CompositePodGroup that can start."""
        composites, gangs = view.composites.groups_below(namespace, name)
        inner = [each for each in composites if depth < MAX_DEPTH]
        starting = sum(count(each, depth + 1) >= max(1, view.composites.min_groups(namespace, each)) for each in inner)
        counts[name] = starting + sum(key in startable for key in gangs)
        return counts[name]

    count(together[0].ancestors[0].name, 1)
    found: dict[GangKey, str] = {}
    for gang in together:
        for each in gang.ancestors:
            if counts.get(each.name, 0) < each.min_groups:
                number = f"{counts.get(each.name, 0)} of its groups can start, {each.min_groups} must start together"
                found.setdefault(gang.key, f"CompositePodGroup {each.name[:80]}: {number}")
    return found


class SharedDomains:
    """The domains that the gangs of trees share. It remembers, while one set is planned, what no domain holds."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._full: set[tuple[str, str]] = set()  # namespace and name of outermost ancestors that no domain holds
        self._steps = 0

    def forget_refusals(self) -> None:
        """Forget which ancestors no domain holds, since room may have changed."""
        self._full.clear()

    def take_steps(self) -> int:
        """Return the steps of work since the last call."""
        steps, self._steps = self._steps, 0
        return steps

    def rows_outside(self, gang: Gang, plan_of: PlanOf, room_of: RoomOf) -> NDArray[np.bool_] | None:
        """Mark the rows outside the domains that a gang shares with others of its tree; None where it shares none.

        plan_of: gives the current plan of another gang. Where no domain has room for the gangs that must start
        together, all rows are marked. Gangs that run in several domains already share none.
        """
        together, view = gangs_of_tree(self._view, gang), self._view
        self._steps += len(together)
        marks: NDArray[np.bool_] | None = None
        for ancestor in gang.ancestors:
            theirs = [other for other in together if any(each.name == ancestor.name for each in other.ancestors)]
            if ancestor.level is None or len(theirs) < 2:
                continue
            table = _domain_of_rows(view, ancestor.level)
            hosts = [*_running_hosts(view, theirs), *_planned_hosts(gang, theirs, plan_of)]
            hosts = hosts or self._choose(ancestor, theirs, room_of, marks)
            numbers = {int(table[host]) for host in hosts}
            if not numbers:
                return np.ones(len(table), np.bool_)
            if len(numbers) == 1:
                outside: NDArray[np.bool_] = table != numbers.pop()
                marks = union_rows(marks, outside)
        return marks

    def _choose(
        self, ancestor: Ancestor, gangs: Sequence[Gang], room_of: RoomOf, marks: NDArray[np.bool_] | None
    ) -> list[int]:
        """Return a host in the domain that holds the gangs below an ancestor; nothing where no domain holds enough.

        All of them are placed as one gang with a group for each child. marks: rows that may not be used.
        """
        name = gangs[0].key.namespace, ancestor.name
        if marks is None and name in self._full:
            return []
        work = Work()
        request = replace(build_request(self._view, merge_tree(ancestor, gangs), ()), excluded_rows=marks)
        plan = place(self._view.fabric, request, room_of, work)
        self._steps += work.spent_steps
        if not plan.hosts and marks is None:
            self._full.add(name)
        return list(plan.hosts.values())[:1]


def _domain_of_rows(view: ClusterView, level: Level) -> NDArray[np.int32]:
    """Return the number of each row's domain of a level."""
    if (domains := view.levels.label_domains((level,))) is not None:
        return domains.row_domains
    tier = view.levels.tier_of(level)
    row: NDArray[np.int32] = view.fabric.switch_of[min(1 if tier is None else tier, view.fabric.tiers)]
    return row


def _running_hosts(view: ClusterView, gangs: Sequence[Gang]) -> Iterator[int]:
    """Yield a host of each gang of which a member holds one. Members that a level does not count are left out."""
    for gang in gangs:
        counted = [member for member in gang.living() if member.gpus or not gang.has_accelerators]
        hosts = (view.host_of(member) for member in counted)
        if (host := next((host for host in hosts if host is not None), None)) is not None:
            yield host


def _planned_hosts(gang: Gang, gangs: Sequence[Gang], plan_of: PlanOf) -> Iterator[int]:
    """Yield a host of the plan of each other gang."""
    for other in gangs:
        plan = plan_of(other.key) if other is not gang else None
        if plan is not None and plan.hosts:
            yield next(iter(plan.hosts.values()))


@dataclass(frozen=True, slots=True)
class _Part:
    """A child of a CompositePodGroup: a gang, or another CompositePodGroup."""

    name: str
    level: Level | None  # of the child; None for no such limit
    is_gang: bool
    min_groups: int  # of a CompositePodGroup: gangs that start together at least; 1 for a gang


def merge_tree(ancestor: Ancestor, gangs: Sequence[Gang]) -> Gang:
    """Return the gangs below an ancestor as one gang, with a group for each of its children."""
    members: dict[str, GangMember] = {}
    mins: dict[_Part, list[int]] = {}
    for gang in gangs:
        part = _part_of(ancestor, gang)
        mins.setdefault(part, []).append(max(1, gang.min_pods))
        marks = ((_CHILD, part.name), (_KIND, _kind_of(part)))
        for uid, member in gang.members.items():
            members[uid] = replace(member, membership=replace(member.membership, marks=marks, wish=NOTHING))
    kinds = {_kind_of(part): part for part in reversed(mins)}
    least = ancestor.min_groups if len(kinds) == 1 else 0
    rules = tuple(
        GroupRule("of the tree", ((_KIND, kind),), (_CHILD,), 0, least, part.level, all_or_nothing=part.is_gang)
        for kind, part in sorted(kinds.items())[:MAX_GROUPS]
    )
    part_mins = sorted(sum(sorted(counts)[: part.min_groups]) for part, counts in mins.items())
    wish = Wish("CompositePodGroup", ancestor.level, groups=rules)
    sizing = Sizing(sum(part_mins[: ancestor.min_groups or 1]), None, "", "", wish=wish)
    return Gang(gangs[0].key, gangs[0].version, sizing, gangs[0].tier_of, members)


def _part_of(ancestor: Ancestor, gang: Gang) -> _Part:
    """Return the child of an ancestor to which a gang belongs."""
    names = [each.name for each in gang.ancestors]
    inner = gang.ancestors[names.index(ancestor.name) + 1 :]
    if inner:
        return _Part(f"composite {inner[0].name}", inner[0].level, False, inner[0].min_groups or 1)
    own = gang.sizing.wish.required if gang.sizing is not None else None
    return _Part(f"gang {gang.key.name}", own, True, 1)


def _kind_of(part: _Part) -> str:
    """Return a text that is equal for children whose groups have the same terms."""
    return f"{part.is_gang} {part.level!r}"
