"""The placement terms of a gang, from the annotations and PodGroups of any dialect, and the tiers of levels' names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from turnout.kube import labels

# A number counts tiers: 0 a host, 1 a leaf. A text is a node label's key, or a word for a tier such as "rack".
Level = int | str

MAX_LAYERS = 4  # of one gang
MAX_GROUPS = 16  # group rules of one PodGroup
MAX_TOGETHER = 16  # gangs that start together


class Mode(Enum):
    """How a gang is placed."""

    NEAR = "near"  # in the lowest domain that holds it
    FILL = "fill"  # on the hosts with the least free room, at any distance
    NONE = "none"  # no plan is made: the scheduler chooses


@dataclass(frozen=True, slots=True)
class Layer:
    """A constraint on runs of `size` consecutive ranks: each run stays under one switch of a level."""

    level: Level  # the level of the switch
    size: int  # pods of a run, >= 2


@dataclass(frozen=True, slots=True)
class GroupRule:
    """A rule that divides the pods of a gang into groups: pods with `pod_labels`, grouped by the values of `keys`."""

    name: str = ""  # for messages
    match_labels: tuple[tuple[str, str], ...] = ()  # (key, value) of labels that all pods of the rule have
    keys: tuple[str, ...] = ()  # labels whose values separate the groups
    size: int = 0  # pods of a group without keys, a run of consecutive ranks; 0 for all pods of the rule
    min_groups: int = 0  # the number of groups that must start together
    level: Level | None = None  # each group stays in one domain of this level; None for no such limit
    exclusive: bool = False  # True if groups of the gang must not share a domain of `level`
    pods: int = 0  # a group with fewer pods does not count towards `min_groups`
    all_or_nothing: bool = True  # True if all pods of a group start together; else only the minimum of their role
    one_of: tuple[tuple[str, str], ...] = ()  # (key, value): each pod has one of these labels; () for no such limit


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A limit between gangs: the gang shares no domain of a level with other gangs of its set that name a level."""

    level: Level | None = None  # None for no such limit
    set_name: str = ""  # the name of the set; "" for the set of the gang's job


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A CompositePodGroup above a PodGroup: all gangs below it share one domain of its level."""

    name: str
    level: Level | None = None  # the level of the shared domain; None if the gangs need not share one
    min_groups: int = 0  # child groups that must start together; 0: each starts by itself


@dataclass(frozen=True, slots=True)
class Wish:
    """The placement terms of a gang."""

    source: str = ""  # the annotation or field that sets the terms, "" without terms
    required: Level | None = None  # all members stay in one domain of this level; None for no such limit
    multiple: int = 1  # the number of pods on a host is a multiple of this, >= 1
    layers: tuple[Layer, ...] = ()  # the outermost first; sizes decrease inwards
    groups: tuple[GroupRule, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()  # (axis of parallelism, ranks along it), the outermost first
    balanced: bool = False  # the numbers of pods under the used leaves are as equal as possible
    exclusion: Exclusion = Exclusion()
    together: str = ""  # a name: either all gangs with this name are placed, or none of them; "" for no such name
    together_of: int = 0  # the number of gangs with the name `together`; 0 for all that exist
    one_domain: bool = False  # gangs with the name `together` share one domain, and terms of one gang count for all
    ancestors: tuple[Ancestor, ...] = ()  # the outermost first, of a gang in a tree of gangs, which `together` names
    mode: Mode = Mode.NEAR
    other_levels: tuple[tuple[str, Level], ...] = ()  # (source, level) of each further required level
    ignored: tuple[str, ...] = ()  # a sentence for each term that has no effect

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the required levels of all dialects, () for none."""
        own = () if self.required is None else (self.required,)
        return (*own, *(level for _, level in self.other_levels))

    @property
    def requires(self) -> str:
        """Return the first annotation or field that requires a level; "" for none."""
        return self.source if self.required is not None else next((source for source, _ in self.other_levels), "")

    @property
    def only_prefers(self) -> bool:
        """True if the terms set nothing but the mode: they prefer a placement and require nothing."""
        plain = replace(self, source="", other_levels=(), mode=Mode.NEAR, ignored=())
        return bool(self.source) and not self.ignored and plain == NOTHING


NOTHING = Wish()


# The tier of each word.
_WORDS = {
    "host": 0, "hostname": 0, "node": 0,
    "leaf": 1, "rack": 1, "asw": 1, "tor": 1, "access": 1, "subblock": 1,
    "spine": 2, "block": 2, "psw": 2, "aggregation": 2, "superpod": 2,
    "core": 3, "zone": 3, "datacenter": 3,
}  # fmt: skip
# Parts of names of levels that do not tell the tier.
_FILLERS = {"layer", "topology", "network", "level", "tier", "switch", "name"}


def tier_of_word(name: str) -> int | None:
    """Return the tier of a name of a level by its words: of a label's key, the last word that has a tier; None without
    one.

    Only the part after the last "/" counts. name: a word such as "rack", or the key of a node label.
    """
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.rsplit("/", 1)[-1])
    words = [part.lower() for part in parts if part.lower() not in _FILLERS]
    tiers = [tier for each in words if (tier := _WORDS.get(each)) is not None]
    return tiers[-1] if tiers else None


def tier_of_level(level: Level) -> int:
    """Return the tier of a level by its number or name, 0 for a host. An unknown name counts as a leaf, tier 1.

    The labels of nodes are not read.
    """
    if isinstance(level, int):
        return level
    tier = 0 if level == labels.HOSTNAME else tier_of_word(level)
    return 1 if tier is None else tier


def nested(source: str, layers: Iterable[Layer], ignored: list[str]) -> tuple[Layer, ...]:
    """Return the layers whose sizes divide each other, the largest first, at most MAX_LAYERS.

    Of two sizes that do not divide each other, only the larger is used. Layers of one pod have no effect. source: the
    annotation of the layers. ignored: receives a sentence for each other layer that is not used.
    """
    result: list[Layer] = []
    for layer in sorted(layers, key=lambda each: -each.size):
        if layer.size < 2:
            continue
        if len(result) == MAX_LAYERS or (result and result[-1].size % layer.size):
            larger = result[-1].size
            why = f"it does not divide {larger}" if larger % layer.size else f"at most {MAX_LAYERS} layers are kept"
            ignored.append(f"{source}: the layer {str(layer.level)[:80]} of {layer.size} is not kept: {why}")
            continue
        result.append(layer)
    return tuple(result)
