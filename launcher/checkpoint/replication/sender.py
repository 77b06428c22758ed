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
from turnout.launcher.checkpoint.format.arena_layout import Record, State
from turnout.launcher.checkpoint.format.replication_messages import Offer, SendShard, ShardKept, packed
from turnout.launcher.checkpoint.replication import shard_stream
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, PeerUnavailable, call
from turnout.launcher.checkpoint.replication.ports import ReplicationContext
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import DaemonEndpoint

SEAL_S = 60.0  # seconds for the slowest local rank to seal the step that the first has sealed
TRIES = 3  # failures in a row after which a replica holder is skipped
_NO_ROOM = ("no_memory", "older_round", "token")
How = Literal["kept", "without", "failed"]
Pin = tuple[int, Arena, int, Record]  # local rank, arena, generation, record


class ReplicaSender:
    """Sends this worker's shards to its replica holders, in one round."""

    def __init__(self, here: ReplicationContext) -> None:
        self._here = here
        self._pins: dict[int, list[Pin]] = {}  # by step
        self._connections: dict[str, PeerConnection] = {}
        self._missed = Counter[str]()  # failures in a row, by replica holder
        self.replicated = -1
        self.uncopied = 0

    async def copy(self, step: int, whole: int) -> How:
        """Send all shards of this step to all replica holders.

        Keeps `whole` and `step` in memory until the next call.
        """
        self.release({step, whole})
        try:
            pins = await self._pinned(step)
        except (LauncherError, TimeoutError) as error:
            self._here.say("replica_failed", {"step": step, "detail": str(error) or "it was not sealed in time"})
            return "failed"
        self.uncopied += sum(each < step for each in self._here.steps)
        self._here.steps = {each for each in self._here.steps if each > step}
        hows = [await self._to(endpoint, pins, whole) for endpoint in self._endpoints()]
        if "kept" in hows and "failed" not in hows:
            self.replicated = step
            return "kept"
        return "failed" if "failed" in hows else "without"

    def _endpoints(self) -> tuple[DaemonEndpoint, ...]:
        replica_group = self._here.seat.replica_group if self._here.seat is not None else None
        if replica_group is None or not replica_group.replica_holders or not self._here.replicas:
            return ()
        return replica_group.replica_holders[min(self._here.replicas, len(replica_group.replica_holders)) - 1]

    def hold(self, step: int) -> None:
        """Pin this step, which all workers hold, until a newer one is replicated."""
        for local_rank, rank_store in self._here.home.rank_stores.items():
            if rank_store.arena is not None and (pin := _pin(rank_store.arena, step, None)) is not None:
                self._pins.setdefault(step, []).append((local_rank, rank_store.arena, *pin))

    async def _pinned(self, step: int) -> list[Pin]:
        """Pin and hash every local rank's generation of this step. Raises BadCheckpoint if one is missing, TimeoutError
        after SEAL_S.
        """
        here = self._here
        assert here.seat is not None
        ranks = range(here.seat.processes)
        pins = self._pins.setdefault(step, [])
        async with here.sealed:
            for local_rank in ranks:
                async with asyncio.timeout(SEAL_S):
                    await here.sealed.wait_for(partial(here.has_sealed, local_rank, step))
                arena = here.home.rank_store(local_rank).arena
                pin = _pin(arena, step, here.round, here.saves[local_rank].epoch) if arena is not None else None
                if arena is None or pin is None:
                    raise BadCheckpoint(f"step {step} of local rank {local_rank} was overwritten before it was copied")
                pins.append((local_rank, arena, *pin))
        for local_rank, arena, generation, _ in pins:
            if arena.slots()[generation].state is State.SEALED and not await here.home.rank_store(local_rank).hash(
                generation
            ):
                raise BadCheckpoint(f"step {step} of local rank {local_rank} is not what was hashed")
        return pins

    async def _to(self, endpoint: DaemonEndpoint, pins: list[Pin], whole: int) -> How:
        try:
            connection = self._connections.get(endpoint.id)
            if connection is None:
                connection = self._connections[endpoint.id] = await call(endpoint, self._here.me, self._here.round)
            for pin in pins:
                await self._send(connection, pin, whole)
        except (LauncherError, OSError) as error:
            if (connection := self._connections.pop(endpoint.id, None)) is not None:
                connection.close()
            self._missed[endpoint.id] += 1
            never = isinstance(error, PeerUnavailable) and error.reason in _NO_ROOM
            if self._missed[endpoint.id] in (1, TRIES):
                fields = {"to": endpoint.name, "step": pins[0][3].step, "detail": str(error)[:1_000]}
                self._here.say("replica_refused" if never else "replica_failed", fields)
            return "without" if never or self._missed[endpoint.id] >= TRIES else "failed"
        del self._missed[endpoint.id]
        return "kept"

    async def _send(self, connection: PeerConnection, pin: Pin, whole: int) -> None:
        local_rank, arena, generation, record = pin
        sums, paced = arena.sums(generation), self._here.paced
        total = arena.slots()[generation].sums_sum or 0
        goes = self._here.home.rank_store(local_rank).goes(generation, record.epoch)
        offer = Offer(local_rank, arena.identity.count, packed(record), total.to_bytes(8, "little"), whole, goes)
        if not isinstance(await connection.ask(offer), SendShard):
            raise BadFrame("no Go after Offer")
        shard = arena.map(generation, record.shard_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._here.sends,
                lambda: shard_stream.send(connection.sock, connection.proven_auth(), sums, shard, paced),
            )
        finally:
            with suppress(OSError):
                connection.sock.setblocking(False)
        if not isinstance(await connection.hear(), ShardKept):
            raise BadFrame("no Kept after a shard")

    def give_way(self) -> bool:
        """Stop sending the current step and unpin it; its receivers notice. False if there is none."""
        for step in self._pins.keys() - {self._here.whole}:
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


def _pin(arena: Arena, step: int, round_: int | None, last_epoch: int | None = None) -> tuple[int, Record] | None:
    """Find and pin the newest generation of this step, saved in that round, or in any round if None.

    last_epoch: leave out newer generations, of which nobody has told yet where they go.
    """
    slots = arena.slots()
    held = [
        (slot.epoch, at)
        for at, slot in enumerate(slots)
        if slot.record is not None
        and slot.record.step == step
        and round_ in (None, slot.record.round)
        and (last_epoch is None or slot.epoch <= last_epoch)
    ]
    if not held:
        return None
    epoch, generation = max(held)
    record = arena.pin(generation, epoch)
    return (generation, record) if record is not None else None
