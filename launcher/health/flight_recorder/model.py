"""Defines calls of collectives, one rank's process groups, and the record of one rank.

The numbers are torch's: each rank counts the calls of a process group from 1, so equal numbers mean the same call.
Records are made in parse.py, and many are compared in analysis.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_BYTES = 128 * 1024  # of one rank's record when encoded
MOST_GROUPS = 32  # per rank; those with the latest calls are kept
MOST_CALLS = 9  # per group
MOST_NAME = 80
MOST_RANKS_TEXT = 16 * 1024  # per group, written as a folded set: `0-2/5`

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
Why = Annotated[str, msgspec.Meta(max_length=300)]


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of a collective in a process group, as the Flight Recorder has it."""

    number: Number
    op: Name  # the operation, with sizes if they must be equal on all ranks
    open_s: Seconds | None = None  # seconds since it began; None once done


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The calls of one rank in one process group by one backend."""

    name: Name
    about: Name
    backend: Name
    ranks: Annotated[str, msgspec.Meta(max_length=MOST_RANKS_TEXT)]  # of the group, as a folded set; "" if unknown
    # the last calls and the first open ones, by number
    calls: Annotated[tuple[Call, ...], msgspec.Meta(min_length=1, max_length=MOST_CALLS)]

    @property
    def begun(self) -> int:
        """Return the number of its last call."""
        return max(call.number for call in self.calls)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The Flight Recorder's record of one rank."""

    rank: Number = 0  # as in torch.distributed
    world: Number = 0  # as in torch.distributed
    whole: bool = False  # True if groups that are missing here never called
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=MOST_GROUPS)] = ()
    sends: Name = ""  # the send or receive in which it waits, "" for none
    why: Why = ""  # the reason for a missing record, or ""
