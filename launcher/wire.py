"""What agents and the coordinator say to one another: msgpack frames with a schema, bounded, never pickle.

A message is an array that begins with its number, in a frame of launcher/framing.py. An unknown number, a missing field
or a value out of bounds is a BadFrame: the connection is closed, nothing else happens. Fields are only appended, with a
default: agents that do not know one leave it out, or pass over it.

Who connects first gets a Challenge. The answer, Join, proves that its sender knows the job's token without sending it,
and asks the coordinator for the same proof, which Welcome brings. Source: docs/facts/reliability.md 2.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, TypeAlias

import msgspec

from turnout.launcher.framing import decode, frame
from turnout.launcher.health.frames import Hung, Judged, Probe, Probed, ShowStacks, Stacks
from turnout.launcher.keeping import AllLies, Circle, Count, Doors, Holds, Port, Step, Taken, Word
from turnout.launcher.keeping import Handover as Handover
from turnout.launcher.keeping import Held as Held
from turnout.launcher.keeping import Stored as Stored
from turnout.launcher.model import Budget, Member, Terms

VERSION = 1
PORT = 29_400
MOST_BYTES = 4 << 20  # the whole list of 20,000 members; all else is far smaller
MOST_JOIN_BYTES = 24 << 10  # of one who has not proved anything yet
NONCE_BYTES = 16

Text = Annotated[str, msgspec.Meta(max_length=1_024)]
Proof = Annotated[bytes, msgspec.Meta(max_length=64)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Challenge(_Frame, tag=1, frozen=True):
    """Prove that you know the token, over this nonce."""

    version: Count
    nonce: Proof


class Base(_Frame, frozen=True):
    """The last round that a member took part in, or was told of: it accepts none before it.

    size: members of that world; inside: whether it was one of them. busy: its processes of it may still run.
    """

    round: Count = 0
    size: Count = 0
    inside: bool = False
    busy: bool = False

    def idle(self) -> Base:
        """The same, without processes."""
        return Base(self.round, self.size, self.inside)


class Join(_Frame, tag=2, frozen=True):
    """A member and what it knows. wanted: workers that the job has now, 0 when it does not know."""

    version: Count
    run: Word
    nonce: Proof
    proof: Proof
    member: Member
    terms: Terms
    base: Base
    budget: Budget
    wanted: Count = 0
    held: Holds = ()
    importing_s: Seconds = 0.0  # as Beat's


class Successor(_Frame, frozen=True):
    """Where to go when the coordinator is lost: the oldest members, oldest first."""

    id: Word
    address: Word
    port: Port


class Welcome(_Frame, tag=3, frozen=True):
    """Taken. beat_s: how often to say so; silence_s: after how long without a word the other side counts as lost."""

    proof: Proof
    coordinator: Word
    beat_s: Seconds
    silence_s: Seconds
    successors: tuple[Successor, ...] = ()


class Refused(_Frame, tag=4, frozen=True):
    """Not taken, and will not be. reason: a word of model.Reason."""

    reason: Word
    detail: Text


class Redirect(_Frame, tag=5, frozen=True):
    """Not here: that one decides. size: members of the last world that have not left it, 0 when that is not told."""

    id: Word
    address: Word
    port: Port
    size: Count = 0


class Waiting(_Frame, tag=6, frozen=True):
    """Taken, not in this world: no round before this one is accepted. successors: () when nothing of them is new."""

    round: Count
    size: Count
    reason: Word
    detail: Text
    successors: tuple[Successor, ...] = ()


class Formed(_Frame, tag=7, frozen=True):
    """A world, as one member has to know it. base: the round that this one follows.

    restore: the newest step of which every rank of this world is in somebody's memory, -1 for none; of the round
    `origin`, the same on all ranks where `alike`. fetch: whom to ask for it before anything is started, () where this
    member holds its part. look: others may have trained on since; all tell what is Stored, and read what is named if it
    is newer. circle: whose keepers its own has to know, None for nobody's. carry: the step that all of the last world
    held, which is to be in storage, or -1. saved_by: by how many ranks it was saved where each takes parts of theirs.
    """

    round: Count
    base: Count
    group_rank: Count
    group_size: Count
    first_rank: Count
    ranks: Count
    master_address: Word
    master_port: Port
    reason: Word
    budget: Budget
    successors: tuple[Successor, ...] = ()
    restore: Step = -1
    origin: Count = 0
    alike: bool = False
    fetch: Doors = ()
    circle: Circle | None = None
    carry: Step = -1
    saved_by: Count = 0
    lies: AllLies = ()
    look: bool = False


class StopAt(_Frame, tag=8, frozen=True):
    """All stop after this step. sure: nobody has passed it; until then ranks that get there wait."""

    round: Count
    step: Step
    sure: bool


class Stop(_Frame, tag=9, frozen=True):
    """End the processes of this round, with so much time for them to save, and say Ready."""

    round: Count
    reason: Word
    grace_s: Seconds


class Finish(_Frame, tag=10, frozen=True):
    """The job is over for this member. carry: as Formed's."""

    exit: Annotated[int, msgspec.Meta(ge=0, le=255)]
    reason: Word
    detail: Text
    carry: Step = -1


