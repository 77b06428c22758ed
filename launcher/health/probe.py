"""What a probe is told and what it tells: bounded JSON with a schema, and what of it a check needs.

A probe is a process that measures one device alone, then together with those of the other members of its group. It
tells a Report at each stage, so that of one that gets stuck it is known where. What is stuck before it meets the others
is its own fault; what is stuck with them may be anybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

from turnout.launcher.errors import BadCheck, BadFrame
from turnout.launcher.health.model import Group, Measured
from turnout.launcher.health.switchbox import Bandwidths, Pair

MOST_BYTES = 16 << 10  # of a plan or a report
MOST_FAULT = 500  # characters
MOST_PAIRS = 64  # links of a switchbox
MOST_STAGE_S = 86_400.0
GRACE_S = 2.0  # beyond its own limit of a stage, for a probe to say itself that it has failed

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Some = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
Word = Annotated[str, msgspec.Meta(max_length=1_024)]


class Stage(StrEnum):
    """How far a probe has come."""

    BEGUN = "begun"  # it is started, and imports torch
    ROOM = "room"  # looks at its disks and its device's memory
    SWITCHBOX = "switchbox"
    COMPUTE = "compute"
    MEETING = "meeting"  # waits for the others
    COLLECTIVE = "collective"
    BANDWIDTH = "bandwidth"
    CLOCK = "clock"
    DONE = "done"


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured. matmul: rows of a square; times: how often each is timed, after warm_up runs."""

    matmul: Some = 512
    matmul_times: Some = 20
    reduce_bytes: Some = 4 << 20
    reduce_times: Some = 10
    pair_bytes: Some = 4 << 20
    pair_times: Some = 5
    warm_up: Count = 3


@dataclass(frozen=True, slots=True)
class Probing:
    """How a job wants its probes: as in Plan.

    Raises BadCheck for what no probe could obey.
    """

    meet_s: float = 120.0
    stage_s: float = 60.0
    matmul: int | None = None
    reduce_bytes: int | None = None

    def __post_init__(self) -> None:
        if not (0 < self.meet_s <= MOST_STAGE_S and 0 < self.stage_s <= MOST_STAGE_S):
            raise BadCheck(f"a stage of a probe takes more than 0 s and {MOST_STAGE_S:g} s at most")
        if self.matmul == 0 or self.reduce_bytes == 0:
            raise BadCheck("a probe that measures nothing: a size above 0 is needed")

    @property
    def round_s(self) -> float:
        """How long a round of groups may take: no probe that tells of its stages in time takes longer."""
        return 2 * self.meet_s + (len(Stage) - 2) * self.stage_s + GRACE_S * len(Stage)


ON_CPU = Sizes()
ON_DEVICE = Sizes(16_384, 100, 64 << 20, 40, 64 << 20, 10)  # some 1.5 s of an H100; sizes as DLRover's node check


class Plan(msgspec.Struct, frozen=True):
    """What one probe does. members: of its group; each has as many processes as the others.

    address, port: where the first process waits for the others. device: as torch names it, "" for the accelerator of
    its number, else the CPU. sizes: None for what suits that; matmul, reduce_bytes: instead of theirs. meet_s: for all
    of them to start, and to come; stage_s: for each other stage. disk, memory: folders whose room is told, "" for none.
    box_pairs: links of the switchbox to measure, () for none: one process of a node does.
    """

    rank: Count
    processes: Some
    members: Some
    address: Word
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    device: Word = ""
    sizes: Sizes | None = None
    matmul: Some | None = None
    reduce_bytes: Some | None = None
    meet_s: Seconds = 120.0
    stage_s: Seconds = 60.0
    disk: Word = ""
    memory: Word = ""
    box_pairs: Annotated[tuple[Pair, ...], msgspec.Meta(max_length=MOST_PAIRS)] = ()

    def __post_init__(self) -> None:
        if self.rank >= self.processes or self.processes % self.members:
            raise ValueError(f"rank {self.rank} of {self.processes} processes of {self.members} members")

    @property
    def local(self) -> int:
        """Processes of each member."""
        return self.processes // self.members

    def measures(self, usual: Sizes) -> Sizes:
        """How much. usual: what suits the device."""
        asked = {"matmul": self.matmul, "reduce_bytes": self.reduce_bytes}
        return msgspec.structs.replace(
            self.sizes or usual, **{name: size for name, size in asked.items() if size is not None}
        )

    def within_s(self, stage: Stage) -> float:
        """How long a stage may take."""
        return self.meet_s if stage in (Stage.BEGUN, Stage.MEETING) else self.stage_s


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one probe knows so far; None: not measured, or failed. fault: why it went no farther, "" while it goes on.

    compute_s, collective_s: medians of one product, of one all-reduce of reduce_bytes. bandwidth_bytes_s: to the next
    member and from the one before, at once. device_used: share of the device's memory that others hold. clock_ahead_s:
    of this node before the first one of the group, known to within clock_within_s. boxes: of the switchbox' links.
    """

    stage: Stage = Stage.BEGUN
    compute_s: Seconds | None = None
    collective_s: Seconds | None = None
    reduce_bytes: Count = 0
    bandwidth_bytes_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    device_used: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    disk_bytes: Count | None = None
    memory_bytes: Count | None = None
    clock_ahead_s: float | None = None
    clock_within_s: Seconds | None = None
    boxes: Annotated[Bandwidths, msgspec.Meta(max_length=MOST_PAIRS)] = ()
    fault: Annotated[str, msgspec.Meta(max_length=MOST_FAULT)] = ""


_T = TypeVar("_T")
_plan, _report = msgspec.json.Decoder(Plan), msgspec.json.Decoder(Report)


def encode(message: Plan | Report) -> bytes:
    """One line, without its end."""
    return msgspec.json.encode(message)


def read_plan(data: bytes) -> Plan:
    """Raises BadFrame for what is no plan."""
    return _read(_plan, data)


def read_report(data: bytes) -> Report:
    """Raises BadFrame for what is no report."""
    return _read(_report, data)


def _read(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    if len(data) > MOST_BYTES:
        raise BadFrame(f"{len(data)} bytes: {MOST_BYTES} at most")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame(str(error)) from error


def of_member(reports: Sequence[Report]) -> Report:
    """The report of one member: the worst of its processes, that of the earliest stage for what is told in words."""
    last = min(reports, key=lambda report: (list(Stage).index(report.stage), not report.fault))

    def most(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return max(known) if len(known) == len(values) else None

    slowest = [each.bandwidth_bytes_s for each in reports if each.bandwidth_bytes_s is not None]
    used = [each.device_used for each in reports if each.device_used is not None]
    return msgspec.structs.replace(
        last,
        compute_s=most([each.compute_s for each in reports]),
        collective_s=most([each.collective_s for each in reports]),
        bandwidth_bytes_s=min(slowest, default=None),
        device_used=max(used, default=None),
        boxes=next((each.boxes for each in reports if each.boxes), ()),
    )


def measured(group: Group, reports: Sequence[Report]) -> Measured:
    """What a check learns from a group. reports: of its members, in their order."""
    times = [each.collective_s for each in reports]
    together = max((time_s for time_s in times if time_s is not None), default=None)
    return Measured(group, tuple(each.compute_s for each in reports), None if None in times else together)
