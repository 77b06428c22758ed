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
from turnout.launcher.checkpoint.replication.fetch import fetched, give
from turnout.launcher.checkpoint.replication.handover import brought, inherited
from turnout.launcher.checkpoint.replication.leader import ReplicationLeader, follow
from turnout.launcher.checkpoint.replication.peer_connection import PeerConnection, greeted
from turnout.launcher.checkpoint.replication.ports import DaemonPort, ReplicationContext
from turnout.launcher.checkpoint.replication.replica_store import ReplicaStore
from turnout.launcher.checkpoint.replication.sender import ReplicaSender
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimit, RateLimiter
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog, seldom
from turnout.launcher.rendezvous.checkpoint_messages import ALL, FETCH_DISABLED, MOST_HOLDS, HeldStep

BYTES_S = "TURNOUT_REPLICATE_BYTES_S"  # in the daemon's environment, which it has from the agent
MOST_CALLERS = 512  # connections that have proved the token
MOST_STRANGERS = 64  # connections that have proved nothing yet
OVER = 2  # complete saves after which older ones are not used again
FULL_S = 1.0  # pause after running out of file descriptors
_OWN = 32  # entries of a list of held steps that are reserved for the worker's own
_THREADS = 16  # receiving threads; idle ones cost nothing


class Replicator:
    """Replicates the shards of one daemon. bytes_s: the limit of sending in bytes per second, 0 for none."""

    def __init__(self, home: DaemonPort, say: EventLog, bytes_s: float = 0.0) -> None:
        self._sends = ThreadPoolExecutor(1, "turnout-send")
        self._receives = ThreadPoolExecutor(_THREADS, "turnout-receive")
        self._here = ReplicationContext(home, say, self._sends, self._receives, RateLimiter(RateLimit(bytes_s)))
        self.replica_store = ReplicaStore(home.folder, home.run, home.worker, say, self._receives)
        self._copying: ReplicaSender | None = None
        self._leading: ReplicationLeader | None = None
        self._round: asyncio.Task[Any] | None = None  # leads or follows in this round
        self._callers: set[asyncio.Task[None]] = set()
        self._connections: set[PeerConnection] = set()
        self._strangers: dict[PeerConnection, asyncio.Task[None]] = {}  # oldest first
        self._of_strangers = seldom(say)
        self._listens: socket.socket | None = None
        self._sealed = 0  # saves of this round, if nothing is replicated

    def listen(self, listens: socket.socket) -> None:
        """Listen for other daemons on this socket."""
        if listens.fileno() < 0:
            return
        listens.setblocking(False)
        self._listens = listens
        asyncio.get_running_loop().add_reader(listens.fileno(), self._accept, listens)

    def trust(self, token: bytes) -> None:
        """Set the token by which the daemons of the job recognise each other."""
        self._here.token = token

    async def gathered(self, step: int, seat: RestorePlace) -> None:
        """Begin a round: fetch the shards of the step that this worker lacks. Raises LauncherError; then no process may
        start.
        """
        self._close_round()
        here = self._here
        here.round, here.seat, here.replicas = max(here.round, seat.round), seat, 0
        here.barred, self._sealed = False, 0
        here.whole, here.steps, here.copied, here.saves = step, set(), set(), {}
        if step >= 0 and seat.fetch:
            await fetched(here, step, seat)

    def met(self, hello: Hello) -> None:
        """Register a training process. Starts to replicate if it wants replicas."""
        here = self._here
        if hello.alike and hello.round:
            here.replicated_rounds.add(hello.round)
        if not hello.replicas or hello.round != here.round or here.seat is None or here.seat.replica_group is None:
            return
        here.replicas = max(here.replicas, hello.replicas)
        if self._copying is not None:
            return
        self._copying = ReplicaSender(here)
        self._copying.hold(here.whole)
        if here.seat.first_rank:
            work: Coroutine[Any, Any, None] = follow(here, self._copying, self.replica_store, here.seat.replica_group)
        else:
            self._leading = ReplicationLeader(here, self._copying, self.replica_store)
            work = self._leading.lead(here.seat.replica_group)
        self._round = asyncio.get_running_loop().create_task(work)

    async def sealed(self, local_rank: int, told: Save) -> None:
        """Announce a save of a local rank, which can now be replicated together with its target."""
        self._here.saves[local_rank] = told
        if self._copying is None:
            self._sealed += local_rank == 0
            if local_rank == 0 and self._sealed == OVER:
                self.replica_store.give_back(self._here.round)
            return
        async with self._here.sealed:
            if local_rank == 0:
                self._here.steps.add(told.step)
            self._here.sealed.notify_all()

    def done(self) -> tuple[int, int]:
        """Return the newest replicated step of this round, -1 for none, and the number of steps that were not
        replicated.
        """
        return (-1, 0) if self._copying is None else (self._copying.replicated, self._copying.uncopied)

    def busy(self) -> bool:
        """True if a peer is connected."""
        return bool(self._callers)

    def give_way(self) -> bool:
        """Stop the replication in progress to free its memory for a save. False if there is none."""
        return self._copying is not None and self._copying.give_way()

    def kept_bytes(self, local_rank: int) -> int:
        """Return the bytes taken by replicas of that local rank, of all owners."""
        return self.replica_store.reserved_bytes(local_rank)

    def give_back(self) -> bool:
        """Free replicas of earlier rounds, since there is too little memory. False if there are none."""
        return self.replica_store.give_back(self._here.round)

    async def inherit(self, order: Adopt) -> None:
        """Adopt the shards that workers which leave hold."""
        await inherited(self._here, self.replica_store, order)

    async def bring(self, wanted: FetchShard) -> ShardFetched:
        """Fetch a shard and return where it lies. Raises LauncherError."""
        return await brought(self._here, self.replica_store, wanted)

    async def held(self, own: tuple[HeldStep, ...]) -> tuple[HeldStep, ...]:
        """List what others may fetch here: their replicas, and those steps of `own` that are the same on all ranks.

        If a shard could not be fetched in this round, FETCH_DISABLED comes first: this worker then fetches nothing in
        the next one.
        """
        replicated = [
            msgspec.structs.replace(each, count=1)
            for each in own
            if each.ranks == ALL and not each.count and each.round in self._here.replicated_rounds
        ]
        barred = [FETCH_DISABLED] if self._here.barred else []
        return (*barred, *replicated, *await self.replica_store.held())[: MOST_HOLDS - _OWN]

    async def forget_after(self, step: int) -> None:
        """Discard replicas newer than this step, since the world continues from it."""
        await self.replica_store.forget_after(step)

    def _close_round(self) -> None:
        for each in (self._leading, self._copying):
            if each is not None:
                each.close()
        if self._round is not None:
            self._round.cancel()
        self._leading = self._copying = self._round = None

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
            known = await greeted(connection, self._here.me)
            self._strangers.pop(connection, None)
            if known and await self._in_time(connection):
                if len(self._connections) - len(self._strangers) <= MOST_CALLERS:
                    await self._obey(connection)
            else:
                self._of_strangers("stranger_refused", {"peer": connection.peer, "round": connection.round})
        except BadFrame as error:
            self._of_strangers("frame_refused", {"why": str(error)})
        except (LauncherError, OSError):  # the peer is gone, and will reconnect
            pass
        finally:
            self._strangers.pop(connection, None)
            self._connections.discard(connection)
            if self._leading is None or not self._leading.has(connection):
                connection.close()

    async def _in_time(self, connection: PeerConnection) -> bool:
        """True if the peer's round is not over here. Replicas of an older round are refused."""
        if connection.round < self._here.round:
            await connection.say(Refusal("older_round", f"round {connection.round}: this is {self._here.round}"))
            return False
        return True

    async def _obey(self, connection: PeerConnection) -> None:
        while True:
            match await connection.hear(None):
                case Offer() as offer if await self._in_time(connection):
                    await self._take(connection, offer)
                case Fetch() as asked if await self._in_time(connection):
                    await give(self._here, self.replica_store, connection, asked)
                case Follow():
                    if self._leading is None or connection.round != self._here.round:
                        await connection.say(Refusal("not_here", "nobody leads here yet"))
                    else:
                        await self._leading.follow(connection)
                    return
                case Offer() | Fetch():
                    return
                case message:
                    raise BadFrame(f"{type(message).__name__} is not for a daemon")

    async def _take(self, connection: PeerConnection, offer: Offer) -> None:
        record = unpacked(offer.record)
        place = (connection.peer, offer.local_rank)
        if record.round != connection.round or connection.peer == self._here.home.worker:
            raise BadFrame("a shard of another round, or of this worker itself")
        try:
            arena = await self.replica_store.room(place, record, offer.generations)
            await connection.say(SendShard())
            await self.replica_store.take(connection, place, record, offer, arena)
        except (NoMemory, ArenaBusy) as error:
            self._here.say(
                "replica_refused", {"owner": connection.peer, "step": record.step, "detail": str(error)[:1_000]}
            )
            await connection.say(Refusal("no_memory" if isinstance(error, NoMemory) else "busy", str(error)[:4_096]))
        except BadCheckpoint as error:
            self._here.say("replica_corrupt", {"owner": connection.peer, "step": record.step, "detail": str(error)})
            await connection.say(Refusal("corrupt", str(error)))
            raise
        else:
            await connection.say(ShardKept())

    async def close(self, *, remove: bool) -> None:
        """Close all connections as the daemon ends. remove: the job is done, so free the memory."""
        self._here.paced.pace = RateLimit()  # wake waiting senders: they find their connection closed
        self._close_round()
        if self._listens is not None:
            asyncio.get_running_loop().remove_reader(self._listens.fileno())
        for task in self._callers:
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*self._callers, return_exceptions=True)
        self._receives.shutdown(wait=True)
        self._sends.shutdown(wait=True)
        with suppress(OSError):
            self.replica_store.close(remove=remove)
