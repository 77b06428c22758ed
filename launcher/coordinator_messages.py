"""Defines the messages between agents and the coordinator: msgpack frames with a schema and bounds, never pickle.

A message is an array that begins with its number, in a frame of launcher/framing.py. An unknown number, a missing field
or a value out of bounds raises BadFrame, and the connection is closed. Fields are only appended, with a default, so
agents that do not know one omit or ignore it. A new connection gets a Challenge. The answer, Join, proves that its
sender knows the job's token without sending it. It asks for the same proof of the coordinator, which Welcome brings.
From Join on, each frame in both directions ends with a code that only its sender can make (launcher/framing.py).
Source: docs/facts/reliability.md 2.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from turnout.launcher.framing import decode
from turnout.launcher.goodput.job_time import JobTime, RankZero
from turnout.launcher.model import ElasticSpec, Member, RestartBudget

ALL = 0  # HeldStep.ranks of a state that is the same on every rank

MAX_REPLICAS = 3  # of one shard, in the memory of other workers

ShortText = Annotated[str, msgspec.Meta(max_length=253)]

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

Step = Annotated[int, msgspec.Meta(ge=-1, le=1 << 60)]

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _CheckpointFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class HeldStep(_CheckpointFrame, frozen=True):
    """A saved step of which a member holds the shards of consecutive ranks in memory, with verified hashes."""

    step: Step
    first_rank: Count  # the first rank whose shard the member holds
    ranks: Count  # size of the world that saved it; ALL for a state that is the same on every rank
    round: Count = 0  # the round in which it was saved; the same step of another round is another state
    count: Count = 0  # ranks held for others to fetch; 0: one for each of the member's own processes
    reshardable: bool = False  # saved through torch.distributed.checkpoint, so a world of any size can read it


MAX_HOLDS = 256

Holds = Annotated[tuple[HeldStep, ...], msgspec.Meta(max_length=MAX_HOLDS)]

FETCH_DISABLED = HeldStep(-1, 0, 0)  # reported by a member whose fetch failed: it must fetch nothing in the next round


class DaemonEndpoint(_CheckpointFrame, frozen=True):
    """The address on which a member's checkpoint daemon listens for other daemons."""

    id: ShortText  # of the member
    name: ShortText  # of the worker
    address: ShortText  # IP literal
    port: Port


Endpoints = Annotated[tuple[DaemonEndpoint, ...], msgspec.Meta(max_length=8)]


class ShardLocation(_CheckpointFrame, frozen=True):
    """Says that one worker's memory holds the shards of `count` ranks from `first_rank` on, for others to fetch."""

    first_rank: Count
    count: Count  # ranks
    endpoint: DaemonEndpoint  # of that worker's checkpoint daemon


MAX_LOCATIONS = 256

AllLocations = Annotated[tuple[ShardLocation, ...], msgspec.Meta(max_length=MAX_LOCATIONS)]


class AdoptShards(_CheckpointFrame, frozen=True):
    """Orders a member to keep these ranks' shards for a worker that leaves."""

    owner: ShortText  # the worker that leaves
    first_rank: Count
    count: Count  # ranks
    endpoints: Endpoints  # of the daemons that have the shards, the owner's first


AdoptOrders = Annotated[tuple[AdoptShards, ...], msgspec.Meta(max_length=MAX_LOCATIONS)]


