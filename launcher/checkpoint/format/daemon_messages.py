"""Defines the messages between a worker's checkpoint daemon and its clients, training processes and the agent, in
msgpack.

A message is an array that begins with its number, in a frame of launcher/framing.py. An unknown number, a missing field
or a value out of bounds raises BadFrame, and the connection is closed. Tensors are never sent here: they lie in the
arena, and a message names the generation. A training process sends Hello and ReserveMemory first, each answered by
ArenaPath or RequestRefused. If its connection ends without Bye, the process died. An agent sends GetHeldSteps, answered
by HeldSteps.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from turnout.launcher.checkpoint.format.arena_layout import MAX_GENERATIONS
from turnout.launcher.coordinator_messages import MAX_REPLICAS, AdoptOrders, Holds, RestorePlace
from turnout.launcher.framing import decode, frame
from turnout.launcher.model import SaveOutcome, SaveTier

VERSION = 1
MAX_BYTES = 1 << 20  # a RestorePlace with the most locations; all other messages are far smaller

Text = Annotated[str, msgspec.Meta(max_length=4_096)]  # a path, a URL, a sentence
ShortText = Annotated[str, msgspec.Meta(max_length=253)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Newest = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]  # a step, -1 for none
Ranks = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Slot = Annotated[int, msgspec.Meta(ge=0, lt=MAX_GENERATIONS)]
Slots = Annotated[int, msgspec.Meta(ge=1, le=MAX_GENERATIONS)]
UnixTime = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # seconds since 1970
Kind: TypeAlias = Literal["shards", "torch"]


class _DaemonFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Hello(_DaemonFrame, tag=1, frozen=True):
    """Introduces a training process that will save."""

    run: ShortText
    worker: ShortText
    rank: Ranks  # of the world in that round
    local_rank: Ranks
    world: Ranks
    round: Count
    version: Count = VERSION
    target: Text = ""  # folder or URL to which this process's shards are written, "" for none
    replicas: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)] = 0  # how many other workers keep each shard
    replicated: bool = False  # all ranks save the same state
    read_folder: Text = ""  # the checkpoint folder, even if only another rank writes there


class ReserveMemory(_DaemonFrame, tag=2, frozen=True):
    """Asks for an arena. Answered by ArenaPath or RequestRefused."""

    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]  # of one generation, with header and checksums
    generations: Slots


class Save(_DaemonFrame, tag=3, frozen=True):
    """Announces a sealed generation: the daemon hashes it and, if it has a target, writes it to storage. Answered by
    Pinned.
    """

    generation: Slot
    epoch: Count
    step: Step
    target: Text = ""  # folder or URL of the checkpoints, "" for memory only
    kind: Kind = "shards"  # shards with a manifest, or a torch file at `path`
    path: Text = ""  # of the torch file, "" for shards
    keep: Count = 0  # how many of the newest stay in the folder
    every: Count = 0  # multiples of this step stay; with keep and every 0 all stay
    later: bool = False  # stay in memory; persist only if the world resumes from it after a failure


class Wait(_DaemonFrame, tag=4, frozen=True):
    """Asks for Done when no earlier save is in flight. Messages that are sent meanwhile are answered before."""


class GetStats(_DaemonFrame, tag=5, frozen=True):
    """Asks for the daemon's statistics. Answered by Stats."""


class Bye(_DaemonFrame, tag=6, frozen=True):
    """Announces that this process ends normally and has nothing more to save."""


class GetHeldSteps(_DaemonFrame, tag=7, frozen=True):
    """Asks the daemon to hash the sealed saves of all `ranks` processes of this worker. Answered by HeldSteps, without
    waiting for storage.
    """

    ranks: Ranks


class End(_DaemonFrame, tag=8, frozen=True):
    """Announces that the agent ends: the daemon finishes the saves in flight and ends."""

    done: bool  # the job is over, so the arenas are removed; else they stay


class ArenaPath(_DaemonFrame, tag=9, frozen=True):
    """Names the arena's file to save into. Its pages are allocated, or will be soon."""

    path: Text
    generations: Slots


class RequestRefused(_DaemonFrame, tag=10, frozen=True):
    """Refuses an arena. reason: one word. detail: what is missing and what to add."""

    reason: ShortText
    detail: Text


class Hashed(_DaemonFrame, tag=11, frozen=True):
    """Announces that the save of this step in memory is hashed."""

    step: Step


class Persisted(_DaemonFrame, tag=12, frozen=True):
    """Announces that this rank's shard of the step is in storage at this path."""

    step: Step
    path: Text


class SaveFailed(_DaemonFrame, tag=13, frozen=True):
    """Announces that a save did not reach its target. In most cases memory still has the step. Training continues."""

    step: Step
    reason: ShortText  # one word, such as storage_failed, overtaken or corrupt
    detail: Text


class Done(_DaemonFrame, tag=14, frozen=True):
    """Answers Wait, Restore and Adopt: the request is done."""


class Stats(_DaemonFrame, tag=15, frozen=True):
    """Counts of the daemon's work for this rank. The fields of type Newest are steps, -1 for none."""

    sealed: Newest = -1
    hashed: Newest = -1
    persisted: Newest = -1
    committed: Newest = -1
    in_flight: Count = 0  # saves announced and not finished
    persists: Count = 0  # shards written to storage
    failures: Count = 0  # shards that storage refused
    persisted_bytes: Count = 0
    replicated: Newest = -1  # the newest step that all replica holders have
    skipped_replicas: Count = 0  # saves not replicated, since a newer one was
    dropped: Count = 0  # saves not written to storage, since newer ones needed their memory


