"""How two statements about one gang are merged, and which one wins in a conflict: a rule for each term.

`docs/wishes.md` shows this table. A hard term is kept by every plan. Where two hard terms contradict each other, one is
kept, and a sentence names both sources. The owner of the gang gets it in an Event with the reason `WishNotKept`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from turnout.jobs.wishes.model import Ancestor, Exclusion, GroupRule, Layer, Level, Mode, Wish, nested, tier_of_level

MAX_MULTIPLE = 1_024  # pods on one host of two combined multiples


@dataclass(frozen=True, slots=True)
class MergeRule:
    """The rule by which one term of two statements is merged."""

    term: str  # its name for people
    fields: tuple[str, ...]  # the fields of Wish that hold it
    is_hard: bool  # True if every plan keeps it, False if it is only preferred
    merged_value: str  # a phrase about the value that counts, for docs/wishes.md
    # Takes (first statement, other statement, list of sentences) and returns the values of `fields`. Appends a sentence
    # to the list for each term that is not kept.
    merge: Callable[[Wish, Wish, list[str]], tuple[Any, ...]]


def merge_terms(first: Wish, other: Wish) -> Wish:
    """Return the terms of two statements about one gang, merged by the rules in RULES.

    first: the statement that comes first in the order of sources. Of two terms that contradict each other, its term is
    kept, and so is its `source`. other: the other statement. `ignored` of the result has the sentences of both, and one
    for each term that is not kept.
    """
    ignored: list[str] = []
    values: dict[str, Any] = {}
    for rule in RULES:
        values.update(zip(rule.fields, rule.merge(first, other, ignored), strict=True))
    if other.only_prefers:
        ignored.append(f"{other.source} is not read, because {first.source} is set, too")
    return replace(first, **values, ignored=(*first.ignored, *other.ignored, *ignored))


def _levels(first: Wish, other: Wish, ignored: list[str]) -> tuple[Level | None, tuple[tuple[str, Level], ...]]:
    """Return (required level or None, (source, level) of each other required level): all levels of both count.

    ignored: nothing is added, because no level is ignored.
    """
    others_own = () if other.required is None else ((other.source, other.required),)
    return first.required, (*first.other_levels, *others_own, *other.other_levels)


def _multiple(first: Wish, other: Wish, ignored: list[str]) -> tuple[int]:
    """Return (the least common multiple of both multiples of pods on a host,), or (the multiple of `first`,) if that is
    above MAX_MULTIPLE.

    ignored: receives a sentence if the multiple of `other` is not kept.
    """
    both = lcm(first.multiple, other.multiple)
    if both <= MAX_MULTIPLE:
        return (both,)
    pods = f"the least common multiple of both, {both} pods on a host, is above {MAX_MULTIPLE}"
    ignored.append(f"{other.source} is not kept, because of {first.source}: {pods}")
    return (first.multiple,)


def _layers(first: Wish, other: Wish, ignored: list[str]) -> tuple[tuple[Layer, ...]]:
    """Return the layers of both statements whose sizes divide each other; of two other layers the larger.

    ignored: receives a sentence for each layer that is not kept.
    """
    if not first.layers or not other.layers or other.layers == first.layers:
        return (first.layers or other.layers,)
    both = dict.fromkeys((*first.layers, *other.layers))
    return (nested(f"{other.source} and {first.source}", both, ignored),)


def _groups(first: Wish, other: Wish, ignored: list[str]) -> tuple[tuple[GroupRule, ...]]:
    """Return the group rules: of each term the stricter, if both statements divide the pods in the same way; else those
    of first.

    ignored: receives a sentence if the rules of `other` are not kept.
    """
    if not first.groups or not other.groups or other.groups == first.groups:
        return (first.groups or other.groups,)
    cuts = ([(rule.match_labels, rule.keys, rule.size, rule.one_of) for rule in wish.groups] for wish in (first, other))
    own_cut, other_cut = cuts
    if own_cut != other_cut:
        ignored.append(
            f"{other.source} is not kept, because of {first.source}: each divides the pods into other groups"
        )
        return (first.groups,)
    return (tuple(_stricter(rule, other_rule) for rule, other_rule in zip(first.groups, other.groups, strict=True)),)


def _stricter(rule: GroupRule, other_rule: GroupRule) -> GroupRule:
    """Return a copy of `rule` in which each term is the stricter of two rules that divide the pods in the same way."""
    levels = [level for level in (rule.level, other_rule.level) if level is not None]
    return replace(
        rule,
        level=min(levels, key=tier_of_level, default=None),
        exclusive=rule.exclusive or other_rule.exclusive,
        min_groups=max(rule.min_groups, other_rule.min_groups),
        pods=max(rule.pods, other_rule.pods),
        all_or_nothing=rule.all_or_nothing or other_rule.all_or_nothing,
    )


def _exclusion(first: Wish, other: Wish, ignored: list[str]) -> tuple[Exclusion]:
    """Return (the exclusion,): its level and the name of its set are each from `first` if it sets it, else `other`.

    ignored: receives a sentence if both set a level and the levels or sets differ.
    """
    own, others = first.exclusion, other.exclusion
    if own.level is not None and others.level is not None and own != others:
        ignored.append(f"{other.source} is not kept, because of {first.source}: one level for a set of gangs")
    return (Exclusion(others.level if own.level is None else own.level, own.set_name or others.set_name),)


def _together(first: Wish, other: Wish, ignored: list[str]) -> tuple[str, int, bool, tuple[Ancestor, ...]]:
    """Return (name of gangs that start together, their number, one_domain, ancestors): of `first` if it has a name,
    else `other`.

    The third is True if a statement with this name sets it. ignored: receives a sentence if the names differ.
    """
    if other.together and first.together not in ("", other.together):
        ignored.append(f"{other.source} is not kept, because of {first.source}: one name for gangs that start together")
    chosen = first if first.together else other
    one_domain = any(wish.one_domain for wish in (first, other) if wish.together == chosen.together)
    return chosen.together, chosen.together_of, one_domain, chosen.ancestors


def _shape(first: Wish, other: Wish, ignored: list[str]) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Return (mesh, balanced): both from `first` if it sets one of them, else both from `other`.

    ignored: receives a sentence if terms of `other` are lost.
    """
    chosen = first if first.mesh or first.balanced else other
    if (other.mesh or other.balanced) and (chosen.mesh, chosen.balanced) != (other.mesh, other.balanced):
        ignored.append(f"{other.source} is not kept, because of {first.source}: one shape that is preferred")
    return chosen.mesh, chosen.balanced


