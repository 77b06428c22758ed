"""Runs a daemon's part in the replication of its job: accepts peers, sends and keeps replicas, and returns shards.

The daemon reports rounds, training processes and sealed steps. Everything else happens in the background.
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
from turnout.launcher.checkpoint.format.daemon_messages import (
    Adopt,
    FetchShard,
    Hello,
    RestorePlace,
    Save,
    ShardFetched,
)
from turnout.launcher.checkpoint.format.replication_messages import (
    Fetch,
    Follow,
    Offer,
    Refusal,
    SendShard,
    ShardKept,
    unpacked,
)
from turnout.launcher.checkpoint.replication.fetch import fetch_step, send_shard
from turnout.launcher.checkpoint.replication.handover import adopt_shards, fetch_for_reader
from turnout.launcher.checkpoint.replication.leader import ReplicationLeader, follow
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, accept_peer
from turnout.launcher.checkpoint.replication.ports import DaemonPort, ReplicationContext
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.checkpoint.replication.sender import ReplicaSender
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimit, RateLimiter
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog, rate_limited
from turnout.launcher.rendezvous.checkpoint_messages import ALL, FETCH_DISABLED, MOST_HOLDS, HeldStep

BYTES_S = "TURNOUT_REPLICATE_BYTES_S"  # in the daemon's environment, which it has from the agent
MOST_CALLERS = 512  # connections that have proved the token
MOST_STRANGERS = 64  # connections that have proved nothing yet
SAVES_BEFORE_CLEANUP = 2  # complete saves after which older ones are not used again
FULL_S = 1.0  # pause after running out of file descriptors
_OWN = 32  # entries of a list of held steps that are reserved for the worker's own
_THREADS = 16  # receiving threads; idle ones cost nothing


class Replicator:
    """Replicates the shards of one daemon. bytes_s: the limit of sending in bytes per second, 0 for none."""

    def __init__(self, daemon: DaemonPort, log_event: EventLog, bytes_s: float = 0.0) -> None:
        self._send_threads = ThreadPoolExecutor(1, "turnout-send")
        self._receive_threads = ThreadPoolExecutor(_THREADS, "turnout-receive")
        self._context = ReplicationContext(
            daemon, log_event, self._send_threads, self._receive_threads, RateLimiter(RateLimit(bytes_s))
        )
        self.replica_store = ReplicaStore(daemon.folder, daemon.run, daemon.worker, log_event, self._receive_threads)
        self._sender: ReplicaSender | None = None
        self._leader: ReplicationLeader | None = None
        self._round: asyncio.Task[Any] | None = None  # leads or follows in this round
        self._callers: set[asyncio.Task[None]] = set()
        self._connections: set[PeerConnection] = set()
        self._strangers: dict[PeerConnection, asyncio.Task[None]] = {}  # oldest first
        self._log_stranger = rate_limited(log_event)
        self._listener: socket.socket | None = None
        self._unreplicated_saves = 0  # saves of this round, if nothing is replicated

    def listen(self, listens: socket.socket) -> None:
        """Listen for other daemons on this socket."""
        if listens.fileno() < 0:
            return
        listens.setblocking(False)
        self._listener = listens
        asyncio.get_running_loop().add_reader(listens.fileno(), self._accept, listens)

    def trust(self, token: bytes) -> None:
        """Set the token by which the daemons of the job recognise each other."""
        self._context.token = token

    async def begin_round(self, step: int, restore_place: RestorePlace) -> None:
        """Begin a round: fetch the shards of the step that this worker lacks. Raises LauncherError; then no process may
        start.
        """
        self._close_round()
        context = self._context
        context.round, context.restore_place, context.replicas = (
            max(context.round, restore_place.round),
            restore_place,
            0,
        )
        context.fetch_failed, self._unreplicated_saves = False, 0
        context.complete_step, context.unreplicated_steps, context.ordered_steps, context.saves = step, set(), set(), {}
        if step >= 0 and restore_place.fetch_from:
            await fetch_step(context, step, restore_place)

    def register(self, hello: Hello) -> None:
        """Register a training process. Starts to replicate if it wants replicas."""
        context = self._context
        if hello.replicated and hello.round:
            context.replicated_rounds.add(hello.round)
        if (
            not hello.replicas
            or hello.round != context.round
            or context.restore_place is None
            or context.restore_place.replica_group is None
        ):
            return
        context.replicas = max(context.replicas, hello.replicas)
        if self._sender is not None:
            return
        self._sender = ReplicaSender(context)
        self._sender.hold(context.complete_step)
        if context.restore_place.first_rank:
            work: Coroutine[Any, Any, None] = follow(
                context, self._sender, self.replica_store, context.restore_place.replica_group
            )
        else:
            self._leader = ReplicationLeader(context, self._sender, self.replica_store)
            work = self._leader.lead(context.restore_place.replica_group)
        self._round = asyncio.get_running_loop().create_task(work)

    async def announce_save(self, local_rank: int, save: Save) -> None:
        """Announce a save of a local rank, which can now be replicated together with its target."""
        self._context.saves[local_rank] = save
        if self._sender is None:
            self._unreplicated_saves += local_rank == 0
            if local_rank == 0 and self._unreplicated_saves == SAVES_BEFORE_CLEANUP:
                self.replica_store.free_earlier_rounds(self._context.round)
            return
        async with self._context.sealed:
            if local_rank == 0:
                self._context.unreplicated_steps.add(save.step)
            self._context.sealed.notify_all()

    def progress(self) -> tuple[int, int]:
        """Return the newest replicated step of this round, -1 for none, and the number of steps that were not
        replicated.
        """
        return (-1, 0) if self._sender is None else (self._sender.replicated, self._sender.uncopied)

    def busy(self) -> bool:
        """True if a peer is connected."""
        return bool(self._callers)

    def abandon_copy(self) -> bool:
        """Stop the replication in progress to free its memory for a save. False if there is none."""
        return self._sender is not None and self._sender.abandon_copy()

    def replica_bytes(self, local_rank: int) -> int:
        """Return the bytes taken by replicas of that local rank, of all owners."""
        return self.replica_store.reserved_bytes(local_rank)

    def free_earlier_rounds(self) -> bool:
        """Free replicas of earlier rounds, since there is too little memory. False if there are none."""
        return self.replica_store.free_earlier_rounds(self._context.round)

    async def adopt_shards(self, order: Adopt) -> None:
        """Adopt the shards that workers which leave hold."""
        await adopt_shards(self._context, self.replica_store, order)

    async def fetch_shard(self, request: FetchShard) -> ShardFetched:
        """Fetch a shard and return where it lies. Raises LauncherError."""
        return await fetch_for_reader(self._context, self.replica_store, request)

    async def held_steps(self, own: tuple[HeldStep, ...]) -> tuple[HeldStep, ...]:
        """List what others may fetch here: their replicas, and those steps of `own` that are the same on all ranks.

        If a shard could not be fetched in this round, FETCH_DISABLED comes first: this worker then fetches nothing in
        the next one.
        """
        replicated = [
            msgspec.structs.replace(each, count=1)
            for each in own
            if each.ranks == ALL and not each.count and each.round in self._context.replicated_rounds
        ]
        fetch_disabled = [FETCH_DISABLED] if self._context.fetch_failed else []
        return (*fetch_disabled, *replicated, *await self.replica_store.held_steps())[: MOST_HOLDS - _OWN]

    async def forget_after(self, step: int) -> None:
        """Discard replicas newer than this step, since the world continues from it."""
        await self.replica_store.forget_after(step)

    def _close_round(self) -> None:
        for each in (self._leader, self._sender):
            if each is not None:
                each.close()
        if self._round is not None:
            self._round.cancel()
        self._leader = self._sender = self._round = None

    def _accept(self, listens: socket.socket) -> None:
        try:
            sock, _ = listens.accept()
        except OSError as error:  # the caller left before it was accepted, or file descriptors ran out
            if error.errno in (errno.EMFILE, errno.ENFILE):
                loop = asyncio.get_running_loop()
                loop.remove_reader(listens.fileno())
                loop.call_later(FULL_S, self.listen, listens)
            return
        # A peer with the token proves it quickly: end the one that has waited longest.
        if len(self._strangers) >= MOST_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).cancel()
        connection = PeerConnection(sock)
        self._connections.add(connection)  # here, since a task that is cancelled before it starts closes nothing
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._strangers[connection] = task
        self._callers.add(task)
        task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: PeerConnection, task: asyncio.Task[None]) -> None:
        self._callers.discard(task)
        if connection in self._connections:  # the task was cancelled before it started
            self._connections.discard(connection)
            connection.close()

    async def _serve(self, connection: PeerConnection) -> None:
        try:
            is_proven = await accept_peer(connection, self._context.identity)
            self._strangers.pop(connection, None)
            if is_proven and await self._is_current_round(connection):
                if len(self._connections) - len(self._strangers) <= MOST_CALLERS:
                    await self._serve_requests(connection)
            else:
                self._log_stranger("stranger_refused", {"peer": connection.peer, "round": connection.round})
        except BadFrame as error:
            self._log_stranger("frame_refused", {"why": str(error)})
        except (LauncherError, OSError):  # the peer is gone, and will reconnect
            pass
        finally:
            self._strangers.pop(connection, None)
            self._connections.discard(connection)
            if self._leader is None or not self._leader.has(connection):
                connection.close()

    async def _is_current_round(self, connection: PeerConnection) -> bool:
        """True if the peer's round is not over here. Replicas of an older round are refused."""
        if connection.round < self._context.round:
            await connection.send(Refusal("older_round", f"round {connection.round}: this is {self._context.round}"))
            return False
        return True

    async def _serve_requests(self, connection: PeerConnection) -> None:
        while True:
            match await connection.receive(None):
                case Offer() as offer if await self._is_current_round(connection):
                    await self._receive_replica(connection, offer)
                case Fetch() as asked if await self._is_current_round(connection):
                    await send_shard(self._context, self.replica_store, connection, asked)
                case Follow():
                    if self._leader is None or connection.round != self._context.round:
                        await connection.send(Refusal("not_here", "nobody leads here yet"))
                    else:
                        await self._leader.follow(connection)
                    return
                case Offer() | Fetch():
                    return
                case message:
                    raise BadFrame(f"{type(message).__name__} is not for a daemon")

    async def _receive_replica(self, connection: PeerConnection, offer: Offer) -> None:
        record = unpacked(offer.record)
        place = (connection.peer, offer.local_rank)
        if record.round != connection.round or connection.peer == self._context.daemon.worker:
            raise BadFrame("a shard of another round, or of this worker itself")
        try:
            arena = await self.replica_store.reserve(place, record, offer.generations)
            await connection.send(SendShard())
            await self.replica_store.receive(connection, place, record, offer, arena)
        except (NoMemory, ArenaBusy) as error:
            self._context.log_event(
                "replica_refused", {"owner": connection.peer, "step": record.step, "detail": str(error)[:1_000]}
            )
            await connection.send(Refusal("no_memory" if isinstance(error, NoMemory) else "busy", str(error)[:4_096]))
        except BadCheckpoint as error:
            self._context.log_event(
                "replica_corrupt", {"owner": connection.peer, "step": record.step, "detail": str(error)}
            )
            await connection.send(Refusal("corrupt", str(error)))
            raise
        else:
            await connection.send(ShardKept())

    async def close(self, *, remove: bool) -> None:
        """Close all connections as the daemon ends. remove: the job is done, so free the memory."""
        self._context.rate_limiter.pace = RateLimit()  # wake waiting senders: they find their connection closed
        self._close_round()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
        for task in self._callers:
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*self._callers, return_exceptions=True)
        self._receive_threads.shutdown(wait=True)
        self._send_threads.shutdown(wait=True)
        with suppress(OSError):
            self.replica_store.close(remove=remove)
