"""Sends a worker's shards of a step to the daemons that hold its replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Literal

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord, SlotState
from turnout.launcher.checkpoint.replication import peer_connection
from turnout.launcher.checkpoint.replication.peer_connection import (
    Offer,
    PeerConnection,
    PeerUnavailable,
    SendShard,
    ShardKept,
    connect_peer,
    pack_record,
)
from turnout.launcher.checkpoint.replication.pull_shard import (
    ReplicationContext,
)
from turnout.launcher.coordinator_messages import (
    DaemonEndpoint,
)
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.model import SaveOutcome

CopyOutcome = Literal["kept", "without", "failed"]  # as in Copied
SEAL_S = 60.0  # seconds for the slowest local rank to seal the step that the first local rank has sealed
TRIES = 3  # consecutive failures after which a replica holder is skipped

_REFUSALS = ("no_memory", "older_round", "token")

PinnedShard = tuple[int, Arena, int, ShardRecord]  # local rank, arena, generation, record


class ReplicaSender:
    """Sends this worker's shards to its replica holders, in one round.

    `replicated`: the newest step for which `copy` returned "kept", -1 for none. `uncopied`: the number of announced
    steps that were skipped for a newer one.
    """

    def __init__(self, context: ReplicationContext) -> None:
        self._context = context
        self._pins: dict[int, list[PinnedShard]] = {}  # by step
        self._connections: dict[str, PeerConnection] = {}
        self._failures = Counter[str]()  # failures in a row, by replica holder
        self.replicated = -1
        self.uncopied = 0

    async def copy(self, step: int, complete_step: int) -> CopyOutcome:
        """Send all shards of a step to all replica holders, one after another.

        Returns "kept" if at least one holder stored it and none failed, "failed" if one failed or a shard is missing,
        and "without" if there is no holder or none takes it. complete_step: the newest step with all replicas. Until
        the next call both steps stay pinned; others are unpinned. Older announced steps without a copy are reported as
        superseded.
        """
        self.release({step, complete_step})
        try:
            pins = await self._pin_shards(step)
        except (LauncherError, TimeoutError) as error:
            self._context.log_event(
                "replica_failed", {"step": step, "detail": str(error) or "it was not sealed in time"}
            )
            return "failed"
        skipped_steps = {each for each in self._context.current.unreplicated_steps if each < step}
        self._context.report_replicas(skipped_steps, SaveOutcome.SUPERSEDED)
        self.uncopied += len(skipped_steps)
        self._context.current.unreplicated_steps -= {*skipped_steps, step}
        outcomes = [await self._copy_to(endpoint, pins, complete_step) for endpoint in self._endpoints()]
        if "kept" in outcomes and "failed" not in outcomes:
            self.replicated = step
            return "kept"
        return "failed" if "failed" in outcomes else "without"

    def _endpoints(self) -> tuple[DaemonEndpoint, ...]:
        """Return the daemons that hold this worker's replicas; empty if it has none."""
        place, replicas = self._context.current.restore_place, self._context.current.replicas
        replica_group = place.replica_group if place is not None else None
        if replica_group is None or not replica_group.replica_holders or not replicas:
            return ()
        return replica_group.replica_holders[min(replicas, len(replica_group.replica_holders)) - 1]

    def hold(self, step: int) -> None:
        """Pin this step of all local ranks, so that it is not overwritten; `release` unpins it. Ranks without the step
        are skipped.
        """
        for local_rank, rank_store in self._context.daemon.rank_stores.by_rank.items():
            if (arena := rank_store.arena) and (pin := arena.pin_newest(lambda record: record.step == step)):
                self._pins.setdefault(step, []).append((local_rank, arena, *pin))

    async def _pin_shards(self, step: int) -> list[PinnedShard]:
        """Pin and hash every local rank's generation of this step. Raises BadCheckpoint if one is missing, TimeoutError
        after SEAL_S.
        """
        context = self._context
        assert context.current.restore_place is not None
        ranks = range(context.current.restore_place.processes)
        pins = self._pins.setdefault(step, [])
        async with context.sealed:
            for local_rank in ranks:
                async with asyncio.timeout(SEAL_S):
                    await context.sealed.wait_for(partial(context.has_sealed, local_rank, step))
                arena = context.daemon.rank_stores.of(local_rank).arena
                pin = arena.pin_newest(partial(self._is_announced, local_rank, step)) if arena is not None else None
                if arena is None or pin is None:
                    raise BadCheckpoint(f"step {step} of local rank {local_rank} was overwritten before it was copied")
                pins.append((local_rank, arena, *pin))
        for local_rank, arena, generation, _ in pins:
            if arena.slots()[generation].state is SlotState.SEALED and not await context.daemon.rank_stores.of(
                local_rank
            ).hash(generation):
                raise BadCheckpoint(f"step {step} of local rank {local_rank} is not what was hashed")
        return pins

    def _is_announced(self, local_rank: int, step: int, record: ShardRecord) -> bool:
        """Return True if a record is of this step and round, and its save was announced with its target."""
        return (record.step, record.round) == (step, self._context.round) and (
            record.epoch <= self._context.current.saves[local_rank].epoch
        )

    async def _copy_to(self, endpoint: DaemonEndpoint, pins: list[PinnedShard], complete_step: int) -> CopyOutcome:
        """Copy the pinned shards to one peer, and return the outcome; "without" also if the peer failed too often.

        endpoint: of the peer's daemon. complete_step: as in `copy`.
        """
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
            refused = isinstance(error, PeerUnavailable) and error.reason in _REFUSALS
            if self._failures[endpoint.id] in (1, TRIES):
                fields = {"to": endpoint.name, "step": pins[0][3].step, "detail": str(error)[:1_000]}
                self._context.log_event("replica_refused" if refused else "replica_failed", fields)
            return "without" if refused or self._failures[endpoint.id] >= TRIES else "failed"
        del self._failures[endpoint.id]
        return "kept"

    async def _send(self, connection: PeerConnection, pin: PinnedShard, complete_step: int) -> None:
        """Offer a shard to a peer, send its bytes, and await the confirmation.

        Raises PeerUnavailable or OSError if the peer refuses or the connection fails, and BadFrame for another answer.
        pin: the shard. complete_step: as in `copy`.
        """
        local_rank, arena, generation, record = pin
        sums, rate_limiter = arena.sums(generation), self._context.rate_limiter
        total = arena.slots()[generation].sums_sum or 0
        target = self._context.daemon.rank_stores.of(local_rank).targets.of(generation, record.epoch)
        offer = Offer(
            local_rank, arena.identity.count, pack_record(record), total.to_bytes(8, "little"), complete_step, target
        )
        if not isinstance(await connection.ask(offer), SendShard):
            raise BadFrame("no SendShard after Offer")
        shard = arena.map(generation, record.shard_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._context.send_threads,
                lambda: peer_connection.send(connection.sock, connection.proven_auth(), sums, shard, rate_limiter),
            )
        finally:
            with suppress(OSError):
                connection.sock.setblocking(False)
        if not isinstance(await connection.receive(), ShardKept):
            raise BadFrame("no ShardKept after a shard")

    def abandon_copy(self) -> bool:
        """Unpin a step that is being sent or was sent without completing, and disconnect all replica holders.

        Return False if no step besides the complete one is pinned.
        """
        for step in self._pins.keys() - {self._context.current.complete_step}:
            self._drop_connections()
            self.release(self._pins.keys() - {step})
            return True
        return False

    def release(self, except_steps: AbstractSet[int]) -> None:
        """Unpin all steps that `hold` and `copy` pinned, except `except_steps`. Closed arenas are skipped."""
        for step in [step for step in self._pins if step not in except_steps]:
            for _, arena, generation, _ in self._pins.pop(step):
                with suppress(ValueError):  # the arena is closed
                    arena.unpin(generation)

    def close(self) -> None:
        """Disconnect and unpin everything at the end of the round."""
        self._drop_connections()
        self.release(set())

    def _drop_connections(self) -> None:
        """Close the connections to all replica holders."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
