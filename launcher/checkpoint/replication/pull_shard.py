"""Fetches shards from other workers' memory, and answers such requests.

Shards that this worker has lost are fetched into its arena before training; shards of leaving workers, and those that
own ranks read in parts, are adopted as replicas. The receiver checks every byte as it arrives. If a shard cannot be
fetched, no training process is started from it; storage may still have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from turnout.launcher.checkpoint.arena.arena import Arena, lock_for_daemon
from turnout.launcher.checkpoint.arena.arena_files import boot_id, limits
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord, SlotState
from turnout.launcher.checkpoint.format.daemon_messages import Adopt, FetchShard, Save, SaveEnded, ShardFetched
from turnout.launcher.checkpoint.format.memory_budget import need_bytes, refusal
from turnout.launcher.checkpoint.replication import peer_connection
from turnout.launcher.checkpoint.replication.peer_connection import (
    Fetch,
    PeerConnection,
    PeerIdentity,
    PeerRefusal,
    PeerSilent,
    PeerUnavailable,
    ShardGiven,
    connect_peer,
    pack_record,
    unpack_record,
)
from turnout.launcher.checkpoint.replication.replica_store import Place, ReplicaStore
from turnout.launcher.checkpoint.storage.shard_writer import RateLimiter
from turnout.launcher.coordinator_messages import AdoptShards, DaemonEndpoint, RestorePlace
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import SaveOutcome, SaveTier


class TargetPort(Protocol):
    """The targets in storage of one local rank's saves, as replication uses them."""

    def of(self, generation: int, epoch: int) -> Save | None:
        """Return the target in storage of a save, as its Save message; None if it has none or it is unknown."""

    def set(self, save: Save) -> None:
        """Record the target in storage of a save that was fetched."""


class RankPort(Protocol):
    """The part of one local rank's store that replication uses."""

    arena: Arena | None

    def adopt(self, arena: Arena) -> None:
        """Make this arena the local rank's own."""

    @property
    def targets(self) -> TargetPort:
        """Return the targets in storage of this rank's saves."""

    async def hash(self, generation: int) -> bool:
        """Hash a pinned generation. False if the bytes differ from earlier checksums."""


class RankPorts(Protocol):
    """The rank stores of one daemon, as replication uses them."""

    @property
    def by_rank(self) -> Mapping[int, RankPort]:
        """Return the rank stores by local rank."""

    def of(self, local_rank: int) -> RankPort:
        """Return the rank store of this local rank, made if there is none."""


class DaemonPort(Protocol):
    """The part of the daemon that replication uses."""

    run: str
    worker: str
    folder: Path

    @property
    def rank_stores(self) -> RankPorts:
        """Return the stores of this worker's ranks."""

    def report_save(self, save: SaveEnded) -> None:
        """Report to the agent that a save has ended now."""


@dataclass(slots=True)
class RoundReplication:
    """The replication in one round, from the order to restore until the next one."""

    restore_place: RestorePlace | None = None  # this worker's place in the round, None before the first
    complete_step: int = -1  # the newest step of which all replicas are complete
    replicas: int = 0  # how many the training processes want
    saves: dict[int, Save] = field(default_factory=dict)  # the newest announced save, by local rank
    unreplicated_steps: set[int] = field(default_factory=set)  # sealed by the first local rank and not replicated yet
    ordered_steps: set[int] = field(default_factory=set)  # steps that the leader named
    fetch_failed: bool = False  # a shard could not be fetched


