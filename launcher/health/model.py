"""The nouns of a check: what a group measured, what is known so far, what is proven in the end.

A node is named by the id of its member. What counts as slow is settled in slow.py, who is to blame in evidence.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from turnout.launcher.errors import BadCheck

Group: TypeAlias = tuple[str, ...]
Link: TypeAlias = tuple[str, str]  # in the order of the nodes


class Rule(StrEnum):
    """Beside what a node's time is held."""

    MEAN = "mean"  # of the other nodes: the guide's rule, which many slow nodes raise
    MEDIAN = "median"  # of the other nodes: holds while fewer than half are slow
    SPREAD = "spread"  # the median, and how much nodes differ anyway


class Cause(StrEnum):
    """What is wrong with a node or a link. The same word in the verdict, the log and the evidence."""

    COMPUTE_FAILED = "compute_failed"
    NETWORK_FAILED = "network_failed"
    COMPUTE_SLOW = "compute_slow"
    NETWORK_SLOW = "network_slow"
    LINK_FAILED = "link_failed"
    LINK_SLOW = "link_slow"


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on a time is slow.

    factor: so many times what the others need, for MEAN and MEDIAN. spreads: so many median deviations above the
    median, and least_factor times it at least, for SPREAD. compute_s, collective_s: always slow above this, None for
    no such floor; collective_s is that of a pair.
    """

    rule: Rule = Rule.MEAN
    factor: float = 2.0
    spreads: float = 6.0
    least_factor: float = 1.25
    compute_s: float | None = None
    collective_s: float | None = None

    def __post_init__(self) -> None:
        if not (1 < self.factor < math.inf and 1 < self.least_factor < math.inf and 0 < self.spreads < math.inf):
            raise BadCheck("a node is slow from some factor above 1 on, and some number of spreads above 0")
        for limit_s in (self.compute_s, self.collective_s):
            if limit_s is not None and not 0 < limit_s < math.inf:
                raise BadCheck(f"a floor of {limit_s} s: a time above 0 is needed")


@dataclass(frozen=True, slots=True)
class Measured:
    """One group's results. compute_s: of each member alone, None where its own computation failed or got stuck.

    collective_s: of the group together, None where it failed or got stuck; without meaning for a group of one.
    """

    members: Group
    compute_s: tuple[float | None, ...]
    collective_s: float | None

    def __post_init__(self) -> None:
        if not self.members or len({*self.members}) < len(self.members) or len(self.compute_s) != len(self.members):
            raise BadCheck(f"the group {self.members}: each member once is needed, with its own time")
        for time_s in (*self.compute_s, self.collective_s):
            if time_s is not None and not 0 <= time_s < math.inf:
                raise BadCheck(f"the group {self.members} measured {time_s} s, which is no time")

    @property
    def pair_s(self) -> float | None:
        """The collective's time as a pair would have needed it: an all-reduce of n moves 2 (n - 1) / n of its bytes."""
        size = len(self.members)
        return None if self.collective_s is None or size < 2 else self.collective_s * size / (2 * (size - 1))


@dataclass(frozen=True, slots=True)
class Check:
    """A check under way. nodes: neighbours in the fabric stand next to one another. rounds: what was measured so far.

    The groups of a round are disjoint: they run side by side.
    """

    nodes: tuple[str, ...]
    limits: Limits = Limits()
    rounds: tuple[tuple[Measured, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes or len({*self.nodes}) < len(self.nodes):
            raise BadCheck("a check needs nodes, each once")
        for results in self.rounds:
            members = [member for result in results for member in result.members]
            if len({*members}) < len(members) or not {*members} <= {*self.nodes}:
                raise BadCheck("a round's groups are disjoint, and of the check's own nodes")

    def after(self, results: tuple[Measured, ...]) -> Check:
        """One round later."""
        return Check(self.nodes, self.limits, (*self.rounds, results))


@dataclass(frozen=True, slots=True)
class Finding:
    """One node, or the two ends of one link, with what is wrong and what shows it."""

    nodes: Group
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """Something is wrong among these nodes, and no test could tell with whom. Nobody is blamed."""

    nodes: Group
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has proven, in the order of the nodes. Who is not named here has passed.

    slow: a node may stand here twice, once for its computation and once for its network.
    """

    bad_nodes: tuple[Finding, ...] = ()
    bad_links: tuple[Finding, ...] = ()
    slow_nodes: tuple[Finding, ...] = ()
    slow_links: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing was found."""
        return self == Verdict()
