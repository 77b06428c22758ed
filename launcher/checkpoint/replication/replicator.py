"""Runs a daemon's part in the replication of its job: the leader names a step, and each daemon copies its shards of it.

The leader is the daemon of the first member. It names its newest sealed step to all daemons once all have answered for
the step before, so all replicas are of one step; steps between are skipped. The slowest worker determines the rate, and
training waits for no copy. Every memory keeps the last complete step until the next one is complete.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from turnout.launcher.checkpoint.arena.arena import ArenaBusy
from turnout.launcher.checkpoint.format.daemon_messages import Adopt, FetchShard, Hello, Save, ShardFetched
from turnout.launcher.checkpoint.replication.peer_connection import (
    Copied,
    Copy,
    Fetch,
    Follow,
    Offer,
    PeerConnection,
    PeerRefusal,
    PeerUnavailable,
    SendShard,
    ShardKept,
    accept_peer,
    connect_peer,
    unpack_record,
)
from turnout.launcher.checkpoint.replication.pull_shard import (
    DaemonPort,
    ReplicationContext,
    RoundReplication,
    adopt_shards,
    fetch_for_reader,
    fetch_step,
    send_shard,
)
from turnout.launcher.checkpoint.replication.replica_sender import CopyOutcome, ReplicaSender
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter
from turnout.launcher.coordinator_messages import (
    ALL,
    FETCH_DISABLED,
    MAX_HOLDS,
    HeldStep,
    ReplicaGroup,
    RestorePlace,
)
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog, limit_rate
from turnout.launcher.model import SaveOutcome

COPY_S = 3_600.0  # seconds for the slowest replica
# Seconds between retries, at first and at most; retries until one is logged.
RETRY_S, MAX_RETRY_S, LOGGED_TRIES = 0.05, 1.0, 30


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
        """Return True if this connection belongs to a current follower."""
        return self._followers.get(connection.peer) is connection

    async def lead(self, replica_group: ReplicaGroup) -> None:
        """Order all daemons to replicate the newest step that local rank 0 of this worker has announced, step after
        step, until cancelled. Begins when all other daemons of the group have connected.
        """
        context, step = self._context, -1
        other_daemons = replica_group.size - 1
        while True:
            async with self._follower_joined:
                await self._follower_joined.wait_for(lambda: len(self._followers) >= other_daemons)
            async with context.sealed:
                await context.sealed.wait_for(partial(context.has_sealed, 0, step + 1))
            step = context.newest_step(0)
            followers = dict(self._followers)
            outcomes = await asyncio.gather(
                replicate(context, self._sender, self._replica_store, step, context.current.complete_step),
                *(
                    self._request_copy(name, connection, step, context.current.complete_step)
                    for name, connection in followers.items()
                ),
            )
            if "failed" not in outcomes:
                context.current.complete_step = step

    async def _request_copy(self, name: str, connection: PeerConnection, step: int, complete_step: int) -> CopyOutcome:
        """Order the follower `name` to copy a step, and return the outcome. Disconnect it after an error ("failed").

        complete_step: the newest step with all replicas, -1 for none.
        """
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
    """Replicate each step that the first member's daemon names, until cancelled.

    replica_group: names that daemon. After an error of the connection, it connects again. sender, replica_store: of
    this daemon.
    """
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
            await asyncio.sleep(min(RETRY_S * tries, MAX_RETRY_S))
        finally:
            if connection is not None:
                with suppress(OSError):
                    connection.close()


async def replicate(
    context: ReplicationContext, sender: ReplicaSender, replica_store: ReplicaStore, step: int, complete_step: int
) -> CopyOutcome:
    """Copy a step to this worker's replica holders; report and return the outcome.

    complete_step: the newest step with all replicas, -1 for none. If it was ordered here in this round, replicas of
    owners that lack it are removed first. sender, replica_store: of this daemon.
    """
    current = context.current
    current.complete_step = max(current.complete_step, complete_step)
    if current.complete_step in current.ordered_steps:
        replica_store.arenas.free_outdated(current.complete_step, context.round)
    current.ordered_steps = {each for each in current.ordered_steps if each > current.complete_step} | {step}
    outcome = await sender.copy(step, current.complete_step)
    context.report_replicas((step,), SaveOutcome.DONE if outcome == "kept" else SaveOutcome.FAILED)
    return outcome


MAX_CALLERS = 512  # connections that have proved the token
MAX_STRANGERS = 64  # connections that have proved nothing yet
RESOURCE_PAUSE_S = 1.0  # pause after running out of file descriptors


class PeerRequests:
    """Answers the requests of other daemons. `leader`: leads replication, None if this daemon does not lead."""

    def __init__(self, context: ReplicationContext, replica_store: ReplicaStore) -> None:
        self._context, self._replica_store = context, replica_store
        self.leader: ReplicationLeader | None = None

    def is_follower(self, connection: PeerConnection) -> bool:
        """Return True if the leader here keeps this connection, after its requests were answered."""
        return self.leader is not None and self.leader.has(connection)

    async def is_current_round(self, connection: PeerConnection) -> bool:
        """Return True if the peer's round is not over here. Else send the peer a refusal, and return False.

        Raises PeerUnavailable if the connection fails.
        """
        if connection.round < self._context.round:
            await connection.send(PeerRefusal("older_round", f"round {connection.round}, here {self._context.round}"))
            return False
        return True

    async def serve(self, connection: PeerConnection) -> None:
        """Handle the requests of a peer: store its replica, send it a shard, or make it a follower.

        Ends after a Follow, and when the peer's round is over here. Raises BadFrame for another message,
        PeerUnavailable or OSError when the connection ends, and BadCheckpoint for a corrupt replica.
        """
        while True:
            match await connection.receive(None):
                case Offer() as offer if await self.is_current_round(connection):
                    await self._receive_replica(connection, offer)
                case Fetch() as fetch if await self.is_current_round(connection):
                    await send_shard(self._context, self._replica_store, connection, fetch)
                case Follow():
                    if self.leader is None or connection.round != self._context.round:
                        await connection.send(PeerRefusal("not_here", "nobody leads here yet"))
                    else:
                        await self.leader.follow(connection)
                    return
                case Offer() | Fetch():
                    return
                case message:
                    raise BadFrame(f"{type(message).__name__} is not for a daemon")

    async def _receive_replica(self, connection: PeerConnection, offer: Offer) -> None:
        """Receive one replica that a peer offers, and answer whether it is stored.

        A refusal has the reason no_memory, busy or corrupt. Raises BadCheckpoint after the last one, and BadFrame for a
        shard of another round or of this worker.
        """
        record = unpack_record(offer.record)
        place = (connection.peer, offer.local_rank)
        if record.round != connection.round or connection.peer == self._context.daemon.worker:
            raise BadFrame("a shard of another round, or of this worker itself")
        try:
            arena = await self._replica_store.arenas.reserve(place, record, offer.generations)
            await connection.send(SendShard())
            await self._replica_store.receive(connection, place, record, offer, arena)
        except (NoMemory, ArenaBusy) as error:
            self._context.log_event(
                "replica_refused", {"owner": connection.peer, "step": record.step, "detail": str(error)[:1_000]}
            )
            await connection.send(
                PeerRefusal("no_memory" if isinstance(error, NoMemory) else "busy", str(error)[:4_096])
            )
        except BadCheckpoint as error:
            self._context.log_event(
                "replica_corrupt", {"owner": connection.peer, "step": record.step, "detail": str(error)}
            )
            await connection.send(PeerRefusal("corrupt", str(error)))
            raise
        else:
            await connection.send(ShardKept())


class PeerListener:
    """Accepts the connections of other daemons, and closes those of strangers.

    requests: answers the peers that have proved the token.
    """

    def __init__(self, context: ReplicationContext, requests: PeerRequests) -> None:
        self._context, self._requests = context, requests
        self._callers: set[asyncio.Task[None]] = set()
        self._connections: set[PeerConnection] = set()
        self._strangers: dict[PeerConnection, asyncio.Task[None]] = {}  # oldest first
        self._log_stranger = limit_rate(context.log_event)
        self._listener: socket.socket | None = None

    def listen(self, listener: socket.socket, token: bytes) -> None:
        """Listen for other daemons on this socket. Does nothing if it is closed.

        token: by which the daemons of the job recognise each other, also when this one connects.
        """
        self._context.token = token
        self._resume(listener)

    def _resume(self, listener: socket.socket) -> None:
        """Accept connections, at first or after a pause. Does nothing if the socket is closed."""
        if listener.fileno() < 0:
            return
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def is_busy(self) -> bool:
        """Return True if a peer is connected to this daemon's listener, also one that has not proved the token."""
        return bool(self._callers)

    def _accept(self, listener: socket.socket) -> None:
        """Accept a peer and serve it in a task. Without free descriptors, listening pauses for RESOURCE_PAUSE_S."""
        try:
            sock, _ = listener.accept()
        except OSError as error:  # the caller left before it was accepted, or file descriptors ran out
            if error.errno in (errno.EMFILE, errno.ENFILE):
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                loop.call_later(RESOURCE_PAUSE_S, self._resume, listener)
            return
        # A peer with the token proves it quickly: end the one that has waited longest.
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).cancel()
        connection = PeerConnection(sock)
        self._connections.add(connection)  # here, since a task that is cancelled before it starts closes nothing
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._strangers[connection] = task
        self._callers.add(task)
        task.add_done_callback(partial(self._on_connection_end, connection))

    def _on_connection_end(self, connection: PeerConnection, task: asyncio.Task[None]) -> None:
        """Forget the task of a connection, and close the connection if the task never started."""
        self._callers.discard(task)
        if connection in self._connections:  # the task was cancelled before it started
            self._connections.discard(connection)
            connection.close()

    async def _serve(self, connection: PeerConnection) -> None:
        """Check the token of a peer, then serve its requests until it leaves. Log and disconnect a stranger."""
        try:
            is_proven = await accept_peer(connection, self._context.identity)
            self._strangers.pop(connection, None)
            if is_proven and await self._requests.is_current_round(connection):
                if len(self._connections) - len(self._strangers) <= MAX_CALLERS:
                    await self._requests.serve(connection)
            else:
                self._log_stranger("stranger_refused", {"peer": connection.peer, "round": connection.round})
        except BadFrame as error:
            self._log_stranger("frame_refused", {"why": str(error)})
        except (LauncherError, OSError):  # the peer is gone, and will reconnect
            pass
        finally:
            self._strangers.pop(connection, None)
            self._connections.discard(connection)
            if not self._requests.is_follower(connection):
                connection.close()

    async def close(self) -> None:
        """Stop listening, close all connections, and wait until no request is answered any more."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
        for task in self._callers:
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*self._callers, return_exceptions=True)


SAVES_BEFORE_CLEANUP = 2  # saves of a round without replication, after which replicas of earlier rounds are removed
_RESERVED_ENTRIES = 32  # entries in a list of held steps that are reserved for the worker's own steps
_THREADS = 16  # receiving threads; idle ones cost nothing


class Replicator:
    """Replicates the shards of one daemon. bytes_s: the limit of sending, in bytes per second, 0 for none.

    `peers`: listens for other daemons. `replica_store`: has the replicas that they have sent.
    """

    def __init__(self, daemon: DaemonPort, log_event: EventLog, bytes_s: float = 0.0) -> None:
        self._send_threads = ThreadPoolExecutor(1, "turnout-send")
        self._receive_threads = ThreadPoolExecutor(_THREADS, "turnout-receive")
        self._context = ReplicationContext(
            daemon, log_event, self._send_threads, self._receive_threads, RateLimiter(RateLimit(bytes_s))
        )
        self.replica_store = ReplicaStore(daemon.folder, daemon.run, daemon.worker, log_event, self._receive_threads)
        self._sender: ReplicaSender | None = None
        self._requests = PeerRequests(self._context, self.replica_store)
        self.peers = PeerListener(self._context, self._requests)
        self._round: asyncio.Task[Any] | None = None  # leads or follows in this round
        self._unreplicated_saves = 0  # saves of this round, if nothing is replicated

    async def begin_round(self, step: int, restore_place: RestorePlace) -> None:
        """Begin a round: end the replication of the last one, and fetch the shards of `step` that this worker lacks.

        step: -1 if the world loads from storage. Raises BadCheckpoint if no worker gives a shard that is named as
        missing: then no process may start. restore_place: this worker's place in the round, and what to fetch from
        whom.
        """
        self._close_round()
        context = self._context
        context.round = max(context.round, restore_place.round)
        context.current, self._unreplicated_saves = RoundReplication(restore_place, step), 0
        if step >= 0 and restore_place.fetch_from:
            await fetch_step(context, step, restore_place)

    def register(self, hello: Hello) -> None:
        """Record a training process. The first one of this round that wants replicas starts the round's replication.

        hello: its first message. Another round than the present one is ignored.
        """
        context = self._context
        if hello.replicated and hello.round:
            context.replicated_rounds.add(hello.round)
        current, place = context.current, context.current.restore_place
        if not hello.replicas or hello.round != context.round or place is None or place.replica_group is None:
            return
        current.replicas = max(current.replicas, hello.replicas)
        if self._sender is not None:
            return
        self._sender = ReplicaSender(context)
        self._sender.hold(current.complete_step)
        if place.first_rank:
            work: Coroutine[Any, Any, None] = follow(context, self._sender, self.replica_store, place.replica_group)
        else:
            self._requests.leader = ReplicationLeader(context, self._sender, self.replica_store)
            work = self._requests.leader.lead(place.replica_group)
        self._round = asyncio.get_running_loop().create_task(work)

    async def announce_save(self, local_rank: int, save: Save) -> None:
        """Record an announced save of a local rank, so that it can be replicated with its target.

        If nothing is replicated in this round, replicas of earlier rounds are freed after SAVES_BEFORE_CLEANUP saves.
        """
        self._context.current.saves[local_rank] = save
        if self._sender is None:
            self._unreplicated_saves += local_rank == 0
            if local_rank == 0 and self._unreplicated_saves == SAVES_BEFORE_CLEANUP:
                self.replica_store.arenas.free_earlier_rounds(self._context.round)
            return
        async with self._context.sealed:
            if local_rank == 0:
                self._context.current.unreplicated_steps.add(save.step)
            self._context.sealed.notify_all()

    def progress(self) -> tuple[int, int]:
        """Return the newest replicated step of this round, -1 for none, and the number of uncopied steps."""
        return (-1, 0) if self._sender is None else (self._sender.replicated, self._sender.uncopied)

    def abandon_copy(self) -> bool:
        """Unpin the step in replication, to free memory for a save; its copy fails. Return False if there is none."""
        return self._sender is not None and self._sender.abandon_copy()

    def free_earlier_rounds(self) -> bool:
        """Free replicas of earlier rounds, since there is too little memory. Return True if any arena was removed."""
        return self.replica_store.arenas.free_earlier_rounds(self._context.round)

    async def adopt_shards(self, order: Adopt) -> None:
        """Fetch the shards of leaving workers that the order names, and keep them as replicas."""
        await adopt_shards(self._context, self.replica_store, order)

    async def fetch_shard(self, request: FetchShard) -> ShardFetched:
        """Fetch a shard, if it is not here, and return where it lies. Raises BadCheckpoint if no worker gives it, or if
        the members have not agreed on its round and world size.
        """
        return await fetch_for_reader(self._context, self.replica_store, request)

    async def held_steps(self, own: tuple[HeldStep, ...]) -> tuple[HeldStep, ...]:
        """List the steps that others may fetch here: replicas, and steps of `own` that are the same on all ranks.

        own: the worker's own held steps. If a shard could not be fetched in this round, FETCH_DISABLED comes first:
        this worker then fetches nothing in the next round. Then come the steps of `own`, then replicas, newest first;
        together at most MAX_HOLDS - _RESERVED_ENTRIES.
        """
        replicated = [
            msgspec.structs.replace(each, count=1)
            for each in own
            if each.ranks == ALL and not each.count and each.round in self._context.replicated_rounds
        ]
        fetch_disabled = [FETCH_DISABLED] if self._context.current.fetch_failed else []
        return (*fetch_disabled, *replicated, *await self.replica_store.held_steps())[: MAX_HOLDS - _RESERVED_ENTRIES]

    def _close_round(self) -> None:
        """Stop the replication of the current round: close its connections and cancel its task."""
        for each in (self._requests.leader, self._sender):
            if each is not None:
                each.close()
        if self._round is not None:
            self._round.cancel()
        self._requests.leader = self._sender = self._round = None

    async def close(self, *, remove: bool) -> None:
        """Close all connections as the daemon ends. remove: the job is done, so free the memory."""
        self._context.rate_limiter.rate_limit = RateLimit()  # wake waiting senders: they find their connection closed
        self._close_round()
        await self.peers.close()
        self._receive_threads.shutdown(wait=True)
        self._send_threads.shutdown(wait=True)
        with suppress(OSError):
            self.replica_store.arenas.close(remove=remove)