@dataclass(slots=True)
class ReplicationContext:
    """The state that one daemon's replication shares between its parts."""

    daemon: DaemonPort
    log_event: EventLog
    send_threads: Executor  # threads that send shards
    receive_threads: Executor  # threads that receive shards
    rate_limiter: RateLimiter  # limits the bytes sent per second
    token: bytes = b""  # the job's secret
    round: int = 0  # the newest known round
    current: RoundReplication = field(default_factory=RoundReplication)
    sealed: asyncio.Condition = field(default_factory=asyncio.Condition)  # notified when a local rank announces a save
    replicated_rounds: set[int] = field(default_factory=set)  # rounds whose state is the same on all ranks
    fetch_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a shard is fetched for own ranks

    @property
    def identity(self) -> PeerIdentity:
        """Return this daemon's identity for its peers."""
        return PeerIdentity(self.daemon.run, self.daemon.worker, self.token)

    def report_replicas(self, steps: Iterable[int], outcome: SaveOutcome) -> None:
        """Report to the agent how the replication of these steps ended, if the worker has replica holders."""
        place, replicas = self.current.restore_place, self.current.replicas
        if place is None or place.replica_group is None or not place.replica_group.replica_holders or not replicas:
            return
        is_done = outcome is SaveOutcome.DONE
        for step in sorted(steps):
            for rank in range(place.first_rank, place.first_rank + place.processes):
                self.daemon.report_save(SaveEnded(step, self.round, rank, SaveTier.REPLICA, outcome, is_done))

    def has_sealed(self, local_rank: int, step: int) -> bool:
        """Return True if this local rank has announced this step, or a later one, in this round.

        A save that is sealed but not announced does not count: only its Save message has the target in storage, which a
        replica needs too.
        """
        return self.newest_step(local_rank) >= step

    def newest_step(self, local_rank: int) -> int:
        """Return the newest step that this local rank has announced in this round, -1 for none."""
        save = self.current.saves.get(local_rank)
        return save.step if save is not None else -1


# Seconds without an answer after which the next source is tried, in the first pass over all sources and in the second
# one, over those that were only silent.
PATIENCE_S = (5.0, 30.0)


async def send_shard(
    context: ReplicationContext, replica_store: ReplicaStore, connection: PeerConnection, request: Fetch
) -> None:
    """Answer a request of a peer: send the shard from this daemon's arenas, or a PeerRefusal if it is not here.

    A shard without checksums counts as not here. Raises PeerUnavailable or OSError if the connection fails. request:
    the message Fetch.
    """
    shard = (request.step, request.round, request.rank, request.ranks)
    for arena, rank_store in arenas_of(context, replica_store):
        if (pin := arena.pin_newest(lambda each: (each.step, each.round, each.rank, each.world) == shard)) is None:
            continue
        generation, record = pin
        try:
            slot = arena.slots()[generation]
            if slot.state is SlotState.HASHED and slot.sums_sum is not None:
                count = arena.identity.count if rank_store is not None else arena.identity.owner_count
                target = (
                    rank_store.targets.of(generation, slot.epoch)
                    if rank_store is not None
                    else replica_store.saved_target(arena, slot.epoch)
                )
                total = slot.sums_sum.to_bytes(8, "little")
                await _send_bytes(
                    context,
                    connection,
                    arena,
                    generation,
                    record,
                    ShardGiven(count, pack_record(record), total, target),
                )
                return
        finally:
            with suppress(ValueError):  # it was retired meanwhile
                arena.unpin(generation)
    await connection.send(
        PeerRefusal("not_here", f"rank {request.rank} of {request.ranks} at step {request.step} is not here")
    )


def arenas_of(context: ReplicationContext, replica_store: ReplicaStore) -> list[tuple[Arena, RankPort | None]]:
    """List all arenas of this daemon: its own ranks' with their rank stores, and replicas with None."""
    own_arenas = [
        (rank_store.arena, rank_store)
        for rank_store in context.daemon.rank_stores.by_rank.values()
        if rank_store.arena is not None
    ]
    return [*own_arenas, *((arena, None) for arena in replica_store.arenas.all())]