class ReplicaGroup(_CheckpointFrame, frozen=True):
    """Names the daemons that a member's daemon works with in a round."""

    first: DaemonEndpoint  # names the step to copy next
    size: Count  # members of the world
    # the daemons that keep this member's replicas, for one copy of each shard, for two, and so on
    replica_holders: Annotated[tuple[Endpoints, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class RestorePlace(_CheckpointFrame, frozen=True):
    """A member's place in a world, and where it fetches its shards. Fields are as in Formed."""

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
    """The newest step committed in a checkpoint folder: from a member, what it sees there; from the coordinator, what
    all members have to read.
    """

    round: Count
    target: Annotated[str, msgspec.Meta(max_length=4_096)] = ""  # "" if no folder is known
    step: Step = -1  # -1 for none


class Handover(_CheckpointFrame, tag=23, frozen=True):
    """Announces that members leave. Members that stay adopt the shards that only leavers hold, and leavers write
    their shards to storage.
    """

    round: Count
    step: Step
    saved_round: Count  # the round in which the step was saved
    ranks: Count  # size of the world that saved it
    # time for the handover; the member then answers ShardsAdopted
    within_s: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    shards: AdoptOrders = ()  # the shards this member adopts; () for a leaver


class ShardsAdopted(_CheckpointFrame, tag=24, frozen=True):
    """Answers Handover with what this member holds now."""

    round: Count
    held_steps: Holds = ()


PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]

Text = Annotated[str, msgspec.Meta(max_length=1_024)]

Packed = Annotated[bytes, msgspec.Meta(max_length=256 * 1024)]


class NodeResult(StrEnum):
    """The result of a node check for one node. A node that no test could judge gets no result."""

    FINE = "fine"
    FAULTY = "faulty"
    SLOW = "slow"
    LINK = "link"  # works with other nodes, but not with one of them


class Probe(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=30):
    """Orders a member to measure itself, and then to measure with its group. It replaces orders with lower numbers."""

    number: Count  # of the order; the answer repeats it
    rank: Count  # of this member's first process in the group
    processes: PositiveCount  # of the group; each member has equally many
    members: PositiveCount
    address: ShortText  # where the group's first process listens
    port: Port

    def __post_init__(self) -> None:
        if self.processes % self.members or self.rank >= self.processes:
            raise ValueError(f"rank {self.rank} of {self.processes} processes of {self.members} members")


class Probed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=31):
    """Reports to the coordinator what one member's probes have measured."""

    number: Count  # of the Probe that it answers
    master_port: Port  # a free port for the next group that meets here
    compute_s: Seconds | None = None  # None if its own computation failed
    collective_s: Seconds | None = None  # None if the group's collective failed
    unfit: Text = ""  # why this node must not train, independent of its group; "" if it may
    fault: Text = ""  # the error that ended the measurement, "" for none
    reduce_bytes: Count = 0  # of the all-reduce that took collective_s


class Judged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=35):
    """Reports to a member the result of a check for its node."""

    round: Count  # the round after the check
    result: NodeResult
    by: ShortText  # the coordinator's name
    run: Text  # the job's id
    members: PositiveCount  # how many were measured
    cause: ShortText = ""  # "" for a fine node
    why: Text = ""  # "" for a fine node


class Hung(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=32):
    """Reports that a process of this round hangs, or that it has resumed."""

    round: Count
    local_rank: Count
    why: Text = ""  # "" if it has resumed


class ShowStacks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=33):
    """Asks for the stack traces of all processes of this round."""

    number: Count  # of the request; the answers repeat it
    round: Count
    max_bytes: Count  # of one process, compressed


class Stacks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=34):
    """Carries the stack traces of one process."""

    number: Count  # of the request that it answers
    local_rank: Count
    packed: Packed = b""  # its compressed file, b"" if it cannot be sent
    why: Text = ""  # why it cannot be sent


VERSION = 3  # of this protocol; a coordinator refuses members of another version

MAX_BYTES = 4 << 20  # the list of 20,000 members; all other messages are far smaller

MAX_JOIN_BYTES = 24 << 10  # of a peer that has proved nothing yet

NONCE_BYTES = 16

Proof = Annotated[bytes, msgspec.Meta(max_length=64)]


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Challenge(_Frame, tag=1, frozen=True):
    """Asks a connecting agent to prove over this nonce that it knows the token."""

    version: Count
    nonce: Proof


class LastWorld(_Frame, frozen=True):
    """The last round that a member took part in or heard of. The member accepts no earlier round."""

    round: Count = 0
    size: Count = 0  # members of that world
    inside: bool = False  # the member was one of them
    busy: bool = False  # its processes of that world may still run

    def as_idle(self) -> LastWorld:
        """Return the same last world with `busy` False."""
        return LastWorld(self.round, self.size, self.inside)


