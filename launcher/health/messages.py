"""Defines the messages between a coordinator and its members about health: node checks, and hangs within a round.

Frames are in launcher/rendezvous/messages.py.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Some = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
ShortText = Annotated[str, msgspec.Meta(max_length=253)]
Text = Annotated[str, msgspec.Meta(max_length=1_024)]
Packed = Annotated[bytes, msgspec.Meta(max_length=256 * 1024)]


class Found(StrEnum):
    """The result of a check for a member's node. A node that no test could judge gets none."""

    FINE = "fine"
    FAULTY = "faulty"
    SLOW = "slow"
    LINK = "link"  # works with other nodes, but not with one of them


class Probe(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=30):
    """Asks a member to measure itself, and to measure with its group. It replaces orders with lower numbers."""

    number: Count
    rank: Count  # of this member's first process in the group
    processes: Some  # of the group; each member has equally many
    members: Some
    address: ShortText  # where the group's first process listens
    port: Port

    def __post_init__(self) -> None:
        if self.processes % self.members or self.rank >= self.processes:
            raise ValueError(f"rank {self.rank} of {self.processes} processes of {self.members} members")


class Probed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=31):
    """Reports to the coordinator what one member's probes have measured."""

    number: Count
    master_port: Port  # a free port for the next group that meets here
    compute_s: Seconds | None = None  # None if its own computation failed
    collective_s: Seconds | None = None  # None if the group's collective failed
    unfit: Text = ""  # why this node must not train, whatever its group found
    fault: Text = ""
    reduce_bytes: Count = 0  # of the all-reduce that took collective_s


class Judged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=35):
    """Tells a member what a check has found about its node."""

    round: Count  # the round after the check
    found: Found
    by: ShortText  # the coordinator's name
    run: Text  # the job's id
    members: Some  # how many were measured
    cause: ShortText = ""  # "" for a fine node
    why: Text = ""  # "" for a fine node


class Hung(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=32):
    """Reports that a process of this round hangs, or that it has resumed."""

    round: Count
    local_rank: Count
    why: Text = ""  # "" if it has resumed


class ShowStacks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=33):
    """Asks for the stack traces of all processes of this round."""

    number: Count
    round: Count
    most_bytes: Count  # of one process, compressed


class Stacks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=34):
    """Carries the stack traces of one process."""

    number: Count
    local_rank: Count
    packed: Packed = b""  # its compressed file, b"" if it cannot be sent
    why: Text = ""  # why it cannot be sent
