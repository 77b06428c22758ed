"""The nouns of a wish: what a pod or a PodGroup asks of the place of its gang, whoever's words it uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# A number counts tiers: 0 a host, 1 a leaf. A text is a node label's key, or a word for a tier such as "rack".
Level = int | str


class Mode(Enum):
    """How a gang is placed."""

    NEAR = "near"  # in the lowest domain
    FILL = "fill"  # wherever holes are smallest, near or not
    NONE = "none"  # not at all: the scheduler chooses


@dataclass(frozen=True, slots=True)
class Slices:
    """Runs of `size` neighbouring ranks, each of which stays under one switch of a level."""

    level: Level
    size: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish for the place of a gang."""

    source: str = ""  # the annotation or field that was read; "" when nothing is asked
    required: Level | None = None  # no member leaves one domain of this level
    multiple: int = 1  # of which the pods on one host are a multiple
    slices: Slices | None = None
    apart: Level | None = None  # shares no domain of this level with another gang of its job that asks the same
    mode: Mode = Mode.NEAR
    unkept: tuple[str, ...] = ()  # what was read and is not kept, a sentence each


NOTHING = Wish()
