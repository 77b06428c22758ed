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
    where they are kept for others to fetch; 0: those of all its own processes. parts: saved through
    torch.distributed.checkpoint, so that a world of any size can read it.
    """

    step: Step
    first_rank: Count
    ranks: Count
    round: Count = 0
    count: Count = 0
    parts: bool = False


MOST_HOLDS = 256
Holds = Annotated[tuple[Held, ...], msgspec.Meta(max_length=MOST_HOLDS)]
BARRED = Held(-1, 0, 0)  # told by who could not fetch: in the next round it is to fetch nothing


class Door(_Frame, frozen=True):
    """Where the keeper of this member listens for others. name: of the worker."""

    id: Word
    name: Word
    address: Word
    port: Port


Doors = Annotated[tuple[Door, ...], msgspec.Meta(max_length=8)]


class Lies(_Frame, frozen=True):
    """The shards of so many ranks, from this one on, lie in the memory of one worker, for others to fetch."""

    first_rank: Count
    count: Count
    door: Door


MOST_LIES = 256
AllLies = Annotated[tuple[Lies, ...], msgspec.Meta(max_length=MOST_LIES)]


class Take(_Frame, frozen=True):
    """Keep these ranks' shards for a worker that leaves. doors: of who has them, the leaver's own first."""

    owner: Word
    first_rank: Count
    count: Count
    doors: Doors


Takes = Annotated[tuple[Take, ...], msgspec.Meta(max_length=MOST_LIES)]


class Circle(_Frame, frozen=True):
    """Whom a member's keeper has to know in a round.

    first: who says which step is copied next. size: members of the world. buddies: who keeps the copies of this
    member's shards: where each shard has one copy, two, and so on up to MOST_COPIES.
    """

    first: Door
    size: Count
    buddies: Annotated[tuple[Doors, ...], msgspec.Meta(max_length=MOST_COPIES)]


class Seat(_Frame, frozen=True):
    """A member's place in a world, and where its shards are: as wire.Formed has it. processes: of this member."""

    round: Count
    first_rank: Count
    processes: Count
    ranks: Count
    origin: Count = 0
    alike: bool = False
    fetch: Doors = ()
    circle: Circle | None = None
    saved_by: Count = 0
    lies: AllLies = ()


class Stored(_Frame, tag=20, frozen=True):
    """The newest step committed in this folder: as a member sees it, then as all are to read it. "", -1: none known."""

    round: Count
    target: Annotated[str, msgspec.Meta(max_length=4_096)] = ""
    step: Step = -1


class Handover(_Frame, tag=23, frozen=True):
    """Some leave: what only they hold of this step goes to members that stay, and all of it to storage meanwhile.

    ranks, origin: how many had saved it, in which round. take: what this member is to keep; Taken answers then, within
    so many seconds. (): it leaves.
    """

    round: Count
    step: Step
    origin: Count
    ranks: Count
    within_s: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    take: Takes = ()


class Taken(_Frame, tag=24, frozen=True):
    """The answer to Handover: what this member holds now."""

    round: Count
    held: Holds = ()
