"""The placement terms of a gang, from the annotations and PodGroups of any dialect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

# A number counts tiers: 0 a host, 1 a leaf. A text is a node label's key, or a word for a tier such as "rack".
Level = int | str

MAX_LAYERS = 4
MAX_GROUPS = 16  # rules of one PodGroup
MAX_TOGETHER = 16  # gangs that start together


class Mode(Enum):
    """How a gang is placed."""

    NEAR = "near"  # in the lowest domain
    FILL = "fill"  # wherever holes are smallest, near or not
    NONE = "none"  # not at all: the scheduler chooses


@dataclass(frozen=True, slots=True)
class Layer:
    """A constraint on runs of `size` consecutive ranks: each run stays under one switch of a level."""

    level: Level
    size: int  # pods


@dataclass(frozen=True, slots=True)
class GroupRule:
    """A rule that divides the pods of a gang into groups: pods with `marks`, grouped by the values of `keys`."""

    name: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    keys: tuple[str, ...] = ()
    size: int = 0  # without keys, a group is a run of so many neighbouring ranks; 0: all pods of the rule
    least: int = 0  # so many groups start, or none
    level: Level | None = None  # no group leaves one domain of this level
    exclusive: bool = False  # and none shares it with another group of the gang
    pods: int = 0  # a group of fewer does not count among those that start
    all_or_nothing: bool = True  # a group starts whole or not at all; else so many of it as its role's minimum says
    one_of: tuple[tuple[str, str], ...] = ()  # its pods have one of these labels, too, where there are any


@dataclass(frozen=True, slots=True)
class Wish:
    """The placement terms of a gang."""

    source: str = ""  # the annotation or field that was read; "" when nothing is asked
    required: Level | None = None  # no member leaves one domain of this level
    multiple: int = 1  # of which the pods on one host are a multiple
    layers: tuple[Layer, ...] = ()  # the outermost first; sizes fall inwards
    groups: tuple[GroupRule, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()  # axes of parallelism, the outermost first, and how many ranks along each
    balanced: bool = False  # as many pods under each leaf that is used, as nearly as can be
    exclusive_level: Level | None = (
        None  # shares no domain of this level with another gang of its set that asks the same
    )
    exclusive_set: str = ""  # the set, where the pod names one: else its job's
    together: str = ""  # a name: gangs that say the same are placed all or none
    together_of: int = 0  # how many gangs say so in all; 0: as many as there are
    one_domain: bool = False  # such gangs share one domain, and what one asks counts for all
    mode: Mode = Mode.NEAR
    other_levels: tuple[tuple[str, Level], ...] = ()  # (source, level) that other words of the same pod require, too
    ignored: tuple[str, ...] = ()  # what was read and is not kept, a sentence each

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the required levels of all dialects."""
        own = () if self.required is None else (self.required,)
        return (*own, *(level for _, level in self.other_levels))

    @property
    def requires(self) -> str:
        """Return the annotation or field that requires a level; "" for none."""
        return self.source if self.required is not None else next((source for source, _ in self.other_levels), "")

    @property
    def only_prefers(self) -> bool:
        """True if the terms only prefer a near placement, or none, and nothing else."""
        plain = replace(self, source="", other_levels=(), mode=Mode.NEAR, ignored=())
        return bool(self.source) and not self.ignored and plain == NOTHING


NOTHING = Wish()
