"""What two keepers say to one another over TCP: frames with a sum each, and behind some of them the bytes of a shard.

A message is an array that begins with its number, in a frame of launcher/framing.py with eight bytes of xxh3 over the
body between its length and its body. A wrong sum, an unknown number or a value out of bounds is a BadFrame, and ends it
all.

Who listens begins with Knock. Greet proves that the other knows the job's token, and Known proves the same to him.
Then he says one of: Follow, and hears Copy whenever a step is to be copied, each answered by Copied; Offer, with the
sums and the bytes of a shard behind it, answered by Kept or No; Fetch, answered by Given with sums and bytes, or No.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from turnout.launcher.checkpoint.generations import MOST_GENERATIONS, RECORD_BYTES, Record, read_record, record_bytes
from turnout.launcher.checkpoint.sums import sum_of
from turnout.launcher.checkpoint.wire import Sealed
from turnout.launcher.errors import BadCheckpoint, BadFrame
from turnout.launcher.framing import PREFIX_BYTES, decode, frame
from turnout.launcher.keeping import Word

VERSION = 1
_SUM_BYTES = 8
HEAD_BYTES = PREFIX_BYTES + _SUM_BYTES
MOST_BYTES = 64 << 10

Text = Annotated[str, msgspec.Meta(max_length=4_096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Newest = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
Proof = Annotated[bytes, msgspec.Meta(max_length=64)]
Packed = Annotated[bytes, msgspec.Meta(min_length=RECORD_BYTES, max_length=RECORD_BYTES)]
Generations = Annotated[int, msgspec.Meta(ge=1, le=MOST_GENERATIONS)]
Sum = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Knock(_Frame, tag=1, frozen=True):
    """Who are you? Prove that you know the token, over this nonce."""

    version: Count
    nonce: Proof


class Greet(_Frame, tag=2, frozen=True):
    """The keeper of this worker of a run, in that round."""

    run: Word
    worker: Word
    round: Count
    nonce: Proof
    proof: Proof


class Known(_Frame, tag=3, frozen=True):
    """Come in: this one knows the token, too."""

    proof: Proof


class No(_Frame, tag=4, frozen=True):
    """Not this. reason: token, older_round, no_memory, not_here, corrupt, or busy."""

    reason: Word
    detail: Text = ""


class Follow(_Frame, tag=5, frozen=True):
    """Say which steps are to be copied in this round: this worker copies too."""


class Copy(_Frame, tag=6, frozen=True):
    """Have your shards of this step copied to your buddies.

    whole: the newest step of which all copies are there, -1 for none: it is to be kept, in all memories, until Copy
    names a newer one.
    """

    step: Count
    whole: Newest


class Copied(_Frame, tag=7, frozen=True):
    """The answer. how: "kept" by all buddies; "without": there is none that takes it, now or later; "failed"."""

    step: Count
    how: Literal["kept", "without", "failed"]


class Offer(_Frame, tag=8, frozen=True):
    """A shard, to be kept: its record. sums_sum: of the sums that follow. whole: as in Copy.

    generations: how many the owner's arena has. goes: where in storage it was to go, None where nowhere.
    """

    local_rank: Rank
    generations: Generations
    record: Packed
    sums_sum: Sum
    whole: Newest
    goes: Sealed | None = None


class Go(_Frame, tag=9, frozen=True):
    """The answer to Offer: there is room, send."""


class Kept(_Frame, tag=10, frozen=True):
    """All of it is here, each chunk as its sum has it."""


class Fetch(_Frame, tag=11, frozen=True):
    """Give the shard of this rank of so many, as it was trained in that round."""

    step: Count
    round: Count
    rank: Rank
    ranks: Count


class Given(_Frame, tag=12, frozen=True):
    """The answer to Fetch: as Offer, and sums and bytes follow at once."""

    generations: Generations
    record: Packed
    sums_sum: Sum
    goes: Sealed | None = None


Message: TypeAlias = Knock | Greet | Known | No | Follow | Copy | Copied | Offer | Go | Kept | Fetch | Given

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """One frame, ready to be sent."""
    body = _encoder.encode(message)
    return frame(body, sum_of(body).to_bytes(_SUM_BYTES, "little"))


def read(head: bytes | memoryview, body: bytes | memoryview) -> Message:
    """What the other side has said. Raises BadFrame."""
    if sum_of(body) != int.from_bytes(head[PREFIX_BYTES:HEAD_BYTES], "little"):
        raise BadFrame("a frame does not have its sum")
    return decode(_decoder, body)


def packed(record: Record) -> bytes:
    """A record as it travels."""
    return record_bytes(record)


def unpacked(data: bytes) -> Record:
    """Raises BadFrame where it is none."""
    try:
        return read_record(data)
    except BadCheckpoint as error:
        raise BadFrame(str(error)) from error
