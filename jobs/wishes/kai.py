"""KAI's words: `topology-required-placement` on a pod, whose levels are keys of node labels, and its own PodGroup.

Source of the PodGroup's meaning: docs/facts/schedulers.md 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from turnout.jobs.fields import annotation_level, annotation_word
from turnout.jobs.wishes.model import MAX_GROUPS, GroupRule, Level, Wish

REQUIRED = "kai.scheduler/topology-required-placement"
PREFERRED = "kai.scheduler/topology-preferred-placement"
TREE = "kai.scheduler/topology"
SUBGROUP = "kai.scheduler/subgroup-name"
MAX_SUBGROUPS = 64  # entries of one PodGroup that are read whole; of further ones only the sum of minMember counts
_MAX_COUNT = 1_000_000  # pods or subgroups; a larger number counts as 0
_MAX_SENTENCES = 8  # about ignored terms of one PodGroup
_OWN_TREE_TEXT = "is not kept: the tree is that of our own map"


def read(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the placement terms in KAI's annotations of a pod; None without any.

    annotations: of the pod. faults: receives a sentence for each unreadable value.
    """
    source = next((key for key in (REQUIRED, PREFERRED, TREE) if key in annotations), None)
    if source is None:
        return None
    ignored = (f"{TREE} {_OWN_TREE_TEXT}",) if TREE in annotations else ()
    return Wish(source, annotation_level(annotations, REQUIRED, faults), ignored=ignored)


