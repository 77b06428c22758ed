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
MAX_SUBGROUPS = 64  # of one PodGroup, of which more is kept than their sum
_MAX_COUNT = 1_000_000
_MAX_SENTENCES = 8
_OWN_TREE = "is not kept: the tree is that of our own map"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the placement terms in KAI's annotations of a pod; None without any."""
    source = next((key for key in (REQUIRED, PREFERRED, TREE) if key in notes), None)
    if source is None:
        return None
    unkept = (f"{TREE} {_OWN_TREE}",) if TREE in notes else ()
    return Wish(source, annotation_level(notes, REQUIRED, faults), ignored=unkept)


@dataclass(frozen=True, slots=True)
class KaiPodGroup:
    """The numbers and the placement terms of a PodGroup of KAI."""

    least: int  # pods that start together, >= 1
    subgroups: tuple[tuple[str, int], ...]  # (name, pods that start), only of subgroups with a minimum
    wish: Wish  # the placement terms


@dataclass(frozen=True, slots=True)
class _Place:
    """A topologyConstraint of a PodGroup or a subgroup."""

    required: Level | None = None  # None for no required level
    names_level: bool = False  # it names a level, required or preferred
    is_set: bool = False  # it has at least one field


@dataclass(frozen=True, slots=True)
class _Subgroup:
    """One entry of subGroups."""

    name: str
    parent: str  # "" for none
    least: int  # pods that start, >= 0
    children_needed: int | None  # None: all
    place: _Place


def read_pod_group(min_member: object, min_subgroup: object, subgroups: object, constraint: object) -> KaiPodGroup:
    """Return the terms of a PodGroup, from its fields minMember, minSubGroup, subGroups and topologyConstraint.

    Each field may have any type. As in KAI, minMember is ignored beside subgroups, a subgroup without children has
    pods, and a subgroup without a minimum is optional.
    """
    unkept: list[str] = []
    place = _place(constraint, "spec.topologyConstraint", unkept)
    entries = [each for each in subgroups if isinstance(each, dict)] if isinstance(subgroups, list) else []
    known = _known(entries, unkept)
    parents = {each.parent for each in known.values()}
    leaves = [each for each in known.values() if each.name not in parents]
    if known and not leaves:
        unkept.append("spec.subGroups is not kept: each subgroup is the parent of another")
    subset_rule = _rule_for_some_subgroups(known, leaves, min_subgroup) if len(entries) <= MAX_SUBGROUPS else None
    if subset_rule is None:
        _tell_elastic(known, min_subgroup, unkept)
    rules = (subset_rule,) if subset_rule is not None else _rules(known, leaves, unkept)
    source = "spec.topologyConstraint" if place.is_set else "spec.subGroups" if rules or unkept else ""
    wish = Wish(source, place.required, groups=rules, ignored=tuple(dict.fromkeys(unkept))[:_MAX_SENTENCES])
    if subset_rule is not None:
        return KaiPodGroup(min(subset_rule.least * subset_rule.pods, _MAX_COUNT), (), wish)
    if not leaves:
        return KaiPodGroup(max(1, _count(min_member)), (), wish)
    return _of_leaves(leaves, entries[MAX_SUBGROUPS:], wish)


def _of_leaves(leaves: list[_Subgroup], further: list[dict[str, object]], wish: Wish) -> KaiPodGroup:
    """Return the numbers of a PodGroup by its subgroups with pods. further: the entries beyond those that are kept."""
    other_pods = sum(_count(each.get("minMember")) for each in further)
    least = min(sum(each.least for each in leaves) + other_pods, _MAX_COUNT)
    return KaiPodGroup(max(1, least), tuple((each.name, each.least) for each in leaves if each.least), wish)


def _known(listed: list[dict[str, object]], unkept: list[str]) -> dict[str, _Subgroup]:
    """Return the readable subgroups by name, in their order. As in KAI, the case of a parent's name is ignored."""
    if len(listed) > MAX_SUBGROUPS:
        unkept.append(f"spec.subGroups has {len(listed)} entries, of which {MAX_SUBGROUPS} are kept")
    known: dict[str, _Subgroup] = {}
    for each in listed[:MAX_SUBGROUPS]:
        texts = {key: text[:254] for key in ("name", "parent") if isinstance(text := each.get(key), str)}
        faults: list[str] = []
        name, parent = annotation_word(texts, "name", faults), annotation_word(texts, "parent", faults).lower()
        if not name or name in known:
            unkept.extend(f"spec.subGroups: {fault}" for fault in faults or ["each must have a name of its own"])
            continue
        needed, where = each.get("minSubGroup"), f"spec.subGroups {name}: topologyConstraint"
        children = _count(needed) if needed is not None else None
        place = _place(each.get("topologyConstraint"), where, unkept)
        known[name] = _Subgroup(name, parent, _count(each.get("minMember")), children, place)
    lost = [each for each in known.values() if each.parent and each.parent not in known]
    unkept.extend(f"spec.subGroups {each.name} has no parent {each.parent}: it counts as without one" for each in lost)
    return known


