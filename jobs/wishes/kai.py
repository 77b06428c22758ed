"""KAI's words: `topology-required-placement` on a pod, whose levels are keys of node labels, and its own PodGroup.

Source of the PodGroup's meaning: docs/facts/schedulers.md 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from turnout.jobs.wishes.model import MOST_GROUPS, GroupRule, Level, Wish
from turnout.jobs.wishes.notes import level, word

REQUIRED = "kai.scheduler/topology-required-placement"
PREFERRED = "kai.scheduler/topology-preferred-placement"
TREE = "kai.scheduler/topology"
SUBGROUP = "kai.scheduler/subgroup-name"
MOST_SUBGROUPS = 64  # of one PodGroup, of which more is kept than their sum
_MOST_COUNT = 1_000_000
_MOST_SENTENCES = 8
_OWN_TREE = "is not kept: the tree is that of our own map"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return what the annotations of a pod say; None when they say nothing."""
    source = next((key for key in (REQUIRED, PREFERRED, TREE) if key in notes), None)
    if source is None:
        return None
    unkept = (f"{TREE} {_OWN_TREE}",) if TREE in notes else ()
    return Wish(source, level(notes, REQUIRED, faults), unkept=unkept)


@dataclass(frozen=True, slots=True)
class Asked:
    """The numbers and the wish of a PodGroup of KAI.

    least: so many pods start together. subgroups: a subgroup, and how many of its pods start, where it says so.
    """

    least: int
    subgroups: tuple[tuple[str, int], ...]
    wish: Wish


@dataclass(frozen=True, slots=True)
class _Place:
    """A topologyConstraint. said: it says anything at all."""

    required: Level | None = None
    near: bool = False  # it names a level, required or preferred
    said: bool = False


@dataclass(frozen=True, slots=True)
class _Subgroup:
    """One entry of subGroups."""

    name: str
    parent: str
    least: int
    children_needed: int | None  # None: all
    place: _Place


def asked(min_member: object, min_subgroup: object, subgroups: object, constraint: object) -> Asked:
    """Return what a PodGroup asks, from its fields minMember, minSubGroup, subGroups and topologyConstraint.

    Each of them may be anything. As in KAI, minMember does not count beside subgroups, a subgroup that is nobody's
    parent has pods, and one without a minimum starts when it can.
    """
    unkept: list[str] = []
    place = _place(constraint, "spec.topologyConstraint", unkept)
    listed = [each for each in subgroups if isinstance(each, dict)] if isinstance(subgroups, list) else []
    known = _known(listed, unkept)
    parents = {each.parent for each in known.values()}
    leaves = [each for each in known.values() if each.name not in parents]
    if known and not leaves:
        unkept.append("spec.subGroups is not kept: each subgroup is the parent of another")
    some = _some_of(known, leaves, min_subgroup) if len(listed) <= MOST_SUBGROUPS else None
    if some is None:
        _tell_elastic(known, min_subgroup, unkept)
    rules = (some,) if some is not None else _rules(known, leaves, unkept)
    source = "spec.topologyConstraint" if place.said else "spec.subGroups" if rules or unkept else ""
    told = tuple(dict.fromkeys(unkept))[:_MOST_SENTENCES]
    wish = Wish(source, place.required, groups=rules, unkept=told)
    if not leaves:
        return Asked(max(1, _count(min_member)), (), wish)
    if some is not None:
        return Asked(min(some.least * some.pods, _MOST_COUNT), (), wish)
    further = sum(_count(each.get("minMember")) for each in listed[MOST_SUBGROUPS:])
    least = min(sum(each.least for each in leaves) + further, _MOST_COUNT)
    return Asked(max(1, least), tuple((each.name, each.least) for each in leaves if each.least), wish)