def _mode(first: Wish, other: Wish, ignored: list[str]) -> tuple[Mode]:
    """Return (the mode of `first`,). Nothing is added to `ignored`."""
    return (first.mode,)


# In the order of the table in docs/wishes.md.
RULES = (
    MergeRule("required level", ("required", "other_levels"), True, "all of them hold: the narrowest decides", _levels),
    MergeRule(
        "multiple of pods on a host",
        ("multiple",),
        True,
        f"the least common multiple; above {MAX_MULTIPLE:,} that of the first source",
        _multiple,
    ),
    MergeRule(
        "runs of ranks",
        ("layers",),
        True,
        "all whose sizes divide each other, one within the other; of two others the larger",
        _layers,
    ),
    MergeRule(
        "groups within the gang",
        ("groups",),
        True,
        "where both divide the pods alike: the stricter of each term; else those of the first source",
        _groups,
    ),
    MergeRule("apart from other gangs", ("exclusion",), True, "of the first source", _exclusion),
    MergeRule(
        "together with other gangs",
        ("together", "together_of", "one_domain", "ancestors"),
        True,
        "of the first source; of a tree of PodGroups each level's own",
        _together,
    ),
    MergeRule("mesh, balanced", ("mesh", "balanced"), False, "of the first source that has one", _shape),
    MergeRule("near, smallest holes, or none", ("mode",), False, "of the first source", _mode),
)
