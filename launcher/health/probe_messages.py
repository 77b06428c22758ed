"""Defines the plan of a probe and its reports: bounded JSON with a schema.

A probe is a process that measures one device, first alone and then with its group. It reports at each stage, so that
the agent knows where it gets stuck. If a probe gets stuck before it meets its group, its own node is at fault; later
any node of the group may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec

from turnout.launcher.errors import BadFrame
from turnout.launcher.health.model import Bandwidths, Group, Measured, Pair, ProbeStage

MAX_BYTES = 16 << 10  # of a plan or a report
MAX_FAULT = 500  # characters
MAX_PAIRS = 64  # links of a switchbox

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
ShortText = Annotated[str, msgspec.Meta(max_length=1_024)]


class ProbeSizes(msgspec.Struct, frozen=True):
    """How much a probe measures: sizes of its matrix product and messages, and repetitions."""

    matmul: PositiveCount = 512  # rows of a square matrix
    matmul_times: PositiveCount = 20
    reduce_bytes: PositiveCount = 4 << 20
    reduce_times: PositiveCount = 10
    pair_bytes: PositiveCount = 4 << 20
    pair_times: PositiveCount = 5
    warm_up: Count = 3  # runs before each timing


ON_CPU = ProbeSizes()
ON_DEVICE = ProbeSizes(
    16_384, 100, 64 << 20, 40, 64 << 20, 10
)  # about 1.5 s on an H100; the sizes of DLRover's node check


class ProbePlan(msgspec.Struct, frozen=True):
    """Tells one probe what to measure, with which other processes, and how long each stage may take."""

    rank: Count
    processes: PositiveCount
    members: PositiveCount  # of its group; each has equally many processes
    address: ShortText  # where the first process listens
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    device: ShortText = ""  # torch's name; "" for the accelerator of its number, else the CPU
    sizes: ProbeSizes | None = None  # None for those that suit the device
    matmul: PositiveCount | None = None  # overrides sizes
    reduce_bytes: PositiveCount | None = None  # overrides sizes
    meet_s: Seconds = 120.0  # for all to start and to meet
    stage_s: Seconds = 60.0  # for each other stage
    disk: ShortText = ""  # folder whose free space is reported, "" for none
    memory: ShortText = ""  # folder whose free space is reported, "" for none
    # switchbox links to measure, () for none; one process of a node does it
    box_pairs: Annotated[tuple[Pair, ...], msgspec.Meta(max_length=MAX_PAIRS)] = ()

    def __post_init__(self) -> None:
        if self.rank >= self.processes or self.processes % self.members:
            raise ValueError(f"rank {self.rank} of {self.processes} processes of {self.members} members")

    @property
    def processes_per_member(self) -> int:
        """Return the number of processes of each member."""
        return self.processes // self.members

    def measures(self, default: ProbeSizes) -> ProbeSizes:
        """Return the sizes to measure, with the overrides of this plan. default: the sizes that suit the device."""
        overrides = {"matmul": self.matmul, "reduce_bytes": self.reduce_bytes}
        return msgspec.structs.replace(
            self.sizes or default, **{name: size for name, size in overrides.items() if size is not None}
        )

    def within_s(self, stage: ProbeStage) -> float:
        """Return the longest time of a stage in seconds."""
        return self.meet_s if stage in (ProbeStage.BEGUN, ProbeStage.MEETING) else self.stage_s


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A probe's results so far. None stands for a value that was not measured, or whose measurement failed."""

    stage: ProbeStage = ProbeStage.BEGUN
    compute_s: Seconds | None = None  # median time of one matrix product
    collective_s: Seconds | None = None  # median time of one all-reduce of reduce_bytes
    reduce_bytes: Count = 0
    # to the next member, while the one before sends too
    bandwidth_bytes_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    # share of the device's memory that others use
    device_used: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    disk_bytes: Count | None = None
    memory_bytes: Count | None = None
    clock_ahead_s: float | None = None  # of this node's clock before the first member's
    clock_within_s: Seconds | None = None  # precision of clock_ahead_s
    boxes: Annotated[Bandwidths, msgspec.Meta(max_length=MAX_PAIRS)] = ()  # bandwidths of switchbox links
    fault: Annotated[str, msgspec.Meta(max_length=MAX_FAULT)] = ""  # why it stopped, "" while it goes on


_T = TypeVar("_T")
_plan, _report = msgspec.json.Decoder(ProbePlan), msgspec.json.Decoder(Report)


def encode(message: ProbePlan | Report) -> bytes:
    """Encode a message as one line, without its line end."""
    return msgspec.json.encode(message)


def read_plan(data: bytes) -> ProbePlan:
    """Decode a plan. Raises BadFrame for any other bytes."""
    return _read(_plan, data)


def read_report(data: bytes) -> Report:
    """Decode a report. Raises BadFrame for any other bytes."""
    return _read(_report, data)


def _read(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Decode one message. Raises BadFrame if it is too long or invalid."""
    if len(data) > MAX_BYTES:
        raise BadFrame(f"{len(data)} bytes: {MAX_BYTES} at most")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame(str(error)) from error


def combine_reports(reports: Sequence[Report]) -> Report:
    """Combine the reports of one member's processes, at least one.

    Times, bandwidth and use of the device are the worst of all; a time is None if one process has none. The switchbox
    links are those of the first process that has some. All else is of the process that got least far.
    """
    last = min(reports, key=lambda report: (list(ProbeStage).index(report.stage), not report.fault))

    def worst_time(values: Sequence[float | None]) -> float | None:
        """Return the largest value, None if one is missing."""
        known_values = [value for value in values if value is not None]
        return max(known_values) if len(known_values) == len(values) else None

    slowest = [each.bandwidth_bytes_s for each in reports if each.bandwidth_bytes_s is not None]
    used = [each.device_used for each in reports if each.device_used is not None]
    return msgspec.structs.replace(
        last,
        compute_s=worst_time([each.compute_s for each in reports]),
        collective_s=worst_time([each.collective_s for each in reports]),
        bandwidth_bytes_s=min(slowest, default=None),
        device_used=max(used, default=None),
        boxes=next((each.boxes for each in reports if each.boxes), ()),
    )


def group_measurement(group: Group, reports: Sequence[Report]) -> Measured:
    """Return the measurement of a group. reports: one per member, in the group's order.

    The collective's time is the longest, None if one member has none.
    """
    times = [each.collective_s for each in reports]
    group_s = max((time_s for time_s in times if time_s is not None), default=None)
    return Measured(group, tuple(each.compute_s for each in reports), None if None in times else group_s)
