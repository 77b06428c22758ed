"""The placement terms of one gang: what its PodGroup and its pods state about its place, merged.

The planner reads these terms dozens of times for each question, so they are merged once. They do not depend on the map:
the tier of a level is looked up when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import TypeVar

from turnout.jobs.wishes.merge_table import MAX_MULTIPLE
from turnout.jobs.wishes.model import NOTHING, Ancestor, GroupRule, Layer, Level, Mode, Wish, nested

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SetTerms:
    """The terms of a gang about other gangs."""

    together_name: str  # the name that gangs share if they are placed all or none; "" for none
    together_size: int  # the number of gangs that share that name, if one of them states it; else 0
    one_domain: bool  # True if the gangs of that name share one domain
    exclusive_set: str  # the name of the set whose gangs share no domain; "" where no wish names it
    exclusive_levels: tuple[Level, ...]  # the levels of the domains that it shares with no other gang of its set


@dataclass(frozen=True, slots=True)
class GangTerms:
    """The merged terms. Levels are as they are written; a level may be unknown to the map."""

    wishes: tuple[Wish, ...]  # of its PodGroup, and the different ones of its members: the hard terms of all count
    preferences: tuple[Wish, ...]  # the wishes of its members, else of its PodGroup: the preferences of these count
    required_levels: tuple[Level, ...]  # of the whole gang, without the levels of its groups and of its runs of ranks
    levels: tuple[Level, ...]  # `required_levels`, and the levels of its runs of ranks: all members keep to them
    layers: tuple[Layer, ...]  # the runs of ranks, the outermost first; the sizes divide each other
    layers_of_wishes: tuple[Layer, ...]  # the runs of ranks of all wishes, in no order
    multiples: tuple[int, ...]  # the multiples of pods on one host that are asked for, each >= 1, at least one
    multiple: int  # the `common_multiple` of `multiples`; runs of ranks on one host are not included
    group_rules: tuple[GroupRule, ...]  # of the first wish with such rules
    mesh: tuple[tuple[str, int], ...]  # (axis of parallelism, ranks along it), the outermost first
    balanced: bool  # True if it prefers an equal number of pods under each leaf
    fills_holes: bool  # True if it prefers the smallest holes
    ancestors: tuple[Ancestor, ...]  # the CompositePodGroups above its PodGroup, the outermost first
    sets: SetTerms

    @property
    def requires_level(self) -> bool:
        """True if the gang must stay within a tier. The statement of one member is enough."""
        return bool(self.required_levels)

    @property
    def places_all_members(self) -> bool:
        """True if members without an accelerator must have their places, too: the gang or a group requires a level."""
        return bool(self.required_levels) or any(rule.level is not None for rule in self.group_rules)


def terms_of_gang(own: Wish, of_members: Sequence[Wish], multiples_of_members: Sequence[int]) -> GangTerms:
    """Merge the wishes of one gang.

    own: the wish of its PodGroup or owner, NOTHING without one. of_members: the different wishes of its pods.
    multiples_of_members: the multiples of pods on one host that the pods ask for, each >= 1.
    """
    own_wishes = () if own == NOTHING else (own,)
    wishes = (*own_wishes, *of_members)
    preferences = tuple(of_members) or own_wishes
    required_levels = tuple(dict.fromkeys(level for wish in wishes for level in wish.levels))
    multiples = (own.multiple, *multiples_of_members)
    layers_of_wishes = tuple(layer for wish in wishes for layer in wish.layers)
    return GangTerms(
        wishes=wishes,
        preferences=preferences,
        required_levels=required_levels,
        levels=tuple(dict.fromkeys([*required_levels, *(layer.level for layer in layers_of_wishes)])),
        layers=_merge_layers(own.layers, of_members),
        layers_of_wishes=layers_of_wishes,
        multiples=multiples,
        multiple=common_multiple(multiples),
        group_rules=_first((wish.groups for wish in wishes), ()),
        mesh=_first((wish.mesh for wish in preferences), ()),
        balanced=any(wish.balanced for wish in preferences),
        fills_holes=any(wish.mode is Mode.FILL for wish in preferences),
        ancestors=own.ancestors,
        sets=_set_terms(wishes),
    )


def _set_terms(wishes: Sequence[Wish]) -> SetTerms:
    """Merge the terms of some wishes about other gangs. The first name counts, and the largest number of gangs."""
    return SetTerms(
        together_name=_first((wish.together for wish in wishes), ""),
        together_size=max((wish.together_of for wish in wishes), default=0),
        one_domain=any(wish.one_domain for wish in wishes),
        exclusive_set=_first((wish.exclusion.set_name for wish in wishes), ""),
        exclusive_levels=tuple(wish.exclusion.level for wish in wishes if wish.exclusion.level is not None),
    )


def _first(values: Iterable[Value], default: Value) -> Value:
    """Return the first value that is not empty; `default` if all are empty."""
    return next((value for value in values if value), default)


def _merge_layers(of_group: tuple[Layer, ...], of_members: Iterable[Wish]) -> tuple[Layer, ...]:
    """Merge the runs of ranks of the PodGroup with those of the member that states most, one within the other.

    of_group: of the PodGroup, () for none. of_members: the members' wishes. Of two sizes that do not divide each other
    the larger counts. () if nobody states runs.
    """
    of_member = max((wish.layers for wish in of_members), key=lambda each: (len(each), repr(each)), default=())
    if of_group and of_member:
        return nested("", dict.fromkeys((*of_group, *of_member)), [])
    return of_group or of_member


def common_multiple(multiples: Iterable[int]) -> int:
    """Return the least common multiple of some numbers >= 1; the largest of them if it is above MAX_MULTIPLE."""
    numbers = tuple(multiples)
    common = lcm(*numbers)
    return common if common <= MAX_MULTIPLE else max(numbers)
