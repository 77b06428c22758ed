"""Defines messages about the checkpoints that members hold in memory and the endpoints of their daemons."""

from __future__ import annotations

from typing import Annotated

import msgspec

ALL = 0  # Held.ranks of a state that is the same on every rank
MOST_COPIES = 3  # of one shard in the memory of others

ShortText = Annotated[str, msgspec.Meta(max_length=253)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Step = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _CheckpointFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class HeldStep(_CheckpointFrame, frozen=True):
    """A step that a member holds in memory, hashed, as the shards of some ranks."""

    step: Step
    first_rank: Count
    ranks: Count  # size of the world that saved it; ALL for a state that is the same on every rank
    round: Count = 0  # in which it was saved; the same step of another round is another state
    count: Count = 0  # ranks held for others to fetch; 0: one for each of the member's own processes
    reshardable: bool = False  # saved through torch.distributed.checkpoint, so a world of any size can read it


MOST_HOLDS = 256
Holds = Annotated[tuple[HeldStep, ...], msgspec.Meta(max_length=MOST_HOLDS)]
FETCH_DISABLED = HeldStep(-1, 0, 0)  # told by who could not fetch: in the next round it is to fetch nothing


class DaemonEndpoint(_CheckpointFrame, frozen=True):
    """The address on which a member's checkpoint daemon listens for other daemons."""

    id: ShortText
    name: ShortText  # of the worker
    address: ShortText
    port: Port


Endpoints = Annotated[tuple[DaemonEndpoint, ...], msgspec.Meta(max_length=8)]


class ShardLocation(_CheckpointFrame, frozen=True):
    """Says that one worker's memory holds the shards of `count` ranks from `first_rank` on, for others to fetch."""

    first_rank: Count
    count: Count
    endpoint: DaemonEndpoint


MOST_LOCATIONS = 256
AllLocations = Annotated[tuple[ShardLocation, ...], msgspec.Meta(max_length=MOST_LOCATIONS)]


class AdoptShards(_CheckpointFrame, frozen=True):
    """Orders a member to keep these ranks' shards for a worker that leaves."""

    owner: ShortText  # the worker that leaves
    first_rank: Count
    count: Count
    endpoints: Endpoints  # of the daemons that have the shards, the owner's first


Takes = Annotated[tuple[AdoptShards, ...], msgspec.Meta(max_length=MOST_LOCATIONS)]


class ReplicaGroup(_CheckpointFrame, frozen=True):
    """Names the daemons that a member's daemon works with in a round."""

    first: DaemonEndpoint  # names the step to copy next
    size: Count  # members of the world
    # the daemons that keep this member's replicas, for one copy of each shard, for two, and so on
    replica_holders: Annotated[tuple[Endpoints, ...], msgspec.Meta(max_length=MOST_COPIES)]


class RestorePlace(_CheckpointFrame, frozen=True):
    """A member's place in a world, and where it fetches its shards. Fields are as in Formed of messages.py."""

    round: Count
    first_rank: Count
    processes: Count  # of this member
    ranks: Count
    saved_round: Count = 0
    replicated: bool = False
    fetch_from: Endpoints = ()
    replica_group: ReplicaGroup | None = None
    saved_by: Count = 0
    locations: AllLocations = ()


class StoredStepReport(_CheckpointFrame, tag=20, frozen=True):
    """The newest step committed in this folder: first as one member sees it, then as all are to read it."""

    round: Count
    target: Annotated[str, msgspec.Meta(max_length=4_096)] = ""  # "" if no folder is known
    step: Step = -1  # -1 for none


class Handover(_CheckpointFrame, tag=23, frozen=True):
    """Announces that members leave: members that stay adopt the shards that only leavers hold, and all of them are
    stored.
    """

    round: Count
    step: Step
    saved_round: Count  # the round in which the step was saved
    ranks: Count  # size of the world that saved it
    # time for the handover; the member then answers ShardsAdopted
    within_s: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    shards: Takes = ()  # the shards this member adopts; () for a leaver


class ShardsAdopted(_CheckpointFrame, tag=24, frozen=True):
    """Answers Handover with what this member holds now."""

    round: Count
    held_steps: Holds = ()
