"""The values of the topology package: entries and faults of a map text, a gang's request, a placement or a refusal.

`fabric.py` has the fabric with its tables. This module knows nothing of Kubernetes. A refused placement is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt


class RefusalReason(Enum):
    """A reason why a gang got no placement. Log, metric, Event and test use the same word."""

    NO_MAP = "NoMap"  # a required tier was asked for and no host is on the map
    NO_ROOM = "NoRoom"  # the fabric has not enough room for the least that must start together
    TIER_TOO_NARROW = "TierTooNarrow"  # enough room in all, but in no domain of the widest tier allowed
    PLAN_REJECTED = "PlanRejected"  # the plan that was made breaks a hard term: a fault of the planner
    OFF_MAP = "OffMap"  # members already run on hosts that the map does not know or outside the tier allowed


class DistanceRule(Enum):
    """The rule by which the distance of two hosts is computed."""

    ALL_TIERS = "all-tiers"
    LEAF_ONLY = "leaf-only"  # only membership of the leaf switch counts (DL-104)


@dataclass(frozen=True, slots=True)
class Entry:
    """One host of a map text: its key (an IP or a node name) and its switches from the root down to the leaf."""

    host: str
    path: tuple[str, ...]
    line: int  # in the text, >= 1


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in a map text."""

    line: int  # 1 or more; 0 when no line can be named
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a map text: the readable entries, and every fault in line order.

    A reading with faults is never applied; the last good map stays in use.
    """

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of one gang, in pods of one shape."""

    pods: int  # to place now, 1 or more
    # how many of `pods` must find a host, else none is placed: 0..pods; 0 when the placed members reach the min
    least: int
    most: int  # how many the gang may have placed later, so that room to grow is preferred; >= pods
    multiple: int = 1  # pods on one host come in multiples of this
    # the highest tier whose switch may hold all members, 1 = leaf; None = only a preference
    widest_tier: int | None = None
    # (host id, pods) of members already bound, nominated or assumed, in host order
    anchors: tuple[tuple[int, int], ...] = ()
    rule: DistanceRule = DistanceRule.ALL_TIERS  # how distances are computed
    # (tier, pods) of runs of consecutive ranks that stay under one switch each; the outermost first, which holds the
    # others: tiers fall, and each size divides the one before
    layers: tuple[tuple[int, int], ...] = ()
    # tables by host id that decide among equally good hosts and switches, the more important table first: the larger
    # the better, summed over the hosts with room under a switch
    merits: tuple[npt.NDArray[np.signedinteger], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.pods <= self.most or not 0 <= self.least <= self.pods or self.multiple < 1:
            raise ValueError(f"an ask needs 1 <= pods <= most, 0 <= least <= pods, multiple >= 1: {self}")


@dataclass(frozen=True, slots=True)
class Placement:
    """The hosts of a gang's pods, in rank order, each host once."""

    slots: tuple[tuple[int, int], ...]  # (host id, pods)
    tier: int  # of the lowest switch that holds all members, anchors included; 0 when one host holds them
    pods: int  # pods in all: from the ask's `least` to its `pods`


@dataclass(frozen=True, slots=True)
class Refusal:
    """A "no" with its reason. Two refusals are equal if their reasons are: the numbers describe one moment only."""

    reason: Enum  # a RefusalReason, or a member of the caller's own enumeration
    detail: str = field(default="", compare=False)  # numbers for a person, at most 200 characters
    room: int = field(default=0, compare=False)  # how many pods found room in all


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a ring over a rank order."""

    crossings: tuple[int, ...]  # by tier 1..T: how many ring edges leave a switch of that tier
    switches: tuple[int, ...]  # by tier 1..T: how many switches of that tier hold members
    total: int = field(default=0)  # the sum of crossings: an edge counts once for every tier that it climbs over


class TopologyError(Exception):
    """The base of this package's errors."""


class BadFabric(TopologyError):
    """Entries that do not form a tree. Keep the last good map and report every fault."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"line {fault.line}: {fault.text}" for fault in self.faults[:5]))