class Beat(_Frame, tag=11, frozen=True):
    """I live. step: the newest that all local processes have done; saved: the newest saved. -1: unknown."""

    step: Step = -1
    saved: Step = -1
    importing_s: Seconds = 0.0  # at most, until it has imported what processes need; 0: it can start them


class Ready(_Frame, tag=12, frozen=True):
    """No process of this round or before runs here. master_port: one that is free for the next; path: as Member's."""

    round: Count
    master_port: Port
    path: Annotated[tuple[Word, ...], msgspec.Meta(max_length=16)] = ()
    held: Holds = ()


class Failed(_Frame, tag=13, frozen=True):
    """A process of this round ended with an error."""

    round: Count
    local_rank: Count
    detail: Text


class Succeeded(_Frame, tag=14, frozen=True):
    """All processes of this round ended well. held: as Ready's, where they were to stop for another world."""

    round: Count
    held: Holds = ()


class Leaving(_Frame, tag=15, frozen=True):
    """Asked to go, within so many seconds."""

    grace_s: Seconds
    reason: Word = ""


class Reached(_Frame, tag=16, frozen=True):
    """The answer to StopAt: the farthest step that a local process has begun."""

    round: Count
    step: Step


class Ask(_Frame, tag=17, frozen=True):
    """Who is in the world?"""


class Roster(_Frame, tag=18, frozen=True):
    """All members of the world by group rank."""

    round: Count
    members: tuple[Member, ...]


class Pace(_Frame, tag=19, frozen=True):
    """The crowd has grown: from now on as Welcome says it."""

    beat_s: Seconds
    silence_s: Seconds


ToMember: TypeAlias = (
    Challenge | Welcome | Refused | Redirect | Waiting | Formed | StopAt | Stop | Finish | Beat | Roster | Pace | Stored
    | Probe | Judged | ShowStacks | Handover
)  # fmt: skip
ToCoordinator: TypeAlias = (
    Join | Beat | Ready | Failed | Succeeded | Leaving | Reached | Ask | Stored | Probed | Hung | Stacks | Taken
)  # fmt: skip
Message: TypeAlias = ToMember | ToCoordinator

_encoder = msgspec.msgpack.Encoder()
_at_member: msgspec.msgpack.Decoder[ToMember] = msgspec.msgpack.Decoder(ToMember)
_at_coordinator: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)


def encode(message: Message) -> bytes:
    """One frame, ready to be sent."""
    return frame(_encoder.encode(message))


def read_at_member(body: bytes | memoryview) -> ToMember:
    """What a coordinator has said."""
    return decode(_at_member, body)


def read_at_coordinator(body: bytes | memoryview) -> ToCoordinator:
    """What a member has said."""
    return decode(_at_coordinator, body)


def proof(token: bytes, role: str, run: str, theirs: bytes, ours: bytes) -> bytes:
    """HMAC-SHA256 that shows a party knows the token, as "member" or "coordinator". ours: the prover's own nonce."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in (role.encode(), run.encode(), theirs, ours))
    return hmac.new(token, b"turnout rendezvous 1" + text, hashlib.sha256).digest()


def proves(claimed: bytes, token: bytes, role: str, run: str, theirs: bytes, ours: bytes) -> bool:
    """Is this the proof that one who knows the token would send? In constant time."""
    return hmac.compare_digest(claimed, proof(token, role, run, theirs, ours))
