"""Which checks a job wants before each start. Checked when built; how a command line says so is in options/."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.errors import BadSettings
from launcher.health.model import Limits
from launcher.health.probe import Probing


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
