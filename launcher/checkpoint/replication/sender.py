"""Sends this worker's shards of one step to its replica holders: pinned, hashed, one after another.

No training process waits for it. Newer steps wait until the leading daemon names the next one. Only the newest is then
copied, and the others count as uncopied.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Literal

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord, SlotState
from turnout.launcher.checkpoint.format.replication_messages import Offer, SendShard, ShardKept, packed
from turnout.launcher.checkpoint.replication import shard_stream
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, PeerUnavailable, connect_peer
from turnout.launcher.checkpoint.replication.ports import ReplicationContext
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import DaemonEndpoint

SEAL_S = 60.0  # seconds for the slowest local rank to seal the step that the first has sealed
TRIES = 3  # failures in a row after which a replica holder is skipped
_NO_ROOM = ("no_memory", "older_round", "token")
CopyOutcome = Literal["kept", "without", "failed"]
PinnedShard = tuple[int, Arena, int, ShardRecord]  # local rank, arena, generation, record


class ReplicaSender:
    """Sends this worker's shards to its replica holders, in one round."""

    def __init__(self, context: ReplicationContext) -> None:
        self._context = context
        self._pins: dict[int, list[PinnedShard]] = {}  # by step
        self._connections: dict[str, PeerConnection] = {}
        self._failures = Counter[str]()  # failures in a row, by replica holder
        self.replicated = -1
        self.uncopied = 0

    async def copy(self, step: int, complete_step: int) -> CopyOutcome:
        """Send all shards of this step to all replica holders.

        Keeps `complete_step` and `step` in memory until the next call.
        """
        self.release({step, complete_step})
        try:
            pins = await self._pin_shards(step)
        except (LauncherError, TimeoutError) as error:
            self._context.log_event(
                "replica_failed", {"step": step, "detail": str(error) or "it was not sealed in time"}
            )
            return "failed"
        self.uncopied += sum(each < step for each in self._context.unreplicated_steps)
        self._context.unreplicated_steps = {each for each in self._context.unreplicated_steps if each > step}
        outcomes = [await self._copy_to(endpoint, pins, complete_step) for endpoint in self._endpoints()]
        if "kept" in outcomes and "failed" not in outcomes:
            self.replicated = step
            return "kept"
        return "failed" if "failed" in outcomes else "without"

    def _endpoints(self) -> tuple[DaemonEndpoint, ...]:
        replica_group = self._context.restore_place.replica_group if self._context.restore_place is not None else None
        if replica_group is None or not replica_group.replica_holders or not self._context.replicas:
            return ()
        return replica_group.replica_holders[min(self._context.replicas, len(replica_group.replica_holders)) - 1]

    def hold(self, step: int) -> None:
        """Pin this step, which all workers hold, until a newer one is replicated."""
        for local_rank, rank_store in self._context.daemon.rank_stores.items():
            if rank_store.arena is not None and (pin := pin_step(rank_store.arena, step, None)) is not None:
                self._pins.setdefault(step, []).append((local_rank, rank_store.arena, *pin))

    async def _pin_shards(self, step: int) -> list[PinnedShard]:
        """Pin and hash every local rank's generation of this step. Raises BadCheckpoint if one is missing, TimeoutError
        after SEAL_S.
        """
        context = self._context
        assert context.restore_place is not None
        ranks = range(context.restore_place.processes)
        pins = self._pins.setdefault(step, [])
        async with context.sealed:
            for local_rank in ranks:
                async with asyncio.timeout(SEAL_S):
                    await context.sealed.wait_for(partial(context.has_sealed, local_rank, step))
                arena = context.daemon.rank_store(local_rank).arena
                pin = (
                    pin_step(arena, step, context.round, context.saves[local_rank].epoch) if arena is not None else None
                )
                if arena is None or pin is None:
                    raise BadCheckpoint(f"step {step} of local rank {local_rank} was overwritten before it was copied")
                pins.append((local_rank, arena, *pin))
        for local_rank, arena, generation, _ in pins:
            if arena.slots()[generation].state is SlotState.SEALED and not await context.daemon.rank_store(
                local_rank
            ).hash(generation):
                raise BadCheckpoint(f"step {step} of local rank {local_rank} is not what was hashed")
        return pins

    async def _copy_to(self, endpoint: DaemonEndpoint, pins: list[PinnedShard], complete_step: int) -> CopyOutcome:
        try:
            connection = self._connections.get(endpoint.id)
            if connection is None:
                connection = self._connections[endpoint.id] = await connect_peer(
                    endpoint, self._context.identity, self._context.round
                )
            for pin in pins:
                await self._send(connection, pin, complete_step)
        except (LauncherError, OSError) as error:
            if (connection := self._connections.pop(endpoint.id, None)) is not None:
                connection.close()
            self._failures[endpoint.id] += 1
            refused = isinstance(error, PeerUnavailable) and error.reason in _NO_ROOM
            if self._failures[endpoint.id] in (1, TRIES):
                fields = {"to": endpoint.name, "step": pins[0][3].step, "detail": str(error)[:1_000]}
                self._context.log_event("replica_refused" if refused else "replica_failed", fields)
            return "without" if refused or self._failures[endpoint.id] >= TRIES else "failed"
        del self._failures[endpoint.id]
        return "kept"

    async def _send(self, connection: PeerConnection, pin: PinnedShard, complete_step: int) -> None:
        local_rank, arena, generation, record = pin
        sums, rate_limiter = arena.sums(generation), self._context.rate_limiter
        total = arena.slots()[generation].sums_sum or 0
        target = self._context.daemon.rank_store(local_rank).saved_target(generation, record.epoch)
        offer = Offer(
            local_rank, arena.identity.count, packed(record), total.to_bytes(8, "little"), complete_step, target
        )
        if not isinstance(await connection.ask(offer), SendShard):
            raise BadFrame("no Go after Offer")
        shard = arena.map(generation, record.shard_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._context.send_threads,
                lambda: shard_stream.send(connection.sock, connection.proven_auth(), sums, shard, rate_limiter),
            )
        finally:
            with suppress(OSError):
                connection.sock.setblocking(False)
        if not isinstance(await connection.receive(), ShardKept):
            raise BadFrame("no Kept after a shard")

    def abandon_copy(self) -> bool:
        """Stop sending the current step and unpin it; its receivers notice. False if there is none."""
        for step in self._pins.keys() - {self._context.complete_step}:
            self._drop_connections()
            self.release(self._pins.keys() - {step})
            return True
        return False

    def release(self, but: AbstractSet[int]) -> None:
        """Unpin all steps except those in `but`."""
        for step in [step for step in self._pins if step not in but]:
            for _, arena, generation, _ in self._pins.pop(step):
                with suppress(ValueError):  # the arena is closed
                    arena.unpin(generation)

    def close(self) -> None:
        """Disconnect and unpin everything at the end of the round."""
        self._drop_connections()
        self.release(set())

    def _drop_connections(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def pin_step(
    arena: Arena, step: int, round_: int | None, last_epoch: int | None = None
) -> tuple[int, ShardRecord] | None:
    """Find and pin the newest generation of this step, saved in that round, or in any round if None.

    last_epoch: leave out newer generations, of which nobody has told yet where they go.
    """
    slots = arena.slots()
    candidates = [
        (slot.epoch, at)
        for at, slot in enumerate(slots)
        if slot.record is not None
        and slot.record.step == step
        and round_ in (None, slot.record.round)
        and (last_epoch is None or slot.epoch <= last_epoch)
    ]
    if not candidates:
        return None
    epoch, generation = max(candidates)
    record = arena.pin(generation, epoch)
    return (generation, record) if record is not None else None
