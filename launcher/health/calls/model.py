"""The nouns of collectives: a call, a process group of one rank, and all that this rank has on record.

The numbers are torch's: the calls of a process group are counted from 1 on each of its ranks, so that the same number
is the same call. How a record comes to be is in reading.py, what many of them say in judging.py.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_BYTES = 128 * 1024  # of one rank's record, as it is written
MOST_GROUPS = 32  # of one rank; those in which it called last are kept
MOST_CALLS = 9  # of one group
MOST_NAME = 80
MOST_RANKS_TEXT = 16 * 1024  # of one group, as a set is written: `0-2/5`

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
Why = Annotated[str, msgspec.Meta(max_length=300)]


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call. op: what it does; where sizes must be alike they are told too. open_s: None once it is done."""

    number: Number
    op: Name
    open_s: Seconds | None = None


class Group(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has called in one process group, by one backend. ranks: of the group, as model.folded has sets.

    ranks is "" where they are not known. calls: by number, the last ones and the first that are open; never empty.
    """

    name: Name
    about: Name
    backend: Name
    ranks: Annotated[str, msgspec.Meta(max_length=MOST_RANKS_TEXT)]
    calls: Annotated[tuple[Call, ...], msgspec.Meta(min_length=1, max_length=MOST_CALLS)]

    @property
    def begun(self) -> int:
        """The number of its last call."""
        return max(call.number for call in self.calls)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has on record. rank, world: as torch.distributed has them.

    whole: a group that is not here was never called in. sends: the send or receive that it waits in, "" for none.
    why: there is nothing on record, and this is why; "" where there is.
    """

    rank: Number = 0
    world: Number = 0
    whole: bool = False
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=MOST_GROUPS)] = ()
    sends: Name = ""
    why: Why = ""
