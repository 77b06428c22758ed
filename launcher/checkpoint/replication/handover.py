"""Adopts other workers' shards: those of leaving workers, and those that own ranks read in parts.

Each byte is checked as it arrives. A shard that cannot be fetched is reported; storage may still have it.
"""

from __future__ import annotations

import asyncio

from turnout.launcher.checkpoint.format.arena_layout import State
from turnout.launcher.checkpoint.format.daemon_messages import Adopt, FetchShard, ShardFetched
from turnout.launcher.checkpoint.format.replication_messages import Fetch
from turnout.launcher.checkpoint.replication.fetch import arenas_of, asked
from turnout.launcher.checkpoint.replication.peer_connection import call
from turnout.launcher.checkpoint.replication.ports import ReplicationContext
from turnout.launcher.checkpoint.replication.replica_store import Place, ReplicaStore
from turnout.launcher.errors import BadCheckpoint, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import AdoptShards, DaemonEndpoint


async def inherited(here: ReplicationContext, replica_store: ReplicaStore, order: Adopt) -> None:
    """Adopt the shards that `order` names, from several leavers at once, within its time. Missing ones are reported."""

    async def taken(take: AdoptShards) -> None:
        try:
            for at in range(take.count):
                wanted = Fetch(order.step, order.origin, take.first_rank + at, order.ranks)
                await _had(here, replica_store, wanted, (take.owner, at), take.endpoints, order.round)
        except LauncherError as error:
            here.say("shard_not_taken", {"owner": take.owner, "step": order.step, "detail": str(error)[:1_000]})
        else:
            here.say("shard_taken", {"owner": take.owner, "step": order.step})

    if not order.take:
        return
    here.round = max(here.round, order.round)
    _, late = await asyncio.wait([asyncio.ensure_future(taken(take)) for take in order.take], timeout=order.within_s)
    for work in late:
        work.cancel()
    if late:
        await asyncio.wait(late)
        here.say(
            "shard_not_taken", {"step": order.step, "detail": f"{len(late)} did not come within {order.within_s:.1f} s"}
        )


async def brought(here: ReplicationContext, replica_store: ReplicaStore, wanted: FetchShard) -> ShardFetched:
    """Fetch a shard for a rank that reads parts of it. Raises LauncherError if no worker has it."""
    asks = Fetch(wanted.step, wanted.round, wanted.rank, wanted.ranks)
    seat = here.seat
    if seat is None or (seat.saved_by, seat.origin) != (wanted.ranks, wanted.round):
        raise BadCheckpoint(f"nobody has agreed to go on from step {wanted.step} of {wanted.ranks} ranks")
    locations = [each for each in seat.locations if each.first_rank <= wanted.rank < each.first_rank + each.count]
    async with here.brings:
        try:
            place = (f"rank {wanted.rank} of {wanted.ranks}", 0)
            return await _had(here, replica_store, asks, place, tuple(each.endpoint for each in locations), seat.round)
        except LauncherError:
            here.barred = True
            raise


async def _had(
    here: ReplicationContext,
    replica_store: ReplicaStore,
    wanted: Fetch,
    place: Place,
    endpoints: tuple[DaemonEndpoint, ...],
    round_: int,
) -> ShardFetched:
    """Return the location of this shard here, after fetching it if necessary. Raises BadCheckpoint with all reasons."""
    faults: list[str] = []
    for endpoint in (None, *endpoints):
        if endpoint is not None:
            try:
                await _from(here, replica_store, wanted, place, endpoint, round_)
            except (LauncherError, OSError) as error:
                faults.append(f"{endpoint.name}: {error}")
                continue
            here.say("step_fetched", {"step": wanted.step, "from": endpoint.name, "rank": wanted.rank})
        if (there := _there(here, replica_store, wanted)) is not None:
            return there
    why = "; ".join(faults) or "nobody is told to have it"
    raise BadCheckpoint(f"rank {wanted.rank} of {wanted.ranks} at step {wanted.step} cannot be had: {why}")


async def _from(
    here: ReplicationContext,
    replica_store: ReplicaStore,
    wanted: Fetch,
    place: Place,
    endpoint: DaemonEndpoint,
    round_: int,
) -> None:
    connection = await call(endpoint, here.me, round_)
    try:
        given, record = await asked(connection, wanted)
        await replica_store.fetch(connection, place, record, given)
    finally:
        connection.close()


def _there(here: ReplicationContext, replica_store: ReplicaStore, wanted: Fetch) -> ShardFetched | None:
    for arena, _ in arenas_of(here, replica_store):
        for generation, slot in enumerate(arena.slots()):
            record = slot.record
            if slot.state is not State.HASHED or record is None:
                continue
            if Fetch(record.step, record.round, record.rank, record.world) == wanted:
                return ShardFetched(str(arena.path), generation, slot.epoch)
    return None
