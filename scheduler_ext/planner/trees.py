"""Gangs in a tree of PodGroups: how many of them must start together, and the domain that they share at each level.

The gangs of a tree are one set (`order.py`). A level of the tree is required of each gang below it, too. This module
chooses the one domain of that level for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.request import GangPlan, RoomOf, build_request, union_rows

PlanOf = Callable[[GangKey], GangPlan | None]
MAX_MERGED_CHILDREN = 64  # children of a CompositePodGroup for all of which a domain is sought
_COUNT_STEPS = 2_000  # of work to count the gangs of one tree that can start
_CHILD, _KIND = "child", "kind"  # marks of members while a domain is chosen for a part of a tree


def gangs_of_tree(view: ClusterView, gang: Gang) -> list[Gang]:
    """Return the gangs that are one set with a gang of a tree, itself included, the oldest first.

    [] for a gang beyond the MAX_TREE_GANGS oldest PodGroups of its tree. gang: with `ancestors`.
    """
    namespace, root = gang.key.namespace, gang.terms.ancestors[0].name
    return _oldest_gangs(view, gang) if gang.key in view.groups.composites.tree(namespace, root) else []


def _oldest_gangs(view: ClusterView, gang: Gang) -> list[Gang]:
    """Return the gangs of a gang's tree, the oldest first. A gang below a branch that is not valid is left out."""
    keys = view.groups.composites.tree(gang.key.namespace, gang.terms.ancestors[0].name)
    return [other for key in keys if (other := view.gangs.get(key)) is not None and other.terms.ancestors]


def start_delays(view: ClusterView, together: Sequence[Gang], can_start: Callable[[Gang], bool]) -> dict[GangKey, str]:
    """Return gang -> why it may not start: too few groups of one of its ancestors can start. Gangs that may start are
    absent.

    The text names the outermost such ancestor. together: all gangs of one tree (`gangs_of_tree`). can_start: returns
    True for a gang that has started or has a place.
    """
    counts = _count_starting(view, together, can_start)
    found: dict[GangKey, str] = {}
    for gang in together:
        for each in gang.terms.ancestors:
            if counts.get(each.name, 0) < each.min_groups:
                number = f"{counts.get(each.name, 0)} of its groups can start, {each.min_groups} must start together"
                found.setdefault(gang.key, f"CompositePodGroup {each.name[:80]}: {number}")
    return found