def _place(constraint: object, where: str, unkept: list[str]) -> _Place:
    """Return the levels of a topologyConstraint.

    where: its path, for reports. unkept: gets a sentence for each part not kept.
    """
    if not isinstance(constraint, dict):
        return _Place()
    fields = ("topology", "requiredTopologyLevel", "preferredTopologyLevel")
    texts = {f"{where}.{key}": text for key in fields if isinstance(text := constraint.get(key), str) and text}
    if f"{where}.topology" in texts:
        unkept.append(f"topologyConstraint.topology {_OWN_TREE}")
    names_level = any(f"{where}.{key}" in texts for key in fields[1:])
    return _Place(annotation_level(texts, f"{where}.requiredTopologyLevel", unkept), names_level, bool(texts))


def _rule_for_some_subgroups(
    known: Mapping[str, _Subgroup], leaves: list[_Subgroup], min_subgroup: object
) -> GroupRule | None:
    """Return the rule for a number of equal subgroups that start as a whole, None if the subgroups are not equal."""
    needed = _count(min_subgroup)
    if not 0 < needed < len(leaves) or len(leaves) < len(known):
        return None
    least, place = leaves[0].least, leaves[0].place
    if not least or any(each.parent or (each.least, each.place) != (least, place) for each in leaves):
        return None
    marks = _marks([each.name for each in leaves])
    return GroupRule("of KAI", keys=(SUBGROUP,), one_of=marks, level=place.required, least=needed, pods=least)


def _tell_elastic(known: Mapping[str, _Subgroup], min_subgroup: object, unkept: list[str]) -> None:
    """Add a sentence for each minSubGroup that is ignored, because here all subgroups start together."""
    needed = {"": None if min_subgroup is None else _count(min_subgroup)}
    needed.update({each.name: each.children_needed for each in known.values()})
    for name, most in needed.items():
        children = sum(each.parent == name or (not name and each.parent not in known) for each in known.values())
        if most is not None and most < children:
            where = f"spec.subGroups {name}: minSubGroup" if name else "spec.minSubGroup"
            unkept.append(f"{where} is not kept: all {children} start together, not {most} of them")


def _rules(known: Mapping[str, _Subgroup], leaves: list[_Subgroup], unkept: list[str]) -> tuple[GroupRule, ...]:
    """Return the rules that keep subgroups together: one for each level, and one for each parent that names a level.

    Groups cannot be nested here. If a subgroup and its parent name different levels, the subgroup's level is used.
    """
    alike: dict[Level | None, list[str]] = {}
    under: dict[str, list[str]] = {}
    for leaf in leaves:
        above = list(_above(known, leaf))
        hard, own = [each for each in above if each.place.required is not None], leaf.place.required
        soft = [each for each in above if each.place.names_level and not hard and not leaf.place.names_level]
        if hard and own in (None, hard[0].place.required):
            under.setdefault(hard.pop(0).name, []).append(leaf.name)
        elif leaf.place.names_level:
            alike.setdefault(own, []).append(leaf.name)
        elif soft:
            under.setdefault(soft[0].name, []).append(leaf.name)
        unkept.extend(f"spec.subGroups {each.name}: its level is not kept around that of {leaf.name}" for each in hard)
    rules = [
        *(GroupRule(one_of=_marks(names), keys=(SUBGROUP,), level=own, all_or_nothing=False)
          for own, names in alike.items()),
        *(GroupRule(name, one_of=_marks(names), level=known[name].place.required, all_or_nothing=False)
          for name, names in under.items()),
    ]  # fmt: skip
    if len(rules) > MAX_GROUPS:
        unkept.append(f"spec.subGroups names {len(rules)} places, of which {MAX_GROUPS} are kept")
    return tuple(rules[:MAX_GROUPS])


def _above(known: Mapping[str, _Subgroup], leaf: _Subgroup) -> Iterator[_Subgroup]:
    """Yield the ancestors of a subgroup, the nearest first, each once."""
    visited, at = {leaf.name}, known.get(leaf.parent)
    while at is not None and at.name not in visited:
        yield at
        visited.add(at.name)
        at = known.get(at.parent)


def _marks(names: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((SUBGROUP, name) for name in names)


def _count(value: object) -> int:
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_COUNT
    return value if counts and isinstance(value, int) else 0