async def _send_bytes(
    context: ReplicationContext,
    connection: PeerConnection,
    arena: Arena,
    generation: int,
    record: ShardRecord,
    header: ShardGiven,
) -> None:
    """Send the header of a shard, then its bytes from a thread.

    header: describes the shard, sent first. record: of the shard, which lies in this generation of the arena. context:
    has the threads. connection: to the peer that asked.
    """
    sums, shard = arena.sums(generation), arena.map(generation, record.shard_bytes)
    await connection.send(header)
    try:
        auth = connection.proven_auth()
        await asyncio.get_running_loop().run_in_executor(
            context.receive_threads, peer_connection.send, connection.sock, auth, sums, shard
        )
    finally:
        with suppress(OSError):
            connection.sock.setblocking(False)


async def fetch_step(context: ReplicationContext, step: int, restore_place: RestorePlace) -> None:
    """Fetch this step for all ranks of this worker into their arenas, from one of the named workers.

    Raises BadCheckpoint with all reasons if no worker can give it. restore_place: this worker's ranks, the round that
    saved the step, and the workers to ask.
    """
    shards = (
        [(0, 0, 1)]
        if restore_place.replicated
        else [
            (index, restore_place.first_rank + index, restore_place.ranks) for index in range(restore_place.processes)
        ]
    )
    sources, faults = list(restore_place.fetch_from), dict[str, str]()
    for patience_s in PATIENCE_S:
        silent: list[DaemonEndpoint] = []
        for endpoint in sources:
            try:
                await _fetch_shards_from(context, endpoint, step, restore_place, shards, patience_s)
            except (LauncherError, OSError) as error:
                faults[endpoint.name] = str(error)
                if isinstance(error, PeerSilent | TimeoutError):
                    silent.append(endpoint)
                    context.log_event("source_silent", {"step": step, "from": endpoint.name, "why": str(error)})
                continue
            context.log_event("step_fetched", {"step": step, "from": endpoint.name})
            return
        sources = silent
    reasons = "; ".join(f"{name}: {why}" for name, why in faults.items())
    raise BadCheckpoint(f"step {step} could not be fetched from {reasons}")


async def request_shard(
    connection: PeerConnection, request: Fetch, within_s: float = PATIENCE_S[-1]
) -> tuple[ShardGiven, ShardRecord]:
    """Request a shard from a peer; return the peer's header and its record. The bytes follow on the connection.

    within_s: seconds for the answer. Raises PeerSilent after them, PeerUnavailable if the connection fails, if the peer
    refuses or gives another shard, and BadFrame for an invalid answer.
    """
    header = await connection.ask(request, within_s)
    if not isinstance(header, ShardGiven):
        raise BadFrame(f"{type(header).__name__} after Fetch")
    record = unpack_record(header.record)
    if Fetch(record.step, record.round, record.rank, record.world) != request:
        raise PeerUnavailable("it gives another shard than was asked for")
    return header, record


async def _fetch_shards_from(
    context: ReplicationContext,
    endpoint: DaemonEndpoint,
    step: int,
    restore_place: RestorePlace,
    shards: list[tuple[int, int, int]],
    patience_s: float,
) -> None:
    """Fetch shards of a step from one worker, and seal each in the arena of its local rank.

    endpoint: of the worker's daemon. restore_place: this worker's, with the round that saved. shards: each (local rank,
    rank, number of ranks). patience_s: seconds without an answer or a byte, after which the worker counts as silent.

    Raises PeerSilent or TimeoutError if the worker is silent, another LauncherError or OSError if it does not give a
    shard, if the shard is corrupt or if memory is too small. The shards fetched before the error stay.
    """
    connection = await connect_peer(endpoint, context.identity, restore_place.round)
    try:
        for local_rank, rank, ranks in shards:
            header, record = await request_shard(
                connection, Fetch(step, restore_place.saved_round, rank, ranks), patience_s
            )
            rank_store = context.daemon.rank_stores.of(local_rank)
            await asyncio.to_thread(_reserve_memory, context, rank_store, local_rank, record, header.generations)
            assert rank_store.arena is not None
            total = int.from_bytes(header.sums_sum, "little")
            generation, epoch = await asyncio.get_running_loop().run_in_executor(
                context.receive_threads,
                _receive_shard,
                connection,
                Arena.open(rank_store.arena.path),
                record,
                total,
                patience_s,
            )
            connection.sock.setblocking(False)
            if header.target is not None:
                rank_store.targets.set(msgspec.structs.replace(header.target, generation=generation, epoch=epoch))
    finally:
        connection.close()


