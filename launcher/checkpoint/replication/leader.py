"""Chooses the step that is replicated next: the first member's daemon names it to all, so all replicas are of one step.

It names its newest sealed step once all have answered for the one before. The slowest worker sets the pace, and
training waits for none. Every memory keeps the last whole step until the next one is whole.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from turnout.launcher.checkpoint.format.replication_messages import Copied, Copy, Follow
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, PeerUnavailable, call
from turnout.launcher.checkpoint.replication.ports import ReplicationContext
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.checkpoint.replication.sender import How, ReplicaSender
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import ReplicaGroup

COPY_S = 3_600.0  # seconds for the slowest replica
# Seconds between retries, at first and at most; retries until one is logged.
RETRY_S, MOST_RETRY_S, TOLD = 0.05, 1.0, 30


class ReplicationLeader:
    """Leads replication in one round, in the first member's daemon."""

    def __init__(self, here: ReplicationContext, copying: ReplicaSender, replica_store: ReplicaStore) -> None:
        self._here, self._copying, self._replica_store = here, copying, replica_store
        self._followers: dict[str, PeerConnection] = {}
        self._came = asyncio.Condition()

    async def follow(self, connection: PeerConnection) -> None:
        """Add a follower. A follower that connects again replaces its old connection."""
        async with self._came:
            before, self._followers[connection.peer] = self._followers.get(connection.peer), connection
            if before is not None:
                before.close()
            self._came.notify_all()

    def has(self, connection: PeerConnection) -> bool:
        """True if this connection belongs to a current follower."""
        return self._followers.get(connection.peer) is connection

    async def lead(self, replica_group: ReplicaGroup) -> None:
        """Name steps to all followers until cancelled."""
        here, step = self._here, -1
        others = replica_group.size - 1
        while True:
            async with self._came:
                await self._came.wait_for(lambda: len(self._followers) >= others)
            async with here.sealed:
                await here.sealed.wait_for(partial(here.has_sealed, 0, step + 1))
            step = here.newest(0)
            asked = dict(self._followers)
            hows = await asyncio.gather(
                obeyed(here, self._copying, self._replica_store, step, here.whole),
                *(self._asked(name, connection, step, here.whole) for name, connection in asked.items()),
            )
            if "failed" not in hows:
                here.whole = step

    async def _asked(self, name: str, connection: PeerConnection, step: int, whole: int) -> How:
        try:
            answer = await connection.ask(Copy(step, whole), COPY_S)
            if isinstance(answer, Copied) and answer.step == step:
                return answer.how
            raise BadFrame(f"{type(answer).__name__} after Copy")
        except LauncherError:
            if self._followers.get(name) is connection:
                del self._followers[name]
            connection.close()
            return "failed"

    def close(self) -> None:
        """Disconnect all followers at the end of the round."""
        for connection in self._followers.values():
            connection.close()


async def follow(
    here: ReplicationContext, copying: ReplicaSender, replica_store: ReplicaStore, replica_group: ReplicaGroup
) -> None:
    """Replicate each step that the first member's daemon names, until cancelled. Connects again after errors."""
    tries = 0
    while True:
        connection: PeerConnection | None = None
        try:
            connection = await call(replica_group.first, here.me, here.round)
            await connection.say(Follow())
            while True:
                message = await connection.hear(None)
                if not isinstance(message, Copy):
                    raise PeerUnavailable(f"it says {type(message).__name__}")
                tries = 0
                how = await obeyed(here, copying, replica_store, message.step, message.whole)
                await connection.say(Copied(message.step, how))
        except LauncherError as error:
            tries += 1
            if tries == TOLD:
                here.say("replicas_unled", {"first": replica_group.first.name, "detail": str(error)})
            await asyncio.sleep(min(RETRY_S * tries, MOST_RETRY_S))
        finally:
            if connection is not None:
                with suppress(OSError):
                    connection.close()


async def obeyed(
    here: ReplicationContext, copying: ReplicaSender, replica_store: ReplicaStore, step: int, whole: int
) -> How:
    """Replicate the step that the leader named. Replicas that no whole step needs are freed first."""
    here.whole = max(here.whole, whole)
    if here.whole in here.copied:
        replica_store.retire(here.whole, here.round)
    here.copied = {each for each in here.copied if each > here.whole} | {step}
    return await copying.copy(step, here.whole)
