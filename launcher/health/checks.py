"""Which checks a job wants before each start, and how the one of a round stands. What becomes of it is in rounds.py.

What a job wants is checked when built; how a command line says so is in options/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.launcher.errors import BadSettings
from turnout.launcher.health.frames import Probed
from turnout.launcher.health.groups import Groups
from turnout.launcher.health.model import Check, Limits, Verdict
from turnout.launcher.health.probe import Probing
from turnout.launcher.model import Member, Reason


@dataclass(frozen=True, slots=True)
class Checks:
    """The health checks before each start. performance: with the speed of all members together.

    switchbox: also the links from a switchbox to the host's GPUs, by pairs of sockets. One below min_bandwidth_mb_per_s
    is broken; a node with fewer than min_channels is faulty. limits: when it is slow. verdicts: what came of it is
    written on the own pod. probing: how much is measured, and how long it may take. Source: the guide, DL-30..35
    """

    network: bool = False
    performance: bool = False
    exclude_straggler: bool = False
    switchbox: bool = False
    box_pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 4), (3, 5), (6, 7))
    min_bandwidth_mb_per_s: int = 10_000
    min_channels: int = 2
    limits: Limits = field(default_factory=Limits)
    verdicts: bool = False
    probing: Probing = field(default_factory=Probing)

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


AGAIN_S, MOST_AGAIN_S = 3_600.0, 7 * 86_400.0  # the autoscaler taints for as long: docs/nodes.md


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A worker that a check has left out, as it was then. Before until_s no world ends, and none is checked, for it.

    times: how often, without having passed between. beside: the worker that it does not reach, where it is the link.
    """

    member: Member
    reason: Reason
    why: str
    until_s: float
    times: int = 1
    beside: str = ""

    def is_of(self, other: Member) -> bool:
        """Is this that worker again, in the same place? Where the host bears the name of its pod, the address tells."""
        was = self.member
        same = other.name == was.name or (other.order is not None and other.order == was.order)
        node = not was.name.startswith(was.host)
        return same and other.host == was.host and (node or other.address == was.address)

    def says(self, now_s: float) -> str:
        """The same in words."""
        again_s = max(self.until_s - now_s, 0.0)
        again = f"it is tested again after {again_s:.0f} s, or where too few are there without it"
        return f"{again}; left out, {self.times} times so far: {self.why}"[:1_000]


@dataclass(frozen=True, slots=True)
class Checking:
    """How nodes are checked before each round, and the check under way, if any.

    leaves_slow: slow nodes do not train either. all_together: the speed of all who passed is measured, too. round_s:
    the longest that groups may take. verdict: of the groups, while all together are measured. number: of the newest
    order to the groups that measure now. told: what came of it, by member; unfit: who must not train, and why, by what
    it says itself. passed: who may train next. left: who was left out by a check and has not passed one since.
    """

    limits: Limits = field(default_factory=Limits)
    leaves_slow: bool = False
    all_together: bool = False
    round_s: float = Probing().round_s
    number: int = 0
    check: Check | None = None
    groups: Groups = ()
    verdict: Verdict | None = None
    told: Mapping[str, Probed] = field(default_factory=dict)
    unfit: Mapping[str, str] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    left: tuple[LeftOut, ...] = ()
    began_s: float = 0.0
    until_s: float = 0.0
