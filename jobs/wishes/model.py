"""The nouns of a wish: what a pod or a PodGroup asks of the place of its gang, whoever's words it uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

# A number counts tiers: 0 a host, 1 a leaf. A text is a node label's key, or a word for a tier such as "rack".
Level = int | str

MOST_LAYERS = 4
MOST_GROUPS = 16  # rules of one PodGroup
MOST_TOGETHER = 16  # gangs that start together


class Mode(Enum):
    """How a gang is placed."""

    NEAR = "near"  # in the lowest domain
    FILL = "fill"  # wherever holes are smallest, near or not
    NONE = "none"  # not at all: the scheduler chooses


@dataclass(frozen=True, slots=True)
class Layer:
    """Runs of `size` neighbouring ranks, each of which stays under one switch of a level."""

    level: Level
    size: int  # pods


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Groups within a gang: of its pods with these labels, those with the same values of some further labels."""

    name: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    keys: tuple[str, ...] = ()
    size: int = 0  # without keys, a group is a run of so many neighbouring ranks; 0: all pods of the rule
    least: int = 0  # so many groups start, or none
    level: Level | None = None  # no group leaves one domain of this level
    apart: bool = False  # and none shares it with another group of the gang
    pods: int = 0  # a group of fewer does not count among those that start
    whole: bool = True  # a group starts whole or not at all; else so many of it as its role's minimum says
    one_of: tuple[tuple[str, str], ...] = ()  # its pods have one of these labels, too, where there are any


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish for the place of a gang."""

    source: str = ""  # the annotation or field that was read; "" when nothing is asked
    required: Level | None = None  # no member leaves one domain of this level
    multiple: int = 1  # of which the pods on one host are a multiple
    layers: tuple[Layer, ...] = ()  # the outermost first; sizes fall inwards
    groups: tuple[GroupRule, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()  # axes of parallelism, the outermost first, and how many ranks along each
    balanced: bool = False  # as many pods under each leaf that is used, as nearly as can be
    apart: Level | None = None  # shares no domain of this level with another gang of its set that asks the same
    apart_set: str = ""  # the set, where the pod names one: else its job's
    together: str = ""  # a name: gangs that say the same are placed all or none
    together_of: int = 0  # how many gangs say so in all; 0: as many as there are
    one_domain: bool = False  # such gangs share one domain, and what one asks counts for all
    mode: Mode = Mode.NEAR
    further: tuple[tuple[str, Level], ...] = ()  # (source, level) that other words of the same pod require, too
    unkept: tuple[str, ...] = ()  # what was read and is not kept, a sentence each

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels that are required, in whatever words."""
        own = () if self.required is None else (self.required,)
        return (*own, *(level for _, level in self.further))

    @property
    def requires(self) -> str:
        """The annotation or field that requires a level; "" for none."""
        return self.source if self.required is not None else next((source for source, _ in self.further), "")

    @property
    def only_prefers(self) -> bool:
        """True if the words say that nearness is preferred, or no nearness at all, and nothing else."""
        plain = replace(self, source="", further=(), mode=Mode.NEAR, unkept=())
        return bool(self.source) and not self.unkept and plain == NOTHING


NOTHING = Wish()
