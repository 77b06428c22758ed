"""What a coordinator and its members say to one another of health: checks before a round, and hangs within one.

How frames travel is in launcher/wire.py.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Some = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Word = Annotated[str, msgspec.Meta(max_length=253)]
Text = Annotated[str, msgspec.Meta(max_length=1_024)]
Packed = Annotated[bytes, msgspec.Meta(max_length=256 * 1024)]


class Found(StrEnum):
    """How a member's node came out of a check. Nothing is said of one of which no test could tell."""

    FINE = "fine"
    FAULTY = "faulty"
    SLOW = "slow"
    LINK = "link"  # good with others, but not with one of them


class Probe(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=30):
    """Measure yourself, and together with the others of your group; what is measured of an older number is over.

    rank: of this member's first process among those of the group, of which each member has as many. address, port:
    where the group's first process waits for the others.
    """

    number: Count
    rank: Count
    processes: Some
    members: Some
    address: Word
    port: Port

    def __post_init__(self) -> None:
        if self.processes % self.members or self.rank >= self.processes:
            raise ValueError(f"rank {self.rank} of {self.processes} processes of {self.members} members")


class Probed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=31):
    """What came of it. compute_s: None where this member's own computation failed, collective_s: where the group's did.

    unfit: why this node must not train, whatever its group has found. master_port: one that is free for the next
    processes that have to meet here. reduce_bytes: of the all-reduce that took collective_s.
    """

    number: Count
    master_port: Port
    compute_s: Seconds | None = None
    collective_s: Seconds | None = None
    unfit: Text = ""
    fault: Text = ""
    reduce_bytes: Count = 0


class Judged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=35):
    """What a check has found of a member. round: the one that it was for. by: the coordinator's name, in the job run.

    members: how many measured. cause, why: "" of a node that is fine.
    """

    round: Count
    found: Found
    by: Word
    run: Text
    members: Some
    cause: Word = ""
    why: Text = ""


class Hung(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=32):
    """A process of this round hangs, and why it is said to. why: "" when it goes on after all."""

    round: Count
    local_rank: Count
    why: Text = ""


class ShowStacks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=33):
    """Take the stacks of all your processes of this round. most_bytes: of one process, packed, that may be sent."""

    number: Count
    round: Count
    most_bytes: Count


class Stacks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=34):
    """Those of one process. packed: its file as zlib packs it, b"" where it cannot be sent, and why it cannot."""

    number: Count
    local_rank: Count
    packed: Packed = b""
    why: Text = ""
