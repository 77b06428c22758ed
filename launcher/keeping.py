"""What members hold in memory, for themselves and for others, and where their keepers listen: as agents tell it."""

from __future__ import annotations

from typing import Annotated

import msgspec

ALL = 0  # Held.ranks of a state that is the same on every rank
MOST_COPIES = 3  # of one shard in the memory of others

Word = Annotated[str, msgspec.Meta(max_length=253)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Step = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Held(_Frame, frozen=True):
    """A step that a member holds in memory, sealed and hashed: as these ranks of so many, ALL for a state of any rank.

    round: in which it was trained. What another round made of the same step is another state. count: how many ranks,
    where they are kept for others to fetch; 0: those of all its own processes.
    """

    step: Step
    first_rank: Count
    ranks: Count
    round: Count = 0
    count: Count = 0


Holds = Annotated[tuple[Held, ...], msgspec.Meta(max_length=64)]
BARRED = Held(-1, 0, 0)  # told by who could not fetch: in the next round it is to fetch nothing


class Door(_Frame, frozen=True):
    """Where the keeper of this member listens for others. name: of the worker."""

    id: Word
    name: Word
    address: Word
    port: Port


Doors = Annotated[tuple[Door, ...], msgspec.Meta(max_length=8)]


class Circle(_Frame, frozen=True):
    """Whom a member's keeper has to know in a round.

    first: who says which step is copied next. size: members of the world. buddies: who keeps the copies of this
    member's shards: where each shard has one copy, two, and so on up to MOST_COPIES.
    """

    first: Door
    size: Count
    buddies: Annotated[tuple[Doors, ...], msgspec.Meta(max_length=MOST_COPIES)]
