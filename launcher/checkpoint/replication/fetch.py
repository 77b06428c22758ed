"""Fetches shards that a worker has lost into its arena before training, and serves such requests of other workers.

The receiver checks every byte. If a shard cannot be fetched, no training process is started from it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from turnout.launcher.checkpoint.arena.arena import Arena, boot_id
from turnout.launcher.checkpoint.arena.memory_limits import limits
from turnout.launcher.checkpoint.arena.recovery import lock_for_daemon
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord, SlotState
from turnout.launcher.checkpoint.format.daemon_messages import RestorePlace
from turnout.launcher.checkpoint.format.memory_budget import need_bytes, refusal
from turnout.launcher.checkpoint.format.replication_messages import Fetch, Refusal, ShardGiven, packed, unpacked
from turnout.launcher.checkpoint.replication import shard_stream
from turnout.launcher.checkpoint.replication.peer_connection import (
    PeerConnection,
    PeerSilent,
    PeerUnavailable,
    connect_peer,
)
from turnout.launcher.checkpoint.replication.ports import RankPort, ReplicationContext, pin_shard
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import DaemonEndpoint

# Seconds without a word after which the next source is tried. Sources that were only silent are asked once more.
PATIENCE_S = (5.0, 30.0)


async def send_shard(
    context: ReplicationContext, replica_store: ReplicaStore, connection: PeerConnection, request: Fetch
) -> None:
    """Send the wanted shard to the peer, or a Refusal."""
    for arena, rank_store in arenas_of(context, replica_store):
        if (pin := pin_shard(arena, request.step, request.round, request.rank, request.ranks)) is None:
            continue
        generation, record = pin
        try:
            slot = arena.slots()[generation]
            if slot.state is SlotState.HASHED and slot.sums_sum is not None:
                count = arena.identity.count if rank_store is not None else arena.identity.owner_count
                target = (
                    rank_store.saved_target(generation, slot.epoch)
                    if rank_store is not None
                    else replica_store.saved_target(arena, slot.epoch)
                )
                total = slot.sums_sum.to_bytes(8, "little")
                await _send_bytes(
                    context, connection, arena, generation, record, ShardGiven(count, packed(record), total, target)
                )
                return
        finally:
            with suppress(ValueError):  # it was retired meanwhile
                arena.unpin(generation)
    await connection.send(
        Refusal("not_here", f"rank {request.rank} of {request.ranks} at step {request.step} is not here")
    )


def arenas_of(context: ReplicationContext, replica_store: ReplicaStore) -> list[tuple[Arena, RankPort | None]]:
    """List all arenas of this daemon: its own ranks' with their rank stores, and replicas with None."""
    own = [
        (rank_store.arena, rank_store)
        for rank_store in context.daemon.rank_stores.values()
        if rank_store.arena is not None
    ]
    return [*own, *((arena, None) for arena in replica_store.arenas())]


async def _send_bytes(
    context: ReplicationContext,
    connection: PeerConnection,
    arena: Arena,
    generation: int,
    record: ShardRecord,
    given: ShardGiven,
) -> None:
    sums, shard = arena.sums(generation), arena.map(generation, record.shard_bytes)
    await connection.send(given)
    try:
        auth = connection.proven_auth()
        await asyncio.get_running_loop().run_in_executor(
            context.receive_threads, shard_stream.send, connection.sock, auth, sums, shard
        )
    finally:
        with suppress(OSError):
            connection.sock.setblocking(False)


async def fetch_step(context: ReplicationContext, step: int, restore_place: RestorePlace) -> None:
    """Fetch this step for all own ranks into own memory. Raises BadCheckpoint with all reasons if no worker can give
    it.
    """
    shards = (
        [(0, 0, 1)]
        if restore_place.replicated
        else [(at, restore_place.first_rank + at, restore_place.ranks) for at in range(restore_place.processes)]
    )
    sources, faults = list(restore_place.fetch_from), dict[str, str]()
    for patience_s in PATIENCE_S:
        silent: list[DaemonEndpoint] = []
        for endpoint in sources:
            try:
                await _fetch_from(context, endpoint, step, restore_place, shards, patience_s)
            except (LauncherError, OSError) as error:
                faults[endpoint.name] = str(error)
                if isinstance(error, PeerSilent | TimeoutError):
                    silent.append(endpoint)
                    context.log_event("source_silent", {"step": step, "from": endpoint.name, "why": str(error)})
                continue
            context.log_event("step_fetched", {"step": step, "from": endpoint.name})
            return
        sources = silent
    raise BadCheckpoint(f"step {step} cannot be had from {'; '.join(f'{name}: {why}' for name, why in faults.items())}")


async def request_shard(
    connection: PeerConnection, request: Fetch, within_s: float = PATIENCE_S[-1]
) -> tuple[ShardGiven, ShardRecord]:
    """Ask the peer for a shard; its bytes follow on the connection.

    Raises LauncherError if the peer does not give it.
    """
    given = await connection.ask(request, within_s)
    if not isinstance(given, ShardGiven):
        raise BadFrame(f"{type(given).__name__} after Fetch")
    record = unpacked(given.record)
    if Fetch(record.step, record.round, record.rank, record.world) != request:
        raise PeerUnavailable("it gives another shard than was asked for")
    return given, record


async def _fetch_from(
    context: ReplicationContext,
    endpoint: DaemonEndpoint,
    step: int,
    restore_place: RestorePlace,
    shards: list[tuple[int, int, int]],
    patience_s: float,
) -> None:
    connection = await connect_peer(endpoint, context.identity, restore_place.round)
    try:
        for local_rank, rank, ranks in shards:
            given, record = await request_shard(
                connection, Fetch(step, restore_place.saved_round, rank, ranks), patience_s
            )
            rank_store = context.daemon.rank_store(local_rank)
            await asyncio.to_thread(_reserve_memory, context, rank_store, local_rank, record, given.generations)
            assert rank_store.arena is not None
            total = int.from_bytes(given.sums_sum, "little")
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
            if given.target is not None:
                rank_store.set_target(msgspec.structs.replace(given.target, generation=generation, epoch=epoch))
    finally:
        connection.close()


def _reserve_memory(
    context: ReplicationContext, rank_store: RankPort, local_rank: int, record: ShardRecord, count: int
) -> None:
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
    """Receive a shard into a free generation; return the generation and its epoch.

    The arena is opened again here, so that the training process can become its writer afterwards.
    """
    try:
        generation = arena.begin(record)
        if generation is None:
            raise BadCheckpoint("no generation is free")
        try:
            region = arena.map(generation, record.region_bytes)
            sums = shard_stream.receive(connection.sock, connection.proven_auth(), record, sums_sum, region, quiet_s)
        except BaseException:
            arena.discard(generation)
            raise
        epoch = arena.seal(generation, record).epoch
        arena.set_hashed(generation, sums)
        return generation, epoch
    finally:
        arena.close()