class Join(_Frame, tag=2, frozen=True):
    """Introduces a member to the coordinator, with what it knows."""

    version: Count
    run: ShortText
    nonce: Proof
    proof: Proof
    member: Member
    elastic_spec: ElasticSpec
    base: LastWorld  # the last world that it knows
    budget: RestartBudget  # the newest that it knows
    worker_count: Count = 0  # workers that the job has now, 0 if unknown
    held_steps: Holds = ()
    importing_s: Seconds = 0.0  # as in Heartbeat
    job_time: JobTime | None = None  # the newest totals of the job's time that the member knows, None for none


class Successor(_Frame, frozen=True):
    """One of the oldest members, which may become the coordinator if the present one is lost. Lists of successors are
    oldest first.
    """

    id: ShortText
    address: ShortText
    port: Port


class Welcome(_Frame, tag=3, frozen=True):
    """Accepts a member, proves the coordinator's knowledge of the token, and gives the heartbeat intervals."""

    proof: Proof
    coordinator: ShortText
    beat_s: Seconds  # seconds between heartbeats
    silence_s: Seconds  # seconds of silence after which the other side counts as lost
    successors: tuple[Successor, ...] = ()


class Refused(_Frame, tag=4, frozen=True):
    """Refuses a member for good. reason: a word of model.Reason."""

    reason: ShortText
    detail: Text


class Redirect(_Frame, tag=5, frozen=True):
    """Names another member as the coordinator."""

    id: ShortText
    address: ShortText
    port: Port
    size: Count = 0  # members of the last world that have not left it, 0 if unknown


class Waiting(_Frame, tag=6, frozen=True):
    """Accepts a member that is not in the current world. It must not accept an earlier round."""

    round: Count
    size: Count
    reason: ShortText
    detail: Text
    successors: tuple[Successor, ...] = ()  # () if unchanged


class Formed(_Frame, tag=7, frozen=True):
    """Tells a member its place in a new world."""

    round: Count
    base: Count  # the round of the world that this one follows
    group_rank: Count
    group_size: Count
    first_rank: Count
    ranks: Count
    master_address: ShortText
    master_port: Port
    reason: ShortText
    budget: RestartBudget
    successors: tuple[Successor, ...] = ()
    restore_step: Step = -1  # the newest step that is complete in the members' memory, -1 for none
    saved_round: Count = 0  # the round in which that step was saved
    replicated: bool = False  # the step is the same on all ranks
    # daemons with the step, to fetch it before processes start; () if this member holds its part
    fetch_from: Endpoints = ()
    replica_group: ReplicaGroup | None = None  # the daemons that this member's daemon works with; None for none
    persist_step: Step = -1  # the step that all of the last world held, to be written to storage, or -1
    saved_by: Count = 0  # ranks that saved the step, if each rank reads parts of their shards; else 0
    locations: AllLocations = ()
    # Other members may have continued to train: all report their stored step, and read the step in the answer if newer.
    check_storage: bool = False


class StopAt(_Frame, tag=8, frozen=True):
    """Tells all processes to stop after this step."""

    round: Count
    step: Step
    confirmed: bool  # True: no rank has passed it. False: it is proposed, and ranks that reach it wait


class Stop(_Frame, tag=9, frozen=True):
    """Orders a member to end its processes of this round. Answered by Ready."""

    round: Count
    reason: ShortText
    grace_s: Seconds  # time to save before they are killed


class Finish(_Frame, tag=10, frozen=True):
    """Tells a member that the job is over for it."""

    exit: Annotated[int, msgspec.Meta(ge=0, le=255)]  # as in model.Exit
    reason: ShortText
    detail: Text
    persist_step: Step = -1  # as in Formed


