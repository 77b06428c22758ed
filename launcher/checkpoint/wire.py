"""What the keeper of a worker and its clients, training processes and the agent, say to one another: msgpack frames.

A message is an array that begins with its number, in a frame of launcher/framing.py. An unknown number, a missing field
or a value out of bounds is a BadFrame: the connection is closed, nothing else happens.
Tensors never travel here: they lie in the arena, and a generation's number says which.

A training process speaks first, with Hello and Need; Arena or Refused is the answer. Its connection, when it ends
without Bye, is that of a process that died. An agent says Settle, and Holdings is the answer.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from turnout.launcher.checkpoint.generations import MOST_GENERATIONS
from turnout.launcher.framing import decode, frame
from turnout.launcher.keeping import MOST_COPIES, Holds, Takes
from turnout.launcher.keeping import Seat as Seat

VERSION = 1
MOST_BYTES = 1 << 20  # a seat with MOST_LIES places; all else is far smaller

Text = Annotated[str, msgspec.Meta(max_length=4_096)]  # a path, a URL, a sentence
Word = Annotated[str, msgspec.Meta(max_length=253)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Newest = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]  # a step, -1 for none
Ranks = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Slot = Annotated[int, msgspec.Meta(ge=0, lt=MOST_GENERATIONS)]
Slots = Annotated[int, msgspec.Meta(ge=1, le=MOST_GENERATIONS)]
Kind: TypeAlias = Literal["shards", "torch"]


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Hello(_Frame, tag=1, frozen=True):
    """Who saves here: a rank of a round of a run, on the worker of this name.

    target: the folder or URL of its checkpoints, "" where it writes none: for what goes there on its behalf.
    replicas: how many copies of each shard the memory of other workers is to hold. alike: what it saves is the same on
    all ranks, also where it is the only one. reads: that folder, also where another rank alone writes to it.
    """

    run: Word
    worker: Word
    rank: Ranks
    local_rank: Ranks
    world: Ranks
    round: Count
    version: Count = VERSION
    target: Text = ""
    replicas: Annotated[int, msgspec.Meta(ge=0, le=MOST_COPIES)] = 0
    alike: bool = False
    reads: Text = ""


class Need(_Frame, tag=2, frozen=True):
    """Have an arena ready. bytes: of one generation, with head and sums."""

    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    generations: Slots


class Sealed(_Frame, tag=3, frozen=True):
    """A generation is sealed: hash it, and where a target is named persist it.

    target: folder or URL of the checkpoints, "" for memory alone. kind: as shards with a manifest, or as a torch file
    at `path`. keep, every: how many of the newest and which multiples stay in the folder, 0 and 0: all of them.
    later: it stays in memory, and goes to its target only if the world goes on from it after a failure.
    """

    generation: Slot
    epoch: Count
    step: Step
    target: Text = ""
    kind: Kind = "shards"
    path: Text = ""
    keep: Count = 0
    every: Count = 0
    later: bool = False


class Wait(_Frame, tag=4, frozen=True):
    """Say Done once nothing that was told before this is in flight."""


class Ask(_Frame, tag=5, frozen=True):
    """How far is it all? Stats is the answer."""


class Bye(_Frame, tag=6, frozen=True):
    """This process ends as it should: nothing more has to be saved on its behalf."""


class Settle(_Frame, tag=7, frozen=True):
    """Hash what is sealed of all `ranks` processes of this worker, and say Holdings. Storage is not waited for."""

    ranks: Ranks


class End(_Frame, tag=8, frozen=True):
    """The agent ends: finish what is in flight. done: the job is over, and its memory is given back."""

    done: bool


class Arena(_Frame, tag=9, frozen=True):
    """The file to save into: its pages are there, or come soon."""

    path: Text
    generations: Slots


class Refused(_Frame, tag=10, frozen=True):
    """No arena. reason: a word; detail: what is missing and what to add."""

    reason: Word
    detail: Text


class Hashed(_Frame, tag=11, frozen=True):
    """The step in memory is verified from now on."""

    step: Step


class Persisted(_Frame, tag=12, frozen=True):
    """This rank's part of the step is in storage, at this path."""

    step: Step
    path: Text


class Failed(_Frame, tag=13, frozen=True):
    """The step did not get where it was to go. Memory has it still, and training goes on."""

    step: Step
    reason: Word
    detail: Text