def _count_starting(view: ClusterView, together: Sequence[Gang], can_start: Callable[[Gang], bool]) -> dict[str, int]:
    """Return name of a CompositePodGroup -> how many of its direct child groups can start; absent if none can.

    A child PodGroup can start if `can_start` says so; a child CompositePodGroup if its own minimum of groups can, and
    at least one.

    together: all gangs of one tree (`gangs_of_tree`). can_start: returns True for a gang that has started or has a
    place.
    """
    namespace = together[0].key.namespace if together else ""
    starting = {gang.key for gang in together if can_start(gang)}
    children: dict[str, set[object]] = {}  # those that can start
    for gang in reversed(together):
        names = [each.name for each in gang.terms.ancestors]
        if gang.key in starting:
            children.setdefault(names[-1], set()).add(gang.key)
    for depth in range(MAX_DEPTH - 1, 0, -1):  # the innermost first
        for gang in together:
            names = [each.name for each in gang.terms.ancestors]
            if len(names) > depth:
                min_groups = max(1, view.groups.composites.min_groups(namespace, names[depth]))
                if len(children.get(names[depth], ())) >= min_groups:
                    children.setdefault(names[depth - 1], set()).add(names[depth])
    return {name: len(found) for name, found in children.items()}


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
        """Return the steps of work since the last call, and start the count at 0 again."""
        steps, self._steps = self._steps, 0
        return steps

    def delay_beyond_limit(self, gang: Gang, can_start: Callable[[Gang], bool]) -> str:
        """Return why a gang beyond the MAX_TREE_GANGS oldest PodGroups of its tree waits; "" if it may be planned.

        It may be planned once enough of the groups below each of its ancestors can start, because then it has a domain
        to follow. "" also for a gang of no tree or within the limit. can_start: returns True for a gang that has
        started or has a place.
        """
        view, ancestors = self._view, gang.terms.ancestors
        if not ancestors or gang.key in view.groups.composites.tree(gang.key.namespace, ancestors[0].name):
            return ""
        self._steps += _COUNT_STEPS
        counts = _count_starting(view, _oldest_gangs(view, gang), can_start)
        if all(counts.get(each.name, 0) >= max(1, each.min_groups) for each in gang.terms.ancestors):
            return ""
        name = gang.terms.ancestors[0].name[:80]
        return f"CompositePodGroup {name} has more than {MAX_TREE_GANGS} PodGroups, and the oldest of them come first"

    def may_followers_start(self, together: Sequence[Gang], before: Collection[GangKey], plan_of: PlanOf) -> bool:
        """Return True if the set of a tree has just got its first places, and gangs beyond MAX_TREE_GANGS may be
        planned now.

        together: the set. before: the gangs of the set that had places before. plan_of: returns the current plan of a
        gang, None for none. False for a set of no tree, and for a tree with fewer than MAX_TREE_GANGS PodGroups.
        """
        if not together or before or not (ancestors := together[0].terms.ancestors):
            return False
        may_be_cut = self._view.groups.composites.may_exceed_limit(together[0].key.namespace, ancestors[0].name)
        plans = (plan_of(gang.key) for gang in together) if may_be_cut else ()
        return any(plan is not None and plan.hosts for plan in plans)

    def rows_outside(self, gang: Gang, plan_of: PlanOf, room_of: RoomOf) -> NDArray[np.bool_] | None:
        """Return a mask of the rows outside the domains that a gang shares with others of its tree; None if it shares
        none.

        plan_of: returns the current plan of another gang. room_of: the room that the gangs may use. If no domain has
        room for the gangs that must start together, all rows are marked. Gangs that run in several domains already
        share none.
        """
        together, view = _oldest_gangs(self._view, gang), self._view
        self._steps += len(together)
        mask: NDArray[np.bool_] | None = None
        for ancestor in gang.terms.ancestors:
            descendants = [
                other for other in together if any(each.name == ancestor.name for each in other.terms.ancestors)
            ]
            if ancestor.level is None or all(other is gang for other in descendants):
                continue
            table = _domain_of_rows(view, ancestor.level)
            hosts = [*_running_hosts(view, [gang, *descendants]), *_planned_hosts(gang, descendants, plan_of)]
            if not hosts and any(other is gang for other in descendants):
                hosts = self._choose(ancestor, descendants, room_of, mask)
            numbers = {int(table[host]) for host in hosts}
            if not numbers:
                return np.ones(len(table), np.bool_)
            if len(numbers) == 1:
                outside: NDArray[np.bool_] = table != numbers.pop()
                mask = union_rows(mask, outside)
        return mask

    def _choose(
        self, ancestor: Ancestor, gangs: Sequence[Gang], room_of: RoomOf, mask: NDArray[np.bool_] | None
    ) -> list[int]:
        """Return one host in the domain that holds the gangs below an ancestor; [] if no domain holds enough of them.

        All of them are placed as one gang with a group for each child. If that fails, or there are more than
        MAX_MERGED_CHILDREN, only the oldest children that must start are placed. gangs: below the ancestor, the oldest
        first. room_of: the room that they may use. mask: rows that may not be used; None for no row.
        """
        name = gangs[0].key.namespace, ancestor.name
        if mask is None and name in self._full:
            return []
        children = list(dict.fromkeys(_child_of(ancestor, gang) for gang in gangs))
        oldest = set(children[: ancestor.min_groups or 1])
        needed = [gang for gang in gangs if _child_of(ancestor, gang) in oldest]
        for some in (gangs, needed) if len(children) <= MAX_MERGED_CHILDREN else (needed,):
            work = Work()
            request = replace(build_request(self._view, merge_tree(ancestor, some), ()), excluded_rows=mask)
            plan = place(self._view.fabric, request, room_of, work)
            self._steps += work.spent_steps
            if plan.hosts:
                return list(plan.hosts.values())[:1]
        if mask is None:
            self._full.add(name)
        return []