class HeldSteps(_DaemonFrame, tag=16, frozen=True):
    """Answers GetHeldSteps: the steps that all processes of the worker hold in memory, hashed, newest first."""

    held_steps: Holds = ()


class Restore(_DaemonFrame, tag=17, frozen=True):
    """Tells the daemon from which step in memory the world continues. Answered by Done, or by SaveFailed if a shard
    could not be fetched; then nothing has changed.

    The step is written to storage if a target is known. Newer saves are discarded, since the world continues without
    them.
    """

    step: Newest  # -1: all ranks load from storage
    restore_place: RestorePlace | None = (
        None  # the worker's place in the world and what to fetch first; None if not known
    )
    persist_step: Newest = -1  # the step to persist before storage is read, -1 if not known


class Pinned(_DaemonFrame, tag=18, frozen=True):
    """Answers Save: the generation is pinned, so it is not overwritten before it is hashed and, if it has a target,
    written to storage or failed.
    """

    step: Step


class Trust(_DaemonFrame, tag=19, frozen=True):
    """Gives the daemon the job's secret, by which daemons recognize each other, and the state of the current round. It
    is the agent's first message.
    """

    token: Annotated[bytes, msgspec.Meta(max_length=4_096)]
    step: Newest = -1  # as in Restore
    restore_place: RestorePlace | None = None  # as in Restore, with nothing to fetch


class DropOldestSave(_DaemonFrame, tag=22, frozen=True):
    """Asks to drop the oldest save that waits for storage, since a new save finds no memory.

    Answered by SaveDropped.
    """


class SaveDropped(_DaemonFrame, tag=23, frozen=True):
    """Answers DropOldestSave: the dropped step, which will never be in storage, or -1 if none can be dropped."""

    step: Newest


class FindStored(_DaemonFrame, tag=24, frozen=True):
    """Asks for the newest step in storage, once the world has agreed to load from there. Answered by StoredStep."""


class StoredStep(_DaemonFrame, tag=25, frozen=True):
    """Answers FindStored: the newest step committed in this folder, -1 for none."""

    target: Text = ""  # "" if no folder is known or it does not answer
    step: Newest = -1


class Adopt(_DaemonFrame, tag=26, frozen=True):
    """Asks the daemon between two rounds to adopt shards of leaving workers. Answered by Done."""

    round: Count
    step: Step
    saved_round: Count  # the round in which they were saved
    ranks: Ranks  # size of the world that saved them
    within_s: Annotated[float, msgspec.Meta(ge=0, le=1e7)]  # after this time the missing shards are given up
    shards: AdoptOrders = ()


class FetchShard(_DaemonFrame, tag=27, frozen=True):
    """Asks for one rank's shard of the step from which the world continues. Answered by ShardFetched or SaveFailed.

    A training process sends it on a connection without Hello.
    """

    step: Step
    round: Count  # in which the shard was saved
    rank: Ranks
    ranks: Ranks  # size of the world that saved it


class ShardFetched(_DaemonFrame, tag=28, frozen=True):
    """Answers FetchShard: the arena's file and generation that hold the shard, every byte verified."""

    path: Text
    generation: Slot
    epoch: Count


class SaveEnded(_DaemonFrame, tag=29, frozen=True):
    """Reports how a save of one rank ended in one tier. The daemon writes it to the agent's pipe without a request."""

    step: Step
    round: Count  # in which it was saved
    rank: Ranks
    tier: SaveTier
    outcome: SaveOutcome
    complete: bool = False  # the save can be restored from this tier now; in storage, the step of all ranks
    announced_s: UnixTime = 0.0  # when the training process announced it, 0 if none did
    ended_s: UnixTime = 0.0


ToDaemon: TypeAlias = (
    Hello
    | ReserveMemory
    | Save
    | Wait
    | GetStats
    | Bye
    | GetHeldSteps
    | End
    | Restore
    | Trust
    | DropOldestSave
    | FindStored
    | Adopt
    | FetchShard
)
ToClient: TypeAlias = (
    ArenaPath
    | RequestRefused
    | Hashed
    | Persisted
    | SaveFailed
    | Done
    | Stats
    | HeldSteps
    | Pinned
    | SaveDropped
    | StoredStep
    | ShardFetched
    | SaveEnded
)
Message: TypeAlias = ToDaemon | ToClient

_encoder = msgspec.msgpack.Encoder()
_at_daemon: msgspec.msgpack.Decoder[ToDaemon] = msgspec.msgpack.Decoder(ToDaemon)
_at_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)


def encode(message: Message) -> bytes:
    """Encode a message as one frame."""
    return frame(_encoder.encode(message))


def read_at_daemon(body: bytes | memoryview) -> ToDaemon:
    """Decode a message from a training process or the agent. Raises BadFrame for any other bytes."""
    return decode(_at_daemon, body)


def read_at_client(body: bytes | memoryview) -> ToClient:
    """Decode a message from the daemon. Raises BadFrame for any other bytes."""
    return decode(_at_client, body)