@dataclass(frozen=True, slots=True)
class KaiPodGroup:
    """The numbers and the placement terms of a PodGroup of KAI."""

    min_pods: int  # pods that start together, >= 1
    subgroups: tuple[tuple[str, int], ...]  # (name, pods that start together, >= 1) of each subgroup with a minimum
    wish: Wish  # the placement terms


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A topologyConstraint of a PodGroup or a subgroup."""

    required: Level | None = None  # None for no required level
    names_level: bool = False  # True if it names a level, required or preferred
    is_set: bool = False  # True if it has at least one field


@dataclass(frozen=True, slots=True)
class _Subgroup:
    """One entry of subGroups."""

    name: str
    parent: str  # the name of its parent subgroup, in lower case; "" for none
    min_pods: int  # minMember: pods that start together, >= 0
    children_needed: int | None  # minSubGroup: child subgroups that start together; None for all
    levels: _Constraint


def read_pod_group(min_member: object, min_subgroup: object, subgroups: object, constraint: object) -> KaiPodGroup:
    """Return the terms of a PodGroup of KAI, from its fields minMember, minSubGroup, subGroups and topologyConstraint.

    Each field may have any type. As in KAI, minMember is ignored if there are subgroups, only a subgroup without
    children has pods, and a subgroup without a minimum is optional. `wish.ignored` of the result has a sentence for
    each term that has no effect.
    """
    ignored: list[str] = []
    own_levels = _read_constraint(constraint, "spec.topologyConstraint", ignored)
    entries = [each for each in subgroups if isinstance(each, dict)] if isinstance(subgroups, list) else []
    by_name = _subgroups_by_name(entries, ignored)
    parents = {each.parent for each in by_name.values()}
    leaves = [each for each in by_name.values() if each.name not in parents]
    if by_name and not leaves:
        ignored.append("spec.subGroups is not kept: each subgroup is the parent of another")
    subset_rule = _rule_for_some_subgroups(by_name, leaves, min_subgroup) if len(entries) <= MAX_SUBGROUPS else None
    if subset_rule is None:
        _report_min_subgroups(by_name, min_subgroup, ignored)
    rules = (subset_rule,) if subset_rule is not None else _rules(by_name, leaves, ignored)
    source = "spec.topologyConstraint" if own_levels.is_set else "spec.subGroups" if rules or ignored else ""
    wish = Wish(source, own_levels.required, groups=rules, ignored=tuple(dict.fromkeys(ignored))[:_MAX_SENTENCES])
    if subset_rule is not None:
        return KaiPodGroup(min(subset_rule.min_groups * subset_rule.pods, _MAX_COUNT), (), wish)
    if not leaves:
        return KaiPodGroup(max(1, _count(min_member)), (), wish)
    return _numbers_of_leaves(leaves, entries[MAX_SUBGROUPS:], wish)


def _numbers_of_leaves(leaves: list[_Subgroup], further: list[dict[str, object]], wish: Wish) -> KaiPodGroup:
    """Return the numbers of a PodGroup with subgroups: its min is the sum of the subgroups' minMember.

    leaves: the subgroups without children, which have the pods. further: the entries of subGroups after the first
    MAX_SUBGROUPS. wish: the placement terms of the result.
    """
    other_pods = sum(_count(each.get("minMember")) for each in further)
    min_pods = min(sum(each.min_pods for each in leaves) + other_pods, _MAX_COUNT)
    return KaiPodGroup(max(1, min_pods), tuple((each.name, each.min_pods) for each in leaves if each.min_pods), wish)


def _subgroups_by_name(listed: list[dict[str, object]], ignored: list[str]) -> dict[str, _Subgroup]:
    """Return the readable subgroups by name, in the order of `listed`, the entries of subGroups; at most MAX_SUBGROUPS.

    As in KAI, a parent's name is turned into lower case, and names are not: a name with a capital, which KAI's CRD
    refuses, is found by no child. ignored: receives a sentence for each entry, parent or part of a constraint that is
    ignored. An unreadable count is 0.
    """
    if len(listed) > MAX_SUBGROUPS:
        ignored.append(f"spec.subGroups has {len(listed)} entries: only the first {MAX_SUBGROUPS} are used")
    by_name: dict[str, _Subgroup] = {}
    for each in listed[:MAX_SUBGROUPS]:
        texts = {key: text[:254] for key in ("name", "parent") if isinstance(text := each.get(key), str)}
        faults: list[str] = []
        name, parent = annotation_word(texts, "name", faults), annotation_word(texts, "parent", faults).lower()
        if not name or name in by_name:
            ignored.extend(f"spec.subGroups: {fault}" for fault in faults or ["each must have a name of its own"])
            continue
        ignored.extend(f"spec.subGroups {name}: {fault}" for fault in faults)
        needed, where = each.get("minSubGroup"), f"spec.subGroups {name}: topologyConstraint"
        children = _count(needed) if needed is not None else None
        levels = _read_constraint(each.get("topologyConstraint"), where, ignored)
        by_name[name] = _Subgroup(name, parent, _count(each.get("minMember")), children, levels)
    _report_orphans(by_name, ignored)
    return by_name


def _report_orphans(by_name: Mapping[str, _Subgroup], ignored: list[str]) -> None:
    """Add a sentence to `ignored` for each subgroup whose parent does not exist. by_name: all subgroups."""
    orphans = [each for each in by_name.values() if each.parent and each.parent not in by_name]
    ignored.extend(
        f"spec.subGroups {each.name} has no parent {each.parent}: it counts as without one" for each in orphans
    )


def _read_constraint(constraint: object, where: str, ignored: list[str]) -> _Constraint:
    """Return the levels of a topologyConstraint, which may have any type; empty if it is no object.

    constraint: the field. where: its path, for reports. ignored: receives a sentence for each part that is ignored.
    """
    if not isinstance(constraint, dict):
        return _Constraint()
    fields = ("topology", "requiredTopologyLevel", "preferredTopologyLevel")
    texts = {f"{where}.{key}": text for key in fields if isinstance(text := constraint.get(key), str) and text}
    if f"{where}.topology" in texts:
        ignored.append(f"topologyConstraint.topology {_OWN_TREE_TEXT}")
    names_level = any(f"{where}.{key}" in texts for key in fields[1:])
    return _Constraint(annotation_level(texts, f"{where}.requiredTopologyLevel", ignored), names_level, bool(texts))


def _rule_for_some_subgroups(
    by_name: Mapping[str, _Subgroup], leaves: list[_Subgroup], min_subgroup: object
) -> GroupRule | None:
    """Return the rule by which only some of several equal subgroups must start, each as a whole.

    None if the subgroups are not equal or not all without a parent, if a subgroup has no minMember, if all must start,
    or if min_subgroup is no count. by_name: all subgroups. leaves: those without children. min_subgroup: the field
    minSubGroup, of any type.
    """
    needed = _count(min_subgroup)
    if not 0 < needed < len(leaves) or len(leaves) < len(by_name):
        return None
    min_pods, levels = leaves[0].min_pods, leaves[0].levels
    if not min_pods or any(each.parent or (each.min_pods, each.levels) != (min_pods, levels) for each in leaves):
        return None
    pod_labels = _name_labels([each.name for each in leaves])
    return GroupRule(
        "of KAI", keys=(SUBGROUP,), one_of=pod_labels, level=levels.required, min_groups=needed, pods=min_pods
    )


def _report_min_subgroups(by_name: Mapping[str, _Subgroup], min_subgroup: object, ignored: list[str]) -> None:
    """Add to `ignored` a sentence for each minSubGroup that has no effect, because here all subgroups start together.

    by_name: all subgroups. min_subgroup: the field of the PodGroup itself, of any type.
    """
    needed = {"": None if min_subgroup is None else _count(min_subgroup)}
    needed.update({each.name: each.children_needed for each in by_name.values()})
    for name, min_children in needed.items():
        children = sum(each.parent == name or (not name and each.parent not in by_name) for each in by_name.values())
        if min_children is not None and min_children < children:
            where = f"spec.subGroups {name}: minSubGroup" if name else "spec.minSubGroup"
            ignored.append(f"{where} is not kept: all {children} start together, not {min_children} of them")


def _rules(by_name: Mapping[str, _Subgroup], leaves: list[_Subgroup], ignored: list[str]) -> tuple[GroupRule, ...]:
    """Return the rules that keep subgroups together: one for each level, and one for each parent that names a level.

    by_name: all subgroups. leaves: those without children. Groups cannot be nested here. If a subgroup and its parent
    name different levels, the subgroup's level is used, and `ignored` receives a sentence. At most MAX_GROUPS rules are
    returned.
    """
    names_by_level, names_by_parent = _leaves_by_level_and_parent(by_name, leaves, ignored)
    rules = [
        *(GroupRule(one_of=_name_labels(names), keys=(SUBGROUP,), level=leaf_level, all_or_nothing=False)
          for leaf_level, names in names_by_level.items()),
        *(GroupRule(name, one_of=_name_labels(names), level=by_name[name].levels.required, all_or_nothing=False)
          for name, names in names_by_parent.items()),
    ]  # fmt: skip
    if len(rules) > MAX_GROUPS:
        ignored.append(f"spec.subGroups names {len(rules)} places: only the first {MAX_GROUPS} are used")
    return tuple(rules[:MAX_GROUPS])


def _leaves_by_level_and_parent(
    by_name: Mapping[str, _Subgroup], leaves: list[_Subgroup], ignored: list[str]
) -> tuple[dict[Level | None, list[str]], dict[str, list[str]]]:
    """Return the names of the leaves by the level that each has for itself, and by the parent whose level they share.

    The arguments are those of _rules(). A leaf without any level is in neither of them.
    """
    names_by_level: dict[Level | None, list[str]] = {}
    names_by_parent: dict[str, list[str]] = {}
    for leaf in leaves:
        ancestors = list(_ancestors(by_name, leaf))
        hard, leaf_level = [each for each in ancestors if each.levels.required is not None], leaf.levels.required
        soft = [each for each in ancestors if each.levels.names_level and not hard and not leaf.levels.names_level]
        if hard and leaf_level in (None, hard[0].levels.required):
            names_by_parent.setdefault(hard.pop(0).name, []).append(leaf.name)
        elif leaf.levels.names_level:
            names_by_level.setdefault(leaf_level, []).append(leaf.name)
        elif soft:
            names_by_parent.setdefault(soft[0].name, []).append(leaf.name)
        ignored.extend(
            f"spec.subGroups {each.name}: its level is not kept, because the level of its subgroup {leaf.name} counts"
            for each in hard
        )
    return names_by_level, names_by_parent


def _ancestors(by_name: Mapping[str, _Subgroup], leaf: _Subgroup) -> Iterator[_Subgroup]:
    """Yield the ancestors of a subgroup, the nearest first. If parents form a cycle, each ancestor comes only once."""
    visited, ancestor = {leaf.name}, by_name.get(leaf.parent)
    while ancestor is not None and ancestor.name not in visited:
        yield ancestor
        visited.add(ancestor.name)
        ancestor = by_name.get(ancestor.parent)


def _name_labels(names: list[str]) -> tuple[tuple[str, str], ...]:
    """Return the labels of pods, one for each of these names of subgroups."""
    return tuple((SUBGROUP, name) for name in names)


def _count(value: object) -> int:
    """Return a whole number from 1 to _MAX_COUNT - 1; 0 for any other value."""
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_COUNT
    return value if counts and isinstance(value, int) else 0
