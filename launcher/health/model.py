"""Defines the nouns of node checks: a job's settings, measurements of groups, the state of a check, its verdict.

A node is named by the id of its member. What counts as slow, and which node is at fault, is decided in judge_nodes.py;
rendezvous/diagnosis/ runs the check (--network-check).

The switchbox check is decided here: a link goes from GPU A over the switchbox to GPU B. A link below the minimum
bandwidth is broken, and a node with too few working links is faulty. Source: the guide, DL-32 to DL-35, DL-96
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from turnout.launcher.coordinator_messages import Probed
from turnout.launcher.errors import BadCheck, BadSettings
from turnout.launcher.model import Member, Reason

Pair: TypeAlias = tuple[int, int]  # GPU numbers, as in --box-pairs

Bandwidths: TypeAlias = tuple[tuple[Pair, float | None], ...]  # MB/s of 10^6 bytes; None if nothing came through


@dataclass(frozen=True, slots=True)
class Box:
    """The result of the switchbox check of one node."""

    broken: tuple[Pair, ...] = ()  # links below the minimum bandwidth
    faulty: bool = False  # the node must not train
    why: str = ""  # the broken links in words, "" for none


def judge_links(bandwidths: Bandwidths, least_mb_per_s: int, least_channels: int) -> Box:
    """Judge the switchbox links of one node.

    least_mb_per_s: a link below it is broken. least_channels: a node with fewer working links is faulty. Without
    broken links the node is never faulty.
    """
    broken = tuple(pair for pair, mb_per_s in bandwidths if mb_per_s is None or mb_per_s < least_mb_per_s)
    working = len(bandwidths) - len(broken)
    if not broken:
        return Box()
    named = ", ".join(_link_text(pair, mb_per_s) for pair, mb_per_s in bandwidths if pair in broken)
    why = f"{working} of {len(bandwidths)} links reach {least_mb_per_s} MB/s, {least_channels} are needed: {named}"
    return Box(broken, working < least_channels, why)


def _link_text(pair: Pair, mb_per_s: float | None) -> str:
    """Describe one link and its bandwidth, None for a link that failed."""
    return f"{pair[0]}:{pair[1]} {'failed' if mb_per_s is None else f'has {mb_per_s:.0f}'}"


Group: TypeAlias = tuple[str, ...]  # nodes that measure together, by member id
Groups: TypeAlias = tuple[Group, ...]  # of one round; no node is in two of them

Link: TypeAlias = tuple[str, str]  # sorted pair of nodes


class SlowRule(StrEnum):
    """Says with what a node's time is compared."""

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
            raise BadCheck("factor and least_factor must be above 1, spreads above 0, all finite")
        for limit_s in (self.compute_s, self.collective_s):
            if limit_s is not None and not 0 < limit_s < math.inf:
                raise BadCheck(f"a limit of {limit_s} s: it must be above 0 and finite")


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one group."""

    members: Group
    compute_s: tuple[float | None, ...]  # of each member alone, None if it failed or got stuck
    collective_s: float | None  # of the group, None if it failed or got stuck; not used for one member

    def __post_init__(self) -> None:
        if not self.members or len({*self.members}) < len(self.members) or len(self.compute_s) != len(self.members):
            raise BadCheck(f"the group {self.members}: each member once is needed, with its own time")
        for time_s in (*self.compute_s, self.collective_s):
            if time_s is not None and not 0 <= time_s < math.inf:
                raise BadCheck(f"the group {self.members} measured {time_s} s, which is no time")

    @property
    def pair_s(self) -> float | None:
        """Return the collective's time in seconds as a pair would need it; None if it failed or for one member.

        An all-reduce of n members moves 2 (n - 1) / n of its bytes.
        """
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

    def add_round(self, results: tuple[Measured, ...]) -> Check:
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
    """Nodes among which something is wrong, but no test could prove which. None of them is excluded."""

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
    def is_clean(self) -> bool:
        """True if the check has no finding."""
        return self == Verdict()


MAX_STAGE_S = 86_400.0  # seconds
GRACE_S = 2.0  # seconds beyond a stage's limit in which a probe may report its own failure


class ProbeStage(StrEnum):
    """The stage that a probe has reached."""

    BEGUN = "begun"  # started; it imports torch
    ROOM = "room"  # checks its disks and its device's memory
    SWITCHBOX = "switchbox"
    COMPUTE = "compute"
    MEETING = "meeting"  # waits for the other members
    COLLECTIVE = "collective"
    BANDWIDTH = "bandwidth"
    CLOCK = "clock"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """A job's settings for probes, as in ProbePlan. Raises BadCheck for values that no probe could obey."""

    meet_s: float = 120.0  # for all probes of a group to start and to meet
    stage_s: float = 60.0  # for each other stage
    matmul: int | None = None  # rows of the square matrix, None for the default of the device
    reduce_bytes: int | None = None  # of the all-reduce, None for the default of the device

    def __post_init__(self) -> None:
        if not (0 < self.meet_s <= MAX_STAGE_S and 0 < self.stage_s <= MAX_STAGE_S):
            raise BadCheck(f"a stage of a probe takes more than 0 s and {MAX_STAGE_S:g} s at most")
        if self.matmul == 0 or self.reduce_bytes == 0:
            raise BadCheck("a probe that measures nothing: a size above 0 is needed")

    @property
    def round_s(self) -> float:
        """Return the longest time of a round of groups in seconds: the limits of all stages together."""
        return 2 * self.meet_s + (len(ProbeStage) - 2) * self.stage_s + GRACE_S * len(ProbeStage)


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """The node checks before each start. Source: the guide, DL-30..35"""

    network: bool = False  # check nodes (--network-check)
    performance: bool = False  # also measure the speed of all members together
    exclude_straggler: bool = False  # also exclude slow nodes
    switchbox: bool = False  # also measure links from a switchbox to the GPUs
    box_pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 4), (3, 5), (6, 7))  # GPU numbers at the ends of those links
    min_bandwidth_mb_per_s: int = 10_000  # a link below it is broken
    min_channels: int = 2  # a node with fewer working links is faulty
    limits: StragglerLimits = field(default_factory=StragglerLimits)  # when a node is slow
    verdicts: bool = False  # write the result as an annotation of the worker's own pod
    probing: ProbePolicy = field(default_factory=ProbePolicy)  # how much is measured, and how long it may take

    def __post_init__(self) -> None:
        for flag, given in (
            ("--node-verdicts", self.verdicts),
            ("--exclude-straggler", self.exclude_straggler),
            ("--switchbox-check", self.switchbox),
            ("--comm-perf-test", self.performance),
        ):
            if given and not self.network:
                raise BadSettings(f"{flag} needs --network-check: it is a part of that check")
        if self.switchbox and self.min_channels > len(self.box_pairs):
            raise BadSettings(f"--min-channels {self.min_channels} of {len(self.box_pairs)} --box-pairs: none passes")


