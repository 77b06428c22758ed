"""Adopts other workers' shards: those of leaving workers, and those that own ranks read in parts.

Each byte is checked as it arrives. A shard that cannot be fetched is reported; storage may still have it.
"""

from __future__ import annotations

import asyncio

from turnout.launcher.checkpoint.format.arena_layout import SlotState
from turnout.launcher.checkpoint.format.daemon_messages import Adopt, FetchShard, ShardFetched
from turnout.launcher.checkpoint.format.replication_messages import Fetch
from turnout.launcher.checkpoint.replication.fetch import arenas_of, request_shard
from turnout.launcher.checkpoint.replication.peer_connection import connect_peer
from turnout.launcher.checkpoint.replication.ports import ReplicationContext
from turnout.launcher.checkpoint.replication.replica_store import Place, ReplicaStore
from turnout.launcher.errors import BadCheckpoint, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import AdoptShards, DaemonEndpoint


async def adopt_shards(context: ReplicationContext, replica_store: ReplicaStore, order: Adopt) -> None:
    """Adopt the shards that `order` names, from several leavers at once, within its time. Missing ones are reported."""

    async def adopt(shards: AdoptShards) -> None:
        try:
            for at in range(shards.count):
                request = Fetch(order.step, order.saved_round, shards.first_rank + at, order.ranks)
                await _fetch_from_any(
                    context, replica_store, request, (shards.owner, at), shards.endpoints, order.round
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
    _, late = await asyncio.wait([asyncio.ensure_future(adopt(take)) for take in order.shards], timeout=order.within_s)
    for work in late:
        work.cancel()
    if late:
        await asyncio.wait(late)
        context.log_event(
            "shard_not_taken", {"step": order.step, "detail": f"{len(late)} did not come within {order.within_s:.1f} s"}
        )


async def fetch_for_reader(
    context: ReplicationContext, replica_store: ReplicaStore, request: FetchShard
) -> ShardFetched:
    """Fetch a shard for a rank that reads parts of it. Raises LauncherError if no worker has it."""
    shard_id = Fetch(request.step, request.round, request.rank, request.ranks)
    restore_place = context.restore_place
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
            context.fetch_failed = True
            raise


async def _fetch_from_any(
    context: ReplicationContext,
    replica_store: ReplicaStore,
    request: Fetch,
    place: Place,
    endpoints: tuple[DaemonEndpoint, ...],
    round_: int,
) -> ShardFetched:
    """Return the location of this shard here, after fetching it if necessary. Raises BadCheckpoint with all reasons."""
    faults: list[str] = []
    for endpoint in (None, *endpoints):
        if endpoint is not None:
            try:
                await _fetch_from(context, replica_store, request, place, endpoint, round_)
            except (LauncherError, OSError) as error:
                faults.append(f"{endpoint.name}: {error}")
                continue
            context.log_event("step_fetched", {"step": request.step, "from": endpoint.name, "rank": request.rank})
        if (location := _local_shard(context, replica_store, request)) is not None:
            return location
    why = "; ".join(faults) or "nobody is told to have it"
    raise BadCheckpoint(f"rank {request.rank} of {request.ranks} at step {request.step} cannot be had: {why}")


async def _fetch_from(
    context: ReplicationContext,
    replica_store: ReplicaStore,
    request: Fetch,
    place: Place,
    endpoint: DaemonEndpoint,
    round_: int,
) -> None:
    connection = await connect_peer(endpoint, context.identity, round_)
    try:
        given, record = await request_shard(connection, request)
        await replica_store.fetch(connection, place, record, given)
    finally:
        connection.close()


def _local_shard(context: ReplicationContext, replica_store: ReplicaStore, request: Fetch) -> ShardFetched | None:
    for arena, _ in arenas_of(context, replica_store):
        for generation, slot in enumerate(arena.slots()):
            record = slot.record
            if slot.state is not SlotState.HASHED or record is None:
                continue
            if Fetch(record.step, record.round, record.rank, record.world) == request:
                return ShardFetched(str(arena.path), generation, slot.epoch)
    return None