def _reserve_memory(
    context: ReplicationContext, rank_store: RankPort, local_rank: int, record: ShardRecord, count: int
) -> None:
    """Check that the host has memory for one more shard of this size, and create the arena of the local rank if it has
    none.

    record: of the shard. count: number of generations of a new arena. Raises NoMemory if the memory does not fit.
    rank_store: of the local rank.
    """
    reserved_bytes = (
        sum(slot.reserved_bytes for slot in rank_store.arena.slots()) if rank_store.arena is not None else 0
    )
    missing_bytes = need_bytes(record.region_bytes, 1, 1) - reserved_bytes
    if (
        refused := refusal(missing_bytes, limits(context.daemon.folder), folder=str(context.daemon.folder))
    ) is not None:
        raise refused
    if rank_store.arena is None:
        arena = Arena.make(
            context.daemon.folder, Identity(context.daemon.run, context.daemon.worker, local_rank, boot_id(), count)
        )
        lock_for_daemon(arena)
        rank_store.adopt(arena)


def _receive_shard(
    connection: PeerConnection, arena: Arena, record: ShardRecord, sums_sum: int, quiet_s: float
) -> tuple[int, int]:
    """Receive a shard into a free generation of the arena, and seal it; return the generation and its epoch. Blocks.

    record, sums_sum: of the shard, as the peer announced it. quiet_s: seconds without a byte, after which TimeoutError
    is raised. Closes `arena`, which the caller has opened for this call, so that the training process can become its
    writer. Raises BadCheckpoint if no generation is free or a byte differs, NoMemory, ArenaBusy if another process is
    the writer, and OSError if the connection fails. The generation is discarded then.
    """
    try:
        generation = arena.begin(record)
        if generation is None:
            raise BadCheckpoint("no generation is free")
        try:
            region = arena.map(generation, record.region_bytes)
            sums = peer_connection.receive(connection.sock, connection.proven_auth(), record, sums_sum, region, quiet_s)
        except BaseException:
            arena.discard(generation)
            raise
        epoch = arena.seal(generation, record).epoch
        arena.set_hashed(generation, sums)
        return generation, epoch
    finally:
        arena.close()


async def adopt_shards(context: ReplicationContext, replica_store: ReplicaStore, order: Adopt) -> None:
    """Fetch the shards that `order` names, of several leaving workers at the same time, within the order's time.

    order: names them by their owners. Each owner's shards are logged as shard_taken or shard_not_taken; those that are
    late, together as shard_not_taken. A worker that does not give its shards raises nothing.
    """

    async def adopt(shards: AdoptShards) -> None:
        """Fetch all shards of one lost worker from the peers that hold them.

        The result is logged as shard_taken or shard_not_taken.
        """
        try:
            for index in range(shards.count):
                request = Fetch(order.step, order.saved_round, shards.first_rank + index, order.ranks)
                await _fetch_from_any(
                    context, replica_store, request, (shards.owner, index), shards.endpoints, order.round
                )
        except LauncherError as error:
            context.log_event(
                "shard_not_taken", {"owner": shards.owner, "step": order.step, "detail": str(error)[:1_000]}
            )
        else:
            context.log_event("shard_taken", {"owner": shards.owner, "step": order.step})

    if not order.shards:
        return
    context.round = max(context.round, order.round)
    _, unfinished = await asyncio.wait(
        [asyncio.ensure_future(adopt(take)) for take in order.shards], timeout=order.within_s
    )
    for work in unfinished:
        work.cancel()
    if unfinished:
        await asyncio.wait(unfinished)
        context.log_event(
            "shard_not_taken",
            {"step": order.step, "detail": f"{len(unfinished)} did not come within {order.within_s:.1f} s"},
        )