# How long a node is excluded the first time, and at most, in seconds. The autoscaler taints it for the same time:
# docs/faulty-nodes.md.
EXCLUSION_S, MAX_EXCLUSION_S = 3_600.0, 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class ExcludedNode:
    """A worker that a node check has excluded. Until `until_s` no world stops for it, and it is not tested again."""

    member: Member  # as it was when it was excluded
    reason: Reason
    why: str  # in words
    until_s: float  # by the coordinator's clock
    times: int = 1  # exclusions in a row
    unreachable_peer: str = ""  # the worker that it cannot reach, if the link is bad

    def is_of(self, other: Member) -> bool:
        """Return True if `other` is the same worker, by name or index, on the same host.

        If the host's name is only the pod's name, the address must be equal too.
        """
        member = self.member
        is_same_worker = other.name == member.name or (other.index is not None and other.index == member.index)
        is_node_name = not member.name.startswith(member.host)
        return is_same_worker and other.host == member.host and (is_node_name or other.address == member.address)

    def describe(self, now_s: float) -> str:
        """Describe the exclusion, its cause and the time until the next test, in words."""
        again_s = max(self.until_s - now_s, 0.0)
        next_test = f"it is tested again after {again_s:.0f} s, or earlier if too few workers are left without it"
        return f"{next_test}; left out, {self.times} times so far: {self.why}"[:1_000]


@dataclass(frozen=True, slots=True)
class NodeCheckState:
    """The settings of node checks, and the check in progress if there is one."""

    limits: StragglerLimits = field(default_factory=StragglerLimits)
    leaves_slow: bool = False  # slow nodes are excluded too
    all_together: bool = False  # also measure the speed of all that passed
    round_s: float = ProbePolicy().round_s  # the longest time of one round of groups
    number: int = 0  # of the newest order
    check: Check | None = None
    groups: Groups = ()  # that measure now
    verdict: Verdict | None = None  # of all groups, while all good nodes are measured together; else None
    results: Mapping[str, Probed] = field(default_factory=dict)  # answers to the newest order, by member id
    unfit: Mapping[str, str] = field(default_factory=dict)  # members that report themselves unfit, and why
    passed: frozenset[str] = frozenset()  # ids of the members that may train next
    excluded: tuple[ExcludedNode, ...] = ()  # nodes that were excluded and have passed no later check
    began_s: float = 0.0  # when the check began, by the coordinator's clock
    until_s: float = 0.0  # when answers of the present groups are no longer awaited