def _domain_of_rows(view: ClusterView, level: Level) -> NDArray[np.int32]:
    """Return row -> number of its domain of a level; -1 for a row in no domain. An unknown level counts as a leaf.

    The array is shared: do not change it.
    """
    if (domains := view.levels.label_domains((level,))) is not None:
        return domains.row_domains
    tier = view.levels.tier_of(level)
    row: NDArray[np.int32] = view.fabric.switch_of[min(1 if tier is None else tier, view.fabric.tiers)]
    return row


def _running_hosts(view: ClusterView, gangs: Sequence[Gang]) -> Iterator[int]:
    """Yield one host of each gang of which a member holds a host. Members that a level does not count are left out."""
    for gang in gangs:
        counted = [member for member in gang.living() if member.gpus or not gang.has_accelerators]
        hosts = (view.host_of(member) for member in counted)
        if (host := next((host for host in hosts if host is not None), None)) is not None:
            yield host


def _planned_hosts(gang: Gang, gangs: Sequence[Gang], plan_of: PlanOf) -> Iterator[int]:
    """Yield one host of the plan of each other gang with a plan. gang: left out. plan_of: returns a gang's current
    plan.
    """
    for other in gangs:
        plan = plan_of(other.key) if other is not gang else None
        if plan is not None and plan.hosts:
            yield next(iter(plan.hosts.values()))


@dataclass(frozen=True, slots=True)
class _Child:
    """A child of a CompositePodGroup: a gang, or another CompositePodGroup."""

    name: str  # its name after "gang " or "composite "
    level: Level | None  # of the child; None for no such limit
    is_gang: bool  # False for a CompositePodGroup
    min_groups: int  # of a CompositePodGroup: gangs that start together at least; 1 for a gang


def merge_tree(ancestor: Ancestor, gangs: Sequence[Gang]) -> Gang:
    """Return the gangs below an ancestor as one gang, with a group for each of its children.

    ancestor: states how many children must start; one if it states no number. The min of the result is the sum of the
    smallest mins of so many children. gangs: at least one; the result has the key of the first. The terms that pods
    state do not count.
    """
    members: dict[str, GangMember] = {}
    mins: dict[_Child, list[int]] = {}
    for gang in gangs:
        child = _child_of(ancestor, gang)
        mins.setdefault(child, []).append(max(1, gang.min_pods))
        group_labels = ((_CHILD, child.name), (_KIND, _kind_of(child)))
        for uid, member in gang.members.items():
            members[uid] = replace(
                member, membership=replace(member.membership, group_labels=group_labels, wish=NOTHING)
            )
    kinds = {_kind_of(child): child for child in reversed(mins)}
    min_groups = ancestor.min_groups if len(kinds) == 1 else 0
    rules = tuple(
        GroupRule("of the tree", ((_KIND, kind),), (_CHILD,), 0, min_groups, child.level, all_or_nothing=child.is_gang)
        for kind, child in sorted(kinds.items())[:MAX_GROUPS]
    )
    child_mins = sorted(sum(sorted(counts)[: child.min_groups]) for child, counts in mins.items())
    wish = Wish("CompositePodGroup", ancestor.level, groups=rules)
    sizing = Sizing(sum(child_mins[: ancestor.min_groups or 1]), None, "", "", wish=wish)
    return Gang(gangs[0].key, gangs[0].version, sizing, gangs[0].tier_of, members)


def _child_of(ancestor: Ancestor, gang: Gang) -> _Child:
    """Return the child of an ancestor to which a gang belongs. Raises ValueError for a gang not below the ancestor."""
    names = [each.name for each in gang.terms.ancestors]
    inner = gang.terms.ancestors[names.index(ancestor.name) + 1 :]
    if inner:
        return _Child(f"composite {inner[0].name}", inner[0].level, False, inner[0].min_groups or 1)
    own = gang.sizing.wish.required if gang.sizing is not None else None
    return _Child(f"gang {gang.key.name}", own, True, 1)


def _kind_of(child: _Child) -> str:
    """Return a key that is equal for children whose groups have the same terms."""
    return f"{child.is_gang} {child.level!r}"