async def fetch_for_reader(
    context: ReplicationContext, replica_store: ReplicaStore, request: FetchShard
) -> ShardFetched:
    """Return where in this host's memory a shard is that a rank wants to read parts of; fetch it from a worker if
    needed.

    Raises BadCheckpoint if the members have not agreed to continue from that round and world size, or if no worker
    gives the shard; in the second case, this worker fetches nothing in the next round. request: names the shard.
    """
    shard_id = Fetch(request.step, request.round, request.rank, request.ranks)
    restore_place = context.current.restore_place
    if restore_place is None or (restore_place.saved_by, restore_place.saved_round) != (request.ranks, request.round):
        raise BadCheckpoint(f"nobody has agreed to go on from step {request.step} of {request.ranks} ranks")
    locations = [
        each for each in restore_place.locations if each.first_rank <= request.rank < each.first_rank + each.count
    ]
    async with context.fetch_lock:
        try:
            place = (f"rank {request.rank} of {request.ranks}", 0)
            return await _fetch_from_any(
                context, replica_store, shard_id, place, tuple(each.endpoint for each in locations), restore_place.round
            )
        except LauncherError:
            context.current.fetch_failed = True
            raise


async def _fetch_from_any(
    context: ReplicationContext,
    replica_store: ReplicaStore,
    request: Fetch,
    place: Place,
    endpoints: tuple[DaemonEndpoint, ...],
    round_: int,
) -> ShardFetched:
    """Return the location of a shard in this host's memory, after fetching it from one of `endpoints` if necessary.

    place: owner and local rank under which a fetched replica is stored. endpoints: tried in this order. round_: number
    of the current round. Raises BadCheckpoint with all reasons if no endpoint gives the shard. request: names the
    shard.
    """
    faults: list[str] = []
    for endpoint in (None, *endpoints):
        if endpoint is not None:
            try:
                await _fetch_replica_from(context, replica_store, request, place, endpoint, round_)
            except (LauncherError, OSError) as error:
                faults.append(f"{endpoint.name}: {error}")
                continue
            context.log_event("step_fetched", {"step": request.step, "from": endpoint.name, "rank": request.rank})
        if (location := _local_shard(context, replica_store, request)) is not None:
            return location
    why = "; ".join(faults) or "no worker is known to hold it"
    raise BadCheckpoint(f"rank {request.rank} of {request.ranks} at step {request.step} could not be fetched: {why}")


async def _fetch_replica_from(
    context: ReplicationContext,
    replica_store: ReplicaStore,
    request: Fetch,
    place: Place,
    endpoint: DaemonEndpoint,
    round_: int,
) -> None:
    """Fetch one shard from a peer into the replica store.

    place: owner and local rank under which it is stored. round_: number of the current round. Raises PeerUnavailable or
    OSError if the peer cannot be reached or does not give the shard, and the errors of `ReplicaStore.fetch`. request:
    names the shard. endpoint: of the peer's daemon.
    """
    connection = await connect_peer(endpoint, context.identity, round_)
    try:
        header, record = await request_shard(connection, request)
        await replica_store.fetch(connection, place, record, header)
    finally:
        connection.close()


def _local_shard(context: ReplicationContext, replica_store: ReplicaStore, request: Fetch) -> ShardFetched | None:
    """Return where this host already holds a requested shard with checksums; None if it does not."""
    for arena, _ in arenas_of(context, replica_store):
        for generation, slot in enumerate(arena.slots()):
            record = slot.record
            if slot.state is not SlotState.HASHED or record is None:
                continue
            if Fetch(record.step, record.round, record.rank, record.world) == request:
                return ShardFetched(str(arena.path), generation, slot.epoch)
    return None
