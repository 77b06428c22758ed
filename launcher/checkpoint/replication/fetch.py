"""Fetches shards that a worker has lost into its arena before training, and serves such requests of other workers.

The receiver checks every byte. If a shard cannot be fetched, no training process is started from it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from turnout.launcher.checkpoint.arena.arena import Arena, boot_id
from turnout.launcher.checkpoint.arena.memory_limits import limits
from turnout.launcher.checkpoint.arena.recovery import is_ours_alone
from turnout.launcher.checkpoint.format.arena_layout import Identity, Record, State
from turnout.launcher.checkpoint.format.daemon_messages import RestorePlace
from turnout.launcher.checkpoint.format.memory_budget import need_bytes, refusal
from turnout.launcher.checkpoint.format.replication_messages import Fetch, Refusal, ShardGiven, packed, unpacked
from turnout.launcher.checkpoint.replication import shard_stream
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, PeerSilent, PeerUnavailable, call
from turnout.launcher.checkpoint.replication.ports import RankPort, ReplicationContext, found
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import DaemonEndpoint

# Seconds without a word after which the next source is tried. Sources that were only silent are asked once more.
PATIENCE_S = (5.0, 30.0)


async def give(
    here: ReplicationContext, replica_store: ReplicaStore, connection: PeerConnection, wanted: Fetch
) -> None:
    """Send the wanted shard to the peer, or a Refusal."""
    for arena, rank_store in arenas_of(here, replica_store):
        if (pin := found(arena, wanted.step, wanted.round, wanted.rank, wanted.ranks)) is None:
            continue
        generation, record = pin
        try:
            slot = arena.slots()[generation]
            if slot.state is State.HASHED and slot.sums_sum is not None:
                count = arena.identity.count if rank_store is not None else arena.identity.owner_count
                goes = (
                    rank_store.goes(generation, slot.epoch)
                    if rank_store is not None
                    else replica_store.goes(arena, slot.epoch)
                )
                total = slot.sums_sum.to_bytes(8, "little")
                await _sent(here, connection, arena, generation, record, ShardGiven(count, packed(record), total, goes))
                return
        finally:
            with suppress(ValueError):  # it was retired meanwhile
                arena.unpin(generation)
    await connection.say(Refusal("not_here", f"rank {wanted.rank} of {wanted.ranks} at step {wanted.step} is not here"))


def arenas_of(here: ReplicationContext, replica_store: ReplicaStore) -> list[tuple[Arena, RankPort | None]]:
    """List all arenas of this daemon: its own ranks' with their rank stores, and replicas with None."""
    own = [
        (rank_store.arena, rank_store) for rank_store in here.home.rank_stores.values() if rank_store.arena is not None
    ]
    return [*own, *((arena, None) for arena in replica_store.arenas())]


async def _sent(
    here: ReplicationContext,
    connection: PeerConnection,
    arena: Arena,
    generation: int,
    record: Record,
    given: ShardGiven,
) -> None:
    sums, shard = arena.sums(generation), arena.map(generation, record.shard_bytes)
    await connection.say(given)
    try:
        auth = connection.proven_auth()
        await asyncio.get_running_loop().run_in_executor(
            here.receives, shard_stream.send, connection.sock, auth, sums, shard
        )
    finally:
        with suppress(OSError):
            connection.sock.setblocking(False)


async def fetched(here: ReplicationContext, step: int, seat: RestorePlace) -> None:
    """Fetch this step for all own ranks into own memory. Raises BadCheckpoint with all reasons if no worker can give
    it.
    """
    wanted = [(0, 0, 1)] if seat.alike else [(at, seat.first_rank + at, seat.ranks) for at in range(seat.processes)]
    left, faults = list(seat.fetch), dict[str, str]()
    for patience_s in PATIENCE_S:
        silent: list[DaemonEndpoint] = []
        for endpoint in left:
            try:
                await _from(here, endpoint, step, seat, wanted, patience_s)
            except (LauncherError, OSError) as error:
                faults[endpoint.name] = str(error)
                if isinstance(error, PeerSilent | TimeoutError):
                    silent.append(endpoint)
                    here.say("source_silent", {"step": step, "from": endpoint.name, "why": str(error)})
                continue
            here.say("step_fetched", {"step": step, "from": endpoint.name})
            return
        left = silent
    raise BadCheckpoint(f"step {step} cannot be had from {'; '.join(f'{name}: {why}' for name, why in faults.items())}")


async def asked(
    connection: PeerConnection, wanted: Fetch, within_s: float = PATIENCE_S[-1]
) -> tuple[ShardGiven, Record]:
    """Ask the peer for a shard; its bytes follow on the connection.

    Raises LauncherError if the peer does not give it.
    """
    given = await connection.ask(wanted, within_s)
    if not isinstance(given, ShardGiven):
        raise BadFrame(f"{type(given).__name__} after Fetch")
    record = unpacked(given.record)
    if Fetch(record.step, record.round, record.rank, record.world) != wanted:
        raise PeerUnavailable("it gives another shard than was asked for")
    return given, record


async def _from(
    here: ReplicationContext,
    endpoint: DaemonEndpoint,
    step: int,
    seat: RestorePlace,
    wanted: list[tuple[int, int, int]],
    patience_s: float,
) -> None:
    connection = await call(endpoint, here.me, seat.round)
    try:
        for local_rank, rank, ranks in wanted:
            given, record = await asked(connection, Fetch(step, seat.origin, rank, ranks), patience_s)
            rank_store = here.home.rank_store(local_rank)
            await asyncio.to_thread(_have_room, here, rank_store, local_rank, record, given.generations)
            assert rank_store.arena is not None
            total = int.from_bytes(given.sums_sum, "little")
            generation, epoch = await asyncio.get_running_loop().run_in_executor(
                here.receives, _received, connection, Arena.open(rank_store.arena.path), record, total, patience_s
            )
            connection.sock.setblocking(False)
            if given.goes is not None:
                rank_store.tell(msgspec.structs.replace(given.goes, generation=generation, epoch=epoch))
    finally:
        connection.close()


def _have_room(here: ReplicationContext, rank_store: RankPort, local_rank: int, record: Record, count: int) -> None:
    have = sum(slot.reserved_bytes for slot in rank_store.arena.slots()) if rank_store.arena is not None else 0
    need = need_bytes(record.region_bytes, 1, 1) - have
    if (refused := refusal(need, limits(here.home.folder), folder=str(here.home.folder))) is not None:
        raise refused
    if rank_store.arena is None:
        arena = Arena.make(here.home.folder, Identity(here.home.run, here.home.worker, local_rank, boot_id(), count))
        is_ours_alone(arena)
        rank_store.adopt(arena)


def _received(
    connection: PeerConnection, arena: Arena, record: Record, sums_sum: int, quiet_s: float
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
        arena.hashed(generation, sums)
        return generation, epoch
    finally:
        arena.close()
