"""The trees of Kubernetes' own PodGroups: which CompositePodGroups are above each PodGroup, and what they require.

A name is resolved in the namespace of the object that has it. Objects may come in any order. A tree has at most
MAX_DEPTH levels, as in kube-scheduler, and MAX_TREE_GANGS of its PodGroups are one set. Source: KEP-6012.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest

from turnout.jobs.gang import GangKey
from turnout.jobs.wishes.merge import constraint_level
from turnout.jobs.wishes.merge_table import merge_terms
from turnout.jobs.wishes.model import Ancestor, Wish
from turnout.kube.objects import PodGroup
from turnout.scheduler_ext.cluster.gang import Sizing

SOURCE = "spec.parentCompositePodGroupName"
MAX_DEPTH = 4  # levels of a tree, with its PodGroups
# PodGroups of one tree that are planned as one set, the oldest first; further ones follow once these can start
MAX_TREE_GANGS = 64
_MAX_NAME = 253
_MAX_GROUPS = 1_000_000
_Name = tuple[str, str]  # namespace and name of a CompositePodGroup


@dataclass(frozen=True, slots=True)
class _Composite:
    """A CompositePodGroup."""

    terms: Ancestor
    parent: str  # the name of its own parent, "" for none


def parent_name(group: PodGroup) -> str:
    """Return the name of the CompositePodGroup that a group of any kind names as its parent; "" for none."""
    name = group.spec.parent_composite_pod_group_name
    return name[:_MAX_NAME] if isinstance(name, str) else ""


def _min_groups(policy: object) -> int:
    """Return `gang.minGroupCount` of a scheduling policy: how many child groups start together.

    policy: may have any type. 0, for groups that start by themselves, if it is absent or not in 1.._MAX_GROUPS.
    """
    gang = policy.get("gang") if isinstance(policy, dict) else None
    count = gang.get("minGroupCount") if isinstance(gang, dict) else None
    return count if type(count) is int and 0 < count <= _MAX_GROUPS else 0


@dataclass(frozen=True, slots=True)
class _Chain:
    """The known ancestors of a PodGroup."""

    ancestors: tuple[Ancestor, ...]  # the nearest first
    fault: str = ""  # why they are not a whole tree, "" if they are
    lacks_parent: bool = False  # one of them, or the PodGroup, names a parent that is not known


class CompositeGroups:
    """The CompositePodGroups of all namespaces, and the PodGroups below them."""

    def __init__(self) -> None:
        """Start without any group."""
        self._composites: dict[_Name, _Composite] = {}
        self._composites_below: dict[_Name, dict[str, None]] = {}  # parent -> names of CompositePodGroups
        self._gangs_below: dict[_Name, dict[GangKey, tuple[str, str]]] = {}  # parent -> gang -> (created, uid)
        self._parents: dict[GangKey, str] = {}
        self._trees: dict[str, dict[str, dict[GangKey, None]]] = {}  # namespace -> root -> its gangs, as computed

    def put(self, group: PodGroup) -> Collection[GangKey]:
        """Add or update a CompositePodGroup.

        Returns the PodGroups below it, whose terms may have changed; () for no change.
        """
        meta, spec = group.metadata, group.spec
        terms = Ancestor(meta.name, constraint_level(spec.scheduling_constraints), _min_groups(spec.scheduling_policy))
        composite, name = _Composite(terms, parent_name(group)), (meta.namespace, meta.name)
        if self._composites.get(name) == composite:
            return ()
        self._unlink(name)
        self._composites[name] = composite
        if composite.parent:
            self._composites_below.setdefault((meta.namespace, composite.parent), {})[meta.name] = None
        return self._gangs_of_changed(name)

    def drop(self, namespace: str, name: str) -> Collection[GangKey]:
        """Remove a CompositePodGroup. Returns the PodGroups below it, whose terms may have changed, even if the
        CompositePodGroup was not known.
        """
        self._unlink((namespace, name))
        self._composites.pop((namespace, name), None)
        return self._gangs_of_changed((namespace, name))

    def put_gang(self, key: GangKey, parent: str, created: str, uid: str) -> None:
        """Add or update a PodGroup, and remove it from another tree.

        parent: name of its CompositePodGroup; "" for one in no tree, which is not stored. created: RFC 3339; with `uid`
        the age of the PodGroup among those of its tree.
        """
        if self._parents.get(key, "") != parent:
            self.drop_gang(key)
        if parent:
            self._parents[key] = parent
            self._gangs_below.setdefault((key.namespace, parent), {})[key] = (created, uid)
            self._trees.pop(key.namespace, None)

    def drop_gang(self, key: GangKey) -> None:
        """Remove a PodGroup from its tree. Does nothing for one in no tree."""
        if (parent := self._parents.pop(key, None)) is None:
            return
        gangs = self._gangs_below[key.namespace, parent]
        del gangs[key]
        if not gangs:
            del self._gangs_below[key.namespace, parent]
        self._trees.pop(key.namespace, None)

    def with_terms(self, key: GangKey, sizing: Sizing) -> Sizing:
        """Return what a PodGroup states, with the terms of the CompositePodGroups above it; unchanged for one in no
        tree.

        sizing: what the PodGroup itself states. The levels of all known ancestors are required in any case. If the tree
        is a circle or too deep, the gang is placed alone, not with the other gangs of the tree. This fault, and a
        missing ancestor, are among the ignored terms.
        """
        if not (parent := self._parents.get(key)):
            return sizing
        chain = _chain(self._composites, key.namespace, parent)
        ancestors = tuple(reversed(chain.ancestors))
        levels = tuple(
            (f"spec.schedulingConstraints.topology of CompositePodGroup {each.name}", each.level)
            for each in ancestors
            if each.level is not None
        )
        valid_ancestors = ancestors if not chain.fault or chain.lacks_parent else ()
        name = f"CompositePodGroup {valid_ancestors[0].name}" if valid_ancestors else ""
        unkept = (f"{SOURCE} is not kept: {chain.fault}",) if chain.fault else ()
        tree = Wish(SOURCE, together=name, ancestors=valid_ancestors, other_levels=levels, ignored=unkept)
        wish = merge_terms(sizing.wish, tree) if sizing.wish.source else tree
        return replace(sizing, wish=wish, lacks_parent=chain.lacks_parent)

    def tree(self, namespace: str, root: str) -> Collection[GangKey]:
        """Return the PodGroups of a tree, the oldest first, at most MAX_TREE_GANGS.

        root: name of the outermost CompositePodGroup; a name without PodGroups below gives an empty result. The result
        is a view of a cached table, which is replaced when a group of the namespace changes.
        """
        trees = self._trees.setdefault(namespace, {})
        if root not in trees:
            ages = self._ages_below((namespace, root))
            oldest = nsmallest(MAX_TREE_GANGS, ages, key=lambda key: (*ages[key], key))
            trees[root] = dict.fromkeys(oldest)
        return trees[root].keys()

    def may_exceed_limit(self, namespace: str, root: str) -> bool:
        """Return True if a tree has at least MAX_TREE_GANGS PodGroups, so that some may be left out of it."""
        return len(self.tree(namespace, root)) == MAX_TREE_GANGS  # a tree of exactly so many costs only some work

    def min_groups(self, namespace: str, name: str) -> int:
        """Return how many child groups of a CompositePodGroup start together.

        0 if each starts by itself, and for an unknown group.
        """
        composite = self._composites.get((namespace, name))
        return 0 if composite is None else composite.terms.min_groups

    def _unlink(self, name: _Name) -> None:
        """Remove a CompositePodGroup from the children of its parent.

        Does nothing if it is unknown or has no parent.
        """
        composite = self._composites.get(name)
        if composite is None or not composite.parent:
            return
        above = name[0], composite.parent
        below = self._composites_below.get(above, {})
        below.pop(name[1], None)
        if not below:
            self._composites_below.pop(above, None)

    def _gangs_of_changed(self, name: _Name) -> Collection[GangKey]:
        """Forget the cached trees of a namespace, and return all PodGroups below a CompositePodGroup that changed."""
        self._trees.pop(name[0], None)
        return self._ages_below(name).keys()

    def _ages_below(self, name: _Name) -> dict[GangKey, tuple[str, str]]:
        """Return PodGroup -> (created, uid) for all PodGroups below a CompositePodGroup.

        Ends also if the names form a circle.
        """
        found: dict[GangKey, tuple[str, str]] = {}
        visited, waiting = {name}, [name]
        while waiting:
            at = waiting.pop()
            found |= self._gangs_below.get(at, {})
            below = [(at[0], child) for child in self._composites_below.get(at, {})]
            waiting += [child for child in below if child not in visited]
            visited.update(below)
        return found


def _chain(composites: Mapping[_Name, _Composite], namespace: str, parent: str) -> _Chain:
    """Return the known ancestors of a PodGroup. parent: the name of its own parent.

    The chain has a fault if it is a circle, has more than MAX_DEPTH levels, or an ancestor is not known. composites:
    all that are known.
    """
    ancestors: list[Ancestor] = []
    while parent:
        if any(each.name == parent for each in ancestors):
            return _Chain(tuple(ancestors), f"CompositePodGroup {parent[:80]} is above itself")
        if len(ancestors) == MAX_DEPTH - 1:
            return _Chain(tuple(ancestors), f"the tree has more than {MAX_DEPTH} levels")
        composite = composites.get((namespace, parent))
        if composite is None:
            return _Chain(tuple(ancestors), f"CompositePodGroup {parent[:80]} does not exist", True)
        ancestors.append(composite.terms)
        parent = composite.parent
    return _Chain(tuple(ancestors))