class Done(_Frame, tag=14, frozen=True):
    """The answer to Wait."""


class Stats(_Frame, tag=15, frozen=True):
    """What the keeper has done for this rank. Steps: the newest, -1 for none; in_flight: told and not done yet.

    replicated: of which all its buddies have a copy. uncopied: saves that were not copied, since a newer one was.
    overtaken: saves that were not written to storage, since newer ones needed their memory.
    """

    sealed: Newest = -1
    hashed: Newest = -1
    persisted: Newest = -1
    committed: Newest = -1
    in_flight: Count = 0
    persists: Count = 0
    failures: Count = 0
    persisted_bytes: Count = 0
    replicated: Newest = -1
    uncopied: Count = 0
    overtaken: Count = 0


class Holdings(_Frame, tag=16, frozen=True):
    """The answer to Settle: the steps that all processes of the worker hold in memory, hashed, newest first."""

    held: Holds = ()


class Agreed(_Frame, tag=17, frozen=True):
    """The agent tells from which step in memory the world goes on, -1: from storage. Done answers.

    The step is persisted, where a target is known. What is newer is of a past that was given up, and is thrown away.
    seat: of the world, and what is to be fetched for it before anything else; None where nobody tells. Where it cannot
    be had the answer is Failed, and nothing has changed. carry: what is to be in storage before that is read, -1 where
    nobody knows.
    """

    step: Newest
    seat: Seat | None = None
    carry: Newest = -1


class Pinned(_Frame, tag=18, frozen=True):
    """Sealed was heard: where it named a target, the generation stays until it is in storage, or fails to be."""

    step: Step


class Trust(_Frame, tag=19, frozen=True):
    """The agent says first: the token by which the keepers of its job know one another, and where its round stands.

    step, seat: of the round that goes on now, as in Agreed, with nothing to fetch.
    """

    token: Annotated[bytes, msgspec.Meta(max_length=4_096)]
    step: Newest = -1
    seat: Seat | None = None


class Overtake(_Frame, tag=22, frozen=True):
    """A save finds no room: let go of the oldest one that waits to be written to storage. MadeRoom answers."""


class MadeRoom(_Frame, tag=23, frozen=True):
    """The step that was let go, -1 where none can be: it is not in storage, and will not be."""

    step: Newest


class Look(_Frame, tag=24, frozen=True):
    """The agent asks, once the world has agreed to go on from storage, what is there. Stored answers."""


class Stored(_Frame, tag=25, frozen=True):
    """The newest step that is committed in this folder, -1 for none. target: "" where none is known or answers."""

    target: Text = ""
    step: Newest = -1


class Inherit(_Frame, tag=26, frozen=True):
    """The agent says, between two rounds: keep these for workers that leave, as wire.Handover has it. Done answers."""

    round: Count
    step: Step
    origin: Count
    ranks: Ranks
    within_s: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    take: Takes = ()


class Bring(_Frame, tag=27, frozen=True):
    """A training process asks for the shard of this rank of so many, of the step that its world goes on from.

    It has said no Hello. Brought or Failed answers.
    """

    step: Step
    round: Count
    rank: Ranks
    ranks: Ranks


class Brought(_Frame, tag=28, frozen=True):
    """In this file of memory it lies, every byte of it looked at."""

    path: Text
    generation: Slot
    epoch: Count


ToKeeper: TypeAlias = (
    Hello | Need | Sealed | Wait | Ask | Bye | Settle | End | Agreed | Trust | Overtake | Look | Inherit | Bring
)
ToClient: TypeAlias = (
    Arena | Refused | Hashed | Persisted | Failed | Done | Stats | Holdings | Pinned | MadeRoom | Stored | Brought
)
Message: TypeAlias = ToKeeper | ToClient

_encoder = msgspec.msgpack.Encoder()
_at_keeper: msgspec.msgpack.Decoder[ToKeeper] = msgspec.msgpack.Decoder(ToKeeper)
_at_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)


def encode(message: Message) -> bytes:
    """One frame, ready to be sent."""
    return frame(_encoder.encode(message))


def read_at_keeper(body: bytes | memoryview) -> ToKeeper:
    """What a training process or the agent has said."""
    return decode(_at_keeper, body)


def read_at_client(body: bytes | memoryview) -> ToClient:
    """What a keeper has said."""
    return decode(_at_client, body)
