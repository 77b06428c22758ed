"""Defines the node checks that a job wants, and the state of the current one; rendezvous/diagnosis/ runs it.

The wishes are checked when built. Their command line options are in cli/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.launcher.errors import BadSettings
from turnout.launcher.health.messages import Probed
from turnout.launcher.health.model import Check, StragglerLimits, Verdict
from turnout.launcher.health.probe_groups import Groups
from turnout.launcher.health.probe_messages import ProbePolicy
from turnout.launcher.model import Member, Reason


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """The node checks before each start. Source: the guide, DL-30..35"""

    network: bool = False
    performance: bool = False  # also measure the speed of all members together
    exclude_straggler: bool = False
    switchbox: bool = False  # also measure links from a switchbox to the GPUs
    box_pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 4), (3, 5), (6, 7))  # GPU numbers at the ends of those links
    min_bandwidth_mb_per_s: int = 10_000  # a link below it is broken
    min_channels: int = 2  # a node with fewer working links is faulty
    limits: StragglerLimits = field(default_factory=StragglerLimits)  # when a node is slow
    verdicts: bool = False  # write the result on the worker's own pod
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


# Seconds of exclusion, first and at most; the autoscaler taints as long: docs/faulty-nodes.md.
AGAIN_S, MOST_AGAIN_S = 3_600.0, 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class ExcludedNode:
    """A worker that a node check has excluded. Until `until_s` no world stops for it, and it is not tested."""

    member: Member
    reason: Reason
    why: str
    until_s: float
    times: int = 1  # exclusions in a row
    unreachable_peer: str = ""  # the worker that it cannot reach, if the link is bad

    def is_of(self, other: Member) -> bool:
        """True if this is the same worker in the same place. If the host is named like its pod, the address decides."""
        was = self.member
        same = other.name == was.name or (other.index is not None and other.index == was.index)
        node = not was.name.startswith(was.host)
        return same and other.host == was.host and (node or other.address == was.address)

    def describe(self, now_s: float) -> str:
        """Describe the exclusion in words."""
        again_s = max(self.until_s - now_s, 0.0)
        next_test = f"it is tested again after {again_s:.0f} s, or where too few are there without it"
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
    verdict: Verdict | None = None  # of the groups, while all are measured together
    results: Mapping[str, Probed] = field(default_factory=dict)  # results by member
    unfit: Mapping[str, str] = field(default_factory=dict)  # members that report themselves unfit, and why
    passed: frozenset[str] = frozenset()  # members that may train next
    excluded: tuple[ExcludedNode, ...] = ()  # excluded nodes that have not passed since
    began_s: float = 0.0
    until_s: float = 0.0
