"""Defines the messages between two checkpoint daemons over TCP, each with a checksum, some followed by a shard's bytes.

A message is an array that begins with its number, in a frame of launcher/framing.py. Eight bytes of xxh3 over the body
stand between its length and its body. A wrong checksum, an unknown number or a value out of bounds raises BadFrame,
which ends the connection.
The listener sends PeerHello. The caller answers PeerChallenge, which proves that it knows the job's token, and the
listener proves the same with PeerProven. The caller then sends one of these:
Follow: the listener sends Copy for each step to copy, and the caller answers each with Copied.
Offer: answered by SendShard; then the caller sends the checksums, bytes and proof of a shard (replication/
shard_stream.py), answered by ShardKept or Refusal.
Fetch: answered by ShardGiven with checksums, bytes and proof, or by Refusal.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from turnout.launcher.checkpoint.format.arena_layout import (
    MOST_GENERATIONS,
    RECORD_BYTES,
    ShardRecord,
    read_record,
    record_bytes,
)
from turnout.launcher.checkpoint.format.checksums import sum_of
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.errors import BadCheckpoint, BadFrame
from turnout.launcher.frame_auth import FrameAuth
from turnout.launcher.framing import PREFIX_BYTES, decode, frame
from turnout.launcher.rendezvous.checkpoint_messages import ShortText

VERSION = 4
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


class _PeerFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class PeerHello(_PeerFrame, tag=1, frozen=True):
    """Asks the caller for its identity, and for a proof over this nonce that it knows the token."""

    version: Count
    nonce: Proof


class PeerChallenge(_PeerFrame, tag=2, frozen=True):
    """Names the caller, a daemon of this worker, run and round. proof: over the listener's nonce. nonce: for the
    listener's proof.
    """

    run: ShortText
    worker: ShortText
    round: Count
    nonce: Proof
    proof: Proof


class PeerProven(_PeerFrame, tag=3, frozen=True):
    """Accepts the caller, and proves that the listener knows the token too."""

    proof: Proof


class Refusal(_PeerFrame, tag=4, frozen=True):
    """Refuses a request. reason: token, older_round, no_memory, not_here, corrupt, or busy."""

    reason: ShortText
    detail: Text = ""


class Follow(_PeerFrame, tag=5, frozen=True):
    """Asks the leading daemon to name the steps to copy in this round."""


class Copy(_PeerFrame, tag=6, frozen=True):
    """Tells a daemon to send its shards of this step to its replica holders. Answered by Copied."""

    step: Count
    # the newest step of which all replicas are complete, -1: none; all memories keep it until Copy names a newer one
    complete_step: Newest


class Copied(_PeerFrame, tag=7, frozen=True):
    """Answers Copy: says if the daemon's shards of the step reached its replica holders."""

    step: Count
    outcome: Literal["kept", "without", "failed"]  # kept: by all holders; without: no holder takes it, now or later


class Offer(_PeerFrame, tag=8, frozen=True):
    """Offers a shard to a replica holder. Answered by SendShard or Refusal."""

    local_rank: Rank
    generations: Generations  # of the owner's arena
    record: Packed  # of the shard
    sums_sum: Sum  # checksum of the checksums that follow
    complete_step: Newest  # as in Copy
    target: Save | None = None  # the owner's target in storage, None for none


class SendShard(_PeerFrame, tag=9, frozen=True):
    """Answers Offer: there is memory, so send the shard."""


class ShardKept(_PeerFrame, tag=10, frozen=True):
    """Announces that the whole shard has arrived and every chunk matches its checksum."""


class Fetch(_PeerFrame, tag=11, frozen=True):
    """Asks for the shard of `rank` in a world of `ranks`, as it was saved in that round. Answered by ShardGiven or
    Refusal.
    """

    step: Count
    round: Count
    rank: Rank
    ranks: Count


class ShardGiven(_PeerFrame, tag=12, frozen=True):
    """Answers Fetch with the fields of Offer. The checksums, the shard and its proof follow at once."""

    generations: Generations
    record: Packed
    sums_sum: Sum
    target: Save | None = None


Message: TypeAlias = (
    PeerHello
    | PeerChallenge
    | PeerProven
    | Refusal
    | Follow
    | Copy
    | Copied
    | Offer
    | SendShard
    | ShardKept
    | Fetch
    | ShardGiven
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message, auth: FrameAuth | None = None) -> bytes:
    """Encode a message as one frame; with `auth`, the frame ends with a code that proves its sender."""
    body = _encoder.encode(message)
    body = body if auth is None else auth.seal(body)
    return frame(body, sum_of(body).to_bytes(_SUM_BYTES, "little"))


def read(head: bytes | memoryview, body: bytes, auth: FrameAuth | None = None) -> Message:
    """Decode a peer's message. Raises BadFrame, and NotProven if its code is wrong."""
    if sum_of(body) != int.from_bytes(head[PREFIX_BYTES:HEAD_BYTES], "little"):
        raise BadFrame("a frame does not have its sum")
    return decode(_decoder, body if auth is None else auth.open(body))


def packed(record: ShardRecord) -> bytes:
    """Encode a record for a message."""
    return record_bytes(record)


def unpacked(data: bytes) -> ShardRecord:
    """Decode a record from a message. Raises BadFrame."""
    try:
        return read_record(data)
    except BadCheckpoint as error:
        raise BadFrame(str(error)) from error