def _known(listed: list[dict[str, object]], unkept: list[str]) -> dict[str, _Subgroup]:
    """Return the subgroups that can be read, by name, in their order. A parent is named in any case, as KAI has it."""
    if len(listed) > MOST_SUBGROUPS:
        unkept.append(f"spec.subGroups has {len(listed)} entries, of which {MOST_SUBGROUPS} are kept")
    known: dict[str, _Subgroup] = {}
    for each in listed[:MOST_SUBGROUPS]:
        said = {key: text[:254] for key in ("name", "parent") if isinstance(text := each.get(key), str)}
        faults: list[str] = []
        name, parent = word(said, "name", faults), word(said, "parent", faults).lower()
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
    if not isinstance(constraint, dict):
        return _Place()
    fields = ("topology", "requiredTopologyLevel", "preferredTopologyLevel")
    said = {f"{where}.{key}": text for key in fields if isinstance(text := constraint.get(key), str) and text}
    if f"{where}.topology" in said:
        unkept.append(f"topologyConstraint.topology {_OWN_TREE}")
    near = any(f"{where}.{key}" in said for key in fields[1:])
    return _Place(level(said, f"{where}.requiredTopologyLevel", unkept), near, bool(said))


def _some_of(known: Mapping[str, _Subgroup], leaves: list[_Subgroup], min_subgroup: object) -> GroupRule | None:
    """Return the rule by which so many subgroups start, each whole, where all are alike and none has a parent."""
    needed = _count(min_subgroup)
    if not 0 < needed < len(leaves) or len(leaves) < len(known):
        return None
    least, place = leaves[0].least, leaves[0].place
    if not least or any(each.parent or (each.least, each.place) != (least, place) for each in leaves):
        return None
    marks = _marks([each.name for each in leaves])
    return GroupRule("of KAI", keys=(SUBGROUP,), one_of=marks, level=place.required, least=needed, pods=least)


def _tell_elastic(known: Mapping[str, _Subgroup], min_subgroup: object, unkept: list[str]) -> None:
    """Tell where fewer subgroups than all would do: here all start together."""
    needed = {"": None if min_subgroup is None else _count(min_subgroup)}
    needed.update({each.name: each.children_needed for each in known.values()})
    for name, most in needed.items():
        children = sum(each.parent == name or (not name and each.parent not in known) for each in known.values())
        if most is not None and most < children:
            where = f"spec.subGroups {name}: minSubGroup" if name else "spec.minSubGroup"
            unkept.append(f"{where} is not kept: all {children} start together, not {most} of them")


def _rules(known: Mapping[str, _Subgroup], leaves: list[_Subgroup], unkept: list[str]) -> tuple[GroupRule, ...]:
    """Return the rules by which subgroups stay together: of each level one, of each parent that names a level one.

    Groups lie within no other groups here: where a subgroup names a level below that of its parent, its own is kept.
    """
    alike: dict[Level | None, list[str]] = {}
    under: dict[str, list[str]] = {}
    for leaf in leaves:
        above = list(_above(known, leaf))
        hard, own = [each for each in above if each.place.required is not None], leaf.place.required
        soft = [each for each in above if each.place.near and not hard and not leaf.place.near]
        if hard and own in (None, hard[0].place.required):
            under.setdefault(hard.pop(0).name, []).append(leaf.name)
        elif leaf.place.near:
            alike.setdefault(own, []).append(leaf.name)
        elif soft:
            under.setdefault(soft[0].name, []).append(leaf.name)
        unkept.extend(f"spec.subGroups {each.name}: its level is not kept around that of {leaf.name}" for each in hard)
    rules = [
        *(GroupRule(one_of=_marks(names), keys=(SUBGROUP,), level=own, whole=False) for own, names in alike.items()),
        *(GroupRule(name, one_of=_marks(names), level=known[name].place.required, whole=False)
          for name, names in under.items()),
    ]  # fmt: skip
    if len(rules) > MOST_GROUPS:
        unkept.append(f"spec.subGroups names {len(rules)} places, of which {MOST_GROUPS} are kept")
    return tuple(rules[:MOST_GROUPS])


def _above(known: Mapping[str, _Subgroup], leaf: _Subgroup) -> Iterator[_Subgroup]:
    """Yield the parents of a subgroup, the nearest first, each once."""
    seen, at = {leaf.name}, known.get(leaf.parent)
    while at is not None and at.name not in seen:
        yield at
        seen.add(at.name)
        at = known.get(at.parent)


def _marks(names: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((SUBGROUP, name) for name in names)


def _count(value: object) -> int:
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_COUNT
    return value if counts and isinstance(value, int) else 0