class Heartbeat(_Frame, tag=11, frozen=True):
    """Shows that the sender is alive, and reports its progress."""

    step: Step = -1  # the newest that all local processes have done, -1: unknown
    saved: Step = -1  # the newest that any local process has saved, -1: unknown
    importing_s: Seconds = 0.0  # upper bound of the time until its imports end; 0: it can start processes
    rank_zero: RankZero | None = None  # the progress of rank 0, from the member that runs it
    job_time: JobTime | None = None  # the job's totals, from the coordinator


class Ready(_Frame, tag=12, frozen=True):
    """Reports that no process of this round or an earlier one runs here."""

    round: Count
    master_port: Port  # a free port for the next round
    path: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=16)] = ()  # as in Member
    held_steps: Holds = ()


class ProcessFailed(_Frame, tag=13, frozen=True):
    """Reports that a process of this round ended with an error."""

    round: Count
    local_rank: Count
    detail: Text


class Succeeded(_Frame, tag=14, frozen=True):
    """Reports that all processes of this round have succeeded."""

    round: Count
    held_steps: Holds = ()  # as in Ready, if the processes were stopped for another world


class Leaving(_Frame, tag=15, frozen=True):
    """Reports that the member was asked to leave within these seconds."""

    grace_s: Seconds
    reason: ShortText = ""


class Reached(_Frame, tag=16, frozen=True):
    """Answers StopAt: the farthest step that a local process has begun."""

    round: Count
    step: Step


class GetRoster(_Frame, tag=17, frozen=True):
    """Asks for the members of the world. Answered by Roster."""


class Roster(_Frame, tag=18, frozen=True):
    """Lists all members of the world by group rank."""

    round: Count
    members: tuple[Member, ...]


class HeartbeatInterval(_Frame, tag=19, frozen=True):
    """Changes the intervals that Welcome gave, since there are many more or far fewer members now."""

    beat_s: Seconds
    silence_s: Seconds


ToMember: TypeAlias = (
    Challenge
    | Welcome
    | Refused
    | Redirect
    | Waiting
    | Formed
    | StopAt
    | Stop
    | Finish
    | Heartbeat
    | Roster
    | HeartbeatInterval
    | StoredStepReport
    | Probe
    | Judged
    | ShowStacks
    | Handover
)

ToCoordinator: TypeAlias = (
    Join
    | Heartbeat
    | Ready
    | ProcessFailed
    | Succeeded
    | Leaving
    | Reached
    | GetRoster
    | StoredStepReport
    | Probed
    | Hung
    | Stacks
    | ShardsAdopted
)

Message: TypeAlias = ToMember | ToCoordinator

_encoder = msgspec.msgpack.Encoder()

_at_member: msgspec.msgpack.Decoder[ToMember] = msgspec.msgpack.Decoder(ToMember)

_at_coordinator: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)


def encode(message: Message) -> bytes:
    """Encode a message as the body of one frame."""
    return _encoder.encode(message)


def read_at_member(body: bytes | memoryview) -> ToMember:
    """Decode a message from the coordinator. Raises BadFrame for any other bytes."""
    return decode(_at_member, body)


def read_at_coordinator(body: bytes | memoryview) -> ToCoordinator:
    """Decode a message from a member. Raises BadFrame for any other bytes."""
    return decode(_at_coordinator, body)


def proof(token: bytes, role: str, run: str, peer_nonce: bytes, own_nonce: bytes) -> bytes:
    """Compute the HMAC-SHA256 that proves knowledge of the job's token.

    role: of the prover, "member" or "coordinator". run: the job's id. peer_nonce: of the side that asks for the proof.
    own_nonce: of the prover.
    """
    text = b"".join(
        len(part).to_bytes(4, "big") + part for part in (role.encode(), run.encode(), peer_nonce, own_nonce)
    )
    return hmac.new(token, b"turnout rendezvous 1" + text, hashlib.sha256).digest()


def is_proof(claimed: bytes, token: bytes, role: str, run: str, peer_nonce: bytes, own_nonce: bytes) -> bool:
    """Return True if `claimed` is the proof that `proof` computes from the same arguments. Compares in constant
    time.
    """
    return hmac.compare_digest(claimed, proof(token, role, run, peer_nonce, own_nonce))
