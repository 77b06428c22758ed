"""Chooses the step that is replicated next: the first member's daemon names it to all, so all replicas are of one step.

It names its newest sealed step once all have answered for the one before. The slowest worker sets the pace, and
training waits for none. Every memory keeps the last whole step until the next one is whole.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from turnout.launcher.checkpoint.format.replication_messages import Copied, Copy, Follow
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, PeerUnavailable, connect_peer
from turnout.launcher.checkpoint.replication.ports import ReplicationContext
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.checkpoint.replication.sender import CopyOutcome, ReplicaSender
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.rendezvous.checkpoint_messages import ReplicaGroup

COPY_S = 3_600.0  # seconds for the slowest replica
# Seconds between retries, at first and at most; retries until one is logged.
RETRY_S, MOST_RETRY_S, LOGGED_TRIES = 0.05, 1.0, 30


class ReplicationLeader:
    """Leads replication in one round, in the first member's daemon."""

    def __init__(self, context: ReplicationContext, sender: ReplicaSender, replica_store: ReplicaStore) -> None:
        self._context, self._sender, self._replica_store = context, sender, replica_store
        self._followers: dict[str, PeerConnection] = {}
        self._follower_joined = asyncio.Condition()

    async def follow(self, connection: PeerConnection) -> None:
        """Add a follower. A follower that connects again replaces its old connection."""
        async with self._follower_joined:
            before, self._followers[connection.peer] = self._followers.get(connection.peer), connection
            if before is not None:
                before.close()
            self._follower_joined.notify_all()

    def has(self, connection: PeerConnection) -> bool:
        """True if this connection belongs to a current follower."""
        return self._followers.get(connection.peer) is connection

    async def lead(self, replica_group: ReplicaGroup) -> None:
        """Name steps to all followers until cancelled."""
        context, step = self._context, -1
        others = replica_group.size - 1
        while True:
            async with self._follower_joined:
                await self._follower_joined.wait_for(lambda: len(self._followers) >= others)
            async with context.sealed:
                await context.sealed.wait_for(partial(context.has_sealed, 0, step + 1))
            step = context.newest(0)
            followers = dict(self._followers)
            outcomes = await asyncio.gather(
                replicate(context, self._sender, self._replica_store, step, context.complete_step),
                *(
                    self._request_copy(name, connection, step, context.complete_step)
                    for name, connection in followers.items()
                ),
            )
            if "failed" not in outcomes:
                context.complete_step = step

    async def _request_copy(self, name: str, connection: PeerConnection, step: int, complete_step: int) -> CopyOutcome:
        try:
            answer = await connection.ask(Copy(step, complete_step), COPY_S)
            if isinstance(answer, Copied) and answer.step == step:
                return answer.outcome
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
    context: ReplicationContext, sender: ReplicaSender, replica_store: ReplicaStore, replica_group: ReplicaGroup
) -> None:
    """Replicate each step that the first member's daemon names, until cancelled. Connects again after errors."""
    tries = 0
    while True:
        connection: PeerConnection | None = None
        try:
            connection = await connect_peer(replica_group.first, context.identity, context.round)
            await connection.send(Follow())
            while True:
                message = await connection.receive(None)
                if not isinstance(message, Copy):
                    raise PeerUnavailable(f"it says {type(message).__name__}")
                tries = 0
                outcome = await replicate(context, sender, replica_store, message.step, message.complete_step)
                await connection.send(Copied(message.step, outcome))
        except LauncherError as error:
            tries += 1
            if tries == LOGGED_TRIES:
                context.log_event("replicas_unled", {"first": replica_group.first.name, "detail": str(error)})
            await asyncio.sleep(min(RETRY_S * tries, MOST_RETRY_S))
        finally:
            if connection is not None:
                with suppress(OSError):
                    connection.close()


async def replicate(
    context: ReplicationContext, sender: ReplicaSender, replica_store: ReplicaStore, step: int, complete_step: int
) -> CopyOutcome:
    """Replicate the step that the leader named. Replicas that no whole step needs are freed first."""
    context.complete_step = max(context.complete_step, complete_step)
    if context.complete_step in context.ordered_steps:
        replica_store.free_outdated(context.complete_step, context.round)
    context.ordered_steps = {each for each in context.ordered_steps if each > context.complete_step} | {step}
    return await sender.copy(step, context.complete_step)
