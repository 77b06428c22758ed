"""How two statements about one gang become one: a rule for each term. `docs/wishes.md` shows this table.

A hard term is kept by every plan. Where two hard terms cannot be kept together, one is kept, and a sentence names both
sources. The owner of the gang gets it in an Event with the reason `WishNotKept`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from turnout.jobs.wishes.model import Ancestor, GroupRule, Layer, Level, Mode, Wish, by_name, nested

MAX_MULTIPLE = 1_024  # pods on one host of two combined multiples


@dataclass(frozen=True, slots=True)
class MergeRule:
    """How one term of two statements is merged."""

    term: str  # its name for people
    fields: tuple[str, ...]  # the fields of Wish that hold it
    is_hard: bool  # True if every plan keeps it
    merged_value: str  # a sentence about the value that counts
    # (first, other, sentences about what is not kept) -> the values of the fields; adds sentences
    merge: Callable[[Wish, Wish, list[str]], tuple[Any, ...]]


def merge_terms(first: Wish, other: Wish) -> Wish:
    """Return two statements about one gang as one.

    first: the statement that comes first in the order of sources. Of two terms that cannot both be kept it wins.
    """
    unkept: list[str] = []
    values: dict[str, Any] = {}
    for rule in RULES:
        values.update(zip(rule.fields, rule.merge(first, other, unkept), strict=True))
    if other.only_prefers:
        unkept.append(f"{other.source} is not read beside {first.source}")
    return replace(first, **values, ignored=(*first.ignored, *other.ignored, *unkept))


def _levels(first: Wish, other: Wish, unkept: list[str]) -> tuple[Level | None, tuple[tuple[str, Level], ...]]:
    others_own = () if other.required is None else ((other.source, other.required),)
    return first.required, (*first.other_levels, *others_own, *other.other_levels)


def _multiple(first: Wish, other: Wish, unkept: list[str]) -> tuple[int]:
    both = lcm(first.multiple, other.multiple)
    if both <= MAX_MULTIPLE:
        return (both,)
    pods = f"{both} pods on one host would be the least common multiple"
    unkept.append(f"{other.source} is not kept beside {first.source}: {pods}")
    return (first.multiple,)


def _layers(first: Wish, other: Wish, unkept: list[str]) -> tuple[tuple[Layer, ...]]:
    if not first.layers or not other.layers or other.layers == first.layers:
        return (first.layers or other.layers,)
    both = dict.fromkeys((*first.layers, *other.layers))
    return (nested(f"{other.source} beside {first.source}", both, unkept),)


def _groups(first: Wish, other: Wish, unkept: list[str]) -> tuple[tuple[GroupRule, ...]]:
    if not first.groups or not other.groups or other.groups == first.groups:
        return (first.groups or other.groups,)
    cuts = ([(rule.marks, rule.keys, rule.size, rule.one_of) for rule in wish.groups] for wish in (first, other))
    own_cut, other_cut = cuts
    if own_cut != other_cut:
        unkept.append(f"{other.source} is not kept beside {first.source}: each divides the pods into other groups")
        return (first.groups,)
    return (tuple(_stricter(one, two) for one, two in zip(first.groups, other.groups, strict=True)),)


def _stricter(one: GroupRule, two: GroupRule) -> GroupRule:
    """Return the stricter of each term of two rules for the same groups."""
    levels = [level for level in (one.level, two.level) if level is not None]
    return replace(
        one,
        level=min(levels, key=by_name, default=None),
        exclusive=one.exclusive or two.exclusive,
        least=max(one.least, two.least),
        pods=max(one.pods, two.pods),
        all_or_nothing=one.all_or_nothing or two.all_or_nothing,
    )


def _exclusive_set(first: Wish, other: Wish, unkept: list[str]) -> tuple[Level | None, str]:
    own, others = ((wish.exclusive_level, wish.exclusive_set) for wish in (first, other))
    if first.exclusive_level is not None and other.exclusive_level is not None and own != others:
        unkept.append(f"{other.source} is not kept beside {first.source}: one level for a set of gangs")
    level = other.exclusive_level if first.exclusive_level is None else first.exclusive_level
    return level, first.exclusive_set or other.exclusive_set


def _together(first: Wish, other: Wish, unkept: list[str]) -> tuple[str, int, bool, tuple[Ancestor, ...]]:
    if other.together and first.together not in ("", other.together):
        unkept.append(f"{other.source} is not kept beside {first.source}: one name for gangs that start together")
    chosen = first if first.together else other
    one_domain = any(wish.one_domain for wish in (first, other) if wish.together == chosen.together)
    return chosen.together, chosen.together_of, one_domain, chosen.ancestors


def _shape(first: Wish, other: Wish, unkept: list[str]) -> tuple[tuple[tuple[str, int], ...], bool]:
    chosen = first if first.mesh or first.balanced else other
    if (other.mesh or other.balanced) and (chosen.mesh, chosen.balanced) != (other.mesh, other.balanced):
        unkept.append(f"{other.source} is not kept beside {first.source}: one shape that is preferred")
    return chosen.mesh, chosen.balanced


def _mode(first: Wish, other: Wish, unkept: list[str]) -> tuple[Mode]:
    return (first.mode,)


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
    MergeRule(
        "apart from other gangs", ("exclusive_level", "exclusive_set"), True, "of the first source", _exclusive_set
    ),
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
