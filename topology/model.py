"""The values of the topology package: entries and faults of a map text, a gang's request, a placement or a refusal.

Tier: a number of the tree, 0 a host, 1 a leaf. Level (jobs): how an owner names a tier. Layer: (tier, size of a run), a
constraint on consecutive ranks. `fabric.py` has the fabric with its tables. This module knows nothing of Kubernetes. A
refused placement is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt


class RefusalReason(Enum):
    """A reason why a gang got no placement. Log, metric, Event and test use the same word."""

    NO_MAP = "NoMap"  # a tier is required and no host is on the map
    NO_ROOM = "NoRoom"  # the fabric has too little room for the pods that must start together
    TIER_TOO_NARROW = "TierTooNarrow"  # all hosts together have enough room, but no switch of the widest tier allowed
    PLAN_REJECTED = "PlanRejected"  # the plan breaks a hard term, or planning raised an error: a fault of the planner
    OFF_MAP = "OffMap"  # members already run on hosts that the map does not know, or under no switch that is allowed


class DistanceRule(Enum):
    """The rule by which the distance of two hosts is computed."""

    ALL_TIERS = "all-tiers"  # the tier of the lowest switch above both hosts
    LEAF_ONLY = "leaf-only"  # only membership of the leaf switch counts (DL-104)


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One host of a map text, and the switches above it."""

    host: str  # an IP or a node name
    path: tuple[str, ...]  # the names of its switches, from the root down to the leaf (access switch)
    line: int  # the line of the text, >= 1


@dataclass(frozen=True, slots=True)
class MapFault:
    """One mistake in a map text."""

    line: int  # the line of the text, >= 1; 0 if the fault is not in one line
    text: str  # a sentence for a person


@dataclass(frozen=True, slots=True)
class ParsedMap:
    """The result of reading a map text. A reading with faults is never applied; the last good map stays in use."""

    entries: tuple[MapEntry, ...]  # the entries that can be read
    faults: tuple[MapFault, ...] = ()  # every mistake, in line order


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The request of one gang, in pods of one shape."""

    pods: int  # pods to place now, >= 1
    # The smallest number of these pods that may be placed: if fewer find a host, none is placed. 0..pods; 0 if the
    # members that are placed already reach the min.
    min_pods: int
    max_pods: int  # pods that the gang may have placed later, >= pods: a domain with room for them is preferred
    multiple: int = 1  # the number of pods on a host is a multiple of this, >= 1
    # The highest tier whose switch may hold all members, 0 a host, 1 a leaf; None if no tier is required.
    widest_tier: int | None = None
    # (host id, pods) of members that are already bound, nominated or assumed, in host order.
    anchors: tuple[tuple[int, int], ...] = ()
    rule: DistanceRule = DistanceRule.ALL_TIERS  # the rule by which distances are computed
    # (tier, size in pods) of runs of consecutive ranks: each run stays under one switch of the tier. The outermost
    # layer is first: tiers descend, and each size divides the size before it.
    layers: tuple[tuple[int, int], ...] = ()
    # Tie-breakers among equally good hosts: tables by host id, the more important first; a larger number is better. The
    # number of a switch is the sum over its hosts with room.
    host_preferences: tuple[npt.NDArray[np.signedinteger], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.pods <= self.max_pods or not 0 <= self.min_pods <= self.pods or self.multiple < 1:
            raise ValueError(f"a request needs 1 <= pods <= max_pods, 0 <= min_pods <= pods, multiple >= 1: {self}")


@dataclass(frozen=True, slots=True)
class Placement:
    """The hosts of a gang's pods, each host once, along the ring.

    This is the rank order of a gang without a mesh and without layers; with layers the caller numbers whole runs first.
    place_in_smallest_holes() gives the hosts by host id.
    """

    slots: tuple[tuple[int, int], ...]  # (host id, pods)
    tier: int  # the tier of the lowest switch that holds all members, anchors included; 0 if one host holds them
    pods: int  # the number of placed pods: from the `min_pods` to the `pods` of the PlacementRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a gang got no placement. Two refusals are equal if their reasons are equal."""

    reason: Enum  # a RefusalReason, or a member of the caller's own enumeration
    detail: str = field(default="", compare=False)  # a sentence with numbers for a person, at most 200 characters
    room: int = field(default=0, compare=False)  # pods that all hosts together have room for


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a ring over a rank order."""

    crossings: tuple[int, ...]  # by tier 1..T: the number of ring edges that leave a switch of that tier
    switches: tuple[int, ...]  # by tier 1..T: the number of switches of that tier that hold members
    total: int = field(default=0)  # the sum of `crossings`: an edge counts once for every tier whose switch it leaves


class TopologyError(Exception):
    """The base of this package's errors."""


class BadFabric(TopologyError):
    """Entries that do not form a tree. Keep the last good map and report every fault."""

    def __init__(self, faults: Iterable[MapFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"line {fault.line}: {fault.text}" for fault in self.faults[:5]))
