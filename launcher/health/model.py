"""Defines the nouns of a node check: measurements of groups, the state of a check, and its verdict.

A node is named by the id of its member. What counts as slow is decided in stragglers.py, and which node is at fault in
evidence.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from turnout.launcher.errors import BadCheck

Group: TypeAlias = tuple[str, ...]
Link: TypeAlias = tuple[str, str]  # sorted pair of nodes


class SlowRule(StrEnum):
    """Says to what a node's time is compared."""

    MEAN = "mean"  # of the other nodes: the guide's rule; many slow nodes raise it
    MEDIAN = "median"  # of the other nodes: valid while fewer than half are slow
    SPREAD = "spread"  # the median plus the usual spread of nodes


class FaultCause(StrEnum):
    """Says what is wrong with a node or a link: the same word in the verdict, the log and the evidence."""

    COMPUTE_FAILED = "compute_failed"
    NETWORK_FAILED = "network_failed"
    COMPUTE_SLOW = "compute_slow"
    NETWORK_SLOW = "network_slow"
    LINK_FAILED = "link_failed"
    LINK_SLOW = "link_slow"


@dataclass(frozen=True, slots=True)
class StragglerLimits:
    """Limits above which a time counts as slow."""

    rule: SlowRule = SlowRule.MEAN
    factor: float = 2.0  # for MEAN and MEDIAN: times that of the others
    spreads: float = 6.0  # for SPREAD: median absolute deviations above the median
    least_factor: float = 1.25  # for SPREAD: also at least this times the median
    compute_s: float | None = None  # always slow above this, None for no such limit
    collective_s: float | None = None  # always slow above this, for a pair; None for no such limit

    def __post_init__(self) -> None:
        if not (1 < self.factor < math.inf and 1 < self.least_factor < math.inf and 0 < self.spreads < math.inf):
            raise BadCheck("a node is slow from some factor above 1 on, and some number of spreads above 0")
        for limit_s in (self.compute_s, self.collective_s):
            if limit_s is not None and not 0 < limit_s < math.inf:
                raise BadCheck(f"a floor of {limit_s} s: a time above 0 is needed")


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one group."""

    members: Group
    compute_s: tuple[float | None, ...]  # of each member alone, None if it failed or got stuck
    collective_s: float | None  # of the group, None if it failed or got stuck; meaningless for one member

    def __post_init__(self) -> None:
        if not self.members or len({*self.members}) < len(self.members) or len(self.compute_s) != len(self.members):
            raise BadCheck(f"the group {self.members}: each member once is needed, with its own time")
        for time_s in (*self.compute_s, self.collective_s):
            if time_s is not None and not 0 <= time_s < math.inf:
                raise BadCheck(f"the group {self.members} measured {time_s} s, which is no time")

    @property
    def pair_s(self) -> float | None:
        """Return the collective's time as a pair would need it: an all-reduce of n moves 2 (n - 1) / n of its bytes."""
        size = len(self.members)
        return None if self.collective_s is None or size < 2 else self.collective_s * size / (2 * (size - 1))


@dataclass(frozen=True, slots=True)
class Check:
    """A node check in progress: its nodes, its limits and the measurements so far."""

    nodes: tuple[str, ...]  # neighbours in the fabric are adjacent
    limits: StragglerLimits = StragglerLimits()
    # measurements so far; groups of one round are disjoint and run at the same time
    rounds: tuple[tuple[Measured, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes or len({*self.nodes}) < len(self.nodes):
            raise BadCheck("a check needs nodes, each once")
        for results in self.rounds:
            members = [member for result in results for member in result.members]
            if len({*members}) < len(members) or not {*members} <= {*self.nodes}:
                raise BadCheck("a round's groups are disjoint, and of the check's own nodes")

    def after(self, results: tuple[Measured, ...]) -> Check:
        """Return the check with the results of one more round."""
        return Check(self.nodes, self.limits, (*self.rounds, results))


@dataclass(frozen=True, slots=True)
class Finding:
    """One node, or the two ends of one link, with the fault and its evidence."""

    nodes: Group
    cause: FaultCause
    why: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """Something is wrong among these nodes, and no test could tell which. None is blamed."""

    nodes: Group
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a check, in the order of the nodes. Nodes not named here have passed.

    A node may be in `slow_nodes` twice, for its computation and for its network.
    """

    bad_nodes: tuple[Finding, ...] = ()
    bad_links: tuple[Finding, ...] = ()
    slow_nodes: tuple[Finding, ...] = ()
    slow_links: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()

    @property
    def clean(self) -> bool:
        """True if the check found nothing."""
        return self == Verdict()
