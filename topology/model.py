"""The nouns of the map: entries and faults of a text, a gang's wish, a placement or a refusal.

The fabric itself, with its tables, is in fabric.py. Nothing here knows Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Reason(Enum):
    """Why a gang got no placement. The same word stands in log, metric, Event and test."""

    NO_MAP = "NoMap"  # a required tier was asked for and no host is on the map
    NO_ROOM = "NoRoom"  # the fabric has not enough room for the least that must start together
    TIER_TOO_NARROW = "TierTooNarrow"  # enough room in all, but in no domain of the widest tier allowed
    OFF_MAP = "OffMap"  # members already run on hosts that the map does not know or outside the tier allowed


class Rule(Enum):
    """How distance is judged."""

    ALL_TIERS = "all-tiers"
    LEAF_ONLY = "leaf-only"  # only membership of the leaf switch counts (DL-104)


@dataclass(frozen=True, slots=True)
class Entry:
    """One host of a text: its key (an IP or a node name) and its switches from the root down to the leaf."""

    host: str
    path: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a text. line: 1 or more; 0 when no line can be named."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source made of its text: the entries it could read and every fault, in line order.

    A reading with faults is never applied; the last good map stays.
    """

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """What one gang wants, in pods of one shape.

    pods: to be placed now, 1 or more. least: how many of them must find a place or none does (0..pods; 0 when
    the members already placed reach the gang's min). most: how many it may have placed later, for the wish to
    leave room to grow (>= pods). multiple: pods on one host come in multiples of this. widest_tier: the highest
    tier whose switch may hold all members, 1 = leaf; None = only a preference.
    anchors: (host id, pods) of members already bound, nominated or assumed, in host order.
    """

    pods: int
    least: int
    most: int
    multiple: int = 1
    widest_tier: int | None = None
    anchors: tuple[tuple[int, int], ...] = ()
    rule: Rule = Rule.ALL_TIERS

    def __post_init__(self) -> None:
        if not 1 <= self.pods <= self.most or not 0 <= self.least <= self.pods or self.multiple < 1:
            raise ValueError(f"an ask needs 1 <= pods <= most, 0 <= least <= pods, multiple >= 1: {self}")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the pods go: (host id, pods), in rank order, each host once.

    tier: of the lowest switch that holds all members, anchors included; 0 when one host does.
    placed: pods in all, at least the ask's `least`, at most its `pods`.
    """

    slots: tuple[tuple[int, int], ...]
    tier: int
    placed: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A "no" with its reason. detail: numbers for a person, at most 200 characters. room: pods that found room in all.

    Refusals compare by their reason alone: the numbers are those of the moment.
    """

    reason: Reason
    detail: str = field(default="", compare=False)
    room: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a ring over a rank order costs.

    crossings: for each tier 1..T, how many ring edges leave a switch of that tier. switches: for each tier
    1..T, how many switches of that tier hold members. total: the sum of crossings (each edge counts once for
    every tier it climbs over).
    """

    crossings: tuple[int, ...]
    switches: tuple[int, ...]
    total: int = field(default=0)
